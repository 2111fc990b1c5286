//! The node: addresses, zone, eligibility, detection of pods, node port addresses (S7 to S9).

use std::net::IpAddr;

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::event::Kind;
use proxy_core::node::{LocalDetector, NodePortAddresses};
use proxy_core::options::{DetectLocal, NodePortSelection, Options};
use serde_json::{Value, json};

use crate::world::{NODE_IP, World, ip, node, options, service, slice};

fn with_addresses(addresses: &[(&str, &str)]) -> Value {
    let mut node = node();
    node["status"]["addresses"] =
        addresses.iter().map(|(kind, address)| json!({"type": kind, "address": address})).collect();
    node
}

#[test]
fn s7_1_the_first_address_of_each_family_counts() {
    for (addresses, v4, v6, primary) in [
        (&[][..], "127.0.0.1", "::1", IpFamily::V4),
        (&[("Hostname", "10.0.0.1"), ("InternalIP", "x")], "127.0.0.1", "::1", IpFamily::V4),
        (&[("InternalIP", "10.0.0.1")], "10.0.0.1", "::1", IpFamily::V4),
        (
            &[("ExternalIP", "192.0.2.1"), ("InternalIP", "fd00::1"), ("InternalIP", "fd00::2")],
            "192.0.2.1",
            "fd00::1",
            IpFamily::V6,
        ),
        (
            &[("ExternalIP", "192.0.2.1"), ("InternalIP", "10.0.0.1"), ("InternalIP", "fd00::1")],
            "10.0.0.1",
            "fd00::1",
            IpFamily::V4,
        ),
    ] {
        let mut world = World::without_node(options());
        world.apply(&with_addresses(addresses));
        let found = IpFamily::ALL.map(|family| world.store.node_ip(family).to_string());
        assert_eq!(found, [v4, v6], "{addresses:?}");
        assert_eq!(world.store.primary_family(), primary, "{addresses:?}");
    }
}

#[test]
fn s7_2_the_bind_address_comes_first() {
    let bound = Options { bind_address: Some(ip("fd00::99")), ..options() };
    let world = World::with(bound, &[]);
    assert_eq!(world.store.node_ip(IpFamily::V6), ip("fd00::99"));
    assert_eq!(world.store.node_ip(IpFamily::V4), ip(NODE_IP));
    assert_eq!(world.store.primary_family(), IpFamily::V6);
}

#[test]
fn without_a_node_object_the_machine_knows_its_addresses() {
    let mut world = World::without_node(options());
    let addresses = ["127.0.0.1", "169.254.1.1", "fe80::1", "10.1.2.3", "10.1.2.4"].map(ip);
    world.store.set_interface_addresses(&addresses);
    assert_eq!(world.store.node_ip(IpFamily::V4), ip("10.1.2.3"));
    assert_eq!(world.store.node_ip(IpFamily::V6), ip("::1"));
    world.apply(&with_addresses(&[]));
    assert_eq!(world.store.node_ip(IpFamily::V4), ip("127.0.0.1"), "the object says: none");
}

#[test]
fn s7_7_eligibility() {
    let mut world = World::without_node(options());
    assert!(!world.store.node().seen && !world.store.node().eligible);
    let mut other = node();
    other["metadata"]["name"] = json!("n1");
    world.apply(&other);
    assert!(!world.store.node().seen, "another node's object");
    world.apply(&node());
    assert!(world.store.node().seen && world.store.node().eligible);
    let mut tainted = node();
    tainted["spec"]["taints"] = json!([{"key": "ToBeDeletedByClusterAutoscaler"}]);
    world.apply(&tainted);
    assert!(!world.store.node().eligible);
    let mut ending = node();
    ending["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
    world.apply(&ending);
    assert!(!world.store.node().eligible);
    world.apply(&node());
    world.delete(Kind::Node, "n0");
    assert!(world.store.node().eligible, "S7.4: the last object is kept");
}

#[test]
fn s8_detectors() {
    let range = |text: &str| Cidr::parse(text).unwrap();
    let source = |text: &str| Some(LocalDetector::Source(range(text)));
    let ranges = vec![range("fd00:1::/64"), range("10.1.0.0/16"), range("10.2.0.0/16")];
    let interface = |name: &str| Some(LocalDetector::Interface(name.to_owned()));
    for (detect_local, v4, v6) in [
        (DetectLocal::ClusterCidr(ranges), source("10.1.0.0/16"), source("fd00:1::/64")),
        (DetectLocal::ClusterCidr(vec![range("10.1.0.0/16")]), source("10.1.0.0/16"), None),
        (DetectLocal::NodeCidr, source("10.180.0.0/24"), source("fd00:10:180::/64")),
        (DetectLocal::Bridge("cbr0".into()), interface("cbr0"), interface("cbr0")),
    ] {
        let world = World::with(Options { detect_local, ..options() }, &[]);
        assert_eq!(world.store.detector(IpFamily::V4), v4);
        assert_eq!(world.store.detector(IpFamily::V6), v6);
    }
}

#[test]
fn s8_a_detector_that_comes_with_the_node_changes_routes() {
    let options = Options { detect_local: DetectLocal::NodeCidr, ..options() };
    let mut world = World::without_node(options);
    world.apply(&service(json!({})));
    world.apply(&slice("s", &["e1 R"]));
    assert_eq!(world.routes("172.30.0.1:80/tcp"), "C C C");
    world.apply(&node());
    assert_eq!(world.routes("172.30.0.1:80/tcp"), "C C* C*");
}

fn selection(ranges: &[&str]) -> NodePortSelection {
    NodePortSelection::Ranges(ranges.iter().map(|text| Cidr::parse(text).unwrap()).collect())
}

fn only(addresses: &[&str]) -> NodePortAddresses {
    NodePortAddresses::Only(addresses.iter().map(|text| ip(text)).collect())
}

#[test]
fn s9_node_port_addresses() {
    let interfaces = [NODE_IP, "192.168.0.12", "10.0.0.1", "127.0.0.1", "fd00:192:168::2", "::1"];
    let all = || NodePortAddresses::All;
    for (node_port_addresses, v4, v6) in [
        (selection(&[]), all(), all()),
        (selection(&["192.168.0.0/24"]), only(&[NODE_IP, "192.168.0.12"]), all()),
        (selection(&["192.168.0.12/32"]), only(&["192.168.0.12"]), all()),
        (selection(&["203.0.113.0/24"]), only(&[]), all()),
        (selection(&["127.0.0.0/8"]), only(&[]), all()),
        (selection(&["192.168.0.0/24", "0.0.0.0/0"]), all(), all()),
        (selection(&["fd00::/8", "10.0.0.1/32"]), only(&["10.0.0.1"]), only(&["fd00:192:168::2"])),
        (NodePortSelection::Primary, only(&[NODE_IP]), only(&["fd00:192:168::2"])),
    ] {
        let options = Options { node_port_addresses, ..options() };
        let mut world = World::with(options.clone(), &[]);
        world.store.set_interface_addresses(&interfaces.map(ip));
        let found = IpFamily::ALL.map(|family| world.store.node_facts(family).node_port_addresses);
        assert_eq!(found, [v4, v6], "{:?}", options.node_port_addresses);
    }
}

#[test]
fn s9_4_interface_addresses_are_followed() {
    let options = Options { node_port_addresses: selection(&["10.0.0.0/8"]), ..options() };
    let mut world = World::with(options, &[]);
    assert!(world.take().node.is_some(), "given the first time");
    assert_eq!(world.take().node, None);
    world.store.set_interface_addresses(&[ip("10.0.0.1")]);
    let facts = world.take().node.expect("changed");
    assert_eq!(facts.node_port_addresses, only(&["10.0.0.1"]));
}

#[test]
fn s9_primary_before_the_interfaces_are_known() {
    let options = Options { node_port_addresses: NodePortSelection::Primary, ..options() };
    let world = World::with(options, &[]);
    let facts = world.store.node_facts(IpFamily::V4);
    assert_eq!(facts.node_port_addresses, only(&[NODE_IP]));
}

#[test]
fn service_ranges_are_the_union_of_all_objects() {
    let object = |name: &str, cidrs: &[&str]| {
        let metadata = json!({"name": name});
        json!({"kind": "ServiceCIDR", "metadata": metadata, "spec": {"cidrs": cidrs}})
    };
    let ranges = |world: &World, family| -> Vec<String> {
        world.store.node_facts(family).service_ranges.iter().map(ToString::to_string).collect()
    };
    let mut world = World::new(&[
        object("a", &["172.30.0.0/16", "fd00:172:30::/112"]),
        object("b", &["172.30.1.0/24", "172.31.0.0/16", "bogus"]),
    ]);
    assert_eq!(ranges(&world, IpFamily::V4), ["172.30.0.0/16", "172.31.0.0/16"]);
    assert_eq!(ranges(&world, IpFamily::V6), ["fd00:172:30::/112"]);
    assert_eq!(world.diagnostics().len(), 1);
    world.apply(&object("a", &["172.40.0.0/16"]));
    assert!(world.take().node.is_some());
    assert_eq!(ranges(&world, IpFamily::V4), ["172.30.1.0/24", "172.31.0.0/16", "172.40.0.0/16"]);
    world.delete(Kind::ServiceCidr, "b");
    assert_eq!(ranges(&world, IpFamily::V4), ["172.40.0.0/16"]);
}

#[test]
fn s9_4_the_addresses_of_the_node() {
    let mut world = World::new(&[node()]);
    let addresses = ["127.0.0.1", "169.254.0.1", "192.168.0.2", "fe80::1", "fd00::2", "::1"];
    world.store.set_interface_addresses(&addresses.map(|text| text.parse().unwrap()));
    let of = |family| Vec::from_iter(world.store.node_facts(family).addresses);
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    assert_eq!(of(IpFamily::V4), [ip("169.254.0.1"), ip("192.168.0.2")]);
    assert_eq!(of(IpFamily::V6), [ip("fd00::2"), ip("fe80::1")]);
}
