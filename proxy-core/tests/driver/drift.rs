//! Somebody else changes our rules.

use std::time::Duration;

use proxy_core::address::IpFamily;
use proxy_core::driver::DriverEvent;
use proxy_core::table::{TableError, TableErrorKind};

use crate::cluster::{Cluster, Spec, cluster, list, steps};
use crate::fake::{Key, Rng};
use crate::rig::{Link, Rig, wait};

fn state() -> Cluster {
    cluster([
        ("a", Spec::new(1, [1, 2, 3])),
        ("b", Spec { node_port: 30_001, ..Spec::new(2, [4]) }),
        ("c", Spec { is_local: true, ..Spec::new(3, [5, 6]) }),
    ])
}

async fn begin(link: &Link, rig: &Rig) {
    link.send(list(&state())).await;
    link.settle().await;
    rig.check(&state());
    rig.told();
}

/// The repairs that were told.
fn repairs(rig: &Rig) -> Vec<(String, usize)> {
    let repair = |event| match event {
        DriverEvent::Drift { family: IpFamily::V4, description, repaired_objects } => {
            Some((description, repaired_objects))
        }
        _ => None,
    };
    rig.told().into_iter().filter_map(repair).collect()
}

#[test]
fn each_object_is_repaired_without_any_event() {
    let rig = Rig::new();
    rig.run(async |link| {
        begin(link, &rig).await;
        let keys = rig.v4().keys();
        for key in keys {
            rig.v4().tamper(&key);
            link.settle().await;
            rig.check(&state());
            assert_eq!(repairs(&rig), [(format!("{key:?} removed"), 1)]);
        }
    });
}

#[test]
fn a_flush_is_one_repair() {
    let rig = Rig::new();
    rig.run(async |link| {
        begin(link, &rig).await;
        let objects = rig.v4().rules.len();
        let observations = rig.v4().observations;
        rig.v4().flush();
        link.settle().await;
        rig.check(&state());
        assert_eq!(rig.v4().observations, observations + 1);
        let repairs = repairs(&rig);
        assert_eq!(repairs.len(), 1);
        assert_eq!(repairs[0].1, objects);
        assert_eq!(repairs[0].0.matches(" removed").count(), objects, "{}", repairs[0].0);
    });
}

#[test]
fn an_endless_quarrel_puts_off_neither_repairs_nor_changes() {
    let rig = Rig::new();
    rig.run(async |link| {
        begin(link, &rig).await;
        let mut rng = Rng(1);
        let mut changed = state();
        for round in 0..100 {
            rig.v4().tamper_at_random(&mut rng);
            wait(Duration::from_millis(3)).await;
            if round == 50 {
                changed.remove("a");
                link.send(steps(&state(), &changed)).await;
            }
        }
        // Each repair gathered what happened within some milliseconds.
        let repairs = repairs(&rig).len();
        assert!((15..=40).contains(&repairs), "{repairs}");
        link.settle().await;
        rig.check(&changed);
    });
}

#[test]
fn known_failure_14_a_change_that_meets_unknown_damage_is_right_after_one_try() {
    let rig = Rig::new();
    rig.v4().is_silent = true;
    rig.run(async |link| {
        begin(link, &rig).await;
        let endpoint = rig.v4().keys().into_iter().find(|key| matches!(key, Key::Endpoint { .. }));
        rig.v4().tamper(&endpoint.unwrap());
        let mut changed = state();
        changed.insert("a".into(), Spec::new(1, [7, 8, 9]));
        link.send(steps(&state(), &changed)).await;
        link.settle().await;
        rig.check(&changed);
    });
}

#[test]
fn a_table_without_a_signal_is_compared_once_a_period() {
    let rig = Rig::new();
    rig.v4().is_silent = true;
    rig.run(async |link| {
        begin(link, &rig).await;
        wait(Duration::from_secs(15)).await;
        let objects = rig.v4().rules.len();
        rig.v4().flush();
        wait(Duration::from_secs(16)).await;
        rig.check(&state());
        assert_eq!(repairs(&rig), [("found by a comparison".to_owned(), objects)]);
        let observations = rig.v4().observations;
        wait(Duration::from_secs(300)).await;
        assert_eq!(rig.v4().observations, observations + 10);
    });
    // The other table has a signal, and is compared on the slow timer only.
    assert_eq!(rig.kernel(IpFamily::V6).observations, 1);
}

#[test]
fn the_slow_timer_compares_what_no_signal_told() {
    let rig = Rig::new();
    rig.run(async |link| {
        begin(link, &rig).await;
        let key = rig.v4().keys().remove(0);
        rig.v4().rules.remove(&key);
        wait(Duration::from_secs(3600)).await;
        rig.check(&state());
        assert_eq!(repairs(&rig), [("found by a comparison".to_owned(), 1)]);
        assert_eq!(rig.v4().observations, 2);
    });
}

fn lost() -> Result<String, TableError> {
    Err(TableError::new(TableErrorKind::Transient, "listen"))
}

#[test]
fn a_lost_signal_is_taken_up_again() {
    let rig = Rig::new();
    rig.run(async |link| {
        begin(link, &rig).await;
        rig.v4().signal(lost());
        link.settle().await;
        assert_eq!(rig.v4().listeners(), 0);
        // Nobody hears this.
        rig.v4().flush();
        wait(Duration::from_millis(200)).await;
        assert_eq!(rig.v4().listeners(), 1);
        rig.check(&state());
        rig.v4().flush();
        link.settle().await;
        rig.check(&state());
    });
}

#[test]
fn while_a_signal_is_lost_the_table_is_compared_once_a_period() {
    let rig = Rig::new();
    rig.run(async |link| {
        begin(link, &rig).await;
        rig.v4().deaf_for = 1000;
        rig.v4().signal(lost());
        link.settle().await;
        rig.v4().flush();
        wait(Duration::from_secs(30)).await;
        rig.check(&state());
    });
}

#[test]
fn a_signal_that_cannot_be_had_is_no_reason_to_spin() {
    let rig = Rig::new();
    rig.v4().deaf_for = 1000;
    rig.run(async |link| {
        begin(link, &rig).await;
        wait(Duration::from_secs(600)).await;
        let tries = 1000 - rig.v4().deaf_for;
        assert!((20..40).contains(&tries), "{tries}");
        // Comparisons stand in for it.
        assert!((20..40).contains(&rig.v4().observations), "{}", rig.v4().observations);
        rig.v4().deaf_for = 0;
        wait(Duration::from_secs(31)).await;
        rig.v4().flush();
        link.settle().await;
        rig.check(&state());
    });
}

#[test]
fn a_signal_that_fails_as_soon_as_it_is_had_is_no_reason_to_spin() {
    let rig = Rig::new();
    rig.run(async |link| {
        begin(link, &rig).await;
        for _ in 0..60_000 {
            rig.v4().signal(lost());
            wait(Duration::from_millis(10)).await;
        }
        assert!(rig.v4().observations < 40, "{}", rig.v4().observations);
    });
}

#[test]
fn what_is_heard_before_the_first_sync_is_no_damage() {
    let rig = Rig::new();
    rig.run(async |link| {
        link.settle().await;
        rig.v4().signal(Ok("the former process wrote something".to_owned()));
        link.settle().await;
        link.send(list(&state())).await;
        link.settle().await;
        rig.check(&state());
        assert!(repairs(&rig).is_empty());
        assert_eq!(rig.v4().observations, 1);
    });
}
