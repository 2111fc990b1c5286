//! Services that the kernel refuses: they are left out and reported, all others are in effect.

use std::time::Duration;

use proptest::prelude::*;
use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::names::{Protocol, ServiceName};
use proxy_core::resolved::FrontendKey;

use crate::cluster::{Cluster, Spec, cluster, histories, list, shuffled_steps, steps};
use crate::fake::Rng;
use crate::rig::{Link, Rig, expected, wait};

/// Longer than the longest pause between two tries.
const LONG: Duration = Duration::from_secs(31);

/// A cluster in which `bad` has this cluster IP.
fn with_bad(ip: u8) -> Cluster {
    cluster([
        ("a", Spec::new(1, [1, 2])),
        ("bad", Spec::new(ip, [3])),
        ("c", Spec { node_port: 30_001, ..Spec::new(2, [4]) }),
    ])
}

fn without_bad() -> Cluster {
    let mut rest = with_bad(66);
    rest.remove("bad");
    rest
}

/// A rig whose IPv4 kernel refuses everything with this text.
fn refusing(text: &str) -> Rig {
    let rig = Rig::new();
    rig.v4().refuses.insert(text.to_owned());
    rig
}

fn check_v4(rig: &Rig, cluster: &Cluster) {
    assert_eq!(rig.v4().view(), expected(cluster, IpFamily::V4));
}

fn frontend(ip: u8) -> FrontendKey {
    let address = [172, 30, 0, ip].into();
    FrontendKey::Address { address, port: 80, protocol: Protocol::Tcp }
}

/// The endpoints behind a cluster IP.
fn behind(rig: &Rig, ip: u8) -> Vec<String> {
    let endpoints = rig.v4().endpoints().remove(&frontend(ip)).unwrap_or_default();
    endpoints.into_iter().map(|text| text.replace(":8080", "")).collect()
}

fn left_out(told: &[DriverEvent]) -> Vec<ServiceName> {
    let last = told.iter().rev().find_map(|event| match event {
        DriverEvent::Synced { family: IpFamily::V4, report, .. } => Some(&report.left_out),
        _ => None,
    });
    last.unwrap().iter().map(|(name, _)| name.clone()).collect()
}

#[test]
fn known_failure_14_the_others_are_in_effect() {
    let rig = refusing("172.30.0.66");
    rig.run(async |link| {
        link.send(list(&with_bad(66))).await;
        wait(Duration::from_secs(2)).await;
        check_v4(&rig, &without_bad());
        let v6 = rig.kernel(IpFamily::V6).view();
        assert_eq!(v6, expected(&with_bad(66), IpFamily::V6));
        let told = rig.told();
        assert_eq!(left_out(&told), [ServiceName::new("default", "bad")]);
        let found = told.iter().find_map(|event| match event {
            DriverEvent::Findings { appeared, .. } => Some(appeared.clone()),
            _ => None,
        });
        let finding = found.unwrap()[0].to_string();
        assert!(
            finding.starts_with("Service/default/bad: not in effect for IPv4: failed to"),
            "{finding}"
        );

        // Others come, change and go meanwhile.
        let mut changed = with_bad(66);
        changed.remove("a");
        changed.insert("d".into(), Spec::new(1, [5]));
        link.send(steps(&with_bad(66), &changed)).await;
        link.settle().await;
        changed.remove("bad");
        check_v4(&rig, &changed);
    });
}

#[test]
fn a_repaired_service_comes_back() {
    let rig = refusing("172.30.0.66");
    rig.run(async |link| {
        link.send(list(&with_bad(66))).await;
        wait(Duration::from_secs(2)).await;
        rig.told();
        link.send(steps(&with_bad(66), &with_bad(3))).await;
        link.settle().await;
        rig.check(&with_bad(3));
        let told = rig.told();
        assert!(left_out(&told).is_empty());
        let resolved = told.iter().any(
            |event| matches!(event, DriverEvent::Findings { resolved, .. } if resolved.len() == 1),
        );
        assert!(resolved, "{told:?}");
    });
}

#[test]
fn what_the_kernel_accepts_later_comes_back_by_itself() {
    let rig = refusing("172.30.0.66");
    rig.run(async |link| {
        link.send(list(&with_bad(66))).await;
        wait(Duration::from_secs(600)).await;
        // A try costs two reads and one commit; the pauses grow to 30 s.
        assert!(rig.v4().observations < 65, "{}", rig.v4().observations);
        rig.v4().refuses.clear();
        wait(LONG).await;
        rig.check(&with_bad(66));
    });
}

#[test]
fn changes_of_others_do_not_put_off_the_next_try() {
    let rig = refusing("172.30.0.66");
    rig.run(async |link| {
        link.send(list(&with_bad(66))).await;
        wait(Duration::from_secs(100)).await;
        rig.v4().refuses.clear();
        let mut state = with_bad(66);
        for number in 0..400_u16 {
            let before = state.clone();
            let host = u8::try_from(number % 200).unwrap() + 1;
            state.insert("a".into(), Spec::new(1, [host]));
            link.send(steps(&before, &state)).await;
            wait(LONG / 400).await;
        }
        rig.check(&state);
    });
}

/// `a` has two endpoints and then a third one, which the kernel refuses.
fn history_of_a() -> [Cluster; 2] {
    [&[1, 2][..], &[2, 3, 9]].map(|hosts| {
        let mut cluster = with_bad(66);
        cluster.insert("a".into(), Spec::new(1, hosts.iter().copied()));
        cluster
    })
}

async fn refuse_a_later_state(link: &Link, rig: &Rig) {
    let [first, second] = history_of_a();
    link.send(list(&first)).await;
    link.settle().await;
    rig.v4().refuses.insert("10.180.0.9".to_owned());
    link.send(steps(&first, &second)).await;
    link.settle().await;
    assert_eq!(behind(rig, 1), ["10.180.0.1", "10.180.0.2"]);
}

#[test]
fn known_failure_18_the_last_good_state_stays() {
    let rig = Rig::new();
    rig.run(async |link| {
        refuse_a_later_state(link, &rig).await;
        let [_, mut state] = history_of_a();
        // Those who shared objects with it may go, some syncs may fail half way.
        for (seed, gone) in [(1, "bad"), (2, "c")] {
            let before = state.clone();
            state.remove(gone);
            rig.v4().fail_one_in(2, seed);
            link.send(steps(&before, &state)).await;
            wait(LONG * 4).await;
            rig.heal();
            wait(LONG).await;
            assert_eq!(behind(&rig, 1), ["10.180.0.1", "10.180.0.2"]);
        }
        rig.v4().refuses.clear();
        wait(LONG).await;
        rig.check(&state);
    });
}

#[test]
fn the_last_good_state_stays_after_a_restart() {
    let rig = Rig::new();
    rig.run(async |link| refuse_a_later_state(link, &rig).await);
    rig.run(async |link| {
        let [_, mut state] = history_of_a();
        link.send(list(&state)).await;
        wait(LONG).await;
        assert_eq!(behind(&rig, 1), ["10.180.0.1", "10.180.0.2"]);
        // Others go nevertheless.
        let before = state.clone();
        state.remove("c");
        state.remove("bad");
        link.send(steps(&before, &state)).await;
        link.settle().await;
        assert!(!rig.v4().endpoints().contains_key(&frontend(2)));
        assert_eq!(behind(&rig, 1), ["10.180.0.1", "10.180.0.2"]);
        // Its own removal is possible, too, and takes everything with it.
        let before = state.clone();
        state.remove("a");
        link.send(steps(&before, &state)).await;
        link.settle().await;
        rig.check(&state);
    });
}

#[test]
fn the_last_good_state_may_be_one_whose_commit_seemed_to_fail() {
    let rig = refusing("10.180.0.9");
    let [first, second, third] = [&[1][..], &[2, 3, 4], &[9]]
        .map(|hosts| cluster([("a", Spec::new(1, hosts.iter().copied()))]));
    rig.run(async |link| {
        link.send(list(&first)).await;
        link.settle().await;
        rig.v4().mute_for = 1;
        link.send(steps(&first, &second)).await;
        link.settle().await;
        link.send(steps(&second, &third)).await;
        wait(LONG).await;
        assert_eq!(behind(&rig, 1), ["10.180.0.2", "10.180.0.3", "10.180.0.4"]);
        rig.v4().refuses.clear();
        wait(LONG).await;
        rig.check(&third);
    });
}

#[test]
fn an_address_that_a_refused_service_gives_up_can_be_taken() {
    let rig = refusing("172.30.0.66");
    let before = cluster([("a", Spec::new(1, [1])), ("b", Spec::new(2, [2]))]);
    let mut after = cluster([("a", Spec::new(66, [1])), ("b", Spec::new(1, [2]))]);
    rig.run(async |link| {
        link.send(list(&before)).await;
        link.settle().await;
        link.send(steps(&before, &after)).await;
        link.settle().await;
        assert_eq!(behind(&rig, 1), ["10.180.0.2"]);
        let last = after.clone();
        after.remove("a");
        link.send(steps(&last, &after)).await;
        link.settle().await;
        rig.check(&after);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The kernel's own checks are what this is about: no wrong step, nothing that points at
    /// nothing, whatever is refused in between.
    #[test]
    fn random_refusals(history in histories(), seed in any::<u64>()) {
        let mut rng = Rng(seed);
        let rig = Rig::new();
        let last = &history[history.len() - 1];
        for round in 0..3 {
            rig.fail_one_in(10, &mut rng);
            rig.run(async |link| {
                link.send(list(&history[0])).await;
                for states in history.windows(2) {
                    let refused = ["0.3", "0.7:8080", "0.2:8080", "30001", "UDP"];
                    rig.v4().refuses = refused
                        .into_iter()
                        .filter(|_| rng.below(4) == 0)
                        .map(str::to_owned)
                        .collect();
                    link.send(shuffled_steps(&states[0], &states[1], &mut rng)).await;
                    wait(Duration::from_millis(300) * u32::try_from(rng.below(9)).unwrap()).await;
                }
                if round == 2 {
                    rig.heal();
                    rig.v4().refuses.clear();
                    wait(LONG * 2).await;
                }
            });
        }
        rig.check(last);
    }
}
