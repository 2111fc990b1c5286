//! From a draft to the typed configuration, collecting every value that is not allowed (C1.5).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::address::{Cidr, parse_cidr, parse_ip, parse_server};
use super::document::{self, Document, Draft};
use super::error::{ConfigError, Place};
use super::gates::{self, FeatureGates};
use super::overlay::{HEALTHZ_PORT, METRICS_PORT, NONE};
use super::scalar::{GoDuration, parse_quantity};
use super::types::{
    ClientConnection, Conntrack, DetectLocal, DetectLocalMode, Iptables, Ipvs,
    KubeProxyConfiguration, LogFormat, LogOutput, Logging, Mode, Nftables, NodePortAddresses,
    Vmodule,
};

/// The release before the one we stand in for, whose hidden metrics may be shown.
const PREVIOUS_MINOR: &str = "1.35";

/// Collects problems; knows the lines of a file's fields.
#[derive(Debug, Default)]
pub(super) struct Checker {
    pub(super) file: Option<String>,
    pub(super) lines: BTreeMap<String, u64>,
    pub(super) given: BTreeSet<String>,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<String>,
}

impl Checker {
    fn refuse(&mut self, field: &str, value: impl Display, allowed: &str) {
        let line = self.lines.get(field).copied();
        let place = self.file.clone().map(|file| Place { file, line });
        self.errors.push(ConfigError::Field {
            place: place.filter(|_| line.is_some()),
            field: field.to_owned(),
            value: value.to_string(),
            allowed: allowed.to_owned(),
        });
    }

    /// Passes on `value` if there is one, else reports `text`.
    fn text<T>(&mut self, field: &str, text: &str, value: Option<T>, allowed: &str) -> Option<T> {
        if value.is_none() {
            self.refuse(field, format_args!("{text:?}"), allowed);
        }
        value
    }

    fn range(&mut self, field: &str, value: i32, min: i32, max: i32) {
        if value < min || value > max {
            let allowed =
                if max == i32::MAX { format!("{min} or more") } else { format!("{min} to {max}") };
            self.refuse(field, value, &allowed);
        }
    }

    fn not_negative(&mut self, field: &str, value: GoDuration) {
        if value < GoDuration::default() {
            self.refuse(field, value, "0s or more");
        }
    }

    fn positive(&mut self, field: &str, value: GoDuration) {
        if value <= GoDuration::default() {
            self.refuse(field, value, "more than 0s");
        }
    }

    /// Types a list of blocks, reporting each wrong one by its index.
    fn cidrs(&mut self, field: &str, texts: &[String]) -> Vec<Cidr> {
        let allowed = "a CIDR like \"192.168.0.0/16\" or \"fd00::/48\"";
        let texts = texts.iter().enumerate();
        texts
            .filter_map(|(i, t)| self.text(&format!("{field}[{i}]"), t, parse_cidr(t), allowed))
            .collect()
    }

    /// Types the address of one of our servers; the outer `None` means it was reported.
    fn server(&mut self, field: &str, text: &str, port: u16) -> Option<SocketAddr> {
        let allowed = "IP:port with port 1 to 65535, an IP, or \"none\" to switch off";
        if text == NONE {
            return None;
        }
        self.text(field, text, parse_server(text, port), allowed)
    }
}

/// Checks and types a draft; with errors in `checker` the result is not to be used.
pub(super) fn check(
    draft: Draft,
    cluster_cidr_given: bool,
    checker: &mut Checker,
) -> KubeProxyConfiguration {
    let document = &draft.document;
    let mode = checker
        .text("mode", &document.mode, document.mode.parse().ok(), "iptables, ipvs or nftables")
        .unwrap_or(Mode::Iptables);
    check_periods(&draft, mode, checker);
    check_numbers(document, mode, checker);
    warn_of_idle_fields(document, mode, checker);
    let feature_gates = check_gates(document, checker);
    let logging = check_logging(&document.logging, &feature_gates, checker);
    let ip = parse_ip(&document.bind_address);
    let allowed = "an IP address without brackets or port";
    let ip = checker.text("bindAddress", &document.bind_address, ip, allowed);
    let version = &document.show_hidden_metrics_for_version;
    if !version.is_empty() && version != PREVIOUS_MINOR {
        let allowed = format!("empty or {PREVIOUS_MINOR:?}");
        let field = "showHiddenMetricsForVersion";
        checker.refuse(field, format_args!("{version:?}"), &allowed);
    }
    KubeProxyConfiguration {
        client_connection: client_connection(&document.client_connection),
        logging,
        hostname_override: check_hostname(document, checker),
        bind_address: ip.unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        healthz_bind_address: checker.server(
            "healthzBindAddress",
            &document.healthz_bind_address,
            HEALTHZ_PORT,
        ),
        metrics_bind_address: checker.server(
            "metricsBindAddress",
            &document.metrics_bind_address,
            METRICS_PORT,
        ),
        bind_address_hard_fail: document.bind_address_hard_fail,
        enable_profiling: document.enable_profiling,
        show_hidden_metrics_for_version: Some(version.clone()).filter(|v| !v.is_empty()),
        mode,
        sync_period: draft.sync_period.to_std(),
        min_sync_period: draft.min_sync_period.to_std(),
        masquerade_all: draft.masquerade_all,
        iptables: Iptables {
            masquerade_bit: bit(document.iptables.masquerade_bit),
            localhost_node_ports: document.iptables.localhost_node_ports,
        },
        ipvs: check_ipvs(&document.ipvs, mode, checker),
        nftables: Nftables { masquerade_bit: bit(document.nftables.masquerade_bit) },
        detect_local: check_detect_local(document, cluster_cidr_given, checker),
        node_port_addresses: check_node_ports(&document.node_port_addresses, checker),
        oom_score_adj: document.oom_score_adj,
        conntrack: conntrack(&document.conntrack),
        config_sync_period: document.config_sync_period.to_std(),
        feature_gates,
        settings: draft.settings.clone(),
        document: draft.into_document(mode),
    }
}

fn check_numbers(document: &Document, mode: Mode, checker: &mut Checker) {
    let conntrack = &document.conntrack;
    for (field, value, min, max) in [
        ("clientConnection.burst", document.client_connection.burst, 0, i32::MAX),
        ("iptables.masqueradeBit", document.iptables.masquerade_bit, 0, 31),
        ("oomScoreAdj", document.oom_score_adj, -1000, 1000),
        ("conntrack.maxPerCore", conntrack.max_per_core, 0, i32::MAX),
        ("conntrack.min", conntrack.min, 0, i32::MAX),
    ] {
        checker.range(field, value, min, max);
    }
    if mode == Mode::Nftables {
        checker.range("nftables.masqueradeBit", document.nftables.masquerade_bit, 0, 31);
    }
    for (field, value) in [
        ("conntrack.tcpEstablishedTimeout", conntrack.tcp_established_timeout),
        ("conntrack.tcpCloseWaitTimeout", conntrack.tcp_close_wait_timeout),
        ("conntrack.udpTimeout", conntrack.udp_timeout),
        ("conntrack.udpStreamTimeout", conntrack.udp_stream_timeout),
    ] {
        checker.not_negative(field, value);
    }
    checker.positive("configSyncPeriod", document.config_sync_period);
}

fn check_periods(draft: &Draft, mode: Mode, checker: &mut Checker) {
    let (period, min_period) = (draft.sync_period, draft.min_sync_period);
    checker.positive(&format!("{mode}.syncPeriod"), period);
    checker.not_negative(&format!("{mode}.minSyncPeriod"), min_period);
    if min_period > period && period > GoDuration::default() {
        let allowed = format!("at least {mode}.minSyncPeriod, which is {min_period}");
        checker.refuse(&format!("{mode}.syncPeriod"), period, &allowed);
    }
}

fn check_ipvs(ipvs: &document::Ipvs, mode: Mode, checker: &mut Checker) -> Ipvs {
    // Outside mode ipvs anything goes (C2.5).
    let mut outside = Checker::default();
    let checker = if mode == Mode::Ipvs { checker } else { &mut outside };
    for (field, value) in [
        ("ipvs.tcpTimeout", ipvs.tcp_timeout),
        ("ipvs.tcpFinTimeout", ipvs.tcp_fin_timeout),
        ("ipvs.udpTimeout", ipvs.udp_timeout),
    ] {
        checker.not_negative(field, value);
    }
    Ipvs {
        scheduler: Some(ipvs.scheduler.clone()).filter(|name| !name.is_empty()),
        exclude_cidrs: checker.cidrs("ipvs.excludeCIDRs", &ipvs.exclude_cidrs),
        strict_arp: ipvs.strict_arp,
        tcp_timeout: ipvs.tcp_timeout.to_std(),
        tcp_fin_timeout: ipvs.tcp_fin_timeout.to_std(),
        udp_timeout: ipvs.udp_timeout.to_std(),
    }
}

fn check_detect_local(document: &Document, cidr_given: bool, checker: &mut Checker) -> DetectLocal {
    let text = &document.detect_local_mode;
    let allowed = "ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix";
    let detail = &document.detect_local;
    match checker.text("detectLocalMode", text, text.parse().ok(), allowed) {
        Some(DetectLocalMode::ClusterCidr) => {
            DetectLocal::ClusterCidr(check_cluster_cidr(document, cidr_given, checker))
        }
        Some(DetectLocalMode::BridgeInterface) => {
            let name = &detail.bridge_interface;
            let value = (!name.is_empty()).then(|| name.clone());
            let allowed = "set in detectLocalMode BridgeInterface";
            checker.text("detectLocal.bridgeInterface", name, value, allowed);
            DetectLocal::BridgeInterface(name.clone())
        }
        Some(DetectLocalMode::InterfaceNamePrefix) => {
            let name = &detail.interface_name_prefix;
            let value = (!name.is_empty()).then(|| name.clone());
            let allowed = "set in detectLocalMode InterfaceNamePrefix";
            checker.text("detectLocal.interfaceNamePrefix", name, value, allowed);
            DetectLocal::InterfaceNamePrefix(name.clone())
        }
        Some(DetectLocalMode::NodeCidr) | None => DetectLocal::NodeCidr,
    }
}

fn check_cluster_cidr(document: &Document, given: bool, checker: &mut Checker) -> Vec<Cidr> {
    let text = &document.cluster_cidr;
    if text.is_empty() && !given {
        return Vec::new();
    }
    let cidrs: Option<Vec<Cidr>> = text.split(',').map(parse_cidr).collect();
    let fitting = cidrs.filter(|cidrs| match cidrs.as_slice() {
        [_] => true,
        [first, second] => first.family() != second.family(),
        _ => false,
    });
    let allowed = "one CIDR, or an IPv4 and an IPv6 CIDR with a comma and no space between";
    checker.text("clusterCIDR", text, fitting, allowed).unwrap_or_default()
}

fn check_node_ports(addresses: &[String], checker: &mut Checker) -> NodePortAddresses {
    if matches!(addresses, [only] if only == "primary") {
        return NodePortAddresses::Primary;
    }
    let allowed = "a CIDR like \"192.168.0.0/16\" or \"fd00::/48\"; or the list just \"primary\"";
    let cidrs = addresses.iter().enumerate().filter_map(|(index, text)| {
        checker.text(&format!("nodePortAddresses[{index}]"), text, parse_cidr(text), allowed)
    });
    NodePortAddresses::Cidrs(cidrs.collect())
}

/// The Node's name in lower case (C4.2, C9.15).
fn check_hostname(document: &Document, checker: &mut Checker) -> Option<String> {
    let text = &document.hostname_override;
    if text.is_empty() {
        return None;
    }
    let name = Some(text.trim().to_lowercase()).filter(|name| !name.is_empty());
    checker.text("hostnameOverride", text, name, "a name, not just white space")
}

fn check_gates(document: &Document, checker: &mut Checker) -> FeatureGates {
    for (name, on) in &document.feature_gates {
        let field = format!("featureGates.{name}");
        match gates::locked_to(name) {
            Some(locked) if locked != *on => {
                checker.refuse(&field, on, &format!("{locked}: the gate is locked"));
            }
            None if !gates::is_known(name) => {
                checker.warnings.push(format!("feature gate {name:?} is unknown and ignored"));
            }
            _ => {}
        }
    }
    FeatureGates(document.feature_gates.clone())
}

fn check_logging(
    logging: &document::Logging,
    gates: &FeatureGates,
    checker: &mut Checker,
) -> Logging {
    let format = checker
        .text("logging.format", &logging.format, logging.format.parse().ok(), "text or json")
        .unwrap_or(LogFormat::Text);
    let interval = logging.flush_frequency.0;
    checker.positive("logging.flushFrequency", interval);
    let largest = i32::MAX.unsigned_abs();
    if logging.verbosity > largest {
        checker.refuse("logging.verbosity", logging.verbosity, &format!("0 to {largest}"));
    }
    if format != LogFormat::Text && !logging.vmodule.is_empty() {
        checker.refuse("logging.vmodule", "a list", "empty unless logging.format is text");
    }
    for (index, item) in logging.vmodule.iter().enumerate() {
        let pattern = &item.file_pattern;
        if pattern.is_empty() || pattern.contains(['=', ',']) {
            let field = format!("logging.vmodule[{index}].filePattern");
            checker.refuse(&field, format_args!("{pattern:?}"), "a pattern without '=' and ','");
        }
        if item.verbosity > largest {
            let field = format!("logging.vmodule[{index}].verbosity");
            checker.refuse(&field, item.verbosity, &format!("0 to {largest}"));
        }
    }
    let vmodule = logging
        .vmodule
        .iter()
        .map(|item| Vmodule { file_pattern: item.file_pattern.clone(), verbosity: item.verbosity });
    Logging {
        format,
        flush_frequency: interval.to_std(),
        verbosity: logging.verbosity,
        vmodule: vmodule.collect(),
        text: check_output("text", &logging.options.text, gates, checker),
        json: check_output("json", &logging.options.json, gates, checker),
    }
}

fn check_output(
    format: &str,
    output: &document::LogOutput,
    gates: &FeatureGates,
    checker: &mut Checker,
) -> LogOutput {
    let field = format!("logging.options.{format}.infoBufferSize");
    let text = &output.info_buffer_size.0;
    let size =
        checker.text(&field, text, parse_quantity(text), "a quantity like \"512\" or \"2Ki\"");
    let size = size.unwrap_or(0);
    if !gates.enabled("LoggingAlphaOptions") {
        let allowed = "unset unless feature gate LoggingAlphaOptions is on";
        if size != 0 {
            checker.refuse(&field, format_args!("{text:?}"), allowed);
        }
        if output.split_stream {
            checker.refuse(&format!("logging.options.{format}.splitStream"), true, allowed);
        }
    }
    LogOutput { split_stream: output.split_stream, info_buffer_size: size }
}

/// Warns of settings that look effective and are not (C9.3).
fn warn_of_idle_fields(document: &Document, mode: Mode, checker: &mut Checker) {
    let nftables = mode == Mode::Nftables;
    for (idle, message) in [
        (
            nftables && document.iptables.masquerade_all,
            "iptables.masqueradeAll has no effect in mode nftables: use nftables.masqueradeAll",
        ),
        (
            !nftables && document.nftables.masquerade_all,
            "nftables.masqueradeAll has no effect in this mode: use iptables.masqueradeAll",
        ),
        (!document.port_range.is_empty(), "portRange has no effect"),
        (document.windows_run_as_service, "windowsRunAsService has no effect on Linux"),
        (document.winkernel != document::Winkernel::default(), "winkernel has no effect on Linux"),
    ] {
        if idle {
            checker.warnings.push(message.to_owned());
        }
    }
}

fn client_connection(client: &document::ClientConnection) -> ClientConnection {
    ClientConnection {
        kubeconfig: Some(client.kubeconfig.clone().into())
            .filter(|_| !client.kubeconfig.is_empty()),
        accept_content_types: client.accept_content_types.clone(),
        content_type: client.content_type.clone(),
        qps: client.qps,
        burst: unsigned(client.burst),
    }
}

fn conntrack(conntrack: &document::Conntrack) -> Conntrack {
    Conntrack {
        max_per_core: unsigned(conntrack.max_per_core),
        min: unsigned(conntrack.min),
        tcp_established_timeout: conntrack.tcp_established_timeout.to_std(),
        tcp_close_wait_timeout: conntrack.tcp_close_wait_timeout.to_std(),
        tcp_be_liberal: conntrack.tcp_be_liberal,
        udp_timeout: conntrack.udp_timeout.to_std(),
        udp_stream_timeout: conntrack.udp_stream_timeout.to_std(),
    }
}

/// A checked number; negative ones were reported.
fn unsigned(value: i32) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

/// A checked bit number; others were reported or belong to an idle mode.
fn bit(value: i32) -> u8 {
    u8::try_from(value).ok().filter(|bit| *bit < 32).unwrap_or(14)
}
