//! From slices to endpoints (S4).

use proxy_core::address::IpFamily;
use proxy_core::event::Kind;
use serde_json::{Value, json};

use crate::world::{World, named_service, service, slice, slice_of};

/// The cluster pool of `default/web` with these slices.
fn cluster(slices: &[Value]) -> String {
    let mut world = World::new(&[service(json!({}))]);
    for slice in slices {
        world.apply(slice);
    }
    world.pools().0
}

#[test]
fn s4_1_s4_2_slices_that_do_not_count() {
    let change = |path: &[&str], value: Value| {
        let mut changed = slice("s", &["e1 R"]);
        let mut field = &mut changed;
        for name in path {
            field = &mut field[*name];
        }
        *field = value;
        changed
    };
    let labels = &["metadata", "labels"][..];
    for (odd, finding) in [
        (change(&["addressType"], json!("FQDN")), Some("addressType")),
        (change(&["addressType"], json!("")), Some("addressType")),
        (change(labels, json!({})), Some("metadata.labels[kubernetes.io/service-name]")),
        (
            change(labels, json!({"kubernetes.io/service-name": ""})),
            Some("metadata.labels[kubernetes.io/service-name]"),
        ),
        (
            change(
                labels,
                json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""}),
            ),
            None,
        ),
        (change(&["metadata", "namespace"], json!("other")), None),
        (change(&["ports"], json!([])), None),
        (change(&["ports"], json!(null)), None),
    ] {
        let mut world = World::new(&[service(json!({})), slice("s", &["e1 R"]), odd.clone()]);
        if odd["metadata"]["namespace"] == "default" {
            assert_eq!(world.pools().0, "", "{odd}");
        }
        let fields: Vec<String> =
            world.store.diagnostics().into_iter().map(|it| it.field).collect();
        assert_eq!(fields, finding.into_iter().collect::<Vec<_>>(), "{odd}");
    }
}

#[test]
fn s4_2_slices_of_any_origin_merge() {
    assert_eq!(cluster(&[slice("b", &["e2 R"]), slice("a", &["e1 R"]), slice("c", &[])]), "e1 e2");
}

#[test]
fn s4_4_ports() {
    let mut odd = slice("s", &["e1 R"]);
    odd["ports"] = json!([
        {"port": 1},
        {"name": "", "port": null},
        {"name": "", "port": 0},
        {"name": "", "port": 70_000},
        {"name": "", "port": 2, "protocol": "ICMP"},
        {"name": "", "port": 3, "protocol": "UDP"},
        {"name": "other", "port": 4},
        {"name": "", "port": 8080, "protocol": null},
    ]);
    assert_eq!(cluster(&[odd]), "e1");
}

#[test]
fn s4_5_only_the_first_address_counts_and_a_bad_one_stops_nobody() {
    let mut odd = slice("s", &["bogus R", "e2 R", "fd00::1 R", "0.0.0.0 R", "e3 R"]);
    odd["endpoints"][1]["addresses"] = json!(["10.180.0.2", "10.180.0.9"]);
    odd["endpoints"].as_array_mut().unwrap().push(json!({"addresses": []}));
    let mut world = World::new(&[service(json!({})), odd]);
    assert_eq!(world.pools().0, "e2 e3");
    assert_eq!(
        world.diagnostics(),
        [
            "EndpointSlice/default/s: endpoints[0].addresses: \"bogus\" is not an IP address; \
             endpoint left out",
            "EndpointSlice/default/s: endpoints[2].addresses: fd00::1 is not of the slice's \
             address type; endpoint left out",
            "EndpointSlice/default/s: endpoints[3].addresses: 0.0.0.0 is nobody's address; \
             endpoint left out",
            "EndpointSlice/default/s: endpoints[5].addresses: empty; endpoint left out",
        ]
    );
    world.apply(&slice("s", &["e2 R"]));
    assert_eq!(world.diagnostics(), [""; 0], "findings go with their cause");
}

#[test]
fn s4_6_each_condition_is_read_for_itself() {
    for (conditions, used) in [
        (json!(null), true),
        (json!({}), true),
        (json!({"ready": null, "serving": false}), true),
        (json!({"ready": false, "serving": null, "terminating": null}), false),
        (json!({"ready": false, "serving": null, "terminating": true}), true),
        (json!({"ready": false, "serving": false, "terminating": true}), false),
        (json!({"ready": true, "serving": false, "terminating": true}), true),
    ] {
        let mut one = slice("s", &["e1 R"]);
        one["endpoints"][0]["conditions"] = conditions.clone();
        assert_eq!(cluster(&[one]), if used { "e1" } else { "" }, "{conditions}");
    }
}

#[test]
fn s4_9_known_failure_32_identity_is_address_and_port() {
    let mut second = slice("b", &["e1 R"]);
    second["ports"][0]["port"] = json!(8081);
    assert_eq!(cluster(&[slice("a", &["e1 R"]), second]), "e1 10.180.0.1:8081");
}

#[test]
fn s4_10_duplicates_are_settled_the_same_in_every_order() {
    let ready = &["e1 R L"][..];
    let elsewhere = &["e1 R"][..];
    let ending = &["e1 ST"][..];
    for (a, b, ready_and_local) in [
        (ready, ending, (true, true)),
        (ending, ready, (true, true)),
        (ready, elsewhere, (true, false)),
        (elsewhere, ready, (true, true)),
        (ending, ending, (false, false)),
    ] {
        for order in [["a", "b"], ["b", "a"]] {
            let mut world = World::new(&[service(json!({}))]);
            for name in order {
                world.apply(&slice(name, if name == "a" { a } else { b }));
            }
            let pool = world.port().cluster;
            assert_eq!(pool.endpoints.len(), 1);
            let is_ready = pool.reason == proxy_core::resolved::PoolReason::Ready;
            assert_eq!((is_ready, pool.endpoints[0].is_local), ready_and_local, "{a:?} {b:?}");
        }
    }
}

#[test]
fn s4_11_endpoints_are_in_the_byte_order_of_their_text() {
    let pool = cluster(&[slice("s", &["e9 R", "e10 R", "e2 R", "e100 R"])]);
    // `:` comes after the digits.
    assert_eq!(pool, "e100 e10 e2 e9");
}

#[test]
fn s4_1_families_are_apart() {
    let mut six = slice("six", &["fd00:10:180::1 R", "fd00:10:180::a R"]);
    six["addressType"] = json!("IPv6");
    let spec = json!({
        "ipFamilies": ["IPv4", "IPv6"], "clusterIPs": ["172.30.0.1", "fd00:172:30::1"],
    });
    let mut world = World::new(&[service(spec), slice("four", &["e1 R"]), six]);
    assert_eq!(world.pools().0, "e1");
    let port = world.find_in(IpFamily::V6, "web").unwrap().ports.remove(0);
    let pool = crate::world::pool(&port.cluster);
    assert_eq!(pool, "[fd00:10:180::1]:8080 [fd00:10:180::a]:8080");
    world.apply(&slice("four", &["e2 R"]));
    assert_eq!(world.store.take_changes(IpFamily::V6).services.len(), 0);
    assert_eq!(world.store.take_changes(IpFamily::V4).services.len(), 1);
}

#[test]
fn s4_3_a_slice_can_move_to_another_service() {
    let mut world = World::new(&[
        service(json!({})),
        named_service("new", "172.30.0.2", json!({})),
        slice("s", &["e1 R"]),
    ]);
    world.take();
    world.apply(&slice_of("new", "s", &["e1 R"]));
    assert_eq!(world.changed(), ["new", "web"]);
    assert_eq!(world.frontends_of("web"), ["172.30.0.1:80/tcp cluster IP reject reject reject"]);
    assert_eq!(world.frontends_of("new"), ["172.30.0.2:80/tcp cluster IP C C* C*"]);
    world.delete(Kind::EndpointSlice, "s");
    assert_eq!(world.frontends_of("new"), ["172.30.0.2:80/tcp cluster IP reject reject reject"]);
}

#[test]
fn s10_3_trigger_times() {
    let at = |time: &str, endpoints: &[&str]| {
        let mut slice = slice("s", endpoints);
        slice["metadata"]["annotations"] =
            json!({"endpoints.kubernetes.io/last-change-trigger-time": time});
        slice
    };
    let seconds = |world: &mut World| -> Vec<u8> {
        world.take().trigger_times.iter().map(|trigger| trigger.time.second()).collect()
    };
    let mut world = World::new(&[service(json!({})), at("2024-01-01T00:00:01Z", &["e1 R"])]);
    assert_eq!(seconds(&mut world), [1], "the first time, of all slices");
    world.apply(&at("2024-01-01T00:00:03.5Z", &["e1 R", "e2 R"]));
    world.apply(&at("2024-01-01T00:00:02Z", &["e1 R"]));
    world.apply(&at("2024-01-01T00:00:02Z", &["e1 R"]));
    assert_eq!(seconds(&mut world), [2, 3]);
    world.apply(&at("2024-01-01T00:00:04Z", &["e1 R"]));
    let changes = world.take();
    assert_eq!((changes.services.len(), changes.trigger_times.len()), (0, 1), "S10.2");
    world.apply(&at("2024-01-01T00:00:05Z", &["e1 R"]));
    world.delete(Kind::EndpointSlice, "s");
    assert_eq!(seconds(&mut world), [0; 0], "known failure 55: not for deletions");
    world.apply(&at("not a time", &["e1 R"]));
    assert_eq!(seconds(&mut world), [0; 0]);
}
