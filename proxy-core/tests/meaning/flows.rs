//! UDP flows that changes leave behind (S11).

use proxy_core::address::Cidr;
use proxy_core::conntrack::FlowCleaner;
use proxy_core::event::Kind;
use proxy_core::options::{NodePortSelection, Options};
use serde_json::{Value, json};

use crate::world::{NODE_IP, World, ip, named_service, options, service, slice, slice_of};

const CLUSTER: &str = "172.30.0.1:53";
const EXTERNAL: &str = "192.0.2.1:53";
const BALANCER: &str = "192.0.2.2:53";
const NODE_PORT: &str = "192.168.0.2:30053";

fn spec() -> Value {
    json!({
        "type": "LoadBalancer",
        "ports": [{"port": 53, "protocol": "UDP", "nodePort": 30053}],
        "externalIPs": ["192.0.2.1"],
        "vips": ["192.0.2.2"],
    })
}

fn dns() -> Value {
    service(spec())
}

fn endpoints(texts: &[&str]) -> Value {
    let mut slice = slice("s", texts);
    slice["ports"] = json!([{"name": "", "port": 5353, "protocol": "UDP"}]);
    slice
}

fn world(objects: &[Value]) -> World {
    let options = Options { node_port_addresses: NodePortSelection::Primary, ..options() };
    let mut world = World::with(options, objects);
    world.store.set_interface_addresses(&[NODE_IP, "192.168.0.12", "127.0.0.1"].map(ip));
    world
}

fn socket(text: &str) -> (std::net::IpAddr, u16) {
    let host = text.strip_prefix('e').map(|host| format!("10.180.0.{host}:5353"));
    let text = host.as_deref().unwrap_or(text);
    let socket: std::net::SocketAddr = text.parse().unwrap();
    (socket.ip(), socket.port())
}

/// Those of the flows that are stale, each as `destination>answers from`.
fn stale<'a>(cleaner: &FlowCleaner, flows: &[&'a str]) -> Vec<&'a str> {
    let mut stale = flows.to_vec();
    stale.retain(|flow| {
        let (destination, reply) = flow.split_once('>').unwrap();
        cleaner.is_stale(socket(destination), socket(reply))
    });
    stale
}

fn flows_of(world: &mut World) -> FlowCleaner {
    world.take().stale_flows
}

#[test]
fn s11_3_flows_to_a_replaced_endpoint_are_stale_on_every_frontend() {
    let mut world = world(&[dns(), endpoints(&["e1 R", "e2 R"])]);
    world.take();
    world.apply(&endpoints(&["e2 R", "e3 R"]));
    let cleaner = flows_of(&mut world);
    for frontend in [CLUSTER, EXTERNAL, BALANCER, NODE_PORT] {
        let flow = |reply: &str| format!("{frontend}>{reply}");
        let flows = [flow("e1"), flow("e2"), flow("e3"), flow("10.180.0.2:5354"), flow(frontend)];
        let flows: Vec<&str> = flows.iter().map(String::as_str).collect();
        assert_eq!(stale(&cleaner, &flows), [flows[0], flows[3], flows[4]]);
    }
    assert_eq!(stale(&cleaner, &["172.30.0.1:54>e1", "8.8.8.8:53>8.8.8.8:53"]), [""; 0]);
}

#[test]
fn s11_6e_node_port_flows_are_judged_only_where_node_ports_answer() {
    let mut one = world(&[dns(), endpoints(&["e1 R"])]);
    let flows = ["8.8.8.8:30053>8.8.8.8:30053", "192.168.0.12:30053>e9", "192.168.0.2:30053>e9"];
    assert_eq!(stale(&flows_of(&mut one), &flows), ["192.168.0.2:30053>e9"]);

    let mut all = World::new(&[dns(), endpoints(&["e1 R"])]);
    all.store.set_interface_addresses(&[NODE_IP, "192.168.0.12", "127.0.0.1"].map(ip));
    assert_eq!(stale(&flows_of(&mut all), &flows), &flows[1..]);

    let mut unknown = World::new(&[dns(), endpoints(&["e1 R"])]);
    assert_eq!(stale(&flows_of(&mut unknown), &flows), &flows[1..], "translated, so ours");
}

#[test]
fn s11_2_flows_may_stay_on_whatever_serves_or_is_ready() {
    let mut odd = endpoints(&["e1 ST", "e2 S", "e3 R", "e4 R L z:b", "e5", "e6 T"]);
    odd["endpoints"][2]["conditions"] = json!({"ready": true, "serving": false});
    let mut spec = spec();
    spec["internalTrafficPolicy"] = json!("Local");
    let mut world = world(&[service(spec), odd]);
    let flows = ["1", "2", "3", "4", "5", "6"].map(|host| format!("{CLUSTER}>e{host}"));
    let flows: Vec<&str> = flows.iter().map(String::as_str).collect();
    assert_eq!(stale(&flows_of(&mut world), &flows), &flows[4..], "S11.6d");
}

#[test]
fn s11_6a_services_without_endpoints_and_deleted_services_keep_no_flow() {
    let flows = ["172.30.0.1:53>e1", "192.168.0.2:30053>e1"];
    let mut world = world(&[dns(), endpoints(&["e1 R"])]);
    world.take();
    world.apply(&endpoints(&[]));
    assert_eq!(stale(&flows_of(&mut world), &flows), flows);
    world.apply(&endpoints(&["e1 R"]));
    assert_eq!(stale(&flows_of(&mut world), &flows), [""; 0]);
    world.delete(Kind::Service, "web");
    assert_eq!(stale(&flows_of(&mut world), &flows), flows);
}

#[test]
fn s11_6b_gained_and_lost_frontends_count() {
    let mut world = world(&[dns(), endpoints(&["e1 R"])]);
    world.take();
    let mut changed = spec();
    changed["externalIPs"] = json!(["192.0.2.9"]);
    changed["ports"][0]["nodePort"] = json!(30054);
    world.apply(&service(changed));
    let untranslated = "192.0.2.9:53>192.0.2.9:53";
    let flows = [untranslated, "192.0.2.1:53>e1", "192.168.0.2:30053>e1", "192.0.2.2:53>e1"];
    assert_eq!(stale(&flows_of(&mut world), &flows), &flows[..3]);
}

#[test]
fn s11_7_a_restart_keeps_healthy_flows() {
    let mut world = world(&[dns(), endpoints(&["e1 R", "e2 R"])]);
    let cleaner = flows_of(&mut world);
    assert!(!cleaner.is_empty(), "everything is looked at once");
    assert_eq!(stale(&cleaner, &["172.30.0.1:53>e1", "172.30.0.1:53>e9"]), ["172.30.0.1:53>e9"]);
    assert!(flows_of(&mut world).is_empty(), "known failure 59");
}

#[test]
fn only_services_that_changed_are_concerned_and_never_tcp() {
    let other = json!({"ports": [{"port": 53, "protocol": "UDP"}]});
    let other = named_service("other", "172.30.0.2", other);
    let mut world = world(&[dns(), other, endpoints(&["e1 R"])]);
    world.apply(&service(spec()));
    world.take();
    world.apply(&endpoints(&["e2 R"]));
    let cleaner = flows_of(&mut world);
    assert_eq!(stale(&cleaner, &["172.30.0.2:53>e1"]), [""; 0]);

    let mut tcp = World::new(&[service(json!({})), slice("s", &["e1 R"])]);
    tcp.take();
    tcp.apply(&slice("s", &["e2 R"]));
    tcp.delete(Kind::Service, "web");
    assert!(flows_of(&mut tcp).is_empty());
}

#[test]
fn a_frontend_that_changes_hands_is_judged_by_its_new_owner() {
    let with = |name: &str, ip: &str| {
        let ports = json!([{"port": 53, "protocol": "UDP"}]);
        named_service(name, ip, json!({"externalIPs": ["192.0.2.1"], "ports": ports}))
    };
    for (loser, winner) in [("a", "b"), ("b", "a")] {
        let mut slice = slice_of(winner, "s", &["e1 R"]);
        slice["ports"] = json!([{"name": "", "port": 5353, "protocol": "UDP"}]);
        let mut world = world(&[with(loser, "172.30.0.2"), slice]);
        world.take();
        world.delete(Kind::Service, loser);
        world.apply(&with(winner, "172.30.0.3"));
        let flows = ["192.0.2.1:53>e1", "192.0.2.1:53>e9", "172.30.0.2:53>e9"];
        assert_eq!(stale(&flows_of(&mut world), &flows), &flows[1..]);
    }
}

#[test]
fn s11_6c_what_was_not_cleaned_is_kept_until_it_is() {
    let mut world = world(&[dns(), endpoints(&["e1 R"])]);
    let mut pending = flows_of(&mut world);
    world.apply(&endpoints(&["e2 R"]));
    pending.merge(flows_of(&mut world));
    assert_eq!(stale(&pending, &["172.30.0.1:53>e1", "172.30.0.1:53>e2"]), ["172.30.0.1:53>e1"]);
    let second = json!({"ports": [{"port": 53, "protocol": "UDP"}]});
    world.apply(&named_service("second", "172.30.0.2", second));
    pending.merge(flows_of(&mut world));
    assert_eq!(
        stale(&pending, &["172.30.0.1:53>e1", "172.30.0.2:53>172.30.0.2:53"]),
        ["172.30.0.1:53>e1", "172.30.0.2:53>172.30.0.2:53"]
    );
}

/// A sender that keeps its port, so that all its packets belong to one flow.
#[test]
fn flows_through_a_gap_end_on_the_new_endpoint() {
    let mut world = world(&[]);
    world.take();
    let untranslated = "172.30.0.1:53>172.30.0.1:53";
    world.apply(&dns());
    assert_eq!(stale(&flows_of(&mut world), &[untranslated]), [untranslated], "before Service");
    world.apply(&endpoints(&["e1 R"]));
    assert_eq!(stale(&flows_of(&mut world), &[untranslated]), [untranslated], "before endpoints");
    world.apply(&endpoints(&["e1 ST", "e2 R"]));
    let flow = "172.30.0.1:53>e1";
    assert_eq!(stale(&flows_of(&mut world), &[flow]), [""; 0], "terminating still serves");
    world.apply(&endpoints(&["e1 T", "e2 R"]));
    assert_eq!(stale(&flows_of(&mut world), &[flow]), [flow], "no longer serving");
    world.apply(&endpoints(&[]));
    world.take();
    world.apply(&endpoints(&["e3 R"]));
    let flow = "172.30.0.1:53>e2";
    assert_eq!(stale(&flows_of(&mut world), &[flow]), [flow], "after a gap");
}

#[test]
fn node_port_ranges_without_an_address_judge_nothing() {
    let elsewhere = vec![Cidr::parse("203.0.113.0/24").unwrap()];
    let options =
        Options { node_port_addresses: NodePortSelection::Ranges(elsewhere), ..options() };
    let mut world = World::with(options, &[dns()]);
    assert_eq!(stale(&flows_of(&mut world), &["192.168.0.2:30053>e1"]), [""; 0]);
}
