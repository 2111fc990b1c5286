//! Every metric, as data: `docs/metrics.md` is checked against this list.
//!
//! Where the meaning is kube-proxy's, so are name, type, labels and buckets (S16). Ours begin with
//! `proxyd_`.

use crate::config::Mode;

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations by size; the upper bounds without the infinite one.
    Histogram(&'static [f64]),
}

impl Kind {
    /// The word for it in the text format.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// A metric's description. Two are the same if their names are.
#[derive(Debug)]
pub struct Definition {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// Names of its labels.
    pub labels: &'static [&'static str],
    /// The modes in which it exists.
    pub modes: &'static [Mode],
    /// What it tells.
    pub help: &'static str,
}

const ALL_MODES: &[Mode] = &[Mode::Iptables, Mode::Ipvs, Mode::Nftables];
const IPTABLES: &[Mode] = &[Mode::Iptables];
const NFTABLES: &[Mode] = &[Mode::Nftables];
const RULES: &[Mode] = &[Mode::Iptables, Mode::Nftables];
const RESTORE: &[Mode] = &[Mode::Iptables, Mode::Ipvs];

const NO_LABELS: &[&str] = &[];
const FAMILY: &[&str] = &["ip_family"];
const TABLE: &[&str] = &["table", "ip_family"];
const CODE: &[&str] = &["code"];

/// 1 ms doubled fourteen times.
pub const SYNC_BUCKETS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096,
    8.192, 16.384,
];

/// Fine steps up to a minute, where the objective is; coarse ones up to five.
pub const PROGRAMMING_BUCKETS: &[f64] = &programming_buckets();

/// 64 bytes to 16 MiB, as client-go measures bodies.
pub const SIZE_BUCKETS: &[f64] = &[
    64.0,
    256.0,
    512.0,
    1024.0,
    4096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
];

/// Times of answers of an API server, in seconds.
pub const REQUEST_BUCKETS: &[f64] =
    &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

const fn programming_buckets() -> [f64; 80] {
    let mut buckets = [0.25; 80];
    buckets[1] = 0.5;
    let (mut index, mut bound) = (2, 1.0);
    while index < 80 {
        buckets[index] = bound;
        bound += if bound < 60.0 {
            1.0
        } else if bound < 120.0 {
            5.0
        } else {
            30.0
        };
        index += 1;
    }
    buckets
}

/// Declares the definitions, and a list of all of them.
macro_rules! catalog {
    ($($id:ident = $name:literal, $kind:expr, $labels:expr, $modes:expr, $help:literal;)*) => {
        $(#[doc = $help] pub const $id: Definition = Definition {
            name: $name, kind: $kind, labels: $labels, modes: $modes, help: $help,
        };)*

        /// Every metric.
        pub const ALL: &[Definition] = &[$($id),*];
    };
}

const SYNC: Kind = Kind::Histogram(SYNC_BUCKETS);
const PROGRAMMING: Kind = Kind::Histogram(PROGRAMMING_BUCKETS);
const REQUEST: Kind = Kind::Histogram(REQUEST_BUCKETS);
const SIZE: Kind = Kind::Histogram(SIZE_BUCKETS);
use Kind::{Counter, Gauge};

catalog! {
    // --- kube-proxy's (S16) ---
    SYNC_DURATION = "kubeproxy_sync_proxy_rules_duration_seconds", SYNC, FAMILY, ALL_MODES,
        "Time of each sync, whether it succeeded or not.";
    SYNC_FULL_DURATION = "kubeproxy_sync_full_proxy_rules_duration_seconds", SYNC, FAMILY, RULES,
        "Time of each sync that compared everything.";
    SYNC_PARTIAL_DURATION = "kubeproxy_sync_partial_proxy_rules_duration_seconds", SYNC, FAMILY,
        RULES, "Time of each sync of what had changed.";
    LAST_SYNCED = "kubeproxy_sync_proxy_rules_last_timestamp_seconds", Gauge, FAMILY, ALL_MODES,
        "When a sync last succeeded, in Unix time.";
    LAST_QUEUED = "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds", Gauge, FAMILY,
        ALL_MODES, "When something was last to be written, in Unix time; absent before.";
    PROGRAMMING_DURATION = "kubeproxy_network_programming_duration_seconds", PROGRAMMING, FAMILY,
        ALL_MODES, "Time from a change of a Service's pods to its effect on this node; only of \
        changes after this process started, and not of deletions.";
    SLICES_PENDING = "kubeproxy_sync_proxy_rules_endpoint_changes_pending", Gauge, NO_LABELS,
        ALL_MODES, "EndpointSlices told of since the last sync, if a sync is due.";
    SLICES_TOTAL = "kubeproxy_sync_proxy_rules_endpoint_changes_total", Counter, NO_LABELS,
        ALL_MODES, "EndpointSlices told of, repeats included.";
    SERVICES_PENDING = "kubeproxy_sync_proxy_rules_service_changes_pending", Gauge, NO_LABELS,
        ALL_MODES, "Services told of since the last sync, if a sync is due.";
    SERVICES_TOTAL = "kubeproxy_sync_proxy_rules_service_changes_total", Counter, NO_LABELS,
        ALL_MODES, "Services told of, repeats included, once for each family of the node.";
    NO_LOCAL_ENDPOINTS = "kubeproxy_sync_proxy_rules_no_local_endpoints_total", Gauge,
        &["traffic_policy", "ip_family"], ALL_MODES,
        "Service ports with policy Local that have endpoints, but none on this node.";
    IPTABLES_RULES = "kubeproxy_sync_proxy_rules_iptables_total", Gauge, TABLE, IPTABLES,
        "Rules installed.";
    IPTABLES_RULES_LAST = "kubeproxy_sync_proxy_rules_iptables_last", Gauge, TABLE, IPTABLES,
        "Rules written by the last sync.";
    RESTORE_FAILURES = "kubeproxy_sync_proxy_rules_iptables_restore_failures_total", Counter,
        FAMILY, RESTORE, "Failed syncs.";
    PARTIAL_RESTORE_FAILURES =
        "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total", Counter, FAMILY,
        IPTABLES, "Failed syncs of what had changed.";
    INVALID_DROPPED = "kubeproxy_iptables_ct_state_invalid_dropped_packets_total", Counter,
        NO_LABELS, IPTABLES, "Packets dropped because they belong to no valid flow.";
    LOCALHOST_ACCEPTED = "kubeproxy_iptables_localhost_nodeports_accepted_packets_total", Counter,
        NO_LABELS, IPTABLES, "Packets to node ports on 127.0.0.1.";
    NFTABLES_FAILURES = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total", Counter,
        FAMILY, NFTABLES, "Failed syncs.";
    NFTABLES_CLEANUP_FAILURES = "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
        Counter, FAMILY, NFTABLES,
        "Failed removals of what is no longer used; always 0, since each sync removes it.";
    FLOWS_DURATION = "kubeproxy_conntrack_reconciler_sync_duration_seconds", SYNC, FAMILY,
        ALL_MODES, "Time to look through the kernel's flows for stale ones.";
    FLOWS_DELETED = "kubeproxy_conntrack_reconciler_deleted_entries_total", Counter, FAMILY,
        ALL_MODES, "Stale flows that the kernel was made to forget.";
    HEALTHZ = "kubeproxy_proxy_healthz_total", Counter, CODE, ALL_MODES, "Answers to /healthz.";
    LIVEZ = "kubeproxy_proxy_livez_total", Counter, CODE, ALL_MODES, "Answers to /livez.";

    // --- ours: syncs ---
    SYNC_FAILURES = "proxyd_sync_failures_total", Counter, &["ip_family", "reason"], ALL_MODES,
        "Failed syncs by sort of error: transient, busy, out-of-sync, unsupported, permission or \
        rejected.";
    QUEUED_DURATION = "proxyd_sync_queued_duration_seconds", SYNC, FAMILY, ALL_MODES,
        "How long something had been waiting when it was in effect, failed syncs included.";
    CHANGED_OBJECTS = "proxyd_changed_objects_total", Counter, FAMILY, ALL_MODES,
        "Kernel objects written or removed.";
    SERVICES = "proxyd_services", Gauge, FAMILY, ALL_MODES, "Services with an address.";
    LEFT_OUT = "proxyd_services_left_out", Gauge, FAMILY, ALL_MODES,
        "Services that are not in effect because the kernel refuses them.";
    LEFT_OUT_INFO = "proxyd_service_left_out_info", Gauge,
        &["ip_family", "namespace", "service", "reason"], ALL_MODES,
        "1 for each Service that is not in effect, with the kernel's reason; at most 100 of a \
        family.";
    DRIFT_REPAIRS = "proxyd_drift_repairs_total", Counter, FAMILY, ALL_MODES,
        "Repairs of what somebody else had changed.";
    DRIFT_OBJECTS = "proxyd_drift_repaired_objects_total", Counter, FAMILY, ALL_MODES,
        "Kernel objects that repairs wrote or removed.";
    FOLLOW_UPS = "proxyd_follow_ups_pending", Gauge, &["ip_family", "kind"], ALL_MODES,
        "What is still to do after syncs: look through flows (conntrack; 0 or 1), listen for \
        health checks on ports that are taken (health_check).";
    FINDINGS = "proxyd_findings", Gauge, NO_LABELS, ALL_MODES,
        "Findings about objects that are in force, as logged.";
    SOURCE_EVENTS = "proxyd_source_events_total", Counter, &["kind", "action"], ALL_MODES,
        "Objects told of by the source, by kind and whether they were applied or deleted. The \
        rate for EndpointSlice is how fast endpoints change.";
    SERVICE_PROGRAMMING_DURATION = "proxyd_service_programming_duration_seconds", PROGRAMMING,
        &["ip_family", "namespace", "service"], ALL_MODES,
        "As kubeproxy_network_programming_duration_seconds, of the Services named by \
        --service-latency.";
    NODE_ELIGIBLE = "proxyd_node_eligible", Gauge, NO_LABELS, ALL_MODES,
        "1 if the Node takes new connections from load balancers, else 0.";

    SOURCE_CONNECTED = "proxyd_source_connected", Gauge, NO_LABELS, ALL_MODES,
        "1 while the API server answers for every kind of object, else 0; absent without a cluster.";
    SOURCE_UNREADABLE = "proxyd_source_unreadable_objects_total", Counter, &["kind"], ALL_MODES,
        "Objects of the API server that could not be read and were skipped, repeats included.";
    SOURCE_RESTARTS = "proxyd_source_restarts_total", Counter, &["kind", "reason"], ALL_MODES,
        "Lists and watches that came to their end: cut, ended, expired, garbage, refused, silent or \
        unreachable.";
    EVENTS_WRITTEN = "proxyd_events_written_total", Counter, NO_LABELS, ALL_MODES,
        "Events of this node that the API server has taken, first ones and counts of repetitions.";
    EVENTS_LOST = "proxyd_events_lost_total", Counter, &["reason"], ALL_MODES,
        "Events of this node that were not written: outdated (the API server was out of reach for \
        too long), overflow (too many were waiting) or refused.";
    CONFIG_PENDING = "proxyd_config_pending", Gauge, NO_LABELS, ALL_MODES,
        "1 while the configuration file means something else than what is in force, else 0.";
    CONFIG_UNUSABLE = "proxyd_config_unusable", Gauge, NO_LABELS, ALL_MODES,
        "1 while the configuration file has been changed to something that cannot be used, else 0.";

    // --- ours: the machine, read at each scrape ---
    FLOWS = "proxyd_conntrack_entries", Gauge, NO_LABELS, ALL_MODES, "Tracked flows.";
    FLOWS_LIMIT = "proxyd_conntrack_entries_limit", Gauge, NO_LABELS, ALL_MODES,
        "How many flows the kernel tracks at most.";
    INSERT_FAILED = "proxyd_conntrack_insert_failed_total", Counter, NO_LABELS, ALL_MODES,
        "Flows lost because another packet had just begun the same one.";
    FLOWS_DROPPED = "proxyd_conntrack_dropped_total", Counter, NO_LABELS, ALL_MODES,
        "Packets dropped because their flow could not be tracked, as when the table is full.";
    FLOWS_EARLY_DROPPED = "proxyd_conntrack_early_dropped_total", Counter, NO_LABELS, ALL_MODES,
        "Flows given up to make room for others.";
    IPTABLES_VARIANT = "proxyd_iptables_variant_info", Gauge, &["ip_family", "variant"], IPTABLES,
        "1; which kind of iptables holds the rules: nft or legacy.";
    BUILD_INFO = "proxyd_build_info", Gauge, &["version", "kubernetes", "mode", "platform"],
        ALL_MODES, "1; the version, the release of kube-proxy it stands in for, the mode.";

    // --- of every component of Kubernetes ---
    FEATURE_ENABLED = "kubernetes_feature_enabled", Gauge, &["name", "stage"], ALL_MODES,
        "Whether a feature gate is on.";
    API_REQUESTS = "rest_client_requests_total", Counter, &["code", "method", "host"], ALL_MODES,
        "Requests to the API server.";
    API_DURATION = "rest_client_request_duration_seconds", REQUEST, &["verb", "host"], ALL_MODES,
        "Time of requests to the API server.";
    API_LIMITER_DURATION = "rest_client_rate_limiter_duration_seconds", REQUEST, &["verb", "host"],
        ALL_MODES, "How long lists and watches waited for clientConnection.qps and burst.";
    API_REQUEST_SIZE = "rest_client_request_size_bytes", SIZE, &["verb", "host"], ALL_MODES,
        "Size of requests to the API server, without their headers.";
    API_RESPONSE_SIZE = "rest_client_response_size_bytes", SIZE, &["verb", "host"], ALL_MODES,
        "Size of lists from the API server; watches have none.";

    // --- of every process ---
    PROCESS_CPU = "process_cpu_seconds_total", Counter, NO_LABELS, ALL_MODES,
        "Time on a processor.";
    PROCESS_FDS = "process_open_fds", Gauge, NO_LABELS, ALL_MODES, "Open file descriptors.";
    PROCESS_MAX_FDS = "process_max_fds", Gauge, NO_LABELS, ALL_MODES,
        "How many file descriptors may be open.";
    PROCESS_RESIDENT = "process_resident_memory_bytes", Gauge, NO_LABELS, ALL_MODES,
        "Memory that is occupied.";
    PROCESS_VIRTUAL = "process_virtual_memory_bytes", Gauge, NO_LABELS, ALL_MODES,
        "Virtual memory.";
    PROCESS_MAX_VIRTUAL = "process_virtual_memory_max_bytes", Gauge, NO_LABELS, ALL_MODES,
        "How much virtual memory there may be.";
    PROCESS_STARTED = "process_start_time_seconds", Gauge, NO_LABELS, ALL_MODES,
        "When the process started, in Unix time.";
    PROCESS_THREADS = "process_threads", Gauge, NO_LABELS, ALL_MODES, "Threads.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s16_buckets() {
        assert_eq!(PROGRAMMING_BUCKETS[..4], [0.25, 0.5, 1.0, 2.0]);
        assert_eq!(PROGRAMMING_BUCKETS[60..63], [59.0, 60.0, 65.0]);
        assert_eq!(
            PROGRAMMING_BUCKETS[72..],
            [115.0, 120.0, 150.0, 180.0, 210.0, 240.0, 270.0, 300.0]
        );
        for pair in SYNC_BUCKETS.windows(2) {
            assert!((pair[1] - 2.0 * pair[0]).abs() < 1e-9);
        }
    }
}
