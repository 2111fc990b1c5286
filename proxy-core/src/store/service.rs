//! Services as the store keeps them (S3).

use std::net::IpAddr;
use std::sync::Arc;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::findings::Findings;
use super::per_family::PerFamily;
use crate::address::{Cidr, IpFamily, parse_ip};
use crate::api;
use crate::intern::Interner;
use crate::names::Protocol;
use crate::scheduler::Scheduler;

/// The affinity time-out that the API server writes where a user gives none (S3.9).
const DEFAULT_AFFINITY_SECONDS: u32 = 10_800;
/// The longest affinity time-out that the API allows.
const LONGEST_AFFINITY_SECONDS: u32 = 86_400;

/// The parts of a Service that decide what becomes of packets, in both IP families.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredService {
    /// Nanoseconds since 1970; those whose age is unknown count as the youngest.
    pub(crate) created: i64,
    pub(crate) cluster_ips: PerFamily<Option<IpAddr>>,
    pub(crate) external_ips: Box<[IpAddr]>,
    pub(crate) load_balancer_ips: Box<[IpAddr]>,
    pub(crate) source_ranges: SourceRanges,
    pub(crate) internal_local: bool,
    pub(crate) external_local: bool,
    /// Affinity time-out in seconds.
    pub(crate) affinity: Option<u32>,
    pub(crate) health_check_port: Option<u16>,
    /// How endpoints take turns, if the Service says so.
    pub(crate) scheduler: Option<Scheduler>,
    /// By name and protocol.
    pub(crate) ports: Box<[StoredPort]>,
    pub(crate) findings: Findings,
}

/// One port of a Service.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StoredPort {
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
    pub(crate) node_port: Option<u16>,
    /// Position in `spec.ports`, to name the field.
    pub(crate) index: usize,
}

/// `spec.loadBalancerSourceRanges`, those that could be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SourceRanges {
    ranges: Box<[Cidr]>,
    /// Some entry could not be read. Then an empty rest means "nobody" and not "no restriction":
    /// a typing error must not open what somebody meant to close.
    some_unreadable: bool,
}

impl SourceRanges {
    /// The ranges that restrict this family; `None` if nothing does (S3.7).
    pub(crate) fn of(&self, family: IpFamily) -> Option<Vec<Cidr>> {
        let ranges: Vec<Cidr> =
            self.ranges.iter().copied().filter(|range| range.family() == family).collect();
        let unrestricted = ranges.iter().any(|range| range.prefix_len() == 0);
        let unset = ranges.is_empty() && !self.some_unreadable;
        (!unrestricted && !unset).then_some(ranges)
    }
}

impl StoredService {
    /// Reads a Service; `None` if no proxy of this kind serves it (S2.1, S3.1).
    pub(crate) fn read(service: &api::Service, names: &mut Interner) -> Option<Self> {
        let spec = &service.spec;
        let without_address = matches!(spec.cluster_ip.as_str(), "" | "None");
        let elsewhere = service.metadata.labels.service_proxy_name.is_some();
        if without_address || elsewhere || spec.service_type == "ExternalName" {
            return None;
        }
        let mut findings = Findings::default();
        let external_local = external_local(spec, &mut findings);
        Some(Self {
            created: created(&service.metadata, &mut findings),
            cluster_ips: PerFamily::from_fn(|family| cluster_ip(spec, family, &mut findings)),
            external_ips: external_ips(spec, &mut findings),
            load_balancer_ips: load_balancer_ips(&service.status, &mut findings),
            source_ranges: source_ranges(spec, &mut findings),
            internal_local: internal_local(spec, &mut findings),
            external_local,
            affinity: affinity(spec, &mut findings),
            health_check_port: health_check_port(spec, external_local, &mut findings),
            scheduler: scheduler(&service.metadata, &mut findings),
            ports: ports(spec, names, &mut findings),
            findings,
        })
    }
}

fn scheduler(metadata: &api::Metadata, findings: &mut Findings) -> Option<Scheduler> {
    let name = metadata.annotations.ipvs_scheduler.as_deref()?;
    let field = format_args!("metadata.annotations[{}]", api::ANNOTATION_IPVS_SCHEDULER);
    name.parse()
        .inspect_err(|error| findings.add(field, format_args!("{error}; the default is used")))
        .ok()
}

fn created(metadata: &api::Metadata, findings: &mut Findings) -> i64 {
    let parsed = metadata.creation_timestamp.as_deref().and_then(|text| {
        let parsed = OffsetDateTime::parse(text, &Rfc3339);
        if parsed.is_err() {
            let message = format_args!("{text:?} is not an RFC 3339 time; counts as unknown");
            findings.add("metadata.creationTimestamp", message);
        }
        parsed.ok()
    });
    parsed.and_then(|time| time.unix_timestamp_nanos().try_into().ok()).unwrap_or(i64::MAX)
}

fn cluster_ip(
    spec: &api::ServiceSpec,
    family: IpFamily,
    findings: &mut Findings,
) -> Option<IpAddr> {
    if spec.ip_families.is_empty() {
        let address = service_address("spec.clusterIP", &spec.cluster_ip, findings)?;
        return (IpFamily::of(address) == family).then_some(address);
    }
    let index = spec.ip_families.iter().position(|name| *name == family.to_string())?;
    let field = format!("spec.clusterIPs[{index}]");
    let Some(text) = spec.cluster_ips.get(index) else {
        findings.add(field, format_args!("missing; the Service is not served over {family}"));
        return None;
    };
    let address = service_address(&field, text, findings)?;
    if IpFamily::of(address) != family {
        findings.add(field, format_args!("{address} is not an {family} address; left out"));
        return None;
    }
    Some(address)
}

/// An address that clients may dial. Some addresses mean something else to every host; the API
/// server refuses them where a user writes them, and sources without an API server must too.
fn service_address(field: &str, text: &str, findings: &mut Findings) -> Option<IpAddr> {
    let address = findings.ok(field, parse_ip(text))?;
    if address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        findings.add(field, format_args!("{address} cannot be a service address; left out"));
        return None;
    }
    Some(address)
}

fn external_ips(spec: &api::ServiceSpec, findings: &mut Findings) -> Box<[IpAddr]> {
    let texts = spec.external_ips.iter().enumerate();
    let texts = texts.filter(|(_, text)| !text.trim().is_empty());
    texts
        .filter_map(|(index, text)| {
            service_address(&format!("spec.externalIPs[{index}]"), text, findings)
        })
        .collect()
}

fn load_balancer_ips(status: &api::ServiceStatus, findings: &mut Findings) -> Box<[IpAddr]> {
    let ingress = status.load_balancer.ingress.iter().enumerate();
    let ingress = ingress.filter(|(_, ingress)| {
        let captured = ingress.ip_mode.as_deref().is_none_or(|mode| mode == "VIP");
        captured && !ingress.ip.is_empty()
    });
    ingress
        .filter_map(|(index, ingress)| {
            let field = format!("status.loadBalancer.ingress[{index}].ip");
            service_address(&field, &ingress.ip, findings)
        })
        .collect()
}

fn source_ranges(spec: &api::ServiceSpec, findings: &mut Findings) -> SourceRanges {
    let texts = &spec.load_balancer_source_ranges;
    let ranges: Box<[Cidr]> = texts
        .iter()
        .enumerate()
        .filter_map(|(index, text)| {
            let field = format!("spec.loadBalancerSourceRanges[{index}]");
            findings.ok(field, Cidr::parse(text.trim()))
        })
        .collect();
    SourceRanges { some_unreadable: ranges.len() < texts.len(), ranges }
}

fn internal_local(spec: &api::ServiceSpec, findings: &mut Findings) -> bool {
    let policy = spec.internal_traffic_policy.as_deref().unwrap_or_default();
    is_local_policy("spec.internalTrafficPolicy", policy, findings)
}

/// The external policy binds only Services that traffic from outside can reach (S3.8).
fn external_local(spec: &api::ServiceSpec, findings: &mut Findings) -> bool {
    let reachable = match spec.service_type.as_str() {
        "LoadBalancer" | "NodePort" => true,
        "ClusterIP" | "" => !spec.external_ips.is_empty(),
        _ => false,
    };
    let policy = spec.external_traffic_policy.as_str();
    is_local_policy("spec.externalTrafficPolicy", policy, findings) && reachable
}

fn is_local_policy(field: &str, policy: &str, findings: &mut Findings) -> bool {
    if !matches!(policy, "" | "Cluster" | "Local") {
        findings.add(field, format_args!("{policy:?} is not a policy; counts as Cluster"));
    }
    policy == "Local"
}

fn affinity(spec: &api::ServiceSpec, findings: &mut Findings) -> Option<u32> {
    match spec.session_affinity.as_str() {
        "" | "None" => None,
        "ClientIP" => Some(affinity_seconds(spec, findings)),
        other => {
            let message = format_args!("{other:?} is not a kind of affinity; counts as None");
            findings.add("spec.sessionAffinity", message);
            None
        }
    }
}

fn affinity_seconds(spec: &api::ServiceSpec, findings: &mut Findings) -> u32 {
    let client_ip = spec.session_affinity_config.as_ref().and_then(|it| it.client_ip.as_ref());
    let Some(asked) = client_ip.and_then(|client_ip| client_ip.timeout_seconds) else {
        return DEFAULT_AFFINITY_SECONDS;
    };
    let valid = u32::try_from(asked).ok();
    valid.filter(|seconds| (1..=LONGEST_AFFINITY_SECONDS).contains(seconds)).unwrap_or_else(|| {
        let message = format_args!(
            "{asked} is not in 1..{LONGEST_AFFINITY_SECONDS}; {DEFAULT_AFFINITY_SECONDS} is used"
        );
        findings.add("spec.sessionAffinityConfig.clientIP.timeoutSeconds", message);
        DEFAULT_AFFINITY_SECONDS
    })
}

fn health_check_port(
    spec: &api::ServiceSpec,
    external_local: bool,
    findings: &mut Findings,
) -> Option<u16> {
    if spec.service_type != "LoadBalancer" || !external_local {
        return None;
    }
    let field = "spec.healthCheckNodePort";
    valid_port(field, spec.health_check_node_port, "no health check is served", findings)
}

fn ports(
    spec: &api::ServiceSpec,
    names: &mut Interner,
    findings: &mut Findings,
) -> Box<[StoredPort]> {
    let ports = spec.ports.iter().enumerate();
    let mut stored: Vec<StoredPort> =
        ports.filter_map(|(index, port)| read_port(index, port, names, findings)).collect();
    stored.sort_by(|a, b| (&a.name, a.protocol, a.index).cmp(&(&b.name, b.protocol, b.index)));
    stored.dedup_by(|second, first| {
        let same = (&second.name, second.protocol) == (&first.name, first.protocol);
        if same {
            let message = format_args!("same name and protocol as port {}; left out", first.index);
            findings.add(format_args!("spec.ports[{}].name", second.index), message);
        }
        same
    });
    stored.into()
}

fn read_port(
    index: usize,
    port: &api::ServicePort,
    names: &mut Interner,
    findings: &mut Findings,
) -> Option<StoredPort> {
    let field = format!("spec.ports[{index}]");
    let protocol = read_protocol(&field, port.protocol.as_deref(), findings)?;
    let number = valid_port(format_args!("{field}.port"), port.port, "left out", findings)?;
    let node_port = (port.node_port != 0).then(|| {
        valid_port(format_args!("{field}.nodePort"), port.node_port, "left out", findings)
    });
    Some(StoredPort {
        name: names.intern(&port.name),
        protocol,
        port: number,
        node_port: node_port.flatten(),
        index,
    })
}

/// A missing protocol is TCP, as the API server would have written (S3.11, S4.4).
pub(super) fn read_protocol(
    field: &str,
    protocol: Option<&str>,
    findings: &mut Findings,
) -> Option<Protocol> {
    match protocol.unwrap_or_default() {
        "" | "TCP" => Some(Protocol::Tcp),
        "UDP" => Some(Protocol::Udp),
        "SCTP" => Some(Protocol::Sctp),
        other => {
            let message = format_args!("{other:?} is not a protocol of Services; left out");
            findings.add(format_args!("{field}.protocol"), message);
            None
        }
    }
}

/// A port number that packets can carry.
pub(super) fn valid_port(
    field: impl std::fmt::Display,
    number: i64,
    consequence: &str,
    findings: &mut Findings,
) -> Option<u16> {
    let valid = u16::try_from(number).ok().filter(|&number| number != 0);
    if valid.is_none() {
        findings.add(field, format_args!("{number} is not in 1..65535; {consequence}"));
    }
    valid
}
