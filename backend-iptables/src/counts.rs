//! How many rules there are, for metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use proxy_core::rules::{Change, RuleDelta};

use crate::model::{Key, Rule, Rules, Table};

/// Rules of ours in one table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableCounts {
    /// How many are installed.
    pub installed: usize,
    /// How many were written since the last time that was asked.
    pub written: usize,
}

/// Counts what an [`IptablesTable`](crate::IptablesTable) reads and writes. Clones are the same
/// counts.
#[derive(Clone, Debug, Default)]
pub struct RuleCounts {
    tables: Arc<Mutex<[TableCounts; 2]>>,
}

impl RuleCounts {
    /// The counts of each table; what is written from now on counts anew.
    pub fn take(&self) -> [(Table, TableCounts); 2] {
        let mut tables = self.lock();
        let [filter, nat] = *tables;
        for counts in tables.iter_mut() {
            counts.written = 0;
        }
        [(Table::Filter, filter), (Table::Nat, nat)]
    }

    pub(crate) fn observed(&self, rules: &Rules) {
        let mut tables = self.lock();
        for counts in tables.iter_mut() {
            counts.installed = 0;
        }
        for (key, rule) in rules {
            of(&mut tables, key).installed += number(rule);
        }
    }

    pub(crate) fn written(&self, delta: &RuleDelta<Key, Rule>) {
        let mut tables = self.lock();
        for change in &delta.changes {
            let (old, new) = match change {
                Change::Add { rule, .. } => (0, number(rule)),
                Change::Replace { old, new, .. } => (number(old), number(new)),
                Change::Remove { rule, .. } => (number(rule), 0),
            };
            let counts = of(&mut tables, change.key());
            counts.written += new;
            counts.installed = (counts.installed + new).saturating_sub(old);
        }
    }

    fn lock(&self) -> MutexGuard<'_, [TableCounts; 2]> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn of<'a>(tables: &'a mut [TableCounts; 2], key: &Key) -> &'a mut TableCounts {
    let [filter, nat] = tables;
    match key.table() {
        Table::Filter => filter,
        Table::Nat => nat,
    }
}

fn number(rule: &Rule) -> usize {
    match rule {
        Rule::Chain(rules) | Rule::Jumps(rules) => rules.len(),
        Rule::Shared => 0,
        Rule::Entry => 1,
    }
}
