//! Rubbish stops nobody: objects broken in any way leave all others as they are.

use proptest::prelude::*;
use proxy_core::address::IpFamily;
use proxy_core::event::SourceEvent;
use serde_json::{Value, json};

use crate::generate;
use crate::world::{World, decode, named_service, slice_of};

/// Something to find in the place of a value.
fn junk() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(&[0_i64, 1, -1, 65_535, 65_536, i64::MIN][..]).prop_map(Value::from),
        any::<String>().prop_map(Value::from),
        prop::sample::select(
            &[
                "",
                " ",
                "None",
                "Local",
                "0.0.0.0",
                "::",
                "::/0",
                "1.2.3.4/99",
                "UDP",
                "\u{0}",
                "n0"
            ][..],
        )
        .prop_map(Value::from),
        Just(json!([])),
        Just(json!({})),
        Just(json!([null])),
        prop::collection::vec(any::<String>(), 0..40).prop_map(Value::from),
    ]
}

/// A change of one place: the steps lead to it, modulo what there is at each level.
#[derive(Clone, Debug)]
struct Damage {
    path: Vec<usize>,
    what: Option<Value>,
}

fn damage() -> impl Strategy<Value = Damage> {
    (prop::collection::vec(0..16_usize, 1..6), prop::option::weighted(0.8, junk()))
        .prop_map(|(path, what)| Damage { path, what })
}

fn inflict(value: &mut Value, path: &[usize], what: Option<&Value>) {
    let Some((&step, rest)) = path.split_first() else {
        if let Some(what) = what {
            *value = what.clone();
        }
        return;
    };
    match value {
        Value::Array(items) if !items.is_empty() => {
            let index = step % items.len();
            if rest.is_empty() && what.is_none() {
                items.remove(index);
            } else {
                inflict(&mut items[index], rest, what);
            }
        }
        Value::Object(fields) if !fields.is_empty() => {
            let name = fields.keys().nth(step % fields.len()).unwrap().clone();
            if rest.is_empty() && what.is_none() {
                fields.remove(&name);
            } else {
                inflict(&mut fields[&name], rest, what);
            }
        }
        leaf => {
            if let Some(what) = what {
                *leaf = what.clone();
            }
        }
    }
}

/// Two Services whose addresses no other object of these tests can ask for.
fn healthy() -> [Value; 4] {
    let reachable = json!({
        "type": "LoadBalancer",
        "externalTrafficPolicy": "Local",
        "healthCheckNodePort": 32_500,
        "ports": [{"port": 80, "nodePort": 32_501}],
        "vips": ["198.51.100.77"],
    });
    [
        named_service("healthy", "172.30.77.1", reachable),
        slice_of("healthy", "healthy-1", &["e71 R L", "e72 R"]),
        named_service("plain", "172.30.77.2", json!({})),
        slice_of("plain", "plain-1", &["e73 R", "e74 ST"]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn broken_objects_leave_the_others_alone(
        broken in prop::collection::vec(
            (generate::object(), prop::collection::vec(damage(), 0..6)),
            1..6,
        ),
    ) {
        let mut world = World::new(&healthy());
        let before = (world.find("healthy"), world.find("plain"));
        for (mut object, damages) in broken {
            for damage in &damages {
                inflict(&mut object, &damage.path, damage.what.as_ref());
            }
            if let Some(object) = decode(&object) {
                world.store.apply(SourceEvent::Applied(object));
            }
            for family in IpFamily::ALL {
                world.store.take_changes(family);
            }
        }
        world.store.diagnostics();
        prop_assert_eq!(before, (world.find("healthy"), world.find("plain")));
    }
}

#[test]
fn findings_about_one_object_are_bounded() {
    let endpoints = vec!["bad"; 10_000];
    let mut world = World::new(&[slice_of("web", "s", &endpoints)]);
    let findings = world.diagnostics();
    assert_eq!(findings.len(), 17);
    assert_eq!(findings[0], "EndpointSlice/default/s: 9984 more findings like these");
}

#[test]
fn more_endpoints_than_can_be_numbered_are_cut_and_reported() {
    let mut world = World::new(&[named_service("web", "172.30.0.1", json!({}))]);
    for slice in 0..7 {
        let texts: Vec<String> =
            (0..10_000).map(|n| format!("10.{slice}.{}.{} R", n / 250, n % 250)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        world.apply(&slice_of("web", &format!("s{slice}"), &texts));
    }
    assert_eq!(world.port().cluster.endpoints.len(), 65_535);
    assert_eq!(
        world.diagnostics(),
        ["Service/default/web: spec.ports[0]: 70000 endpoints; only the first 65535 are used"]
    );
}
