//! A line that tells how far it is, on a terminal.

use std::io::{self, IsTerminal as _, Write as _};

const WIDTH: usize = 24;

/// The line; it goes when this is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    shown: bool,
    steps: usize,
    done: usize,
}

impl Progress {
    /// A line for this many steps; nothing is shown where nobody watches.
    pub(super) fn new(steps: usize) -> Self {
        Self { shown: io::stderr().is_terminal(), steps: steps.max(1), done: 0 }
    }

    /// Shows what comes next.
    pub(super) fn begin(&mut self, what: &str) {
        if self.shown {
            // A terminal that is gone need not be told.
            let _gone = write!(io::stderr(), "\r\x1b[K{} {what}", bar(self.done, self.steps));
        }
        self.done += 1;
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            let _gone = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

fn bar(done: usize, steps: usize) -> String {
    let filled = (done * WIDTH / steps).min(WIDTH);
    let percent = (done * 100 / steps).min(100);
    format!("[{}{}] {percent:3} %", "#".repeat(filled), ".".repeat(WIDTH - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills() {
        assert_eq!(bar(0, 8), "[........................]   0 %");
        assert_eq!(bar(4, 8), "[############............]  50 %");
        assert_eq!(bar(9, 8), "[########################] 100 %");
    }
}
