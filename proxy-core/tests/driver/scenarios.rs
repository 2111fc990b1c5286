//! Only the present state counts, never the way to it: histories told in different ways.

use proptest::prelude::*;
use proxy_core::event::SourceEvent;

use crate::cluster::{
    Cluster, Spec, cluster, histories, list, lists, objects, shuffled_steps, steps,
};
use crate::fake::Rng;
use crate::rig::{Link, Rig};

/// A way to tell a history.
type Telling = fn(&[Cluster], &mut Rng) -> Vec<Told>;

/// Events that arrive together, and the state after them if it is to be checked.
struct Told {
    events: Vec<SourceEvent>,
    state: Option<Cluster>,
}

fn told(events: Vec<SourceEvent>, state: &Cluster) -> Told {
    Told { events, state: Some(state.clone()) }
}

/// Each state with the one before it; the first is listed.
fn changes(history: &[Cluster]) -> impl Iterator<Item = (&Cluster, &Cluster)> {
    history.iter().zip(&history[1..])
}

fn start(history: &[Cluster]) -> Vec<Told> {
    vec![told(list(&history[0]), &history[0])]
}

fn step_by_step(history: &[Cluster], _: &mut Rng) -> Vec<Told> {
    let steps = changes(history).map(|(old, new)| told(steps(old, new), new));
    start(history).into_iter().chain(steps).collect()
}

fn reversed(history: &[Cluster], rng: &mut Rng) -> Vec<Told> {
    let reversed: Vec<Cluster> = history.iter().rev().cloned().collect();
    step_by_step(&reversed, rng)
}

fn shuffled(history: &[Cluster], rng: &mut Rng) -> Vec<Told> {
    let mut first = objects(&history[0]);
    rng.shuffle(&mut first);
    let mut all = vec![told(lists(&first), &history[0])];
    for (old, new) in changes(history) {
        all.push(told(shuffled_steps(old, new, rng), new));
    }
    all
}

fn with_nothing_between(history: &[Cluster], rng: &mut Rng) -> Vec<Told> {
    let empty = Cluster::new();
    let history: Vec<Cluster> =
        history.iter().flat_map(|state| [empty.clone(), state.clone()]).collect();
    step_by_step(&history, rng)
}

fn relisted(history: &[Cluster], _: &mut Rng) -> Vec<Told> {
    history.iter().map(|state| told(list(state), state)).collect()
}

fn event_by_event(history: &[Cluster], rng: &mut Rng) -> Vec<Told> {
    let mut all = start(history);
    for (old, new) in changes(history) {
        let events = shuffled_steps(old, new, rng).into_iter();
        all.extend(events.map(|event| Told { events: vec![event], state: None }));
        all.push(told(Vec::new(), new));
    }
    all
}

fn squashed(history: &[Cluster], rng: &mut Rng) -> Vec<Told> {
    let last = &history[history.len() - 1];
    let events = step_by_step(history, rng).into_iter().flat_map(|told| told.events).collect();
    vec![told(events, last)]
}

const TELLINGS: [Telling; 7] =
    [step_by_step, reversed, shuffled, with_nothing_between, relisted, event_by_event, squashed];

async fn tell(link: &Link, rig: &Rig, telling: Vec<Told>) {
    for told in telling {
        link.send(told.events).await;
        link.settle().await;
        if let Some(state) = told.state {
            rig.check(&state);
        }
    }
}

fn check(history: &[Cluster], seed: u64) {
    for telling in TELLINGS {
        let rig = Rig::new();
        let told = telling(history, &mut Rng(seed));
        rig.run(async |link| tell(link, &rig, told).await);
        // Without a fault everything is read once, at the start.
        assert_eq!(rig.v4().observations, 1);
    }
}

#[test]
fn two_services_that_exchange_addresses() {
    let two = |a: u8, b: u8| cluster([("a", Spec::new(a, [1, 2])), ("b", Spec::new(b, [3]))]);
    check(&[two(1, 2), two(2, 1), two(1, 1), two(2, 2)], 1);
}

#[test]
fn an_address_that_passes_from_one_service_to_another() {
    let of = |name| cluster([(name, Spec { node_port: 30_001, ..Spec::new(1, [1, 2]) })]);
    check(&[of("a"), of("b"), Cluster::new(), of("a")], 2);
}

#[test]
fn endpoints_that_come_and_go() {
    let of = |hosts: &[u8]| cluster([("a", Spec::new(1, hosts.iter().copied()))]);
    let states = [&[1, 2, 3][..], &[], &[2], &[1, 2, 3, 4, 5, 6], &[5]];
    check(&states.map(of), 3);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_histories(history in histories(), seed in any::<u64>()) {
        check(&history, seed);
    }
}
