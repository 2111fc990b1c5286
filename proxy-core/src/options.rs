//! What an operator chose.

use std::net::IpAddr;
use std::sync::Arc;

use crate::address::Cidr;

/// `detectLocalMode` and its companions (S8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DetectLocal {
    /// Pods are known by the cluster's pod ranges; at most one range a family counts.
    ClusterCidr(Vec<Cidr>),
    /// Pods are known by the ranges in the Node object's `spec.podCIDRs`.
    NodeCidr,
    /// Pods are behind this bridge.
    Bridge(String),
    /// Pods are behind interfaces whose names start like this.
    InterfacePrefix(String),
}

/// `nodePortAddresses` (S9).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodePortSelection {
    /// The addresses of the node in these ranges; an empty list means all.
    Ranges(Vec<Cidr>),
    /// The word `primary`: the node's own addresses, as the Node object gives them.
    Primary,
}

/// Options that decide what Services mean on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name of the node, lower case; compared with `nodeName` of endpoints (S4.7).
    pub node_name: String,
    /// How local traffic is told.
    pub detect_local: DetectLocal,
    /// Whether all traffic to cluster IPs is masqueraded.
    pub masquerade_all: bool,
    /// Where node ports answer.
    pub node_port_addresses: NodePortSelection,
    /// Whether 127.0.0.1 can be one of the addresses on which node ports answer (mode iptables).
    pub loopback_node_ports: bool,
    /// `bindAddress`, if it is a specified address: stands for the node's own (S7.2).
    pub bind_address: Option<IpAddr>,
    /// Whether `spec.externalIPs` is served (gate `AllowServiceExternalIPs`).
    pub allow_external_ips: bool,
    /// The ranges that served external IPs must be in; an empty list means any address. With ranges
    /// of one family only, no external IP of the other is served.
    pub external_ip_ranges: Arc<[Cidr]>,
}

impl Options {
    /// The defaults, for the node of this name.
    pub fn new(node_name: impl Into<String>) -> Self {
        Self {
            node_name: node_name.into(),
            detect_local: DetectLocal::ClusterCidr(Vec::new()),
            masquerade_all: false,
            node_port_addresses: NodePortSelection::Ranges(Vec::new()),
            loopback_node_ports: false,
            bind_address: None,
            allow_external_ips: true,
            external_ip_ranges: Arc::new([]),
        }
    }
}
