//! Generated Services, as core would hand them over.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::{Protocol, ServiceName, ServicePortName};
use proxy_core::resolved::{
    Endpoint, Frontend, FrontendKey, FrontendKind, Pool, PoolKind, PoolReason, ResolvedPort,
    ResolvedService, Route, Routes,
};

use super::{address, forward, frontend};

/// What a generated Service is made of.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Recipe {
    /// Tells the Services of a state apart.
    pub number: u8,
    /// Host numbers of its endpoints; those below 8 are on this node.
    pub endpoints: BTreeSet<u8>,
    /// Protocol of its port.
    pub protocol: Protocol,
    /// Whether `internalTrafficPolicy` is Local.
    pub internal_local: bool,
    /// Whether `externalTrafficPolicy` is Local.
    pub external_local: bool,
    /// Whether all traffic to the cluster IP is masqueraded.
    pub masquerade_all: bool,
    /// How many seconds clients stay with their endpoint.
    pub affinity: Option<u16>,
    /// Whether it has an external IP.
    pub external_ip: bool,
    /// Whether it has a node port.
    pub node_port: bool,
    /// Number of load-balancer IPs.
    pub balancers: u8,
    /// Which of its family's ranges the load-balancer IPs admit; all sources, if none.
    pub ranges: BTreeSet<u8>,
}

/// Address of a pod. Numbers below 8 are on this node.
pub fn pod(family: IpFamily, number: u8) -> IpAddr {
    match family {
        IpFamily::V4 => Ipv4Addr::new(10, 180, 0, number).into(),
        IpFamily::V6 => Ipv6Addr::new(0xfd00, 0x10, 0x180, 0, 0, 0, 0, number.into()).into(),
    }
}

/// Ranges to choose from. Some cover others.
fn ranges(family: IpFamily) -> Vec<Cidr> {
    let texts: [&str; 7] = match family {
        IpFamily::V4 => [
            "10.0.0.0/8",
            "10.180.0.0/16",
            "10.180.0.2/31",
            "198.51.100.7/32",
            "198.51.100.0/25",
            "0.0.0.0/1",
            "203.0.113.8/29",
        ],
        IpFamily::V6 => [
            "fd00:10::/32",
            "fd00:10:180::/48",
            "fd00:10:180::2/127",
            "2001:db8::7/128",
            "2001:db8::/33",
            "::/1",
            "2001:db8:1::/61",
        ],
    };
    texts.map(|text| Cidr::parse(text).unwrap()).to_vec()
}

impl Recipe {
    /// Its name.
    pub fn name(&self) -> ServiceName {
        ServiceName::new("default", format!("svc-{}", self.number))
    }

    fn pool(&self, family: IpFamily, local_only: bool) -> Pool {
        let endpoints: Vec<_> = self
            .endpoints
            .iter()
            .map(|number| Endpoint {
                address: pod(family, *number),
                port: 8080,
                is_local: *number < 8,
            })
            .filter(|endpoint| !local_only || endpoint.is_local)
            .collect();
        let reason = if endpoints.is_empty() { PoolReason::Empty } else { PoolReason::Ready };
        Pool { endpoints, reason }
    }

    fn internal_routes(&self, local: bool) -> Routes {
        let masquerade = self.masquerade_all;
        match (self.endpoints.is_empty(), self.internal_local, local) {
            (true, ..) => Routes::all(Route::Reject),
            (false, true, false) => Routes::all(Route::Drop),
            (false, is_local, _) => {
                let pool = if is_local { PoolKind::Local } else { PoolKind::Cluster };
                Routes {
                    pod: forward(pool, masquerade),
                    host: forward(pool, true),
                    outside: forward(pool, true),
                }
            }
        }
    }

    fn external_routes(&self, local: bool) -> Routes {
        if self.endpoints.is_empty() {
            return Routes::all(Route::Reject);
        }
        if !self.external_local {
            return Routes::all(forward(PoolKind::Cluster, true));
        }
        Routes {
            pod: forward(PoolKind::Cluster, false),
            host: forward(PoolKind::Cluster, true),
            outside: if local { forward(PoolKind::Local, false) } else { Route::Drop },
        }
    }

    fn admitted(&self, family: IpFamily) -> Option<Arc<[Cidr]>> {
        let all = ranges(family);
        let chosen: BTreeSet<Cidr> =
            self.ranges.iter().map(|index| all[usize::from(*index) % all.len()]).collect();
        let widest = chosen
            .iter()
            .filter(|range| !chosen.iter().any(|other| other != *range && other.covers(range)));
        let widest: Vec<_> = widest.copied().collect();
        (!widest.is_empty()).then(|| Arc::from(widest))
    }

    /// The Service.
    pub fn build(&self, family: IpFamily) -> Arc<ResolvedService> {
        let number = u32::from(self.number);
        let cluster_ip = address(family, 172, (30 << 16) | number);
        let (cluster, local) = (self.pool(family, false), self.pool(family, true));
        let has_local = !local.endpoints.is_empty();
        let (internal, external) =
            (self.internal_routes(has_local), self.external_routes(has_local));
        let protocol = self.protocol;
        let key = |address, port| FrontendKey::Address { address, port, protocol };
        let mut frontends = vec![frontend(key(cluster_ip, 80), FrontendKind::ClusterIp, internal)];
        if self.external_ip {
            let address = address(family, 198, number);
            frontends.push(frontend(key(address, 80), FrontendKind::ExternalIp, external));
        }
        for balancer in 0..self.balancers {
            let key = key(address(family, 203, (u32::from(balancer) << 8) | number), 80);
            let source_ranges = self.admitted(family);
            let kind = FrontendKind::LoadBalancerIp;
            frontends.push(Frontend { key, kind, source_ranges, routes: external });
        }
        if self.node_port {
            let key = FrontendKey::NodePort { port: 30_000 + u16::from(self.number), protocol };
            frontends.push(frontend(key, FrontendKind::NodePort, external));
        }
        frontends.sort_by_key(|frontend| frontend.key);
        let name = self.name();
        let port = ResolvedPort {
            name: ServicePortName { service: name.clone(), port: "http".into(), protocol },
            frontends,
            cluster,
            local,
            affinity: self.affinity.map(|seconds| Duration::from_secs(seconds.into())),
            flow_endpoints: Vec::new(),
        };
        Arc::new(ResolvedService {
            name,
            cluster_ip,
            ports: vec![port],
            health_check: None,
            scheduler: None,
        })
    }
}

fn recipe(number: u8) -> impl Strategy<Value = Recipe> {
    let few = proptest::collection::btree_set(0..20_u8, 0..10);
    let many = proptest::collection::btree_set(0..100_u8, 0..70);
    let endpoints = prop_oneof![4 => few, 1 => many];
    let policies = (any::<bool>(), any::<bool>(), any::<bool>());
    let affinity = proptest::option::weighted(0.3, prop_oneof![Just(60_u16), Just(10_800)]);
    let frontends = (any::<bool>(), any::<bool>(), prop_oneof![3 => 0..3_u8, 1 => 5..7_u8]);
    let ranges = prop_oneof![Just(BTreeSet::new()), proptest::collection::btree_set(0..7_u8, 1..4)];
    let protocol = proptest::sample::select(&Protocol::ALL[..]);
    (endpoints, policies, affinity, frontends, ranges, protocol).prop_map(
        move |(endpoints, policies, affinity, frontends, ranges, protocol)| Recipe {
            number,
            endpoints,
            protocol,
            internal_local: policies.0,
            external_local: policies.1,
            masquerade_all: policies.2,
            affinity,
            external_ip: frontends.0,
            node_port: frontends.1,
            balancers: frontends.2,
            ranges,
        },
    )
}

/// States of up to `count` Services. The same number is the same Service in all of them.
pub fn recipes(count: u8) -> impl Strategy<Value = Vec<Recipe>> {
    let services: Vec<_> =
        (1..=count).map(|number| proptest::option::weighted(0.8, recipe(number))).collect();
    services.prop_map(|services| services.into_iter().flatten().collect())
}

/// Builds every Service of a state.
pub fn build(recipes: &[Recipe], family: IpFamily) -> Vec<Arc<ResolvedService>> {
    recipes.iter().map(|recipe| recipe.build(family)).collect()
}
