//! Kubernetes Services as iptables rules, for both variants of iptables.
//!
//! Chains and rules are kube-proxy's, so that operators and tools find what they know, and rules
//! that kube-proxy left are taken over by comparison. Different is how a packet finds its Service:
//! by a tree ([`layout`]) in which the number of rules it meets hardly grows with the number of
//! Services.
//!
//! [`IptablesTable`] is the table of one IP family. [`Tool`] runs the programs; it suits any chains,
//! and with [`Tool::restore`] never touches those that its input does not name.

mod compile;
mod counts;
mod drift;
pub mod layout;
mod model;
mod saved;
mod script;
mod table;
mod text;
mod tool;

pub use compile::{TableConfig, compile};
pub use counts::{RuleCounts, TableCounts};
pub use model::{Key, Rule, Table};
pub use script::render;
pub use table::IptablesTable;
pub use tool::{Tool, ToolError, Variant};
