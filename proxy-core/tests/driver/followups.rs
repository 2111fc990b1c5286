//! What follows a sync that succeeded: health checks to answer, flows to forget.

use std::collections::BTreeMap;
use std::time::Duration;

use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::event::{Object, SourceEvent};
use proxy_core::names::ServiceName;
use proxy_core::resolved::HealthCheck;

use crate::cluster::{Cluster, Spec, cluster, list, objects, steps};
use crate::rig::{Rig, wait};

/// A load balancer's Service with this many endpoints on the node.
fn balanced(local: u8) -> Cluster {
    let hosts = (1..=local).map(|number| 2 * number);
    cluster([("a", Spec { is_local: true, ..Spec::new(1, hosts) }), ("b", Spec::new(2, [1]))])
}

/// The IPv4 health checks, as often as they were told.
fn checks(told: Vec<DriverEvent>) -> Vec<BTreeMap<ServiceName, HealthCheck>> {
    let checks = |event| match event {
        DriverEvent::HealthChecks { family: IpFamily::V4, checks, .. } => Some(checks),
        _ => None,
    };
    told.into_iter().filter_map(checks).collect()
}

fn one_check(local_endpoints: usize) -> BTreeMap<ServiceName, HealthCheck> {
    let check = HealthCheck { port: 32_001, local_endpoints };
    [(ServiceName::new("default", "a"), check)].into()
}

#[test]
fn s13_health_checks_are_told_when_they_change() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&balanced(2))).await;
        link.settle().await;
        assert_eq!(checks(rig.told()), [one_check(2)]);
        // Another Service is no news.
        let mut other = balanced(2);
        other.insert("b".into(), Spec::new(2, [3]));
        link.send(steps(&balanced(2), &other)).await;
        link.settle().await;
        assert!(checks(rig.told()).is_empty());
        // Known failure 40: the last local endpoint goes, then the Service.
        link.send(steps(&balanced(2), &balanced(0))).await;
        link.settle().await;
        assert_eq!(checks(rig.told()), [one_check(0)]);
        link.send(steps(&balanced(0), &Cluster::new())).await;
        link.settle().await;
        assert_eq!(checks(rig.told()), [BTreeMap::new()]);
    });
}

#[test]
fn s10_8_health_checks_wait_for_a_sync_that_succeeds() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&balanced(2))).await;
        link.settle().await;
        rig.told();
        rig.v4().is_broken = true;
        link.send(steps(&balanced(2), &balanced(1))).await;
        wait(Duration::from_secs(10)).await;
        assert!(checks(rig.told()).is_empty());
        rig.v4().is_broken = false;
        wait(Duration::from_secs(30)).await;
        assert_eq!(checks(rig.told()), [one_check(1)]);
    });
}

fn dns(host: u8) -> Cluster {
    cluster([("dns", Spec { protocol: "UDP", ..Spec::new(9, [host]) })])
}

/// Whether flows from the cluster IP to these hosts are stale, as often as flows were told of.
fn stale(told: Vec<DriverEvent>, hosts: [u8; 3]) -> Vec<[bool; 3]> {
    let stale = |event| match event {
        DriverEvent::StaleFlows { family: IpFamily::V4, flows } => Some(hosts.map(|host| {
            flows.is_stale(([172, 30, 0, 9].into(), 80), ([10, 180, 0, host].into(), 8080))
        })),
        _ => None,
    };
    told.into_iter().filter_map(stale).collect()
}

#[test]
fn edge_21_flows_of_changes_that_failed_to_be_written_are_not_lost() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&dns(1))).await;
        link.settle().await;
        rig.told();
        rig.v4().is_broken = true;
        link.send(steps(&dns(1), &dns(2))).await;
        link.settle().await;
        link.send(steps(&dns(2), &dns(3))).await;
        wait(Duration::from_secs(10)).await;
        assert!(stale(rig.told(), [1, 2, 3]).is_empty());
        rig.v4().is_broken = false;
        wait(Duration::from_secs(30)).await;
        assert_eq!(stale(rig.told(), [1, 2, 3]), [[true, true, false]]);
        // Once told, that is done.
        link.send(steps(&dns(3), &dns(3))).await;
        wait(Duration::from_secs(100)).await;
        assert!(stale(rig.told(), [1, 2, 3]).is_empty());
    });
}

#[test]
fn s10_3_trigger_times_outlive_a_failure() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&dns(1))).await;
        link.settle().await;
        rig.told();
        rig.v4().is_broken = true;
        for object in objects(&dns(2)) {
            let Object::EndpointSlice(mut slice) = object else { continue };
            let time = Some("2026-01-01T00:00:00Z".to_owned());
            slice.metadata.annotations.trigger_time = time;
            link.send([SourceEvent::Applied(Object::EndpointSlice(slice))]).await;
        }
        wait(Duration::from_secs(1)).await;
        rig.v4().is_broken = false;
        wait(Duration::from_secs(2)).await;
    });
    let told = rig.told();
    let synced = told.iter().find_map(|event| match event {
        DriverEvent::Synced { family: IpFamily::V4, trigger_times, queued_for, .. } => {
            Some((trigger_times.len(), *queued_for))
        }
        _ => None,
    });
    // Both IPv4 slices tell a time; the change waited for the kernel.
    let (times, queued_for) = synced.unwrap();
    assert_eq!(times, 2);
    assert!(queued_for >= Duration::from_secs(1), "{queued_for:?}");
}
