//! Kernels that fail now and then, while the cluster changes.

use std::time::Duration;

use proptest::prelude::*;

use crate::cluster::{Cluster, histories, list, shuffled_steps};
use crate::fake::Rng;
use crate::rig::{Rig, wait};

/// Longer than the longest pause between two tries.
const LONG: Duration = Duration::from_secs(40);

/// Tells a history without much of a pause, whatever fails.
async fn hurry(link: &crate::rig::Link, history: &[Cluster], rng: &mut Rng) {
    link.send(list(&history[0])).await;
    for states in history.windows(2) {
        for event in shuffled_steps(&states[0], &states[1], rng) {
            link.send([event]).await;
            wait(Duration::from_micros(u64::try_from(rng.below(3000)).unwrap())).await;
        }
        if rng.below(3) == 0 {
            wait(LONG).await;
        }
    }
}

fn check(history: &[Cluster], one_in: usize, seed: u64) {
    let mut rng = Rng(seed);
    let rig = Rig::new();
    rig.fail_one_in(one_in, &mut rng);
    rig.run(async |link| {
        hurry(link, history, &mut rng).await;
        // The longest series of faults ends some day.
        for _ in 0..50 {
            wait(LONG).await;
        }
    });
    rig.check(&history[history.len() - 1]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn one_write_in_ten_fails(history in histories(), seed in any::<u64>()) {
        check(&history, 10, seed);
    }

    #[test]
    fn every_other_write_fails(history in histories(), seed in any::<u64>()) {
        check(&history, 2, seed);
    }

    #[test]
    fn somebody_else_removes_things_meanwhile(history in histories(), seed in any::<u64>()) {
        let mut rng = Rng(seed);
        let rig = Rig::new();
        rig.fail_one_in(10, &mut rng);
        rig.run(async |link| {
            for (index, state) in history.iter().enumerate() {
                let from = index.checked_sub(1).map(|before| &history[before]);
                match from {
                    None => link.send(list(state)).await,
                    Some(from) => link.send(shuffled_steps(from, state, &mut rng)).await,
                }
                wait(Duration::from_millis(u64::try_from(rng.below(15)).unwrap())).await;
                rig.v4().tamper_at_random(&mut rng);
            }
            rig.heal();
            wait(LONG).await;
        });
        rig.check(&history[history.len() - 1]);
    }
}
