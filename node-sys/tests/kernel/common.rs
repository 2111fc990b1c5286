//! Shared by the tests that need a kernel.

use std::io::Write as _;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use node_sys::namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Runs a test in a network namespace of its own.
///
/// Without the privilege it is reported as skipped, except under CI, where it fails.
pub(crate) fn in_namespace(test: impl FnOnce() + Send) {
    match namespace::in_new_network_namespace(test) {
        Err(error) if error.is_permission() && !is_ci() => {
            writeln!(std::io::stdout(), "skipped: needs CAP_NET_ADMIN").expect("write to stdout");
        }
        result => result.expect("a new network namespace"),
    }
}

fn is_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true")
}

/// Waits until a descriptor is readable; returns whether it became so in time.
pub(crate) fn wait_readable(fd: impl AsFd, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = Timespec::try_from(left).expect("a short time");
    poll(&mut fds, Some(&timeout)).expect("poll") > 0
}
