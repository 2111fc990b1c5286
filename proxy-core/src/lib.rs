//! What Kubernetes Services mean to a node.
//!
//! Objects go in, facts come out, and kernel state is read back only to compare:
//!
//! ```text
//! source -> store (trimmed objects) -> resolve (frontends, routes, pools) -> claims (one owner)
//!        -> a backend's compile -> reconcile(wanted, installed) -> a backend's commit
//! ```
//!
//! Nothing here does I/O, reads a clock or starts a thread, except the `driver` feature, which is
//! the loop around it all.

pub mod address;
pub mod api;
mod claims;
pub mod conntrack;
pub mod diagnostic;
#[cfg(feature = "driver")]
pub mod driver;
mod endpoints;
pub mod event;
pub mod health;
mod intern;
pub mod names;
pub mod node;
pub mod numbering;
pub mod options;
mod resolve;
pub mod resolved;
pub mod rules;
pub mod scheduler;
pub mod store;
pub mod sync;
pub mod table;
pub mod topology;
