//! Small clusters: what there is, the objects it consists of, and the events that lead there.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::select;
use proxy_core::api::{
    EndpointPort, EndpointSlice, Labels, LoadBalancerIngress, Metadata, Service, ServicePort,
    SliceEndpoint,
};
use proxy_core::event::{Kind, Object, ObjectRef, SourceEvent};

use crate::fake::Rng;

/// A Service and its endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    /// Last part of the cluster IPs.
    pub(crate) ip: u8,
    pub(crate) protocol: &'static str,
    /// Node port, or 0.
    pub(crate) node_port: u16,
    /// External policy `Local`, with a load balancer and a health check.
    pub(crate) is_local: bool,
    /// Last parts of the endpoints' addresses; the even ones are on this node.
    pub(crate) endpoints: BTreeSet<u8>,
}

impl Spec {
    /// A TCP Service with one kind of frontend.
    pub(crate) fn new(ip: u8, endpoints: impl IntoIterator<Item = u8>) -> Self {
        let endpoints = endpoints.into_iter().collect();
        Self { ip, protocol: "TCP", node_port: 0, is_local: false, endpoints }
    }
}

/// Services by name.
pub(crate) type Cluster = BTreeMap<String, Spec>;

/// A cluster of these Services.
pub(crate) fn cluster<const N: usize>(services: [(&str, Spec); N]) -> Cluster {
    services.into_iter().map(|(name, spec)| (name.to_owned(), spec)).collect()
}

fn metadata(name: &str) -> Metadata {
    Metadata { name: name.into(), namespace: "default".into(), ..Metadata::default() }
}

fn service(name: &str, spec: &Spec) -> Object {
    let mut service = Service { metadata: metadata(name), ..Service::default() };
    let kind = if spec.is_local { "LoadBalancer" } else { "NodePort" };
    service.spec.service_type = kind.into();
    service.spec.cluster_ips = vec![format!("172.30.0.{}", spec.ip), format!("fd00::{}", spec.ip)];
    service.spec.cluster_ip = service.spec.cluster_ips[0].clone();
    service.spec.ip_families = vec!["IPv4".into(), "IPv6".into()];
    service.spec.ports = vec![ServicePort {
        name: "p".into(),
        protocol: Some(spec.protocol.into()),
        port: 80,
        node_port: spec.node_port.into(),
    }];
    if spec.is_local {
        service.spec.external_traffic_policy = "Local".into();
        service.spec.health_check_node_port = 32_000 + i64::from(spec.ip);
        let ingress = |ip: String| LoadBalancerIngress { ip, ..Default::default() };
        service.status.load_balancer.ingress = vec![
            ingress(format!("198.51.100.{}", spec.ip)),
            ingress(format!("2001:db8::{}", spec.ip)),
        ];
    }
    Object::Service(service)
}

fn slice(service: &str, suffix: &str, hosts: impl Iterator<Item = u8>) -> Object {
    let (family, network) = match suffix {
        "v6" => ("IPv6", "fd00:10:180::"),
        _ => ("IPv4", "10.180.0."),
    };
    let endpoint = |host: u8| SliceEndpoint {
        addresses: vec![format!("{network}{host}")],
        node_name: Some(if host.is_multiple_of(2) { "n0" } else { "n1" }.into()),
        ..SliceEndpoint::default()
    };
    let labels = Labels { service_name: Some(service.into()), ..Labels::default() };
    Object::EndpointSlice(EndpointSlice {
        metadata: Metadata { labels, ..metadata(&format!("{service}-{suffix}")) },
        address_type: family.into(),
        ports: ["TCP", "UDP"]
            .map(|protocol| EndpointPort {
                name: Some("p".into()),
                port: Some(8080),
                protocol: Some(protocol.into()),
            })
            .into(),
        endpoints: hosts.map(endpoint).collect(),
    })
}

/// The objects of a cluster. IPv4 endpoints come in two slices.
pub(crate) fn objects(cluster: &Cluster) -> Vec<Object> {
    let objects = cluster.iter().flat_map(|(name, spec)| {
        let hosts = || spec.endpoints.iter().copied();
        [
            service(name, spec),
            slice(name, "v4-a", hosts().filter(|host| host.is_multiple_of(3))),
            slice(name, "v4-b", hosts().filter(|host| !host.is_multiple_of(3))),
            slice(name, "v6", hosts()),
        ]
    });
    objects.collect()
}

/// Complete lists of these objects.
pub(crate) fn lists(objects: &[Object]) -> Vec<SourceEvent> {
    let mut events = Vec::new();
    for kind in Kind::ALL {
        events.push(SourceEvent::ListStarted(kind));
        let listed = objects.iter().filter(|object| object.reference().kind == kind);
        events.extend(listed.cloned().map(SourceEvent::Applied));
        events.push(SourceEvent::ListDone(kind));
    }
    events
}

/// Complete lists of a cluster.
pub(crate) fn list(cluster: &Cluster) -> Vec<SourceEvent> {
    lists(&objects(cluster))
}

/// The steps from one cluster to another.
pub(crate) fn steps(old: &Cluster, new: &Cluster) -> Vec<SourceEvent> {
    let by_name = |cluster| -> BTreeMap<ObjectRef, Object> {
        objects(cluster).into_iter().map(|object| (object.reference(), object)).collect()
    };
    let (old, new) = (by_name(old), by_name(new));
    let gone = old.keys().filter(|name| !new.contains_key(name));
    let gone = gone.cloned().map(SourceEvent::Deleted);
    let came = new.iter().filter(|(name, object)| old.get(name) != Some(object));
    gone.chain(came.map(|(_, object)| SourceEvent::Applied(object.clone()))).collect()
}

/// The same in a random order. Each object occurs once, so the order does not matter.
pub(crate) fn shuffled_steps(old: &Cluster, new: &Cluster, rng: &mut Rng) -> Vec<SourceEvent> {
    let mut events = steps(old, new);
    rng.shuffle(&mut events);
    events
}

prop_compose! {
    /// Few addresses and ports, so that Services take them from each other.
    fn spec()(
        ip in 1..6_u8,
        protocol in select(&["TCP", "UDP"][..]),
        node_port in select(&[0_u16, 30_001, 30_002][..]),
        is_local in any::<bool>(),
        endpoints in proptest::collection::btree_set(1..9_u8, 0..6),
    ) -> Spec {
        Spec { ip, protocol, node_port, is_local, endpoints }
    }
}

/// A random cluster.
pub(crate) fn clusters() -> impl Strategy<Value = Cluster> {
    let names = select(&["a", "b", "c", "d"][..]).prop_map(str::to_owned);
    proptest::collection::btree_map(names, spec(), 0..5)
}

/// What a cluster becomes in time.
pub(crate) fn histories() -> impl Strategy<Value = Vec<Cluster>> {
    proptest::collection::vec(clusters(), 1..6)
}
