//! kube-proxy's own list of metrics (S16), written down apart from the code.

/// Modes by letter: iptables, ipvs, nftables.
pub(crate) type Row = (&'static str, &'static str, &'static [&'static str], &'static str);

const F: &[&str] = &["ip_family"];
const T: &[&str] = &["table", "ip_family"];

/// Name without `kubeproxy_`, type, labels, modes.
pub(crate) const S16: &[Row] = &[
    ("sync_proxy_rules_duration_seconds", "histogram B15", F, "IVN"),
    ("sync_full_proxy_rules_duration_seconds", "histogram B15", F, "IN"),
    ("sync_partial_proxy_rules_duration_seconds", "histogram B15", F, "IN"),
    ("sync_proxy_rules_last_timestamp_seconds", "gauge", F, "IVN"),
    ("sync_proxy_rules_last_queued_timestamp_seconds", "gauge", F, "IVN"),
    ("network_programming_duration_seconds", "histogram 80", F, "IVN"),
    ("sync_proxy_rules_endpoint_changes_pending", "gauge", &[], "IVN"),
    ("sync_proxy_rules_endpoint_changes_total", "counter", &[], "IVN"),
    ("sync_proxy_rules_service_changes_pending", "gauge", &[], "IVN"),
    ("sync_proxy_rules_service_changes_total", "counter", &[], "IVN"),
    ("sync_proxy_rules_no_local_endpoints_total", "gauge", &["traffic_policy", "ip_family"], "IVN"),
    ("sync_proxy_rules_iptables_total", "gauge", T, "I"),
    ("sync_proxy_rules_iptables_last", "gauge", T, "I"),
    ("sync_proxy_rules_iptables_restore_failures_total", "counter", F, "IV"),
    ("sync_proxy_rules_iptables_partial_restore_failures_total", "counter", F, "I"),
    ("iptables_ct_state_invalid_dropped_packets_total", "counter", &[], "I"),
    ("iptables_localhost_nodeports_accepted_packets_total", "counter", &[], "I"),
    ("sync_proxy_rules_nftables_sync_failures_total", "counter", F, "N"),
    ("sync_proxy_rules_nftables_cleanup_failures_total", "counter", F, "N"),
    ("conntrack_reconciler_sync_duration_seconds", "histogram B15", F, "IVN"),
    ("conntrack_reconciler_deleted_entries_total", "counter", F, "IVN"),
    ("proxy_healthz_total", "counter", &["code"], "IVN"),
    ("proxy_livez_total", "counter", &["code"], "IVN"),
];

/// The upper bounds of `histogram B15`.
pub(crate) fn b15() -> Vec<f64> {
    (0..15).map(|k| 0.001 * f64::from(1 << k)).collect()
}

/// The upper bounds of `histogram 80`.
pub(crate) fn programming() -> Vec<f64> {
    let fine = (1..60).map(f64::from);
    let middle = (60..120).step_by(5).map(f64::from);
    let coarse = (120..=300).step_by(30).map(f64::from);
    [0.25, 0.5].into_iter().chain(fine).chain(middle).chain(coarse).collect()
}
