//! The table against real kernels' tables, in namespaces of their own.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers fail by panicking, and tell of skipped tests"
)]

mod drift;
mod foreign;
mod lock;
mod state;
mod support;
