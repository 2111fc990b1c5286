//! The table's fixed parts: names, sets, hooks.
//!
//! ```text
//! prerouting, output (pre-dnat)  firewall-check ─► source filter of load-balancer IPs
//! prerouting, output (dnat)      services ─► vmap service-ips, service-nodeports
//!                                     └► route-… (by source) ─► masq-… ─► pick-… : dnat
//! prerouting, output (post-dnat) affinity-record: remember the client's endpoint
//! input, forward, output         refusals, unused ports, unallocated addresses
//! postrouting                    masquerading
//! ```
//!
//! Frontends and endpoints are elements of a constant number of sets, since the kernel's cost of
//! naming and binding sets is quadratic in their number. A frontend's endpoints are numbered from
//! 0; `pick-M` draws a number below M, the next power of two, and draws again if no endpoint has
//! it. So endpoints may come and go without a change of verdict, whose check would cost the
//! kernel a walk over all Services.

use std::sync::Arc;

use proxy_core::resolved::PoolKind;

use crate::model::{KeyPart, SetData, SetSpec};

/// Name of the table, in family `ip` and in family `ip6`.
pub const TABLE: &str = "proxyd";

/// Cluster IPs of all Services.
pub(crate) const CLUSTER_IPS: &str = "cluster-ips";
/// Addresses of the node on which node ports answer; empty if all do.
pub(crate) const NODEPORT_IPS: &str = "nodeport-ips";
/// Service address frontends to chains.
pub(crate) const SERVICE_IPS: &str = "service-ips";
/// Node port frontends to chains.
pub(crate) const SERVICE_NODEPORTS: &str = "service-nodeports";
/// Service address frontends that refuse or drop what was not translated.
pub(crate) const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
/// The same for node ports.
pub(crate) const NO_ENDPOINT_NODEPORTS: &str = "no-endpoint-nodeports";
/// Frontends that admit only some sources.
pub(crate) const FIREWALL_IPS: &str = "firewall-ips";
/// The sources they admit.
pub(crate) const SOURCE_RANGES: &str = "source-ranges";
/// Endpoints of this node, as a connection from itself to itself.
pub(crate) const HAIRPIN: &str = "hairpin-connections";
/// Numbered endpoints by service address frontend.
pub(crate) const SERVICE_ENDPOINTS: &str = "service-endpoints";
/// Numbered endpoints by node port frontend.
pub(crate) const NODEPORT_ENDPOINTS: &str = "nodeport-endpoints";
/// Endpoints of service ports with affinity.
pub(crate) const AFFINITY_ENDPOINTS: &str = "affinity-endpoints";
/// Service address frontends with affinity to the chains that remember clients.
pub(crate) const AFFINITY_SERVICES: &str = "affinity-services";
/// The same for node ports.
pub(crate) const AFFINITY_NODEPORTS: &str = "affinity-nodeports";

/// Chains, by name.
pub(crate) mod chain {
    pub(crate) const SERVICES: &str = "services";
    pub(crate) const REJECT: &str = "reject-chain";
    pub(crate) const FIREWALL: &str = "firewall";
    pub(crate) const FIREWALL_CHECK: &str = "firewall-check";
    pub(crate) const ENDPOINTS_CHECK: &str = "service-endpoints-check";
    pub(crate) const NODEPORTS_CHECK: &str = "nodeport-endpoints-check";
    pub(crate) const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";
    pub(crate) const AFFINITY_RECORD: &str = "affinity-record";
    pub(crate) const MASQUERADING: &str = "masquerading";
    pub(crate) const FILTER_PREROUTING: &str = "filter-prerouting-pre-dnat";
    pub(crate) const FILTER_OUTPUT_PRE_DNAT: &str = "filter-output-pre-dnat";
    pub(crate) const NAT_PREROUTING: &str = "nat-prerouting";
    pub(crate) const NAT_OUTPUT: &str = "nat-output";
    pub(crate) const AFFINITY_PREROUTING: &str = "filter-prerouting-post-dnat";
    pub(crate) const AFFINITY_OUTPUT: &str = "filter-output-post-dnat";
    pub(crate) const FILTER_INPUT: &str = "filter-input";
    pub(crate) const FILTER_FORWARD: &str = "filter-forward";
    pub(crate) const FILTER_OUTPUT: &str = "filter-output";
    pub(crate) const NAT_POSTROUTING: &str = "nat-postrouting";
}

/// Priority of the source filter: before any translation.
pub(crate) const PRIORITY_PRE_DNAT: i32 = -110;
/// Priority of destination translation (`NF_IP_PRI_NAT_DST`).
pub(crate) const PRIORITY_DNAT: i32 = -100;
/// Priority of remembering clients: right after the translation.
pub(crate) const PRIORITY_POST_DNAT: i32 = -95;
/// Priority of refusals (`NF_IP_PRI_FILTER`).
pub(crate) const PRIORITY_FILTER: i32 = 0;
/// Priority of masquerading (`NF_IP_PRI_NAT_SRC`).
pub(crate) const PRIORITY_SNAT: i32 = 100;

/// Prefixes of names.
pub(crate) const PICK: &str = "pick-";
pub(crate) const MASQUERADE: &str = "masq-";
pub(crate) const ROUTE: &str = "route-";
pub(crate) const POOL: &str = "pool-";
pub(crate) const POOL_ROUTE: &str = "pool-route-";
pub(crate) const RECORD: &str = "record-";
pub(crate) const RECORD_ROUTE: &str = "record-route-";
pub(crate) const POOL_ENDPOINTS: &str = "endpoints-";
pub(crate) const POOL_AFFINITY: &str = "affinity-";

/// Where a frontend's local endpoints are numbered from; its cluster endpoints start at 0.
pub(crate) const LOCAL_OFFSET: u32 = 1 << 20;

/// How many clients a service port with affinity remembers.
pub(crate) const AFFINITY_CLIENTS: u32 = 65_536;

/// Chains for pools of up to this many endpoints always exist: adding a chain to a map with
/// 100,000 elements costs the kernel 10 ms.
pub(crate) const STANDING_BUCKET: u32 = 64;

/// A service port with more frontends than this, or with affinity, has endpoint maps of its own
/// instead of a copy of its endpoints per frontend.
pub(crate) const MAX_SHARED_FRONTENDS: usize = 4;

/// How often a chain draws a number before it settles for one that surely has an endpoint.
///
/// More than half of the numbers have one, so fewer than one in a thousand connections get
/// there, and the first half of the endpoints is preferred by no more than that.
pub(crate) const DRAWS: usize = 10;

/// Comments on rules.
pub(crate) mod rule_comment {
    pub(crate) const MARKED: &str = "sources that would not get the answer";
    pub(crate) const HAIRPIN: &str = "pods that reach themselves";
    pub(crate) const DRAW_AGAIN: &str = "if the number drawn has no endpoint";
    pub(crate) const DRAW_LAST: &str = "numbers that all have an endpoint";
    pub(crate) const REMEMBERED: &str = "clients that were here before";
    pub(crate) const ALL: [&str; 5] = [MARKED, HAIRPIN, DRAW_AGAIN, DRAW_LAST, REMEMBERED];
}

/// Smallest power of two that is not below the number of endpoints.
pub(crate) fn bucket(endpoints: usize) -> u32 {
    u32::try_from(endpoints).unwrap_or(LOCAL_OFFSET).clamp(1, LOCAL_OFFSET).next_power_of_two()
}

/// Whether several Services may use this chain.
pub(crate) fn is_shared_chain(name: &str) -> bool {
    let name = name.strip_prefix(MASQUERADE).unwrap_or(name);
    name.starts_with(PICK) || name.starts_with(ROUTE)
}

/// Order of chains: every chain goes only to chains of smaller rank.
pub(crate) fn chain_rank(name: &str) -> u8 {
    match name {
        _ if name.starts_with(MASQUERADE) => 1,
        _ if name.starts_with(POOL_ROUTE) || name.starts_with(ROUTE) => 2,
        _ if name.starts_with(RECORD_ROUTE) => 2,
        _ if name.starts_with(PICK) || name.starts_with(POOL) => 0,
        _ if name.starts_with(RECORD) || name == chain::REJECT || name == chain::FIREWALL => 0,
        chain::SERVICES
        | chain::FIREWALL_CHECK
        | chain::ENDPOINTS_CHECK
        | chain::NODEPORTS_CHECK
        | chain::CLUSTER_IPS_CHECK
        | chain::AFFINITY_RECORD
        | chain::MASQUERADING => 3,
        _ => 4,
    }
}

fn set(key: &[KeyPart], data: SetData) -> SetSpec {
    SetSpec { key: key.to_vec(), data, interval: false, dynamic: None }
}

/// The sets and maps that every table has.
pub(crate) fn fixed_sets() -> Vec<(&'static str, SetSpec)> {
    use KeyPart::{Address, Number, Port, Protocol};
    use SetData::{Endpoint, None, Verdict};
    let source_ranges =
        SetSpec { interval: true, ..set(&[Address, Protocol, Port, Address], None) };
    vec![
        (CLUSTER_IPS, set(&[Address], None)),
        (NODEPORT_IPS, set(&[Address], None)),
        (SERVICE_IPS, set(&[Address, Protocol, Port], Verdict)),
        (SERVICE_NODEPORTS, set(&[Protocol, Port], Verdict)),
        (NO_ENDPOINT_SERVICES, set(&[Address, Protocol, Port], Verdict)),
        (NO_ENDPOINT_NODEPORTS, set(&[Protocol, Port], Verdict)),
        (FIREWALL_IPS, set(&[Address, Protocol, Port], Verdict)),
        (SOURCE_RANGES, source_ranges),
        (HAIRPIN, set(&[Address, Address, Protocol, Port], None)),
        (SERVICE_ENDPOINTS, set(&[Address, Protocol, Port, Number], Endpoint)),
        (NODEPORT_ENDPOINTS, set(&[Protocol, Port, Number], Endpoint)),
        (AFFINITY_ENDPOINTS, set(&[Address, Protocol, Port], None)),
        (AFFINITY_SERVICES, set(&[Address, Protocol, Port], Verdict)),
        (AFFINITY_NODEPORTS, set(&[Protocol, Port], Verdict)),
    ]
}

/// The endpoint map of a service port that has its own.
///
/// The protocol is part of the key although it is always the same: the translation of a port has
/// to know it, and tools show a number in host byte order only inside a concatenation.
pub(crate) fn pool_endpoints_set() -> SetSpec {
    set(&[KeyPart::Protocol, KeyPart::Number], SetData::Endpoint)
}

/// The map in which a service port with affinity remembers clients.
pub(crate) fn pool_affinity_set() -> SetSpec {
    SetSpec { dynamic: Some(AFFINITY_CLIENTS), ..set(&[KeyPart::Address], SetData::Endpoint) }
}

/// The part of a name that tells the pools of a service port apart.
pub(crate) fn pool_infix(kind: PoolKind) -> &'static str {
    match kind {
        PoolKind::Cluster => "",
        PoolKind::Local => "local-",
    }
}

/// A name from parts.
pub(crate) fn name(parts: &[&str]) -> Arc<str> {
    parts.concat().into()
}
