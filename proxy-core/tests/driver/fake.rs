//! A kernel that is a map, with faults, and a table that is kept in it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use proxy_core::address::IpFamily;
use proxy_core::node::NodeFacts;
use proxy_core::resolved::{
    Frontend, FrontendKey, Pool, PoolKind, ResolvedPort, ResolvedService, Route,
};
use proxy_core::rules::{Change, RuleDelta, RuleSet};
use proxy_core::table::{DriftSignal, ServiceTable, TableError, TableErrorKind};
use tokio::sync::mpsc;

/// Random numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let bound = u64::try_from(bound).unwrap();
        usize::try_from((mixed ^ (mixed >> 31)) % bound).unwrap()
    }

    /// Puts the values in a random order.
    pub(crate) fn shuffle<T>(&mut self, values: &mut [T]) {
        for last in (1..values.len()).rev() {
            values.swap(last, self.below(last + 1));
        }
    }
}

/// Objects, in order of dependency.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// The addresses that accept node ports; the node's own object.
    NodePorts,
    /// How a class of traffic is treated, shared by all frontends that treat it so.
    Treatment(String),
    /// A numbered endpoint of a pool.
    Endpoint { pool: String, number: usize },
    /// A frontend.
    Frontend(FrontendKey),
}

/// An object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) text: String,
    pub(crate) refers_to: BTreeSet<Key>,
}

impl Rule {
    fn plain(text: String) -> Self {
        Self { text, refers_to: BTreeSet::new() }
    }
}

/// How long a chore waits.
pub(crate) const CHORE_PAUSE: Duration = Duration::from_secs(5);

/// How often, and by which chance, the kernel fails.
#[derive(Clone, Debug)]
struct Faults {
    rng: Rng,
    one_in: usize,
}

/// What one family's kernel holds, and how it behaves.
#[derive(Debug, Default)]
pub(crate) struct Kernel {
    pub(crate) rules: RuleSet<Key, Rule>,
    /// Steps taken.
    pub(crate) writes: usize,
    /// Commits that were asked for.
    pub(crate) commits: usize,
    /// Times that everything was read.
    pub(crate) observations: usize,
    /// Objects in whose key or text one of these occurs are refused.
    pub(crate) refuses: BTreeSet<String>,
    /// Every commit fails.
    pub(crate) is_broken: bool,
    /// Every commit fails like this.
    pub(crate) fails_as: Option<TableErrorKind>,
    /// This many commits do all that is asked for, and then fail nevertheless.
    pub(crate) mute_for: usize,
    /// How long a commit takes.
    pub(crate) delay: Duration,
    /// Gives no signal of foreign changes.
    pub(crate) is_silent: bool,
    /// This many attempts to listen fail.
    pub(crate) deaf_for: usize,
    /// Results of work that waits for time to pass, the next one last.
    pub(crate) chores: Vec<Result<(), TableError>>,
    faults: Option<Faults>,
    /// Somebody else changed something since everything was last read.
    was_tampered: bool,
    listeners: Vec<mpsc::UnboundedSender<Result<String, TableError>>>,
}

fn error(kind: TableErrorKind, operation: &str) -> TableError {
    TableError::new(kind, operation)
}

impl Kernel {
    /// Every so many reads and commits one fails, and some commits half way.
    pub(crate) fn fail_one_in(&mut self, one_in: usize, seed: u64) {
        self.faults = Some(Faults { rng: Rng(seed), one_in });
    }

    /// No more random faults.
    pub(crate) fn heal(&mut self) {
        self.faults = None;
    }

    /// What is installed is not known until everything is read again.
    pub(crate) fn leave_unknown(&mut self) {
        self.was_tampered = true;
    }

    /// Somebody else removes an object.
    pub(crate) fn tamper(&mut self, key: &Key) {
        self.rules.remove(key);
        self.was_tampered = true;
        self.signal(Ok(format!("{key:?} removed")));
    }

    /// Somebody else removes any object.
    pub(crate) fn tamper_at_random(&mut self, rng: &mut Rng) {
        if !self.rules.is_empty() {
            let key = self.rules.iter().nth(rng.below(self.rules.len())).unwrap().0.clone();
            self.tamper(&key);
        }
    }

    /// Somebody else removes everything, object by object.
    pub(crate) fn flush(&mut self) {
        for key in self.keys() {
            self.tamper(&key);
        }
    }

    pub(crate) fn keys(&self) -> Vec<Key> {
        self.rules.iter().map(|(key, _)| key.clone()).collect()
    }

    /// Those who listen hear this.
    pub(crate) fn signal(&mut self, news: Result<String, TableError>) {
        self.listeners.retain(|listener| !listener.is_closed());
        if let Some(listener) = self.listeners.last() {
            listener.send(news).unwrap();
        }
    }

    /// Number of those who listen.
    pub(crate) fn listeners(&mut self) -> usize {
        self.listeners.retain(|listener| !listener.is_closed());
        self.listeners.len()
    }

    /// What is installed in terms that do not depend on endpoint numbers.
    pub(crate) fn view(&self) -> Vec<String> {
        let name = |key: &Key| match key {
            Key::Endpoint { pool, .. } => {
                let endpoint = self.rules.get(key).map(|rule| &rule.text);
                format!("{pool} -> {}", endpoint.expect("a frontend points at nothing"))
            }
            key => {
                assert!(self.rules.get(key).is_some(), "a frontend points at nothing");
                format!("{key:?}")
            }
        };
        let line = |(key, rule): (&Key, &Rule)| {
            let mut refers_to: Vec<String> = rule.refers_to.iter().map(name).collect();
            refers_to.sort();
            format!("{}: {} {refers_to:?}", name(key), rule.text)
        };
        let mut view: Vec<String> = self.rules.iter().map(line).collect();
        view.sort();
        view
    }

    /// Texts of the endpoints behind each frontend.
    pub(crate) fn endpoints(&self) -> BTreeMap<FrontendKey, BTreeSet<String>> {
        let frontends = self.rules.iter().filter_map(|(key, rule)| match key {
            Key::Frontend(key) => Some((*key, rule)),
            _ => None,
        });
        let text = |key: &Key| match key {
            Key::Endpoint { .. } => Some(self.rules.get(key).unwrap().text.clone()),
            _ => None,
        };
        frontends
            .map(|(key, rule)| (key, rule.refers_to.iter().filter_map(text).collect()))
            .collect()
    }

    fn begin_commit(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<usize, TableError> {
        self.commits += 1;
        if self.is_broken {
            return Err(error(TableErrorKind::Transient, "write").with_source("out of order"));
        }
        if let Some(kind) = self.fails_as {
            return Err(error(kind, "write"));
        }
        for change in &delta.changes {
            let (Change::Add { key, rule } | Change::Replace { key, new: rule, .. }) = change
            else {
                continue;
            };
            let text = format!("{key:?} {}", rule.text);
            if self.refuses.iter().any(|refused| text.contains(refused)) {
                return Err(error(TableErrorKind::Rejected, &format!("add {key:?}")));
            }
        }
        if self.mute_for > 0 {
            self.mute_for -= 1;
            return Ok(delta.len());
        }
        let Some(faults) = &mut self.faults else { return Ok(usize::MAX) };
        if faults.rng.below(faults.one_in) > 0 {
            return Ok(usize::MAX);
        }
        match faults.rng.below(3) {
            0 => Err(error(TableErrorKind::OutOfSync, "write by chance")),
            1 => Err(error(TableErrorKind::Transient, "write by chance")),
            _ => Ok(faults.rng.below(delta.len() + 1)),
        }
    }

    fn begin_observation(&mut self) -> Result<(), TableError> {
        self.observations += 1;
        if let Some(faults) = &mut self.faults
            && faults.rng.below(faults.one_in) == 0
        {
            return Err(error(TableErrorKind::Transient, "read by chance"));
        }
        self.was_tampered = false;
        Ok(())
    }

    fn step(&mut self, change: &Change<Key, Rule>) -> Result<(), TableError> {
        let key = change.key();
        let (expected, new) = match change {
            Change::Add { rule, .. } => (None, Some(rule)),
            Change::Replace { old, new, .. } => (Some(old), Some(new)),
            Change::Remove { rule, .. } => (Some(rule), None),
        };
        if self.rules.get(key) != expected {
            return self.refuse_step(&format!("write {key:?}: it is not as assumed"));
        }
        if let Some(new) = new {
            let missing =
                new.refers_to.iter().find(|refers_to| self.rules.get(refers_to).is_none());
            if let Some(missing) = missing {
                return self.refuse_step(&format!("write {key:?}: {missing:?} does not exist"));
            }
            self.rules.insert(key.clone(), new.clone());
        } else {
            let mut rules = self.rules.iter();
            if let Some((user, _)) = rules.find(|(_, rule)| rule.refers_to.contains(key)) {
                return self.refuse_step(&format!("remove {key:?}: {user:?} refers to it"));
            }
            self.rules.remove(key);
        }
        self.writes += 1;
        Ok(())
    }

    /// A wrong step is a bug, unless somebody else changed what it was based on.
    fn refuse_step(&self, step: &str) -> Result<(), TableError> {
        assert!(self.was_tampered, "cannot {step}");
        Err(error(TableErrorKind::OutOfSync, step))
    }
}

/// A kernel that outlives those who write to it.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedKernel(Arc<Mutex<Kernel>>);

impl SharedKernel {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Kernel> {
        self.0.lock().unwrap()
    }
}

/// A table in such a kernel.
#[derive(Debug)]
pub(crate) struct FakeTable {
    pub(crate) family: IpFamily,
    pub(crate) kernel: SharedKernel,
}

fn pool_name(port: &ResolvedPort, kind: PoolKind) -> String {
    format!("{}/{} {kind:?}", port.name, port.name.protocol)
}

fn endpoint_keys(port: &ResolvedPort, kind: PoolKind) -> impl Iterator<Item = Key> {
    let pool = pool_name(port, kind);
    (0..port.pool(kind).endpoints.len())
        .map(move |number| Key::Endpoint { pool: pool.clone(), number })
}

fn treatment(route: Route) -> Key {
    Key::Treatment(format!("{route:?}"))
}

fn compile_frontend(port: &ResolvedPort, frontend: &Frontend) -> Rule {
    let mut refers_to = BTreeSet::new();
    if matches!(frontend.key, FrontendKey::NodePort { .. }) {
        refers_to.insert(Key::NodePorts);
    }
    for route in frontend.routes.iter() {
        refers_to.insert(treatment(route));
        if let Route::Forward { pool, .. } = route {
            refers_to.extend(endpoint_keys(port, pool));
        }
    }
    Rule { text: format!("{} {:?}", port.name, frontend.routes), refers_to }
}

fn compile_pool(port: &ResolvedPort, kind: PoolKind, out: &mut RuleSet<Key, Rule>) {
    let Pool { endpoints, .. } = port.pool(kind);
    for (key, endpoint) in endpoint_keys(port, kind).zip(endpoints) {
        let socket = SocketAddr::new(endpoint.address, endpoint.port);
        out.insert(key, Rule::plain(socket.to_string()));
    }
}

#[async_trait]
impl ServiceTable for FakeTable {
    type Key = Key;
    type Rule = Rule;

    fn family(&self) -> IpFamily {
        self.family
    }

    fn compile_node(&self, node: &NodeFacts, out: &mut RuleSet<Key, Rule>) {
        let text = format!("{:?} {:?}", node.node_port_addresses, node.service_ranges);
        out.insert(Key::NodePorts, Rule::plain(text));
    }

    fn compile_service(&self, service: &ResolvedService, out: &mut RuleSet<Key, Rule>) {
        let frontends = service
            .ports
            .iter()
            .flat_map(|port| port.frontends.iter().map(move |frontend| (port, frontend)));
        for (port, frontend) in frontends {
            for route in frontend.routes.iter() {
                out.insert(treatment(route), Rule::plain(format!("{route:?}")));
                if let Route::Forward { pool, .. } = route {
                    compile_pool(port, pool, out);
                }
            }
            out.insert(Key::Frontend(frontend.key), compile_frontend(port, frontend));
        }
    }

    fn is_shared(key: &Key) -> bool {
        matches!(key, Key::Treatment(_))
    }

    fn installed_numbers(
        &self,
        installed: &RuleSet<Key, Rule>,
        port: &ResolvedPort,
        kind: PoolKind,
    ) -> Vec<(usize, (IpAddr, u16))> {
        let wanted = pool_name(port, kind);
        let numbers = installed.iter().filter_map(|(key, rule)| match key {
            Key::Endpoint { pool, number } if *pool == wanted => {
                let socket: SocketAddr = rule.text.parse().unwrap();
                Some((*number, (socket.ip(), socket.port())))
            }
            _ => None,
        });
        numbers.collect()
    }

    async fn observe(&mut self) -> Result<RuleSet<Key, Rule>, TableError> {
        self.kernel.lock().begin_observation()?;
        let rules = self.kernel.lock().rules.clone();
        tokio::task::yield_now().await;
        Ok(rules)
    }

    async fn commit(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        let fails_at = self.kernel.lock().begin_commit(delta)?;
        let delay = self.kernel.lock().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        for (index, change) in delta.changes.iter().enumerate() {
            if index == fails_at {
                break;
            }
            self.kernel.lock().step(change)?;
            tokio::task::yield_now().await;
        }
        if fails_at == usize::MAX {
            Ok(())
        } else {
            Err(error(TableErrorKind::Transient, "write all of it by chance"))
        }
    }

    async fn clear(&mut self) -> Result<(), TableError> {
        self.kernel.lock().rules = RuleSet::new();
        Ok(())
    }

    fn tend_in(&self) -> Option<Duration> {
        (!self.kernel.lock().chores.is_empty()).then_some(CHORE_PAUSE)
    }

    async fn tend(&mut self) -> Result<(), TableError> {
        self.kernel.lock().chores.pop().unwrap_or(Ok(()))
    }

    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        let mut kernel = self.kernel.lock();
        if kernel.is_silent {
            return Ok(None);
        }
        if kernel.deaf_for > 0 {
            kernel.deaf_for -= 1;
            return Err(error(TableErrorKind::Transient, "listen"));
        }
        let (sender, changes) = mpsc::unbounded_channel();
        kernel.listeners.push(sender);
        Ok(Some(Box::new(FakeSignal { changes })))
    }
}

struct FakeSignal {
    changes: mpsc::UnboundedReceiver<Result<String, TableError>>,
}

#[async_trait]
impl DriftSignal for FakeSignal {
    async fn changed(&mut self) -> Result<String, TableError> {
        let closed = || Err(error(TableErrorKind::Transient, "listen any longer"));
        self.changes.recv().await.unwrap_or_else(closed)
    }
}
