//! Source ranges that are installed.
//!
//! The kernel takes no range that overlaps another one, although only one of them is wanted. A
//! comparison of everything removes what is not wanted last; so the table has to know which
//! installed ranges are in the way of new ones.

use std::collections::{BTreeMap, BTreeSet};

use proxy_core::address::Cidr;
use proxy_core::resolved::FrontendKey;
use proxy_core::rules::{Change, RuleDelta};

use crate::model::{Key, Rule};

/// The source range an object is, if it is one.
pub(crate) fn source_range(key: &Key) -> Option<(FrontendKey, Cidr)> {
    match key {
        Key::SourceRange(range) => Some(**range),
        _ => None,
    }
}

/// Source ranges that are installed.
#[derive(Debug, Default)]
pub(crate) struct InstalledRanges {
    installed: BTreeMap<FrontendKey, BTreeSet<Cidr>>,
    /// Ranges that were removed before the step that is to remove them.
    early: BTreeSet<(FrontendKey, Cidr)>,
}

impl FromIterator<(FrontendKey, Cidr)> for InstalledRanges {
    fn from_iter<I: IntoIterator<Item = (FrontendKey, Cidr)>>(ranges: I) -> Self {
        let mut result = Self::default();
        for (frontend, range) in ranges {
            result.installed.entry(frontend).or_default().insert(range);
        }
        result
    }
}

impl InstalledRanges {
    /// Removals that the delta lacks: of installed ranges that overlap added ones.
    pub(crate) fn overlapped(&self, delta: &RuleDelta<Key, Rule>) -> Vec<Change<Key, Rule>> {
        let mut overlapped = BTreeSet::new();
        for change in &delta.changes {
            if let (Some((frontend, range)), Change::Add { .. }) =
                (source_range(change.key()), change)
            {
                let installed = self.installed.get(&frontend).into_iter().flatten();
                let others = installed.filter(|other| other.covers(&range) || range.covers(other));
                overlapped.extend(others.map(|other| (frontend, *other)));
            }
        }
        if !overlapped.is_empty() {
            let named = delta.changes.iter().filter_map(|change| source_range(change.key()));
            for range in named {
                overlapped.remove(&range);
            }
        }
        let removal =
            |range| Change::Remove { key: Key::SourceRange(Box::new(range)), rule: Rule::Member };
        overlapped.into_iter().map(removal).collect()
    }

    /// Whether the step removes a range that was removed before.
    pub(crate) fn is_removed(&self, change: &Change<Key, Rule>) -> bool {
        matches!(change, Change::Remove { .. })
            && source_range(change.key()).is_some_and(|range| self.early.contains(&range))
    }

    /// Takes note of steps that were taken, and of those that came before their time.
    pub(crate) fn note(&mut self, delta: &RuleDelta<Key, Rule>, overlapped: &[Change<Key, Rule>]) {
        for change in &delta.changes {
            let Some((frontend, range)) = source_range(change.key()) else { continue };
            self.early.remove(&(frontend, range));
            match change {
                Change::Remove { .. } => self.remove(frontend, range),
                _ => drop(self.installed.entry(frontend).or_default().insert(range)),
            }
        }
        for (frontend, range) in overlapped.iter().filter_map(|change| source_range(change.key())) {
            self.early.insert((frontend, range));
            self.remove(frontend, range);
        }
    }

    fn remove(&mut self, frontend: FrontendKey, range: Cidr) {
        if let Some(ranges) = self.installed.get_mut(&frontend) {
            ranges.remove(&range);
            if ranges.is_empty() {
                self.installed.remove(&frontend);
            }
        }
    }
}
