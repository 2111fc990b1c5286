//! The command line of `proxyd run`: kube-proxy's flags plus a few of ours (C2, C3).
//!
//! Each flag is an `Option`, so that "given" and "left out" differ. Fields are named after their
//! flags; [`super::overlay`] says what each one sets.

use std::path::PathBuf;

use clap::{Args, FromArgMatches};
use serde::Serialize;
use serde_json::Value;

use super::scalar::GoDuration;

/// Flags of `proxyd run`: kube-proxy's and a few of ours; every one is `None` unless given.
///
/// Fits into a larger command with `#[command(flatten)]` or as a subcommand. That command must not
/// define `--version` itself and must set `args_override_self`, as pflag lets the last value win.
// Without `about`, clap would show the lines above as the program's help.
#[derive(Debug, Clone, Default, PartialEq, Args, Serialize)]
#[serde(rename_all = "kebab-case")]
#[command(next_help_heading = "kube-proxy's flags", about = None, long_about = None)]
pub struct Flags {
    // --- ours ---
    /// Proxy mode: iptables, ipvs or nftables; wins over the file and over --proxy-mode.
    #[arg(long, value_name = "MODE", help_heading = "proxyd's own flags")]
    pub mode: Option<String>,
    /// Take objects from the manifests in this directory instead of an API server.
    #[arg(long, value_name = "DIR", help_heading = "proxyd's own flags")]
    pub manifests: Option<PathBuf>,
    /// Services that get a metric of their own for programming latency; a part may be `*`.
    #[arg(
        long,
        value_name = "NAMESPACE/NAME,...",
        value_delimiter = ',',
        help_heading = "proxyd's own flags"
    )]
    pub service_latency: Option<Vec<String>>,

    // --- what to do; honoured with --config ---
    /// Configuration file; it replaces all settings given by flags.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Write the effective configuration to this file and exit.
    #[arg(long, value_name = "FILE")]
    pub write_config_to: Option<PathBuf>,
    /// Remove the rules of all modes and exit.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub cleanup: Option<bool>,
    /// Do what needs full privileges and exit.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub init_only: Option<bool>,
    /// Address of the API server; overrides the kubeconfig's.
    #[arg(long, value_name = "URL")]
    pub master: Option<String>,
    /// Print the version and exit; `=raw` prints details, `=vX.Y.Z` sets the reported version.
    #[arg(id = "kube_version", long = "version", value_name = "FORM", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub version: Option<String>,
    /// Accepted, no effect.
    #[arg(long, hide = true)]
    pub boot_id_file: Option<String>,
    /// Accepted, no effect.
    #[arg(long, hide = true)]
    pub machine_id_file: Option<String>,
    /// The Node's name, if it is not the host's name; wins over the file.
    #[arg(long, value_name = "NAME")]
    pub hostname_override: Option<String>,

    // --- logging; honoured with --config ---
    /// Log format: text or json.
    #[arg(long, value_name = "FORMAT")]
    pub logging_format: Option<String>,
    /// Longest time between two log flushes.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub log_flush_frequency: Option<GoDuration>,
    /// Log verbosity.
    #[arg(short, long, value_name = "LEVEL")]
    pub v: Option<u32>,
    /// Log verbosity per source file.
    #[arg(long, value_name = "PATTERN=LEVEL,...", value_delimiter = ',', value_parser = pattern_level)]
    pub vmodule: Option<Vec<(String, u32)>>,
    /// Text logs: errors to standard error, the rest to standard output.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub log_text_split_stream: Option<bool>,
    /// Text logs: bytes to buffer.
    #[arg(long, value_name = "BYTES")]
    pub log_text_info_buffer_size: Option<String>,
    /// JSON logs: errors to standard error, the rest to standard output.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub log_json_split_stream: Option<bool>,
    /// JSON logs: bytes to buffer.
    #[arg(long, value_name = "BYTES")]
    pub log_json_info_buffer_size: Option<String>,

    // --- settings; ignored with --config ---
    /// Feature gates.
    #[arg(long, value_name = "NAME=BOOL,...", value_delimiter = ',', value_parser = gate)]
    pub feature_gates: Option<Vec<(String, bool)>>,
    /// Kubeconfig file.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// Content type of requests to the API server.
    #[arg(long, value_name = "TYPE")]
    pub kube_api_content_type: Option<String>,
    /// Requests per second to the API server; negative for no limit.
    #[arg(long, value_name = "RATE", allow_hyphen_values = true)]
    pub kube_api_qps: Option<f64>,
    /// Requests that may exceed the rate at once.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub kube_api_burst: Option<i32>,
    /// Decides the primary family and the node's address; nothing binds to it.
    #[arg(long, value_name = "IP")]
    pub bind_address: Option<String>,
    /// Where to serve /healthz: IP, IP:port or "none".
    #[arg(long, value_name = "IP[:PORT]")]
    pub healthz_bind_address: Option<String>,
    /// Where to serve /metrics: IP, IP:port or "none".
    #[arg(long, value_name = "IP[:PORT]")]
    pub metrics_bind_address: Option<String>,
    /// Deprecated: use --healthz-bind-address.
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub healthz_port: Option<i32>,
    /// Deprecated: use --metrics-bind-address.
    #[arg(long, hide = true, allow_hyphen_values = true)]
    pub metrics_port: Option<i32>,
    /// Exit if a server cannot bind.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub bind_address_hard_fail: Option<bool>,
    /// Serve profiles on the metrics server.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub profiling: Option<bool>,
    /// Show metrics that this release hides; only the previous minor release may be named.
    #[arg(long, value_name = "X.Y")]
    pub show_hidden_metrics_for_version: Option<String>,
    /// Proxy mode: iptables, ipvs or nftables.
    #[arg(long, value_name = "MODE")]
    pub proxy_mode: Option<String>,
    /// iptables, ipvs: packet mark bit that asks for masquerading, 0 to 31.
    #[arg(long, value_name = "BIT", allow_hyphen_values = true)]
    pub iptables_masquerade_bit: Option<i32>,
    /// Masquerade all traffic to cluster IPs.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub masquerade_all: Option<bool>,
    /// iptables: answer NodePorts on 127.0.0.1.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub iptables_localhost_nodeports: Option<bool>,
    /// iptables, nftables: retry and clean-up interval.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub iptables_sync_period: Option<GoDuration>,
    /// iptables, nftables: least time between two syncs.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub iptables_min_sync_period: Option<GoDuration>,
    /// ipvs: resync interval.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ipvs_sync_period: Option<GoDuration>,
    /// ipvs: least time between two syncs.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ipvs_min_sync_period: Option<GoDuration>,
    /// ipvs: scheduler.
    #[arg(long, value_name = "NAME")]
    pub ipvs_scheduler: Option<String>,
    /// ipvs: blocks whose virtual servers are left alone.
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub ipvs_exclude_cidrs: Option<Vec<String>>,
    /// ipvs: reply to ARP only on the interface that has the address.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub ipvs_strict_arp: Option<bool>,
    /// ipvs: idle time of TCP connections, 0 to leave.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ipvs_tcp_timeout: Option<GoDuration>,
    /// ipvs: idle time of TCP connections after a FIN, 0 to leave.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ipvs_tcpfin_timeout: Option<GoDuration>,
    /// ipvs: idle time of UDP flows, 0 to leave.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub ipvs_udp_timeout: Option<GoDuration>,
    /// How local pods are told: ClusterCIDR, NodeCIDR, BridgeInterface or InterfaceNamePrefix.
    #[arg(long, value_name = "MODE")]
    pub detect_local_mode: Option<String>,
    /// Bridge of local pods.
    #[arg(long, value_name = "NAME")]
    pub pod_bridge_interface: Option<String>,
    /// How the names of local pods' interfaces start.
    #[arg(long, value_name = "PREFIX")]
    pub pod_interface_name_prefix: Option<String>,
    /// Pod addresses of the cluster: one CIDR, or one per family.
    #[arg(long, value_name = "CIDR[,CIDR]")]
    pub cluster_cidr: Option<String>,
    /// Node addresses that accept NodePort traffic: CIDRs, or "primary".
    #[arg(long, value_name = "CIDR,...", value_delimiter = ',')]
    pub nodeport_addresses: Option<Vec<String>>,
    /// Score for the out-of-memory killer, -1000 to 1000.
    #[arg(long, value_name = "SCORE", allow_hyphen_values = true)]
    pub oom_score_adj: Option<i32>,
    /// Tracked connections per core, 0 to leave the limit.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub conntrack_max_per_core: Option<i32>,
    /// Least number of tracked connections.
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub conntrack_min: Option<i32>,
    /// Idle time of established TCP connections, 0 to leave.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub conntrack_tcp_timeout_established: Option<GoDuration>,
    /// Time of TCP connections in CLOSE_WAIT, 0 to leave.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub conntrack_tcp_timeout_close_wait: Option<GoDuration>,
    /// Do not mark out-of-window packets invalid.
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true", value_parser = go_bool)]
    pub conntrack_tcp_be_liberal: Option<bool>,
    /// Idle time of unanswered UDP flows, 0 to leave.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub conntrack_udp_timeout: Option<GoDuration>,
    /// Idle time of answered UDP flows, 0 to leave.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub conntrack_udp_timeout_stream: Option<GoDuration>,
    /// How often the API objects are listed anew.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub config_sync_period: Option<GoDuration>,
}

impl Flags {
    /// The command that takes just these flags, named as kube-proxy's.
    #[must_use]
    pub fn command() -> clap::Command {
        Self::augment_args(clap::Command::new("kube-proxy").args_override_self(true))
    }

    /// Reads the arguments after the program's name.
    pub fn parse<I, T>(arguments: I) -> Result<Self, clap::Error>
    where
        I: IntoIterator<Item = T>,
        T: Into<std::ffi::OsString> + Clone,
    {
        let matches = Self::command().no_binary_name(true).try_get_matches_from(arguments)?;
        Self::from_arg_matches(&matches)
    }

    /// The flags that were given, by name, each with its value as one would spell it.
    #[must_use]
    pub fn given(&self) -> Vec<(String, String)> {
        let Ok(Value::Object(flags)) = serde_json::to_value(self) else { return Vec::new() };
        let given = flags.into_iter().filter(|(_, value)| !value.is_null());
        given.map(|(name, value)| (name, spelled(&value))).collect()
    }
}

/// A flag's value: lists with commas, pairs with an equals sign.
fn spelled(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => {
            let items: Vec<String> = items
                .iter()
                .map(|item| match item.as_array().map(Vec::as_slice) {
                    Some([name, value]) => format!("{}={}", spelled(name), spelled(value)),
                    _ => spelled(item),
                })
                .collect();
            items.join(",")
        }
        _ => value.to_string(),
    }
}

/// Reads a boolean with Go's spellings.
fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "True" | "TRUE" => Ok(true),
        "0" | "f" | "F" | "false" | "False" | "FALSE" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// Reads `Name=true`.
fn gate(text: &str) -> Result<(String, bool), String> {
    let (name, value) = text.split_once('=').ok_or("must be like Name=true")?;
    Ok((name.trim().to_owned(), go_bool(value.trim())?))
}

/// Reads `pattern=2`.
fn pattern_level(text: &str) -> Result<(String, u32), String> {
    let wrong = || "must be like pattern=2".to_owned();
    let (pattern, level) = text.split_once('=').ok_or_else(wrong)?;
    Ok((pattern.to_owned(), level.parse().map_err(|_| wrong())?))
}
