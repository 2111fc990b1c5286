//! Flags (C3) and how they combine with a file (C4).

use std::time::Duration;

use clap::{CommandFactory, Parser};
use proxyd::config::{Flags, LogFormat, Mode, NodePortAddresses};
use serde_json::Value;

use crate::{HEAD, errors, file, flags, load_with, shown};

/// Flag with a value, field, value as written back.
pub(crate) const FLAGS: &[(&str, &str, &str)] = &[
    ("--kubeconfig=/k", "clientConnection.kubeconfig", "\"/k\""),
    ("--kube-api-content-type=x/y", "clientConnection.contentType", "\"x/y\""),
    ("--kube-api-qps=-1.5", "clientConnection.qps", "-1.5"),
    ("--kube-api-burst=7", "clientConnection.burst", "7"),
    ("--logging-format=json", "logging.format", "\"json\""),
    ("--log-flush-frequency=1m", "logging.flushFrequency", "\"1m0s\""),
    ("--v=4", "logging.verbosity", "4"),
    ("-v=4", "logging.verbosity", "4"),
    ("--hostname-override= Node-A ", "hostnameOverride", "\" Node-A \""),
    ("--bind-address=::", "bindAddress", "\"::\""),
    ("--healthz-bind-address=1.1.1.1", "healthzBindAddress", "\"1.1.1.1\""),
    ("--metrics-bind-address=1.1.1.1:1", "metricsBindAddress", "\"1.1.1.1:1\""),
    ("--bind-address-hard-fail", "bindAddressHardFail", "true"),
    ("--profiling", "enableProfiling", "true"),
    ("--show-hidden-metrics-for-version=1.35", "showHiddenMetricsForVersion", "\"1.35\""),
    ("--proxy-mode=nftables", "mode", "\"nftables\""),
    ("--mode=nftables", "mode", "\"nftables\""),
    ("--iptables-masquerade-bit=0", "iptables.masqueradeBit", "0"),
    ("--masquerade-all", "iptables.masqueradeAll", "true"),
    ("--iptables-localhost-nodeports=false", "iptables.localhostNodePorts", "false"),
    ("--iptables-sync-period=5s", "iptables.syncPeriod", "\"5s\""),
    ("--iptables-min-sync-period=0", "iptables.minSyncPeriod", "\"0s\""),
    ("--ipvs-scheduler=sh", "ipvs.scheduler", "\"sh\""),
    (
        "--ipvs-exclude-cidrs=1.0.0.0/8,2.0.0.0/8",
        "ipvs.excludeCIDRs",
        "[\"1.0.0.0/8\",\"2.0.0.0/8\"]",
    ),
    ("--ipvs-strict-arp=true", "ipvs.strictARP", "true"),
    ("--ipvs-tcp-timeout=1s", "ipvs.tcpTimeout", "\"1s\""),
    ("--ipvs-tcpfin-timeout=1s", "ipvs.tcpFinTimeout", "\"1s\""),
    ("--ipvs-udp-timeout=1s", "ipvs.udpTimeout", "\"1s\""),
    ("--detect-local-mode=NodeCIDR", "detectLocalMode", "\"NodeCIDR\""),
    ("--pod-bridge-interface=br0", "detectLocal.bridgeInterface", "\"br0\""),
    ("--pod-interface-name-prefix=veth", "detectLocal.interfaceNamePrefix", "\"veth\""),
    ("--cluster-cidr=10.0.0.0/8", "clusterCIDR", "\"10.0.0.0/8\""),
    ("--nodeport-addresses=primary", "nodePortAddresses", "[\"primary\"]"),
    ("--oom-score-adj=-5", "oomScoreAdj", "-5"),
    ("--conntrack-max-per-core=0", "conntrack.maxPerCore", "0"),
    ("--conntrack-min=1", "conntrack.min", "1"),
    ("--conntrack-tcp-timeout-established=0", "conntrack.tcpEstablishedTimeout", "\"0s\""),
    ("--conntrack-tcp-timeout-close-wait=1s", "conntrack.tcpCloseWaitTimeout", "\"1s\""),
    ("--conntrack-tcp-be-liberal", "conntrack.tcpBeLiberal", "true"),
    ("--conntrack-udp-timeout=1s", "conntrack.udpTimeout", "\"1s\""),
    ("--conntrack-udp-timeout-stream=1s", "conntrack.udpStreamTimeout", "\"1s\""),
    ("--config-sync-period=1m", "configSyncPeriod", "\"1m0s\""),
    ("--feature-gates=AllAlpha=true", "featureGates", "{\"AllAlpha\":true}"),
];

/// Flags that a configuration file does not silence.
fn honoured(flag: &str) -> bool {
    ["--log", "--v=", "-v", "--hostname-override", "--mode"].iter().any(|p| flag.starts_with(p))
}

#[test]
fn c4_3_flags_overlay_the_defaults_in_either_spelling() {
    for (flag, field, value) in FLAGS {
        let value: Value = serde_json::from_str(value).unwrap();
        assert_eq!(shown(&flags(&[flag]).unwrap(), field), value, "{flag}");
        if let Some((name, argument)) = flag.split_once('=')
            && !["true", "false"].contains(&argument)
        {
            assert_eq!(shown(&flags(&[name, argument]).unwrap(), field), value, "{flag}");
        }
    }
}

#[test]
fn c4_1_and_c9_8_a_file_silences_flags_with_a_warning_each() {
    let plain = file("").unwrap();
    for (flag, _, _) in FLAGS {
        let loaded = load_with(HEAD, &[flag]).unwrap();
        if honoured(flag) {
            assert_eq!(loaded.warnings, Vec::<String>::new(), "{flag}");
            assert_ne!(loaded.config, plain.config, "{flag}");
        } else {
            let name = flag.split('=').next().unwrap();
            assert_eq!(loaded.config, plain.config, "{flag}");
            assert_eq!(loaded.warnings.len(), 1, "{flag}");
            assert!(loaded.warnings[0].starts_with(&format!("{name} is ignored: ")));
        }
    }
    let silent = [
        "--healthz-port=1",
        "--metrics-port=1",
        "--ipvs-sync-period=1s",
        "--ipvs-min-sync-period=1s",
    ];
    assert_eq!(load_with(HEAD, &silent).unwrap().warnings.len(), 4);
}

#[test]
fn c4_1_proxy_mode_yields_to_the_file_and_our_mode_does_not() {
    let text = format!("{HEAD}mode: nftables\nipvs: {{syncPeriod: 20s}}\n");
    let loaded = load_with(&text, &["--proxy-mode=ipvs"]).unwrap();
    assert_eq!((loaded.config.mode, loaded.warnings.len()), (Mode::Nftables, 1));
    let loaded = load_with(&text, &["--mode=ipvs"]).unwrap();
    assert_eq!((loaded.config.mode, loaded.warnings.len()), (Mode::Ipvs, 0));
    assert_eq!(loaded.config.sync_period, Duration::from_secs(20));
    assert_eq!(loaded.config.node_port_addresses, NodePortAddresses::Cidrs(vec![]));
    let loaded = flags(&["--mode=ipvs", "--proxy-mode=nftables"]).unwrap();
    assert_eq!((loaded.config.mode, loaded.warnings.len()), (Mode::Ipvs, 1));
}

#[test]
fn c4_1_logging_flags_count_next_to_a_file() {
    let text = format!("{HEAD}logging: {{verbosity: 1, format: json}}\n");
    let config = load_with(&text, &["-v", "3"]).unwrap().config;
    assert_eq!((config.logging.verbosity, config.logging.format), (3, LogFormat::Json));
    let found = errors(load_with(&text, &["--logging-format=xml"]));
    assert!(found[0].starts_with("logging.format: \"xml\""), "not blamed on the file: {found:?}");
}

#[test]
fn c4_2_hostname() {
    assert!(errors(flags(&["--hostname-override", "  "]))[0].contains("hostnameOverride"));
    let config = load_with(&format!("{HEAD}hostnameOverride: a"), &["--hostname-override= B "]);
    assert_eq!(config.unwrap().config.hostname_override.as_deref(), Some("b"));
    let config = file("hostnameOverride: Node-X").unwrap().config;
    assert_eq!(config.hostname_override.as_deref(), Some("node-x"), "C9.15");
}

#[test]
fn c3_deprecated_ports() {
    let healthz = |more: &[&str]| {
        let loaded = flags(more).unwrap();
        assert!(!loaded.warnings.is_empty());
        loaded.config.healthz_bind_address.map(|a| a.to_string())
    };
    assert_eq!(healthz(&["--healthz-port=0"]), None);
    assert_eq!(healthz(&["--healthz-port=9", "--healthz-bind-address=::1"]).unwrap(), "[::1]:9");
    assert_eq!(
        healthz(&["--healthz-port=9", "--healthz-bind-address=1.1.1.1:8"]).unwrap(),
        "1.1.1.1:8"
    );
    assert_eq!(healthz(&["--healthz-port=0", "--write-config-to=x"]).unwrap(), "0.0.0.0:10256");
    assert!(
        errors(flags(&["--metrics-port=70000", "--metrics-bind-address=1.1.1.1"]))[0]
            .contains("65535")
    );
    let help = Flags::command().render_long_help().to_string();
    assert!(!help.contains("healthz-port") && help.contains("healthz-bind-address"));
    assert!(help.starts_with("Usage: "), "no developer's notes: {help}");
}

#[test]
fn c3_1_value_syntax() {
    let loaded =
        flags(&["--nodeport-addresses=1.0.0.0/8,2.0.0.0/8", "--nodeport-addresses", "3.0.0.0/8"]);
    assert!(
        matches!(loaded.unwrap().config.node_port_addresses, NodePortAddresses::Cidrs(c) if c.len() == 3)
    );
    let gates =
        flags(&["--feature-gates=AllAlpha=true,AllBeta=false", "--feature-gates=AllBeta=true"]);
    assert_eq!(
        gates.unwrap().config.feature_gates.iter().collect::<Vec<_>>(),
        [("AllAlpha", true), ("AllBeta", true)]
    );
    assert_eq!(Flags::parse(["-v", "1", "-v=2"]).unwrap().v, Some(2), "the last one wins");
    assert_eq!(Flags::parse(["--cleanup"]).unwrap().cleanup, Some(true));
    assert_eq!(Flags::parse(["--init-only=F"]).unwrap().init_only, Some(false));
    assert_eq!(Flags::parse(["--version=raw"]).unwrap().version.as_deref(), Some("raw"));
    assert_eq!(Flags::parse(["--version"]).unwrap().version.as_deref(), Some("true"));
    Flags::parse(["--master=http://x", "--boot-id-file=x", "--machine-id-file=y", "--manifests=d"])
        .unwrap();
    for wrong in [
        &["positional"][..],
        &["--unknown"],
        &["--cleanup", "false"],
        &["--cleanup=maybe"],
        &["--config-sync-period=5"],
        &["--feature-gates=A"],
        &["--vmodule=a"],
    ] {
        assert!(Flags::parse(wrong).is_err(), "{wrong:?}");
    }
}

#[test]
fn c3_2_and_c9_5_empty_addresses_change_nothing() {
    let defaults = flags(&[]).unwrap();
    assert_eq!(
        flags(&["--bind-address=", "--metrics-bind-address=", "--healthz-bind-address="]).unwrap(),
        defaults
    );
}

#[test]
fn c3_3_servers_can_be_switched_off() {
    let config = file("healthzBindAddress: none\nmetricsBindAddress: none").unwrap().config;
    assert_eq!((config.healthz_bind_address, config.metrics_bind_address), (None, None));
    assert_eq!(flags(&["--metrics-port=0"]).unwrap().config.metrics_bind_address, None);
    let config = flags(&["--healthz-bind-address=none"]).unwrap().config;
    assert_eq!(config.healthz_bind_address, None);
}

#[test]
fn c3_4_and_c3_5_sync_periods_by_flag() {
    let periods = |more: &[&str]| {
        let config = flags(more).unwrap().config;
        (config.sync_period.as_secs(), config.min_sync_period.as_secs())
    };
    assert_eq!(periods(&["--proxy-mode=ipvs"]), (30, 1), "C9.2");
    assert_eq!(file("mode: ipvs").unwrap().config.min_sync_period, Duration::ZERO, "C9.2");
    let all = [
        "--iptables-sync-period=5s",
        "--iptables-min-sync-period=2s",
        "--ipvs-sync-period=6s",
        "--ipvs-min-sync-period=3s",
    ];
    for (mode, expected) in [("iptables", (5, 2)), ("nftables", (5, 2)), ("ipvs", (6, 3))] {
        assert_eq!(periods(&[&all[..], &["--proxy-mode", mode]].concat()), expected, "{mode}");
    }
    assert_eq!(periods(&["--iptables-min-sync-period=0"]), (30, 0), "C2.4");
}

#[test]
fn c3_6_an_explicit_empty_cluster_cidr_is_an_error() {
    assert!(errors(flags(&["--cluster-cidr="]))[0].starts_with("clusterCIDR: \"\" is not allowed"));
}

#[test]
fn c1_4_bind_address_by_flag_does_not_move_the_servers() {
    let config = flags(&["--bind-address=::"]).unwrap().config;
    assert_eq!(config.healthz_bind_address.unwrap().to_string(), "0.0.0.0:10256");
}

#[test]
fn flags_fit_into_a_larger_command() {
    /// The program.
    #[derive(Debug, clap::Parser)]
    #[command(args_override_self = true)]
    struct Program {
        #[command(flatten)]
        flags: Flags,
        #[command(subcommand)]
        command: Option<Command>,
    }
    #[derive(Debug, clap::Subcommand)]
    enum Command {
        /// Run.
        Run(Box<Flags>),
    }
    let program = Program::try_parse_from(["x", "-v1", "-v2", "--masquerade-all"]).unwrap();
    assert_eq!((program.flags.v, program.command.is_none()), (Some(2), true));
    let Some(Command::Run(flags)) =
        Program::try_parse_from(["x", "run", "--mode", "ipvs"]).unwrap().command
    else {
        panic!("no subcommand")
    };
    assert_eq!(flags.mode.as_deref(), Some("ipvs"));
    let help = Program::command().render_long_help().to_string();
    assert!(help.starts_with("The program\n"), "{help}");
}
