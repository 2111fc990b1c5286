//! The field table (C2).

use std::time::Duration;

use proxyd::config::DetectLocal;
use serde_json::{Value, json};

use crate::{HEAD, errors, file, flags, load_with, nested, shown};

const NULL: &[&str] = &["null"];
const TEXT: &[&str] = &["null", "\"\""];
const SPAN: &[&str] = &["null", "0s", "\"0\"", "\"\"", "0"];
const NUMBER: &[&str] = &["null", "0"];
const FLAG: &[&str] = &["null", "false"];

/// Field, default as written back, spellings that mean "unset".
pub(crate) fn table() -> Vec<(&'static str, Value, &'static [&'static str])> {
    vec![
        ("featureGates", Value::Null, &["null", "{}"]),
        ("clientConnection.kubeconfig", json!(""), TEXT),
        ("clientConnection.acceptContentTypes", json!(""), TEXT),
        ("clientConnection.contentType", json!("application/vnd.kubernetes.protobuf"), TEXT),
        ("clientConnection.qps", json!(5), NUMBER),
        ("clientConnection.burst", json!(10), NUMBER),
        ("logging.format", json!("text"), TEXT),
        ("logging.flushFrequency", json!("5s"), SPAN),
        ("logging.verbosity", json!(0), NUMBER),
        ("logging.vmodule", Value::Null, &["null", "[]"]),
        ("logging.options.text.infoBufferSize", json!("0"), &["null", "\"0\"", "0", "\"\""]),
        ("logging.options.json.infoBufferSize", json!("0"), &["null", "\"0\"", "0", "\"\""]),
        ("logging.options.json.splitStream", Value::Null, FLAG),
        ("hostnameOverride", json!(""), TEXT),
        ("bindAddress", json!("0.0.0.0"), TEXT),
        ("healthzBindAddress", json!("0.0.0.0:10256"), TEXT),
        ("metricsBindAddress", json!("127.0.0.1:10249"), TEXT),
        ("bindAddressHardFail", json!(false), FLAG),
        ("enableProfiling", json!(false), FLAG),
        ("showHiddenMetricsForVersion", json!(""), TEXT),
        ("mode", json!("iptables"), TEXT),
        ("iptables.masqueradeBit", json!(14), NULL),
        ("iptables.masqueradeAll", json!(false), FLAG),
        ("iptables.localhostNodePorts", json!(true), NULL),
        ("iptables.syncPeriod", json!("30s"), SPAN),
        ("iptables.minSyncPeriod", json!("1s"), SPAN),
        ("ipvs.syncPeriod", json!("0s"), SPAN),
        ("ipvs.minSyncPeriod", json!("0s"), SPAN),
        ("ipvs.scheduler", json!(""), TEXT),
        ("ipvs.excludeCIDRs", Value::Null, &["null", "[]"]),
        ("ipvs.strictARP", json!(false), FLAG),
        ("ipvs.tcpTimeout", json!("0s"), SPAN),
        ("ipvs.tcpFinTimeout", json!("0s"), SPAN),
        ("ipvs.udpTimeout", json!("0s"), SPAN),
        ("nftables.masqueradeBit", json!(14), NULL),
        ("nftables.masqueradeAll", json!(false), FLAG),
        ("nftables.syncPeriod", json!("0s"), SPAN),
        ("nftables.minSyncPeriod", json!("0s"), SPAN),
        ("winkernel.sourceVip", json!(""), TEXT),
        ("detectLocalMode", json!("ClusterCIDR"), TEXT),
        ("detectLocal.bridgeInterface", json!(""), TEXT),
        ("detectLocal.interfaceNamePrefix", json!(""), TEXT),
        ("clusterCIDR", json!(""), TEXT),
        ("nodePortAddresses", Value::Null, &["null", "[]"]),
        ("oomScoreAdj", json!(-999), NULL),
        ("conntrack.maxPerCore", json!(32_768), NULL),
        ("conntrack.min", json!(131_072), NULL),
        ("conntrack.tcpEstablishedTimeout", json!("24h0m0s"), NULL),
        ("conntrack.tcpCloseWaitTimeout", json!("1h0m0s"), NULL),
        ("conntrack.tcpBeLiberal", json!(false), FLAG),
        ("conntrack.udpTimeout", json!("0s"), SPAN),
        ("conntrack.udpStreamTimeout", json!("0s"), SPAN),
        ("configSyncPeriod", json!("15m0s"), SPAN),
        ("portRange", json!(""), TEXT),
        ("windowsRunAsService", Value::Null, FLAG),
    ]
}

#[test]
fn c2_defaults_and_c1_3_unset_spellings() {
    let defaults = file("").unwrap();
    for (field, default, spellings) in table() {
        assert_eq!(shown(&defaults, field), default, "{field}");
        for spelling in spellings {
            let loaded = file(&nested(field, spelling)).unwrap();
            assert_eq!(loaded, defaults, "{field}: {spelling}");
        }
    }
    for section in ["clientConnection", "logging", "iptables", "conntrack", "winkernel"] {
        assert_eq!(file(&nested(section, "null")).unwrap(), defaults, "{section}");
    }
}

#[test]
fn c2_4_explicit_zero_of_pointer_fields_stays() {
    for (field, text, value) in [
        ("iptables.masqueradeBit", "0", json!(0)),
        ("iptables.localhostNodePorts", "false", json!(false)),
        ("oomScoreAdj", "0", json!(0)),
        ("conntrack.maxPerCore", "0", json!(0)),
        ("conntrack.min", "0", json!(0)),
        ("conntrack.tcpEstablishedTimeout", "0s", json!("0s")),
        ("conntrack.tcpCloseWaitTimeout", "0s", json!("0s")),
    ] {
        assert_eq!(shown(&file(&nested(field, text)).unwrap(), field), value, "{field}");
    }
}

/// More fields needed, field, bad value, part of what is allowed.
const BAD: &[(&str, &str, &str, &str)] = &[
    ("", "featureGates", "[a]", "a mapping"),
    ("", "featureGates.NFTablesProxyMode", "false", "true: the gate is locked"),
    ("", "clientConnection.kubeconfig", "5", "a string"),
    ("", "clientConnection.qps", "fast", "a number"),
    ("", "clientConnection.burst", "-1", "0 or more"),
    ("", "logging.format", "xml", "text or json"),
    ("", "logging.flushFrequency", "-5s", "more than 0s"),
    ("", "logging.flushFrequency", "soon", "whole number of nanoseconds"),
    ("", "logging.verbosity", "-1", "0 to 4294967295"),
    ("", "logging.verbosity", "3000000000", "0 to 2147483647"),
    ("", "logging.options.json.splitStream", "true", "LoggingAlphaOptions"),
    ("", "logging.options.text.infoBufferSize", "many", "2Ki"),
    ("", "logging.options.text.infoBufferSize", "2Ki", "LoggingAlphaOptions"),
    ("", "hostnameOverride", "\"  \"", "white space"),
    ("", "bindAddress", "'[::]'", "without brackets"),
    ("", "bindAddress", "1.2.3.4:80", "without brackets or port"),
    ("", "healthzBindAddress", "localhost:10256", "IP:port"),
    ("", "metricsBindAddress", "':10249'", "IP:port"),
    ("", "metricsBindAddress", "1.2.3.4:0", "port 1 to 65535"),
    ("", "metricsBindAddress", "1.2.3.4:65536", "port 1 to 65535"),
    ("", "bindAddressHardFail", "1", "true or false"),
    ("", "showHiddenMetricsForVersion", "\"1.34\"", "\"1.35\""),
    ("", "mode", "IPVS", "iptables, ipvs or nftables"),
    ("", "iptables.masqueradeBit", "32", "0 to 31"),
    ("mode: nftables", "iptables.masqueradeBit", "-1", "0 to 31"),
    ("", "iptables.syncPeriod", "-1s", "more than 0s"),
    ("", "iptables.syncPeriod", "500ms", "at least iptables.minSyncPeriod, which is 1s"),
    ("", "iptables.minSyncPeriod", "-1s", "0s or more"),
    ("mode: ipvs", "ipvs.syncPeriod", "-1s", "more than 0s"),
    ("mode: ipvs", "ipvs.minSyncPeriod", "-1s", "0s or more"),
    ("mode: ipvs", "ipvs.tcpTimeout", "-1s", "0s or more"),
    ("mode: ipvs", "ipvs.tcpFinTimeout", "-1s", "0s or more"),
    ("mode: ipvs", "ipvs.udpTimeout", "-1s", "0s or more"),
    ("mode: ipvs", "ipvs.excludeCIDRs[1]", "[10.0.0.0/8, 10.0.0.1]", "a CIDR"),
    ("mode: nftables", "nftables.masqueradeBit", "32", "0 to 31"),
    ("mode: nftables", "nftables.syncPeriod", "-1s", "more than 0s"),
    ("mode: nftables", "nftables.minSyncPeriod", "-1s", "0s or more"),
    ("", "detectLocalMode", "clusterCIDR", "ClusterCIDR, NodeCIDR"),
    ("detectLocalMode: BridgeInterface", "detectLocal.bridgeInterface", "''", "set in"),
    ("detectLocalMode: InterfaceNamePrefix", "detectLocal.interfaceNamePrefix", "''", "set in"),
    ("", "clusterCIDR", "\"10.0.0.0/8, fd00::/48\"", "no space"),
    ("", "clusterCIDR", "10.0.0.0/8,11.0.0.0/8", "an IPv4 and an IPv6"),
    ("", "clusterCIDR", "10.0.0.0/8,fd00::/48,fd01::/48", "an IPv4 and an IPv6"),
    ("", "nodePortAddresses[0]", "[10.0.0.1]", "a CIDR"),
    ("", "nodePortAddresses[0]", "[primary, 10.0.0.0/8]", "the list just \"primary\""),
    ("", "nodePortAddresses", "primary", "a list"),
    ("", "oomScoreAdj", "1001", "-1000 to 1000"),
    ("", "conntrack.maxPerCore", "-1", "0 or more"),
    ("", "conntrack.min", "-1", "0 or more"),
    ("", "conntrack.min", "99999999999", "32 bits"),
    ("", "conntrack.tcpEstablishedTimeout", "-1s", "0s or more"),
    ("", "conntrack.tcpCloseWaitTimeout", "-1s", "0s or more"),
    ("", "conntrack.tcpBeLiberal", "maybe", "true or false"),
    ("", "conntrack.udpTimeout", "-1s", "0s or more"),
    ("", "conntrack.udpStreamTimeout", "1", "duration with a unit"),
    ("", "configSyncPeriod", "-1s", "more than 0s"),
    ("", "portRange", "[]", "a string"),
    ("", "windowsRunAsService", "no way", "true or false"),
    ("", "winkernel.enableDSR", "5", "true or false"),
];

#[test]
fn c2_bad_values_are_refused_by_name() {
    for (more, field, value, allowed) in BAD {
        let path = field.split('[').next().unwrap();
        let found = errors(file(&format!("{more}\n{}", nested(path, value))));
        assert_eq!(found.len(), 1, "{field}: {value}: {found:?}");
        assert!(found[0].contains(&format!("{field}: ")), "{field}: {value}: {found:?}");
        assert!(found[0].contains(" is not allowed: must be "), "{found:?}");
        assert!(found[0].contains(allowed), "{field}: {value}: {found:?}");
    }
    let found = errors(file("mode: nftables\nnftables:\n  masqueradeBit: 32"));
    assert_eq!(found, ["f.yaml:5: nftables.masqueradeBit: 32 is not allowed: must be 0 to 31"]);
}

#[test]
fn c2_vmodule() {
    let loaded = load_with(
        &format!("{HEAD}logging: {{vmodule: [{{filePattern: a, verbosity: 1}}]}}"),
        &["--vmodule=b=2,c*=3"],
    )
    .unwrap();
    let list: Vec<_> =
        loaded.config.logging.vmodule.iter().map(|v| (&*v.file_pattern, v.verbosity)).collect();
    assert_eq!(list, [("b", 2), ("c*", 3), ("a", 1)], "C4.1: flags come first");
    let found =
        errors(file("logging: {format: json, vmodule: [{filePattern: 'a=', verbosity: 1}]}"));
    assert!(found[0].contains("logging.vmodule: a list is not allowed"), "{found:?}");
    assert!(found[1].contains("logging.vmodule[0].filePattern"), "{found:?}");
}

#[test]
fn c2_addresses_follow_the_family_of_bind_address_and_c9_6() {
    let config = file("bindAddress: '::'").unwrap().config;
    assert_eq!(config.healthz_bind_address.unwrap().to_string(), "[::]:10256");
    assert_eq!(config.metrics_bind_address.unwrap().to_string(), "[::1]:10249");
    let config = file("healthzBindAddress: 10.0.0.1\nmetricsBindAddress: '::'").unwrap().config;
    assert_eq!(config.healthz_bind_address.unwrap().to_string(), "10.0.0.1:10256");
    assert_eq!(config.metrics_bind_address.unwrap().to_string(), "[::]:10249");
}

#[test]
fn c2_1_leading_zeros_pass() {
    let config = file("clusterCIDR: 010.1.0.0/16\nbindAddress: 010.0.0.1").unwrap().config;
    assert_eq!(config.bind_address.to_string(), "10.0.0.1");
    let DetectLocal::ClusterCidr(cidrs) = config.detect_local else { panic!() };
    assert_eq!(cidrs[0].to_string(), "10.1.0.0/16");
}

#[test]
fn c2_2_and_c9_3_only_the_active_section_counts() {
    let fields = "iptables: {masqueradeAll: true, syncPeriod: 10s}\nipvs: {syncPeriod: 20s}\n\
                  nftables: {syncPeriod: 40s}\nmode: ";
    for (mode, seconds, all) in
        [("iptables", 10, true), ("ipvs", 20, true), ("nftables", 40, false)]
    {
        let loaded = file(&format!("{fields}{mode}")).unwrap();
        assert_eq!(loaded.config.sync_period, Duration::from_secs(seconds), "{mode}");
        assert_eq!(loaded.config.masquerade_all, all);
        assert_eq!(loaded.warnings.len(), usize::from(!all), "{:?}", loaded.warnings);
        for other in ["iptables", "ipvs", "nftables"] {
            let expected = if other == mode { format!("{seconds}s") } else { "0s".to_owned() };
            assert_eq!(shown(&loaded, &format!("{other}.syncPeriod")), json!(expected));
        }
    }
}

#[test]
fn c2_5_idle_sections_are_not_checked() {
    let junk = "ipvs: {syncPeriod: -1s, excludeCIDRs: [junk], tcpTimeout: -1s}\n\
                nftables: {masqueradeBit: 99, syncPeriod: -1s}\n\
                detectLocalMode: NodeCIDR\nclusterCIDR: junk";
    let config = file(junk).unwrap().config;
    assert_eq!((config.detect_local, config.ipvs.exclude_cidrs.len()), (DetectLocal::NodeCidr, 0));
}

#[test]
fn c2_7_feature_gates() {
    let loaded =
        file("featureGates: {AllowServiceExternalIPs: false, SidecarContainers: true, NFTablesProxyMode: true, Nonsense: true}")
            .unwrap();
    assert!(!loaded.config.feature_gates.allow_service_external_ips());
    assert_eq!(loaded.warnings, ["feature gate \"Nonsense\" is unknown and ignored"]);
    file("featureGates: {AllAlpha: true}\nlogging: {options: {json: {splitStream: true}}}")
        .unwrap();
    assert!(
        errors(flags(&["--feature-gates=MultiCIDRServiceAllocator=false"]))[0].contains("locked")
    );
}
