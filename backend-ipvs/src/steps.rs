//! A delta, sorted by the means with which it is taken.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use proxy_core::rules::{Change, RuleDelta};

use crate::drain::Real;
use crate::model::{Entry, Key, RealSpec, Rule, ServerKey, ServerSpec, SetName};

/// Rules as iptables-save shows them.
type Lines = Arc<[String]>;

/// Something to make or to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Upsert<T> {
    New(T),
    Set(T),
}

/// The steps of a delta.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    pub(crate) create_sets: Vec<SetName>,
    /// The rules there are, and those there shall be.
    pub(crate) rules: Option<(Lines, Lines)>,
    pub(crate) add_entries: BTreeMap<SetName, Vec<Entry>>,
    pub(crate) servers: Vec<(ServerKey, Upsert<ServerSpec>)>,
    pub(crate) reals: Vec<(ServerKey, Real, Upsert<RealSpec>)>,
    pub(crate) add_live: Vec<Entry>,
    pub(crate) bind: Vec<IpAddr>,
    pub(crate) unbind: Vec<IpAddr>,
    pub(crate) remove_live: Vec<Entry>,
    pub(crate) remove_reals: Vec<(ServerKey, Real)>,
    pub(crate) remove_servers: Vec<ServerKey>,
    pub(crate) remove_entries: BTreeMap<SetName, Vec<Entry>>,
    pub(crate) remove_rules: Option<Lines>,
    pub(crate) destroy_sets: Vec<SetName>,
}

impl Steps {
    pub(crate) fn of(delta: &RuleDelta<Key, Rule>) -> Self {
        let mut steps = Self::default();
        for change in &delta.changes {
            match change {
                Change::Add { key, rule } => steps.upsert(key, None, rule),
                Change::Replace { key, old, new } => steps.upsert(key, Some(old), new),
                Change::Remove { key, rule } => steps.remove(key, rule),
            }
        }
        steps
    }

    fn upsert(&mut self, key: &Key, old: Option<&Rule>, new: &Rule) {
        fn upsert<T>(old: Option<&Rule>, new: T) -> Upsert<T> {
            if old.is_some() { Upsert::Set(new) } else { Upsert::New(new) }
        }
        match (key, new) {
            (Key::Set(set), _) => self.create_sets.push(*set),
            (Key::Rules, Rule::Rules(lines)) => {
                let old = match old {
                    Some(Rule::Rules(old)) => Arc::clone(old),
                    _ => Arc::default(),
                };
                self.rules = Some((old, Arc::clone(lines)));
            }
            (Key::Entry(set, entry), _) => self.add_entries.entry(*set).or_default().push(*entry),
            (Key::Server(server), Rule::Server(spec)) => {
                self.servers.push((*server, upsert(old, spec.clone())));
            }
            (Key::Real(server, address, port), Rule::Real(spec)) => {
                self.reals.push((*server, (*address, *port), upsert(old, *spec)));
            }
            (Key::Live(server), _) => self.add_live.push(Entry::IpPort(*server)),
            (Key::Bound(address), _) => self.bind.push(*address),
            // No compiler makes these.
            (Key::Rules | Key::Server(_) | Key::Real(..), _) => {}
        }
    }

    fn remove(&mut self, key: &Key, rule: &Rule) {
        match key {
            // A set of this name that is not ours stays.
            Key::Set(set) if *rule == Rule::Present => self.destroy_sets.push(*set),
            Key::Set(_) => {}
            Key::Rules => {
                if let Rule::Rules(lines) = rule {
                    self.remove_rules = Some(Arc::clone(lines));
                }
            }
            Key::Entry(set, entry) => {
                self.remove_entries.entry(*set).or_default().push(*entry);
            }
            Key::Server(server) => self.remove_servers.push(*server),
            Key::Real(server, address, port) => {
                self.remove_reals.push((*server, (*address, *port)));
            }
            Key::Live(server) => self.remove_live.push(Entry::IpPort(*server)),
            Key::Bound(address) => self.unbind.push(*address),
        }
    }
}
