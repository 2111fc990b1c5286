//! Complete lists: what they lack is gone, and before the first nothing is certain.

use proxy_core::event::{EventCounts, Kind, ObjectRef, SourceEvent};
use serde_json::json;

use crate::world::{World, named_service, service, slice};

fn start(world: &mut World, kind: Kind) {
    world.store.apply(SourceEvent::ListStarted(kind));
}

fn done(world: &mut World, kind: Kind) {
    world.store.apply(SourceEvent::ListDone(kind));
}

#[test]
fn s1_9_ready_after_one_complete_list_of_each() {
    let mut world = World::new(&[service(json!({}))]);
    start(&mut world, Kind::Service);
    done(&mut world, Kind::EndpointSlice);
    assert!(!world.store.is_ready(), "a list that never began has no end");
    done(&mut world, Kind::Service);
    assert!(!world.store.is_ready());
    start(&mut world, Kind::EndpointSlice);
    start(&mut world, Kind::EndpointSlice);
    done(&mut world, Kind::EndpointSlice);
    assert!(world.store.is_ready(), "Node and ServiceCIDR are not waited for");
    start(&mut world, Kind::Service);
    assert!(world.store.is_ready(), "a later list takes nothing back");
}

#[test]
fn s2_5_what_a_list_lacks_is_gone_when_it_ends() {
    let other = named_service("other", "172.30.0.2", json!({}));
    let mut world = World::new(&[service(json!({})), other.clone(), slice("s", &["e1 R"])]);
    world.take();
    start(&mut world, Kind::Service);
    world.apply(&other);
    assert_eq!(world.changed(), [""; 0]);
    done(&mut world, Kind::Service);
    assert_eq!(world.changed(), ["web"]);
    world.apply(&service(json!({})));
    assert_eq!(world.pools().0, "e1", "slices of the kind that was not listed stay");
    start(&mut world, Kind::EndpointSlice);
    done(&mut world, Kind::EndpointSlice);
    assert_eq!(world.pools().0, "");
}

#[test]
fn what_a_list_cannot_tell_of_stays_as_it_was() {
    let world_slice = slice("s", &["e1 R"]);
    let mut world = World::new(&[service(json!({})), world_slice]);
    world.take();
    let unreadable = |kind, name: &str| {
        let namespace = "default".to_owned();
        SourceEvent::Unreadable(ObjectRef { kind, namespace, name: name.to_owned() })
    };
    for (kind, name) in [(Kind::Service, "web"), (Kind::EndpointSlice, "s")] {
        start(&mut world, kind);
        world.store.apply(unreadable(kind, name));
        world.store.apply(unreadable(kind, "never-seen"));
        let mut counts = EventCounts::default();
        world.store.apply_counted(SourceEvent::ListDone(kind), &mut counts);
        assert!(counts.is_empty());
    }
    assert_eq!(world.changed(), [""; 0]);
    assert_eq!(world.pools().0, "e1");
    // Outside of a list it says nothing, and the next list that lacks the object removes it.
    world.store.apply(unreadable(Kind::EndpointSlice, "s"));
    start(&mut world, Kind::EndpointSlice);
    let mut counts = EventCounts::default();
    world.store.apply_counted(SourceEvent::ListDone(Kind::EndpointSlice), &mut counts);
    assert_eq!(counts.of(Kind::EndpointSlice), 1, "S2.5: counted as a deletion");
    assert_eq!(world.pools().0, "");
}

#[test]
fn an_object_applied_outside_of_a_list_stays_after_the_next_only_if_listed() {
    let mut world = World::new(&[]);
    start(&mut world, Kind::Service);
    done(&mut world, Kind::Service);
    world.apply(&service(json!({})));
    done(&mut world, Kind::Service);
    assert!(world.find("web").is_some(), "the end of no list removes nothing");
    start(&mut world, Kind::Service);
    done(&mut world, Kind::Service);
    assert!(world.find("web").is_none());
}

#[test]
fn an_unchanged_relist_changes_nothing() {
    let mut world = World::new(&[service(json!({})), slice("s", &["e1 R"])]);
    world.take();
    for (kind, object) in
        [(Kind::Service, service(json!({}))), (Kind::EndpointSlice, slice("s", &["e1 R"]))]
    {
        start(&mut world, kind);
        world.apply(&object);
        done(&mut world, kind);
    }
    let changes = world.take();
    assert!(changes.services.is_empty() && changes.node.is_none());
    assert!(changes.stale_flows.is_empty());
}

#[test]
fn findings_of_the_source_are_passed_on() {
    use proxy_core::diagnostic::Diagnostic;
    let mut world = World::new(&[]);
    let finding = Diagnostic::new("web.yaml", "", "not YAML");
    world.store.apply(SourceEvent::Findings(vec![finding.clone(), finding]));
    assert_eq!(world.diagnostics(), ["web.yaml: not YAML"]);
    world.store.apply(SourceEvent::Findings(Vec::new()));
    assert_eq!(world.diagnostics(), [""; 0]);
}
