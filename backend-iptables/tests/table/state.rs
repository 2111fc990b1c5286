//! What is written is what is read back.

use std::sync::Arc;

use backend_iptables::{Key, Rule, Table, Variant};
use proptest::prelude::*;
use proxy_core::address::IpFamily;
use proxy_core::rules::{Change, RuleDelta};
use proxy_core::sync::{Synchronizer, TableSync as _};
use proxy_core::table::ServiceTable as _;
use testbed::resolved::every_shape;
use testbed::resolved::generate::{build, recipes};

use crate::support::{
    Services, assert_in_step, block_on, everywhere, iptables, observed, sync_to, synchronizer,
    table,
};

fn shapes(family: IpFamily) -> Services {
    every_shape(family).into_iter().map(Arc::new).collect()
}

#[test]
fn every_shape_is_read_back_as_it_was_written_and_a_restart_writes_nothing() {
    everywhere(|family, variant| {
        let services = shapes(family);
        let mut sync = synchronizer(family, variant);
        let report = sync_to(&mut sync, &Vec::new(), &services);
        assert!(report.full && report.changed_objects > 0);
        assert_in_step(&sync, variant);
        let mut restarted = synchronizer(family, variant);
        let report = sync_to(&mut restarted, &Vec::new(), &services);
        assert!(report.full && report.changed_objects == 0, "{report:?}");
    });
}

/// How many rules of ours the program lists in a table.
fn listed(family: IpFamily, variant: Variant, table: &str) -> usize {
    let rules = iptables(family, variant, &format!("-t {table} -S"));
    rules.lines().filter(|line| line.starts_with("-A ")).count()
}

#[test]
fn rules_are_counted_as_the_program_lists_them() {
    everywhere(|family, variant| {
        let services = shapes(family);
        let first = table(family, variant);
        let counts = first.counts();
        let mut sync = Synchronizer::new(first);
        sync_to(&mut sync, &Vec::new(), &services);
        for (table, counts) in counts.take() {
            assert_eq!(counts.installed, listed(family, variant, table.as_str()), "{table:?}");
            assert_eq!(counts.written, counts.installed);
        }
        sync_to(&mut sync, &services, &services[1..].to_vec());
        for (table, counts) in counts.take() {
            assert_eq!(counts.installed, listed(family, variant, table.as_str()), "{table:?}");
        }
        assert!(counts.take().iter().all(|(_, counts)| counts.written == 0));
        let mut restarted = table(family, variant);
        let counts = restarted.counts();
        block_on(restarted.observe()).unwrap();
        for (table, counts) in counts.take() {
            assert_eq!(counts.installed, listed(family, variant, table.as_str()), "{table:?}");
        }
    });
}

#[test]
fn generated_changes_are_read_back_as_they_were_written() {
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(6));
    let states = (recipes(5), recipes(5), recipes(5));
    let outcome = runner.run(&states, |(first, second, third)| {
        everywhere(|family, variant| {
            let mut sync = synchronizer(family, variant);
            let mut before = Services::new();
            for state in [&first, &second, &third] {
                let services = build(state, family);
                sync_to(&mut sync, &before, &services);
                assert_in_step(&sync, variant);
                before = services;
            }
        });
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{error}");
    }
}

#[test]
fn clearing_leaves_nothing_but_what_the_kubelet_shares() {
    everywhere(|family, variant| {
        let mut sync = synchronizer(family, variant);
        sync_to(&mut sync, &Vec::new(), &shapes(family));
        block_on(sync.clear()).unwrap();
        let left = observed(family, variant);
        let is_shared = |(key, _): &(&Key, &Rule)| format!("{key:?}").contains("KUBE-FIREWALL");
        let rest: Vec<_> = left.iter().filter(|it| !is_shared(it)).map(|(key, _)| key).collect();
        let jumps_only = rest.iter().all(|key| matches!(key, Key::Jumps(Table::Filter, _)));
        assert!(jumps_only, "{variant}: {rest:?}");
        let chains = left.iter().filter(|(key, _)| matches!(key, Key::Chain(..))).count();
        assert_eq!(chains, usize::from(family == IpFamily::V4));
    });
}

#[test]
fn damage_is_repaired_by_a_comparison() {
    everywhere(|family, variant| {
        let services = shapes(family);
        let mut sync = synchronizer(family, variant);
        sync_to(&mut sync, &Vec::new(), &services);
        let installed = observed(family, variant);
        let total = installed.len();
        // A third of what nothing else refers to, and the rules of some chains.
        let damage = installed.iter().rev().step_by(3).filter_map(|(key, rule)| match rule {
            Rule::Entry | Rule::Jumps(_) => {
                Some(Change::Remove { key: key.clone(), rule: rule.clone() })
            }
            Rule::Chain(_) => {
                let (old, new) = (rule.clone(), Rule::Chain([].into()));
                Some(Change::Replace { key: key.clone(), old, new })
            }
            Rule::Shared => None,
        });
        let (removed, emptied): (Vec<_>, Vec<_>) =
            damage.partition(|change| matches!(change, Change::Remove { .. }));
        let changes: Vec<_> = emptied.into_iter().chain(removed).collect();
        assert!(changes.len() > total / 6, "{} of {total}", changes.len());
        block_on(table(family, variant).commit(&RuleDelta { changes })).unwrap();
        sync.distrust();
        let report = block_on(sync.sync()).unwrap();
        assert!(report.full && report.changed_objects > 0);
        assert_in_step(&sync, variant);
    });
}
