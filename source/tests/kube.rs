//! The source against a pretended API server, with every fault that one can have.
#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests fail and tell")]

#[path = "kube/cluster.rs"]
mod cluster;
#[path = "kube/events.rs"]
mod events;
#[path = "kube/faults.rs"]
mod faults;
#[path = "kube/scale.rs"]
mod scale;
#[path = "kube/stream.rs"]
mod stream;
