//! Our own settings, in a document that kube-proxy reads past (C1.1).

use proxyd::config::{Mode, Settings, write_config};

use crate::{HEAD, KUBEADM, errors, file, load_with};

const OWN: &str = "apiVersion: proxyd.io/v1alpha1\nkind: ProxydConfiguration\n";

fn both(own: &str) -> String {
    format!("{HEAD}mode: ipvs\n---\n{OWN}{own}\n")
}

#[test]
fn a_file_without_the_document_has_the_defaults() {
    let defaults = Settings::default();
    for text in [KUBEADM.to_owned(), both(""), both("configChange: null\nnftables: {driver: ''}")] {
        let loaded = load_with(&text, &[]).unwrap();
        assert_eq!(loaded.config.settings, defaults, "{text}");
    }
    let loaded = load_with(&both(""), &[]).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
}

#[test]
fn values_are_taken_and_written_back() {
    for (change, driver) in [("Restart", "nft"), ("Exit", "netlink"), ("Report", "nft")] {
        let text = both(&format!("configChange: {change}\nnftables:\n  driver: {driver}"));
        let loaded = load_with(&text, &[]).unwrap();
        assert_eq!(loaded.config.mode, Mode::Ipvs, "the first document counts as before");
        let Settings { config_change, nftables_driver, .. } = loaded.config.settings;
        assert_eq!((config_change.as_str(), nftables_driver.as_str()), (change, driver));
        let again = load_with(&write_config(&loaded.config), &[]).unwrap();
        assert_eq!(again.config, loaded.config);
    }
    let written = write_config(&file("").unwrap().config);
    assert!(!written.contains("proxyd.io"), "the defaults need no document: {written}");
}

#[test]
fn values_that_are_not_allowed_name_line_and_field_all_at_once() {
    let text = both("configChange: restart\nnftables:\n  driver: [a]\n  drive: nft");
    assert_eq!(
        errors(load_with(&text, &[])),
        [
            "f.yaml:9: nftables.driver: a list is not allowed: must be a string (numbers, true, yes \
             and the like need quotes)",
            "f.yaml:7: configChange: \"restart\" is not allowed: must be Report, Restart or Exit",
        ]
    );
    let kind = errors(load_with(&both("").replace("ProxydConf", "Conf"), &[]));
    assert_eq!(
        kind,
        ["f.yaml:6: kind: \"Configuration\" is not allowed: must be ProxydConfiguration"]
    );
}

#[test]
fn unknown_fields_and_a_second_such_document_warn() {
    let loaded = load_with(&both("Nftables: {}\nx: 1\n---\napiVersion: proxyd.io/v1alpha1"), &[]);
    let warnings = loaded.unwrap().warnings;
    assert!(warnings[0].contains("did you mean \"nftables\"?"), "{warnings:?}");
    assert!(warnings[1].contains("unknown field \"x\" is ignored"), "{warnings:?}");
    assert!(warnings[2].contains("f.yaml:10: this document is IGNORED"), "{warnings:?}");
}

#[test]
fn events_are_written_unless_switched_off() {
    for (text, enabled) in [("", true), ("events: {}", true), ("events: {enabled: false}", false)] {
        let config = load_with(&both(text), &[]).unwrap().config;
        assert_eq!(config.settings.events_enabled, enabled, "{text}");
        let again = load_with(&write_config(&config), &[]).unwrap().config;
        assert_eq!(again.settings, config.settings);
    }
    let refused = errors(load_with(&both("events: {enabled: 'no'}"), &[]));
    assert!(refused[0].contains("events.enabled: \"no\""), "{refused:?}");
}

#[test]
fn known_failure_69_ranges_for_external_ips_are_taken_or_refused() {
    let ranges = "externalIPs: {allowedCIDRs: [192.0.2.0/24, '2001:db8::/64']}";
    let config = load_with(&both(ranges), &[]).unwrap().config;
    let texts = config.settings.external_ip_ranges.iter().map(ToString::to_string);
    assert_eq!(texts.collect::<Vec<_>>(), ["192.0.2.0/24", "2001:db8::/64"]);
    let again = load_with(&write_config(&config), &[]).unwrap().config;
    assert_eq!(again.settings, config.settings);
    // A range that cannot be read must not leave every address open.
    let refused = errors(load_with(&both(&ranges.replace("/24", "/240")), &[]));
    assert_eq!(
        refused,
        [
            "f.yaml:7: externalIPs.allowedCIDRs[0]: \"192.0.2.0/240\" is not allowed: must be a CIDR \
             like \"192.168.0.0/16\" or \"fd00::/48\""
        ]
    );
}
