//! What each flag sets, and which ones `--config` silences (C4).

use super::decode::{FlushInterval, Quantity};
use super::document::{Document, Draft, VmoduleItem};
use super::flags::Flags;
use super::types::Mode;

/// Ports of the deprecated flags, used when an address has none.
pub(super) const HEALTHZ_PORT: u16 = 10256;
pub(super) const METRICS_PORT: u16 = 10249;

/// The spelling that switches a server off; kube-proxy has none (C3.3).
pub(super) const NONE: &str = "none";

/// One row per flag that sets a field as it is: flag, then field.
macro_rules! plain_flags {
    ($($flag:ident => $($field:ident).+;)*) => {
        fn apply_plain(flags: &Flags, draft: &mut Draft) {
            $(if let Some(value) = &flags.$flag {
                value.clone_into(&mut draft.$($field).+);
            })*
        }

        fn plain_given(flags: &Flags) -> Vec<String> {
            let rows = [$((flags.$flag.is_some(), stringify!($flag))),*];
            names(&rows)
        }
    };
}

plain_flags! {
    kubeconfig => document.client_connection.kubeconfig;
    kube_api_content_type => document.client_connection.content_type;
    kube_api_qps => document.client_connection.qps;
    kube_api_burst => document.client_connection.burst;
    bind_address_hard_fail => document.bind_address_hard_fail;
    profiling => document.enable_profiling;
    show_hidden_metrics_for_version => document.show_hidden_metrics_for_version;
    proxy_mode => document.mode;
    iptables_masquerade_bit => document.iptables.masquerade_bit;
    masquerade_all => masquerade_all;
    iptables_localhost_nodeports => document.iptables.localhost_node_ports;
    ipvs_scheduler => document.ipvs.scheduler;
    ipvs_strict_arp => document.ipvs.strict_arp;
    ipvs_tcp_timeout => document.ipvs.tcp_timeout;
    ipvs_tcpfin_timeout => document.ipvs.tcp_fin_timeout;
    ipvs_udp_timeout => document.ipvs.udp_timeout;
    detect_local_mode => document.detect_local_mode;
    pod_bridge_interface => document.detect_local.bridge_interface;
    pod_interface_name_prefix => document.detect_local.interface_name_prefix;
    cluster_cidr => document.cluster_cidr;
    oom_score_adj => document.oom_score_adj;
    conntrack_max_per_core => document.conntrack.max_per_core;
    conntrack_min => document.conntrack.min;
    conntrack_tcp_timeout_established => document.conntrack.tcp_established_timeout;
    conntrack_tcp_timeout_close_wait => document.conntrack.tcp_close_wait_timeout;
    conntrack_tcp_be_liberal => document.conntrack.tcp_be_liberal;
    conntrack_udp_timeout => document.conntrack.udp_timeout;
    conntrack_udp_timeout_stream => document.conntrack.udp_stream_timeout;
    config_sync_period => document.config_sync_period;
}

fn names(rows: &[(bool, &str)]) -> Vec<String> {
    rows.iter().filter(|row| row.0).map(|row| format!("--{}", row.1.replace('_', "-"))).collect()
}

/// The flags given that a configuration file silences (C4.1, C9.8).
pub(super) fn silenced(flags: &Flags) -> Vec<String> {
    let mut given = plain_given(flags);
    given.extend(names(&[
        (flags.feature_gates.is_some(), "feature_gates"),
        (flags.bind_address.is_some(), "bind_address"),
        (flags.healthz_bind_address.is_some(), "healthz_bind_address"),
        (flags.metrics_bind_address.is_some(), "metrics_bind_address"),
        (flags.healthz_port.is_some(), "healthz_port"),
        (flags.metrics_port.is_some(), "metrics_port"),
        (flags.iptables_sync_period.is_some(), "iptables_sync_period"),
        (flags.iptables_min_sync_period.is_some(), "iptables_min_sync_period"),
        (flags.ipvs_sync_period.is_some(), "ipvs_sync_period"),
        (flags.ipvs_min_sync_period.is_some(), "ipvs_min_sync_period"),
        (flags.ipvs_exclude_cidrs.is_some(), "ipvs_exclude_cidrs"),
        (flags.nodeport_addresses.is_some(), "nodeport_addresses"),
    ]));
    given
}

/// Applies every setting given by flag, for runs without `--config` (C4.3).
pub(super) fn apply_all(flags: &Flags, draft: &mut Draft, warnings: &mut Vec<String>) {
    apply_plain(flags, draft);
    let document = &mut draft.document;
    if let Some(mode) = &flags.mode {
        if flags.proxy_mode.as_ref().is_some_and(|other| other != mode) {
            warnings.push("--proxy-mode is ignored: --mode is given".to_owned());
        }
        document.mode.clone_from(mode);
    }
    for (list, field) in [
        (&flags.ipvs_exclude_cidrs, &mut document.ipvs.exclude_cidrs),
        (&flags.nodeport_addresses, &mut document.node_port_addresses),
    ] {
        if let Some(list) = list {
            *field = list.iter().filter(|item| !item.is_empty()).cloned().collect();
        }
    }
    document.feature_gates.extend(flags.feature_gates.iter().flatten().cloned());
    // An empty address leaves the default (C3.2).
    for (flag, field) in [
        (&flags.bind_address, &mut document.bind_address),
        (&flags.healthz_bind_address, &mut document.healthz_bind_address),
        (&flags.metrics_bind_address, &mut document.metrics_bind_address),
    ] {
        if let Some(address) = flag.as_ref().filter(|address| !address.is_empty()) {
            field.clone_from(address);
        }
    }
    apply_ports(flags, document, warnings);
    apply_periods(flags, draft);
}

/// The deprecated ports: 0 switches off, others complete an address without a port (C3).
fn apply_ports(flags: &Flags, document: &mut Document, warnings: &mut Vec<String>) {
    for (name, port, field) in [
        ("healthz", flags.healthz_port, &mut document.healthz_bind_address),
        ("metrics", flags.metrics_port, &mut document.metrics_bind_address),
    ] {
        let Some(port) = port else { continue };
        if flags.write_config_to.is_some() {
            warnings.push(format!("--{name}-port is ignored: --write-config-to is given"));
            continue;
        }
        warnings.push(format!("--{name}-port is deprecated: use --{name}-bind-address"));
        if port == 0 {
            NONE.clone_into(field);
        } else if let Some(ip) = super::address::parse_ip(field) {
            *field = if ip.is_ipv6() { format!("[{ip}]:{port}") } else { format!("{ip}:{port}") };
        }
    }
}

/// Sync periods: one pair of flags for ipvs, the other for all other modes (C3.5).
fn apply_periods(flags: &Flags, draft: &mut Draft) {
    let (period, min_period) = if draft.document.mode == Mode::Ipvs.as_str() {
        (flags.ipvs_sync_period, flags.ipvs_min_sync_period)
    } else {
        (flags.iptables_sync_period, flags.iptables_min_sync_period)
    };
    draft.sync_period = period.unwrap_or(draft.sync_period);
    draft.min_sync_period = min_period.unwrap_or(draft.min_sync_period);
}

/// Applies the flags that count with and without a file (C4.1); returns the fields they set.
pub(super) fn apply_honoured(flags: &Flags, document: &mut Document) -> Vec<&'static str> {
    if let Some(name) = flags.hostname_override.as_ref().filter(|name| !name.is_empty()) {
        document.hostname_override.clone_from(name);
    }
    let logging = &mut document.logging;
    if let Some(format) = &flags.logging_format {
        logging.format.clone_from(format);
    }
    if let Some(interval) = flags.log_flush_frequency {
        logging.flush_frequency = FlushInterval(interval);
    }
    logging.verbosity = flags.v.unwrap_or(logging.verbosity);
    let items = flags.vmodule.iter().flatten().map(|(file_pattern, verbosity)| VmoduleItem {
        file_pattern: file_pattern.clone(),
        verbosity: *verbosity,
    });
    logging.vmodule.splice(0..0, items);
    let text = (flags.log_text_split_stream, &flags.log_text_info_buffer_size);
    let json = (flags.log_json_split_stream, &flags.log_json_info_buffer_size);
    for ((split, size), output) in
        [(text, &mut logging.options.text), (json, &mut logging.options.json)]
    {
        output.split_stream = split.unwrap_or(output.split_stream);
        if let Some(size) = size {
            output.info_buffer_size = Quantity(size.clone());
        }
    }
    let set = [
        (flags.mode.is_some(), "mode"),
        (flags.hostname_override.is_some(), "hostnameOverride"),
        (flags.logging_format.is_some(), "logging.format"),
        (flags.log_flush_frequency.is_some(), "logging.flushFrequency"),
        (flags.v.is_some(), "logging.verbosity"),
        (flags.log_text_split_stream.is_some(), "logging.options.text.splitStream"),
        (flags.log_text_info_buffer_size.is_some(), "logging.options.text.infoBufferSize"),
        (flags.log_json_split_stream.is_some(), "logging.options.json.splitStream"),
        (flags.log_json_info_buffer_size.is_some(), "logging.options.json.infoBufferSize"),
    ];
    set.into_iter().filter(|row| row.0).map(|row| row.1).collect()
}
