//! Kernels that take part of a commit before they refuse the rest, as happens to every commit
//! that is too large for one transaction.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use proptest::prelude::*;
use proptest::sample::select;
use proxy_core::address::IpFamily;
use proxy_core::driver::{Driver, DriverEvent, DriverOptions};
use proxy_core::event::SourceEvent;
use proxy_core::names::ServiceName;
use proxy_core::node::NodeFacts;
use proxy_core::options::Options;
use proxy_core::resolved::{PoolKind, ResolvedPort, ResolvedService};
use proxy_core::rules::{Change, RuleDelta, RuleSet};
use proxy_core::store::Store;
use proxy_core::sync::{SyncReport, Synchronizer, TableSync};
use proxy_core::table::{DriftSignal, ServiceTable, TableError, TableErrorKind};
use tokio::sync::{mpsc, watch};

use crate::cluster::{Cluster, Spec, histories, list, shuffled_steps, steps};
use crate::fake::{FakeTable, Key, Rng, Rule, SharedKernel};
use crate::rig::{complete, expected, runtime, wait};

/// Objects in whose key or text this occurs are refused with an error of this kind.
type Refused = Arc<Mutex<Vec<(&'static str, TableErrorKind)>>>;

/// A table that is written in transactions of some steps each.
#[derive(Debug)]
struct Brittle {
    inner: FakeTable,
    steps: usize,
    refused: Refused,
}

impl Brittle {
    fn refuses(&self, change: &Change<Key, Rule>) -> Option<TableErrorKind> {
        let (Change::Add { key, rule } | Change::Replace { key, new: rule, .. }) = change else {
            return None;
        };
        let text = format!("{key:?} {}", rule.text);
        let refused = self.refused.lock().unwrap();
        refused.iter().find(|(part, _)| text.contains(part)).map(|(_, kind)| *kind)
    }
}

#[async_trait]
impl ServiceTable for Brittle {
    type Key = Key;
    type Rule = Rule;

    fn family(&self) -> IpFamily {
        self.inner.family()
    }

    fn compile_node(&self, node: &NodeFacts, out: &mut RuleSet<Key, Rule>) {
        self.inner.compile_node(node, out);
    }

    fn compile_service(&self, service: &ResolvedService, out: &mut RuleSet<Key, Rule>) {
        self.inner.compile_service(service, out);
    }

    fn is_shared(key: &Key) -> bool {
        FakeTable::is_shared(key)
    }

    fn installed_numbers(
        &self,
        installed: &RuleSet<Key, Rule>,
        port: &ResolvedPort,
        pool: PoolKind,
    ) -> Vec<(usize, (IpAddr, u16))> {
        self.inner.installed_numbers(installed, port, pool)
    }

    async fn observe(&mut self) -> Result<RuleSet<Key, Rule>, TableError> {
        self.inner.observe().await
    }

    async fn commit(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        let mut is_begun = false;
        for transaction in delta.changes.chunks(self.steps) {
            if let Some(kind) = transaction.iter().find_map(|change| self.refuses(change)) {
                if is_begun {
                    self.inner.kernel.lock().leave_unknown();
                }
                return Err(TableError::new(kind, "write an object"));
            }
            self.inner.commit(&RuleDelta { changes: transaction.to_vec() }).await?;
            is_begun = true;
        }
        Ok(())
    }

    async fn clear(&mut self) -> Result<(), TableError> {
        self.inner.clear().await
    }

    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        self.inner.drift_signal()
    }
}

/// An IPv4 store and a table that follows it.
struct Bench {
    store: Store,
    table: Synchronizer<Brittle>,
    kernel: SharedKernel,
    refused: Refused,
}

impl Bench {
    fn new(kernel: SharedKernel, steps: usize) -> Self {
        let mut store = Store::new(Options::new("n0"));
        store.set_interface_addresses(&["192.168.0.2".parse().unwrap()]);
        let refused = Refused::default();
        let inner = FakeTable { family: IpFamily::V4, kernel: kernel.clone() };
        let table = Brittle { inner, steps, refused: Arc::clone(&refused) };
        Self { store, table: Synchronizer::new(table), kernel, refused }
    }

    fn refuse(&self, part: &'static str, kind: TableErrorKind) {
        self.refused.lock().unwrap().push((part, kind));
    }

    fn accept_all(&self) {
        self.refused.lock().unwrap().clear();
    }

    fn take_in(&mut self, events: Vec<SourceEvent>) {
        for event in events {
            self.store.apply(event);
        }
        let changes = self.store.take_changes(IpFamily::V4);
        self.table.stage(changes.services, changes.node);
    }

    fn sync(&mut self) -> Result<SyncReport, TableError> {
        complete(self.table.sync())
    }

    /// Syncs until that succeeds, and at most so many times.
    fn sync_within(&mut self, tries: usize) -> SyncReport {
        (0..tries).find_map(|_| self.sync().ok()).expect("still not in step")
    }

    fn check(&self, cluster: &Cluster) {
        assert_eq!(self.kernel.lock().view(), expected(cluster, IpFamily::V4));
    }
}

fn names(report: &SyncReport) -> Vec<String> {
    report.left_out.iter().map(|(name, _)| name.name.to_string()).collect()
}

/// Services `s00` and so on with this many endpoints each, and one of this name among them.
fn many_and(name: &str) -> Cluster {
    let mut all: Cluster = (0..12)
        .map(|number| (format!("s{number:02}"), Spec::new(number + 10, [1, 2, number + 3])))
        .collect();
    all.insert(name.to_owned(), Spec::new(5, [3, 4]));
    all
}

fn without(mut cluster: Cluster, name: &str) -> Cluster {
    cluster.remove(name);
    cluster
}

const ALL_STEPS: [usize; 6] = [1, 2, 3, 7, 20, usize::MAX];

#[test]
fn known_failure_14_a_refusal_half_way_leaves_out_the_culprit_only() {
    // In the middle and at either end of the order in which Services are compiled.
    for name in ["a-bad", "s05-bad", "z-bad"] {
        for steps_at_once in ALL_STEPS {
            let mut bench = Bench::new(SharedKernel::default(), steps_at_once);
            bench.refuse("bad", TableErrorKind::Rejected);
            bench.take_in(list(&many_and(name)));
            let report = bench.sync().unwrap();
            assert_eq!(names(&report), [name]);
            bench.check(&without(many_and(name), name));
            bench.accept_all();
            bench.table.distrust();
            assert!(names(&bench.sync().unwrap()).is_empty());
            bench.check(&many_and(name));
        }
    }
}

#[test]
fn known_failure_14_what_is_never_as_assumed_is_left_out_too() {
    for steps_at_once in ALL_STEPS {
        let mut bench = Bench::new(SharedKernel::default(), steps_at_once);
        bench.refuse("cursed", TableErrorKind::OutOfSync);
        bench.take_in(list(&many_and("s05-cursed")));
        let report = bench.sync_within(3);
        assert_eq!(names(&report), ["s05-cursed"]);
        bench.check(&without(many_and("s05-cursed"), "s05-cursed"));
        // From then on it does not hold up the others by so much as one try.
        bench.table.distrust();
        assert_eq!(names(&bench.sync().unwrap()), ["s05-cursed"]);
        let before = many_and("s05-cursed");
        let mut after = without(before.clone(), "s07");
        after.insert("s05-cursed".to_owned(), Spec::new(6, [1]));
        bench.take_in(steps(&before, &after));
        assert_eq!(names(&bench.sync().unwrap()), ["s05-cursed"]);
        bench.check(&without(after.clone(), "s05-cursed"));
        bench.accept_all();
        bench.table.distrust();
        assert!(names(&bench.sync().unwrap()).is_empty());
        bench.check(&after);
    }
}

#[test]
fn what_a_refused_service_got_half_way_is_taken_away_with_it() {
    for steps_at_once in ALL_STEPS {
        let mut bench = Bench::new(SharedKernel::default(), steps_at_once);
        // Its second endpoint.
        bench.refuse("10.180.0.99:8080", TableErrorKind::Rejected);
        let mut state = many_and("s05-bad");
        state.insert("s05-bad".to_owned(), Spec::new(5, [3, 99]));
        bench.take_in(list(&state));
        assert_eq!(names(&bench.sync().unwrap()), ["s05-bad"]);
        bench.take_in(steps(&state, &without(state.clone(), "s05-bad")));
        assert!(names(&bench.sync().unwrap()).is_empty());
        bench.check(&without(state, "s05-bad"));
    }
}

#[test]
fn a_cursed_service_is_no_reason_to_spin() {
    let kernel = SharedKernel::default();
    let refused = Refused::default();
    refused.lock().unwrap().push(("cursed", TableErrorKind::OutOfSync));
    let inner = FakeTable { family: IpFamily::V4, kernel: kernel.clone() };
    let table = Brittle { inner, steps: 3, refused: Arc::clone(&refused) };
    let told: Arc<Mutex<Vec<DriverEvent>>> = Arc::default();
    let sink = Arc::clone(&told);
    runtime().block_on(async {
        let driver = Driver::new(
            Store::new(Options::new("n0")),
            vec![Box::new(Synchronizer::new(table))],
            DriverOptions::default(),
            move |event| sink.lock().unwrap().push(event),
        );
        let (events, queue) = mpsc::channel(4096);
        let (_addresses, watched) = watch::channel(vec!["192.168.0.2".parse().unwrap()]);
        let (_stop, stopped) = watch::channel(false);
        tokio::spawn(driver.run(queue, watched, stopped));
        let state = many_and("s05-cursed");
        for event in list(&state) {
            events.send(event).await.unwrap();
        }
        wait(Duration::from_secs(2)).await;
        let rest = without(state.clone(), "s05-cursed");
        assert_eq!(kernel.lock().view(), expected(&rest, IpFamily::V4));
        let failures = |event: &DriverEvent| matches!(event, DriverEvent::SyncFailed { .. });
        let failed = told.lock().unwrap().drain(..).filter(failures).count();
        assert!(failed <= 2, "{failed}");
        wait(Duration::from_secs(600)).await;
        let observations = kernel.lock().observations;
        assert!(observations < 200, "{observations}");
        assert!(!told.lock().unwrap().iter().any(failures));
        refused.lock().unwrap().clear();
        wait(Duration::from_secs(31)).await;
        assert_eq!(kernel.lock().view(), expected(&state, IpFamily::V4));
        let is_resolved = |event: &DriverEvent| {
            let name = ServiceName::new("default", "s05-cursed").to_string();
            matches!(event, DriverEvent::Findings { resolved, .. }
                if resolved.iter().any(|finding| finding.object.ends_with(&name)))
        };
        assert!(told.lock().unwrap().iter().any(is_resolved));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is refused in between, and however much of it was written: no step is based on
    /// a wrong assumption, and in the end everything is as if nothing had been refused.
    #[test]
    fn random_refusals_half_way(
        history in histories(),
        steps_at_once in select(&ALL_STEPS[..]),
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let mut bench = Bench::new(SharedKernel::default(), steps_at_once);
        bench.take_in(list(&history[0]));
        for states in history.windows(2) {
            bench.accept_all();
            for part in ["0.3", "0.7:8080", "0.2:8080", "30001", "UDP"] {
                if rng.below(4) == 0 {
                    let kind = [TableErrorKind::Rejected, TableErrorKind::OutOfSync][rng.below(2)];
                    bench.refuse(part, kind);
                }
            }
            bench.sync_within(3);
            bench.take_in(shuffled_steps(&states[0], &states[1], &mut rng));
            if rng.below(3) == 0 {
                // A process that starts anew, with another size of transactions.
                let new = Bench::new(bench.kernel.clone(), ALL_STEPS[rng.below(ALL_STEPS.len())]);
                *new.refused.lock().unwrap() = bench.refused.lock().unwrap().clone();
                bench = new;
                bench.take_in(list(&states[1]));
            }
        }
        bench.sync_within(3);
        bench.accept_all();
        bench.table.distrust();
        let report = bench.sync().unwrap();
        prop_assert!(report.left_out.is_empty());
        bench.check(&history[history.len() - 1]);
    }
}
