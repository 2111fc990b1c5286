//! Kubernetes Services as IPVS virtual servers.
//!
//! Virtual and real servers, addresses and sets are programmed by netlink, without a process; what
//! IPVS itself does not do (masquerading, source ranges, refusals) is done by a fixed set of
//! iptables rules that look into the sets. They are the same however many Services there are.
//!
//! | object | how many |
//! | --- | --- |
//! | virtual server, and its entries in sets | one for each frontend; of a node port, one for each address it answers on |
//! | real server | endpoints of the frontend |
//! | address on `kube-ipvs0` | one for each cluster, external and load-balancer IP |
//! | iptables rule | about 25 |
//!
//! `ipvsadm -Ln`, `ipset list` and `iptables-save` show everything.

mod compile;
mod detect;
mod drain;
mod error;
mod ipset;
mod ipvs;
mod model;
mod rules;
mod settings;
mod steps;
mod table;
mod text;
mod tool;

pub use compile::{TableConfig, compile};
pub use detect::detect;
pub use ipvs::Timeouts;
pub use model::{Entry, Key, RealSpec, Rule, ServerKey, ServerSpec, SetName};
pub use settings::{Settings, apply};
pub use table::{DEVICE, IpvsConfig, IpvsTable, check_kernel};
pub use text::render_text;
pub use tool::find_tool;
