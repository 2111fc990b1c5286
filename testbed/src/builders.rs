//! Small builders of Kubernetes objects as JSON values.

use serde_json::{Value, json};

use crate::world::{Families, NODE_NAME, node_addresses};

/// The service ranges of the test cluster.
pub const SERVICE_RANGES: [&str; 2] = ["172.30.0.0/16", "fd00:172:30::/108"];

/// The label that tells the zone of a Node.
pub const ZONE: &str = "topology.kubernetes.io/zone";

/// A port of a Service together with where it leads.
#[derive(Debug, Clone, Copy)]
pub struct Port<'a> {
    /// Port name.
    pub name: &'a str,
    /// `TCP`, `UDP` or `SCTP`.
    pub protocol: &'a str,
    /// Port of the Service.
    pub port: u16,
    /// Port of its endpoints.
    pub target: u16,
}

impl Port<'_> {
    /// An HTTP port, 80 to 8080.
    pub const HTTP: Self = Self { name: "http", protocol: "TCP", port: 80, target: 8080 };
}

/// A Service of type `ClusterIP` in namespace `default`.
///
/// The result is plain JSON: change what a test is about, for instance
/// `service["spec"]["type"] = "NodePort".into()`.
pub fn service(name: &str, cluster_ip: &str, ports: &[Port<'_>]) -> Value {
    let ports: Vec<_> = ports.iter().map(service_port).collect();
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"namespace": "default", "name": name},
        "spec": {"type": "ClusterIP", "clusterIP": cluster_ip, "ports": ports},
    })
}

fn service_port(port: &Port<'_>) -> Value {
    json!({
        "name": port.name,
        "port": port.port,
        "protocol": port.protocol,
        "targetPort": port.target,
    })
}

/// The EndpointSlice `SERVICE-1` of a Service in namespace `default`, in the family of the first
/// address. Each endpoint comes with the name of its node; all are ready.
pub fn endpoint_slice(service: &str, ports: &[Port<'_>], endpoints: &[(&str, &str)]) -> Value {
    let v6 = endpoints.first().is_some_and(|(address, _)| address.contains(':'));
    let ports: Vec<_> = ports
        .iter()
        .map(|port| json!({"name": port.name, "port": port.target, "protocol": port.protocol}))
        .collect();
    let endpoints: Vec<_> =
        endpoints.iter().map(|(address, node)| endpoint(address, node)).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "namespace": "default",
            "name": format!("{service}-1"),
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": if v6 { "IPv6" } else { "IPv4" },
        "ports": ports,
        "endpoints": endpoints,
    })
}

/// A ready endpoint on a node, to be put among the `endpoints` of a slice.
pub fn endpoint(address: &str, node: &str) -> Value {
    json!({
        "addresses": [address],
        "nodeName": node,
        "conditions": {"ready": true, "serving": true, "terminating": false},
    })
}

/// A Node with internal addresses and, maybe, a zone.
pub fn node(name: &str, addresses: &[String], zone: Option<&str>) -> Value {
    let addresses: Vec<_> =
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    let mut labels = json!({"kubernetes.io/hostname": name});
    if let Some(zone) = zone {
        labels[ZONE] = zone.into();
    }
    json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {},
        "status": {"addresses": addresses},
    })
}

/// A ServiceCIDR, which tells the range of cluster IPs.
pub fn service_cidr(name: &str, ranges: &[&str]) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "ServiceCIDR",
        "metadata": {"name": name},
        "spec": {"cidrs": ranges},
    })
}

/// What every cluster of a [`crate::World`] has: the Node `node-a` in `zone-a` and the service
/// ranges.
pub fn cluster(families: Families) -> [Value; 2] {
    let addresses: Vec<_> = node_addresses(families).iter().map(ToString::to_string).collect();
    let of_family = |range: &&str| {
        if range.contains(':') { families.has_v6() } else { families.has_v4() }
    };
    let ranges: Vec<_> = SERVICE_RANGES.into_iter().filter(of_family).collect();
    [node(NODE_NAME, &addresses, Some("zone-a")), service_cidr("kubernetes", &ranges)]
}

/// A configuration file for a program in the node's namespace of a [`crate::World`].
pub fn configuration(mode: &str, families: Families) -> Value {
    let any = if families == Families::Ipv6 { "[::]" } else { "0.0.0.0" };
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": mode,
        "healthzBindAddress": format!("{any}:10256"),
        // Limits of conntrack belong to the whole machine and are not the namespace's to set.
        "conntrack": {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    })
}
