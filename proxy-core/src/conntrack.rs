//! Which flows the kernel must forget (S11).
//!
//! Rules decide about the first packet of a flow only. A UDP flow has no end of its own, so one
//! whose endpoint is gone would go on to it for as long as the client sends. After rules have
//! changed, such flows are deleted; the next packet then meets the new rules. TCP and SCTP notice
//! a dead peer themselves and are never touched.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::address::IpFamily;
use crate::names::{Protocol, ServicePortName};
use crate::node::{NodeFacts, NodePortAddresses};
use crate::resolved::{FrontendKey, ResolvedPort, ResolvedService};

/// An address and a port.
type Socket = (IpAddr, u16);

/// Endpoints that the flows of a frontend may stay on.
type Allowed = Arc<HashSet<Socket>>;

/// The UDP flows that one or several syncs left behind, as a question to ask of each flow.
///
/// It speaks of the frontends that were concerned and of no others. Until the kernel's flows have
/// been looked through, what later syncs add is merged in, so that nothing is lost to a failed
/// write or dump.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowCleaner {
    addresses: HashMap<Socket, Allowed>,
    node_ports: HashMap<u16, Allowed>,
    accepting: Accepting,
}

/// On which addresses flows to node ports are ours to judge.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Accepting {
    /// Every local address accepts, and which ones are local is not known.
    #[default]
    Unknown,
    /// These.
    Only(BTreeSet<IpAddr>),
}

impl FlowCleaner {
    /// A cleaner that finds no flow stale; `local_addresses` are the machine's own.
    ///
    /// Flows to node ports are judged only at addresses that accept them: the same port number
    /// at a foreign host is somebody else's affair.
    pub fn new(node: &NodeFacts, local_addresses: &[IpAddr]) -> Self {
        Self { accepting: Accepting::new(node, local_addresses), ..Self::default() }
    }

    /// Adds what a change of one Service in this sync leaves behind; the order of the Services
    /// does not matter. Without `before`, as after a start, all UDP ports are concerned: what an
    /// earlier process did not get to is found then.
    pub fn add_change(
        &mut self,
        before: Option<&ResolvedService>,
        after: Option<&ResolvedService>,
    ) {
        let old: HashMap<&ServicePortName, &ResolvedPort> =
            udp_ports(before).map(|port| (&port.name, port)).collect();
        for port in udp_ports(after) {
            if old.get(&port.name).is_none_or(|old| !has_same_flows(old, port)) {
                self.judge(port);
            }
        }
        let kept: HashSet<FrontendKey> = udp_ports(after).flat_map(keys).collect();
        for key in udp_ports(before).flat_map(keys).filter(|key| !kept.contains(key)) {
            self.abandon(key);
        }
    }

    /// Adds what a later sync left behind; where both speak of a frontend the later one counts.
    pub fn merge(&mut self, later: Self) {
        self.addresses.extend(later.addresses);
        self.node_ports.extend(later.node_ports);
        self.accepting = later.accepting;
    }

    /// Whether no flow can be stale, so that the kernel's flows need not be looked through.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty() && self.node_ports.is_empty()
    }

    /// Whether a UDP flow must be forgotten, by the address its first packet was sent to and the
    /// address that answers come from.
    ///
    /// Flows that were never translated answer from the address they were sent to. They are stale
    /// too: they began before the frontend existed, and keep later packets from it.
    pub fn is_stale(&self, original_destination: Socket, reply_source: Socket) -> bool {
        let translated = original_destination != reply_source;
        let (address, port) = original_destination;
        let at_node_port = || {
            let allowed = self.node_ports.get(&port)?;
            self.accepting.includes(address, translated).then_some(allowed)
        };
        let allowed = self.addresses.get(&original_destination).or_else(at_node_port);
        allowed.is_some_and(|allowed| !allowed.contains(&reply_source))
    }

    fn judge(&mut self, port: &ResolvedPort) {
        let allowed: Allowed = Arc::new(port.flow_endpoints.iter().copied().collect());
        for key in keys(port) {
            let allowed = Arc::clone(&allowed);
            match key {
                FrontendKey::Address { address, port, .. } => {
                    self.addresses.insert((address, port), allowed);
                }
                FrontendKey::NodePort { port, .. } => {
                    self.node_ports.insert(port, allowed);
                }
            }
        }
    }

    /// Nobody serves the frontend any more, unless another Service took it over in this sync.
    fn abandon(&mut self, key: FrontendKey) {
        match key {
            FrontendKey::Address { address, port, .. } => {
                self.addresses.entry((address, port)).or_default();
            }
            FrontendKey::NodePort { port, .. } => {
                self.node_ports.entry(port).or_default();
            }
        }
    }
}

impl Accepting {
    fn new(node: &NodeFacts, local_addresses: &[IpAddr]) -> Self {
        let chosen = match &node.node_port_addresses {
            NodePortAddresses::Only(addresses) => return Self::Only(addresses.clone()),
            NodePortAddresses::All => local_addresses.iter().copied(),
        };
        let local: BTreeSet<IpAddr> = chosen
            .filter(|&address| IpFamily::of(address) == node.family && !address.is_loopback())
            .collect();
        if local.is_empty() { Self::Unknown } else { Self::Only(local) }
    }

    fn includes(&self, address: IpAddr, translated: bool) -> bool {
        match self {
            Self::Only(addresses) => addresses.contains(&address),
            // A flow that was translated at a node port of ours was sent to an address of ours.
            Self::Unknown => translated,
        }
    }
}

fn udp_ports(service: Option<&ResolvedService>) -> impl Iterator<Item = &ResolvedPort> {
    let ports = service.map_or(&[][..], |service| &service.ports);
    ports.iter().filter(|port| port.name.protocol == Protocol::Udp)
}

fn keys(port: &ResolvedPort) -> impl Iterator<Item = FrontendKey> + '_ {
    port.frontends.iter().map(|frontend| frontend.key)
}

fn has_same_flows(old: &ResolvedPort, new: &ResolvedPort) -> bool {
    keys(old).eq(keys(new)) && old.flow_endpoints == new.flow_endpoints
}
