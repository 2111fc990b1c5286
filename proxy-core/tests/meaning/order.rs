//! History does not matter: any way to the same objects ends at the same state.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use proxy_core::address::IpFamily;
use proxy_core::diagnostic::Diagnostic;
use proxy_core::event::{Kind, Object, ObjectRef, SourceEvent};
use proxy_core::names::ServiceName;
use proxy_core::node::NodeFacts;
use proxy_core::options::{NodePortSelection, Options};
use proxy_core::resolved::ResolvedService;
use proxy_core::store::{NodeState, Store};
use serde_json::Value;

use crate::generate;
use crate::world::{decode, options};

/// One thing that happens to the cluster or to the stream that tells of it.
#[derive(Clone, Debug)]
enum Step {
    Apply(Value),
    Repeat(usize),
    Delete(usize),
    /// A list of a kind; the object of this number is missing in it and so is gone.
    Relist(Kind, Option<usize>),
    /// A list that never ends.
    BrokenList(Kind),
    /// Somebody asks for the changes.
    Take(IpFamily),
}

fn step() -> impl Strategy<Value = Step> {
    let kind = || prop::sample::select(&Kind::ALL[..]);
    prop_oneof![
        8 => generate::object().prop_map(Step::Apply),
        2 => (0..99_usize).prop_map(Step::Repeat),
        2 => (0..99_usize).prop_map(Step::Delete),
        1 => (kind(), prop::option::of(0..99_usize))
            .prop_map(|(kind, gap)| Step::Relist(kind, gap)),
        1 => kind().prop_map(Step::BrokenList),
        2 => prop::sample::select(&IpFamily::ALL[..]).prop_map(Step::Take),
    ]
}

/// The objects that exist, and the store that was told how they came about.
struct Story {
    objects: BTreeMap<ObjectRef, Object>,
    store: Store,
    /// What somebody knows who only follows the changes.
    followed: BTreeMap<(IpFamily, ServiceName), Arc<ResolvedService>>,
}

fn story_options() -> Options {
    Options { node_port_addresses: NodePortSelection::Primary, ..options() }
}

impl Story {
    fn new() -> Self {
        let store = Store::new(story_options());
        Self { objects: BTreeMap::new(), store, followed: BTreeMap::new() }
    }

    fn follow(&mut self, step: &Step) {
        match step {
            Step::Apply(value) => {
                let object = decode(value).unwrap();
                self.objects.insert(object.reference(), object.clone());
                self.store.apply(SourceEvent::Applied(object));
            }
            Step::Repeat(number) => {
                if let Some(name) = self.pick(*number) {
                    let object = self.objects[&name].clone();
                    self.store.apply(SourceEvent::Applied(object));
                }
            }
            Step::Delete(number) => {
                if let Some(name) = self.pick(*number) {
                    self.forget(&name);
                    self.store.apply(SourceEvent::Deleted(name));
                }
            }
            Step::Relist(kind, gap) => self.relist(*kind, *gap),
            Step::BrokenList(kind) => self.store.apply(SourceEvent::ListStarted(*kind)),
            Step::Take(family) => self.take(*family),
        }
    }

    fn relist(&mut self, kind: Kind, gap: Option<usize>) {
        self.store.apply(SourceEvent::ListStarted(kind));
        let missing = gap.and_then(|number| self.pick(number)).filter(|name| name.kind == kind);
        if let Some(name) = missing {
            self.forget(&name);
        }
        for object in self.objects.values().filter(|object| object.reference().kind == kind) {
            self.store.apply(SourceEvent::Applied(object.clone()));
        }
        self.store.apply(SourceEvent::ListDone(kind));
    }

    fn pick(&self, number: usize) -> Option<ObjectRef> {
        self.objects.keys().nth(number % self.objects.len().max(1)).cloned()
    }

    /// The last object of a node counts after its end too (S7.4).
    fn forget(&mut self, name: &ObjectRef) {
        if name.kind != Kind::Node {
            self.objects.remove(name);
        }
    }

    fn take(&mut self, family: IpFamily) {
        for (name, service) in self.store.take_changes(family).services {
            let key = (family, name);
            let different = match service {
                Some(service) => self.followed.insert(key, Arc::clone(&service)) != Some(service),
                None => self.followed.remove(&key).is_some(),
            };
            assert!(different, "only what differs is told");
        }
    }
}

#[derive(Debug, PartialEq)]
struct State {
    services: Vec<(IpFamily, Arc<ResolvedService>)>,
    diagnostics: Vec<Diagnostic>,
    facts: [NodeFacts; 2],
    node: NodeState,
}

fn state(store: &mut Store) -> State {
    let mut services = Vec::new();
    for family in IpFamily::ALL {
        store.take_changes(family);
        services.extend(store.services(family).map(|service| (family, Arc::clone(service))));
    }
    let facts = IpFamily::ALL.map(|family| store.node_facts(family));
    State { services, diagnostics: store.diagnostics(), facts, node: store.node() }
}

fn fresh<'a>(objects: impl Iterator<Item = &'a Object>) -> State {
    let mut store = Store::new(story_options());
    for object in objects {
        store.apply(SourceEvent::Applied(object.clone()));
    }
    state(&mut store)
}

proptest! {
    #[test]
    fn known_failure_17_any_history_gives_the_state_of_a_fresh_start(
        steps in prop::collection::vec(step(), 0..60),
    ) {
        let mut story = Story::new();
        for step in &steps {
            story.follow(step);
        }
        for family in IpFamily::ALL {
            story.take(family);
        }
        let reached = state(&mut story.store);
        prop_assert_eq!(&reached, &fresh(story.objects.values()));
        let followed = story.followed.into_iter();
        let followed: Vec<_> = followed.map(|((family, _), it)| (family, it)).collect();
        prop_assert_eq!(followed, reached.services);
    }

    #[test]
    fn the_order_of_arrival_does_not_matter(
        (forward, shuffled) in generate::objects().prop_flat_map(|objects| {
            let mut named = BTreeMap::new();
            for object in objects.iter().filter_map(decode) {
                named.insert(object.reference(), object);
            }
            let objects: Vec<Object> = named.into_values().collect();
            (Just(objects.clone()), Just(objects).prop_shuffle())
        }),
    ) {
        let expected = fresh(forward.iter());
        prop_assert_eq!(&expected, &fresh(forward.iter().rev()));
        prop_assert_eq!(&expected, &fresh(shuffled.iter()));
    }

    #[test]
    fn asking_twice_tells_nothing(objects in generate::objects()) {
        let mut story = Story::new();
        for object in objects {
            story.follow(&Step::Apply(object));
        }
        for family in IpFamily::ALL {
            story.store.take_changes(family);
            let again = story.store.take_changes(family);
            prop_assert!(again.services.is_empty() && again.node.is_none());
            prop_assert!(again.trigger_times.is_empty() && again.stale_flows.is_empty());
        }
    }
}
