//! `proxyd run`: source, driver, servers and signals, wired together.
//!
//! The driver has a thread of its own, since a commit may block it. Everything else shares the
//! main thread's runtime.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use proxy_core::address::IpFamily;
use proxy_core::driver::{Driver, DriverEvent, DriverOptions};
use proxy_core::event::{EventCounts, Kind, SourceEvent};
use proxy_core::options::Options;
use proxy_core::store::{NodeState, Store};
use proxy_core::sync::TableSync;
use proxy_core::table::error_chain;
use source::files::FileSource;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{Flags, KubeProxyConfiguration, Loaded};
use crate::flows::FlowWorker;
use crate::health_checks::{self, WantedChecks};
use crate::healthz::{self, SharedHealth};
use crate::metrics::{MeasuredTable, Metrics};
use crate::status::{self, StatusPages};
use crate::{kernel_settings, tables};

/// Events that may wait between source and driver. A full channel holds the source back, which
/// bounds memory while a large list is taken in.
const EVENT_BUFFER: usize = 1024;

/// Runs the proxy until a signal ends it. Rules stay in place.
pub fn run(loaded: &Loaded, flags: &Flags) -> anyhow::Result<()> {
    let config = &loaded.config;
    let is_init_only = flags.init_only == Some(true);
    if flags.manifests.is_none() && !is_init_only {
        bail!("--manifests is missing: this build takes objects only from a folder of manifests");
    }
    let options = tables::options(config)?;
    let families = tables::families();
    tables::check(config.mode, &families)?;
    let by_service = flags.service_latency.as_deref().unwrap_or_default();
    let metrics = Metrics::new(config, &families, by_service)?;
    kernel_settings::apply(config, &kernel_settings::asked_for(&loaded.given, flags))?;
    let Some(manifests) = flags.manifests.as_ref().filter(|_| !is_init_only) else {
        return Ok(());
    };
    let families_text: Vec<String> = families.iter().map(ToString::to_string).collect();
    tracing::info!(
        mode = %config.mode, node = options.node_name, families = families_text.join(","),
        manifests = %manifests.display(), version = env!("CARGO_PKG_VERSION"), "starting"
    );
    let runtime = runtime()?;
    let pages = StatusPages::new(config, flags, metrics.clone());
    let ended = runtime.block_on(serve(config, options, families, manifests, metrics, pages));
    // Whatever still runs is cut off: it holds nothing that has to be kept.
    runtime.shutdown_background();
    ended
}

fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("failed to start the runtime")
}

async fn serve(
    config: &KubeProxyConfiguration,
    options: Options,
    families: Vec<IpFamily>,
    manifests: &Path,
    metrics: Metrics,
    pages: StatusPages,
) -> anyhow::Result<()> {
    let health = SharedHealth::new(config.sync_period.saturating_mul(2));
    let (stop, stopped) = watch::channel(false);
    let (events, queue) = mpsc::channel(EVENT_BUFFER);
    let (addresses_out, addresses) = watch::channel(interface_addresses()?);
    tokio::spawn(follow_addresses(addresses_out));
    let source = FileSource::new(manifests);
    let source = tokio::spawn(async move { source.run(events).await });
    let outlets = Outlets::new(health.clone(), &families, metrics.clone())?;
    let driver = DriverThread { config: config.clone(), options, families, outlets };
    let mut driver = driver.start(queue, addresses, stopped)?;
    let mut healthz = tokio::spawn(serve_health(config.clone(), health, metrics));
    let mut status = tokio::spawn(serve_status(config.clone(), pages));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("terminated; rules stay in place"),
        _ = interrupt.recv() => tracing::info!("interrupted; rules stay in place"),
        ended = &mut healthz => ended??,
        ended = &mut status => ended??,
        ended = source => bail!("the source of objects ended: {:?}", ended),
        ended = &mut driver => return ended.unwrap_or_else(|_| bail!("the driver died")),
    }
    // What is being written is finished, so that no family is left half way.
    let _gone = stop.send(true);
    tokio::time::timeout(Duration::from_secs(2), driver).await.ok();
    Ok(())
}

async fn serve_health(
    config: KubeProxyConfiguration,
    health: SharedHealth,
    metrics: Metrics,
) -> anyhow::Result<()> {
    match config.healthz_bind_address {
        Some(address) => healthz::serve(address, health, metrics, config.bind_address_hard_fail)
            .await
            .with_context(|| format!("failed to listen on healthzBindAddress {address}")),
        None => std::future::pending().await,
    }
}

async fn serve_status(config: KubeProxyConfiguration, pages: StatusPages) -> anyhow::Result<()> {
    match config.metrics_bind_address {
        Some(address) => status::serve(address, pages, config.bind_address_hard_fail)
            .await
            .with_context(|| format!("failed to listen on metricsBindAddress {address}")),
        None => std::future::pending().await,
    }
}

// === addresses of the machine ===

fn interface_addresses() -> anyhow::Result<Vec<IpAddr>> {
    let addresses = node_sys::addresses::list().context("failed to list interface addresses")?;
    let mut addresses: Vec<IpAddr> = addresses.into_iter().map(|it| it.address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Hands on the machine's addresses whenever the kernel says that they changed.
async fn follow_addresses(out: watch::Sender<Vec<IpAddr>>) {
    const RETRY: Duration = Duration::from_secs(5);
    loop {
        if let Err(error) = watch_addresses(&out).await {
            let error = format!("{error:#}");
            tracing::warn!(error, "lost track of interface addresses; trying again");
        }
        if out.is_closed() {
            return;
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn watch_addresses(out: &watch::Sender<Vec<IpAddr>>) -> anyhow::Result<()> {
    let mut monitor = node_sys::addresses::AsyncAddressMonitor::open()?;
    loop {
        let now = interface_addresses()?;
        out.send_if_modified(|known| {
            let changed = *known != now;
            *known = now;
            changed
        });
        if out.is_closed() {
            return Ok(());
        }
        monitor.changed().await?;
    }
}

// === the driver's thread ===

struct DriverThread {
    config: KubeProxyConfiguration,
    options: Options,
    families: Vec<IpFamily>,
    outlets: Outlets,
}

type Ended = oneshot::Receiver<anyhow::Result<()>>;

impl DriverThread {
    fn start(
        self,
        queue: mpsc::Receiver<SourceEvent>,
        addresses: watch::Receiver<Vec<IpAddr>>,
        stop: watch::Receiver<bool>,
    ) -> anyhow::Result<Ended> {
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new()
            .name("driver".to_owned())
            .spawn(move || {
                let result = runtime()
                    .and_then(|runtime| runtime.block_on(self.run(queue, addresses, stop)));
                // The receiver is gone if the process ends anyway.
                let _gone = end.send(result);
            })
            .context("failed to start the driver's thread")?;
        Ok(ended)
    }

    async fn run(
        self,
        mut queue: mpsc::Receiver<SourceEvent>,
        addresses: watch::Receiver<Vec<IpAddr>>,
        mut stop: watch::Receiver<bool>,
    ) -> anyhow::Result<()> {
        let mut store = Store::new(self.options);
        tokio::select! {
            () = learn_node(&mut store, &mut queue, &self.outlets.metrics) => {}
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
        let tables = self.families.iter().map(|family| {
            let detector = store.detector(*family);
            tracing::debug!(%family, ?detector, "local traffic");
            let table = tables::table(&self.config, *family, detector)?;
            let table = MeasuredTable::new(table, self.outlets.metrics.clone());
            Ok(Box::new(table) as Box<dyn TableSync>)
        });
        let tables = tables.collect::<anyhow::Result<Vec<Box<dyn TableSync>>>>()?;
        let options = DriverOptions {
            min_sync_period: self.config.min_sync_period,
            sync_period: self.config.sync_period,
            ..DriverOptions::default()
        };
        let mut outlets = self.outlets;
        let driver = Driver::new(store, tables, options, move |event| outlets.take(event));
        driver.run(queue, addresses, stop).await;
        Ok(())
    }
}

/// Takes in events up to the end of the first list of Nodes: what local traffic is may depend on
/// the Node object, and tables depend on that.
async fn learn_node(store: &mut Store, queue: &mut mpsc::Receiver<SourceEvent>, metrics: &Metrics) {
    while let Some(event) = queue.recv().await {
        let mut counts = EventCounts::default();
        counts.add(&event);
        metrics.take_in(&counts);
        let done = event == SourceEvent::ListDone(Kind::Node);
        store.apply(event);
        if done {
            return;
        }
    }
}

/// Where the driver's events go.
struct Outlets {
    health: SharedHealth,
    metrics: Metrics,
    flows: FlowWorker,
    checks: Vec<(IpFamily, watch::Sender<WantedChecks>)>,
    families: Vec<IpFamily>,
}

impl Outlets {
    fn new(health: SharedHealth, families: &[IpFamily], metrics: Metrics) -> anyhow::Result<Self> {
        let flows =
            FlowWorker::start(metrics.clone()).context("failed to start the thread for flows")?;
        let checks = families
            .iter()
            .map(|family| {
                let (wanted, watched) = watch::channel(WantedChecks::default());
                let health = health.clone();
                let is_live = Arc::new(move || health.is_live());
                let (family, metrics) = (*family, metrics.clone());
                let tell = move |ports| metrics.set_refused_health_checks(family, ports);
                tokio::spawn(health_checks::run(watched, is_live, tell));
                (family, wanted)
            })
            .collect();
        Ok(Self { health, metrics, flows, checks, families: families.to_vec() })
    }

    fn take(&mut self, event: DriverEvent) {
        self.metrics.observe(&event);
        match event {
            DriverEvent::Ready => {
                self.health.update(|health, now, time| {
                    for family in &self.families {
                        health.started(*family, time);
                        health.queued(*family, now);
                    }
                });
            }
            DriverEvent::Node(node) => self.health.set_node_eligible(is_eligible(&node)),
            DriverEvent::Queued { family } => {
                self.health.update(|health, now, _| health.queued(family, now));
            }
            DriverEvent::Synced { family, .. } => {
                self.health.update(|health, _, time| health.synced(family, time));
            }
            DriverEvent::StaleFlows { family, flows } => self.flows.clean(family, flows),
            DriverEvent::HealthChecks { family, checks, addresses } => {
                let addresses = WantedChecks::listen_addresses(family, &addresses);
                let wanted = WantedChecks { checks, addresses };
                if let Some((_, sender)) = self.checks.iter().find(|(known, _)| *known == family) {
                    sender.send_replace(wanted);
                }
            }
            // Logged by the driver.
            _ => {}
        }
    }
}

/// A folder of manifests need not hold the Node; nothing then says that it is leaving.
fn is_eligible(node: &NodeState) -> bool {
    node.eligible || !node.seen
}

/// Removes everything that is ours from the kernel, whichever mode programmed it.
pub fn cleanup(config: &KubeProxyConfiguration) -> anyhow::Result<()> {
    let mut failures = Vec::new();
    for mode in tables::MODES {
        let mut config = config.clone();
        config.mode = *mode;
        for family in tables::families() {
            let cleared = tables::table(&config, family, None)
                .and_then(|mut table| Ok(runtime()?.block_on(table.clear())?));
            if let Err(error) = cleared {
                failures.push(format!("{mode}, {family}: {}", error_chain(error.as_ref())));
            }
        }
    }
    if failures.is_empty() { Ok(()) } else { bail!("cleanup failed: {}", failures.join("; ")) }
}
