//! The `KubeProxyConfiguration` v1alpha1 document: its fields, their defaults, their names.
//!
//! This file is the field table of the specification (C2) as code. Values that need other fields
//! to be judged stay strings here; [`super::validate`] types them.

use std::collections::BTreeMap;

use super::decode::{FlushInterval, Quantity, section};
use super::scalar::GoDuration;
use super::settings::Settings;
use super::types::Mode;

/// The `apiVersion` of the first document.
pub(super) const API_VERSION: &str = "kubeproxy.config.k8s.io/v1alpha1";
/// The `kind` of the first document.
pub(super) const KIND: &str = "KubeProxyConfiguration";

const ZERO: GoDuration = GoDuration::seconds(0);
const SECOND: GoDuration = GoDuration::seconds(1);
const SYNC_PERIOD: GoDuration = GoDuration::seconds(30);

section! {
    /// The whole document.
    Document {
        api_version: String = API_VERSION.to_owned(), "apiVersion";
        kind: String = KIND.to_owned(), "kind";
        feature_gates: BTreeMap<String, bool> = BTreeMap::new(), "featureGates", omit_zero;
        client_connection: ClientConnection = ClientConnection::default(), "clientConnection";
        logging: Logging = Logging::default(), "logging";
        hostname_override: String = String::new(), "hostnameOverride";
        bind_address: String = String::new(), "bindAddress";
        healthz_bind_address: String = String::new(), "healthzBindAddress";
        metrics_bind_address: String = String::new(), "metricsBindAddress";
        bind_address_hard_fail: bool = false, "bindAddressHardFail";
        enable_profiling: bool = false, "enableProfiling";
        show_hidden_metrics_for_version: String = String::new(), "showHiddenMetricsForVersion";
        mode: String = String::new(), "mode";
        iptables: Iptables = Iptables::default(), "iptables";
        ipvs: Ipvs = Ipvs::default(), "ipvs";
        nftables: Nftables = Nftables::default(), "nftables";
        winkernel: Winkernel = Winkernel::default(), "winkernel";
        detect_local_mode: String = String::new(), "detectLocalMode";
        detect_local: DetectLocal = DetectLocal::default(), "detectLocal";
        cluster_cidr: String = String::new(), "clusterCIDR";
        node_port_addresses: Vec<String> = Vec::new(), "nodePortAddresses";
        oom_score_adj: i32 = -999, "oomScoreAdj", keep_zero;
        conntrack: Conntrack = Conntrack::default(), "conntrack";
        config_sync_period: GoDuration = GoDuration::seconds(15 * 60), "configSyncPeriod";
        port_range: String = String::new(), "portRange";
        windows_run_as_service: bool = false, "windowsRunAsService", omit_zero;
    }
}

section! {
    /// How to talk to the API server.
    ClientConnection {
        kubeconfig: String = String::new(), "kubeconfig";
        accept_content_types: String = String::new(), "acceptContentTypes";
        content_type: String = "application/vnd.kubernetes.protobuf".to_owned(), "contentType";
        qps: f64 = 5.0, "qps";
        burst: i32 = 10, "burst";
    }
}

section! {
    /// What to log and how.
    Logging {
        format: String = "text".to_owned(), "format";
        flush_frequency: FlushInterval = FlushInterval(GoDuration::seconds(5)), "flushFrequency";
        verbosity: u32 = 0, "verbosity";
        vmodule: Vec<VmoduleItem> = Vec::new(), "vmodule", omit_zero;
        options: LoggingOptions = LoggingOptions::default(), "options";
    }
}

section! {
    /// The verbosity of one source file.
    VmoduleItem {
        file_pattern: String = String::new(), "filePattern";
        verbosity: u32 = 0, "verbosity";
    }
}

section! {
    /// Options per log format.
    LoggingOptions {
        text: LogOutput = LogOutput::default(), "text";
        json: LogOutput = LogOutput::default(), "json";
    }
}

section! {
    /// Where a log format writes to.
    LogOutput {
        split_stream: bool = false, "splitStream", omit_zero;
        info_buffer_size: Quantity = Quantity("0".to_owned()), "infoBufferSize";
    }
}

section! {
    /// Mode iptables; IPVS reads the masquerade fields too.
    Iptables {
        masquerade_bit: i32 = 14, "masqueradeBit", keep_zero;
        masquerade_all: bool = false, "masqueradeAll";
        localhost_node_ports: bool = true, "localhostNodePorts", keep_zero;
        sync_period: GoDuration = SYNC_PERIOD, "syncPeriod";
        min_sync_period: GoDuration = SECOND, "minSyncPeriod";
    }
}

section! {
    /// Mode ipvs.
    Ipvs {
        sync_period: GoDuration = SYNC_PERIOD, "syncPeriod";
        min_sync_period: GoDuration = ZERO, "minSyncPeriod";
        scheduler: String = String::new(), "scheduler";
        exclude_cidrs: Vec<String> = Vec::new(), "excludeCIDRs";
        strict_arp: bool = false, "strictARP";
        tcp_timeout: GoDuration = ZERO, "tcpTimeout";
        tcp_fin_timeout: GoDuration = ZERO, "tcpFinTimeout";
        udp_timeout: GoDuration = ZERO, "udpTimeout";
    }
}

section! {
    /// Mode nftables.
    Nftables {
        masquerade_bit: i32 = 14, "masqueradeBit", keep_zero;
        masquerade_all: bool = false, "masqueradeAll";
        sync_period: GoDuration = SYNC_PERIOD, "syncPeriod";
        // kube-proxy makes an unset value 1s, since each of its syncs looks at every Service.
        // Ours costs what has changed, so there is nothing to wait for.
        min_sync_period: GoDuration = ZERO, "minSyncPeriod";
    }
}

section! {
    /// For Windows; has no effect here.
    Winkernel {
        network_name: String = String::new(), "networkName";
        source_vip: String = String::new(), "sourceVip";
        enable_dsr: bool = false, "enableDSR";
        root_hns_endpoint_name: String = String::new(), "rootHnsEndpointName";
        forward_health_check_vip: bool = false, "forwardHealthCheckVip";
    }
}

section! {
    /// Details of two of the ways to tell local pods.
    DetectLocal {
        bridge_interface: String = String::new(), "bridgeInterface";
        interface_name_prefix: String = String::new(), "interfaceNamePrefix";
    }
}

section! {
    /// Sizes and time-outs of connection tracking.
    Conntrack {
        max_per_core: i32 = 32_768, "maxPerCore", keep_zero;
        min: i32 = 131_072, "min", keep_zero;
        tcp_established_timeout: GoDuration = GoDuration::seconds(86_400),
            "tcpEstablishedTimeout", keep_zero;
        tcp_close_wait_timeout: GoDuration = GoDuration::seconds(3_600),
            "tcpCloseWaitTimeout", keep_zero;
        tcp_be_liberal: bool = false, "tcpBeLiberal";
        udp_timeout: GoDuration = ZERO, "udpTimeout";
        udp_stream_timeout: GoDuration = ZERO, "udpStreamTimeout";
    }
}

/// A document plus the settings that belong to whichever mode is active (C2.2).
///
/// Flags that have no section of their own act on these three.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Draft {
    pub(super) document: Document,
    pub(super) sync_period: GoDuration,
    pub(super) min_sync_period: GoDuration,
    pub(super) masquerade_all: bool,
    pub(super) settings: Settings,
}

impl Draft {
    /// Fills in the addresses that depend on one another, then picks the section of the mode.
    pub(super) fn new(mut document: Document) -> Self {
        fill(&mut document.bind_address, "0.0.0.0");
        let ipv4 = super::address::parse_ip(&document.bind_address).is_some_and(|ip| ip.is_ipv4());
        let (healthz, metrics) =
            if ipv4 { ("0.0.0.0:10256", "127.0.0.1:10249") } else { ("[::]:10256", "[::1]:10249") };
        fill(&mut document.healthz_bind_address, healthz);
        fill(&mut document.metrics_bind_address, metrics);
        let Document { iptables, ipvs, nftables, .. } = &document;
        let (sync_period, min_sync_period, masquerade_all) = match document.mode.parse() {
            Ok(Mode::Ipvs) => (ipvs.sync_period, ipvs.min_sync_period, iptables.masquerade_all),
            Ok(Mode::Nftables) => {
                (nftables.sync_period, nftables.min_sync_period, nftables.masquerade_all)
            }
            _ => (iptables.sync_period, iptables.min_sync_period, iptables.masquerade_all),
        };
        let settings = Settings::default();
        Self { document, sync_period, min_sync_period, masquerade_all, settings }
    }

    /// Applies the defaults that come last (C1.4).
    pub(super) fn apply_platform_defaults(&mut self) {
        let document = &mut self.document;
        fill(&mut document.mode, "iptables");
        fill(&mut document.detect_local_mode, "ClusterCIDR");
        if document.mode == Mode::Nftables.as_str() && document.node_port_addresses.is_empty() {
            document.node_port_addresses = vec!["primary".to_owned()];
        }
    }

    /// The document to show: the active section holds the settings, the others zeros (C2.2).
    pub(super) fn into_document(self, mode: Mode) -> Document {
        let Self { mut document, sync_period, min_sync_period, masquerade_all, settings: _ } = self;
        let active =
            |which| if mode == which { (sync_period, min_sync_period) } else { (ZERO, ZERO) };
        let Document { iptables, ipvs, nftables, .. } = &mut document;
        (iptables.sync_period, iptables.min_sync_period) = active(Mode::Iptables);
        (ipvs.sync_period, ipvs.min_sync_period) = active(Mode::Ipvs);
        (nftables.sync_period, nftables.min_sync_period) = active(Mode::Nftables);
        iptables.masquerade_all = masquerade_all && mode != Mode::Nftables;
        nftables.masquerade_all = masquerade_all && mode == Mode::Nftables;
        document
    }
}

/// Sets an empty field.
fn fill(field: &mut String, default: &str) {
    if field.is_empty() {
        default.clone_into(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_2_each_mode_has_its_own_section() {
        let mut document = Document::default();
        document.iptables.masquerade_all = true;
        document.iptables.sync_period = GoDuration::seconds(1);
        document.ipvs.sync_period = GoDuration::seconds(2);
        document.nftables.sync_period = GoDuration::seconds(3);
        for (mode, seconds, min, masquerade_all) in
            [("", 1, SECOND, true), ("iptables", 1, SECOND, true), ("ipvs", 2, ZERO, true)]
                .into_iter()
                .chain([("nftables", 3, ZERO, false)])
        {
            let draft = Draft::new(Document { mode: mode.to_owned(), ..document.clone() });
            assert_eq!(draft.sync_period, GoDuration::seconds(seconds), "{mode}");
            assert_eq!((draft.min_sync_period, draft.masquerade_all), (min, masquerade_all));
        }
    }
}
