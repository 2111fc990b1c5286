//! The endpoints of one service port, gathered from all slices of its Service.

use std::cmp::Ordering;
use std::io::Write;
use std::net::IpAddr;

use crate::names::Protocol;
use crate::resolved::Endpoint;
use crate::store::slice::SliceContent;
use crate::topology::{Candidate, EndpointFlags};

/// Gathers the endpoints of the port of this name, as seen from a node in this zone, in the byte
/// order of `address:port` and each once (S4.9 to S4.11).
///
/// The slices come in a fixed order. Where two describe one endpoint, the later one counts, but
/// one that terminates never replaces another: an address may already belong to a new pod while
/// the slice of the old one is still around.
pub(crate) fn gather<'a>(
    slices: impl Iterator<Item = &'a SliceContent>,
    port: &str,
    protocol: Protocol,
    zone: Option<&str>,
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for slice in slices {
        for found in slice.ports.iter().filter(|it| it.protocol == protocol && *it.name == *port) {
            candidates.extend(slice.endpoints(zone).map(|(address, flags)| {
                let is_local = flags.has(EndpointFlags::LOCAL);
                Candidate { endpoint: Endpoint { address, port: found.port, is_local }, flags }
            }));
        }
    }
    candidates.sort_by_cached_key(|candidate| DisplayOrder::of(&candidate.endpoint));
    candidates.dedup_by(|later, earlier| {
        let same = identity(&later.endpoint) == identity(&earlier.endpoint);
        if same && !later.flags.has(EndpointFlags::TERMINATING) {
            *earlier = *later;
        }
        same
    });
    candidates
}

/// What makes an endpoint of a port this endpoint and no other.
pub(crate) fn identity(endpoint: &Endpoint) -> (IpAddr, u16) {
    (endpoint.address, endpoint.port)
}

/// The text `address:port`, without an allocation for each endpoint.
#[derive(PartialEq, Eq)]
struct DisplayOrder {
    /// `[`, 45 characters of an IPv6 address, `]:` and five digits fit.
    text: [u8; 56],
}

impl DisplayOrder {
    fn of(endpoint: &Endpoint) -> Self {
        let mut order = Self { text: [0; 56] };
        let mut rest = &mut order.text[..];
        let written = match endpoint.address {
            IpAddr::V4(address) => write!(rest, "{address}:{}", endpoint.port),
            IpAddr::V6(address) => write!(rest, "[{address}]:{}", endpoint.port),
        };
        debug_assert!(written.is_ok(), "the longest address and port fit");
        order
    }
}

impl Ord for DisplayOrder {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl PartialOrd for DisplayOrder {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
