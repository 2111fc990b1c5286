//! When the driver syncs, and when it does nothing at all.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::event::{Object, SourceEvent};
use proxy_core::table::TableErrorKind;
use tokio::time::Instant;

use crate::cluster::{Cluster, Spec, cluster, list, objects, steps};
use crate::rig::{Rig, runtime, wait};

fn state(hosts: impl IntoIterator<Item = u8>) -> Cluster {
    cluster([("a", Spec::new(1, hosts))])
}

/// Times at which IPv4 syncs ended.
fn syncs(rig: &Rig) -> Vec<Instant> {
    let is_sync =
        |event: &DriverEvent| matches!(event, DriverEvent::Synced { family: IpFamily::V4, .. });
    rig.told_with_times()
        .into_iter()
        .filter(|(_, event)| is_sync(event))
        .map(|(at, _)| at)
        .collect()
}

#[test]
fn known_failure_22_rewritten_metadata_is_no_reason_to_write() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&state([1, 2]))).await;
        link.settle().await;
        let commits = rig.v4().commits;
        rig.told();
        for second in 0..100 {
            for mut object in objects(&state([1, 2])) {
                let metadata = match &mut object {
                    Object::EndpointSlice(slice) => &mut slice.metadata,
                    Object::Service(service) => &mut service.metadata,
                    _ => continue,
                };
                metadata.annotations.trigger_time =
                    Some(format!("2026-01-01T00:{:02}:{:02}Z", second / 60, second % 60));
                link.send([SourceEvent::Applied(object)]).await;
            }
            link.settle().await;
        }
        assert_eq!(rig.v4().commits, commits);
        let told = rig.told();
        let is_count = |event: &DriverEvent| matches!(event, DriverEvent::TakenIn(_));
        assert!(told.iter().all(is_count), "{told:?}");
    });
}

#[test]
fn an_idle_driver_syncs_at_once() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&state([1]))).await;
        link.settle().await;
        rig.told();
        let sent = Instant::now();
        link.send(steps(&state([1]), &state([2]))).await;
        link.settle().await;
        assert_eq!(syncs(&rig), [sent]);
    });
}

#[test]
fn changes_gather_while_a_commit_runs() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&state([1]))).await;
        link.settle().await;
        rig.v4().delay = Duration::from_secs(1);
        let commits = rig.v4().commits;
        for host in 1..=200 {
            link.send(steps(&state([host]), &state([host + 1]))).await;
            wait(Duration::from_millis(4)).await;
        }
        wait(Duration::from_secs(3)).await;
        rig.check(&state([201]));
        assert_eq!(rig.v4().commits, commits + 2);
    });
}

#[test]
fn s10_6_the_least_period_counts_from_the_end_of_a_sync() {
    let mut rig = Rig::new();
    rig.options.min_sync_period = Duration::from_secs(2);
    rig.v4().delay = Duration::from_secs(1);
    rig.run(async |link| {
        link.send(list(&state([1]))).await;
        for host in 1..=100 {
            wait(Duration::from_millis(100)).await;
            link.send(steps(&state([host]), &state([host + 1]))).await;
        }
        wait(Duration::from_secs(4)).await;
        rig.check(&state([101]));
    });
    let syncs = syncs(&rig);
    assert_eq!(syncs.len(), 5);
    for pair in syncs.windows(2) {
        // Two seconds of pause and one of work; timers are exact to a millisecond.
        assert!((pair[1] - pair[0]).as_millis().abs_diff(3000) <= 2, "{:?}", pair[1] - pair[0]);
    }
}

#[test]
fn s10_6_a_retry_keeps_the_least_period_too() {
    let mut rig = Rig::new();
    rig.options.min_sync_period = Duration::from_secs(5);
    rig.v4().is_broken = true;
    rig.run(async |link| {
        link.send(list(&state([1]))).await;
        wait(Duration::from_secs(61)).await;
    });
    // Every five seconds, until the pauses between tries are longer than that.
    assert_eq!(rig.v4().commits, 9);
}

#[test]
fn known_failure_28_a_change_waits_no_longer_than_a_second_once_the_lock_is_free() {
    for held_for in [1, 7, 20, 200] {
        let rig = Rig::new();
        rig.run(async |link| {
            link.send(list(&state([1]))).await;
            link.settle().await;
            rig.v4().fails_as = Some(TableErrorKind::Busy);
            link.send(steps(&state([1]), &state([2]))).await;
            wait(Duration::from_secs(held_for)).await;
            rig.told();
            rig.v4().fails_as = None;
            let free = Instant::now();
            wait(Duration::from_secs(2)).await;
            rig.check(&state([2]));
            let took = syncs(&rig)[0] - free;
            assert!(took <= Duration::from_millis(1002), "held for {held_for} s: {took:?}");
            // At most one try in a second, but for the first few.
            assert!(rig.v4().commits < 12 + usize::try_from(held_for).unwrap());
        });
    }
}

#[test]
fn an_idle_driver_is_not_woken() {
    let rig = Rig::new();
    let polls = Arc::new(AtomicUsize::new(0));
    runtime().block_on(async {
        let (link, driver) = rig.start();
        let mut driver = Box::pin(driver);
        let counter = Arc::clone(&polls);
        let driver = tokio::spawn(poll_fn(move |context| {
            counter.fetch_add(1, Ordering::Relaxed);
            driver.as_mut().poll(context)
        }));
        link.send(list(&state([1]))).await;
        wait(Duration::from_secs(10)).await;
        let before = polls.load(Ordering::Relaxed);
        wait(Duration::from_secs(3500)).await;
        assert_eq!(polls.load(Ordering::Relaxed), before);
        link.stop.send_replace(true);
        driver.await.unwrap();
    });
}

#[test]
fn a_commit_is_finished_before_the_end() {
    let rig = Rig::new();
    rig.v4().delay = Duration::from_secs(1);
    runtime().block_on(async {
        let (link, driver) = rig.start();
        let driver = tokio::spawn(driver);
        link.send(list(&state([1]))).await;
        wait(Duration::from_millis(500)).await;
        link.stop.send_replace(true);
        driver.await.unwrap();
    });
    rig.check(&state([1]));
}

#[test]
fn the_end_of_the_source_is_the_end() {
    let rig = Rig::new();
    runtime().block_on(async {
        let (link, driver) = rig.start();
        let driver = tokio::spawn(driver);
        link.send(list(&state([1]))).await;
        let stop = link.stop;
        drop(link.events);
        driver.await.unwrap();
        drop(stop);
    });
    // What had arrived is in effect, and stays.
    rig.check(&state([1]));
}
