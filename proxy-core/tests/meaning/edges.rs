//! The sharp edges of the Service model, one test each.

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::event::Kind;
use proxy_core::node::NodePortAddresses;
use proxy_core::options::{NodePortSelection, Options};
use proxy_core::resolved::PoolReason;
use serde_json::{Value, json};

use crate::world::{World, ip, named_service, node, options, service, slice, slice_of};

fn external_local() -> Value {
    json!({
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 32000,
        "ports": [{"port": 80, "nodePort": 30080}],
    })
}

#[test]
fn edge_01_serving_nil_is_true() {
    let mut one = slice("s", &["e1"]);
    one["endpoints"][0]["conditions"] = json!({"ready": false, "terminating": true});
    assert_eq!(World::new(&[service(json!({})), one]).pools().0, "e1");
}

#[test]
fn edge_02_the_terminating_fallback_is_per_set() {
    let mut world = World::new(&[service(external_local()), slice("s", &["e1 R", "e2 ST L"])]);
    assert_eq!(world.pools(), ("e1".into(), "e2".into()));
    let port = world.port();
    assert_eq!(port.cluster.reason, PoolReason::Ready);
    assert_eq!(port.local.reason, PoolReason::Terminating);
}

#[test]
fn edge_03_the_fallback_ignores_topology_and_topology_ignores_the_unready() {
    let mut world = World::new(&[service(json!({})), slice("s", &["e1 z:a", "e2 R z:b"])]);
    assert_eq!(world.pools().0, "e2");
    world.apply(&slice("s", &["e1 ST z:a", "e2 ST z:b"]));
    assert_eq!(world.pools().0, "e1 e2");
}

#[test]
fn edge_04_one_endpoint_without_hint_disables_hints() {
    let mut world = World::new(&[service(json!({})), slice("s", &["e1 R z:a", "e2 R z:b"])]);
    assert_eq!(world.pools().0, "e1");
    world.apply(&slice("t", &["e3 R"]));
    assert_eq!(world.pools().0, "e1 e2 e3");
}

#[test]
fn edge_05_internal_local_with_endpoints_elsewhere_drops() {
    let spec = json!({"internalTrafficPolicy": "Local"});
    let mut world = World::new(&[service(spec), slice("s", &["e1 R"])]);
    assert_eq!(world.routes("172.30.0.1:80/tcp"), "drop drop drop");
    world.apply(&slice("s", &[]));
    assert_eq!(world.routes("172.30.0.1:80/tcp"), "reject reject reject", "known failure 62");
}

#[test]
fn edge_06_external_local_without_local_endpoints_serves_the_inside() {
    let mut world = World::new(&[service(external_local()), slice("s", &["e1 R"])]);
    assert_eq!(world.routes("*:30080/tcp"), "C C* drop", "known failure 60");
}

#[test]
fn edge_07_external_local_means_nothing_without_external_addresses() {
    let mut spec = json!({"externalTrafficPolicy": "Local"});
    let mut world = World::new(&[service(spec.clone()), slice("s", &["e1 R"])]);
    assert_eq!(world.frontends(), ["172.30.0.1:80/tcp cluster IP C C* C*"]);
    spec["externalIPs"] = json!(["192.0.2.1"]);
    world.apply(&service(spec));
    assert_eq!(world.routes("192.0.2.1:80/tcp"), "C C* drop");
}

#[test]
fn edge_08_source_ranges_do_not_fail_open_by_a_typing_error() {
    for (ranges, open) in [
        (json!(["bogus"]), false),
        (json!(["2001:db8::/64"]), true),
        (json!(["203.0.113.0/28", "0.0.0.0/0"]), true),
    ] {
        let spec = json!({"vips": ["192.0.2.2"], "loadBalancerSourceRanges": ranges});
        let frontend = World::new(&[service(spec)]).port().frontends.remove(1);
        assert_eq!(frontend.source_ranges.is_none(), open, "{ranges}");
    }
}

#[test]
fn edge_09_leading_zeros_are_accepted_and_one_bad_address_blocks_nobody() {
    let spec = json!({"clusterIP": "172.30.000.041", "externalIPs": ["bad", "192.0.2.001"]});
    let mut world = World::new(&[service(spec), slice("s", &["bad R", "10.180.000.001 R"])]);
    assert_eq!(
        world.frontends(),
        ["172.30.0.41:80/tcp cluster IP C C* C*", "192.0.2.1:80/tcp external IP C* C* C*"]
    );
    assert_eq!(world.pools().0, "e1");
}

#[test]
fn edge_10_a_reused_pod_address_is_ready_in_both_orders() {
    for (a, b) in [("e1 ST", "e1 R L"), ("e1 R L", "e1 ST")] {
        let mut world = World::new(&[service(json!({})), slice("a", &[a]), slice("b", &[b])]);
        let pool = world.port().cluster;
        assert_eq!(pool.reason, PoolReason::Ready);
        assert!(pool.endpoints[0].is_local);
    }
}

#[test]
fn edge_11_ports_match_by_name_alone() {
    let spec = json!({"ports": [{"name": "a", "port": 80}, {"name": "b", "port": 8080}]});
    let mut one = slice("s", &["e1 R"]);
    one["ports"] = json!([{"name": "b", "port": 8080}, {"port": 80}, {"name": "", "port": 80}]);
    let mut world = World::new(&[service(spec), one]);
    let service = world.find("web").unwrap();
    let sizes: Vec<usize> = service.ports.iter().map(|port| port.cluster.endpoints.len()).collect();
    assert_eq!(sizes, [0, 1]);
}

#[test]
fn edge_12_a_slice_that_moves_leaves_nothing_behind() {
    let mut world = World::new(&[service(json!({})), slice("s", &["e1 R"])]);
    world.take();
    world.apply(&slice_of("other", "s", &["e1 R"]));
    assert_eq!(world.pools().0, "");
    world.apply(&slice("s", &["e2 R"]));
    assert_eq!(world.pools().0, "e2");
}

#[test]
fn edge_13_the_health_check_fails_while_traffic_goes_on() {
    let mut world = World::new(&[service(external_local()), slice("s", &["e1 ST L"])]);
    assert_eq!(world.routes("*:30080/tcp"), "C C* L");
    let check = world.find("web").unwrap().health_check.unwrap();
    assert_eq!((check.port, check.local_endpoints), (32000, 0), "known failure 66");
}

#[test]
fn edge_16_primary_without_an_address_of_the_family_opens_it() {
    let mut four = node();
    four["status"]["addresses"] = json!([{"type": "InternalIP", "address": "192.168.0.2"}]);
    let options = Options { node_port_addresses: NodePortSelection::Primary, ..options() };
    let mut world = World::with(options, &[four]);
    world.store.set_interface_addresses(&["192.168.0.2", "fd00::5"].map(ip));
    let facts = world.store.node_facts(IpFamily::V6);
    assert_eq!(facts.node_port_addresses, NodePortAddresses::All);
    assert_eq!(world.diagnostics(), [""; 0], "known failure 39: nobody asked for IPv6");
    world.store.take_changes(IpFamily::V6);
    assert_eq!(
        world.diagnostics(),
        ["Node/n0: status.addresses: no IPv6 address for nodePortAddresses \"primary\"; node \
             ports answer on every IPv6 address"]
    );
}

#[test]
fn edge_18_a_new_external_ip_of_a_udp_service_cleans_flows() {
    let udp = |external: Value| {
        service(json!({"ports": [{"port": 53, "protocol": "UDP"}], "externalIPs": external}))
    };
    let mut world = World::new(&[udp(json!([]))]);
    world.take();
    world.apply(&udp(json!(["192.0.2.1"])));
    let flow = (ip("192.0.2.1"), 53);
    assert!(world.take().stale_flows.is_stale(flow, flow));
}

#[test]
fn edge_19_foreign_hosts_keep_their_flows_on_node_port_numbers() {
    let ports = json!([{"port": 53, "protocol": "UDP", "nodePort": 30053}]);
    let mut world = World::new(&[service(json!({"ports": ports}))]);
    let foreign = (ip("8.8.8.8"), 30053);
    assert!(!world.take().stale_flows.is_stale(foreign, foreign));
}

#[test]
fn edge_25_node_names_are_compared_exactly() {
    let mut one = slice("s", &["e1 R L"]);
    one["endpoints"][0]["nodeName"] = json!("N0");
    let mut world = World::new(&[service(json!({})), one.clone()]);
    assert!(!world.port().cluster.endpoints[0].is_local);
    one["endpoints"][0]["nodeName"] = json!("");
    let mut nameless = World::with(Options { node_name: String::new(), ..options() }, &[]);
    nameless.apply(&service(json!({})));
    nameless.apply(&one);
    assert!(!nameless.port().cluster.endpoints[0].is_local, "S4.7");
}

#[test]
fn edge_26_a_zone_that_comes_late_takes_effect() {
    let mut unlabelled = node();
    unlabelled["metadata"]["labels"] = json!({});
    let mut world = World::new(&[
        service(json!({})),
        slice("s", &["e1 R z:a", "e2 R z:b"]),
        unlabelled.clone(),
    ]);
    assert_eq!(world.pools().0, "e1 e2", "known failure 61");
    world.apply(&node());
    assert_eq!(world.changed(), ["web"]);
    assert_eq!(world.pools().0, "e1");
    world.delete(Kind::Node, "n0");
    assert_eq!(world.changed(), [""; 0], "S7.6: a deletion does not clear it");
    world.apply(&unlabelled);
    assert_eq!(world.pools().0, "e1 e2");
}

#[test]
fn edge_26_a_zone_without_a_name_is_none() {
    let mut blank = node();
    blank["metadata"]["labels"]["topology.kubernetes.io/zone"] = json!("");
    let mut one = slice("s", &["e1 R z:a", "e2 R z:b"]);
    one["endpoints"][0]["hints"] = json!({"forZones": [{"name": ""}]});
    assert_eq!(World::new(&[service(json!({})), one, blank]).pools().0, "e1 e2");
}

#[test]
fn edge_27_service_ranges_take_effect_at_once() {
    let mut world = World::new(&[]);
    world.take();
    world.apply(&json!({
        "kind": "ServiceCIDR", "metadata": {"name": "kubernetes"},
        "spec": {"cidrs": ["172.30.0.0/16"]},
    }));
    let facts = world.take().node.expect("changed");
    assert_eq!(facts.service_ranges, [Cidr::parse("172.30.0.0/16").unwrap()]);
}

#[test]
fn edge_28_an_external_name_vanishes_and_comes_back() {
    let mut world = World::new(&[service(json!({})), slice("s", &["e1 R"])]);
    assert_eq!(world.changed(), ["web"]);
    world.apply(&service(json!({"type": "ExternalName"})));
    assert_eq!(world.find("web"), None);
    world.apply(&service(json!({})));
    assert_eq!(world.pools().0, "e1", "known failure 34: no new slice is needed");
}

#[test]
fn edge_30_objects_of_one_family_leave_the_other_alone() {
    let six = json!({"ipFamilies": ["IPv6"], "clusterIPs": ["fd00:172:30::1"]});
    let mut world = World::new(&[service(json!({}))]);
    world.take();
    world.store.take_changes(IpFamily::V6);
    world.apply(&named_service("six", "fd00:172:30::1", six));
    assert_eq!(world.changed(), [""; 0]);
    assert_eq!(world.store.take_changes(IpFamily::V6).services.len(), 1);
}
