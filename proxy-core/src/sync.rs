//! Brings one table into step with what is wanted, and keeps it there.
//!
//! The ordinary sync compares only what changed. After a start, an error or somebody else's
//! change, what is installed is read back and everything is compared; so a new process, a crash
//! and a repair are the same path, and none of them flushes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::address::IpFamily;
use crate::names::ServiceName;
use crate::node::NodeFacts;
use crate::numbering::{numbers, renumber};
use crate::resolved::{Pool, PoolKind, ResolvedPort, ResolvedService};
use crate::rules::{RuleDelta, RuleSet, reconcile, reconcile_sorted};
use crate::table::{DriftSignal, ServiceTable, TableError, TableErrorKind};

/// What a successful sync did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Whether everything was compared.
    pub full: bool,
    /// Number of kernel objects that were written or removed.
    pub changed_objects: usize,
    /// Services that are not in effect because the kernel refuses them, with its reason.
    pub left_out: Vec<(ServiceName, String)>,
}

/// A [`Synchronizer`] whose backend was chosen at run time.
#[async_trait]
pub trait TableSync: Send {
    /// The family of the table.
    fn family(&self) -> IpFamily;
    /// Takes note of changed Services (`None`: gone) and node facts, without any write.
    fn stage(
        &mut self,
        services: Vec<(ServiceName, Option<Arc<ResolvedService>>)>,
        node: Option<NodeFacts>,
    );
    /// Whether something is staged or the table is not trusted.
    fn is_pending(&self) -> bool;
    /// Makes the next sync read back and compare everything.
    fn distrust(&mut self);
    /// Brings the table into step. After an error the next sync compares everything.
    async fn sync(&mut self) -> Result<SyncReport, TableError>;
    /// Removes everything of ours from the kernel.
    async fn clear(&mut self) -> Result<(), TableError>;
    /// See [`ServiceTable::tend_in`].
    fn tend_in(&self) -> Option<Duration>;
    /// See [`ServiceTable::tend`].
    async fn tend(&mut self) -> Result<(), TableError>;
    /// See [`ServiceTable::drift_signal`].
    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError>;
}

/// Who needs an object: the node itself, or a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    Node,
    Service(ServiceName),
}

/// The objects of one owner, as committed.
#[derive(Debug, PartialEq, Eq)]
struct Programmed<K, R> {
    /// The Service with the endpoint numbers that the objects have.
    service: Option<Arc<ResolvedService>>,
    /// The objects, in order of their keys.
    rules: Box<[(K, R)]>,
}

type Rules<T> = RuleSet<<T as ServiceTable>::Key, <T as ServiceTable>::Rule>;
type Delta<T> = RuleDelta<<T as ServiceTable>::Key, <T as ServiceTable>::Rule>;
type Compiled<T> = Arc<Programmed<<T as ServiceTable>::Key, <T as ServiceTable>::Rule>>;

/// All that is committed, by owner.
#[derive(Debug)]
struct Ledger<T: ServiceTable> {
    owners: BTreeMap<Owner, Compiled<T>>,
    /// How many owners need each shared object.
    uses: BTreeMap<T::Key, usize>,
    /// Whether shared objects stay even if no known owner needs them.
    keeps_shared: bool,
}

impl<T: ServiceTable> Default for Ledger<T> {
    fn default() -> Self {
        Self { owners: BTreeMap::new(), uses: BTreeMap::new(), keeps_shared: false }
    }
}

impl<T: ServiceTable> Ledger<T> {
    fn is_used(&self, key: &T::Key) -> bool {
        self.uses.contains_key(key)
    }

    fn insert(&mut self, owner: Owner, compiled: Compiled<T>) {
        self.remove(&owner);
        for (key, _) in compiled.rules.iter().filter(|(key, _)| T::is_shared(key)) {
            *self.uses.entry(key.clone()).or_insert(0) += 1;
        }
        self.owners.insert(owner, compiled);
    }

    fn remove(&mut self, owner: &Owner) -> Option<Compiled<T>> {
        let compiled = self.owners.remove(owner)?;
        for (key, _) in compiled.rules.iter().filter(|(key, _)| T::is_shared(key)) {
            if let Some(uses) = self.uses.get_mut(key) {
                *uses -= 1;
                if *uses == 0 && !self.keeps_shared {
                    self.uses.remove(key);
                }
            }
        }
        Some(compiled)
    }
}

/// Brings one table into step with what is wanted.
#[derive(Debug)]
pub struct Synchronizer<T: ServiceTable> {
    table: T,
    node: Option<NodeFacts>,
    wanted: BTreeMap<ServiceName, Arc<ResolvedService>>,
    dirty: BTreeSet<Owner>,
    ledger: Ledger<T>,
    left_out: BTreeMap<ServiceName, String>,
    in_step: bool,
    /// Full comparisons in a row that ended because the table was not as just observed.
    out_of_sync: u32,
}

impl<T: ServiceTable> Synchronizer<T> {
    /// A synchronizer that knows nothing of what is installed yet.
    pub fn new(table: T) -> Self {
        Self {
            table,
            node: None,
            wanted: BTreeMap::new(),
            dirty: BTreeSet::new(),
            ledger: Ledger::default(),
            left_out: BTreeMap::new(),
            in_step: false,
            out_of_sync: 0,
        }
    }

    /// The table.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// The table, to use it directly. Call [`TableSync::distrust`] after a write.
    pub fn table_mut(&mut self) -> &mut T {
        &mut self.table
    }

    /// All objects that are wanted, with the endpoint numbers that are installed.
    pub fn wanted_rules(&self, installed: &Rules<T>) -> Rules<T> {
        let mut rules = RuleSet::new();
        for owner in self.owners() {
            if let Some(compiled) = self.compile(&owner, &Numbers::Observed(installed)) {
                rules.extend(compiled.rules.iter().cloned());
            }
        }
        rules
    }

    fn owners(&self) -> Vec<Owner> {
        let node = self.node.iter().map(|_| Owner::Node);
        node.chain(self.wanted.keys().cloned().map(Owner::Service)).collect()
    }

    /// The objects an owner needs; `None` if it is gone.
    fn compile(&self, owner: &Owner, numbers: &Numbers<'_, T>) -> Option<Compiled<T>> {
        let mut rules = RuleSet::new();
        let service = match owner {
            Owner::Node => {
                self.table.compile_node(self.node.as_ref()?, &mut rules);
                None
            }
            Owner::Service(name) => {
                let service = self.number(self.wanted.get(name)?, numbers);
                self.table.compile_service(&service, &mut rules);
                Some(service)
            }
        };
        let compiled = Programmed { service, rules: rules.into_iter().collect() };
        // A full comparison makes a second ledger: what is in both takes memory only once.
        let committed = self.ledger.owners.get(owner).filter(|committed| ***committed == compiled);
        Some(committed.map_or_else(|| Arc::new(compiled), Arc::clone))
    }

    /// The Service with its endpoints in the order of their numbers.
    fn number(
        &self,
        service: &Arc<ResolvedService>,
        known: &Numbers<'_, T>,
    ) -> Arc<ResolvedService> {
        let mut numbered = Arc::clone(service);
        for (index, port) in service.ports.iter().enumerate() {
            for kind in [PoolKind::Cluster, PoolKind::Local] {
                if port.pool(kind).endpoints.is_empty() {
                    continue;
                }
                let pool = self.number_pool(service, port, kind, known);
                if pool != *port.pool(kind) {
                    *Arc::make_mut(&mut numbered).ports[index].pool_mut(kind) = pool;
                }
            }
        }
        numbered
    }

    fn number_pool(
        &self,
        service: &ResolvedService,
        port: &ResolvedPort,
        kind: PoolKind,
        known: &Numbers<'_, T>,
    ) -> Pool {
        let pool = port.pool(kind);
        match known {
            Numbers::Observed(installed) => {
                renumber(pool, self.table.installed_numbers(installed, port, kind))
            }
            Numbers::Committed => {
                let owner = Owner::Service(service.name.clone());
                let old = self.ledger.owners.get(&owner).and_then(|old| old.service.as_ref());
                let old_port = old.and_then(|old| old.ports.iter().find(|p| p.name == port.name));
                match old_port {
                    Some(old_port) => renumber(pool, numbers(old_port.pool(kind))),
                    None => pool.clone(),
                }
            }
        }
    }

    // === the ordinary sync ===

    async fn sync_changes(&mut self) -> Result<usize, TableError> {
        let dirty: Vec<Owner> = self.dirty.iter().cloned().collect();
        let compiled: Vec<_> = dirty
            .into_iter()
            .map(|owner| {
                let compiled = self.compile(&owner, &Numbers::Committed);
                (owner, compiled)
            })
            .collect();
        let delta = self.delta_to(&compiled);
        self.commit(&delta).await?;
        for (owner, compiled) in compiled {
            match compiled {
                Some(compiled) => self.ledger.insert(owner, compiled),
                None => drop(self.ledger.remove(&owner)),
            }
        }
        Ok(delta.len())
    }

    async fn commit(&mut self, delta: &Delta<T>) -> Result<(), TableError> {
        if delta.is_empty() { Ok(()) } else { self.table.commit(delta).await }
    }

    /// The steps from what the owners have committed to what they need now.
    fn delta_to(&self, owners: &[(Owner, Option<Compiled<T>>)]) -> Delta<T> {
        let mut wanted = RuleSet::new();
        let mut installed = RuleSet::new();
        // Old and new uses by these owners of each shared object.
        let mut uses: BTreeMap<T::Key, (usize, usize)> = BTreeMap::new();
        for (owner, new) in owners {
            let old = self.ledger.owners.get(owner).map_or(&[][..], |old| &old.rules);
            let new = new.as_ref().map_or(&[][..], |new| &new.rules);
            // What an owner keeps as it is matters to nobody.
            for change in reconcile_sorted(pairs(new), pairs(old)).changes {
                let (key, old, new) = change.into_parts();
                if T::is_shared(&key) {
                    let uses = uses.entry(key.clone()).or_default();
                    uses.0 += usize::from(old.is_some());
                    uses.1 += usize::from(new.is_some());
                }
                installed.extend(old.map(|old| (key.clone(), old)));
                wanted.extend(new.map(|new| (key, new)));
            }
        }
        for (key, (old, new)) in &uses {
            let Some(before) = self.ledger.uses.get(key) else { continue };
            let others = before.saturating_sub(*old);
            if others + new > 0 || self.ledger.keeps_shared {
                wanted.remove(key);
                installed.remove(key);
            }
        }
        reconcile(&wanted, &installed)
    }

    // === the full comparison ===

    async fn sync_everything(&mut self) -> Result<usize, TableError> {
        let installed = self.table.observe().await?;
        let mut full = FullSync {
            installed,
            ledger: Ledger::default(),
            culprits: Vec::new(),
            doubtful: BTreeSet::new(),
            has_unknown: false,
            changed: 0,
        };
        let replaces_all = self.table.replaces_all();
        let group_objects = if replaces_all { usize::MAX } else { self.table.commit_objects() };
        let mut group = Vec::new();
        let mut objects = 0;
        for owner in self.owners() {
            let compiled = self.compile(&owner, &Numbers::Observed(&full.installed));
            let Some(compiled) = compiled else { continue };
            if self.is_left_out(&owner) && !replaces_all {
                // Alone from the start, as the search for it would end there again.
                self.commit_group(&mut full, vec![(owner, compiled)]).await?;
                continue;
            }
            objects += compiled.rules.len();
            group.push((owner, compiled));
            if objects >= group_objects {
                objects = 0;
                self.commit_group(&mut full, std::mem::take(&mut group)).await?;
            }
        }
        self.commit_group(&mut full, group).await?;
        if !full.doubtful.is_empty() {
            full.look_again(self.table.observe().await?);
        }
        let left_out = full.leave_out(&self.ledger);
        let leftovers = full.leftovers();
        self.commit(&leftovers).await?;
        self.ledger = full.ledger;
        self.left_out = left_out;
        Ok(full.changed + leftovers.len())
    }

    /// Whether an error of a full comparison is about an object of the delta. One that was just
    /// compared and is out of sync again and again is not a race with somebody else.
    fn blames_object(&self, error: &TableError, group: &[(Owner, Compiled<T>)]) -> bool {
        match error.kind() {
            TableErrorKind::Rejected => true,
            TableErrorKind::OutOfSync => {
                self.out_of_sync > 1 || group.iter().any(|(owner, _)| self.is_left_out(owner))
            }
            _ => false,
        }
    }

    /// Whether the last full comparison left this owner out.
    fn is_left_out(&self, owner: &Owner) -> bool {
        matches!(owner, Owner::Service(name) if self.left_out.contains_key(name))
    }

    /// Commits what a group of owners needs. If the kernel refuses it, the group is halved until
    /// the culprits stand alone; these are left out.
    async fn commit_group(
        &mut self,
        full: &mut FullSync<T>,
        group: Vec<(Owner, Compiled<T>)>,
    ) -> Result<(), TableError> {
        let mut groups = vec![group];
        while let Some(mut group) = groups.pop() {
            let mut delta = full.delta_to(&group);
            let mut result = self.commit(&delta).await;
            let is_out_of_sync = |error: &TableError| error.kind() == TableErrorKind::OutOfSync;
            if result.as_ref().is_err_and(is_out_of_sync) && full.doubts(&delta) {
                // Part of a commit that failed is written.
                full.look_again(self.table.observe().await?);
                delta = full.delta_to(&group);
                result = self.commit(&delta).await;
            }
            let Err(error) = result else {
                full.accept(group, delta.len());
                continue;
            };
            if !self.blames_object(&error, &group) {
                return Err(error);
            }
            full.doubtful.extend(delta.changes.iter().map(|change| change.key().clone()));
            if group.len() > 1 {
                let second = group.split_off(group.len() / 2);
                groups.push(second);
                groups.push(group);
            } else {
                full.convict(group, error)?;
            }
        }
        Ok(())
    }
}

fn pairs<K, R>(rules: &[(K, R)]) -> impl Iterator<Item = (&K, &R)> {
    rules.iter().map(|(key, rule)| (key, rule))
}

/// Where endpoint numbers are known from.
enum Numbers<'a, T: ServiceTable> {
    Committed,
    Observed(&'a Rules<T>),
}

/// State of a full comparison.
struct FullSync<T: ServiceTable> {
    /// What was observed and is not yet claimed by an owner.
    installed: Rules<T>,
    ledger: Ledger<T>,
    /// What stands alone and is refused, and why.
    culprits: Vec<(ServiceName, Compiled<T>, TableError)>,
    /// Objects of commits that were refused. Most kernels then have none of them; one that was
    /// written to in several transactions may have some.
    doubtful: BTreeSet<T::Key>,
    /// Whether it is not known what a Service that is left out still runs on, as an earlier
    /// process installed it.
    has_unknown: bool,
    changed: usize,
}

impl<T: ServiceTable> FullSync<T> {
    fn delta_to(&self, group: &[(Owner, Compiled<T>)]) -> Delta<T> {
        let mut wanted = Vec::new();
        let mut installed = Vec::new();
        for (key, rule) in group.iter().flat_map(|(_, compiled)| &compiled.rules) {
            let old = self.installed.get(key);
            if old == Some(rule) || (T::is_shared(key) && self.ledger.is_used(key)) {
                continue;
            }
            wanted.push((key.clone(), rule.clone()));
            installed.extend(old.map(|old| (key.clone(), old.clone())));
        }
        reconcile(&wanted.into_iter().collect(), &installed.into_iter().collect())
    }

    fn accept(&mut self, group: Vec<(Owner, Compiled<T>)>, changed: usize) {
        self.changed += changed;
        for (owner, compiled) in group {
            for (key, _) in &compiled.rules {
                self.installed.remove(key);
            }
            self.ledger.insert(owner, compiled);
        }
    }

    fn doubts(&self, delta: &Delta<T>) -> bool {
        delta.changes.iter().any(|change| self.doubtful.contains(change.key()))
    }

    /// Goes on from what is installed now.
    fn look_again(&mut self, installed: Rules<T>) {
        self.installed = installed;
        self.doubtful.clear();
        for (key, _) in self.ledger.owners.values().flat_map(|compiled| &compiled.rules) {
            self.installed.remove(key);
        }
    }

    /// Takes note of a culprit that stands alone. Without the node's own objects nothing works,
    /// so these cannot be left out.
    fn convict(
        &mut self,
        culprit: Vec<(Owner, Compiled<T>)>,
        error: TableError,
    ) -> Result<(), TableError> {
        match culprit.into_iter().next() {
            Some((Owner::Service(name), compiled)) => self.culprits.push((name, compiled, error)),
            _ => return Err(error),
        }
        Ok(())
    }

    /// Keeps what is installed of the culprits: their last good state. Returns who they are.
    fn leave_out(&mut self, former: &Ledger<T>) -> BTreeMap<ServiceName, String> {
        let mut left_out = BTreeMap::new();
        for (name, new, error) in std::mem::take(&mut self.culprits) {
            left_out.insert(name.clone(), error.chain());
            let owner = Owner::Service(name);
            let old = former.owners.get(&owner);
            let is_intact = |(key, rule): &(T::Key, T::Rule)| {
                self.installed.get(key) == Some(rule) || self.ledger.is_used(key)
            };
            match old {
                Some(old) if old.rules.iter().all(is_intact) => {
                    self.accept(vec![(owner, Arc::clone(old))], 0);
                }
                _ => {
                    let old = old.into_iter().flat_map(|old| &old.rules);
                    let mut own = old.chain(&new.rules).filter(|(key, _)| !T::is_shared(key));
                    self.has_unknown |= own.any(|(key, _)| self.installed.get(key).is_some());
                }
            }
        }
        left_out
    }

    /// The removal of what nobody wants. What an earlier process installed stays while it might
    /// be what a Service that is left out still runs on.
    fn leftovers(&mut self) -> Delta<T> {
        if self.has_unknown {
            self.ledger.keeps_shared = true;
            for (key, _) in self.installed.iter().filter(|(key, _)| T::is_shared(key)) {
                self.ledger.uses.entry(key.clone()).or_insert(0);
            }
            return RuleDelta::default();
        }
        reconcile(&RuleSet::new(), &self.installed)
    }
}

#[async_trait]
impl<T: ServiceTable> TableSync for Synchronizer<T> {
    fn family(&self) -> IpFamily {
        self.table.family()
    }

    fn stage(
        &mut self,
        services: Vec<(ServiceName, Option<Arc<ResolvedService>>)>,
        node: Option<NodeFacts>,
    ) {
        if let Some(node) = node {
            if self.table.note_node(&node) {
                // All Services have to be compiled anew.
                self.in_step = false;
            }
            self.node = Some(node);
            self.dirty.insert(Owner::Node);
        }
        for (name, service) in services {
            self.dirty.insert(Owner::Service(name.clone()));
            match service {
                Some(service) => drop(self.wanted.insert(name, service)),
                None => drop(self.wanted.remove(&name)),
            }
        }
    }

    fn is_pending(&self) -> bool {
        !self.in_step || !self.dirty.is_empty()
    }

    fn distrust(&mut self) {
        self.in_step = false;
    }

    async fn sync(&mut self) -> Result<SyncReport, TableError> {
        let retries_left_out = self.dirty.iter().any(|owner| match owner {
            Owner::Service(name) => self.left_out.contains_key(name),
            Owner::Node => false,
        });
        let mut full = !self.in_step || retries_left_out;
        // Set again only once the kernel has everything: an error, or a future that is dropped
        // half way, leaves the table untrusted.
        self.in_step = false;
        let mut result =
            if full { self.sync_everything().await } else { self.sync_changes().await };
        let find_culprit = |error: &TableError| {
            matches!(error.kind(), TableErrorKind::Rejected | TableErrorKind::OutOfSync)
        };
        if !full && result.as_ref().is_err_and(find_culprit) {
            full = true;
            result = self.sync_everything().await;
        }
        self.out_of_sync = match &result {
            Err(error) if error.kind() == TableErrorKind::OutOfSync => self.out_of_sync + 1,
            _ => 0,
        };
        let changed_objects = result?;
        self.in_step = true;
        self.dirty.clear();
        let left_out = self.left_out.clone().into_iter().collect();
        Ok(SyncReport { full, changed_objects, left_out })
    }

    async fn clear(&mut self) -> Result<(), TableError> {
        self.in_step = false;
        self.table.clear().await
    }

    fn tend_in(&self) -> Option<Duration> {
        self.table.tend_in()
    }

    async fn tend(&mut self) -> Result<(), TableError> {
        self.table.tend().await
    }

    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        self.table.drift_signal()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::rules::Change;

    /// Objects are numbers; those below ten are shared.
    #[derive(Debug, Default)]
    struct Table {
        /// What each Service needs.
        needs: BTreeMap<&'static str, Vec<u8>>,
        installed: RuleSet<u8, ()>,
        /// The steps of the last commit.
        steps: Vec<(char, u8)>,
        /// Objects that are refused.
        refused: BTreeSet<u8>,
    }

    #[async_trait]
    impl ServiceTable for Table {
        type Key = u8;
        type Rule = ();

        fn family(&self) -> IpFamily {
            IpFamily::V4
        }

        fn compile_node(&self, _: &NodeFacts, _: &mut RuleSet<u8, ()>) {}

        fn compile_service(&self, service: &ResolvedService, out: &mut RuleSet<u8, ()>) {
            out.extend(self.needs[&*service.name.name].iter().map(|object| (*object, ())));
        }

        fn is_shared(key: &u8) -> bool {
            *key < 10
        }

        async fn observe(&mut self) -> Result<RuleSet<u8, ()>, TableError> {
            Ok(self.installed.clone())
        }

        async fn commit(&mut self, delta: &RuleDelta<u8, ()>) -> Result<(), TableError> {
            if delta.changes.iter().any(|change| self.refused.contains(change.key())) {
                return Err(TableError::new(TableErrorKind::Rejected, "write"));
            }
            let step = |change: &Change<u8, ()>| match change {
                Change::Add { key, .. } => ('+', *key),
                Change::Replace { key, .. } => ('=', *key),
                Change::Remove { key, .. } => ('-', *key),
            };
            self.steps = delta.changes.iter().map(step).collect();
            delta.apply_to(&mut self.installed);
            Ok(())
        }

        async fn clear(&mut self) -> Result<(), TableError> {
            self.installed = RuleSet::new();
            Ok(())
        }
    }

    fn service(name: &'static str) -> Arc<ResolvedService> {
        Arc::new(ResolvedService {
            name: ServiceName::new("default", name),
            cluster_ip: Ipv4Addr::LOCALHOST.into(),
            ports: Vec::new(),
            health_check: None,
            scheduler: None,
        })
    }

    /// Syncs with these needs, of which an empty one means that the Service is gone.
    fn sync(table: &mut Synchronizer<Table>, needs: &[(&'static str, &[u8])]) -> SyncReport {
        table.table.steps.clear();
        for (name, objects) in needs {
            table.table.needs.insert(name, objects.to_vec());
            let wanted = (!objects.is_empty()).then(|| service(name));
            table.stage(vec![(ServiceName::new("default", *name), wanted)], None);
        }
        let future = pin!(table.sync());
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(report) => report.unwrap(),
            Poll::Pending => unreachable!("the table never waits"),
        }
    }

    /// Steps of an ordinary sync with these needs, after one with those.
    fn check(before: &[(&'static str, &[u8])], after: &[(&'static str, &[u8])], steps: &str) {
        let mut table = Synchronizer::new(Table::default());
        sync(&mut table, before);
        let report = sync(&mut table, after);
        assert!(!report.full);
        let taken: Vec<String> =
            table.table.steps.iter().map(|(sign, object)| format!("{sign}{object}")).collect();
        assert_eq!(taken.join(" "), steps);
        // The ordinary sync led where a full comparison leads.
        table.distrust();
        let report = sync(&mut table, &[]);
        assert_eq!(report, SyncReport { full: true, ..SyncReport::default() });
    }

    #[test]
    fn a_shared_object_is_added_once() {
        check(&[], &[("a", &[1, 11]), ("b", &[1, 12])], "+1 +11 +12");
        check(&[("a", &[1, 11])], &[("b", &[1, 12])], "+12");
    }

    #[test]
    fn a_shared_object_stays_until_the_last_one_goes() {
        let both: [(&str, &[u8]); 2] = [("a", &[1, 11]), ("b", &[1, 12])];
        check(&both, &[("a", &[])], "-11");
        check(&both, &[("b", &[12])], "");
        check(&both, &[("a", &[]), ("b", &[])], "-12 -11 -1");
        check(&both, &[("a", &[11]), ("b", &[12])], "-1");
    }

    #[test]
    fn a_shared_object_passes_on_within_one_sync() {
        check(&[("a", &[1, 11])], &[("a", &[]), ("b", &[1, 12])], "+12 -11");
        check(&[("a", &[1, 11])], &[("a", &[2, 11]), ("b", &[1, 12])], "+2 +12");
    }

    #[test]
    fn an_object_passes_on_within_one_sync() {
        check(&[("a", &[11])], &[("a", &[]), ("b", &[11])], "");
        check(&[("b", &[11])], &[("a", &[11]), ("b", &[12])], "+12");
    }

    #[test]
    fn uses_are_those_of_the_owners() {
        let of = |objects: &[u8]| {
            let rules = objects.iter().map(|object| (*object, ())).collect();
            Arc::new(Programmed { service: None, rules })
        };
        let owner = |name| Owner::Service(ServiceName::new("default", name));
        let mut ledger = Ledger::<Table>::default();
        ledger.insert(owner("a"), of(&[1, 2, 11]));
        ledger.insert(owner("b"), of(&[2, 12]));
        assert_eq!(ledger.uses, [(1, 1), (2, 2)].into());
        // In place of what it had.
        ledger.insert(owner("a"), of(&[2, 3]));
        assert_eq!(ledger.uses, [(2, 2), (3, 1)].into());
        assert!(!ledger.is_used(&1) && !ledger.is_used(&12));
        ledger.keeps_shared = true;
        ledger.remove(&owner("a"));
        ledger.remove(&owner("never was"));
        assert_eq!(ledger.uses, [(2, 1), (3, 0)].into());
        assert!(ledger.is_used(&3));
    }

    #[test]
    fn the_last_good_state_of_the_refused_keeps_what_it_shares() {
        let mut table = Synchronizer::new(Table::default());
        sync(&mut table, &[("a", &[1, 11]), ("b", &[1, 12])]);
        table.table.refused.insert(13);
        let report = sync(&mut table, &[("a", &[2, 13])]);
        assert_eq!(report.left_out.len(), 1);
        sync(&mut table, &[("b", &[])]);
        let installed: Vec<u8> = table.table.installed.iter().map(|(key, ())| *key).collect();
        assert_eq!(installed, [1, 11]);
        table.table.refused.clear();
        table.distrust();
        assert!(sync(&mut table, &[]).left_out.is_empty());
        let installed: Vec<u8> = table.table.installed.iter().map(|(key, ())| *key).collect();
        assert_eq!(installed, [2, 13]);
    }
}
