//! The input of `iptables-restore` that takes the steps of a delta.
//!
//! A table is replaced as one, but not two tables: so refusals are installed before translations
//! go, and go after translations came. A chain's line makes it, or empties it; in the same
//! transaction its rules follow, so no packet meets it empty.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use proxy_core::rules::{Change, RuleDelta, RuleSet};

use crate::layout;
use crate::model::{Key, Rule, Table, Text};

type Delta = RuleDelta<Key, Rule>;

/// The script that makes everything where there is nothing.
pub fn render(rules: &RuleSet<Key, Rule>) -> String {
    let add = |(key, rule): (&Key, &Rule)| Change::Add { key: key.clone(), rule: rule.clone() };
    script(&RuleDelta { changes: rules.iter().map(add).collect() })
}

/// The script that takes these steps.
pub(crate) fn script(delta: &Delta) -> String {
    let filter = |change: &&Change<Key, Rule>| change.key().table() == Table::Filter;
    let removes = |change: &&Change<Key, Rule>| matches!(change, Change::Remove { .. });
    let changes = || delta.changes.iter();
    let mut text = String::new();
    let has_nat = changes().any(|change| !filter(&change));
    if has_nat {
        section(Table::Filter, changes().filter(|it| filter(it) && !removes(it)), &mut text);
        section(Table::Nat, changes().filter(|it| !filter(it)), &mut text);
        section(Table::Filter, changes().filter(|it| filter(it) && removes(it)), &mut text);
    } else {
        section(Table::Filter, changes(), &mut text);
    }
    text
}

#[derive(Default)]
struct Section<'a> {
    /// Chains that are made or emptied.
    chains: BTreeSet<&'a Text>,
    lines: String,
    /// Chains that go once nothing leads to them.
    gone: Vec<&'a Text>,
    gone_set: BTreeSet<&'a Text>,
}

fn section<'a>(
    table: Table,
    changes: impl Iterator<Item = &'a Change<Key, Rule>>,
    out: &mut String,
) {
    let mut section = Section::default();
    let mut changes = changes.peekable();
    if changes.peek().is_none() {
        return;
    }
    let mut entries = Vec::new();
    for change in changes {
        match (change.key(), change) {
            (Key::Chain(_, _, name), Change::Remove { .. }) => {
                section.chains.insert(name);
                section.gone.push(name);
                section.gone_set.insert(name);
            }
            (
                Key::Chain(_, _, name),
                Change::Add { rule, .. } | Change::Replace { new: rule, .. },
            ) => section.fill(name, rule),
            // After the chains that go are known.
            (Key::Entry { .. } | Key::Jumps(..), _) => entries.push(change),
        }
    }
    for change in entries {
        section.entry(change);
    }
    section.write(table, out);
}

impl<'a> Section<'a> {
    fn line(&mut self, command: &str, chain: &str, rule: &str) {
        // Writing to a string does not fail.
        let _infallible = writeln!(self.lines, "{command} {chain} {rule}");
    }

    fn fill(&mut self, name: &'a Text, rule: &Rule) {
        self.chains.insert(name);
        if let Rule::Chain(rules) = rule {
            for rule in rules.iter() {
                self.line("-A", name, rule);
            }
        }
    }

    fn entry(&mut self, change: &Change<Key, Rule>) {
        match (change.key(), change) {
            (Key::Entry { chain, rule, .. }, Change::Remove { .. }) => {
                // A chain that goes was emptied.
                if !self.gone_set.contains(chain) {
                    self.line("-D", chain, rule);
                }
            }
            (Key::Entry { chain, rule, .. }, _) if layout::goes_first(chain, rule) => {
                self.line("-I", chain, rule);
            }
            (Key::Entry { chain, rule, .. }, _) => self.line("-A", chain, rule),
            (Key::Jumps(_, chain), Change::Add { rule, .. }) => self.jumps(chain, None, Some(rule)),
            (Key::Jumps(_, chain), Change::Remove { rule, .. }) => {
                self.jumps(chain, Some(rule), None);
            }
            (Key::Jumps(_, chain), Change::Replace { old, new, .. }) => {
                self.jumps(chain, Some(old), Some(new));
            }
            (Key::Chain(..), _) => {}
        }
    }

    /// Each is put before the others, so they come in reverse.
    fn jumps(&mut self, chain: &Text, old: Option<&Rule>, new: Option<&Rule>) {
        let texts = |rule: Option<&Rule>| match rule {
            Some(Rule::Jumps(texts)) => texts.to_vec(),
            _ => Vec::new(),
        };
        for rule in texts(old) {
            self.line("-D", chain, &rule);
        }
        for rule in texts(new).iter().rev() {
            self.line("-I", chain, rule);
        }
    }

    fn write(self, table: Table, out: &mut String) {
        out.push('*');
        out.push_str(table.as_str());
        out.push('\n');
        for chain in &self.chains {
            let _infallible = writeln!(out, ":{chain} - [0:0]");
        }
        out.push_str(&self.lines);
        for chain in &self.gone {
            let _infallible = writeln!(out, "-X {chain}");
        }
        out.push_str("COMMIT\n");
    }
}
