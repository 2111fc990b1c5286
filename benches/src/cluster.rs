//! Clusters of any size, as a source would hand them over.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::api::{
    EndpointConditions, EndpointPort, EndpointSlice, Labels, Metadata, Node, NodeAddress, Service,
    ServiceCidr, ServicePort, SliceEndpoint,
};
use proxy_core::event::{Kind, Object, SourceEvent};
use proxy_core::options::{DetectLocal, Options};

/// Name of the node that is served.
pub const NODE: &str = "node-0";
/// Nodes of the cluster. With 10,000 Services each has a hundred pods, where the kubelet's default
/// limit is 110.
const NODES: usize = 1_000;
/// The first pod that belongs to no Service.
const FIRST_SPARE: usize = 1 << 20;
/// Services in each namespace of the cluster.
const SERVICES_PER_NAMESPACE: usize = 100;

/// A cluster of Services of type `ClusterIP` with one port and the same number of endpoints each.
///
/// Service `n` has the pods from `n * endpoints` on, which take turns on the nodes. Equal clusters
/// give equal objects, and what is said of one Service does not depend on how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The family of all addresses.
    pub family: IpFamily,
    /// Number of Services.
    pub services: usize,
    /// Endpoints of each Service.
    pub endpoints: usize,
}

impl Cluster {
    /// A cluster of this many Services with ten endpoints each.
    pub const fn new(family: IpFamily, services: usize) -> Self {
        Self { family, services, endpoints: 10 }
    }

    /// Options of a node in such a cluster.
    pub fn options(&self) -> Options {
        let pods = match self.family {
            IpFamily::V4 => "10.0.0.0/8",
            IpFamily::V6 => "fd00:10::/32",
        };
        let mut options = Options::new(NODE);
        options.detect_local = DetectLocal::ClusterCidr(Cidr::parse(pods).into_iter().collect());
        options
    }

    /// Complete lists of all objects, one event at a time.
    pub fn lists(self) -> impl Iterator<Item = SourceEvent> {
        list(Kind::Node, std::iter::once(Object::Node(self.node())))
            .chain(list(
                Kind::ServiceCidr,
                std::iter::once(Object::ServiceCidr(self.service_range())),
            ))
            .chain(list(
                Kind::Service,
                (0..self.services).map(move |number| Object::Service(self.service(number))),
            ))
            .chain(list(
                Kind::EndpointSlice,
                (0..self.services).map(move |number| {
                    Object::EndpointSlice(self.slice(number, self.pods(number)))
                }),
            ))
    }

    /// The pods of Service `number`.
    pub fn pods(&self, number: usize) -> impl Iterator<Item = usize> + use<> {
        let first = number * self.endpoints;
        first..first + self.endpoints
    }

    /// A pod for Service `number` that no Service has by itself; neighbouring turns give
    /// different ones.
    pub fn spare_pod(&self, number: usize, turn: usize) -> usize {
        FIRST_SPARE * (1 + turn % 8) + number
    }

    /// Service `number`.
    pub fn service(&self, number: usize) -> Service {
        let mut service = Service { metadata: metadata(number, ""), ..Service::default() };
        service.metadata.creation_timestamp = Some("2026-01-01T00:00:00Z".to_owned());
        "ClusterIP".clone_into(&mut service.spec.service_type);
        service.spec.cluster_ip = self.cluster_ip(number).to_string();
        service.spec.cluster_ips = vec![service.spec.cluster_ip.clone()];
        service.spec.ip_families = vec![self.family.to_string()];
        service.spec.ports = vec![ServicePort {
            name: "http".to_owned(),
            protocol: Some("TCP".to_owned()),
            port: 80,
            node_port: 0,
        }];
        service
    }

    /// The slice of Service `number`, with these pods.
    pub fn slice(&self, number: usize, pods: impl IntoIterator<Item = usize>) -> EndpointSlice {
        let mut metadata = metadata(number, "-x7k2p");
        metadata.labels = Labels { service_name: Some(service_name(number)), ..Labels::default() };
        EndpointSlice {
            metadata,
            address_type: self.family.to_string(),
            ports: vec![EndpointPort {
                name: Some("http".to_owned()),
                port: Some(8080),
                protocol: Some("TCP".to_owned()),
            }],
            endpoints: pods.into_iter().map(|pod| self.endpoint(pod)).collect(),
        }
    }

    fn endpoint(&self, pod: usize) -> SliceEndpoint {
        SliceEndpoint {
            addresses: vec![self.address(10, pod).to_string()],
            conditions: EndpointConditions {
                ready: Some(true),
                serving: Some(true),
                terminating: Some(false),
            },
            node_name: Some(format!("node-{}", pod % NODES)),
            hints: None,
        }
    }

    fn node(&self) -> Node {
        let mut node = Node::default();
        NODE.clone_into(&mut node.metadata.name);
        let address = self.address(192, 1).to_string();
        node.status.addresses =
            vec![NodeAddress { address_type: "InternalIP".to_owned(), address }];
        node
    }

    fn service_range(&self) -> ServiceCidr {
        let mut range = ServiceCidr::default();
        "kubernetes".clone_into(&mut range.metadata.name);
        range.spec.cidrs = vec![
            match self.family {
                IpFamily::V4 => "172.0.0.0/8",
                IpFamily::V6 => "fd00:172::/32",
            }
            .to_owned(),
        ];
        range
    }

    fn cluster_ip(&self, number: usize) -> IpAddr {
        self.address(172, number)
    }

    /// Address `number` of a network: `10.0.0.0/8` or `fd00:10::/32` for `net` 10.
    fn address(&self, net: u8, number: usize) -> IpAddr {
        let host = u32::try_from(number + 1).unwrap_or(u32::MAX) & 0x00ff_ffff;
        match self.family {
            IpFamily::V4 => Ipv4Addr::from((u32::from(net) << 24) | host).into(),
            IpFamily::V6 => {
                // The decimal digits of `net`, read as hexadecimal ones.
                let net = u128::from(net);
                let digits = ((net / 100) << 8) | ((net / 10 % 10) << 4) | (net % 10);
                Ipv6Addr::from((0xfd00 << 112) | (digits << 96) | u128::from(host)).into()
            }
        }
    }
}

/// The change of one object.
pub fn applied(object: Object) -> SourceEvent {
    SourceEvent::Applied(object)
}

/// The end of one object.
pub fn deleted(object: &Object) -> SourceEvent {
    SourceEvent::Deleted(object.reference())
}

fn list(kind: Kind, objects: impl Iterator<Item = Object>) -> impl Iterator<Item = SourceEvent> {
    std::iter::once(SourceEvent::ListStarted(kind))
        .chain(objects.map(applied))
        .chain(std::iter::once(SourceEvent::ListDone(kind)))
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
