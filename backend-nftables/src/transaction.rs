//! From steps to netlink batches.

use std::collections::BTreeSet;

use node_sys::netlink::{Batch, Subsystem};
use proxy_core::rules::{Change, RuleDelta};

use crate::model::{ChainSpec, Key, Rule};
use crate::ranges::source_range;
use crate::uapi::msg;
use crate::wire::{Writer, set_of};

/// Elements that are written together. Deletion and addition of a replaced element have to be in
/// one batch, so this many of them have to fit what is left of one.
const RUN: usize = 128;
/// Room for a run, or for a chain with its rules.
const RESERVE: usize = 128 << 10;

/// Steps to take.
pub(crate) type Steps<'a> = Vec<&'a Change<Key, Rule>>;

/// A batch, and which steps its messages are for.
pub(crate) struct Transaction {
    pub(crate) batch: Batch,
    /// For each message the index of the first step it takes.
    origins: Vec<usize>,
}

impl Transaction {
    fn new() -> Self {
        Self { batch: Batch::new(Subsystem::NFTABLES, None), origins: Vec::new() }
    }

    /// The step that a message was for, by the message's number (from 1).
    pub(crate) fn origin(&self, message: u32) -> Option<usize> {
        self.origins.get(usize::try_from(message).ok()?.checked_sub(1)?).copied()
    }

    /// Notes that all messages since the last call are for this step.
    fn close(&mut self, step: usize) {
        let count = usize::try_from(self.batch.count()).unwrap_or(usize::MAX);
        self.origins.resize(count, step);
    }
}

/// Splits steps into batches of at most `limit` bytes and hands each to `commit`.
///
/// The order of steps is kept, so a Service whose steps fall into several batches has a path
/// after each of them. With `replace_table` the first batch begins by deleting the table.
pub(crate) fn write<E>(
    writer: &Writer<'_>,
    delta: &[&Change<Key, Rule>],
    limit: usize,
    replace_table: bool,
    mut commit: impl FnMut(&mut Transaction) -> Result<(), E>,
) -> Result<(), E> {
    let limit = limit.saturating_sub(RESERVE).max(RESERVE);
    let mut transaction = Transaction::new();
    if replace_table {
        writer.table(&mut transaction.batch);
        writer.delete_table(&mut transaction.batch);
        transaction.close(0);
    }
    let mut step = 0;
    while step < delta.len() {
        if transaction.batch.len() > limit {
            commit(&mut transaction)?;
            transaction = Transaction::new();
        }
        let run = run_of(&delta[step..]);
        if run.is_empty() {
            if let Some(change) = delta.get(step) {
                write_object(writer, change, &mut transaction.batch);
            }
            step += 1;
        } else {
            write_run(writer, run, &mut transaction.batch);
            step += run.len();
        }
        transaction.close(step.saturating_sub(run.len().max(1)));
    }
    if transaction.batch.is_empty() { Ok(()) } else { commit(&mut transaction) }
}

/// Removes chains and sets: first the rules, which refer to both, then sets, whose elements refer
/// to chains, then chains.
pub(crate) fn write_removals<E>(
    writer: &Writer<'_>,
    steps: &[&Change<Key, Rule>],
    limit: usize,
    mut commit: impl FnMut(&mut Transaction) -> Result<(), E>,
) -> Result<(), E> {
    let limit = limit.saturating_sub(RESERVE).max(RESERVE);
    let mut transaction = Transaction::new();
    let passes: [fn(&Writer<'_>, &Key, &mut Batch); 3] = [
        |writer, key, batch| {
            if let Key::Chain(name) = key {
                writer.flush_chain(&name.0, batch);
            }
        },
        |writer, key, batch| {
            if let Key::Set(name) = key {
                writer.delete_set(name, batch);
            }
        },
        |writer, key, batch| {
            if let Key::Chain(name) = key {
                writer.delete_chain(&name.0, batch);
            }
        },
    ];
    for pass in passes {
        for (index, step) in steps.iter().enumerate() {
            if transaction.batch.len() > limit {
                commit(&mut transaction)?;
                transaction = Transaction::new();
            }
            pass(writer, step.key(), &mut transaction.batch);
            transaction.close(index);
        }
    }
    if transaction.batch.is_empty() { Ok(()) } else { commit(&mut transaction) }
}

/// The steps at the start that are about elements of one set, all additions and replacements or
/// all removals (both, for source ranges); empty if the first is no such step.
fn run_of<'a, 'c>(delta: &'a [&'c Change<Key, Rule>]) -> &'a [&'c Change<Key, Rule>] {
    // Ranges may overlap those they replace, so these have to go right before.
    let kind = |change: &Change<Key, Rule>| {
        matches!(change, Change::Remove { .. }) && !matches!(change.key(), Key::SourceRange(_))
    };
    let Some((first, set)) = delta.first().and_then(|first| Some((first, set_of(first.key())?)))
    else {
        return &[];
    };
    let same = |change: &&&Change<Key, Rule>| {
        set_of(change.key()) == Some(set) && kind(change) == kind(first)
    };
    let len = delta.iter().take(RUN).take_while(same).count();
    delta.get(..len).unwrap_or_default()
}

fn write_run(writer: &Writer<'_>, run: &[&Change<Key, Rule>], batch: &mut Batch) {
    // A remembered client may time out at any moment, which would fail its deletion and the
    // batch: put it back first. Deletion that tolerates absence needs Linux 6.3.
    let brought_back = run.iter().filter_map(|change| match change {
        Change::Remove { key: key @ Key::StaleClient { .. }, rule } => Some((key, Some(rule))),
        _ => None,
    });
    writer.elements(msg::NEWSETELEM, brought_back, batch);
    let deleted = run.iter().filter_map(|change| match change {
        Change::Replace { key, .. } | Change::Remove { key, .. } => Some((key, None)),
        Change::Add { .. } => None,
    });
    writer.elements(msg::DELSETELEM, deleted, batch);
    let added = run.iter().filter_map(|change| match change {
        Change::Add { key, rule } | Change::Replace { key, new: rule, .. } => {
            Some((key, Some(rule)))
        }
        Change::Remove { .. } => None,
    });
    writer.elements(msg::NEWSETELEM, added, batch);
}

fn write_object(writer: &Writer<'_>, change: &Change<Key, Rule>, batch: &mut Batch) {
    match change {
        Change::Add { key, rule } => add_object(writer, key, rule, batch),
        Change::Replace { key, old, new } => match (key, old, new) {
            (Key::Chain(name), Rule::Chain(old), Rule::Chain(new)) => {
                writer.flush_chain(&name.0, batch);
                if old.base != new.base {
                    writer.delete_chain(&name.0, batch);
                    writer.chain(&name.0, new, batch);
                }
                add_rules(writer, &name.0, new, batch);
            }
            _ => add_object(writer, key, new, batch),
        },
        // Chains and sets are removed by `write_removals`.
        Change::Remove { .. } => drop_count(writer.delete_table(batch)),
    }
}

fn add_object(writer: &Writer<'_>, key: &Key, rule: &Rule, batch: &mut Batch) {
    match (key, rule) {
        (Key::Set(name), Rule::Set(spec)) => drop_count(writer.set(name, spec, batch)),
        (Key::Chain(name), Rule::Chain(spec)) => {
            writer.chain(&name.0, spec, batch);
            add_rules(writer, &name.0, spec, batch);
        }
        _ => drop_count(writer.table(batch)),
    }
}

fn add_rules(writer: &Writer<'_>, chain: &str, spec: &ChainSpec, batch: &mut Batch) {
    for rule in &spec.rules {
        writer.rule(chain, rule, batch);
    }
}

/// Message numbers are only of interest when one is refused, see [`Transaction::origin`].
fn drop_count(_number: u32) {}

/// Steps that may be taken at once, and those that have to wait until the kernel has let go of
/// what refers to their objects: up to Linux 6.2 a chain cannot be deleted in the batch that
/// deletes the map element that leads to it.
pub(crate) fn split(delta: &RuleDelta<Key, Rule>) -> (Steps<'_>, Steps<'_>) {
    delta.changes.iter().partition(|change| {
        !matches!(change, Change::Remove { key: Key::Chain(_) | Key::Set(_), .. })
    })
}

/// Moves removals of source ranges, and the `overlapped` ones, to the additions for the same
/// frontend: the kernel takes no range that overlaps another one, so the old ones have to go
/// first, and in the same batch.
pub(crate) fn join_ranges<'c>(
    steps: Vec<&'c Change<Key, Rule>>,
    overlapped: &'c [Change<Key, Rule>],
) -> Vec<&'c Change<Key, Rule>> {
    let is_range = |change: &&Change<Key, Rule>| source_range(change.key()).is_some();
    let is_addition = |change: &&Change<Key, Rule>| !matches!(change, Change::Remove { .. });
    let frontend = |change: &Change<Key, Rule>| Some(source_range(change.key())?.0);
    let added: BTreeSet<_> = steps.iter().filter(|c| is_addition(c)).map(|c| frontend(c)).collect();
    let Some(place) = steps.iter().position(|change| is_range(change) && is_addition(change))
    else {
        return steps;
    };
    let (mut ranges, mut steps): (Vec<_>, Vec<_>) =
        steps.into_iter().partition(|change| is_range(change) && added.contains(&frontend(change)));
    ranges.extend(overlapped);
    ranges.sort_by_key(|change| (frontend(change), is_addition(change)));
    steps.splice(place..place, ranges);
    steps
}

#[cfg(test)]
mod tests;
