//! The table of endpoint choices (S5): node n0 in zone a.

use serde_json::{Value, json};

use crate::world::{World, service, slice};

/// Name, spec of the Service, endpoints, cluster pool, local pool, whether anything could serve.
type Vector = (&'static str, Value, &'static [&'static str], &'static str, &'static str, bool);

fn vectors() -> Vec<Vector> {
    let plain = || json!({});
    let node_port = json!([{"port": 80, "nodePort": 30080}]);
    let internal = || json!({"internalTrafficPolicy": "Local"});
    let external =
        || json!({"type": "NodePort", "externalTrafficPolicy": "Local", "ports": node_port});
    let unreachable = json!({"type": "LoadBalancer", "externalTrafficPolicy": "Local"});
    let internal_reachable =
        json!({"type": "NodePort", "internalTrafficPolicy": "Local", "ports": node_port});
    let mut both = external();
    both["internalTrafficPolicy"] = json!("Local");
    vec![
        ("V1", plain(), &["e1 R", "e2"], "e1", "", true),
        ("V2", plain(), &["e1 ST L", "e2 ST"], "e1 e2", "", true),
        ("V3", internal(), &["e1 R", "e2 R"], "", "", true),
        ("V4", internal(), &["e1 R L", "e2 R"], "", "e1", true),
        ("V5", internal_reachable, &["e1 R L", "e2 R"], "e1 e2", "e1", true),
        ("V6", external(), &["e0 R", "e1 L", "e2 ST L", "e3 ST"], "e0", "e2", true),
        ("V7", unreachable, &["e1 R", "e2 R L"], "e1 e2", "", true),
        (
            "V8",
            external(),
            &["e0 R L z:a", "e1 R L z:b", "e2 R z:a", "e3 R z:b"],
            "e0 e2",
            "e0 e1",
            true,
        ),
        ("V9", plain(), &["e1 R z:a", "e2 R z:a,b", "e3 R"], "e1 e2 e3", "", true),
        ("V10", plain(), &["e1 R z:b", "e2 R z:c"], "e1 e2", "", true),
        ("V11", plain(), &["e1 z:a", "e2 R z:b"], "e2", "", true),
        (
            "V12",
            plain(),
            &["e1 R n:n1 z:a", "e2 R n:n2 z:b", "e3 R n:n3 z:c", "e4 R n:n4 z:a"],
            "e1 e4",
            "",
            true,
        ),
        ("V13", both, &["e1 ST", "e2 ST"], "e1 e2", "", true),
        ("V14", plain(), &["e1"], "", "", false),
        ("node hint", plain(), &["e1 R n:n0", "e2 R n:n1"], "e1", "", true),
        ("S5.5 serving only", plain(), &["e1 S", "e2 T"], "", "", false),
        ("hints and nobody ready", plain(), &["e1 ST z:b", "e2 ST z:a"], "e1 e2", "", true),
    ]
}

#[test]
fn s5_vectors() {
    for (name, spec, endpoints, cluster, local, has_any) in vectors() {
        let mut world = World::new(&[service(spec), slice("s", endpoints)]);
        assert_eq!(world.pools(), (cluster.into(), local.into()), "{name}");
        let refused = world.routes("172.30.0.1:80/tcp") == "reject reject reject";
        assert_eq!(refused, !has_any, "{name}");
    }
}

#[test]
fn s5_the_order_and_grouping_of_endpoints_do_not_matter() {
    for (name, spec, endpoints, cluster, local, _) in vectors() {
        let mut world = World::new(&[service(spec)]);
        for (index, endpoint) in endpoints.iter().rev().enumerate() {
            world.apply(&slice(&format!("s{index}"), &[endpoint]));
        }
        assert_eq!(world.pools(), (cluster.into(), local.into()), "{name}");
    }
}
