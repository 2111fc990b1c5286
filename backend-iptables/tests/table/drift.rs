//! Changes by others are noticed, our own are not.

use std::sync::Arc;
use std::time::Duration;

use backend_iptables::Variant;
use proxy_core::address::IpFamily;
use proxy_core::sync::TableSync as _;
use proxy_core::table::DriftSignal;
use testbed::resolved::{cluster_ip_service, every_shape, node};

use crate::support::{
    Services, Sync, assert_in_step, block_on, everywhere, iptables, synchronizer,
};

async fn sync_with(sync: &mut Sync, services: &Services) {
    let family = sync.family();
    let changes = services.iter().map(|it| (it.name.clone(), Some(Arc::clone(it)))).collect();
    sync.stage(changes, Some(node(family)));
    sync.sync().await.unwrap();
}

async fn noticed(signal: &mut Box<dyn DriftSignal>, limit: u64) -> Option<String> {
    let limit = Duration::from_millis(limit);
    tokio::time::timeout(limit, signal.changed()).await.ok().map(|result| result.unwrap())
}

fn services(family: IpFamily) -> Services {
    every_shape(family).into_iter().map(Arc::new).collect()
}

/// The first chain whose name begins like this.
fn chain(family: IpFamily, variant: Variant, prefix: &str) -> String {
    let rules = iptables(family, variant, "-t nat -S");
    let mut names = rules.lines().filter_map(|line| line.strip_prefix("-N "));
    names.find(|name| name.starts_with(prefix)).unwrap().to_owned()
}

#[test]
fn changes_by_others_are_noticed_and_named() {
    everywhere(|family, variant| {
        let mut sync = synchronizer(family, variant);
        block_on(async {
            sync_with(&mut sync, &services(family)).await;
            let mut signal = sync.drift_signal().unwrap().unwrap();
            let (svc, sep) =
                (chain(family, variant, "KUBE-SVC-"), chain(family, variant, "KUBE-SEP-"));
            let one_rule = format!("-t nat -D {svc} 1");
            let one_chain = format!("-t nat -F {sep}");
            // As many rules as before, and as large.
            let same_size = format!("-t nat -R {sep} 1 -j RETURN -m comment --comment x");
            iptables(family, variant, &format!("-t nat -A {sep} -m comment --comment y -j RETURN"));
            assert!(noticed(&mut signal, 10_000).await.is_some(), "{variant}: an added rule");
            for (command, rule, of_table) in [
                ("-t nat -F", "rule in chain KUBE-", "table nat has "),
                ("-t filter -F", "rule in chain ", "table filter has "),
                (&one_rule, "rule in chain KUBE-SVC-", "table nat has "),
                (&one_chain, "rule in chain KUBE-SEP-", "table nat has "),
                (
                    "-t nat -D PREROUTING 1",
                    "rule in chain PREROUTING of table nat",
                    "table nat has ",
                ),
                ("-t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA", "chain KUBE-SVC-AAA", "table nat has "),
                (&same_size, "rule in chain KUBE-SEP-", "rules of table nat replaced"),
            ] {
                iptables(family, variant, command);
                let text = noticed(&mut signal, 10_000).await.unwrap();
                match variant {
                    Variant::Nft => assert!(
                        text.contains(rule) && text.contains("tables-nft (pid "),
                        "{command}: {text}"
                    ),
                    Variant::Legacy => assert!(text.contains(of_table), "{command}: {text}"),
                }
                sync.distrust();
                assert!(sync.sync().await.unwrap().changed_objects > 0, "{variant} {command}");
            }
            iptables(family, variant, "-t nat -F");
            iptables(family, variant, "-t nat -X");
            noticed(&mut signal, 10_000).await.unwrap();
            while noticed(&mut signal, 700).await.is_some() {}
            sync.distrust();
            sync.sync().await.unwrap();
            assert_eq!(noticed(&mut signal, 700).await, None, "{variant}: the repair");
        });
        assert_in_step(&sync, variant);
    });
}

#[test]
fn own_changes_are_not_noticed_and_of_others_only_what_concerns_us() {
    everywhere(|family, variant| {
        let mut sync = synchronizer(family, variant);
        block_on(async {
            let mut signal = sync.drift_signal().unwrap().unwrap();
            sync_with(&mut sync, &Services::new()).await;
            assert_eq!(noticed(&mut signal, 700).await, None, "{variant}: the first rules");
            sync_with(&mut sync, &services(family)).await;
            for number in 1..6 {
                let service = Arc::new(cluster_ip_service(family, number, number % 3));
                sync_with(&mut sync, &vec![service]).await;
            }
            sync.clear().await.unwrap();
            sync.distrust();
            sync.sync().await.unwrap();
            assert_eq!(noticed(&mut signal, 700).await, None, "{variant}: changes");
            let other = if family == IpFamily::V4 { IpFamily::V6 } else { IpFamily::V4 };
            let mut of_other = synchronizer(other, variant);
            sync_with(&mut of_other, &services(other)).await;
            iptables(other, variant, "-t nat -F");
            iptables(family, variant, "-t mangle -A INPUT -j ACCEPT");
            if variant == Variant::Nft {
                // The legacy variant cannot tell whose rules they are.
                for command in [
                    "-t nat -N CNI",
                    "-t nat -A CNI -j RETURN",
                    "-t nat -A PREROUTING -j CNI",
                    "-t nat -D PREROUTING -j CNI",
                    "-t nat -F CNI",
                    "-t nat -X CNI",
                    "-t filter -I FORWARD -j ACCEPT",
                ] {
                    iptables(family, variant, command);
                }
            }
            assert_eq!(noticed(&mut signal, 700).await, None, "{variant}: others");
            // It still looks.
            iptables(family, variant, "-t nat -F");
            assert!(noticed(&mut signal, 10_000).await.is_some(), "{variant}");
        });
    });
}

#[test]
fn what_others_do_between_two_of_our_writes_is_noticed() {
    everywhere(|family, variant| {
        let mut sync = synchronizer(family, variant);
        block_on(async {
            let mut signal = sync.drift_signal().unwrap().unwrap();
            sync_with(&mut sync, &services(family)).await;
            // Nobody has looked since, and the write that follows succeeds.
            iptables(family, variant, "-t filter -F KUBE-FORWARD");
            let service = Arc::new(cluster_ip_service(family, 40, 2));
            sync_with(&mut sync, &vec![service]).await;
            assert!(noticed(&mut signal, 10_000).await.is_some(), "{variant}");
        });
    });
}
