//! Waiting on a condition with a deadline; tests never sleep for a guessed time.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use nix::poll::{PollTimeout, poll};

/// How long to pause between two looks at a condition.
const STEP: Duration = Duration::from_millis(5);

/// Calls `condition` until it holds; an error naming `what` once `limit` has passed.
pub fn wait_until(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) -> Result<()> {
    let start = Instant::now();
    loop {
        if condition() {
            return Ok(());
        }
        if start.elapsed() >= limit {
            bail!("waited {limit:?} in vain: {what}");
        }
        pause(STEP);
    }
}

/// Lets `time` pass between two tries of something that is repeated until a deadline.
pub fn pause(time: Duration) {
    let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    // A poll without descriptors only ends by time-out, or early by a signal, which does no harm.
    let _ = poll(&mut [], timeout);
}
