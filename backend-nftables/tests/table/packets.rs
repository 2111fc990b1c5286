//! What the rules do to packets is what the routes say.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use backend_nftables::{NftablesTable, Refusal, TableConfig};
use proptest::prelude::*;
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::Protocol;
use proxy_core::node::{LocalDetector, NodeFacts, NodePortAddresses};
use proxy_core::resolved::{
    Frontend, FrontendKey, FrontendKind, ResolvedPort, ResolvedService, Route, Routes,
};
use proxy_core::rules::RuleSet;
use proxy_core::table::ServiceTable as _;

use crate::support::generate::{Recipe, build, pod, recipes};
use crate::support::walk::{Outcome, Packet, Passed, Walker};
use crate::support::{self, Rules, address, config};

/// A class of source (dataplane.md 1.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Pod,
    Host,
    Outside,
}

const POD_INTERFACE: &str = "veth0";
const UPLINK: &str = "eth0";
const MARK: u32 = 1 << 14;

/// The node's address on which node ports answer.
fn node_address(family: IpFamily) -> IpAddr {
    address(family, 192, 2)
}

/// Another address of the node.
fn other_address(family: IpFamily) -> IpAddr {
    address(family, 192, 3)
}

fn local_addresses(family: IpFamily) -> Vec<IpAddr> {
    vec![node_address(family), other_address(family), family.loopback()]
}

fn detectors(family: IpFamily) -> [Option<LocalDetector>; 4] {
    [
        config(family).detector,
        Some(LocalDetector::Interface(POD_INTERFACE.into())),
        Some(LocalDetector::InterfacePrefix("veth".into())),
        None,
    ]
}

fn compile(config: &TableConfig, node: &NodeFacts, services: &[Arc<ResolvedService>]) -> Rules {
    let table = NftablesTable::open(config).unwrap();
    let mut rules = RuleSet::new();
    table.compile_node(node, &mut rules);
    for service in services {
        table.compile_service(service, &mut rules);
    }
    rules
}

fn packet(family: IpFamily, class: Class, destination: IpAddr, key: FrontendKey) -> Packet {
    let (source, interface) = match class {
        Class::Pod => (pod(family, 200), Some(POD_INTERFACE)),
        Class::Host => (node_address(family), None),
        Class::Outside => (outsider(family), Some(UPLINK)),
    };
    let (protocol, port) = (key.protocol().number(), key.port());
    Packet { source, destination, protocol, port, interface }
}

fn outsider(family: IpFamily) -> IpAddr {
    match family {
        IpFamily::V4 => "198.51.100.7".parse().unwrap(),
        IpFamily::V6 => "2001:db8::7".parse().unwrap(),
    }
}

fn dialled(family: IpFamily, key: FrontendKey) -> IpAddr {
    match key {
        FrontendKey::Address { address, .. } => address,
        FrontendKey::NodePort { .. } => node_address(family),
    }
}

fn refusal(family: IpFamily, key: FrontendKey) -> Outcome {
    Outcome::Rejected(match key.protocol() {
        Protocol::Tcp => Refusal::TcpReset,
        _ => Refusal::PortUnreachable(family),
    })
}

/// Checks one packet to a frontend against its routes.
fn check_frontend(
    walker: &mut Walker<'_>,
    port: &ResolvedPort,
    frontend: &Frontend,
    packet: Packet,
    route: Route,
) {
    let family = IpFamily::of(packet.source);
    let outcome = walker.walk(packet);
    let context = format!("{packet:?} to {frontend:?} is {outcome:?}");
    let admitted = frontend
        .source_ranges
        .as_ref()
        .is_none_or(|ranges| ranges.iter().any(|range| range.contains(packet.source)));
    if !admitted {
        assert_eq!(outcome, Outcome::Dropped, "{context}");
        return;
    }
    match route {
        Route::Drop => assert_eq!(outcome, Outcome::Dropped, "{context}"),
        Route::Reject => assert_eq!(outcome, refusal(family, frontend.key), "{context}"),
        Route::Forward { pool, masquerade } => {
            let Outcome::Passed(passed) = outcome else { panic!("{context}") };
            let to = passed.to.expect(&context);
            let endpoint = port
                .pool(pool)
                .endpoints
                .iter()
                .find(|endpoint| (endpoint.address, endpoint.port) == to)
                .expect(&context);
            let hairpin = endpoint.is_local && endpoint.address == packet.source;
            assert_eq!(passed.masqueraded, masquerade || hairpin, "{context}");
            assert_eq!(passed.mark & MARK, 0, "{context}");
        }
    }
}

fn route_of(class: Class, routes: Routes, has_detector: bool) -> Route {
    match class {
        Class::Pod if has_detector => routes.pod,
        Class::Host => routes.host,
        Class::Pod | Class::Outside => routes.outside,
    }
}

fn check_state(family: IpFamily, recipes: &[Recipe], node_ports: &NodePortAddresses) {
    let services = build(recipes, family);
    let node = NodeFacts { node_port_addresses: node_ports.clone(), ..support::node(family) };
    for detector in detectors(family) {
        let config = TableConfig { detector: detector.clone(), ..config(family) };
        let rules = compile(&config, &node, &services);
        let mut walker = Walker::new(&rules, family, &local_addresses(family));
        for port in services.iter().flat_map(|service| &service.ports) {
            for frontend in &port.frontends {
                for class in [Class::Pod, Class::Host, Class::Outside] {
                    let to = dialled(family, frontend.key);
                    let packet = packet(family, class, to, frontend.key);
                    let route = route_of(class, frontend.routes, detector.is_some());
                    check_frontend(&mut walker, port, frontend, packet, route);
                }
                // Pods that are endpoints themselves.
                for number in 0..4 {
                    let to = dialled(family, frontend.key);
                    let packet = Packet {
                        source: pod(family, number),
                        ..packet(family, Class::Pod, to, frontend.key)
                    };
                    let route = route_of(Class::Pod, frontend.routes, detector.is_some());
                    walker.remembered.clear();
                    check_frontend(&mut walker, port, frontend, packet, route);
                }
            }
        }
        check_nobodys(&mut walker, family, &services, node_ports);
        assert_eq!(walker.faults, Vec::<String>::new());
    }
}

/// Destinations that no frontend has.
fn check_nobodys(
    walker: &mut Walker<'_>,
    family: IpFamily,
    services: &[Arc<ResolvedService>],
    node_ports: &NodePortAddresses,
) {
    let untouched = Outcome::Passed(Passed { to: None, masqueraded: false, mark: 0 });
    let service = |address, port| FrontendKey::Address { address, port, protocol: Protocol::Tcp };
    for class in [Class::Pod, Class::Host, Class::Outside] {
        let mut walk = |destination, key| walker.walk(packet(family, class, destination, key));
        for service_ip in services.iter().map(|service| service.cluster_ip) {
            let key = service(service_ip, 9);
            assert_eq!(walk(service_ip, key), refusal(family, key), "{class:?} {key}");
        }
        let unallocated = support::node(family).service_ranges[0].last();
        assert_eq!(walk(unallocated, service(unallocated, 80)), Outcome::Dropped);
        let elsewhere = address(family, 192, 77);
        assert_eq!(walk(elsewhere, service(elsewhere, 80)), untouched);
        let is_limited = matches!(node_ports, NodePortAddresses::Only(_));
        for key in node_port_keys(services) {
            // Never on loopback; elsewhere only where it is accepted.
            assert_eq!(walk(family.loopback(), key), untouched, "{class:?} {key}");
            assert_eq!(walk(elsewhere, key), untouched, "{class:?} {key}");
            let is_untouched = walk(other_address(family), key) == untouched;
            assert_eq!(is_untouched, is_limited, "{class:?} {key}");
        }
    }
}

fn node_port_keys(services: &[Arc<ResolvedService>]) -> impl Iterator<Item = FrontendKey> {
    let ports = services.iter().flat_map(|service| &service.ports);
    let keys = ports.flat_map(|port| &port.frontends).map(|frontend| frontend.key);
    keys.filter(|key| matches!(key, FrontendKey::NodePort { .. }))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn packets_take_the_routes(recipes in recipes(5), all_addresses in any::<bool>()) {
        for family in IpFamily::ALL {
            let node_ports = if all_addresses {
                NodePortAddresses::All
            } else {
                NodePortAddresses::Only([node_address(family)].into())
            };
            check_state(family, &recipes, &node_ports);
        }
    }
}

fn many_connections(
    family: IpFamily,
    service: &ResolvedService,
    count: usize,
) -> BTreeMap<IpAddr, usize> {
    let service = Arc::new(service.clone());
    let key = service.ports[0].frontends[0].key;
    let rules = compile(&config(family), &support::node(family), &[service]);
    let mut walker = Walker::new(&rules, family, &local_addresses(family));
    let packet = packet(family, Class::Outside, dialled(family, key), key);
    let mut counts = BTreeMap::new();
    for _ in 0..count {
        let Outcome::Passed(Passed { to: Some((address, _)), .. }) = walker.walk(packet) else {
            panic!("{packet:?}")
        };
        *counts.entry(address).or_insert(0) += 1;
        walker.remembered.clear();
    }
    counts
}

/// The square of the deviation, summed over all endpoints, is within four standard deviations of
/// what chance gives.
#[test]
fn endpoints_are_chosen_evenly() {
    const EACH: usize = 60;
    for endpoints in (1..=20_u32).chain([31, 32, 33, 47, 63, 64, 65, 70]) {
        let mut service = support::cluster_ip_service(IpFamily::V4, 1, endpoints);
        let shapes = [None, Some(Duration::from_secs(60))];
        for affinity in shapes.into_iter().take(if endpoints % 8 == 7 { 2 } else { 1 }) {
            service.ports[0].affinity = affinity;
            let n = usize::try_from(endpoints).unwrap();
            let counts = many_connections(IpFamily::V4, &service, n * EACH);
            assert_eq!(counts.len(), n);
            let squares: usize = counts.values().map(|count| count.abs_diff(EACH).pow(2)).sum();
            let chi_square = f64::from(u32::try_from(squares).unwrap()) / 60.0;
            let freedom = f64::from(endpoints - 1);
            let limit = freedom + 4.0 * (2.0 * freedom).sqrt();
            assert!(chi_square <= limit, "{endpoints} endpoints: {chi_square} > {limit}");
        }
    }
}

#[test]
fn local_endpoints_are_chosen_evenly_on_node_ports() {
    let family = IpFamily::V6;
    let key = FrontendKey::NodePort { port: 30080, protocol: Protocol::Udp };
    let local = support::forward(proxy_core::resolved::PoolKind::Local, false);
    let frontend = support::frontend(key, FrontendKind::NodePort, Routes::all(local));
    let mut service = support::service(family, 1, vec![frontend], 9);
    service.ports[0].local = support::pool(family, 64, 5);
    let counts = many_connections(family, &service, 5000);
    assert_eq!(counts.len(), 5);
    assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
}

#[test]
fn a_client_stays_with_its_endpoint() {
    for family in IpFamily::ALL {
        let services = support::every_shape(family);
        let sticky = services.iter().find(|service| service.ports[0].affinity.is_some()).unwrap();
        let port = &sticky.ports[0];
        let rules = compile(&config(family), &support::node(family), &[Arc::new(sticky.clone())]);
        let mut walker = Walker::new(&rules, family, &local_addresses(family));
        for class in [Class::Pod, Class::Host, Class::Outside] {
            let mut seen = BTreeSet::new();
            for frontend in port.frontends.iter().cycle().take(20) {
                let packet = packet(family, class, dialled(family, frontend.key), frontend.key);
                let Outcome::Passed(Passed { to: Some(to), .. }) = walker.walk(packet) else {
                    panic!("{packet:?}")
                };
                seen.insert(to);
            }
            assert_eq!(seen.len(), 1, "{class:?}");
        }
        assert_eq!(walker.remembered.len(), 3);
        // What is remembered is used, whatever chance says.
        for endpoint in &port.local.endpoints {
            let to = (endpoint.address, endpoint.port);
            for (client, remembered) in &mut walker.remembered {
                if client.1 == outsider(family) {
                    *remembered = to;
                }
            }
            let key = port.frontends[0].key;
            let packet = packet(family, Class::Outside, dialled(family, key), key);
            let Outcome::Passed(passed) = walker.walk(packet) else { panic!("{packet:?}") };
            assert_eq!(passed.to, Some(to));
        }
    }
}

#[test]
fn overlapping_marks_are_left_alone() {
    // Every bit can be the one that asks for masquerading.
    let family = IpFamily::V4;
    let service = Arc::new(support::cluster_ip_service(family, 1, 3));
    let key = service.ports[0].frontends[0].key;
    for bit in [0, 14, 31] {
        let config = TableConfig { masquerade_bit: bit, ..config(family) };
        let rules = compile(&config, &support::node(family), &[Arc::clone(&service)]);
        let mut walker = Walker::new(&rules, family, &local_addresses(family));
        let packet = packet(family, Class::Outside, dialled(family, key), key);
        let Outcome::Passed(passed) = walker.walk(packet) else { panic!("{packet:?}") };
        assert!(passed.masqueraded);
        assert_eq!(passed.mark, 0);
    }
}

#[test]
fn a_range_of_everyone_admits_everyone() {
    for (family, everyone) in [(IpFamily::V4, "0.0.0.0/0"), (IpFamily::V6, "::/0")] {
        let mut service = support::cluster_ip_service(family, 1, 3);
        service.ports[0].frontends[0].source_ranges =
            Some(Arc::from([Cidr::parse(everyone).unwrap()]));
        assert_eq!(many_connections(family, &service, 100).len(), 3);
    }
}
