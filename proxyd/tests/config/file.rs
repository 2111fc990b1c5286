//! The file format (C1), kubeadm's file (C7), sharp edges (C9).

use std::io;
use std::path::Path;
use std::time::Duration;

use proxyd::config::{DetectLocal, Flags, Mode, NodePortAddresses, load};

use crate::{HEAD, KUBEADM, errors, file, flags, load_with, nested};

#[test]
fn c1_1_version_and_kind_are_mandatory() {
    let found = errors(load_with("mode: ipvs\n", &[]));
    assert_eq!(found.len(), 2);
    assert!(
        found[0]
            .contains("apiVersion: null is not allowed: must be kubeproxy.config.k8s.io/v1alpha1")
    );
    let kubelet = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n";
    assert_eq!(errors(load_with(kubelet, &[])).len(), 2);
    for text in ["", "# nothing\n", "- a\n", "text", "null"] {
        assert!(errors(load_with(text, &[]))[0].contains("must be a mapping"), "{text:?}");
    }
}

#[test]
fn c1_1_and_c9_10_later_documents_are_ignored_loudly() {
    for (second, message) in [(HEAD, "IGNORED"), ("a: [", "broken")] {
        let loaded = load_with(&format!("---\n{HEAD}---\n{second}\n"), &[]).unwrap();
        assert!(loaded.warnings[0].contains(message), "{:?}", loaded.warnings);
    }
}

#[test]
fn c1_2_unknown_miscased_and_duplicate_keys_warn() {
    let loaded =
        file("Mode: ipvs\nipvs:\n  strictArp: true\nmode: iptables\nbogus: 1\nmode: nftables")
            .unwrap();
    assert_eq!(loaded.config.mode, Mode::Nftables, "the last duplicate wins");
    assert!(!loaded.config.ipvs.strict_arp);
    for (warning, expected) in loaded.warnings.iter().zip([
        "f.yaml:3: unknown field \"Mode\" is ignored, did you mean \"mode\"?",
        "f.yaml:6: field \"mode\" is ignored: it is set again in line 8",
        "f.yaml:7: unknown field \"bogus\" is ignored",
        "f.yaml:5: unknown field \"ipvs.strictArp\" is ignored, did you mean \"strictARP\"?",
    ]) {
        assert!(loaded.warnings.contains(&expected.to_owned()), "{warning} / {expected}");
    }
    assert_eq!(loaded.warnings.len(), 4, "{:?}", loaded.warnings);
}

#[test]
fn c1_2_type_errors_name_file_line_field_and_what_is_allowed() {
    let found =
        errors(file("conntrack:\n  min: \"5\"\nenableProfiling: \"true\"\nhostnameOverride: 5"));
    assert_eq!(
        found[..2],
        [
            "f.yaml:4: conntrack.min: \"5\" is not allowed: must be a whole number of at most 32 \
             bits, without quotes",
            "f.yaml:5: enableProfiling: \"true\" is not allowed: must be true or false, without \
             quotes",
        ]
    );
    assert!(found[2].starts_with("f.yaml:6: hostnameOverride: 5 is not allowed: must be a string"));
    assert!(errors(file("configSyncPeriod: 30"))[0].contains("duration with a unit"));
    let syntax = errors(file("a: b: c"));
    assert!(syntax[0].starts_with("f.yaml:3: "), "{syntax:?}");
}

#[test]
fn c1_2_durations_and_the_flush_frequency() {
    for (text, seconds) in [("30s", 30.0), ("1h2m", 3720.0), ("1.5h", 5400.0), ("100ms", 0.1)] {
        let loaded = file(&format!("configSyncPeriod: {text}")).unwrap();
        assert_eq!(loaded.config.config_sync_period, Duration::from_secs_f64(seconds));
    }
    for (text, millis) in [("7s", 7_000), ("\"7s\"", 7_000), ("1500000000", 1_500), ("0", 5_000)] {
        let loaded = file(&nested("logging.flushFrequency", text)).unwrap();
        assert_eq!(loaded.config.logging.flush_frequency, Duration::from_millis(millis));
    }
}

#[test]
fn c1_reads_json() {
    let text = "{\"apiVersion\": \"kubeproxy.config.k8s.io/v1alpha1\",\n\t\"kind\": \
                \"KubeProxyConfiguration\", \"mode\": \"ipvs\", \"conntrack\": {\"min\": 1}}";
    let loaded = load_with(text, &[]).unwrap();
    assert_eq!((loaded.config.mode, loaded.config.conntrack.min), (Mode::Ipvs, 1));
}

#[test]
fn c1_5_all_errors_come_at_once() {
    let found = errors(file(
        "mode: Ipvs\nbindAddress: '[::]'\noomScoreAdj: 2000\nclusterCIDR: x\nconntrack: {min: a}\n\
         iptables: {masqueradeBit: 32}",
    ));
    for field in [
        "mode",
        "bindAddress",
        "oomScoreAdj",
        "clusterCIDR",
        "conntrack.min",
        "iptables.masqueradeBit",
    ] {
        assert!(found.iter().any(|e| e.contains(&format!(" {field}: "))), "{field}: {found:?}");
    }
    assert_eq!(found.len(), 6);
}

#[test]
fn c7_kubeadms_file_gives_exactly_the_defaults() {
    let kubeadm = load_with(KUBEADM, &["--hostname-override=Node-1"]).unwrap();
    assert_eq!(kubeadm.warnings, Vec::<String>::new());
    let defaults = file(
        "clusterCIDR: 10.244.0.0/16\nhostnameOverride: Node-1\nclientConnection: {kubeconfig: \
         /var/lib/kube-proxy/kubeconfig.conf}",
    )
    .unwrap();
    assert_eq!(kubeadm.config, defaults.config);
    let config = kubeadm.config;
    assert_eq!(config.hostname_override.as_deref(), Some("node-1"));
    assert_eq!((config.mode, config.sync_period), (Mode::Iptables, Duration::from_secs(30)));
    // C9.1
    assert_eq!(
        (config.client_connection.qps.to_string(), config.client_connection.burst),
        ("5".into(), 10)
    );
    assert_eq!(config.min_sync_period, Duration::from_secs(1));
    assert_eq!((config.conntrack.max_per_core, config.conntrack.min), (32_768, 131_072));
    assert_eq!(config.healthz_bind_address.unwrap().to_string(), "0.0.0.0:10256");
    assert_eq!(config.metrics_bind_address.unwrap().to_string(), "127.0.0.1:10249");
    assert_eq!(config.node_port_addresses, NodePortAddresses::Cidrs(vec![]));
    assert!(matches!(config.detect_local, DetectLocal::ClusterCidr(cidrs) if cidrs.len() == 1));
}

#[test]
fn c9_4_nftables_takes_the_primary_addresses() {
    for fields in ["mode: nftables", "mode: nftables\nnodePortAddresses: []"] {
        assert_eq!(file(fields).unwrap().config.node_port_addresses, NodePortAddresses::Primary);
    }
    assert_eq!(
        flags(&["--mode=nftables"]).unwrap().config.node_port_addresses,
        NodePortAddresses::Primary
    );
}

#[test]
fn unreadable_files_are_named() {
    let missing = |path: &Path| -> io::Result<String> {
        if path == Path::new("f.yaml") {
            Ok(KUBEADM.to_owned())
        } else {
            Err(io::ErrorKind::NotFound.into())
        }
    };
    let run = |arguments: &[&str]| load(&Flags::parse(arguments).unwrap(), &missing);
    assert!(
        run(&["--config=g.yaml"]).unwrap_err().to_string().contains("g.yaml: cannot be read: ")
    );
    assert!(run(&["--config=f.yaml"]).unwrap_err().to_string().contains("kubeconfig.conf"));
    // No API server is asked in these.
    for more in ["--write-config-to=x", "--cleanup", "--manifests=d"] {
        run(&["--config=f.yaml", more]).unwrap();
    }
}
