//! Brings one table into step with what is wanted, and keeps it there.
//!
//! The ordinary sync compares only what changed. After a start, an error or somebody else's
//! change, what is installed is read back and everything is compared; so a new process, a crash
//! and a repair are the same path, and none of them flushes anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;

use crate::address::IpFamily;
use crate::names::ServiceName;
use crate::node::NodeFacts;
use crate::numbering::{numbers, renumber};
use crate::resolved::{Pool, PoolKind, ResolvedPort, ResolvedService};
use crate::rules::{RuleDelta, RuleSet, reconcile};
use crate::table::{DriftSignal, ServiceTable, TableError, TableErrorKind};

/// A full comparison commits about this many objects at a time, so that the first Services work
/// before the last ones are written.
const GROUP_OBJECTS: usize = 4096;

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
        if !delta.is_empty() {
            self.table.commit(&delta).await?;
        }
        for (owner, compiled) in compiled {
            match compiled {
                Some(compiled) => self.ledger.insert(owner, compiled),
                None => drop(self.ledger.remove(&owner)),
            }
        }
        Ok(delta.len())
    }

    /// The steps from what the owners have committed to what they need now.
    fn delta_to(&self, owners: &[(Owner, Option<Compiled<T>>)]) -> Delta<T> {
        let mut wanted = RuleSet::new();
        let mut installed = RuleSet::new();
        // Old and new uses by these owners of each shared object.
        let mut uses: BTreeMap<&T::Key, (usize, usize)> = BTreeMap::new();
        for (owner, new) in owners {
            let old = self.ledger.owners.get(owner);
            for (key, rule) in old.iter().flat_map(|old| old.rules.iter()) {
                installed.insert(key.clone(), rule.clone());
                if T::is_shared(key) {
                    uses.entry(key).or_default().0 += 1;
                }
            }
            for (key, rule) in new.iter().flat_map(|new| new.rules.iter()) {
                wanted.insert(key.clone(), rule.clone());
                if T::is_shared(key) {
                    uses.entry(key).or_default().1 += 1;
                }
            }
        }
        for (key, (old, new)) in uses {
            let Some(before) = self.ledger.uses.get(key) else { continue };
            let others = before.saturating_sub(old);
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
            left_out: BTreeMap::new(),
            kept: BTreeSet::new(),
            has_unknown: false,
            changed: 0,
        };
        let group_objects = if self.table.replaces_all() { usize::MAX } else { GROUP_OBJECTS };
        let mut group = Vec::new();
        let mut objects = 0;
        for owner in self.owners() {
            if let Some(compiled) = self.compile(&owner, &Numbers::Observed(&full.installed)) {
                objects += compiled.rules.len();
                group.push((owner, compiled));
            }
            if objects >= group_objects {
                objects = 0;
                self.commit_group(&mut full, std::mem::take(&mut group)).await?;
            }
        }
        self.commit_group(&mut full, group).await?;
        let leftovers = full.leftovers();
        if !leftovers.is_empty() {
            self.table.commit(&leftovers).await?;
        }
        self.ledger = full.ledger;
        self.left_out = full.left_out;
        Ok(full.changed + leftovers.len())
    }

    /// Whether an error of a full comparison is about an object of the delta. One that was just
    /// compared and is out of sync again and again is not a race with somebody else.
    fn blames_object(&self, error: &TableError) -> bool {
        match error.kind() {
            TableErrorKind::Rejected => true,
            TableErrorKind::OutOfSync => self.out_of_sync > 1,
            _ => false,
        }
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
            let delta = full.delta_to(&group);
            let result = if delta.is_empty() { Ok(()) } else { self.table.commit(&delta).await };
            match result {
                Ok(()) => full.accept(group, delta.len()),
                Err(error) if !self.blames_object(&error) => return Err(error),
                Err(_) if group.len() > 1 => {
                    let second = group.split_off(group.len() / 2);
                    groups.push(second);
                    groups.push(group);
                }
                Err(error) => self.leave_out(full, group, error)?,
            }
        }
        Ok(())
    }

    /// Leaves out a culprit that stands alone. Without the node's own objects nothing works, so
    /// these cannot be left out.
    fn leave_out(
        &self,
        full: &mut FullSync<T>,
        culprit: Vec<(Owner, Compiled<T>)>,
        error: TableError,
    ) -> Result<(), TableError> {
        for (owner, compiled) in culprit {
            let Owner::Service(name) = &owner else { return Err(error) };
            full.left_out.insert(name.clone(), error.chain());
            full.leave_out(self.ledger.owners.get(&owner), owner, &compiled);
        }
        Ok(())
    }
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
    left_out: BTreeMap<ServiceName, String>,
    /// What stays although nobody wants it: it makes up the last good state of the left out.
    kept: BTreeSet<T::Key>,
    /// Whether it is not known what makes up that state, as an earlier process installed it.
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

    /// Keeps what is installed of a Service that cannot be brought up to date.
    fn leave_out(&mut self, old: Option<&Compiled<T>>, owner: Owner, new: &Compiled<T>) {
        let is_intact = |(key, rule): &(T::Key, T::Rule)| {
            self.installed.get(key) == Some(rule) || self.ledger.is_used(key)
        };
        match old {
            Some(old) if old.rules.iter().all(is_intact) => {
                self.kept.extend(old.rules.iter().map(|(key, _)| key.clone()));
                self.ledger.insert(owner, Arc::clone(old));
            }
            _ => {
                let rules = old.iter().flat_map(|old| old.rules.iter()).chain(new.rules.iter());
                let mut own = rules.filter(|(key, _)| !T::is_shared(key));
                self.has_unknown |= own.any(|(key, _)| self.installed.get(key).is_some());
            }
        }
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
        self.installed.retain(|key, _| !self.kept.contains(key));
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

    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        self.table.drift_signal()
    }
}
