//! From a Service and its slices to frontends, routes and pools.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{Cidr, IpFamily};
use crate::claims::{Claim, Claims, ServiceClaims};
use crate::diagnostic::Diagnostic;
use crate::endpoints::{gather, identity};
use crate::event::Kind;
use crate::names::{Protocol, ServiceName, ServicePortName};
use crate::resolved::{
    Frontend, FrontendKey, FrontendKind, HealthCheck, Pool, PoolKind, ResolvedPort,
    ResolvedService, Route, Routes,
};
use crate::store::service::{StoredPort, StoredService};
use crate::store::slice::SliceContent;
use crate::topology::{Candidate, Categories, EndpointFlags, Usage, categorize_endpoints};

/// Kernel layouts number the endpoints of a pool with 16 bits.
const MOST_ENDPOINTS: usize = 65_535;

/// What the node and the options contribute to every Service of one family. When it changes, all
/// Services are resolved anew.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Context {
    pub(crate) family: IpFamily,
    pub(crate) zone: Option<Arc<str>>,
    pub(crate) node_ip: IpAddr,
    pub(crate) has_detector: bool,
    pub(crate) masquerade_all: bool,
    pub(crate) allow_external_ips: bool,
    pub(crate) external_ip_ranges: Arc<[Cidr]>,
}

impl Context {
    /// Whether an external IP is in a range where such addresses may be.
    fn is_in_range(&self, external_ip: IpAddr) -> bool {
        let ranges = &self.external_ip_ranges;
        ranges.is_empty() || ranges.iter().any(|range| range.contains(external_ip))
    }
}

/// A Service with all that is needed to resolve it.
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a ServiceName,
    pub(crate) service: &'a StoredService,
    pub(crate) slices: Vec<&'a SliceContent>,
    pub(crate) context: &'a Context,
}

/// A frontend that a service port asks for, before it is known whether it gets it.
struct Wanted {
    key: FrontendKey,
    kind: FrontendKind,
    /// Whether the Service's source ranges bind it.
    restricted: bool,
}

/// What the Service asks for in this family; `None` if it does not exist there.
pub(crate) fn claims_of(
    name: &ServiceName,
    service: &StoredService,
    context: &Context,
) -> Option<ServiceClaims> {
    let cluster_ip = (*service.cluster_ips.of(context.family))?;
    let claims = service.ports.iter().flat_map(|port| {
        wanted(service, port, cluster_ip, context).into_iter().map(|wanted| Claim {
            key: wanted.key,
            kind: wanted.kind,
            port: Arc::clone(&port.name),
        })
    });
    Some(ServiceClaims {
        service: name.clone(),
        created: service.created,
        claims: claims.collect(),
    })
}

/// The frontends a port asks for, by key and each once. Where two kinds fall on one key the first
/// in precedence names it, but source ranges stay: they are about the address, not the kind.
fn wanted(
    service: &StoredService,
    port: &StoredPort,
    cluster_ip: IpAddr,
    context: &Context,
) -> Vec<Wanted> {
    let at = |address, kind| Wanted {
        key: FrontendKey::Address { address, port: port.port, protocol: port.protocol },
        kind,
        restricted: kind == FrontendKind::LoadBalancerIp,
    };
    let external_ips = if context.allow_external_ips { &*service.external_ips } else { &[] };
    let node_port = port.node_port.map(|number| Wanted {
        key: FrontendKey::NodePort { port: number, protocol: port.protocol },
        kind: FrontendKind::NodePort,
        restricted: false,
    });
    let mut wanted: Vec<Wanted> = std::iter::once(at(cluster_ip, FrontendKind::ClusterIp))
        .chain(
            of_family(external_ips, context.family)
                .filter(|&address| context.is_in_range(address))
                .map(|address| at(address, FrontendKind::ExternalIp)),
        )
        .chain(
            of_family(&service.load_balancer_ips, context.family)
                .map(|address| at(address, FrontendKind::LoadBalancerIp)),
        )
        .chain(node_port)
        .collect();
    wanted.sort_by_key(|wanted| (wanted.key, wanted.kind));
    wanted.dedup_by(|later, earlier| {
        let same = later.key == earlier.key;
        earlier.restricted |= same && later.restricted;
        same
    });
    wanted
}

fn of_family(addresses: &[IpAddr], family: IpFamily) -> impl Iterator<Item = IpAddr> + '_ {
    addresses.iter().copied().filter(move |&address| IpFamily::of(address) == family)
}

impl Subject<'_> {
    /// Resolves the Service; `None` if it does not exist in this family (S3.3).
    pub(crate) fn resolve(
        &self,
        claims: &Claims,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> Option<ResolvedService> {
        let cluster_ip = (*self.service.cluster_ips.of(self.context.family))?;
        self.external_ips_out_of_range(diagnostics);
        let source_ranges = self.source_ranges();
        let mut local_addresses = BTreeSet::new();
        let mut ports = Vec::with_capacity(self.service.ports.len());
        for port in &self.service.ports {
            let slices = self.slices.iter().copied();
            let zone = self.context.zone.as_deref();
            let candidates = gather(slices, &port.name, port.protocol, zone);
            if self.service.health_check_port.is_some() {
                local_addresses.extend(ready_local_addresses(&candidates));
            }
            let mut wanted = wanted(self.service, port, cluster_ip, self.context);
            wanted.retain(|wanted| self.is_ours(port, wanted, claims, diagnostics));
            let mut categories = categorize_endpoints(&candidates, self.usage(port));
            self.bound(port, &mut categories, diagnostics);
            let frontends =
                wanted.iter().map(|it| self.frontend(it, &categories, source_ranges.as_ref()));
            ports.push(ResolvedPort {
                name: self.port_name(port),
                frontends: frontends.collect(),
                cluster: categories.cluster,
                local: categories.local,
                affinity: self.service.affinity.map(|it| Duration::from_secs(it.into())),
                flow_endpoints: flow_endpoints(port.protocol, &candidates),
            });
        }
        let health_check = self
            .service
            .health_check_port
            .map(|port| HealthCheck { port, local_endpoints: local_addresses.len() });
        Some(ResolvedService {
            name: self.name.clone(),
            cluster_ip,
            ports,
            health_check,
            scheduler: self.service.scheduler,
        })
    }

    fn port_name(&self, port: &StoredPort) -> ServicePortName {
        ServicePortName {
            service: self.name.clone(),
            port: Arc::clone(&port.name),
            protocol: port.protocol,
        }
    }

    fn external_ips_out_of_range(&self, diagnostics: &mut Vec<Diagnostic>) {
        if !self.context.allow_external_ips {
            return;
        }
        let external_ips = of_family(&self.service.external_ips, self.context.family);
        for address in external_ips.filter(|&address| !self.context.is_in_range(address)) {
            let message = format!("{address} is in no range for external IPs; left out");
            diagnostics.push(Diagnostic::new(object(self.name), "spec.externalIPs", message));
        }
    }

    /// The port counts as reachable from outside even where external IPs are switched off (S3.5) or
    /// out of range.
    fn is_externally_accessible(&self, port: &StoredPort) -> bool {
        let family = self.context.family;
        port.node_port.is_some()
            || of_family(&self.service.load_balancer_ips, family).next().is_some()
            || of_family(&self.service.external_ips, family).next().is_some()
    }

    fn usage(&self, port: &StoredPort) -> Usage {
        let accessible = self.is_externally_accessible(port);
        Usage::of(self.service.internal_local, self.service.external_local, accessible)
    }

    fn bound(
        &self,
        port: &StoredPort,
        categories: &mut Categories,
        diagnostics: &mut Vec<Diagnostic>,
    ) {
        for pool in [&mut categories.cluster, &mut categories.local] {
            let found = pool.endpoints.len();
            if found > MOST_ENDPOINTS {
                pool.endpoints.truncate(MOST_ENDPOINTS);
                let message =
                    format!("{found} endpoints; only the first {MOST_ENDPOINTS} are used");
                let field = format!("spec.ports[{}]", port.index);
                diagnostics.push(Diagnostic::new(object(self.name), field, message));
            }
        }
    }

    fn is_ours(
        &self,
        port: &StoredPort,
        wanted: &Wanted,
        claims: &Claims,
        diagnostics: &mut Vec<Diagnostic>,
    ) -> bool {
        let ours = claims.is_owner(&wanted.key, self.name, &port.name);
        if let Some(owner) = claims.owner(&wanted.key).filter(|_| !ours) {
            let field = match wanted.kind {
                FrontendKind::ClusterIp => "spec.clusterIPs".to_owned(),
                FrontendKind::ExternalIp => "spec.externalIPs".to_owned(),
                FrontendKind::LoadBalancerIp => "status.loadBalancer.ingress".to_owned(),
                FrontendKind::NodePort => format!("spec.ports[{}].nodePort", port.index),
            };
            let mine = self.port_name(port);
            let message = format!("{} belongs to {owner}; left out for {mine}", wanted.key);
            diagnostics.push(Diagnostic::new(object(self.name), field, message));
        }
        ours
    }

    fn frontend(
        &self,
        wanted: &Wanted,
        categories: &Categories,
        source_ranges: Option<&Arc<[Cidr]>>,
    ) -> Frontend {
        let routes = match wanted.kind {
            FrontendKind::ClusterIp => self.internal_routes(categories),
            _ => self.external_routes(categories),
        };
        Frontend {
            key: wanted.key,
            kind: wanted.kind,
            source_ranges: source_ranges.filter(|_| wanted.restricted).cloned(),
            routes,
        }
    }

    /// Where traffic to the cluster IP goes. The internal policy decides about the endpoints and
    /// never about masquerading.
    fn internal_routes(&self, categories: &Categories) -> Routes {
        let pool = if self.service.internal_local { PoolKind::Local } else { PoolKind::Cluster };
        let route = |masquerade| forward(categories, pool, masquerade);
        let Context { masquerade_all, has_detector, .. } = *self.context;
        Routes {
            pod: route(masquerade_all),
            host: route(masquerade_all || has_detector),
            outside: route(masquerade_all || has_detector),
        }
    }

    /// Where traffic to all other frontends goes. Under policy Local, sources inside the cluster
    /// are treated as if their packets had gone out and come back through a load balancer: the
    /// policy does not bind them.
    fn external_routes(&self, categories: &Categories) -> Routes {
        if !self.service.external_local {
            return Routes::all(forward(categories, PoolKind::Cluster, true));
        }
        let outside = forward(categories, PoolKind::Local, false);
        let pod = forward(categories, PoolKind::Cluster, false);
        Routes {
            pod: if self.context.has_detector { pod } else { outside },
            host: forward(categories, PoolKind::Cluster, true),
            outside,
        }
    }

    /// The source ranges of the load-balancer addresses. A host that talks to such an address
    /// while it is bound on the host itself arrives with that very address as its source, so
    /// where the node is admitted its addresses are too (S3.7).
    fn source_ranges(&self) -> Option<Arc<[Cidr]>> {
        let family = self.context.family;
        let mut ranges = self.service.source_ranges.of(family)?;
        if ranges.iter().any(|range| range.contains(self.context.node_ip)) {
            ranges.extend(of_family(&self.service.load_balancer_ips, family).map(Cidr::host));
        }
        Some(without_covered(ranges).into())
    }
}

/// Nothing at all in the cluster is refused, so that clients give up at once; nothing on this
/// node is not answered, as another node may well serve.
fn forward(categories: &Categories, pool: PoolKind, masquerade: bool) -> Route {
    let endpoints = match pool {
        PoolKind::Cluster => &categories.cluster,
        PoolKind::Local => &categories.local,
    };
    match (categories.has_any, endpoints) {
        (false, _) => Route::Reject,
        (true, Pool { endpoints, .. }) if endpoints.is_empty() => Route::Drop,
        (true, _) => Route::Forward { pool, masquerade },
    }
}

fn ready_local_addresses(candidates: &[Candidate]) -> impl Iterator<Item = IpAddr> + '_ {
    let wanted = EndpointFlags::READY.with(EndpointFlags::LOCAL, true);
    let ready = candidates.iter().filter(move |candidate| candidate.flags.has(wanted));
    ready.map(|candidate| candidate.endpoint.address)
}

fn flow_endpoints(protocol: Protocol, candidates: &[Candidate]) -> Vec<(IpAddr, u16)> {
    if protocol != Protocol::Udp {
        return Vec::new();
    }
    let mut kept: Vec<_> = candidates
        .iter()
        .filter(|candidate| {
            candidate.flags.has(EndpointFlags::READY) || candidate.flags.has(EndpointFlags::SERVING)
        })
        .map(|candidate| identity(&candidate.endpoint))
        .collect();
    kept.shrink_to_fit();
    kept
}

/// The ranges in order, without those that another one covers.
pub(crate) fn without_covered(mut ranges: Vec<Cidr>) -> Vec<Cidr> {
    // A range that covers others starts no later and is no longer in its prefix, so it comes
    // before them, with nothing in between that it does not cover.
    ranges.sort_unstable();
    ranges.dedup_by(|later, earlier| earlier.covers(later));
    ranges
}

/// The Service's name in findings.
pub(crate) fn object(name: &ServiceName) -> String {
    format!("{}/{name}", Kind::Service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_others_cover_are_left_out() {
        let texts =
            ["10.1.0.0/16", "10.0.0.0/8", "9.0.0.0/8", "10.1.2.0/24", "11.0.0.0/32", "::/0"];
        let ranges = texts.iter().map(|text| Cidr::parse(text).unwrap()).collect();
        let kept: Vec<String> = without_covered(ranges).iter().map(Cidr::to_string).collect();
        assert_eq!(kept, ["9.0.0.0/8", "10.0.0.0/8", "11.0.0.0/32", "::/0"]);
    }
}
