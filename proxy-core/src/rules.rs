//! Sets of kernel objects and the difference between two of them.

use std::collections::BTreeMap;
use std::collections::btree_map;

/// Kernel objects by key.
///
/// The order of keys is the order of dependency: an object refers only to objects with smaller
/// keys. So additions in ascending and removals in descending order never leave an object that
/// points at nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSet<K, R> {
    rules: BTreeMap<K, R>,
}

impl<K, R> Default for RuleSet<K, R> {
    fn default() -> Self {
        Self { rules: BTreeMap::new() }
    }
}

impl<K: Ord, R> RuleSet<K, R> {
    /// A set without objects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an object, or replaces the one of the same key, which is returned.
    pub fn insert(&mut self, key: K, rule: R) -> Option<R> {
        self.rules.insert(key, rule)
    }

    /// Takes an object out.
    pub fn remove(&mut self, key: &K) -> Option<R> {
        self.rules.remove(key)
    }

    /// The object of this key.
    pub fn get(&self, key: &K) -> Option<&R> {
        self.rules.get(key)
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The objects in order of their keys.
    pub fn iter(&self) -> btree_map::Iter<'_, K, R> {
        self.rules.iter()
    }

    /// The objects whose keys lie in the range, in order.
    pub fn range(&self, range: impl std::ops::RangeBounds<K>) -> btree_map::Range<'_, K, R> {
        self.rules.range(range)
    }

    /// Keeps only the objects for which the predicate holds.
    pub fn retain(&mut self, keep: impl FnMut(&K, &mut R) -> bool) {
        self.rules.retain(keep);
    }
}

impl<'a, K, R> IntoIterator for &'a RuleSet<K, R> {
    type Item = (&'a K, &'a R);
    type IntoIter = btree_map::Iter<'a, K, R>;

    fn into_iter(self) -> Self::IntoIter {
        self.rules.iter()
    }
}

impl<K, R> IntoIterator for RuleSet<K, R> {
    type Item = (K, R);
    type IntoIter = btree_map::IntoIter<K, R>;

    fn into_iter(self) -> Self::IntoIter {
        self.rules.into_iter()
    }
}

impl<K: Ord, R> FromIterator<(K, R)> for RuleSet<K, R> {
    fn from_iter<I: IntoIterator<Item = (K, R)>>(rules: I) -> Self {
        Self { rules: rules.into_iter().collect() }
    }
}

impl<K: Ord, R> Extend<(K, R)> for RuleSet<K, R> {
    fn extend<I: IntoIterator<Item = (K, R)>>(&mut self, rules: I) {
        self.rules.extend(rules);
    }
}

/// One step from an installed set to a wanted one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<K, R> {
    /// An object that is not installed.
    Add {
        /// Its key.
        key: K,
        /// The object.
        rule: R,
    },
    /// An object that is installed with other contents.
    Replace {
        /// Its key.
        key: K,
        /// What is installed.
        old: R,
        /// What is wanted.
        new: R,
    },
    /// An installed object that is not wanted.
    Remove {
        /// Its key.
        key: K,
        /// What is installed.
        rule: R,
    },
}

impl<K, R> Change<K, R> {
    /// Key of the object that changes.
    pub fn key(&self) -> &K {
        match self {
            Self::Add { key, .. } | Self::Replace { key, .. } | Self::Remove { key, .. } => key,
        }
    }

    /// The key, what is installed, and what is wanted.
    pub(crate) fn into_parts(self) -> (K, Option<R>, Option<R>) {
        match self {
            Self::Add { key, rule } => (key, None, Some(rule)),
            Self::Replace { key, old, new } => (key, Some(old), Some(new)),
            Self::Remove { key, rule } => (key, Some(rule), None),
        }
    }
}

/// The steps from an installed set to a wanted one, in the order in which to take them:
/// additions and replacements in ascending order of keys, then removals in descending order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleDelta<K, R> {
    /// The steps.
    pub changes: Vec<Change<K, R>>,
}

impl<K, R> Default for RuleDelta<K, R> {
    fn default() -> Self {
        Self { changes: Vec::new() }
    }
}

impl<K: Ord + Clone, R: Clone> RuleDelta<K, R> {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// Number of objects that change.
    pub fn len(&self) -> usize {
        self.changes.len()
    }

    /// Takes the steps on a set.
    pub fn apply_to(&self, installed: &mut RuleSet<K, R>) {
        for change in &self.changes {
            match change {
                Change::Add { key, rule } | Change::Replace { key, new: rule, .. } => {
                    installed.insert(key.clone(), rule.clone());
                }
                Change::Remove { key, .. } => {
                    installed.remove(key);
                }
            }
        }
    }
}

/// The steps that lead from `installed` to `wanted`; minimal, and empty if they are equal.
pub fn reconcile<K, R>(wanted: &RuleSet<K, R>, installed: &RuleSet<K, R>) -> RuleDelta<K, R>
where
    K: Ord + Clone,
    R: Eq + Clone,
{
    reconcile_sorted(wanted.iter(), installed.iter())
}

/// Like [`reconcile`], for objects in order of their keys.
pub(crate) fn reconcile_sorted<'a, K, R>(
    wanted: impl Iterator<Item = (&'a K, &'a R)>,
    installed: impl Iterator<Item = (&'a K, &'a R)>,
) -> RuleDelta<K, R>
where
    K: Ord + Clone + 'a,
    R: Eq + Clone + 'a,
{
    let mut changes = Vec::new();
    let mut removals = Vec::new();
    let mut wanted = wanted.peekable();
    let mut installed = installed.peekable();
    loop {
        let order = match (wanted.peek(), installed.peek()) {
            (Some((key, _)), Some((other, _))) => key.cmp(other),
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (None, None) => break,
        };
        let new = order.is_le().then(|| wanted.next()).flatten();
        let old = order.is_ge().then(|| installed.next()).flatten();
        match (new, old) {
            (Some((key, rule)), None) => {
                changes.push(Change::Add { key: key.clone(), rule: rule.clone() });
            }
            (None, Some((key, rule))) => {
                removals.push(Change::Remove { key: key.clone(), rule: rule.clone() });
            }
            (Some((key, new)), Some((_, old))) if new != old => {
                changes.push(Change::Replace {
                    key: key.clone(),
                    old: old.clone(),
                    new: new.clone(),
                });
            }
            _ => {}
        }
    }
    changes.extend(removals.into_iter().rev());
    RuleDelta { changes }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sets() -> impl Strategy<Value = (RuleSet<u8, u8>, RuleSet<u8, u8>)> {
        let set = || {
            proptest::collection::btree_map(0..40_u8, 0..3_u8, 0..40)
                .prop_map(|rules| rules.into_iter().collect::<RuleSet<_, _>>())
        };
        (set(), set())
    }

    proptest! {
        #[test]
        fn applied_to_installed_gives_wanted((wanted, installed) in sets()) {
            let delta = reconcile(&wanted, &installed);
            let mut result = installed;
            delta.apply_to(&mut result);
            prop_assert_eq!(&result, &wanted);
            prop_assert!(reconcile(&wanted, &result).is_empty());
        }

        #[test]
        fn is_minimal((wanted, installed) in sets()) {
            let differing = (0..40_u8)
                .filter(|key| wanted.get(key) != installed.get(key))
                .count();
            prop_assert_eq!(reconcile(&wanted, &installed).len(), differing);
        }

        #[test]
        fn adds_upwards_and_then_removes_downwards((wanted, installed) in sets()) {
            let delta = reconcile(&wanted, &installed);
            let removals = delta
                .changes
                .iter()
                .position(|change| matches!(change, Change::Remove { .. }))
                .unwrap_or(delta.len());
            let (upserts, removals) = delta.changes.split_at(removals);
            prop_assert!(upserts.is_sorted_by_key(|change| *change.key()));
            prop_assert!(removals.iter().rev().is_sorted_by_key(|change| *change.key()));
            let only_removals =
                removals.iter().all(|change| matches!(change, Change::Remove { .. }));
            prop_assert!(only_removals);
        }
    }
}
