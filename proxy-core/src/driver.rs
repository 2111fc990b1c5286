//! The loop: when to sync, when to try again, what to do when somebody else changed our rules.
//!
//! [`Driver::run`] belongs on a thread of its own with a current-thread runtime, since a commit
//! may block it for as long as the kernel takes; meanwhile changes gather in the source's channel
//! and form the next sync. A panic is not caught: the process ends and starts anew from what the
//! kernel holds, which is the ordinary path.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use time::OffsetDateTime;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use crate::address::IpFamily;
use crate::conntrack::FlowCleaner;
use crate::diagnostic::Diagnostic;
use crate::event::{Object, SourceEvent};
use crate::names::ServiceName;
use crate::node::{NodeFacts, NodePortAddresses};
use crate::resolved::{HealthCheck, ResolvedService};
use crate::store::{NodeState, Store};
use crate::sync::{SyncReport, TableSync};
use crate::table::{DriftSignal, TableError, TableErrorKind};

/// Events that are taken from the source before the next look at the clock.
const MAX_EVENTS: usize = 4096;
/// A foreign change seldom comes alone: wait this long for the rest before repairing.
const DRIFT_SETTLES: Duration = Duration::from_millis(10);
/// Findings are gathered over this time, since looking them all up costs more than a sync.
const FINDINGS_SETTLE: Duration = Duration::from_secs(1);
/// Findings that are logged one by one; of more only the number is.
const MAX_LOGGED: usize = 20;

/// When to do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverOptions {
    /// Least time from the end of one sync to the start of the next (S10.6).
    pub min_sync_period: Duration,
    /// Longest pause before a failed sync is tried again; and how often a table that cannot tell
    /// of foreign changes is compared.
    pub sync_period: Duration,
    /// Pause after a first failure; it doubles with each further one.
    pub retry: Duration,
    /// How often a table is compared although nothing is known to be wrong.
    pub full_compare_period: Duration,
}

impl Default for DriverOptions {
    fn default() -> Self {
        Self {
            min_sync_period: Duration::ZERO,
            sync_period: Duration::from_secs(30),
            retry: Duration::from_millis(100),
            full_compare_period: Duration::from_secs(3600),
        }
    }
}

/// What the driver tells the program around it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum DriverEvent {
    /// The first complete lists are there; from now on tables are written.
    Ready,
    /// The Node object, if it was seen, says this now.
    Node(NodeState),
    /// Something is to be written.
    Queued {
        /// The table's family.
        family: IpFamily,
    },
    /// A table is in step.
    Synced {
        /// The table's family.
        family: IpFamily,
        /// What was done.
        report: SyncReport,
        /// How long it took.
        duration: Duration,
        /// When the changes that are now in effect were made, as far as known (S10.3).
        trigger_times: Vec<OffsetDateTime>,
    },
    /// A sync failed; it will be tried again.
    SyncFailed {
        /// The table's family.
        family: IpFamily,
        /// How the error was answered.
        kind: TableErrorKind,
        /// The error with its causes.
        error: String,
        /// Pause before the next try.
        retry_in: Duration,
    },
    /// Somebody else changed what is ours; a repair follows.
    Drift {
        /// The table's family.
        family: IpFamily,
        /// What was changed, and by whom if known.
        description: String,
    },
    /// The health checks to answer, all of them, have changed.
    HealthChecks {
        /// The family of the local addresses.
        family: IpFamily,
        /// The checks by Service.
        checks: BTreeMap<ServiceName, HealthCheck>,
        /// Where to answer them.
        addresses: NodePortAddresses,
    },
    /// Flows that the kernel must forget now that a table is in step.
    StaleFlows {
        /// Family of the flows.
        family: IpFamily,
        /// Which flows.
        flows: FlowCleaner,
    },
    /// Findings about objects have appeared or gone.
    Findings {
        /// New ones.
        appeared: Vec<Diagnostic>,
        /// Those that hold no longer.
        resolved: Vec<Diagnostic>,
    },
}

/// Keeps tables in step with a source.
pub struct Driver<S> {
    store: Store,
    families: Vec<FamilyDriver>,
    options: DriverOptions,
    sink: S,
    /// Findings that were told, and when to look again.
    findings: BTreeSet<Diagnostic>,
    findings_due: Option<Instant>,
    is_ready: bool,
}

struct FamilyDriver {
    family: IpFamily,
    table: Box<dyn TableSync>,
    /// Whether foreign changes are heard of.
    listens: bool,
    /// Not before this time; set after a sync, a failure, a foreign change.
    not_before: Instant,
    failures: u32,
    /// When to compare everything.
    compare_at: Option<Instant>,
    /// When to listen for foreign changes again, after that failed.
    listen_at: Option<Instant>,
    flows: FlowCleaner,
    trigger_times: Vec<OffsetDateTime>,
    checks: BTreeMap<ServiceName, HealthCheck>,
    check_addresses: NodePortAddresses,
    /// Whether the health checks were told as they are now.
    checks_told: bool,
    left_out: Vec<(ServiceName, String)>,
}

type DriftNews = (usize, Result<String, TableError>);

impl<S> std::fmt::Debug for Driver<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Driver").field("options", &self.options).finish_non_exhaustive()
    }
}

impl<S: FnMut(DriverEvent) + Send> Driver<S> {
    /// A driver for these tables, one for each family that is served.
    ///
    /// The store may have taken in events before; the sink is told everything that a program
    /// around the driver acts on.
    pub fn new(
        store: Store,
        tables: Vec<Box<dyn TableSync>>,
        options: DriverOptions,
        sink: S,
    ) -> Self {
        let now = Instant::now();
        let families = tables.into_iter().map(|table| FamilyDriver::new(table, now)).collect();
        Self {
            store,
            families,
            options,
            sink,
            findings: BTreeSet::new(),
            findings_due: Some(now),
            is_ready: false,
        }
    }

    /// Runs until the source's channel closes or `shutdown` turns true or closes. A commit that
    /// is under way is finished first; what is installed stays.
    pub async fn run(
        mut self,
        mut source: mpsc::Receiver<SourceEvent>,
        mut addresses: watch::Receiver<Vec<IpAddr>>,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let (drift_news, mut drift) = mpsc::channel(16);
        self.store.set_interface_addresses(&addresses.borrow_and_update());
        (self.sink)(DriverEvent::Node(self.store.node()));
        let mut events = Vec::new();
        let mut addresses_live = true;
        loop {
            self.listen(&drift_news);
            self.sync_due().await;
            self.look_up_findings();
            let wake_at = self.wake_at();
            tokio::select! {
                biased;
                stop = shutdown.wait_for(|stop| *stop) => {
                    drop(stop);
                    return;
                }
                Some((index, news)) = drift.recv() => self.note_drift(index, news),
                changed = addresses.changed(), if addresses_live => {
                    addresses_live = changed.is_ok();
                    self.store.set_interface_addresses(&addresses.borrow_and_update());
                }
                count = source.recv_many(&mut events, MAX_EVENTS) => {
                    if count == 0 {
                        return;
                    }
                    self.take_in(&mut events);
                }
                () = sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {}
            }
        }
    }

    fn take_in(&mut self, events: &mut Vec<SourceEvent>) {
        let mut node_changed = false;
        for event in events.drain(..) {
            node_changed |= matches!(event, SourceEvent::Applied(Object::Node(_)));
            self.store.apply(event);
        }
        if node_changed {
            (self.sink)(DriverEvent::Node(self.store.node()));
        }
        let due = Instant::now() + FINDINGS_SETTLE;
        self.findings_due.get_or_insert(due);
    }

    /// When there is something to do that no event announces.
    fn wake_at(&self) -> Option<Instant> {
        let families = self.families.iter().flat_map(|family| {
            let sync = (self.is_ready && family.table.is_pending()).then_some(family.not_before);
            [sync, family.compare_at, family.listen_at]
        });
        families.chain([self.findings_due]).flatten().min()
    }

    // === syncing ===

    async fn sync_due(&mut self) {
        if !self.store.is_ready() {
            return;
        }
        if !self.is_ready {
            self.is_ready = true;
            (self.sink)(DriverEvent::Ready);
        }
        for index in 0..self.families.len() {
            self.stage(index);
            let family = &self.families[index];
            if family.table.is_pending() && family.not_before <= Instant::now() {
                self.sync(index).await;
            }
        }
    }

    /// Hands the table what has changed, without a write.
    fn stage(&mut self, index: usize) {
        let family = &mut self.families[index];
        let was_pending = family.table.is_pending();
        if family.compare_at.is_some_and(|due| due <= Instant::now()) {
            family.compare_at = None;
            family.table.distrust();
        }
        let changes = self.store.take_changes(family.family);
        family.flows.merge(changes.stale_flows);
        family.trigger_times.extend(changes.trigger_times);
        if !changes.services.is_empty() || changes.node.is_some() {
            family.note_health_checks(&changes.services, changes.node.as_ref());
            family.table.stage(changes.services, changes.node);
        }
        if family.table.is_pending() && (!was_pending || family.is_new()) {
            (self.sink)(DriverEvent::Queued { family: family.family });
        }
    }

    async fn sync(&mut self, index: usize) {
        let family = &mut self.families[index];
        let started = Instant::now();
        let result = family.table.sync().await;
        let now = Instant::now();
        let duration = now - started;
        match result {
            Ok(report) => self.note_success(index, report, duration, now),
            Err(error) => self.note_failure(index, &error, now),
        }
    }

    fn note_success(&mut self, index: usize, report: SyncReport, duration: Duration, now: Instant) {
        let options = self.options;
        let family = &mut self.families[index];
        let name = family.family;
        if report.full {
            tracing::info!(
                family = %name, changed = report.changed_objects, ?duration,
                left_out = report.left_out.len(), "compared and in step"
            );
        } else {
            let changed = report.changed_objects;
            tracing::debug!(family = %name, changed, ?duration, "in step");
        }
        if family.failures > 0 && report.left_out.is_empty() {
            tracing::info!(family = %name, "recovered");
        }
        family.not_before = now + options.min_sync_period;
        let period = if family.listens { options.full_compare_period } else { options.sync_period };
        if report.full {
            family.compare_at = Some(now + period);
        }
        if report.left_out.is_empty() {
            family.failures = 0;
        } else {
            // The refused may be accepted later (a set that was full): try again, ever less often.
            let pause = family.next_pause(&options);
            family.compare_at = Some(now + pause.min(period));
        }
        if family.left_out != report.left_out {
            family.left_out.clone_from(&report.left_out);
            self.findings_due = Some(now);
        }
        let trigger_times = std::mem::take(&mut family.trigger_times);
        let flows = std::mem::take(&mut family.flows);
        (self.sink)(DriverEvent::Synced { family: name, report, duration, trigger_times });
        self.tell_health_checks(index);
        if !flows.is_empty() {
            (self.sink)(DriverEvent::StaleFlows { family: name, flows });
        }
    }

    fn note_failure(&mut self, index: usize, error: &TableError, now: Instant) {
        let family = &mut self.families[index];
        let retry_in = family.next_pause(&self.options);
        family.not_before = now + retry_in;
        let (kind, error, family) = (error.kind(), error.chain(), family.family);
        tracing::warn!(%family, kind = kind.as_str(), error, ?retry_in, "sync failed");
        (self.sink)(DriverEvent::SyncFailed { family, kind, error, retry_in });
    }

    fn tell_health_checks(&mut self, index: usize) {
        let family = &mut self.families[index];
        if !std::mem::replace(&mut family.checks_told, true) {
            let checks = family.checks.clone();
            let addresses = family.check_addresses.clone();
            let family = family.family;
            (self.sink)(DriverEvent::HealthChecks { family, checks, addresses });
        }
    }

    // === foreign changes ===

    /// Listens for foreign changes where that is not so yet.
    fn listen(&mut self, news: &mpsc::Sender<DriftNews>) {
        let now = Instant::now();
        for (index, family) in self.families.iter_mut().enumerate() {
            if family.listen_at.is_none_or(|due| due > now) {
                continue;
            }
            family.listen_at = None;
            match family.table.drift_signal() {
                Ok(None) => {}
                Ok(Some(signal)) => {
                    family.listens = true;
                    tokio::spawn(forward(signal, index, news.clone()));
                }
                Err(error) => {
                    let error = error.chain();
                    tracing::warn!(family = %family.family, error, "cannot hear foreign changes");
                    family.listen_at = Some(now + self.options.sync_period);
                }
            }
        }
    }

    fn note_drift(&mut self, index: usize, news: Result<String, TableError>) {
        let now = Instant::now();
        let Some(family) = self.families.get_mut(index) else { return };
        // Whatever was heard, or was not heard because listening failed, may have done damage.
        family.table.distrust();
        family.not_before = family.not_before.max(now + DRIFT_SETTLES);
        match news {
            Ok(description) => {
                let family = family.family;
                tracing::warn!(%family, description, "somebody else changed our rules; repairing");
                (self.sink)(DriverEvent::Drift { family, description });
            }
            Err(error) => {
                let error = error.chain();
                tracing::warn!(family = %family.family, error, "lost track of foreign changes");
                family.listens = false;
                family.listen_at = Some(now + self.options.retry);
            }
        }
    }

    // === findings ===

    fn look_up_findings(&mut self) {
        if self.findings_due.is_none_or(|due| due > Instant::now()) {
            return;
        }
        self.findings_due = None;
        let mut findings: BTreeSet<Diagnostic> = self.store.diagnostics().into_iter().collect();
        for family in &self.families {
            findings.extend(family.left_out.iter().map(|(service, reason)| {
                let message = format!("not in effect for {}: {reason}", family.family);
                Diagnostic::new(format!("Service/{service}"), "", message)
            }));
        }
        let appeared: Vec<_> = findings.difference(&self.findings).cloned().collect();
        let resolved: Vec<_> = self.findings.difference(&findings).cloned().collect();
        self.findings = findings;
        if appeared.is_empty() && resolved.is_empty() {
            return;
        }
        for finding in appeared.iter().take(MAX_LOGGED) {
            tracing::warn!(%finding, "object not as it should be");
        }
        if let Some(more) = appeared.len().checked_sub(MAX_LOGGED).filter(|more| *more > 0) {
            tracing::warn!(more, "further objects not as they should be");
        }
        for finding in resolved.iter().take(MAX_LOGGED) {
            tracing::info!(%finding, "resolved");
        }
        (self.sink)(DriverEvent::Findings { appeared, resolved });
    }
}

/// Passes a signal on until it fails. On a task of its own, since a signal must not be dropped
/// half way through a series of notifications.
async fn forward(mut signal: Box<dyn DriftSignal>, index: usize, news: mpsc::Sender<DriftNews>) {
    let mut failed = false;
    while !failed {
        let change = signal.changed().await;
        failed = change.is_err();
        if news.send((index, change)).await.is_err() {
            return;
        }
    }
}

impl FamilyDriver {
    fn new(table: Box<dyn TableSync>, now: Instant) -> Self {
        Self {
            family: table.family(),
            table,
            listens: false,
            not_before: now,
            failures: 0,
            compare_at: None,
            listen_at: Some(now),
            flows: FlowCleaner::default(),
            trigger_times: Vec::new(),
            checks: BTreeMap::new(),
            check_addresses: NodePortAddresses::All,
            checks_told: false,
            left_out: Vec::new(),
        }
    }

    /// Whether no sync was tried yet.
    fn is_new(&self) -> bool {
        self.compare_at.is_none() && self.failures == 0
    }

    fn note_health_checks(
        &mut self,
        services: &[(ServiceName, Option<Arc<ResolvedService>>)],
        node: Option<&NodeFacts>,
    ) {
        for (name, service) in services {
            let check = service.as_ref().and_then(|service| service.health_check);
            let former = match check {
                Some(check) => self.checks.insert(name.clone(), check),
                None => self.checks.remove(name),
            };
            self.checks_told &= former == check;
        }
        if let Some(node) = node.filter(|node| node.node_port_addresses != self.check_addresses) {
            self.check_addresses = node.node_port_addresses.clone();
            self.checks_told = false;
        }
    }

    fn next_pause(&mut self, options: &DriverOptions) -> Duration {
        let pause = options.retry.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        pause.min(options.sync_period)
    }
}
