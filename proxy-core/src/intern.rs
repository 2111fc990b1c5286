//! One copy of each string, for as long as somebody holds it.
//!
//! Names repeat: the namespace of ten thousand Services, the port name of all their slices. The
//! interner forgets strings that only it still holds, so that memory follows the objects that
//! exist and not the objects that ever existed.

use std::collections::HashSet;
use std::sync::Arc;

/// Below this many strings nothing is swept.
const SMALLEST_SWEEP: usize = 1024;

/// Hands out shared strings.
#[derive(Debug)]
pub(crate) struct Interner {
    strings: HashSet<Arc<str>>,
    sweep_at: usize,
}

impl Interner {
    /// An interner without strings.
    pub(crate) fn new() -> Self {
        Self { strings: HashSet::new(), sweep_at: SMALLEST_SWEEP }
    }

    /// The shared copy of this text.
    pub(crate) fn intern(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.strings.get(text) {
            return Arc::clone(known);
        }
        if self.strings.len() >= self.sweep_at {
            self.sweep();
        }
        let shared: Arc<str> = text.into();
        self.strings.insert(Arc::clone(&shared));
        shared
    }

    /// Drops what nobody else holds. The next sweep comes when the rest has doubled, so the cost
    /// per string stays constant and the waste below one half.
    fn sweep(&mut self) {
        self.strings.retain(|text| Arc::strong_count(text) > 1);
        self.sweep_at = (self.strings.len() * 2).max(SMALLEST_SWEEP);
        self.strings.shrink_to(self.sweep_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_shared() {
        let mut names = Interner::new();
        let first = names.intern("default");
        assert!(Arc::ptr_eq(&first, &names.intern("default")));
        assert!(!Arc::ptr_eq(&first, &names.intern("other")));
    }

    #[test]
    fn known_failure_58_dead_strings_are_released() {
        let mut names = Interner::new();
        let kept = names.intern("kept");
        for number in 0..100_000 {
            names.intern(&number.to_string());
        }
        assert!(names.strings.len() <= SMALLEST_SWEEP);
        assert!(Arc::ptr_eq(&kept, &names.intern("kept")));
    }
}
