//! The effective configuration: typed, complete, checked.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::address::Cidr;
use super::document::Document;
use super::gates::FeatureGates;
use super::settings::Settings;

/// Everything that a configuration file and flags say about the proxy, in force.
///
/// Only [`load`](super::load) makes one, so each value is known to be allowed. The settings that
/// a file keeps per mode (`syncPeriod`, `minSyncPeriod`, `masqueradeAll`) are those of the active
/// mode here.
#[derive(Debug, Clone, PartialEq)]
pub struct KubeProxyConfiguration {
    /// Feature gates that were set.
    pub feature_gates: FeatureGates,
    /// How to talk to the API server.
    pub client_connection: ClientConnection,
    /// What to log and how.
    pub logging: Logging,
    /// The Node's name, trimmed and in lower case; `None` for the host's own name.
    pub hostname_override: Option<String>,
    /// Decides the primary family and the node's address; nothing binds to it (C9.6).
    pub bind_address: IpAddr,
    /// Where to serve /healthz; `None` if switched off.
    pub healthz_bind_address: Option<SocketAddr>,
    /// Where to serve /metrics; `None` if switched off.
    pub metrics_bind_address: Option<SocketAddr>,
    /// Whether a server that cannot bind ends the process.
    pub bind_address_hard_fail: bool,
    /// Whether to serve profiles on the metrics server.
    pub enable_profiling: bool,
    /// The release whose since-hidden metrics are shown.
    pub show_hidden_metrics_for_version: Option<String>,
    /// How traffic is directed.
    pub mode: Mode,
    /// Retry delay, poll interval and half the healthz time-out; see C2.3 for what it is not.
    pub sync_period: Duration,
    /// The least time between two syncs.
    pub min_sync_period: Duration,
    /// Whether to masquerade all traffic to cluster IPs.
    pub masquerade_all: bool,
    /// Settings of mode iptables; mode ipvs reads the masquerade bit too.
    pub iptables: Iptables,
    /// Settings of mode ipvs.
    pub ipvs: Ipvs,
    /// Settings of mode nftables.
    pub nftables: Nftables,
    /// How a packet from a pod of this node is told.
    pub detect_local: DetectLocal,
    /// Which node addresses accept NodePort traffic.
    pub node_port_addresses: NodePortAddresses,
    /// The score of this process for the out-of-memory killer.
    pub oom_score_adj: i32,
    /// Sizes and time-outs of connection tracking.
    pub conntrack: Conntrack,
    /// How often the API objects are listed anew.
    pub config_sync_period: Duration,
    /// Our own settings.
    pub settings: Settings,
    /// The same as a document, for showing.
    pub(super) document: Document,
}

/// How to talk to the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientConnection {
    /// The kubeconfig file; `None` for in-cluster settings.
    pub kubeconfig: Option<PathBuf>,
    /// `Accept` header of requests; empty for the client's own.
    pub accept_content_types: String,
    /// `Content-Type` of requests.
    pub content_type: String,
    /// Requests per second; negative for no limit.
    pub qps: f64,
    /// Requests that may exceed the rate at once.
    pub burst: u32,
}

/// What to log and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logging {
    /// The form of a log line.
    pub format: LogFormat,
    /// The longest time between two flushes.
    pub flush_frequency: Duration,
    /// How much to log.
    pub verbosity: u32,
    /// Verbosity per source file, first match wins.
    pub vmodule: Vec<Vmodule>,
    /// Output of text lines.
    pub text: LogOutput,
    /// Output of JSON lines.
    pub json: LogOutput,
}

/// The verbosity of the source files that match a pattern.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vmodule {
    /// File name without directory and ending; `*` and `?` match.
    pub file_pattern: String,
    /// How much to log there.
    pub verbosity: u32,
}

/// Where log lines go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogOutput {
    /// Errors to standard error, the rest to standard output.
    pub split_stream: bool,
    /// Bytes to buffer of the rest.
    pub info_buffer_size: u64,
}

/// Settings of mode iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Iptables {
    /// The packet mark's bit that asks for masquerading, 0 to 31.
    pub masquerade_bit: u8,
    /// Whether NodePorts answer on 127.0.0.1.
    pub localhost_node_ports: bool,
}

/// Settings of mode ipvs. Checked only in that mode; otherwise what is invalid is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ipvs {
    /// The scheduler's name; `None` for `rr`.
    pub scheduler: Option<String>,
    /// Virtual servers in these blocks are not ours.
    pub exclude_cidrs: Vec<Cidr>,
    /// Whether to restrict ARP replies to the interface that has the address.
    pub strict_arp: bool,
    /// Idle time of TCP connections; zero leaves the kernel's.
    pub tcp_timeout: Duration,
    /// Idle time of TCP connections after a FIN; zero leaves the kernel's.
    pub tcp_fin_timeout: Duration,
    /// Idle time of UDP flows; zero leaves the kernel's.
    pub udp_timeout: Duration,
}

/// Settings of mode nftables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Nftables {
    /// The packet mark's bit that asks for masquerading, 0 to 31.
    pub masquerade_bit: u8,
}

/// Sizes and time-outs of connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conntrack {
    /// Connections per core; zero leaves the kernel's limit alone.
    pub max_per_core: u32,
    /// The least limit, if `max_per_core` is not zero.
    pub min: u32,
    /// Idle time of established TCP connections; zero leaves the kernel's.
    pub tcp_established_timeout: Duration,
    /// Time in CLOSE_WAIT; zero leaves the kernel's.
    pub tcp_close_wait_timeout: Duration,
    /// Whether out-of-window packets are not marked invalid.
    pub tcp_be_liberal: bool,
    /// Idle time of unanswered UDP flows; zero leaves the kernel's.
    pub udp_timeout: Duration,
    /// Idle time of answered UDP flows; zero leaves the kernel's.
    pub udp_stream_timeout: Duration,
}

/// How a packet from a pod of this node is told (S8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DetectLocal {
    /// Its source is in these blocks: none, one, or one per family.
    ClusterCidr(Vec<Cidr>),
    /// Its source is in the Node's `podCIDRs`.
    NodeCidr,
    /// It came in through this bridge.
    BridgeInterface(String),
    /// It came in through an interface whose name starts so.
    InterfaceNamePrefix(String),
}

/// Which node addresses accept NodePort traffic (S9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// The node's primary address of each family.
    Primary,
    /// Addresses in these blocks; an empty list means all.
    Cidrs(Vec<Cidr>),
}

/// Declares an enum with one exact spelling per value.
macro_rules! spelled {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$doc])* $variant,)* }

        impl $name {
            /// The spelling in files and flags, case-sensitive.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::config::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text => Ok(Self::$variant),)*
                    _ => Err($crate::config::UnknownName),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

pub(super) use spelled;

/// A text that is not the exact spelling of any value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown name")]
pub struct UnknownName;

spelled! {
    /// How traffic is directed.
    Mode {
        /// Chains of iptables rules.
        Iptables = "iptables",
        /// Virtual servers of the kernel.
        Ipvs = "ipvs",
        /// nftables maps and chains.
        Nftables = "nftables",
    }
}

spelled! {
    /// The form of a log line.
    LogFormat {
        /// For people.
        Text = "text",
        /// For programs.
        Json = "json",
    }
}

spelled! {
    /// How a packet from a pod of this node is told, without the details.
    DetectLocalMode {
        /// By the cluster's pod addresses.
        ClusterCidr = "ClusterCIDR",
        /// By this node's pod addresses.
        NodeCidr = "NodeCIDR",
        /// By the interface.
        BridgeInterface = "BridgeInterface",
        /// By the interface's name.
        InterfaceNamePrefix = "InterfaceNamePrefix",
    }
}

impl DetectLocal {
    /// The mode as files spell it.
    #[must_use]
    pub fn mode(&self) -> DetectLocalMode {
        match self {
            Self::ClusterCidr(_) => DetectLocalMode::ClusterCidr,
            Self::NodeCidr => DetectLocalMode::NodeCidr,
            Self::BridgeInterface(_) => DetectLocalMode::BridgeInterface,
            Self::InterfaceNamePrefix(_) => DetectLocalMode::InterfaceNamePrefix,
        }
    }
}
