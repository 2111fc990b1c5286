//! The node as the store keeps it, and what follows from it for each family (S7 to S9).

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use super::findings::Findings;
use crate::address::{Cidr, IpFamily, parse_ip};
use crate::api;
use crate::intern::Interner;
use crate::node::{LocalDetector, NodePortAddresses};
use crate::options::{DetectLocal, NodePortSelection, Options};

/// Key of the taint by which the cluster autoscaler announces the end of a node.
const TAINT_TO_BE_DELETED: &str = "ToBeDeletedByClusterAutoscaler";

/// What is known of the node from its Node object. The last object counts, also after its
/// deletion (S7.4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Whether a Node object was ever seen.
    pub seen: bool,
    /// Whether load balancers should send traffic here (S7.7).
    pub eligible: bool,
    /// The zone of the node.
    pub zone: Option<Arc<str>>,
    /// The node's first address, and its first address of the other family (S7.1).
    pub addresses: Vec<IpAddr>,
    /// Ranges of the node's pods, in the order of the object.
    pub pod_cidrs: Vec<Cidr>,
}

impl NodeState {
    pub(super) fn read(node: &api::Node, names: &mut Interner, findings: &mut Findings) -> Self {
        let ending = node.metadata.deletion_timestamp.is_some()
            || node.spec.taints.iter().any(|taint| taint.key == TAINT_TO_BE_DELETED);
        let pod_cidrs = node.spec.pod_cidrs.iter().enumerate().filter_map(|(index, text)| {
            findings.ok(format_args!("spec.podCIDRs[{index}]"), Cidr::parse(text))
        });
        Self {
            seen: true,
            eligible: !ending,
            zone: node.metadata.labels.zone.as_deref().map(|zone| names.intern(zone)),
            pod_cidrs: pod_cidrs.collect(),
            addresses: addresses(node, findings),
        }
    }
}

fn addresses(node: &api::Node, findings: &mut Findings) -> Vec<IpAddr> {
    let mut of_type = |wanted: &str| -> Vec<IpAddr> {
        let addresses = node.status.addresses.iter().enumerate();
        let addresses = addresses.filter(|(_, address)| address.address_type == wanted);
        addresses
            .filter_map(|(index, address)| {
                let field = format_args!("status.addresses[{index}].address");
                findings.ok(field, parse_ip(&address.address))
            })
            .collect()
    };
    let mut all = of_type("InternalIP");
    all.extend(of_type("ExternalIP"));
    let first = all.first().copied();
    let other = all
        .iter()
        .copied()
        .find(|&address| first.is_some_and(|it| IpFamily::of(it) != IpFamily::of(address)));
    first.into_iter().chain(other).collect()
}

/// Everything that says where this node is, together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) options: &'a Options,
    pub(super) node: &'a NodeState,
    pub(super) interface_addresses: &'a [IpAddr],
}

impl Place<'_> {
    /// The address of the node in this family; loopback if none is known (S7.2).
    pub(super) fn node_ip(&self, family: IpFamily) -> IpAddr {
        self.own_ip(family).unwrap_or_else(|| family.loopback())
    }

    /// The family of the node's first address.
    pub(super) fn primary_family(&self) -> IpFamily {
        let first = self.options.bind_address.or_else(|| self.node.addresses.first().copied());
        first.map_or(IpFamily::V4, IpFamily::of)
    }

    fn own_ip(&self, family: IpFamily) -> Option<IpAddr> {
        let of_family = |address: &IpAddr| IpFamily::of(*address) == family;
        let from_object = self.node.addresses.iter().copied().find(of_family);
        self.options.bind_address.filter(of_family).or(from_object).or_else(|| {
            let mut addresses = self.interface_addresses.iter().copied();
            addresses
                .find(|address| of_family(address) && is_global(*address))
                .filter(|_| !self.node.seen)
        })
    }

    /// How the traffic of local pods is told in this family (S8).
    pub(super) fn detector(&self, family: IpFamily) -> Option<LocalDetector> {
        let first = |ranges: &[Cidr]| {
            let range = ranges.iter().copied().find(|range| range.family() == family);
            range.map(LocalDetector::Source)
        };
        match &self.options.detect_local {
            DetectLocal::ClusterCidr(ranges) => first(ranges),
            DetectLocal::NodeCidr => first(&self.node.pod_cidrs),
            DetectLocal::Bridge(name) => named(name).map(LocalDetector::Interface),
            DetectLocal::InterfacePrefix(prefix) => {
                named(prefix).map(LocalDetector::InterfacePrefix)
            }
        }
    }

    /// The addresses of the node's interfaces.
    pub(super) fn addresses(&self, family: IpFamily) -> BTreeSet<IpAddr> {
        let addresses = self.interface_addresses.iter().copied();
        addresses.filter(|it| IpFamily::of(*it) == family && !it.is_loopback()).collect()
    }

    /// Where node ports answer (S9).
    pub(super) fn node_port_addresses(&self, family: IpFamily) -> NodePortAddresses {
        match &self.options.node_port_addresses {
            NodePortSelection::Ranges(ranges) => self.addresses_in(ranges, family),
            NodePortSelection::Primary => match self.primary(family) {
                None => NodePortAddresses::All,
                Some(primary) if self.interface_addresses.is_empty() => {
                    NodePortAddresses::Only(BTreeSet::from([primary]))
                }
                Some(primary) => self.addresses_in(&[Cidr::host(primary)], family),
            },
        }
    }

    /// Whether `primary` stands for no address of this family, so that all answer (S9.3).
    pub(super) fn lacks_primary(&self, family: IpFamily) -> bool {
        let asked = self.options.node_port_addresses == NodePortSelection::Primary;
        asked && self.primary(family).is_none()
    }

    fn primary(&self, family: IpFamily) -> Option<IpAddr> {
        self.own_ip(family).filter(|address| !address.is_loopback())
    }

    fn addresses_in(&self, ranges: &[Cidr], family: IpFamily) -> NodePortAddresses {
        let mut ranges = ranges.iter().filter(|range| range.family() == family).peekable();
        if ranges.peek().is_none() || ranges.clone().any(|range| range.prefix_len() == 0) {
            return NodePortAddresses::All;
        }
        let addresses = self.interface_addresses.iter().copied();
        let loopback = self.options.loopback_node_ports && family == IpFamily::V4;
        let chosen = addresses.filter(|&address| {
            (loopback || !address.is_loopback())
                && ranges.clone().any(|range| range.contains(address))
        });
        NodePortAddresses::Only(chosen.collect())
    }
}

fn named(name: &str) -> Option<String> {
    (!name.is_empty()).then(|| name.to_owned())
}

/// Whether other hosts can reach the address.
fn is_global(address: IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !link_local && !address.is_loopback() && !address.is_unspecified()
}
