//! Two who want one frontend (known failure 33).

use proxy_core::event::Kind;
use serde_json::{Value, json};

use crate::world::{World, named_service, slice_of};

/// A Service with the external IP 192.0.2.1, created in this second.
fn claimant(name: &str, second: u8) -> Value {
    let ip = format!("172.30.1.{second}");
    let mut service = named_service(name, &ip, json!({"externalIPs": ["192.0.2.1"]}));
    service["metadata"]["creationTimestamp"] = json!(format!("2024-01-01T00:00:{second:02}Z"));
    service
}

fn has_external_ip(world: &mut World, name: &str) -> bool {
    world.frontends_of(name).iter().any(|frontend| frontend.starts_with("192.0.2.1:80/tcp"))
}

#[test]
fn the_older_one_wins_in_both_orders_and_the_loser_is_reported() {
    let (old, new) = (claimant("z-old", 1), claimant("a-new", 2));
    for objects in [[old.clone(), new.clone()], [new, old]] {
        let mut world = World::new(&objects);
        assert!(has_external_ip(&mut world, "z-old"));
        assert!(!has_external_ip(&mut world, "a-new"));
        assert_eq!(world.frontends_of("a-new").len(), 1, "its cluster IP works");
        assert_eq!(
            world.diagnostics(),
            ["Service/default/a-new: spec.externalIPs: 192.0.2.1:80/tcp belongs to \
                 default/z-old; left out for default/a-new"]
        );
    }
}

#[test]
fn when_the_winner_goes_the_next_takes_over_at_once() {
    let mut world =
        World::new(&[claimant("a", 1), claimant("b", 2), slice_of("b", "b", &["e1 R"])]);
    world.take();
    world.delete(Kind::Service, "a");
    assert_eq!(world.changed(), ["a", "b"]);
    assert!(has_external_ip(&mut world, "b"));
    assert_eq!(world.diagnostics(), [""; 0]);
    world.apply(&claimant("a", 1));
    assert_eq!(world.changed(), ["a", "b"]);
    assert!(has_external_ip(&mut world, "a") && !has_external_ip(&mut world, "b"));
}

#[test]
fn an_unknown_age_is_the_youngest_and_then_names_decide() {
    let mut ageless = claimant("a", 1);
    ageless["metadata"]["creationTimestamp"] = json!(null);
    let mut world = World::new(&[ageless, claimant("c", 9), claimant("b", 9)]);
    assert!(has_external_ip(&mut world, "b"));
    assert!(!has_external_ip(&mut world, "a") && !has_external_ip(&mut world, "c"));
}

#[test]
fn a_cluster_ip_beats_an_older_external_ip() {
    let thief = json!({"externalIPs": ["172.30.9.9"]});
    let mut thief = named_service("thief", "172.30.9.8", thief);
    thief["metadata"]["creationTimestamp"] = json!("2000-01-01T00:00:00Z");
    let mut world = World::new(&[thief, named_service("owner", "172.30.9.9", json!({}))]);
    assert_eq!(world.frontends_of("thief").len(), 1);
    assert_eq!(world.frontends_of("owner"), ["172.30.9.9:80/tcp cluster IP reject reject reject"]);
}

#[test]
fn node_ports_are_claimed_by_protocol() {
    let with = |name: &str, ip: &str, protocol: &str| {
        let ports = json!([{"name": "p", "port": 80, "nodePort": 30080, "protocol": protocol}]);
        named_service(name, ip, json!({"ports": ports}))
    };
    let mut world = World::new(&[
        with("a", "172.30.0.1", "TCP"),
        with("b", "172.30.0.2", "TCP"),
        with("c", "172.30.0.3", "UDP"),
    ]);
    assert_eq!(world.frontends_of("a").len(), 2);
    assert_eq!(world.frontends_of("b").len(), 1);
    assert_eq!(world.frontends_of("c").len(), 2);
    assert_eq!(
        world.diagnostics(),
        ["Service/default/b: spec.ports[0].nodePort: *:30080/tcp belongs to default/a:p; left \
             out for default/b:p"]
    );
}

#[test]
fn two_ports_of_one_service_can_compete() {
    let ports = json!([{"name": "b", "port": 80}, {"name": "a", "port": 80}]);
    let mut world = World::new(&[named_service("web", "172.30.0.1", json!({"ports": ports}))]);
    let service = world.find("web").unwrap();
    let owned: Vec<(String, usize)> =
        service.ports.iter().map(|it| (it.name.to_string(), it.frontends.len())).collect();
    assert_eq!(owned, [("default/web:a".to_owned(), 1), ("default/web:b".to_owned(), 0)]);
    assert_eq!(world.diagnostics().len(), 1);
}

#[test]
fn one_address_as_external_ip_and_balancer_address_is_one_frontend() {
    let spec = json!({
        "externalIPs": ["192.0.2.1"],
        "vips": ["192.0.2.1", "192.0.2.1"],
        "loadBalancerSourceRanges": ["203.0.113.0/24"],
    });
    let mut world = World::new(&[named_service("web", "172.30.0.1", spec)]);
    assert_eq!(
        world.frontends(),
        [
            "172.30.0.1:80/tcp cluster IP reject reject reject",
            "192.0.2.1:80/tcp external IP reject reject reject",
        ]
    );
    assert!(world.port().frontends[1].source_ranges.is_some(), "the ranges still bind");
    assert_eq!(world.diagnostics(), [""; 0]);
}
