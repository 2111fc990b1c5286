//! What the proxy knows of its node.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::address::{Cidr, IpFamily};

/// How to tell the traffic of local pods (S8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LocalDetector {
    /// The source address lies in the range.
    Source(Cidr),
    /// The packet came in by this interface.
    Interface(String),
    /// The packet came in by an interface whose name starts like this.
    InterfacePrefix(String),
}

/// On which addresses of the node its node ports answer (S9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// On every address that is local to the node, loopback excepted.
    All,
    /// On these.
    Only(BTreeSet<IpAddr>),
}

/// The facts about the node that rules of one family depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeFacts {
    /// The family these facts are about.
    pub family: IpFamily,
    /// Where node ports answer.
    pub node_port_addresses: NodePortAddresses,
    /// The addresses of the node's interfaces, without loopback ones. A link that itself
    /// carries service addresses is not counted among them.
    pub addresses: BTreeSet<IpAddr>,
    /// Ranges that cluster IPs are taken from, no range covering another one; empty if unknown.
    pub service_ranges: Vec<Cidr>,
}
