//! What was committed is observed, and changes lead from any state to any other.

use std::sync::Arc;

use proptest::prelude::*;
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::rules::{RuleSet, reconcile};
use proxy_core::sync::TableSync as _;
use proxy_core::table::ServiceTable as _;

use crate::support::generate::{Recipe, build, recipes};
use crate::support::{
    Services, Transactions, assert_in_step, block_on, compile, every_shape, in_namespace,
    in_namespace_with_nft, listing, sync_to, synchronizer, table,
};

#[test]
fn what_was_committed_is_observed() {
    for family in IpFamily::ALL {
        in_namespace(|| {
            let mut table = table(family);
            let wanted = compile(&table, &every_shape(family));
            block_on(async {
                let installed = table.observe().await.unwrap();
                assert!(installed.is_empty());
                table.commit(&reconcile(&wanted, &installed)).await.unwrap();
                let installed = table.observe().await.unwrap();
                let delta = reconcile(&wanted, &installed);
                assert!(delta.is_empty(), "{:#?}", delta.changes);
                table.commit(&reconcile(&RuleSet::new(), &installed)).await.unwrap();
                assert!(table.observe().await.unwrap().is_empty());
            });
        });
    }
}

#[test]
fn the_listing_reads_well() {
    for family in IpFamily::ALL {
        in_namespace_with_nft(|| {
            let mut table = table(family);
            let wanted = compile(&table, &every_shape(family));
            block_on(table.commit(&reconcile(&wanted, &RuleSet::new()))).unwrap();
            let text = listing(family);
            assert!(text.contains("default/web-3:http"), "{text}");
            for noise in ["invalid", "unknown", "@nh", "@th", "@ll"] {
                assert!(!text.contains(noise), "{noise} in {text}");
            }
        });
    }
}

fn check_transitions(family: IpFamily, states: &[Vec<Recipe>]) {
    let mut sync = synchronizer(family);
    let mut transactions = Transactions::new();
    let mut old = Services::new();
    for (round, state) in states.iter().enumerate() {
        let new = build(state, family);
        let report = sync_to(&mut sync, &old, &new);
        assert_eq!(report.left_out, []);
        assert_in_step(&sync);
        listing(family);

        transactions.count();
        let again = sync_to(&mut sync, &old, &new);
        assert_eq!((again.full, again.changed_objects), (false, 0));

        // A new process finds everything as it wants it, whatever the numbers of endpoints are.
        let mut fresh = synchronizer(family);
        let report = sync_to(&mut fresh, &Services::new(), &new);
        assert_eq!((report.full, report.changed_objects), (true, 0));
        assert_eq!(transactions.count(), 0);
        // Every other change is one that the process does not know from which state it starts.
        if round % 2 == 1 {
            sync.distrust();
        }
        old = new;
    }
    block_on(sync.clear()).unwrap();
    assert!(block_on(table(family).observe()).unwrap().is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 8,
        max_shrink_iters: 200,
        ..ProptestConfig::default()
    })]

    #[test]
    fn changes_lead_from_any_state_to_any_other(
        states in proptest::collection::vec(recipes(5), 4),
    ) {
        for family in IpFamily::ALL {
            in_namespace_with_nft(|| check_transitions(family, &states));
        }
    }

    #[test]
    fn a_change_while_the_process_was_away_is_caught_up_with(
        old in recipes(4),
        new in recipes(4),
    ) {
        for family in IpFamily::ALL {
            in_namespace(|| {
                let (old, new) = (build(&old, family), build(&new, family));
                sync_to(&mut synchronizer(family), &Services::new(), &old);
                let mut fresh = synchronizer(family);
                let report = sync_to(&mut fresh, &Services::new(), &new);
                assert_eq!(report.left_out, []);
                assert_in_step(&fresh);
            });
        }
    }
}

#[test]
fn a_large_change_is_split_into_batches() {
    in_namespace(|| {
        let family = IpFamily::V6;
        let service = |number| crate::support::cluster_ip_service(family, number, 10);
        let services: Services = (1..=400).map(|number| Arc::new(service(number))).collect();
        let mut sync = synchronizer(family);
        sync.table_mut().set_max_batch(1);
        let mut transactions = Transactions::new();
        sync_to(&mut sync, &Services::new(), &services);
        assert!(transactions.count() > 3);
        assert_in_step(&sync);
    });
}

/// The kernel takes no range that overlaps another one.
#[test]
fn source_ranges_make_room_for_others() {
    let with = |family, ranges: &[&str]| -> Services {
        let mut service = crate::support::cluster_ip_service(family, 1, 3);
        let ranges = ranges.iter().map(|range| Cidr::parse(range).unwrap());
        service.ports[0].frontends[0].source_ranges = Some(ranges.collect());
        vec![Arc::new(service)]
    };
    let states: [(_, [&[&str]; 4]); 2] = [
        (
            IpFamily::V4,
            [&["10.0.0.0/8"], &["10.1.0.0/16", "10.2.0.0/16"], &["0.0.0.0/0"], &["10.1.0.0/17"]],
        ),
        (
            IpFamily::V6,
            [&["fd00::/16"], &["fd00:1::/33", "fd00:2::/127"], &["::/0"], &["fd00:1::/48"]],
        ),
    ];
    for (family, states) in states {
        for (old, new) in states.iter().flat_map(|old| states.iter().map(move |new| (old, new))) {
            in_namespace(|| {
                let (old, new) = (with(family, old), with(family, new));
                let mut sync = synchronizer(family);
                sync_to(&mut sync, &Services::new(), &old);
                sync_to(&mut sync, &old, &new);
                assert_in_step(&sync);
                sync_to(&mut sync, &new, &old);
                // A new process does not know what was wanted before.
                let mut fresh = synchronizer(family);
                assert_eq!(sync_to(&mut fresh, &Services::new(), &new).left_out, []);
                assert_in_step(&fresh);
                sync_to(&mut fresh, &new, &old);
                assert_in_step(&fresh);
                sync_to(&mut fresh, &old, &Services::new());
                assert_in_step(&fresh);
            });
        }
    }
}
