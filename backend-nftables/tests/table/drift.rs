//! Changes by others are heard.

use std::sync::Arc;
use std::time::Duration;

use proxy_core::address::IpFamily;
use proxy_core::sync::TableSync as _;
use proxy_core::table::{DriftSignal, ServiceTable as _};

use crate::support::{
    Services, Sync, assert_in_step, block_on, every_shape, in_namespace_with_nft, nft_run, node,
    synchronizer,
};

fn services() -> Services {
    every_shape(IpFamily::V4).into_iter().map(Arc::new).collect()
}

async fn sync_with(sync: &mut Sync, services: &Services) {
    let changes = services.iter().map(|s| (s.name.clone(), Some(Arc::clone(s)))).collect();
    sync.stage(changes, Some(node(IpFamily::V4)));
    sync.sync().await.unwrap();
}

async fn heard(signal: &mut Box<dyn DriftSignal>, limit: u64) -> Option<String> {
    tokio::time::timeout(Duration::from_millis(limit), signal.changed())
        .await
        .ok()
        .map(|result| result.unwrap())
}

#[test]
fn changes_by_others_are_heard_and_named() {
    in_namespace_with_nft(|| {
        let mut sync = synchronizer(IpFamily::V4);
        block_on(async {
            sync_with(&mut sync, &services()).await;
            let mut signal = sync.drift_signal().unwrap().unwrap();
            for (commands, named) in [
                ("flush chain ip proxyd services", "rule in chain services deleted"),
                ("flush map ip proxyd service-ips", "element in set service-ips deleted"),
                ("add chain ip proxyd x", "chain x changed"),
                ("add table ip proxyd { flags dormant; }", "table changed"),
                (
                    "add element ip proxyd cluster-ips { 1.2.3.4 }",
                    "element in set cluster-ips added",
                ),
                ("delete table ip proxyd", "table deleted"),
                ("flush ruleset", "table deleted"),
            ] {
                nft_run(commands);
                let text = heard(&mut signal, 10_000).await.unwrap();
                assert!(text.contains(named) || text.contains("and more"), "{commands}: {text}");
                assert!(text.contains(" by nft (pid "), "{commands}: {text}");
                // The repair is not heard.
                sync.distrust();
                sync.sync().await.unwrap();
            }
            assert_eq!(heard(&mut signal, 100).await, None);
        });
        assert_in_step(&sync);
    });
}

#[test]
fn own_changes_and_foreign_tables_are_not_heard() {
    in_namespace_with_nft(|| {
        let mut sync = synchronizer(IpFamily::V4);
        block_on(async {
            sync_with(&mut sync, &Services::new()).await;
            let mut signal = sync.drift_signal().unwrap().unwrap();
            sync_with(&mut sync, &services()).await;
            sync.table_mut().clear().await.unwrap();
            sync.distrust();
            sync.sync().await.unwrap();
            nft_run("table ip proxyd2 {\nchain services {\n}\n}\nadd table inet proxyd");
            nft_run("table ip6 proxyd {\nchain services {\n}\n}\ndelete table ip6 proxyd");
            nft_run("delete table ip proxyd2\nadd table ip proxy");
            assert_eq!(heard(&mut signal, 200).await, None);
            // It still listens.
            nft_run("flush chain ip proxyd services");
            let text = heard(&mut signal, 10_000).await.unwrap();
            assert!(text.starts_with("rule in chain services deleted by nft"), "{text}");
        });
    });
}
