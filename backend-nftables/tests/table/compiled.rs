//! Compiled objects: their order, their names, what they share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use backend_nftables::{ChainName, Expr, Key, NftablesTable, Rule, Verdict};
use proptest::prelude::*;
use proxy_core::address::IpFamily;
use proxy_core::resolved::{ResolvedService, Route};
use proxy_core::rules::{RuleSet, reconcile};
use proxy_core::table::ServiceTable as _;

use crate::support::generate::{build, recipes};
use crate::support::walk::{Outcome, Packet, Walker};
use crate::support::{Rules, address, every_shape, node, table};

fn compile(table: &NftablesTable, services: &[Arc<ResolvedService>]) -> Rules {
    let mut rules = RuleSet::new();
    table.compile_node(&node(table.family()), &mut rules);
    for service in services {
        table.compile_service(service, &mut rules);
    }
    rules
}

fn chain(name: &Arc<str>) -> Key {
    Key::Chain(ChainName(Arc::clone(name)))
}

fn target(verdict: &Verdict) -> Option<Key> {
    match verdict {
        Verdict::Jump(name) | Verdict::Goto(name) => Some(chain(name)),
        Verdict::Accept | Verdict::Drop | Verdict::Return => None,
    }
}

/// The objects that an object refers to by name.
fn referents(rule: &Rule) -> BTreeSet<Key> {
    match rule {
        Rule::Chain(spec) => {
            let exprs = spec.rules.iter().flat_map(|rule| rule.exprs.iter());
            let referent = |expr: &Expr| match expr {
                Expr::Verdict(verdict) => target(verdict),
                Expr::Contains { set: name, .. }
                | Expr::Map { map: name, .. }
                | Expr::VerdictMap { map: name, .. }
                | Expr::UpdateMap { map: name, .. } => Some(Key::Set(Arc::clone(name))),
                _ => None,
            };
            exprs.filter_map(referent).collect()
        }
        Rule::Verdict(action) => target(&action.verdict).into_iter().collect(),
        _ => BTreeSet::new(),
    }
}

fn check_order(rules: &Rules) {
    for (key, rule) in rules {
        for referent in referents(rule) {
            assert!(referent < *key, "{key} refers to {referent}");
            assert!(rules.get(&referent).is_some(), "{key} refers to {referent}, which is missing");
        }
    }
}

#[test]
fn every_shape_refers_to_smaller_objects() {
    for family in IpFamily::ALL {
        let services: Vec<_> = every_shape(family).into_iter().map(Arc::new).collect();
        check_order(&compile(&table(family), &services));
    }
}

/// Packets to frontends that forward before and after a change are forwarded at every moment
/// between its steps.
fn check_paths(family: IpFamily, old: &[Arc<ResolvedService>], new: &[Arc<ResolvedService>]) {
    let (before, after) = (compile(&table(family), old), compile(&table(family), new));
    let steps = reconcile(&after, &before).changes;
    let forwarding = |services: &[Arc<ResolvedService>]| -> BTreeMap<_, _> {
        let ports = services.iter().flat_map(|service| &service.ports);
        let frontends = ports.flat_map(|port| &port.frontends);
        let open = frontends.filter(|frontend| frontend.source_ranges.is_none());
        open.map(|frontend| {
            (frontend.key, matches!(frontend.routes.outside, Route::Forward { .. }))
        })
        .collect()
    };
    let (old, new) = (forwarding(old), forwarding(new));
    let kept: Vec<_> =
        old.iter().filter(|(key, was)| **was && new.get(key) == Some(&true)).collect();
    let mut rules = before;
    for step in &steps {
        proxy_core::rules::RuleDelta { changes: vec![step.clone()] }.apply_to(&mut rules);
        check_order(&rules);
        let mut walker = Walker::new(&rules, family, &[address(family, 192, 2)]);
        for (key, _) in &kept {
            let destination = match key {
                proxy_core::resolved::FrontendKey::Address { address, .. } => *address,
                proxy_core::resolved::FrontendKey::NodePort { .. } => address(family, 192, 2),
            };
            let packet = Packet {
                source: address(family, 8, 8),
                destination,
                protocol: key.protocol().number(),
                port: key.port(),
                interface: Some("eth0"),
            };
            let Outcome::Passed(passed) = walker.walk(packet) else {
                panic!("{key} has no path after {step:?}")
            };
            let to_endpoint = passed.to.is_some();
            assert!(to_endpoint, "{key} has no path after {step:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn objects_refer_to_smaller_ones(recipes in recipes(6)) {
        for family in IpFamily::ALL {
            check_order(&compile(&table(family), &build(&recipes, family)));
        }
    }

    #[test]
    fn the_order_of_services_does_not_matter(recipes in recipes(6)) {
        let family = IpFamily::V4;
        let mut services = build(&recipes, family);
        let rules = compile(&table(family), &services);
        services.reverse();
        prop_assert_eq!(compile(&table(family), &services), rules);
    }

    /// Other Services, compiled by another table, agree on what a shared object is.
    #[test]
    fn shared_objects_are_a_function_of_their_keys(one in recipes(4), other in recipes(4)) {
        for family in IpFamily::ALL {
            let one = compile(&table(family), &build(&one, family));
            let other = compile(&table(family), &build(&other, family));
            for (key, rule) in one.iter().filter(|(key, _)| NftablesTable::is_shared(key)) {
                prop_assert!(other.get(key).is_none_or(|same| same == rule), "{}", key);
            }
        }
    }

    #[test]
    fn every_frontend_has_a_path_at_every_moment(old in recipes(2), new in recipes(2)) {
        check_paths(IpFamily::V4, &build(&old, IpFamily::V4), &build(&new, IpFamily::V4));
    }
}

/// A service port with maps of its own has one chain for all its frontends, which must not draw
/// numbers before they have endpoints.
#[test]
fn a_growing_pool_is_numbered_before_its_chain_draws() {
    for family in IpFamily::ALL {
        let with = |endpoints| {
            let mut service = crate::support::cluster_ip_service(family, 1, endpoints);
            service.ports[0].affinity = Some(std::time::Duration::from_secs(60));
            vec![Arc::new(service)]
        };
        for (few, many) in [(1, 60), (3, 5), (2, 3)] {
            check_paths(family, &with(few), &with(many));
            check_paths(family, &with(many), &with(few));
        }
    }
}
