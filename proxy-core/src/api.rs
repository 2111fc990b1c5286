//! The parts of Kubernetes objects that a proxy reads, in the shape the API gives them.
//!
//! These are what a source hands over, for the moment of handing over: [`crate::store`] keeps
//! smaller forms. Fields that are never read are absent, so decoding skips them.

use serde::{Deserialize, Deserializer};

/// Label of an EndpointSlice: the Service it belongs to (S4.2).
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Label of a Service that another proxy serves, whatever its value (S2.1).
pub const LABEL_SERVICE_PROXY_NAME: &str = "service.kubernetes.io/service-proxy-name";
/// Label of an EndpointSlice of a headless Service (S2.1).
pub const LABEL_HEADLESS: &str = "service.kubernetes.io/headless";
/// Label of a Node: its zone (S7.6).
pub const LABEL_ZONE: &str = "topology.kubernetes.io/zone";
/// Annotation of an EndpointSlice: when the change it tells of happened (S10.3).
pub const ANNOTATION_TRIGGER_TIME: &str = "endpoints.kubernetes.io/last-change-trigger-time";

/// Annotation of a Service: how its endpoints take turns in mode ipvs, by the name of a scheduler.
pub const ANNOTATION_IPVS_SCHEDULER: &str = "proxyd.io/ipvs-scheduler";

/// `null` reads as the default, as the API server itself reads it.
fn nullable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// `metadata` of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Name of the object.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Namespace of the object; empty for objects without one.
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    /// The labels that a proxy reads.
    #[serde(deserialize_with = "nullable")]
    pub labels: Labels,
    /// The annotations that a proxy reads.
    #[serde(deserialize_with = "nullable")]
    pub annotations: Annotations,
    /// When the object was created, as RFC 3339 text.
    pub creation_timestamp: Option<String>,
    /// Set while the object is being deleted.
    pub deletion_timestamp: Option<String>,
}

/// The labels that a proxy reads; all others are skipped while decoding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Labels {
    /// [`LABEL_SERVICE_NAME`].
    #[serde(rename = "kubernetes.io/service-name")]
    pub service_name: Option<String>,
    /// [`LABEL_SERVICE_PROXY_NAME`].
    #[serde(rename = "service.kubernetes.io/service-proxy-name")]
    pub service_proxy_name: Option<String>,
    /// [`LABEL_HEADLESS`].
    #[serde(rename = "service.kubernetes.io/headless")]
    pub headless: Option<String>,
    /// [`LABEL_ZONE`].
    #[serde(rename = "topology.kubernetes.io/zone")]
    pub zone: Option<String>,
}

/// The annotations that a proxy reads; all others are skipped while decoding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Annotations {
    /// [`ANNOTATION_TRIGGER_TIME`].
    #[serde(rename = "endpoints.kubernetes.io/last-change-trigger-time")]
    pub trigger_time: Option<String>,
    /// [`ANNOTATION_IPVS_SCHEDULER`].
    #[serde(rename = "proxyd.io/ipvs-scheduler")]
    pub ipvs_scheduler: Option<String>,
}

/// A `v1` Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Its metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// What is asked for.
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceSpec,
    /// What a load balancer reported.
    #[serde(deserialize_with = "nullable")]
    pub status: ServiceStatus,
}

/// `spec` of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub service_type: String,
    /// The first cluster IP, `None`, or empty.
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    pub cluster_ip: String,
    /// Cluster IPs, in the order of `ip_families`.
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub cluster_ips: Vec<String>,
    /// `IPv4`, `IPv6`.
    #[serde(deserialize_with = "nullable")]
    pub ip_families: Vec<String>,
    /// The ports.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ServicePort>,
    /// Addresses that others route to the nodes.
    #[serde(rename = "externalIPs", deserialize_with = "nullable")]
    pub external_ips: Vec<String>,
    /// Who may use the load-balancer addresses.
    #[serde(deserialize_with = "nullable")]
    pub load_balancer_source_ranges: Vec<String>,
    /// `Cluster` or `Local`.
    #[serde(deserialize_with = "nullable")]
    pub external_traffic_policy: String,
    /// `Cluster` or `Local`.
    pub internal_traffic_policy: Option<String>,
    /// `None` or `ClientIP`.
    #[serde(deserialize_with = "nullable")]
    pub session_affinity: String,
    /// Details of the affinity.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// Port of the load balancer's health check, or 0.
    #[serde(deserialize_with = "nullable")]
    pub health_check_node_port: i64,
}

/// One of a Service's ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// Its name; empty for the unnamed port.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// `TCP`, `UDP` or `SCTP`; TCP if missing (S3.11).
    pub protocol: Option<String>,
    /// Port at the service addresses.
    #[serde(deserialize_with = "nullable")]
    pub port: i64,
    /// Port at the node's addresses, or 0.
    #[serde(deserialize_with = "nullable")]
    pub node_port: i64,
}

/// `spec.sessionAffinityConfig`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct SessionAffinityConfig {
    /// Details of affinity by client address.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpConfig>,
}

/// `spec.sessionAffinityConfig.clientIP`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ClientIpConfig {
    /// How long a client is remembered, in seconds.
    pub timeout_seconds: Option<i64>,
}

/// `status` of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    /// What the load balancer reported.
    #[serde(deserialize_with = "nullable")]
    pub load_balancer: LoadBalancerStatus,
}

/// `status.loadBalancer`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerStatus {
    /// Its addresses.
    #[serde(deserialize_with = "nullable")]
    pub ingress: Vec<LoadBalancerIngress>,
}

/// One of `status.loadBalancer.ingress`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct LoadBalancerIngress {
    /// The address; empty if the balancer has only a host name.
    #[serde(deserialize_with = "nullable")]
    pub ip: String,
    /// `VIP` (or missing) or `Proxy`.
    #[serde(rename = "ipMode")]
    pub ip_mode: Option<String>,
}

/// A `discovery.k8s.io/v1` EndpointSlice.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Its metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// `IPv4`, `IPv6` or `FQDN`.
    #[serde(deserialize_with = "nullable")]
    pub address_type: String,
    /// The ports, common to all endpoints of the slice.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
    /// The endpoints.
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<SliceEndpoint>,
}

/// One of a slice's ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Name; empty is the unnamed port, missing is invalid (S4.4).
    pub name: Option<String>,
    /// Port number; missing would mean all ports, which is not implemented (S4.4).
    pub port: Option<i64>,
    /// `TCP`, `UDP` or `SCTP`; TCP if missing.
    pub protocol: Option<String>,
}

/// One of a slice's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SliceEndpoint {
    /// Addresses, of which only the first is used (S4.5).
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    /// Its state.
    #[serde(deserialize_with = "nullable")]
    pub conditions: EndpointConditions,
    /// The node it is on.
    pub node_name: Option<String>,
    /// Who should prefer it.
    pub hints: Option<EndpointHints>,
}

/// `conditions` of an endpoint. Each is read for itself (S4.6).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// Takes new connections; true if missing.
    pub ready: Option<bool>,
    /// Answers, though it may be about to end; true if missing.
    pub serving: Option<bool>,
    /// About to end; false if missing.
    pub terminating: Option<bool>,
}

/// `hints` of an endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointHints {
    /// Zones that should prefer this endpoint.
    #[serde(deserialize_with = "nullable")]
    pub for_zones: Vec<ForName>,
    /// Nodes that should prefer this endpoint.
    #[serde(deserialize_with = "nullable")]
    pub for_nodes: Vec<ForName>,
}

/// One of an endpoint's hints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ForName {
    /// Name of the zone or node.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
}

/// A `v1` Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Node {
    /// Its metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// What is asked of it.
    #[serde(deserialize_with = "nullable")]
    pub spec: NodeSpec,
    /// What it reported.
    #[serde(deserialize_with = "nullable")]
    pub status: NodeStatus,
}

/// `spec` of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeSpec {
    /// Pod ranges of the node.
    #[serde(rename = "podCIDRs", deserialize_with = "nullable")]
    pub pod_cidrs: Vec<String>,
    /// Its taints.
    #[serde(deserialize_with = "nullable")]
    pub taints: Vec<Taint>,
}

/// A taint of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Taint {
    /// Key of the taint.
    #[serde(deserialize_with = "nullable")]
    pub key: String,
}

/// `status` of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeStatus {
    /// Its addresses.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<NodeAddress>,
}

/// An address of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct NodeAddress {
    /// `InternalIP`, `ExternalIP`, `Hostname` and others.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub address_type: String,
    /// The address.
    #[serde(deserialize_with = "nullable")]
    pub address: String,
}

/// A `networking.k8s.io/v1` ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidr {
    /// Its metadata.
    #[serde(deserialize_with = "nullable")]
    pub metadata: Metadata,
    /// What it says.
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceCidrSpec,
}

/// `spec` of a ServiceCIDR.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ServiceCidrSpec {
    /// Ranges that cluster IPs are taken from.
    #[serde(deserialize_with = "nullable")]
    pub cidrs: Vec<String>,
}
