//! Nothing is written before the complete first lists (S1.9).

use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::event::{Kind, SourceEvent};

use crate::cluster::{Cluster, Spec, list};
use crate::rig::Rig;

fn many() -> Cluster {
    (0..40).map(|number| (format!("s{number:02}"), Spec::new(number, [number + 1, 100]))).collect()
}

#[test]
fn known_failure_13_half_a_list_changes_nothing() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&many())).await;
        link.settle().await;
    });
    let (writes, before) = (rig.writes(), rig.v4().view());
    rig.told();
    let mut events = list(&many());
    let rest = events.split_off(events.len() / 2);
    rig.run(async |link| {
        link.send(events).await;
        crate::rig::wait(std::time::Duration::from_secs(5)).await;
        assert_eq!(rig.writes(), writes);
        assert_eq!(rig.v4().view(), before);
        assert!(!rig.told().iter().any(|event| matches!(event, DriverEvent::Queued { .. })));
        link.send(rest).await;
        link.settle().await;
    });
    // Nothing had changed, and nothing was touched.
    assert_eq!(rig.writes(), writes);
    assert!(rig.told().iter().any(|event| matches!(event, DriverEvent::Ready)));
    rig.check(&many());
}

#[test]
fn both_lists_open_the_gate() {
    let rig = Rig::new();
    let is_slice_end = |event: &SourceEvent| *event == SourceEvent::ListDone(Kind::EndpointSlice);
    let events = list(&many());
    let end = events.iter().position(is_slice_end).unwrap();
    rig.run(async |link| {
        link.send(events[..end].iter().cloned()).await;
        // Neither a change of addresses nor a foreign change opens it.
        link.addresses.send_replace(vec!["192.168.0.3".parse().unwrap()]);
        link.settle().await;
        rig.v4().signal(Ok("something of an earlier process".into()));
        link.settle().await;
        assert_eq!(rig.writes() + rig.v4().observations, 0);
        link.send([events[end].clone()]).await;
        link.settle().await;
        assert!(rig.v4().writes > 0 && rig.kernel(IpFamily::V6).writes > 0);
    });
}

#[test]
fn the_first_sync_is_queued_when_the_gate_opens() {
    let rig = Rig::new();
    rig.v4().is_broken = true;
    rig.run(async |link| {
        link.send(list(&many())).await;
        link.settle().await;
    });
    let told = rig.told();
    let position = |wanted: fn(&DriverEvent) -> bool| told.iter().position(wanted).unwrap();
    let ready = position(|event| matches!(event, DriverEvent::Ready));
    let queued = position(|event| matches!(event, DriverEvent::Queued { family: IpFamily::V4 }));
    let failed = position(|event| matches!(event, DriverEvent::SyncFailed { .. }));
    assert!(ready < queued && queued < failed, "{told:?}");
}
