//! The program nft as a second opinion.

use std::sync::Arc;

use backend_nftables::{
    ChainSpec, Expr, Key, NftTool, NftToolTable, Rule, RuleSpec, TABLE, TableConfig, render_json,
    render_text,
};
use proptest::prelude::*;
use proxy_core::address::IpFamily;
use proxy_core::node::{LocalDetector, NodeFacts, NodePortAddresses};
use proxy_core::resolved::ResolvedService;
use proxy_core::rules::{RuleSet, reconcile};
use proxy_core::sync::Synchronizer;
use proxy_core::table::{ServiceTable as _, TableErrorKind};
use serde_json::Value;

use crate::support::generate::{build, recipes};
use crate::support::{
    Rules, Services, Transactions, assert_in_step, block_on, config, every_shape,
    in_namespace_with_nft, listing, nft_run, node, sync_to, synchronizer, table,
};

fn compile(config: &TableConfig, node: &NodeFacts, services: &[Arc<ResolvedService>]) -> Rules {
    backend_nftables::compile(config, node, services.iter().map(Arc::as_ref))
}

/// Loads the objects both ways, into two namespaces, and compares what the kernel has then.
fn check(config: &TableConfig, node: &NodeFacts, services: &[Arc<ResolvedService>]) {
    let family = config.family;
    let by_netlink = |wanted: &Rules| {
        let mut table = table(family);
        block_on(table.commit(&reconcile(wanted, &RuleSet::new()))).unwrap();
        block_on(table.observe()).unwrap()
    };
    let by_tool = |wanted: &Rules| {
        let unsaid = NftTool::new("nft", family).load(wanted).unwrap();
        // The rules that look for the chains that remember clients are always there.
        assert!(unsaid.iter().all(|unsaid| unsaid.place == "affinity-record"), "{unsaid:?}");
        block_on(table(family).observe()).unwrap()
    };
    let wanted = compile(config, node, services);
    let unsayable = |key: &Key| key.to_string() == "chain affinity-record";
    in_namespace_with_nft(|| {
        let mut expected = by_netlink(&wanted);
        expected.retain(|key, _| !unsayable(key));
        in_namespace_with_nft(|| {
            let mut observed = by_tool(&wanted);
            observed.retain(|key, _| !unsayable(key));
            let observed = without_conversions(&observed);
            let delta = reconcile(&expected, &observed);
            assert!(delta.is_empty(), "{:#?}", delta.changes);
        });
    });
}

/// Where a key is a range, nft converts the byte order of protocols, which have one byte.
fn without_conversions(rules: &Rules) -> Rules {
    let conversion = Expr::Unknown("byteorder".into());
    let rule = |rule: &RuleSpec| RuleSpec {
        exprs: rule.exprs.iter().filter(|expr| **expr != conversion).cloned().collect(),
        comment: rule.comment,
    };
    let object = |(key, object): (&Key, &Rule)| match object {
        Rule::Chain(spec) => {
            let rules = spec.rules.iter().map(rule).collect();
            let spec = ChainSpec { base: spec.base.clone(), rules };
            (key.clone(), Rule::Chain(Arc::new(spec)))
        }
        other => (key.clone(), other.clone()),
    };
    rules.iter().map(object).collect()
}

fn without_affinity(mut services: Vec<ResolvedService>) -> Services {
    for port in services.iter_mut().flat_map(|service| &mut service.ports) {
        port.affinity = None;
    }
    services.into_iter().map(Arc::new).collect()
}

#[test]
fn nft_loads_what_netlink_loads() {
    for family in IpFamily::ALL {
        check(&config(family), &node(family), &without_affinity(every_shape(family)));
    }
}

#[test]
fn nft_knows_every_detector_and_node() {
    let detectors = [
        None,
        Some(LocalDetector::Interface("cni0".into())),
        Some(LocalDetector::InterfacePrefix("veth".into())),
        config(IpFamily::V4).detector,
    ];
    for detector in detectors {
        let family = IpFamily::V4;
        let config = TableConfig { detector, masquerade_bit: 31, ..config(family) };
        let node = NodeFacts { node_port_addresses: NodePortAddresses::All, ..node(family) };
        check(&config, &node, &without_affinity(every_shape(family)));
    }
    let node = NodeFacts { node_port_addresses: NodePortAddresses::All, ..node(IpFamily::V6) };
    check(&config(IpFamily::V6), &node, &[]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    #[test]
    fn nft_loads_any_state(recipes in recipes(6)) {
        for family in IpFamily::ALL {
            let mut recipes = recipes.clone();
            for recipe in &mut recipes {
                recipe.affinity = None;
            }
            check(&config(family), &node(family), &build(&recipes, family));
        }
    }
}

#[test]
fn affinity_is_left_out_and_told() {
    for family in IpFamily::ALL {
        in_namespace_with_nft(|| {
            let services: Services = every_shape(family).into_iter().map(Arc::new).collect();
            let wanted = compile(&config(family), &node(family), &services);
            let unsaid = NftTool::new("nft", family).load(&wanted).unwrap();
            assert!(unsaid.iter().any(|unsaid| unsaid.place.starts_with("record-")), "{unsaid:?}");
            // Netlink takes over and adds what is missing, without a new table.
            let mut sync = synchronizer(family);
            let report = sync_to(&mut sync, &Services::new(), &services);
            assert!(report.changed_objects < 10, "{report:?}");
            assert_in_step(&sync);
        });
    }
}

#[test]
fn a_refusal_by_nft_is_an_error() {
    in_namespace_with_nft(|| {
        let family = IpFamily::V4;
        let wanted = compile(&config(family), &node(family), &[]);
        let error = NftTool::new("no-such-nft", family).load(&wanted).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Transient, "{}", error.chain());
        let error = NftTool::new("false", family).load(&wanted).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Rejected, "{}", error.chain());
        let hostile = Key::Set("x; flush ruleset".into());
        let mut wanted = wanted;
        let rule = wanted.get(&Key::Set("cluster-ips".into())).unwrap().clone();
        wanted.insert(hostile, rule);
        let error = NftTool::new("nft", family).load(&wanted).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Rejected, "{}", error.chain());
    });
}

#[test]
fn the_document_has_every_object() {
    for family in IpFamily::ALL {
        let services: Services = every_shape(family).into_iter().map(Arc::new).collect();
        let wanted = compile(&config(family), &node(family), &services);
        let document = render_json([(family, &wanted)]);
        assert_eq!(document.to_string(), render_json([(family, &wanted)]).to_string());
        let objects = document["nftables"].as_array().unwrap();
        let count = |kind: &str| objects.iter().filter(|o| o["add"].get(kind).is_some()).count();
        let keys = |is: fn(&Key) -> bool| wanted.iter().filter(|(key, _)| is(key)).count();
        assert_eq!(count("table"), 1);
        assert_eq!(count("set") + count("map"), keys(|key| matches!(key, Key::Set(_))));
        assert_eq!(count("chain"), keys(|key| matches!(key, Key::Chain(_))));
        let elements: usize = objects
            .iter()
            .filter_map(|object| object["add"]["element"]["elem"].as_array().map(Vec::len))
            .sum();
        let others = count("table") + count("set") + count("map") + count("chain");
        assert_eq!(elements, wanted.len() - others);
        for rule in objects.iter().filter_map(|object| object["add"].get("rule")) {
            assert_eq!(rule["table"], TABLE);
            let statements = rule["expr"].as_array().unwrap();
            assert!(!statements.is_empty());
            // Every step has a meaning.
            assert!(statements.iter().all(|statement| statement.get("xt").is_none()), "{rule}");
        }
        let verdicts = objects.iter().find(|o| o["add"]["map"]["name"] == "service-ips").unwrap();
        assert_eq!(verdicts["add"]["map"]["map"], Value::from("verdict"));
    }
}

#[test]
fn the_text_is_what_nft_loads() {
    for family in IpFamily::ALL {
        let services = without_affinity(every_shape(family));
        let text = render_text(&compile(&config(family), &node(family), &services), family);
        // The rules that look for the chains that remember clients are always there.
        assert_eq!(text.matches("# by netlink only: ").count(), 2, "{text}");
        in_namespace_with_nft(|| {
            nft_run(&text);
            // Once more, over a table that exists.
            nft_run(&text);
            assert!(listing(family).contains("chain services"));
        });
    }
}

fn tool_synchronizer(family: IpFamily) -> Synchronizer<NftToolTable> {
    Synchronizer::new(NftToolTable::open(&config(family), "nft").unwrap())
}

#[test]
fn nft_follows_changes_in_one_transaction_each() {
    for family in IpFamily::ALL {
        in_namespace_with_nft(|| {
            let all: Services = every_shape(family).into_iter().map(Arc::new).collect();
            let mut sync = tool_synchronizer(family);
            sync_to(&mut sync, &Services::new(), &all);
            let mut transactions = Transactions::new();
            let fewer: Services = all.iter().skip(1).cloned().collect();
            sync_to(&mut sync, &all, &fewer);
            assert_eq!(transactions.count(), 1);
            sync_to(&mut sync, &fewer, &all);
            assert_eq!(transactions.count(), 1);
            // Nothing is left to do, also for a process that starts anew.
            let mut fresh = tool_synchronizer(family);
            let report = sync_to(&mut fresh, &Services::new(), &all);
            assert_eq!(report.changed_objects, 0, "{report:?}");
            assert_eq!(transactions.count(), 0);
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, ..ProptestConfig::default() })]

    #[test]
    fn nft_gets_from_any_state_to_any_other(first in recipes(4), second in recipes(4)) {
        let family = IpFamily::V4;
        let [first, second]: [Services; 2] = [build(&first, family), build(&second, family)];
        in_namespace_with_nft(|| {
            let mut sync = tool_synchronizer(family);
            sync_to(&mut sync, &Services::new(), &first);
            sync_to(&mut sync, &first, &second);
            let mut fresh = tool_synchronizer(family);
            let report = sync_to(&mut fresh, &Services::new(), &second);
            assert_eq!(report.changed_objects, 0, "{report:?}");
        });
    }
}
