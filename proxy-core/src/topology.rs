//! Which endpoints a service port uses, as seen from this node (S5).
//!
//! Policy narrows by node, hints narrow by node or zone, and endpoints that terminate stand in
//! where none is ready. How these combine is subtle and was a source of differences between
//! proxies, so it is one pure function.

use crate::resolved::{Endpoint, Pool, PoolReason};

/// What is known of an endpoint besides its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct EndpointFlags(u8);

impl EndpointFlags {
    /// Takes new connections (S4.6).
    pub const READY: Self = Self(1);
    /// Answers, though it may be about to end (S4.6).
    pub const SERVING: Self = Self(1 << 1);
    /// About to end (S4.6).
    pub const TERMINATING: Self = Self(1 << 2);
    /// On this node (S4.7).
    pub const LOCAL: Self = Self(1 << 3);
    /// Has hints that name nodes (S4.8).
    pub const NODE_HINT: Self = Self(1 << 4);
    /// Its hints name this node.
    pub const HINTS_THIS_NODE: Self = Self(1 << 5);
    /// Has hints that name zones (S4.8).
    pub const ZONE_HINT: Self = Self(1 << 6);
    /// Its hints name the zone of this node.
    pub const HINTS_THIS_ZONE: Self = Self(1 << 7);

    /// No flag at all.
    pub fn none() -> Self {
        Self(0)
    }

    /// These flags, and `other` too if `condition` holds.
    pub fn with(self, other: Self, condition: bool) -> Self {
        if condition { Self(self.0 | other.0) } else { self }
    }

    /// Whether all flags of `other` are set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    fn is_fallback(self) -> bool {
        self.has(Self::SERVING) && self.has(Self::TERMINATING)
    }
}

/// An endpoint that may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The endpoint.
    pub endpoint: Endpoint,
    /// What is known of it.
    pub flags: EndpointFlags,
}

/// Which endpoint sets the frontends of a service port need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Some traffic may go anywhere.
    pub cluster: bool,
    /// Some traffic must stay on the node.
    pub local: bool,
}

impl Usage {
    /// The sets that follow from the policies (S5).
    pub fn of(internal_local: bool, external_local: bool, externally_accessible: bool) -> Self {
        Self {
            cluster: !internal_local || externally_accessible,
            local: internal_local || (external_local && externally_accessible),
        }
    }
}

/// The endpoint sets of a service port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Categories {
    /// For traffic that may go anywhere; empty if there is none such.
    pub cluster: Pool,
    /// For traffic that must stay on the node; empty if there is none such.
    pub local: Pool,
    /// Whether anything in the cluster could serve, even if not for this node.
    pub has_any: bool,
}

/// Chooses the endpoints of a service port; the order of the candidates is kept (S5.1 to S5.5).
pub fn categorize_endpoints(candidates: &[Candidate], usage: Usage) -> Categories {
    let unused = Pool::empty;
    Categories {
        cluster: if usage.cluster { cluster_pool(candidates) } else { unused() },
        local: if usage.local { local_pool(candidates) } else { unused() },
        has_any: candidates
            .iter()
            .any(|candidate| is_ready(candidate) || candidate.flags.is_fallback()),
    }
}

fn cluster_pool(candidates: &[Candidate]) -> Pool {
    let pool = match topology_mode(candidates) {
        PoolReason::SameNode => pool(candidates, PoolReason::SameNode, |candidate| {
            is_ready(candidate) && candidate.flags.has(EndpointFlags::HINTS_THIS_NODE)
        }),
        PoolReason::SameZone => pool(candidates, PoolReason::SameZone, |candidate| {
            is_ready(candidate) && candidate.flags.has(EndpointFlags::HINTS_THIS_ZONE)
        }),
        _ => pool(candidates, PoolReason::Ready, is_ready),
    };
    or_else(pool, || {
        self::pool(candidates, PoolReason::Terminating, |candidate| candidate.flags.is_fallback())
    })
}

fn local_pool(candidates: &[Candidate]) -> Pool {
    let is_local = |candidate: &Candidate| candidate.flags.has(EndpointFlags::LOCAL);
    let ready =
        pool(candidates, PoolReason::Ready, |candidate| is_local(candidate) && is_ready(candidate));
    or_else(ready, || {
        pool(candidates, PoolReason::Terminating, |candidate| {
            is_local(candidate) && candidate.flags.is_fallback()
        })
    })
}

/// Hints bind only if every ready endpoint carries them: one without means that the writer of the
/// slices did not mean them to be used yet, or no longer (S5.2).
fn topology_mode(candidates: &[Candidate]) -> PoolReason {
    if hints_apply(candidates, EndpointFlags::NODE_HINT, EndpointFlags::HINTS_THIS_NODE) {
        PoolReason::SameNode
    } else if hints_apply(candidates, EndpointFlags::ZONE_HINT, EndpointFlags::HINTS_THIS_ZONE) {
        PoolReason::SameZone
    } else {
        PoolReason::Ready
    }
}

fn hints_apply(candidates: &[Candidate], hinted: EndpointFlags, ours: EndpointFlags) -> bool {
    let mut ready = candidates.iter().filter(|candidate| is_ready(candidate));
    let mut one_is_ours = false;
    ready.all(|candidate| {
        one_is_ours |= candidate.flags.has(ours);
        candidate.flags.has(hinted)
    }) && one_is_ours
}

fn is_ready(candidate: &Candidate) -> bool {
    candidate.flags.has(EndpointFlags::READY)
}

fn pool(candidates: &[Candidate], reason: PoolReason, keep: impl Fn(&Candidate) -> bool) -> Pool {
    let kept = candidates.iter().filter(|candidate| keep(candidate));
    let mut endpoints: Vec<Endpoint> = kept.map(|candidate| candidate.endpoint).collect();
    endpoints.shrink_to_fit();
    let reason = if endpoints.is_empty() { PoolReason::Empty } else { reason };
    Pool { endpoints, reason }
}

fn or_else(first: Pool, second: impl FnOnce() -> Pool) -> Pool {
    if first.endpoints.is_empty() { second() } else { first }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const READY: EndpointFlags = EndpointFlags::READY;

    fn fallback() -> EndpointFlags {
        EndpointFlags::SERVING.with(EndpointFlags::TERMINATING, true)
    }

    fn candidates(flags: &[EndpointFlags]) -> Vec<Candidate> {
        (1..)
            .zip(flags)
            .map(|(host, &flags)| Candidate {
                endpoint: Endpoint {
                    address: Ipv4Addr::new(10, 0, 0, host).into(),
                    port: 80,
                    is_local: flags.has(EndpointFlags::LOCAL),
                },
                flags,
            })
            .collect()
    }

    fn hosts(pool: &Pool) -> Vec<String> {
        pool.endpoints.iter().map(|endpoint| endpoint.address.to_string()).collect()
    }

    #[test]
    fn s5_usage_follows_from_policies_and_reach() {
        let usage = |internal, external, accessible| {
            let usage = Usage::of(internal, external, accessible);
            (usage.cluster, usage.local)
        };
        assert_eq!(usage(false, false, false), (true, false));
        assert_eq!(usage(false, true, false), (true, false));
        assert_eq!(usage(false, true, true), (true, true));
        assert_eq!(usage(true, false, false), (false, true));
        assert_eq!(usage(true, false, true), (true, true));
        assert_eq!(usage(true, true, true), (true, true));
    }

    #[test]
    fn nothing_gives_nothing() {
        let categories = categorize_endpoints(&[], Usage { cluster: true, local: true });
        let expected = Categories { cluster: Pool::empty(), local: Pool::empty(), has_any: false };
        assert_eq!(categories, expected);
    }

    #[test]
    fn s5_3_each_set_falls_back_for_itself() {
        let local = EndpointFlags::LOCAL;
        let given = candidates(&[READY, fallback().with(local, true), fallback(), local]);
        let categories = categorize_endpoints(&given, Usage { cluster: true, local: true });
        assert_eq!(hosts(&categories.cluster), ["10.0.0.1"]);
        assert_eq!(categories.cluster.reason, PoolReason::Ready);
        assert_eq!(hosts(&categories.local), ["10.0.0.2"]);
        assert_eq!(categories.local.reason, PoolReason::Terminating);
    }

    #[test]
    fn s5_2_node_hints_come_before_zone_hints() {
        let both = READY
            .with(EndpointFlags::NODE_HINT, true)
            .with(EndpointFlags::ZONE_HINT, true)
            .with(EndpointFlags::HINTS_THIS_ZONE, true);
        let ours = both.with(EndpointFlags::HINTS_THIS_NODE, true);
        let usage = Usage { cluster: true, local: false };
        let by_node = categorize_endpoints(&candidates(&[both, ours]), usage);
        assert_eq!(hosts(&by_node.cluster), ["10.0.0.2"]);
        assert_eq!(by_node.cluster.reason, PoolReason::SameNode);
        let by_zone = categorize_endpoints(&candidates(&[both, both]), usage);
        assert_eq!(by_zone.cluster.reason, PoolReason::SameZone);
    }
}
