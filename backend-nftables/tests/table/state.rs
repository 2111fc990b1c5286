//! The table against the real kernel, in namespaces of its own.

mod support;

use proxy_core::address::IpFamily;
use proxy_core::rules::{RuleSet, reconcile};
use proxy_core::table::ServiceTable as _;
use support::{block_on, compile, every_shape, in_namespace, run, table};

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
    for (family, name) in [(IpFamily::V4, "ip"), (IpFamily::V6, "ip6")] {
        in_namespace(|| {
            let mut table = table(family);
            let wanted = compile(&table, &every_shape(family));
            block_on(table.commit(&reconcile(&wanted, &RuleSet::new()))).unwrap();
            let text = run("nft", &["list", "table", name, "proxyd"]);
            if std::env::var_os("PRINT").is_some() {
                println!("{text}");
            }
            assert!(text.contains("default/web-3:http"));
            run("nft", &["-j", "list", "ruleset"]);
        });
    }
}
