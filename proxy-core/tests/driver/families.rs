//! Families fail apart (S10.9), and health says which (S14).

use std::time::{Duration, SystemTime};

use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::health::{Health, HealthReport};
use tokio::time::Instant;

use crate::cluster::{Cluster, Spec, cluster, list, steps};
use crate::rig::{Rig, expected, wait};

fn state(host: u8) -> Cluster {
    cluster([("a", Spec::new(1, [host]))])
}

/// Whether the IPv4 kernel holds this state.
fn has_v4(rig: &Rig, state: &Cluster) -> bool {
    rig.v4().view() == expected(state, IpFamily::V4)
}

#[test]
fn known_failure_36_ipv6_does_not_hold_back_ipv4() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&state(1))).await;
        link.settle().await;
        rig.kernel(IpFamily::V6).is_broken = true;
        for host in 2..100 {
            link.send(steps(&state(host - 1), &state(host))).await;
            link.settle().await;
            assert!(has_v4(&rig, &state(host)));
            wait(Duration::from_millis(500)).await;
        }
        rig.kernel(IpFamily::V6).is_broken = false;
        wait(Duration::from_secs(30)).await;
        rig.check(&state(99));
    });
}

#[test]
fn pauses_between_tries_double_up_to_the_sync_period() {
    let rig = Rig::new();
    rig.kernel(IpFamily::V6).is_broken = true;
    rig.run(async |link| {
        link.send(list(&state(1))).await;
        wait(Duration::from_secs(120)).await;
    });
    let failures: Vec<(Instant, u128)> = rig
        .told_with_times()
        .into_iter()
        .filter_map(|(time, event)| match event {
            DriverEvent::SyncFailed { family: IpFamily::V6, retry_in, .. } => {
                Some((time, retry_in.as_millis()))
            }
            _ => None,
        })
        .collect();
    let pauses: Vec<u128> = failures.iter().map(|(_, pause)| *pause).collect();
    let doubled = [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000, 30_000];
    assert_eq!(pauses, doubled);
    for pair in failures.windows(2) {
        // Timers are exact to a millisecond.
        let paused = (pair[1].0 - pair[0].0).as_millis();
        assert!(paused.abs_diff(pair[0].1) <= 2, "{paused} instead of {}", pair[0].1);
    }
}

/// Health as of the last event.
struct Watch {
    health: Health,
    start: SystemTime,
}

impl Watch {
    fn new() -> Self {
        let start = SystemTime::UNIX_EPOCH;
        let mut health = Health::new(Duration::from_secs(60));
        for family in IpFamily::ALL {
            health.started(family, start);
        }
        Self { health, start }
    }

    fn take(&mut self, told: Vec<(Instant, DriverEvent)>) -> HealthReport {
        for (time, event) in told {
            match event {
                DriverEvent::Queued { family } => self.health.queued(family, time.into_std()),
                DriverEvent::Synced { family, .. } => self.health.synced(family, self.start),
                _ => {}
            }
        }
        self.health.report(Instant::now().into_std(), self.start, true)
    }
}

/// What `/livez` says of each family.
fn families(report: &HealthReport) -> [bool; 2] {
    let body = serde_json::to_value(report.livez()).unwrap();
    ["IPv4", "IPv6"].map(|family| body["status"][family]["healthy"].as_bool().unwrap())
}

#[test]
fn known_failure_36_health_is_bad_after_two_periods_and_says_which_family() {
    let rig = Rig::new();
    let mut watch = Watch::new();
    rig.run(async |link| {
        link.send(list(&state(1))).await;
        link.settle().await;
        rig.kernel(IpFamily::V6).is_broken = true;
        link.send(steps(&state(1), &state(2))).await;
        wait(Duration::from_secs(59)).await;
        assert_eq!(families(&watch.take(rig.told_with_times())), [true, true]);
        wait(Duration::from_secs(2)).await;
        let report = watch.take(rig.told_with_times());
        assert_eq!(families(&report), [true, false]);
        assert!(!report.is_healthy());
        // Changes that come later are neither an excuse nor in the way of IPv4.
        link.send(steps(&state(2), &state(3))).await;
        link.settle().await;
        assert_eq!(families(&watch.take(rig.told_with_times())), [true, false]);
        assert!(has_v4(&rig, &state(3)));
        rig.kernel(IpFamily::V6).is_broken = false;
        wait(Duration::from_secs(30)).await;
        assert_eq!(families(&watch.take(rig.told_with_times())), [true, true]);
    });
}

#[test]
fn edge_20_a_first_sync_that_fails_is_neither_silent_nor_final() {
    let rig = Rig::new();
    let mut watch = Watch::new();
    rig.v4().is_broken = true;
    rig.run(async |link| {
        link.send(list(&state(1))).await;
        wait(Duration::from_secs(61)).await;
        assert_eq!(families(&watch.take(rig.told_with_times())), [false, true]);
        rig.v4().is_broken = false;
        wait(Duration::from_secs(30)).await;
        rig.check(&state(1));
        assert_eq!(families(&watch.take(rig.told_with_times())), [true, true]);
    });
}

#[test]
fn a_repair_that_fails_is_bad_health_too() {
    let rig = Rig::new();
    let mut watch = Watch::new();
    rig.run(async |link| {
        link.send(list(&state(1))).await;
        link.settle().await;
        rig.v4().is_broken = true;
        rig.v4().flush();
        wait(Duration::from_secs(61)).await;
        assert_eq!(families(&watch.take(rig.told_with_times())), [false, true]);
    });
}
