use std::sync::Arc;

use proxy_core::names::{Protocol, ServiceName, ServicePortName};
use proxy_core::resolved::{Endpoint, FrontendKind, Pool, PoolReason};

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn forward(pool: PoolKind, masquerade: bool) -> Route {
    Route::Forward { pool, masquerade }
}

fn pool(endpoints: &[(&str, bool)]) -> Pool {
    let endpoints = endpoints.iter().map(|(address, is_local)| Endpoint {
        address: ip(address),
        port: 8080,
        is_local: *is_local,
    });
    Pool { endpoints: endpoints.collect(), reason: PoolReason::Ready }
}

fn at(address: &str) -> FrontendKey {
    FrontendKey::Address { address: ip(address), port: 80, protocol: Protocol::Tcp }
}

const NODE_PORT: FrontendKey = FrontendKey::NodePort { port: 30080, protocol: Protocol::Tcp };

/// A Service with an endpoint here and one elsewhere, and this frontend.
fn service(key: FrontendKey, routes: Routes) -> ResolvedService {
    let name = ServiceName::new("default", "web");
    let kind = FrontendKind::ClusterIp;
    ResolvedService {
        name: name.clone(),
        cluster_ip: ip("172.30.0.1"),
        ports: vec![ResolvedPort {
            name: ServicePortName { service: name, port: "p".into(), protocol: Protocol::Tcp },
            frontends: vec![Frontend { key, kind, source_ranges: None, routes }],
            cluster: pool(&[("10.180.0.1", true), ("10.180.1.1", false)]),
            local: pool(&[("10.180.0.1", true)]),
            affinity: None,
            flow_endpoints: Vec::new(),
        }],
        health_check: None,
        scheduler: None,
    }
}

/// The objects of a Service, fixed ones left out, each in a line.
fn compiled(service: &ResolvedService) -> Vec<String> {
    let config = TableConfig {
        family: IpFamily::V4,
        detector: None,
        masquerade_bit: 14,
        scheduler: Scheduler::Rr,
    };
    let node = NodeFacts {
        family: IpFamily::V4,
        node_port_addresses: NodePortAddresses::All,
        service_ranges: Vec::new(),
        addresses: ["127.0.0.1", "192.168.0.2", "192.168.0.3"].map(ip).into(),
    };
    let rules = compile(&config, &node, [service]);
    let is_fixed = |key: &Key| matches!(key, Key::Set(_) | Key::Rules);
    rules.iter().filter(|(key, _)| !is_fixed(key)).map(|(key, _)| key.to_string()).collect()
}

fn has(objects: &[String], wanted: &str) -> bool {
    objects.iter().any(|it| it == wanted)
}

#[test]
fn a_cluster_ip() {
    let mut routes = Routes::all(forward(PoolKind::Cluster, true));
    routes.pod = forward(PoolKind::Cluster, false);
    assert_eq!(
        compiled(&service(at("172.30.0.1"), routes)),
        [
            "entry 172.30.0.1:80/tcp of set servers",
            "entry 172.30.0.1 of set addresses",
            "entry 10.180.0.1:8080/tcp from 10.180.0.1/32 of set hairpin",
            "entry 172.30.0.1:80/tcp of set masq-host",
            "entry 172.30.0.1:80/tcp of set masq-outside",
            "virtual server 172.30.0.1:80/tcp",
            "real server 10.180.0.1 port 8080 of virtual server 172.30.0.1:80/tcp",
            "real server 10.180.1.1 port 8080 of virtual server 172.30.0.1:80/tcp",
            "entry 172.30.0.1:80/tcp of set live",
            "address 172.30.0.1",
        ]
    );
}

/// Node ports answer on each address of the node but loopback, which stays the host's own.
#[test]
fn a_node_port_is_a_server_for_each_address() {
    let objects = compiled(&service(NODE_PORT, Routes::all(forward(PoolKind::Cluster, true))));
    assert!(has(&objects, "virtual server 192.168.0.2:30080/tcp"), "{objects:?}");
    assert!(has(&objects, "virtual server 192.168.0.3:30080/tcp"), "{objects:?}");
    assert!(!objects.iter().any(|it| it.contains("127.0.0.1")), "{objects:?}");
    assert!(!has(&objects, "address 192.168.0.2"), "{objects:?}");
}

/// Dataplane 7.3 and 7.5: one list of real servers, and outside traffic never leaves the node.
#[test]
fn policy_local() {
    let mut routes = Routes {
        pod: forward(PoolKind::Cluster, false),
        host: forward(PoolKind::Cluster, true),
        outside: forward(PoolKind::Local, false),
    };
    let remote = "real server 10.180.1.1 port 8080 of virtual server 198.51.100.1:80/tcp";
    let drops = "entry 198.51.100.1:80/tcp of set drop-outside";
    let objects = compiled(&service(at("198.51.100.1"), routes));
    assert!(!has(&objects, remote) && !has(&objects, drops), "{objects:?}");
    routes.outside = Route::Drop;
    let objects = compiled(&service(at("198.51.100.1"), routes));
    assert!(has(&objects, remote) && has(&objects, drops), "{objects:?}");
}

#[test]
fn refusals_have_no_server() {
    for (route, set) in [(Route::Reject, "reject"), (Route::Drop, "drop")] {
        let objects = compiled(&service(at("172.30.0.1"), Routes::all(route)));
        assert!(has(&objects, &format!("entry 172.30.0.1:80/tcp of set {set}")), "{objects:?}");
        assert!(has(&objects, "address 172.30.0.1"), "{objects:?}");
        assert!(!objects.iter().any(|it| it.contains("server")), "{objects:?}");
    }
}

/// A set cannot hold a prefix of no bits.
#[test]
fn everyone_is_two_halves() {
    let mut service = service(at("198.51.100.1"), Routes::all(Route::Reject));
    let everyone = Cidr::parse("0.0.0.0/0").unwrap();
    service.ports[0].frontends[0].source_ranges = Some(Arc::from([everyone]));
    let objects = compiled(&service);
    for half in ["0.0.0.0/1", "128.0.0.0/1"] {
        let entry = format!("entry 198.51.100.1:80/tcp from {half} of set allowed");
        assert!(has(&objects, &entry), "{objects:?}");
    }
    assert_eq!(storable(Cidr::parse("::/0").unwrap()).len(), 2);
    assert_eq!(storable(Cidr::parse("8000::/1").unwrap()).len(), 1);
}
