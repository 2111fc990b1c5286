//! What is refused, and by what it is told.

use std::sync::Arc;

use backend_nftables::{Key, Rule, detect};
use proxy_core::address::IpFamily;
use proxy_core::names::{ServiceName, ServicePortName};
use proxy_core::rules::{Change, RuleDelta, RuleSet, reconcile};
use proxy_core::table::{ServiceTable as _, TableErrorKind};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::support::{
    Services, address, assert_in_step, block_on, cluster_ip_service, compile, config, every_shape,
    in_namespace, in_namespace_with_nft, listing, sync_to, synchronizer, table,
};

fn drop_net_admin() {
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, sets).unwrap();
}

#[test]
fn a_missing_privilege_is_told() {
    in_namespace(|| {
        let family = IpFamily::V4;
        let mut table = table(family);
        let wanted = compile(&table, &every_shape(family));
        drop_net_admin();
        let error = block_on(table.commit(&reconcile(&wanted, &RuleSet::new()))).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Permission, "{}", error.chain());
        let error = block_on(table.observe()).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Permission, "{}", error.chain());
        let error = block_on(table.clear()).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Permission, "{}", error.chain());
        let error = detect(&config(family)).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Permission, "{}", error.chain());
        assert!(error.chain().contains("CAP_NET_ADMIN"), "{}", error.chain());
    });
}

#[test]
fn an_absent_object_means_out_of_sync() {
    in_namespace(|| {
        let family = IpFamily::V4;
        let mut table = table(family);
        let remove = |key| RuleDelta { changes: vec![Change::Remove { key, rule: Rule::Member }] };
        let element = Key::ClusterIp(address(family, 1, 1));
        // Without a table, and without the element.
        let error = block_on(table.commit(&remove(element.clone()))).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::OutOfSync, "{}", error.chain());
        let wanted = compile(&table, &[]);
        block_on(table.commit(&reconcile(&wanted, &RuleSet::new()))).unwrap();
        let error = block_on(table.commit(&remove(element))).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::OutOfSync, "{}", error.chain());
        assert!(error.chain().contains("1.0.0.1 in set cluster-ips"), "{}", error.chain());
    });
}

#[test]
fn a_refused_object_is_named_and_others_go_on() {
    in_namespace(|| {
        let family = IpFamily::V4;
        // An address of the other family, which core never hands over.
        let mut bad = cluster_ip_service(family, 2, 3);
        bad.cluster_ip = address(IpFamily::V6, 172, 2);
        let mut raw = table(family);
        let wanted = compile(&raw, std::slice::from_ref(&bad));
        let error = block_on(raw.commit(&reconcile(&wanted, &RuleSet::new()))).unwrap_err();
        assert_eq!(error.kind(), TableErrorKind::Rejected, "{}", error.chain());
        assert!(error.chain().contains("fd00:ac::2 in set cluster-ips"), "{}", error.chain());
        assert!(block_on(raw.observe()).unwrap().is_empty());

        let good = |number| Arc::new(cluster_ip_service(family, number, 3));
        let services: Services = vec![good(1), Arc::new(bad.clone()), good(3), good(4)];
        let mut sync = synchronizer(family);
        let report = sync_to(&mut sync, &Services::new(), &services);
        assert_eq!(report.left_out.len(), 1);
        assert_eq!(report.left_out[0].0, bad.name);
        let observed = block_on(raw.observe()).unwrap();
        let only_good: Vec<_> = [1, 3, 4].map(|number| (*good(number)).clone()).to_vec();
        assert_eq!(observed, compile(&raw, &only_good));
        // Once it is well, it is in effect.
        let well: Services = vec![good(1), good(2), good(3), good(4)];
        let report = sync_to(&mut sync, &services, &well);
        assert_eq!(report.left_out, []);
        assert_in_step(&sync);
    });
}

/// Names that no API server lets through.
#[test]
fn hostile_names_are_harmless() {
    let long = "x".repeat(300);
    let hostile = [
        "; drop",
        "a\"b",
        "a\0b",
        "a\nb\r\t",
        "$(reboot)",
        "`x`",
        "../..",
        "'",
        "\\",
        "äöü€😀",
        "{}",
        "#",
        "",
        " ",
        &long,
        "\u{85}\u{202e}",
        "pick-4",
        "affinity-endpoints",
    ];
    for family in IpFamily::ALL {
        in_namespace_with_nft(|| {
            let mut services = Services::new();
            for (number, name) in (1..).zip(hostile) {
                for affinity in [None, Some(std::time::Duration::from_secs(5))] {
                    let number = number * 2 + u32::from(affinity.is_some());
                    let mut service = cluster_ip_service(family, number, 3);
                    service.name = ServiceName::new(name, format!("{name}{number}"));
                    let port = &mut service.ports[0];
                    let service_name = service.name.clone();
                    port.name = ServicePortName {
                        service: service_name,
                        port: name.into(),
                        ..port.name.clone()
                    };
                    port.affinity = affinity;
                    services.push(Arc::new(service));
                }
            }
            let mut sync = synchronizer(family);
            let report = sync_to(&mut sync, &Services::new(), &services);
            assert_eq!(report.left_out, []);
            assert_in_step(&sync);
            let text = listing(family);
            assert!(!text.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{text:?}");
            for comment in text.lines().filter_map(|line| line.split("comment ").nth(1)) {
                assert_eq!(comment.matches('"').count() % 2, 0, "{comment}");
            }
            sync_to(&mut sync, &services, &Services::new());
            assert_in_step(&sync);
        });
    }
}
