//! Services as core hands them to a backend, for the tests of backends.
#![expect(clippy::unwrap_used, reason = "constants of tests; a wrong one shows at once")]

pub mod generate;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::{Protocol, ServiceName, ServicePortName};
use proxy_core::node::{NodeFacts, NodePortAddresses};
use proxy_core::resolved::{
    Endpoint, Frontend, FrontendKey, FrontendKind, Pool, PoolKind, PoolReason, ResolvedPort,
    ResolvedService, Route, Routes,
};

/// What the node of these Services is like: node ports on its one address.
pub fn node(family: IpFamily) -> NodeFacts {
    let range = match family {
        IpFamily::V4 => "172.30.0.0/16",
        IpFamily::V6 => "fd00:172:30::/108",
    };
    NodeFacts {
        family,
        node_port_addresses: NodePortAddresses::Only([address(family, 192, 2)].into()),
        addresses: [].into(),
        service_ranges: vec![Cidr::parse(range).unwrap()],
    }
}

/// An address of the family made of two numbers.
pub fn address(family: IpFamily, net: u8, host: u32) -> IpAddr {
    let [_, b, c, d] = host.to_be_bytes();
    match family {
        IpFamily::V4 => Ipv4Addr::new(net, b, c, d).into(),
        IpFamily::V6 => {
            let tail = u16::try_from(host & 0xffff).unwrap();
            Ipv6Addr::new(0xfd00, net.into(), 0, 0, 0, 0, u16::from(b), tail).into()
        }
    }
}

/// A frontend that admits every source.
pub fn frontend(key: FrontendKey, kind: FrontendKind, routes: Routes) -> Frontend {
    Frontend { key, kind, source_ranges: None, routes }
}

/// A route to a pool.
pub fn forward(pool: PoolKind, masquerade: bool) -> Route {
    Route::Forward { pool, masquerade }
}

/// A pool of `count` endpoints, of which every third is on this node.
pub fn pool(family: IpFamily, first: u32, count: u32) -> Pool {
    let endpoints = (first..first + count).map(|host| Endpoint {
        address: address(family, 10, host),
        port: 8080,
        is_local: host % 3 == 0,
    });
    Pool { endpoints: endpoints.collect(), reason: PoolReason::Ready }
}

/// A Service with one port, cluster IP only.
pub fn cluster_ip_service(family: IpFamily, number: u32, endpoints: u32) -> ResolvedService {
    let cluster_ip = address(family, 172, number);
    let key = FrontendKey::Address { address: cluster_ip, port: 80, protocol: Protocol::Tcp };
    let routes = if endpoints == 0 {
        Routes::all(Route::Reject)
    } else {
        Routes {
            pod: forward(PoolKind::Cluster, false),
            host: forward(PoolKind::Cluster, true),
            outside: forward(PoolKind::Cluster, true),
        }
    };
    service(family, number, vec![frontend(key, FrontendKind::ClusterIp, routes)], endpoints)
}

/// A Service with one TCP port that has these frontends.
pub fn service(
    family: IpFamily,
    number: u32,
    frontends: Vec<Frontend>,
    endpoints: u32,
) -> ResolvedService {
    let name = ServiceName::new("default", format!("web-{number}"));
    let port = ResolvedPort {
        name: ServicePortName {
            service: name.clone(),
            port: "http".into(),
            protocol: Protocol::Tcp,
        },
        frontends,
        cluster: pool(family, number * 16, endpoints),
        local: Pool::empty(),
        affinity: None,
        flow_endpoints: Vec::new(),
    };
    ResolvedService {
        name,
        cluster_ip: address(family, 172, number),
        ports: vec![port],
        health_check: None,
        scheduler: None,
    }
}

/// One Service of every shape the layout knows.
pub fn every_shape(family: IpFamily) -> Vec<ResolvedService> {
    let node_port = FrontendKey::NodePort { port: 30080, protocol: Protocol::Tcp };
    let vip = |number, port| FrontendKey::Address {
        address: address(family, 192, number),
        port,
        protocol: Protocol::Tcp,
    };
    let all = Routes::all(forward(PoolKind::Cluster, true));
    let local = Routes {
        pod: forward(PoolKind::Cluster, false),
        host: forward(PoolKind::Cluster, true),
        outside: forward(PoolKind::Local, false),
    };
    let no_local = Routes { outside: Route::Drop, ..local };
    let mut services = vec![
        cluster_ip_service(family, 1, 0),
        cluster_ip_service(family, 2, 1),
        cluster_ip_service(family, 3, 7),
        service(family, 4, vec![frontend(node_port, FrontendKind::NodePort, all)], 3),
    ];
    let mut with_local = service(
        family,
        5,
        vec![
            frontend(vip(5, 80), FrontendKind::LoadBalancerIp, local),
            frontend(
                FrontendKey::NodePort { port: 30081, protocol: Protocol::Tcp },
                FrontendKind::NodePort,
                local,
            ),
        ],
        9,
    );
    with_local.ports[0].local = pool(family, 80, 3);
    let ranges = ["10.0.0.0/8", "198.51.100.7/32", "fd00:1::/33"].map(|r| Cidr::parse(r).unwrap());
    let ranges: Vec<_> = ranges.into_iter().filter(|range| range.family() == family).collect();
    with_local.ports[0].frontends[0].source_ranges = Some(Arc::from(ranges));
    services.push(with_local);
    services.push(service(
        family,
        6,
        vec![frontend(vip(6, 80), FrontendKind::ExternalIp, no_local)],
        2,
    ));
    let many = (1..=8).map(|port| frontend(vip(7, port), FrontendKind::LoadBalancerIp, all));
    services.push(service(family, 7, many.collect(), 5));
    let mut sticky = service(
        family,
        8,
        vec![
            frontend(vip(8, 80), FrontendKind::LoadBalancerIp, local),
            frontend(
                FrontendKey::NodePort { port: 30082, protocol: Protocol::Tcp },
                FrontendKind::NodePort,
                local,
            ),
        ],
        4,
    );
    sticky.ports[0].local = pool(family, 128, 2);
    sticky.ports[0].affinity = Some(Duration::from_secs(10_800));
    services.push(sticky);
    services
}
