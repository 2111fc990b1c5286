//! An address passes from one Service to another within one sync, and the kernel refuses the new
//! state of one of the two.

use std::collections::BTreeSet;
use std::time::Duration;

use proxy_core::names::Protocol;
use proxy_core::resolved::FrontendKey;

use crate::cluster::{Cluster, Spec, cluster, list, steps};
use crate::rig::{Rig, wait};

/// An endpoint that the kernel refuses.
const REFUSED: u8 = 99;

/// Longer than the longest pause between two tries.
const LONG: Duration = Duration::from_secs(31);

/// Names of giver and taker, in both orders.
const NAMES: [[&str; 2]; 2] = [["a", "b"], ["b", "a"]];

/// Endpoints behind a cluster IP.
fn behind(rig: &Rig, ip: u8) -> BTreeSet<String> {
    let address = [172, 30, 0, ip].into();
    let key = FrontendKey::Address { address, port: 80, protocol: Protocol::Tcp };
    rig.v4().endpoints().remove(&key).unwrap_or_default()
}

fn hosts<const N: usize>(hosts: [u8; N]) -> BTreeSet<String> {
    hosts.map(|host| format!("10.180.0.{host}:8080")).into()
}

/// Leads from one state to the other one, with the refused endpoint until `check` is done, and
/// then without fault.
fn pass_on(before: &Cluster, after: &Cluster, check: impl Fn(&Rig)) {
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(before)).await;
        link.settle().await;
        rig.v4().refuses.insert(format!("10.180.0.{REFUSED}:"));
        link.send(steps(before, after)).await;
        link.settle().await;
        // That nothing points at nothing is checked by the kernel and here.
        rig.v4().view();
        check(&rig);
        // Nor does it change by itself.
        wait(LONG).await;
        check(&rig);
        rig.v4().refuses.clear();
        wait(LONG).await;
        rig.check(after);
    });
}

#[test]
fn nobody_is_refused() {
    for [giver, taker] in NAMES {
        let before = cluster([(giver, Spec::new(1, [1])), (taker, Spec::new(2, [2]))]);
        let after = cluster([(giver, Spec::new(3, [1])), (taker, Spec::new(1, [2]))]);
        pass_on(&before, &after, |rig| rig.check(&after));
    }
}

#[test]
fn the_giver_is_refused() {
    for [giver, taker] in NAMES {
        let before = cluster([(giver, Spec::new(1, [1])), (taker, Spec::new(2, [2]))]);
        let after = cluster([(giver, Spec::new(3, [1, REFUSED])), (taker, Spec::new(1, [2]))]);
        pass_on(&before, &after, |rig| {
            assert_eq!(behind(rig, 1), hosts([2]));
            assert_eq!(behind(rig, 3), hosts([]));
        });
    }
}

#[test]
fn the_taker_is_refused() {
    for [giver, taker] in NAMES {
        let before = cluster([(giver, Spec::new(1, [1])), (taker, Spec::new(2, [2]))]);
        let after = cluster([(giver, Spec::new(3, [1])), (taker, Spec::new(1, [2, REFUSED]))]);
        pass_on(&before, &after, |rig| {
            assert_eq!(behind(rig, 3), hosts([1]));
            // Its last good state.
            assert_eq!(behind(rig, 2), hosts([2]));
        });
    }
}

#[test]
fn one_of_two_that_exchange_addresses_is_refused() {
    for [good, refused] in NAMES {
        let before = cluster([(good, Spec::new(1, [1])), (refused, Spec::new(2, [2]))]);
        let after = cluster([(good, Spec::new(2, [1])), (refused, Spec::new(1, [2, REFUSED]))]);
        pass_on(&before, &after, |rig| assert_eq!(behind(rig, 2), hosts([1])));
    }
}

#[test]
fn the_one_next_in_line_takes_over_from_a_refused_one_that_goes() {
    // Both want the address, and the first by name has it.
    let both = cluster([("a", Spec::new(1, [1])), ("b", Spec::new(1, [2]))]);
    let refused = cluster([("a", Spec::new(1, [REFUSED])), ("b", Spec::new(1, [2]))]);
    let one = cluster([("b", Spec::new(1, [2]))]);
    let rig = Rig::new();
    rig.run(async |link| {
        link.send(list(&both)).await;
        link.settle().await;
        rig.v4().refuses.insert(format!("10.180.0.{REFUSED}:"));
        link.send(steps(&both, &refused)).await;
        link.settle().await;
        assert_eq!(behind(&rig, 1), hosts([1]));
        link.send(steps(&refused, &one)).await;
        link.settle().await;
        rig.check(&one);
    });
}
