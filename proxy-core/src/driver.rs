//! The loop: when to sync, when to try again, what to do when somebody else changed our rules.
//!
//! [`Driver::run`] belongs on a thread of its own with a current-thread runtime, since a commit
//! may block it for as long as the kernel takes; meanwhile changes gather in the source's channel
//! and form the next sync. A panic is not caught: the process ends and starts anew from what the
//! kernel holds, which is the ordinary path.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tracing::Instrument as _;

use crate::address::IpFamily;
use crate::conntrack::FlowCleaner;
use crate::diagnostic::Diagnostic;
use crate::event::{EventCounts, Kind, SourceEvent};
use crate::names::ServiceName;
use crate::node::{NodeFacts, NodePortAddresses};
use crate::resolved::{HealthCheck, ResolvedService};
use crate::store::{NodeState, Store, Trigger};
use crate::sync::{SyncReport, TableSync};
use crate::table::{DriftSignal, TableError, TableErrorKind};

/// Events that are taken from the source before the next look at the clock.
const MAX_EVENTS: usize = 4096;
/// A foreign change seldom comes alone: wait this long for the rest before repairing.
const DRIFT_SETTLES: Duration = Duration::from_millis(10);
/// Longest pause before a table that somebody else keeps busy is tried again: a change waits for
/// this time at most once the other is done, and each try costs little as long as they are not.
const BUSY_PAUSE: Duration = Duration::from_secs(1);
/// Findings are gathered over this time, since looking them all up costs more than a sync.
const FINDINGS_SETTLE: Duration = Duration::from_secs(1);
/// Of many things of one sort only so many are logged one by one.
const MAX_LOGGED: usize = 20;

/// When to do what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverOptions {
    /// Least time from the end of one sync to the start of the next (S10.6).
    pub min_sync_period: Duration,
    /// Longest pause before a failed sync is tried again; and how often a table that cannot tell
    /// of foreign changes is compared.
    pub sync_period: Duration,
    /// Pause after a first failure; it doubles with each further one, up to a second while
    /// somebody else keeps the table busy.
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
    /// Objects were taken in from the source.
    TakenIn(EventCounts),
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
        /// For how long there had been something to write, failed syncs included.
        queued_for: Duration,
        /// When changes that are now in effect were made, as far as known (S10.3).
        trigger_times: Vec<Trigger>,
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
    /// Somebody else changed what is ours, and it was repaired.
    Drift {
        /// The table's family.
        family: IpFamily,
        /// What was changed, and by whom if known.
        description: String,
        /// Number of kernel objects that the repair wrote or removed, together with changes of
        /// Services at the same time.
        repaired_objects: usize,
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
    /// Since when something is to be written, if that is so and was told.
    queued_at: Option<Instant>,
    /// Not before this time; set after a sync, a failure, a foreign change.
    not_before: Instant,
    failures: Backoff,
    is_new: bool,
    /// When to compare everything.
    compare_at: Option<Instant>,
    /// When the table's own work is due.
    tend_at: Option<Instant>,
    /// Whether the next sync does nothing but compare, so that a difference is foreign.
    only_compares: bool,
    listener: Listener,
    damage: Damage,
    flows: FlowCleaner,
    trigger_times: Vec<Trigger>,
    checks: BTreeMap<ServiceName, HealthCheck>,
    check_addresses: NodePortAddresses,
    /// Whether the health checks were told as they are now.
    checks_told: bool,
    left_out: Vec<(ServiceName, String)>,
    left_out_tries: Backoff,
}

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
        self.store.set_interface_addresses(&addresses.borrow_and_update());
        (self.sink)(DriverEvent::Node(self.store.node()));
        let mut events = Vec::new();
        let mut addresses_live = true;
        loop {
            // Before the first sync, so that nothing is missed.
            self.listen();
            self.sync_due().await;
            self.tend_due().await;
            self.look_up_findings();
            let wake_at = self.wake_at();
            tokio::select! {
                biased;
                stop = shutdown.wait_for(|stop| *stop) => {
                    drop(stop);
                    return;
                }
                (index, news) = foreign_change(&mut self.families) => {
                    self.note_foreign_change(index, news);
                }
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
        let mut counts = EventCounts::default();
        for event in events.drain(..) {
            self.store.apply_counted(event, &mut counts);
        }
        let node_changed = counts.applied.contains_key(&Kind::Node);
        if !counts.is_empty() {
            (self.sink)(DriverEvent::TakenIn(counts));
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
            [sync, family.compare_at, family.tend_at, family.listener.open_at]
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
        let now = Instant::now();
        let family = &mut self.families[index];
        let name = family.family;
        if family.compare_at.is_some_and(|due| due <= now) {
            family.compare_at = None;
            family.compare();
        }
        let changes = self.store.take_changes(name);
        family.flows.merge(changes.stale_flows);
        family.trigger_times.extend(changes.trigger_times);
        if !changes.services.is_empty() || changes.node.is_some() {
            for (service, _) in changes.services.iter().take(MAX_LOGGED) {
                tracing::debug!(family = %name, %service, "changed");
            }
            family.only_compares = false;
            family.note_health_checks(&changes.services, changes.node.as_ref());
            family.table.stage(changes.services, changes.node);
        }
        if family.table.is_pending() && family.queued_at.is_none() {
            family.queued_at = Some(now);
            (self.sink)(DriverEvent::Queued { family: name });
        }
    }

    async fn sync(&mut self, index: usize) {
        let family = &mut self.families[index];
        let span =
            tracing::info_span!("sync", family = %family.family, full = tracing::field::Empty);
        let started = Instant::now();
        let result = family.table.sync().instrument(span.clone()).await;
        let now = Instant::now();
        family.tend_at = family.table.tend_in().map(|pause| now + pause);
        if let Ok(report) = &result {
            span.record("full", report.full);
        }
        span.in_scope(|| match result {
            Ok(report) => self.note_success(index, report, now - started, now),
            Err(error) => self.note_failure(index, &error, now),
        });
        // The thread was blocked: let the runtime see what came in meanwhile, however many events
        // wait to be taken in.
        tokio::task::yield_now().await;
    }

    /// Lets tables do what has become due with time.
    async fn tend_due(&mut self) {
        for family in &mut self.families {
            if family.tend_at.is_none_or(|due| due > Instant::now()) {
                continue;
            }
            if let Err(error) = family.table.tend().await {
                let error = error.chain();
                tracing::warn!(family = %family.family, error, "table not tended; trying again");
            }
            family.tend_at = family.table.tend_in().map(|pause| Instant::now() + pause);
        }
    }

    fn note_success(&mut self, index: usize, report: SyncReport, duration: Duration, now: Instant) {
        let family = &mut self.families[index];
        let name = family.family;
        family.log_success(&report, duration);
        family.is_new = false;
        family.failures = Backoff::default();
        family.not_before = now + self.options.min_sync_period;
        if family.left_out != report.left_out {
            family.left_out.clone_from(&report.left_out);
            family.left_out_tries = Backoff::default();
            self.findings_due = Some(now);
        }
        if report.full {
            family.compare_at = Some(now + family.compare_pause(&self.options));
        }
        let repaired_objects = report.changed_objects;
        if std::mem::take(&mut family.only_compares) && repaired_objects > 0 {
            family.damage.add("found by a comparison".to_owned());
        }
        let mut damage = std::mem::take(&mut family.damage);
        if repaired_objects == 0 && !damage.is_empty() {
            // More was heard than could be followed, or it was put right by who did it.
            tracing::debug!(description = %damage, "foreign changes did no harm");
            damage = Damage::default();
        }
        if !damage.is_empty() {
            // Flows that began while rules were missing were not translated, and stay so.
            family.flows.merge(self.store.all_flows(name));
        }
        let trigger_times = std::mem::take(&mut family.trigger_times);
        let flows = std::mem::take(&mut family.flows);
        let queued_for = family.queued_at.take().map_or(Duration::ZERO, |queued| now - queued);
        let synced =
            DriverEvent::Synced { family: name, report, duration, queued_for, trigger_times };
        (self.sink)(synced);
        if !damage.is_empty() {
            let description = damage.to_string();
            tracing::warn!(
                family = %name, description, repaired_objects,
                "somebody else changed our rules; repaired"
            );
            (self.sink)(DriverEvent::Drift { family: name, description, repaired_objects });
        }
        self.tell_health_checks(index);
        if !flows.is_empty() {
            (self.sink)(DriverEvent::StaleFlows { family: name, flows });
        }
    }

    fn note_failure(&mut self, index: usize, error: &TableError, now: Instant) {
        let family = &mut self.families[index];
        let pause = match (family.failures.next(&self.options), error.kind()) {
            (pause, TableErrorKind::Busy) => pause.min(BUSY_PAUSE),
            (pause, _) => pause,
        };
        let retry_in = pause.max(self.options.min_sync_period);
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

    /// Listens for foreign changes where that is due.
    fn listen(&mut self) {
        let now = Instant::now();
        for family in &mut self.families {
            if family.listener.open_at.is_none_or(|due| due > now) {
                continue;
            }
            match family.table.drift_signal() {
                Ok(signal) => {
                    let was_deaf = family.listener.open(signal, now);
                    if was_deaf {
                        family.compare();
                    }
                }
                Err(error) => family.note_deafness(&error, now, &self.options),
            }
        }
    }

    fn note_foreign_change(&mut self, index: usize, news: Change) {
        let now = Instant::now();
        let family = &mut self.families[index];
        match news {
            // What was found at the start is compared anyway, and was not ours yet.
            Ok(_) if family.is_new => {}
            Ok(description) => {
                if family.damage.is_empty() {
                    family.not_before = family.not_before.max(now + DRIFT_SETTLES);
                }
                tracing::debug!(family = %family.family, description, "foreign change");
                family.damage.add(description);
                family.table.distrust();
            }
            Err(error) => family.note_deafness(&error, now, &self.options),
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
        if appeared.len() > MAX_LOGGED {
            let more = appeared.len() - MAX_LOGGED;
            tracing::warn!(more, "further objects not as they should be");
        }
        for finding in resolved.iter().take(MAX_LOGGED) {
            tracing::info!(%finding, "resolved");
        }
        if resolved.len() > MAX_LOGGED {
            tracing::info!(more = resolved.len() - MAX_LOGGED, "further findings resolved");
        }
        (self.sink)(DriverEvent::Findings { appeared, resolved });
    }
}

// === one family ===

impl FamilyDriver {
    fn new(table: Box<dyn TableSync>, now: Instant) -> Self {
        Self {
            family: table.family(),
            table,
            queued_at: None,
            not_before: now,
            failures: Backoff::default(),
            is_new: true,
            compare_at: None,
            tend_at: None,
            only_compares: false,
            listener: Listener::new(now),
            damage: Damage::default(),
            flows: FlowCleaner::default(),
            trigger_times: Vec::new(),
            checks: BTreeMap::new(),
            check_addresses: NodePortAddresses::All,
            checks_told: false,
            left_out: Vec::new(),
            left_out_tries: Backoff::default(),
        }
    }

    /// Makes the next sync compare everything, although nothing is known to be wrong.
    fn compare(&mut self) {
        self.only_compares = !self.table.is_pending() && self.left_out.is_empty();
        self.table.distrust();
    }

    fn log_success(&self, report: &SyncReport, duration: Duration) {
        let (changed, left_out) = (report.changed_objects, report.left_out.len());
        if self.is_new {
            tracing::info!(changed, left_out, ?duration, "in step for the first time");
        } else if self.failures.is_running() {
            tracing::info!(changed, left_out, ?duration, "in step again");
        } else {
            tracing::debug!(changed, left_out, ?duration, "in step");
        }
    }

    /// How long after a full comparison to make the next one.
    fn compare_pause(&mut self, options: &DriverOptions) -> Duration {
        let period =
            if self.listener.is_open() { options.full_compare_period } else { options.sync_period };
        if self.left_out.is_empty() {
            return period;
        }
        // The refused may be accepted later (a set that was full): try again, ever less often.
        self.left_out_tries.next(options).min(period)
    }

    /// Foreign changes are not heard of, for now: compare in their stead, and try to listen again.
    fn note_deafness(&mut self, error: &TableError, now: Instant, options: &DriverOptions) {
        let pause = self.listener.fail(now, options);
        let error = error.chain();
        tracing::warn!(family = %self.family, error, ?pause, "cannot hear foreign changes");
        let compare_at = now + options.sync_period;
        self.compare_at = self.compare_at.map(|due| due.min(compare_at));
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
}

/// Ever longer pauses between tries.
#[derive(Clone, Copy, Debug, Default)]
struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The pause after one more failure.
    fn next(&mut self, options: &DriverOptions) -> Duration {
        let pause = options.retry.saturating_mul(1 << self.failures.min(16));
        self.failures = self.failures.saturating_add(1);
        pause.min(options.sync_period)
    }

    fn is_running(self) -> bool {
        self.failures > 0
    }
}

/// What others changed and was not repaired yet.
#[derive(Debug, Default)]
struct Damage {
    descriptions: BTreeSet<String>,
    more: usize,
}

impl Damage {
    fn add(&mut self, description: String) {
        if self.descriptions.len() < MAX_LOGGED {
            self.descriptions.insert(description);
        } else if !self.descriptions.contains(&description) {
            self.more += 1;
        }
    }

    fn is_empty(&self) -> bool {
        self.descriptions.is_empty()
    }
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, description) in self.descriptions.iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "; " })?;
            f.write_str(description)?;
        }
        if self.more > 0 {
            write!(f, "; and {} more changes", self.more)?;
        }
        Ok(())
    }
}

// === foreign changes ===

type Change = Result<String, TableError>;

/// A signal and its wait for a change, which is never dropped half way: it may have heard the
/// beginning of a series of notifications.
type Wait = Pin<Box<dyn Future<Output = (Box<dyn DriftSignal>, Change)> + Send>>;

async fn wait(mut signal: Box<dyn DriftSignal>) -> (Box<dyn DriftSignal>, Change) {
    let change = signal.changed().await;
    (signal, change)
}

/// Listens for foreign changes of one table.
struct Listener {
    wait: Option<Wait>,
    /// When to begin to listen; `None` if that is so, or if the table has no signal.
    open_at: Option<Instant>,
    opened_at: Instant,
    failures: Backoff,
}

impl Listener {
    fn new(now: Instant) -> Self {
        Self { wait: None, open_at: Some(now), opened_at: now, failures: Backoff::default() }
    }

    fn is_open(&self) -> bool {
        self.wait.is_some()
    }

    /// Begins to listen. Returns whether changes may have been missed before.
    fn open(&mut self, signal: Option<Box<dyn DriftSignal>>, now: Instant) -> bool {
        self.wait = signal.map(|signal| Box::pin(wait(signal)) as Wait);
        self.open_at = None;
        self.opened_at = now;
        self.failures.is_running()
    }

    /// Stops listening for a while, which is returned.
    fn fail(&mut self, now: Instant, options: &DriverOptions) -> Duration {
        if self.is_open() && now - self.opened_at >= options.sync_period {
            self.failures = Backoff::default();
        }
        self.wait = None;
        let pause = self.failures.next(options);
        self.open_at = Some(now + pause);
        pause
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Change> {
        let Some(pending) = &mut self.wait else { return Poll::Pending };
        let (signal, change) = std::task::ready!(pending.as_mut().poll(context));
        self.wait = Some(Box::pin(wait(signal)));
        Poll::Ready(change)
    }
}

/// Waits for a foreign change of any family, which is told by its index.
async fn foreign_change(families: &mut [FamilyDriver]) -> (usize, Change) {
    poll_fn(|context| {
        for (index, family) in families.iter_mut().enumerate() {
            if let Poll::Ready(change) = family.listener.poll(context) {
                return Poll::Ready((index, change));
            }
        }
        Poll::Pending
    })
    .await
}
