//! The objects of the comparison, and the changes that happen to them: the same for every mode.

use std::net::Ipv4Addr;

use proxy_core::api::{
    EndpointPort, EndpointSlice, Labels, Metadata, Node, NodeAddress, Service, ServiceCidr,
    ServicePort, SliceEndpoint,
};
use proxy_core::event::{Kind, Object, SourceEvent};

/// Name of the node that is served.
pub(super) const NODE: &str = "node-0";
/// The node's address.
pub(super) const NODE_ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);
/// Where pods have their addresses.
pub(super) const POD_RANGE: &str = "10.0.0.0/8";
/// The pod that connects. No Service has it.
pub(super) const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 255, 0, 1);
/// Where Services have their addresses.
const SERVICE_RANGE: &str = "172.16.0.0/12";
/// Pods from this number on are those that replace others.
const FIRST_SPARE: usize = 1 << 23;
/// Apart by this number, so that two in a row differ.
const SPARE_STEP: usize = 1 << 21;
/// Services in each namespace.
const SERVICES_PER_NAMESPACE: usize = 100;

/// Most Services that have addresses.
pub(super) const MAX_SERVICES: usize = 200_000;
/// Most endpoints in all that have addresses.
pub(super) const MAX_ENDPOINTS: usize = FIRST_SPARE - 2;

/// A port of a Service, and the port of its pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Port {
    name: &'static str,
    protocol: &'static str,
    /// Which clients dial.
    pub(super) number: u16,
    /// Where servers listen.
    pub(super) target: u16,
}

/// The port that every Service has.
pub(super) const HTTP: Port = Port { name: "http", protocol: "TCP", number: 80, target: 8080 };
/// For the long flow.
pub(super) const BULK: Port = Port { name: "bulk", protocol: "TCP", number: 81, target: 8081 };
/// For datagrams.
pub(super) const DATAGRAMS: Port =
    Port { name: "datagrams", protocol: "UDP", number: 82, target: 8082 };

/// Services of type `ClusterIP` with one port and the same number of endpoints each, and one more
/// for the flows that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cluster {
    /// Number of Services.
    pub(super) services: usize,
    /// Endpoints of each.
    pub(super) endpoints: usize,
}

impl Cluster {
    /// Complete lists of all objects.
    pub(super) fn lists(self) -> impl Iterator<Item = SourceEvent> {
        let services = (0..=self.services).map(move |number| Object::Service(self.service(number)));
        let slices =
            (0..=self.services).map(move |number| Object::EndpointSlice(self.slice(number, 0)));
        list(Kind::Node, std::iter::once(Object::Node(node())))
            .chain(list(Kind::ServiceCidr, std::iter::once(Object::ServiceCidr(service_range()))))
            .chain(list(Kind::Service, services))
            .chain(list(Kind::EndpointSlice, slices))
    }

    /// The address of Service `number`.
    pub(super) fn address(number: usize) -> Ipv4Addr {
        offset(Ipv4Addr::new(172, 16, 0, 0), number)
    }

    /// The number of the Service for the flows.
    pub(super) fn probe(self) -> usize {
        self.services
    }

    /// One of the ordinary Services, seemingly at random: equal for equal `turn`.
    pub(super) fn pick(self, turn: u64) -> usize {
        // SplitMix64: turns in a row go far apart.
        let mut bits = turn.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let services = u64::try_from(self.services).unwrap_or(u64::MAX).max(1);
        usize::try_from((bits ^ (bits >> 31)) % services).unwrap_or(0)
    }

    /// The slice of Service `number` after this many changes, each of which replaces one pod.
    pub(super) fn slice(self, number: usize, changes: usize) -> EndpointSlice {
        let mut metadata = metadata(number, "-x7k2p");
        metadata.labels = Labels { service_name: Some(service_name(number)), ..Labels::default() };
        let first = number * self.endpoints;
        let pods = (first..first + self.endpoints).enumerate().map(|(place, pod)| match place {
            0 if changes > 0 => FIRST_SPARE + changes % 2 * SPARE_STEP + number,
            _ => pod,
        });
        EndpointSlice {
            metadata,
            address_type: "IPv4".to_owned(),
            ports: self.ports(number).iter().map(endpoint_port).collect(),
            endpoints: pods.map(endpoint).collect(),
        }
    }

    fn service(self, number: usize) -> Service {
        let mut service = Service { metadata: metadata(number, ""), ..Service::default() };
        "ClusterIP".clone_into(&mut service.spec.service_type);
        service.spec.cluster_ip = Self::address(number).to_string();
        service.spec.cluster_ips = vec![service.spec.cluster_ip.clone()];
        service.spec.ip_families = vec!["IPv4".to_owned()];
        service.spec.ports = self.ports(number).iter().map(service_port).collect();
        service
    }

    fn ports(self, number: usize) -> &'static [Port] {
        if number == self.probe() { &[HTTP, BULK, DATAGRAMS] } else { &[HTTP] }
    }
}

fn service_port(port: &Port) -> ServicePort {
    ServicePort {
        name: port.name.to_owned(),
        protocol: Some(port.protocol.to_owned()),
        port: port.number.into(),
        node_port: 0,
    }
}

fn endpoint_port(port: &Port) -> EndpointPort {
    EndpointPort {
        name: Some(port.name.to_owned()),
        port: Some(port.target.into()),
        protocol: Some(port.protocol.to_owned()),
    }
}

fn endpoint(pod: usize) -> SliceEndpoint {
    let address = offset(Ipv4Addr::new(10, 0, 0, 0), pod).to_string();
    SliceEndpoint { addresses: vec![address], ..SliceEndpoint::default() }
}

/// Address `number` of a network, from 1 on.
fn offset(network: Ipv4Addr, number: usize) -> Ipv4Addr {
    let host = u32::try_from(number + 1).unwrap_or(u32::MAX);
    Ipv4Addr::from(u32::from(network).saturating_add(host))
}

fn node() -> Node {
    let mut node = Node::default();
    NODE.clone_into(&mut node.metadata.name);
    let address = NODE_ADDRESS.to_string();
    node.status.addresses = vec![NodeAddress { address_type: "InternalIP".to_owned(), address }];
    node
}

fn service_range() -> ServiceCidr {
    let mut range = ServiceCidr::default();
    "kubernetes".clone_into(&mut range.metadata.name);
    range.spec.cidrs = vec![SERVICE_RANGE.to_owned()];
    range
}

fn service_name(number: usize) -> String {
    format!("service-{number}")
}

fn metadata(number: usize, suffix: &str) -> Metadata {
    Metadata {
        name: service_name(number) + suffix,
        namespace: format!("team-{}", number / SERVICES_PER_NAMESPACE),
        ..Metadata::default()
    }
}

fn list(kind: Kind, objects: impl Iterator<Item = Object>) -> impl Iterator<Item = SourceEvent> {
    std::iter::once(SourceEvent::ListStarted(kind))
        .chain(objects.map(SourceEvent::Applied))
        .chain(std::iter::once(SourceEvent::ListDone(kind)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pods_have_one_address() {
        let cluster = Cluster { services: 3, endpoints: 2 };
        let mut addresses = vec![CLIENT.to_string()];
        for number in 0..=cluster.services {
            addresses.extend(cluster.slice(number, 0).endpoints.remove(0).addresses);
            for changes in 1..=2 {
                addresses.extend(cluster.slice(number, changes).endpoints.remove(0).addresses);
            }
        }
        let all = addresses.len();
        addresses.sort();
        addresses.dedup();
        assert_eq!(addresses.len(), all);
        assert!(addresses.iter().all(|address| address.starts_with("10.")));
    }

    #[test]
    fn each_change_replaces_one_pod() {
        let cluster = Cluster { services: 1, endpoints: 3 };
        for changes in 0..4 {
            let (old, new) = (cluster.slice(0, changes), cluster.slice(0, changes + 1));
            let pairs = old.endpoints.iter().zip(&new.endpoints);
            assert_eq!(pairs.filter(|(old, new)| old.addresses != new.addresses).count(), 1);
        }
    }

    #[test]
    fn turns_reach_all_services() {
        let cluster = Cluster { services: 10, endpoints: 1 };
        let mut picked: Vec<_> = (0..200).map(|turn| cluster.pick(turn)).collect();
        picked.sort_unstable();
        picked.dedup();
        assert_eq!(picked, (0..10).collect::<Vec<_>>());
    }

    #[test]
    fn the_largest_cluster_has_addresses() {
        assert_eq!(Cluster::address(MAX_SERVICES), Ipv4Addr::new(172, 19, 13, 65));
        let last = FIRST_SPARE + SPARE_STEP + MAX_SERVICES;
        assert!(offset(Ipv4Addr::new(10, 0, 0, 0), last) < CLIENT);
        const { assert!(MAX_SERVICES < SPARE_STEP) };
    }
}
