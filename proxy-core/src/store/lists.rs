//! Which complete lists have been received.

use std::collections::BTreeMap;

use crate::event::Kind;

/// The state of the lists of each kind of object.
///
/// Every object remembers the round in which it was last seen, so what a list did not mention is
/// found without remembering the list.
#[derive(Debug, Default)]
pub(super) struct Lists(BTreeMap<Kind, List>);

#[derive(Clone, Copy, Debug, Default)]
struct List {
    round: u32,
    is_open: bool,
    is_complete: bool,
}

impl Lists {
    /// A list begins, also in place of one that was not completed.
    pub(super) fn start(&mut self, kind: Kind) {
        let list = self.0.entry(kind).or_default();
        list.round = list.round.wrapping_add(1);
        list.is_open = true;
    }

    /// A list ends. Returns false if none had begun: then nothing can be said of what it lacks.
    pub(super) fn finish(&mut self, kind: Kind) -> bool {
        let list = self.0.entry(kind).or_default();
        let was_open = std::mem::take(&mut list.is_open);
        list.is_complete |= was_open;
        was_open
    }

    /// The present round of this kind.
    pub(super) fn round(&self, kind: Kind) -> u32 {
        self.0.get(&kind).map_or(0, |list| list.round)
    }

    /// Whether one list of this kind has been received from beginning to end.
    pub(super) fn is_complete(&self, kind: Kind) -> bool {
        self.0.get(&kind).is_some_and(|list| list.is_complete)
    }
}
