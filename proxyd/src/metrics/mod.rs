//! What `/metrics` tells.
//!
//! [`Metrics`] is a handle that all threads share. The driver's events go to
//! [`Metrics::observe`]; what events do not tell is seen by [`MeasuredTable`], which stands
//! between driver and table; the kernel and this process are looked at when somebody asks.
//!
//! Series of a Service exist only on request or while something is wrong with it, and go with it,
//! so that their number does not grow with the age of the process.

pub mod catalog;
mod machine;
mod registry;
mod selection;
mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::event::{EventCounts, Kind};
use proxy_core::names::ServiceName;
use proxy_core::store::Trigger;
use proxy_core::sync::SyncReport;
use proxy_core::table::TableErrorKind;

use crate::config::KubeProxyConfiguration;
use registry::Values;
use selection::Selection;

pub use table::{MeasuredTable, RuleCount, RuleCounter};

/// The release of kube-proxy whose place is taken.
pub const KUBERNETES_RELEASE: &str = "1.36";

/// Services that are named with the reason why they are not in effect, for each family.
const MAX_LEFT_OUT: usize = 100;

/// Label value of the follow-up that looks through the kernel's flows.
const FLOWS: &str = "conntrack";
/// Label value of the follow-up that listens for load balancers.
const HEALTH_CHECKS: &str = "health_check";

const ERROR_KINDS: [TableErrorKind; 6] = [
    TableErrorKind::Transient,
    TableErrorKind::Busy,
    TableErrorKind::OutOfSync,
    TableErrorKind::Unsupported,
    TableErrorKind::Permission,
    TableErrorKind::Rejected,
];

/// The metrics of this process. Clones are the same metrics.
#[derive(Clone, Debug)]
pub struct Metrics {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    values: Values,
    started: SystemTime,
    families: Vec<IpFamily>,
    selection: Selection,
    state: Mutex<State>,
    /// Held while the kernel is looked at: counters that follow it must not be mixed up.
    scrape: Mutex<()>,
    #[cfg(feature = "kube")]
    source: std::sync::OnceLock<Arc<source::kube::SourceMetrics>>,
}

/// What is not a metric itself.
#[derive(Debug, Default)]
struct State {
    /// Families for which a sync is due.
    queued: BTreeSet<IpFamily>,
    /// Services and slices told of since the last sync.
    services: usize,
    slices: usize,
    /// Series of [`catalog::LEFT_OUT_INFO`].
    left_out: BTreeMap<IpFamily, BTreeMap<ServiceName, String>>,
    findings: usize,
    /// Services that are there and have metrics of their own.
    selected: BTreeSet<(IpFamily, ServiceName)>,
    iptables_variants: BTreeMap<IpFamily, &'static str>,
}

/// The path of an answer about health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthPath {
    /// `/healthz`
    Healthz,
    /// `/livez`
    Livez,
}

/// What the configuration file is, compared to what is in force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigFileState {
    /// It means the same.
    InForce,
    /// It means something else that a start would take in.
    Pending,
    /// A start would fail.
    Unusable,
}

impl Metrics {
    /// Metrics of a process that has just started. Services that match one of the patterns
    /// (`namespace/name`, where `*` is anything) have metrics of their own.
    pub fn new(
        config: &KubeProxyConfiguration,
        families: &[IpFamily],
        by_service: &[String],
    ) -> anyhow::Result<Self> {
        let values = Values::new(config.mode).context("failed to register metrics")?;
        let shared = Shared {
            values,
            started: SystemTime::now(),
            families: families.to_vec(),
            selection: Selection::new(by_service)?,
            state: Mutex::default(),
            scrape: Mutex::default(),
            #[cfg(feature = "kube")]
            source: std::sync::OnceLock::new(),
        };
        let metrics = Self { shared: Arc::new(shared) };
        metrics.begin(config);
        Ok(metrics)
    }

    /// Shows what is known from the start. Counters of failures begin at 0, since an alert on
    /// their increase would miss a series that begins at 1.
    fn begin(&self, config: &KubeProxyConfiguration) {
        let values = &self.shared.values;
        values.set(&catalog::PROCESS_STARTED, &[], unix_seconds(self.shared.started));
        let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
        let build =
            [env!("CARGO_PKG_VERSION"), KUBERNETES_RELEASE, config.mode.as_str(), &platform];
        values.set(&catalog::BUILD_INFO, &build, 1.0);
        for (name, stage, is_on) in config.feature_gates.effective() {
            values.set(&catalog::FEATURE_ENABLED, &[name, stage], f64::from(u8::from(is_on)));
        }
        for gauge in [&catalog::SLICES_PENDING, &catalog::SERVICES_PENDING, &catalog::FINDINGS] {
            values.set(gauge, &[], 0.0);
        }
        self.set_config_file(ConfigFileState::InForce);
        for counter in [&catalog::SLICES_TOTAL, &catalog::SERVICES_TOTAL] {
            values.add(counter, &[], 0.0);
        }
        for family in &self.shared.families {
            let family = family.to_string();
            for kind in ERROR_KINDS {
                values.add(&catalog::SYNC_FAILURES, &[&family, kind.as_str()], 0.0);
            }
            for counter in
                [&catalog::DRIFT_REPAIRS, &catalog::DRIFT_OBJECTS, &catalog::CHANGED_OBJECTS]
            {
                values.add(counter, &[&family], 0.0);
            }
            values.set(&catalog::LEFT_OUT, &[&family], 0.0);
            for kind in [FLOWS, HEALTH_CHECKS] {
                values.set(&catalog::FOLLOW_UPS, &[&family, kind], 0.0);
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the process started.
    pub fn started(&self) -> SystemTime {
        self.shared.started
    }

    /// Everything in Prometheus' text format, version 0.0.4.
    pub fn text(&self) -> String {
        let _alone = self.shared.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        machine::Machine::read().show(&self.shared.values);
        #[cfg(feature = "kube")]
        self.show_source();
        self.shared.values.text().unwrap_or_else(|error| {
            tracing::error!(%error, "failed to write metrics");
            String::new()
        })
    }

    /// Shows what this source counts, from now on. There is only one.
    #[cfg(feature = "kube")]
    pub fn follow_source(&self, source: Arc<source::kube::SourceMetrics>) {
        let _known = self.shared.source.set(source);
    }

    #[cfg(feature = "kube")]
    fn show_source(&self) {
        use source::kube::{EventLoss, RestartReason};
        // Counts that large are not to be had.
        let number = |count| number(usize::try_from(count).unwrap_or(usize::MAX));
        let Some(source) = self.shared.source.get() else { return };
        let values = &self.shared.values;
        let connected = f64::from(u8::from(source.is_connected()));
        values.set(&catalog::SOURCE_CONNECTED, &[], connected);
        values.follow(&catalog::EVENTS_WRITTEN, &[], number(source.events_written()));
        for reason in EventLoss::ALL {
            let lost = number(source.events_lost(reason));
            values.follow(&catalog::EVENTS_LOST, &[reason.as_str()], lost);
        }
        for kind in Kind::ALL {
            let label = kind.as_str();
            values.follow(&catalog::SOURCE_UNREADABLE, &[label], number(source.undecodable(kind)));
            for reason in RestartReason::ALL {
                let restarts = number(source.restarts(kind, reason));
                values.follow(&catalog::SOURCE_RESTARTS, &[label, reason.as_str()], restarts);
            }
        }
    }

    /// Shows what the configuration file is.
    pub fn set_config_file(&self, state: ConfigFileState) {
        for (gauge, shown) in [
            (&catalog::CONFIG_PENDING, ConfigFileState::Pending),
            (&catalog::CONFIG_UNUSABLE, ConfigFileState::Unusable),
        ] {
            self.shared.values.set(gauge, &[], f64::from(u8::from(state == shown)));
        }
    }

    // === from the driver ===

    /// Takes in what the driver tells.
    pub fn observe(&self, event: &DriverEvent) {
        self.observe_at(event, SystemTime::now());
    }

    /// Takes in what the driver tells at this time.
    pub fn observe_at(&self, event: &DriverEvent, now: SystemTime) {
        let values = &self.shared.values;
        match event {
            DriverEvent::TakenIn(counts) => self.take_in(counts),
            DriverEvent::Queued { family } => {
                let label = family.to_string();
                values.set(&catalog::LAST_QUEUED, &[&label], unix_seconds(now));
                let mut state = self.state();
                state.queued.insert(*family);
                self.show_pending(&state);
            }
            DriverEvent::Synced { family, report, queued_for, trigger_times, .. } => {
                self.note_sync(*family, report, *queued_for, now);
                for trigger in trigger_times {
                    self.note_trigger(*family, trigger, now);
                }
            }
            DriverEvent::SyncFailed { family, kind, .. } => {
                let family = family.to_string();
                values.add(&catalog::SYNC_FAILURES, &[&family, kind.as_str()], 1.0);
                values.add(&catalog::NFTABLES_FAILURES, &[&family], 1.0);
                values.add(&catalog::RESTORE_FAILURES, &[&family], 1.0);
            }
            DriverEvent::Drift { family, repaired_objects, .. } => {
                let family = family.to_string();
                values.add(&catalog::DRIFT_REPAIRS, &[&family], 1.0);
                values.add(&catalog::DRIFT_OBJECTS, &[&family], number(*repaired_objects));
            }
            DriverEvent::Findings { appeared, resolved } => {
                let mut state = self.state();
                state.findings += appeared.len();
                state.findings = state.findings.saturating_sub(resolved.len());
                values.set(&catalog::FINDINGS, &[], number(state.findings));
            }
            DriverEvent::Node(node) => {
                let takes_connections = node.eligible || !node.seen;
                let value = f64::from(u8::from(takes_connections));
                values.set(&catalog::NODE_ELIGIBLE, &[], value);
            }
            _ => {}
        }
    }

    /// Counts objects that were taken in, by the driver or before it.
    pub fn take_in(&self, counts: &EventCounts) {
        let values = &self.shared.values;
        for (counts, action) in [(&counts.applied, "applied"), (&counts.deleted, "deleted")] {
            for (kind, count) in counts {
                let labels = [kind.as_str(), action];
                values.add(&catalog::SOURCE_EVENTS, &labels, number(*count));
            }
        }
        let (services, slices) = (counts.of(Kind::Service), counts.of(Kind::EndpointSlice));
        let per_family = services * self.shared.families.len();
        values.add(&catalog::SERVICES_TOTAL, &[], number(per_family));
        values.add(&catalog::SLICES_TOTAL, &[], number(slices));
        let mut state = self.state();
        if state.queued.is_empty() {
            // What came before changed nothing that is to be written.
            (state.services, state.slices) = (0, 0);
        }
        state.services += services;
        state.slices += slices;
        self.show_pending(&state);
    }

    fn show_pending(&self, state: &State) {
        let is_due = !state.queued.is_empty();
        let pending = |count| if is_due { number(count) } else { 0.0 };
        self.shared.values.set(&catalog::SERVICES_PENDING, &[], pending(state.services));
        self.shared.values.set(&catalog::SLICES_PENDING, &[], pending(state.slices));
    }

    fn note_sync(
        &self,
        family: IpFamily,
        report: &SyncReport,
        queued_for: Duration,
        now: SystemTime,
    ) {
        let values = &self.shared.values;
        let label = family.to_string();
        values.set(&catalog::LAST_SYNCED, &[&label], unix_seconds(now));
        values.observe(&catalog::QUEUED_DURATION, &[&label], queued_for.as_secs_f64());
        values.add(&catalog::CHANGED_OBJECTS, &[&label], number(report.changed_objects));
        let mut state = self.state();
        state.queued.remove(&family);
        (state.services, state.slices) = (0, 0);
        self.show_pending(&state);
        values.set(&catalog::LEFT_OUT, &[&label], number(report.left_out.len()));
        let shown = state.left_out.entry(family).or_default();
        let wanted = report.left_out.iter().take(MAX_LEFT_OUT).cloned().collect();
        for (service, reason) in std::mem::replace(shown, wanted) {
            if shown.get(&service) != Some(&reason) {
                let labels = [&label, &*service.namespace, &*service.name, &reason];
                values.remove(&catalog::LEFT_OUT_INFO, &labels);
            }
        }
        for (service, reason) in shown {
            let labels = [&label, &*service.namespace, &*service.name, reason];
            values.set(&catalog::LEFT_OUT_INFO, &labels, 1.0);
        }
    }

    /// What happened before this process started says nothing about it (known failure 55).
    fn note_trigger(&self, family: IpFamily, trigger: &Trigger, now: SystemTime) {
        let time = SystemTime::from(trigger.time);
        if time <= self.shared.started {
            return;
        }
        let values = &self.shared.values;
        let label = family.to_string();
        // The clock of whoever wrote the annotation may be ahead of ours.
        let passed = now.duration_since(time).unwrap_or_default().as_secs_f64();
        values.observe(&catalog::PROGRAMMING_DURATION, &[&label], passed);
        let service = &trigger.service;
        if self.state().selected.contains(&(family, service.clone())) {
            let labels = [&label, &*service.namespace, &*service.name];
            values.observe(&catalog::SERVICE_PROGRAMMING_DURATION, &labels, passed);
        }
    }

    // === from tables ===

    /// Shows which kind of iptables holds a family's rules.
    pub fn set_iptables_variant(&self, family: IpFamily, variant: &'static str) {
        self.state().iptables_variants.insert(family, variant);
        self.shared.values.set(&catalog::IPTABLES_VARIANT, &[&family.to_string(), variant], 1.0);
    }

    /// Which kind of iptables holds the rules of each family; none in other modes.
    pub fn iptables_variants(&self) -> BTreeMap<IpFamily, &'static str> {
        self.state().iptables_variants.clone()
    }

    fn note_service(&self, family: IpFamily, service: &ServiceName, exists: bool) {
        if !self.shared.selection.includes(service) {
            return;
        }
        let key = (family, service.clone());
        if exists {
            self.state().selected.insert(key);
        } else if self.state().selected.remove(&key) {
            let family = family.to_string();
            let labels = [&family, &*service.namespace, &*service.name];
            self.shared.values.remove(&catalog::SERVICE_PROGRAMMING_DURATION, &labels);
        }
    }

    fn note_duration(&self, family: IpFamily, duration: Duration, is_full: bool, failed: bool) {
        let values = &self.shared.values;
        let label = family.to_string();
        let by_kind =
            if is_full { &catalog::SYNC_FULL_DURATION } else { &catalog::SYNC_PARTIAL_DURATION };
        for histogram in [&catalog::SYNC_DURATION, by_kind] {
            values.observe(histogram, &[&label], duration.as_secs_f64());
        }
        if failed && !is_full {
            values.add(&catalog::PARTIAL_RESTORE_FAILURES, &[&label], 1.0);
        }
    }

    // === from follow-ups and servers ===

    /// Notes whether the kernel's flows are still to be looked through.
    pub fn set_flows_pending(&self, family: IpFamily, pending: bool) {
        self.set_follow_ups(family, FLOWS, usize::from(pending));
    }

    /// Notes how many ports of health checks are wanted but taken.
    pub fn set_refused_health_checks(&self, family: IpFamily, ports: usize) {
        self.set_follow_ups(family, HEALTH_CHECKS, ports);
    }

    fn set_follow_ups(&self, family: IpFamily, kind: &str, count: usize) {
        let labels = [&family.to_string(), kind];
        self.shared.values.set(&catalog::FOLLOW_UPS, &labels, number(count));
    }

    /// The kernel's flows were looked through and so many forgotten.
    pub fn flows_cleaned(&self, family: IpFamily, duration: Duration, deleted: usize) {
        let values = &self.shared.values;
        let label = family.to_string();
        values.observe(&catalog::FLOWS_DURATION, &[&label], duration.as_secs_f64());
        values.add(&catalog::FLOWS_DELETED, &[&label], number(deleted));
    }

    /// An answer about health was given.
    pub fn health_answered(&self, path: HealthPath, status: u16) {
        let counter = match path {
            HealthPath::Healthz => &catalog::HEALTHZ,
            HealthPath::Livez => &catalog::LIVEZ,
        };
        self.shared.values.add(counter, &[&status.to_string()], 1.0);
    }

    /// The API server is being asked something. The code is `<error>` if there was no answer.
    #[cfg(feature = "kube")]
    pub fn api_request(&self, news: &source::kube::RequestNews<'_>) {
        use source::kube::RequestStage::{Admitted, Answered, Received};
        let values = &self.shared.values;
        let labels = [news.method, news.host];
        match news.stage {
            Admitted(waited) => {
                values.observe(&catalog::API_LIMITER_DURATION, &labels, waited.as_secs_f64());
            }
            Answered { code, duration, sent } => {
                let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
                values.add(&catalog::API_REQUESTS, &[&code, news.method, news.host], 1.0);
                values.observe(&catalog::API_DURATION, &labels, duration.as_secs_f64());
                values.observe(&catalog::API_REQUEST_SIZE, &labels, number(sent));
            }
            Received(bytes) => {
                values.observe(&catalog::API_RESPONSE_SIZE, &labels, number(bytes));
            }
        }
    }
}

/// Counts beyond 2^53 are not exact; nobody has as many objects.
#[expect(clippy::cast_precision_loss, reason = "see above")]
fn number(count: usize) -> f64 {
    count as f64
}

fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
