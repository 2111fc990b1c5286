//! `proxyd run`: source, driver, servers and signals, wired together.
//!
//! The driver has a thread of its own, since a commit may block it. Everything else shares the
//! main thread's runtime.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::driver::{Driver, DriverEvent, DriverOptions};
use proxy_core::event::{EventCounts, Kind, SourceEvent};
use proxy_core::options::Options;
use proxy_core::store::{NodeState, Store};
use proxy_core::sync::TableSync;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot, watch};

use crate::config::{ConfigChange, DetectLocal, Flags, KubeProxyConfiguration, Loaded};
use crate::events::{EventObserver, Events};
use crate::flows::FlowWorker;
use crate::health_checks::{self, WantedChecks};
use crate::healthz::{self, SharedHealth};
use crate::metrics::{MeasuredTable, Metrics};
use crate::objects::{ObjectSource, Patience};
use crate::reload::ConfigWatch;
use crate::status::{self, StatusPages};
use crate::{kernel_settings, tables};

/// Events that may wait between source and driver. A full channel holds the source back, which
/// bounds memory while a large list is taken in.
pub(crate) const EVENT_BUFFER: usize = 1024;

/// Runs the proxy until a signal ends it. Rules stay in place.
pub fn run(loaded: &Loaded, flags: &Flags) -> anyhow::Result<()> {
    let config = &loaded.config;
    let options = tables::options(config)?;
    let families = tables::families();
    tables::check(config, &families)?;
    let by_service = flags.service_latency.as_deref().unwrap_or_default();
    let metrics = Metrics::new(config, &families, by_service)?;
    kernel_settings::apply(config, &kernel_settings::asked_for(&loaded.given, flags))?;
    tables::prepare(config)?;
    if flags.init_only == Some(true) {
        return Ok(());
    }
    let source = ObjectSource::open(config, flags, &options.node_name)?.observed_by(&metrics);
    let families_text: Vec<String> = families.iter().map(ToString::to_string).collect();
    tracing::info!(
        mode = %config.mode, node = options.node_name, families = families_text.join(","),
        objects = %source, version = env!("CARGO_PKG_VERSION"), "starting"
    );
    let runtime = runtime()?;
    let ended = runtime.block_on(serve(loaded, flags, options, families, source, metrics));
    // Whatever still runs is cut off: it holds nothing that has to be kept.
    runtime.shutdown_background();
    match ended? {
        Ending::Stopped => Ok(()),
        Ending::Reconfigured => {
            Err(node_sys::process::start_anew()).context("failed to start anew")
        }
    }
}

/// Why the program ended without an error.
enum Ending {
    /// A signal asked for it.
    Stopped,
    /// Another configuration is to be taken in.
    Reconfigured,
}

pub(crate) fn runtime() -> anyhow::Result<Runtime> {
    Builder::new_current_thread().enable_all().build().context("failed to start the runtime")
}

async fn serve(
    loaded: &Loaded,
    flags: &Flags,
    options: Options,
    families: Vec<IpFamily>,
    source: ObjectSource,
    metrics: Metrics,
) -> anyhow::Result<Ending> {
    let config = &loaded.config;
    let pages = StatusPages::new(config, flags, metrics.clone());
    let told = Events::start(&source, config, &options.node_name);
    let config_watch = ConfigWatch::new(loaded, flags, metrics.clone(), told.clone());
    let health = SharedHealth::new(config.sync_period.saturating_mul(2));
    let (stop, stopped) = watch::channel(false);
    let (events, queue) = mpsc::channel(EVENT_BUFFER);
    let (addresses_out, addresses) = watch::channel(interface_addresses()?);
    tokio::spawn(follow_addresses(addresses_out));
    let patience = source.patience();
    health.set_outage(source.outage());
    let source = tokio::spawn(source.run(events));
    let (restart, mut restart_asked) = mpsc::channel(1);
    let awaited = families.iter().copied().collect();
    let takeover = Takeover { config: config.clone(), awaited };
    let outlets =
        Outlets::new(health.clone(), takeover, metrics.clone(), &told, restart, patience)?;
    let driver = DriverThread { config: config.clone(), options, families, outlets, patience };
    let mut driver = driver.start(queue, addresses, stopped)?;
    told.starting(config.mode);
    let mut healthz = tokio::spawn(serve_health(config.clone(), health, metrics));
    let mut status = tokio::spawn(serve_status(config.clone(), pages));
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut outcome = Ending::Stopped;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("terminated; rules stay in place"),
        _ = interrupt.recv() => tracing::info!("interrupted; rules stay in place"),
        change = config_change(config_watch) => match change {
            ConfigChange::Restart => outcome = Ending::Reconfigured,
            _ => bail!("the configuration has changed; restart to take it in"),
        },
        ended = &mut healthz => ended??,
        ended = &mut status => ended??,
        Some(reason) = restart_asked.recv() => bail!("{reason}; restart to take it in"),
        ended = source => bail!("the source of objects ended: {ended:?}"),
        ended = &mut driver => {
            return ended.unwrap_or_else(|_| bail!("the driver died")).map(|()| Ending::Stopped);
        }
    }
    // What is being written is finished, so that no family is left half way.
    let _gone = stop.send(true);
    tokio::time::timeout(Duration::from_secs(2), driver).await.ok();
    Ok(outcome)
}

async fn config_change(watch: Option<ConfigWatch>) -> ConfigChange {
    match watch {
        Some(watch) => watch.changed().await,
        None => std::future::pending().await,
    }
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

pub(crate) fn interface_addresses() -> anyhow::Result<Vec<IpAddr>> {
    let addresses = node_sys::addresses::list().context("failed to list interface addresses")?;
    // Those of Services, which mode ipvs puts on a link of this name, are not the node's own.
    let own = addresses.into_iter().filter(|it| it.interface.as_deref() != Some("kube-ipvs0"));
    let mut addresses: Vec<IpAddr> = own.map(|it| it.address).collect();
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
    patience: Patience,
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
        let mut store = Store::new(self.options.clone());
        tokio::select! {
            learnt = self.learn_node(&mut store, &mut queue) => learnt?,
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
        }
        let tables = self.families.iter().map(|family| {
            let detector = store.detector(*family);
            tracing::debug!(%family, ?detector, "local traffic");
            let opened = tables::table(&self.config, *family, detector)?;
            let metrics = self.outlets.metrics.clone();
            let mut table = MeasuredTable::new(opened.table, metrics.clone());
            if let Some(facts) = opened.iptables {
                metrics.set_iptables_variant(*family, facts.variant);
                table = table.with_rules(facts.rules);
            }
            Ok(Box::new(table) as Box<dyn TableSync>)
        });
        let tables = tables.collect::<anyhow::Result<Vec<Box<dyn TableSync>>>>()?;
        let options = DriverOptions {
            min_sync_period: self.config.min_sync_period,
            sync_period: self.config.sync_period,
            ..DriverOptions::default()
        };
        let mut outlets = self.outlets;
        if self.config.detect_local == DetectLocal::NodeCidr {
            outlets.pod_cidrs = Some(store.node().pod_cidrs);
        }
        let driver = Driver::new(store, tables, options, move |event| outlets.take(event));
        driver.run(queue, addresses, stop).await;
        Ok(())
    }

    /// Takes in events until the Node is known, or for as long as the source's is waited for:
    /// what local traffic is may depend on the Node object, and tables depend on that (S1.5).
    async fn learn_node(
        &self,
        store: &mut Store,
        queue: &mut mpsc::Receiver<SourceEvent>,
    ) -> anyhow::Result<()> {
        let needs_cidrs = self.config.detect_local == DetectLocal::NodeCidr;
        let wait = if needs_cidrs { self.patience.pod_cidrs } else { self.patience.node };
        let mut give_up_at = None;
        loop {
            let next = match give_up_at {
                None => Ok(queue.recv().await),
                Some(at) => tokio::time::timeout_at(at, queue.recv()).await,
            };
            match next {
                Ok(Some(event)) => {
                    if event == SourceEvent::ListDone(Kind::Node) {
                        give_up_at.get_or_insert_with(|| tokio::time::Instant::now() + wait);
                    }
                    let mut counts = EventCounts::default();
                    store.apply_counted(event, &mut counts);
                    self.outlets.metrics.take_in(&counts);
                }
                // The source ended; the main thread says why.
                Ok(None) => return Ok(()),
                Err(_) => break,
            }
            let node = store.node();
            if give_up_at.is_some() && node.seen && !(needs_cidrs && node.pod_cidrs.is_empty()) {
                return Ok(());
            }
        }
        let node = store.node();
        if needs_cidrs && self.patience.needs_node {
            let lack = if node.seen { "has no PodCIDR" } else { "does not exist" };
            bail!("detectLocalMode NodeCIDR: the Node of this name {lack}");
        }
        if needs_cidrs || self.patience.needs_node {
            tracing::warn!("the Node object is not as needed; the machine's addresses stand in");
        }
        Ok(())
    }
}

/// Where the driver's events go.
struct Outlets {
    health: SharedHealth,
    metrics: Metrics,
    told: EventObserver,
    flows: FlowWorker,
    checks: Vec<(IpFamily, watch::Sender<WantedChecks>)>,
    families: Vec<IpFamily>,
    /// Ends the process, with a reason, so that its supervisor starts it anew.
    restart: mpsc::Sender<String>,
    needs_node: bool,
    /// The pod ranges that the tables were made for, if they depend on them.
    pod_cidrs: Option<Vec<Cidr>>,
    takeover: Takeover,
}

/// What other modes left goes once every family is served by this one, so that no connection fails
/// in between.
struct Takeover {
    config: KubeProxyConfiguration,
    /// Families that are not in step yet.
    awaited: BTreeSet<IpFamily>,
}

impl Takeover {
    fn note_synced(&mut self, family: IpFamily) {
        if !self.awaited.remove(&family) || !self.awaited.is_empty() {
            return;
        }
        let config = self.config.clone();
        let clear = move || tables::clear_other_modes(&config);
        if let Err(error) = std::thread::Builder::new().name("takeover".to_owned()).spawn(clear) {
            tracing::warn!(%error, "what other modes left stays");
        }
    }
}

impl Outlets {
    fn new(
        health: SharedHealth,
        takeover: Takeover,
        metrics: Metrics,
        told: &Events,
        restart: mpsc::Sender<String>,
        patience: Patience,
    ) -> anyhow::Result<Self> {
        let flows =
            FlowWorker::start(metrics.clone()).context("failed to start the thread for flows")?;
        let families = &takeover.awaited;
        let checks = families
            .iter()
            .map(|family| {
                let (wanted, watched) = watch::channel(WantedChecks::default());
                let health = health.clone();
                let is_live = Arc::new(move || health.is_live());
                let (family, metrics) = (*family, metrics.clone());
                let tell = move |ports| metrics.set_refused_health_checks(family, ports);
                tokio::spawn(health_checks::run(watched, is_live, told.clone(), tell));
                (family, wanted)
            })
            .collect();
        Ok(Self {
            health,
            metrics,
            told: EventObserver::new(told.clone()),
            flows,
            checks,
            families: families.iter().copied().collect(),
            restart,
            needs_node: patience.needs_node,
            pod_cidrs: None,
            takeover,
        })
    }

    fn take(&mut self, event: DriverEvent) {
        self.metrics.observe(&event);
        self.told.observe(&event);
        match event {
            DriverEvent::Ready => {
                self.health.update(|health, now, time| {
                    for family in &self.families {
                        health.started(*family, time);
                        health.queued(*family, now);
                    }
                });
            }
            DriverEvent::Node(node) => self.note_node(&node),
            DriverEvent::Queued { family } => {
                self.health.update(|health, now, _| health.queued(family, now));
            }
            DriverEvent::Synced { family, .. } => {
                self.health.update(|health, _, time| health.synced(family, time));
                self.takeover.note_synced(family);
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

impl Outlets {
    fn note_node(&self, node: &NodeState) {
        // A folder of manifests need not hold the Node; nothing then says that it is leaving.
        self.health.set_node_eligible(node.eligible || !(node.seen || self.needs_node));
        if let Some(known) = self.pod_cidrs.as_ref().filter(|known| **known != node.pod_cidrs) {
            // S7.4. Rules stay, so a restart costs nothing.
            let text = |ranges: &[Cidr]| {
                let ranges: Vec<String> = ranges.iter().map(Cidr::to_string).collect();
                ranges.join(",")
            };
            let (old, new) = (text(known), text(&node.pod_cidrs));
            let reason = format!("the node's pod ranges changed from {old} to {new}");
            // Full: a reason to end was given already.
            let _ending = self.restart.try_send(reason);
        }
    }
}

/// Removes everything that is ours from the kernel, whichever mode programmed it.
pub fn cleanup(config: &KubeProxyConfiguration) -> anyhow::Result<()> {
    let mut failures = Vec::new();
    for mode in tables::MODES {
        failures.extend(tables::clear(*mode, config).err().map(|error| format!("{error:#}")));
    }
    if failures.is_empty() { Ok(()) } else { bail!("cleanup failed: {}", failures.join("; ")) }
}
