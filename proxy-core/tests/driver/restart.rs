//! A new process finds what an earlier one left, wherever that one died.

use std::time::Duration;

use proptest::prelude::*;

use crate::cluster::{Cluster, histories, list, steps};
use crate::fake::Rng;
use crate::rig::{Rig, wait};

/// Runs a driver that dies after so many waits.
fn run_and_die(rig: &Rig, history: &[Cluster], waits: usize) {
    rig.run_for(waits, async |link| {
        link.send(list(&history[0])).await;
        link.settle().await;
        for states in history.windows(2) {
            link.send(steps(&states[0], &states[1])).await;
            link.settle().await;
        }
    });
}

fn run_and_check(rig: &Rig, last: &Cluster) {
    rig.run(async |link| {
        link.send(list(last)).await;
        wait(Duration::from_secs(1)).await;
    });
    rig.check(last);
    let writes = rig.writes();
    rig.run(async |link| {
        link.send(list(last)).await;
        wait(Duration::from_secs(1)).await;
    });
    assert_eq!(rig.writes(), writes, "nothing changed, and still something was written");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn dead_at_any_moment(history in histories(), waits in 0..300_usize) {
        let rig = Rig::new();
        run_and_die(&rig, &history, waits);
        run_and_check(&rig, &history[history.len() - 1]);
    }

    #[test]
    fn dead_again_and_again(history in histories(), seed in any::<u64>()) {
        let mut rng = Rng(seed);
        let rig = Rig::new();
        rig.fail_one_in(10, &mut rng);
        for _ in 0..8 {
            run_and_die(&rig, &history, rng.below(60));
        }
        rig.heal();
        run_and_check(&rig, &history[history.len() - 1]);
    }
}

#[test]
fn dead_at_every_moment_of_a_change() {
    let history: Vec<Cluster> = [[1, 2, 3], [3, 4, 5]]
        .into_iter()
        .map(|hosts| crate::cluster::cluster([("a", crate::cluster::Spec::new(1, hosts))]))
        .collect();
    for waits in 0..120 {
        let rig = Rig::new();
        run_and_die(&rig, &history, waits);
        run_and_check(&rig, &history[1]);
    }
}
