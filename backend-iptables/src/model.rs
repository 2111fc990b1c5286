//! What is in the kernel: chains, and rules in them.

use std::sync::Arc;

use proxy_core::rules::RuleSet;

use crate::layout;

/// A rule as `iptables-save` prints it, without `-A` and the chain, or the name of a chain.
pub(crate) type Text = Arc<str>;

/// The tables of iptables that have rules of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Table {
    /// Refusals, the firewall of load balancers, what may be forwarded.
    Filter,
    /// Translation.
    Nat,
}

impl Table {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Filter, Self::Nat];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// Identifies an object of ours.
///
/// The order is that of dependency: chains by their rank, as each jumps only to those of smaller
/// rank; then rules in chains that several Services share; then what leads to our chains.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// A chain.
    Chain(u8, Table, Arc<str>),
    /// A rule in a chain that several owners share, identified by its text.
    Entry {
        /// Its table.
        table: Table,
        /// Its chain.
        chain: Arc<str>,
        /// The rule.
        rule: Arc<str>,
    },
    /// The rules in one of the kernel's own chains that jump to ours.
    Jumps(Table, Arc<str>),
}

impl Key {
    pub(crate) fn chain(table: Table, name: &Text) -> Self {
        Self::Chain(layout::rank(name), table, Arc::clone(name))
    }

    pub(crate) fn entry(table: Table, chain: &Text, rule: &Text) -> Self {
        Self::Entry { table, chain: Arc::clone(chain), rule: Arc::clone(rule) }
    }

    /// The table that the object is in.
    pub fn table(&self) -> Table {
        match self {
            Self::Chain(_, table, _) | Self::Entry { table, .. } | Self::Jumps(table, _) => *table,
        }
    }
}

/// Contents of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All rules of a chain, in order.
    Chain(Arc<[Arc<str>]>),
    /// A chain whose rules are entries.
    Shared,
    /// The rule that the key is.
    Entry,
    /// Rules that jump to our chains, in order.
    Jumps(Arc<[Arc<str>]>),
}

pub(crate) type Rules = RuleSet<Key, Rule>;
