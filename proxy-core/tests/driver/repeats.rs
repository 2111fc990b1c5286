//! What a source says again, and what a full comparison finds when all is well.

use std::time::Duration;

use proptest::prelude::*;
use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::event::{Kind, ObjectRef, SourceEvent};

use crate::cluster::{Cluster, Spec, cluster, histories, list, shuffled_steps, steps};
use crate::fake::Rng;
use crate::rig::{Link, Rig, wait};

/// Longer than the longest pause between two tries.
const LONG: Duration = Duration::from_secs(31);

fn state(first: u8) -> Cluster {
    (0..20)
        .map(|number| (format!("s{number:02}"), Spec::new(number + 1, [first, number + 30])))
        .collect()
}

fn commits(rig: &Rig) -> usize {
    IpFamily::ALL.into_iter().map(|family| rig.kernel(family).commits).sum()
}

fn gone(name: &str) -> SourceEvent {
    let namespace = "default".to_owned();
    SourceEvent::Deleted(ObjectRef { kind: Kind::Service, namespace, name: name.to_owned() })
}

#[test]
fn repeats_are_no_reason_to_write() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&state(1))).await;
        let changes = steps(&state(1), &state(2));
        link.send(changes.clone()).await;
        link.settle().await;
        let before = commits(&rig);
        for _ in 0..100 {
            link.send(changes.clone()).await;
            link.send([gone("never-was")]).await;
            link.settle().await;
        }
        link.send(list(&state(2))).await;
        link.settle().await;
        // What comes and goes between two syncs was never there.
        let mut more = state(2);
        more.insert("brief".to_owned(), Spec::new(99, [1]));
        let there_and_back = [steps(&state(2), &more), steps(&more, &state(2))].concat();
        link.send(there_and_back).await;
        link.settle().await;
        assert_eq!(commits(&rig), before);
        let queued = |event: &DriverEvent| matches!(event, DriverEvent::SyncFailed { .. });
        assert!(!rig.told().iter().any(queued));
        rig.check(&state(2));
    });
}

/// Index of the end of the list of this kind.
fn end_of(kind: Kind, events: &[SourceEvent]) -> usize {
    events.iter().position(|event| *event == SourceEvent::ListDone(kind)).unwrap()
}

#[test]
fn known_failure_13_half_a_later_list_takes_nothing_away() {
    let rig = Rig::new();
    // The new list lacks a Service and holds a changed one.
    let mut after = state(1);
    after.remove("s00");
    after.insert("s01".to_owned(), Spec::new(2, [7]));
    let mut first_half = state(1);
    first_half.insert("s01".to_owned(), Spec::new(2, [7]));
    rig.run(async |link| {
        link.send(list(&state(1))).await;
        link.settle().await;
        let events = list(&after);
        // Every Service but not the end of the list, and no slice.
        let (first, rest) = events.split_at(end_of(Kind::Service, &events));
        link.send(first.to_vec()).await;
        wait(Duration::from_secs(5)).await;
        rig.check(&state(1));
        // The Service goes; its slices and a change of slices come with the next list.
        let (services, rest) = rest.split_at(1);
        link.send(services.to_vec()).await;
        link.settle().await;
        let (slices, rest) = rest.split_at(end_of(Kind::EndpointSlice, rest));
        link.send(slices.to_vec()).await;
        wait(Duration::from_secs(5)).await;
        rig.check(&after);
        let before = commits(&rig);
        link.send(rest.to_vec()).await;
        link.settle().await;
        assert_eq!(commits(&rig), before);
    });
    // A list that was cut off counts for nothing: the next one is complete by itself.
    rig.run(async |link| {
        link.send(list(&after)).await;
        link.settle().await;
        let events = list(&Cluster::new());
        link.send(events[..1].to_vec()).await;
        link.settle().await;
        link.send(list(&first_half)).await;
        link.settle().await;
        rig.check(&first_half);
    });
}

#[test]
fn a_later_list_swaps_everything_in_one_sync() {
    let rig = Rig::new();
    let other: Cluster =
        (0..20).map(|number| (format!("t{number:02}"), Spec::new(number + 1, [9]))).collect();
    rig.run(async |link| {
        link.send(list(&state(1))).await;
        link.settle().await;
        let before = rig.v4().commits;
        link.send(list(&other)).await;
        link.settle().await;
        rig.check(&other);
        assert_eq!(rig.v4().commits, before + 1);
    });
}

/// Has everything compared, which must not lead to a write.
async fn compare(link: &Link, rig: &Rig) {
    let [writes, observations] = [rig.writes(), rig.v4().observations];
    for family in IpFamily::ALL {
        rig.kernel(family).signal(Ok("nothing".to_owned()));
    }
    link.settle().await;
    assert!(rig.v4().observations > observations);
    assert_eq!(rig.writes(), writes, "a comparison found something that was not so");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Also with the endpoint numbers that a history leads to, which are not those of a fresh
    /// start.
    #[test]
    fn neither_a_comparison_nor_a_restart_writes(
        history in histories(),
        one_in in 2..20_usize,
        seed in any::<u64>(),
    ) {
        let mut rng = Rng(seed);
        let rig = Rig::new();
        let last = &history[history.len() - 1];
        rig.run(async |link| {
            link.send(list(&history[0])).await;
            link.settle().await;
            for states in history.windows(2) {
                rig.fail_one_in(one_in, &mut rng);
                for event in shuffled_steps(&states[0], &states[1], &mut rng) {
                    link.send([event]).await;
                    link.settle().await;
                }
                rig.heal();
                wait(LONG).await;
                rig.check(&states[1]);
                compare(link, &rig).await;
            }
        });
        let writes = rig.writes();
        rig.run(async |link| {
            link.send(list(last)).await;
            link.settle().await;
        });
        prop_assert_eq!(rig.writes(), writes);
    }
}

#[test]
fn numbers_that_changes_led_to_outlive_a_restart() {
    let rig = Rig::new();
    let of = |hosts: &[u8]| cluster([("a", Spec::new(1, hosts.iter().copied()))]);
    let states = [&[1, 2, 3, 4, 5][..], &[2, 3, 5], &[2, 3, 5, 1, 8], &[8, 5, 1]].map(of);
    rig.run(async |link| {
        link.send(list(&states[0])).await;
        link.settle().await;
        for states in states.windows(2) {
            link.send(steps(&states[0], &states[1])).await;
            link.settle().await;
        }
    });
    rig.check(&states[3]);
    let fresh = Rig::new();
    fresh.run(async |link| {
        link.send(list(&states[3])).await;
        link.settle().await;
    });
    assert_ne!(rig.v4().rules, fresh.v4().rules, "the numbers are those of a fresh start");
    let before = commits(&rig);
    rig.run(async |link| {
        link.send(list(&states[3])).await;
        link.settle().await;
    });
    assert_eq!(commits(&rig), before);
}
