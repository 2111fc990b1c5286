//! The kernel objects of one table, as keys and contents.

use std::cmp::Ordering;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use proxy_core::address::Cidr;
use proxy_core::names::Protocol;
use proxy_core::resolved::FrontendKey;

use crate::expr::{Expr, Verdict};
use crate::layout;

/// Name of a chain. Names order by what chains refer to: a chain goes only to smaller ones.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ChainName(pub Arc<str>);

impl PartialOrd for ChainName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ChainName {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |name: &Self| layout::chain_rank(&name.0);
        key(self).cmp(&key(other)).then_with(|| self.0.cmp(&other.0))
    }
}

/// Identifies a kernel object. The order is the order of dependency.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// The table itself.
    Table,
    /// A set or map.
    Set(Arc<str>),
    /// Element of a service port's own endpoint map: a numbered endpoint. They come before the
    /// chain that draws one of them, which is changed when there are more of them than before.
    PoolEndpoint(Arc<str>, Protocol, u32),
    /// A chain with its rules.
    Chain(ChainName),
    /// A client that a service port with affinity remembers, though its endpoint is gone. It is
    /// only ever observed, never wanted.
    StaleClient {
        /// Name of the map that remembers it.
        map: Arc<str>,
        /// The client.
        client: IpAddr,
    },
    /// Element of `cluster-ips`.
    ClusterIp(IpAddr),
    /// Element of `nodeport-ips`.
    NodePortIp(IpAddr),
    /// Element of `hairpin-connections`: an endpoint on this node.
    Hairpin(IpAddr, Protocol, u16),
    /// Element of `affinity-endpoints`: an endpoint of a service port with affinity.
    AffinityEndpoint(IpAddr, Protocol, u16),
    /// Element of `service-endpoints` or `nodeport-endpoints`: a numbered endpoint of a frontend.
    Endpoint(FrontendKey, u32),
    /// Element of `source-ranges`: sources that a frontend admits.
    SourceRange(Box<(FrontendKey, Cidr)>),
    /// Element of `affinity-services` or `affinity-nodeports`: where to remember clients.
    AffinityFrontend(FrontendKey),
    /// Element of `firewall-ips`: a frontend that admits only some sources.
    Firewall(FrontendKey),
    /// Element of `no-endpoint-services` or `no-endpoint-nodeports`.
    Refusal(FrontendKey),
    /// Element of `service-ips` or `service-nodeports`.
    Frontend(FrontendKey),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table => write!(f, "table {}", layout::TABLE),
            Self::Set(name) => write!(f, "set {name}"),
            Self::Chain(name) => write!(f, "chain {}", name.0),
            Self::StaleClient { map, client } => write!(f, "client {client} in map {map}"),
            Self::ClusterIp(address) => write!(f, "{address} in set cluster-ips"),
            Self::NodePortIp(address) => write!(f, "{address} in set nodeport-ips"),
            Self::Hairpin(address, protocol, port) => {
                write!(f, "{address} {port}/{protocol} in set hairpin-connections")
            }
            Self::AffinityEndpoint(address, protocol, port) => {
                write!(f, "{address} {port}/{protocol} in set affinity-endpoints")
            }
            Self::Endpoint(frontend, number) => write!(f, "endpoint {number} of {frontend}"),
            Self::PoolEndpoint(map, _, number) => write!(f, "endpoint {number} in map {map}"),
            Self::SourceRange(range) => write!(f, "source range {} of {}", range.1, range.0),
            Self::AffinityFrontend(frontend) => write!(f, "affinity of {frontend}"),
            Self::Firewall(frontend) => write!(f, "source filter of {frontend}"),
            Self::Refusal(frontend) => write!(f, "refusal of {frontend}"),
            Self::Frontend(frontend) => write!(f, "frontend {frontend}"),
        }
    }
}

/// Contents of a kernel object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The table: in force, or (observed) switched off by somebody.
    Table {
        /// Whether the table is `dormant`.
        dormant: bool,
    },
    /// A set or map.
    Set(Arc<SetSpec>),
    /// A chain with its rules.
    Chain(Arc<ChainSpec>),
    /// An element without data.
    Member,
    /// An element whose data is where a connection goes.
    Endpoint(IpAddr, u16),
    /// An element whose data is a verdict.
    Verdict(Arc<Action>),
}

/// Data of a verdict map's element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Action {
    /// The verdict.
    pub verdict: Verdict,
    /// For people: which service port.
    pub comment: Arc<str>,
}

/// What a set maps its keys to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetData {
    /// Nothing: it is a set.
    None,
    /// A verdict.
    Verdict,
    /// An address and a port.
    Endpoint,
}

/// One part of a set's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyPart {
    /// An address of the table's family.
    Address,
    /// A protocol number.
    Protocol,
    /// A port.
    Port,
    /// A number in host byte order; shown as a mark, the only such type every tool can print.
    Number,
}

/// The make of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetSpec {
    /// The parts of its key.
    pub key: Vec<KeyPart>,
    /// What keys map to.
    pub data: SetData,
    /// Whether elements are ranges.
    pub interval: bool,
    /// Whether packets add elements, which time out; and how many at the most.
    pub dynamic: Option<u32>,
}

/// Where a base chain is called, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Base {
    /// `nat` or `filter`.
    pub chain_type: ChainType,
    /// The hook.
    pub hook: Hook,
    /// Smaller is earlier.
    pub priority: i32,
}

/// Type of a base chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainType {
    /// Sees every packet.
    Filter,
    /// Sees the first packet of a connection and may translate it.
    Nat,
    /// Observed only: a type that this program never writes.
    Other,
}

/// Netfilter hook, with its number (`enum nf_inet_hooks`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Before routing.
    Prerouting = 0,
    /// On the way to a process of this node.
    Input = 1,
    /// On the way through.
    Forward = 2,
    /// On the way from a process of this node.
    Output = 3,
    /// After routing.
    Postrouting = 4,
}

impl Hook {
    pub(crate) const ALL: [Self; 5] =
        [Self::Prerouting, Self::Input, Self::Forward, Self::Output, Self::Postrouting];

    pub(crate) fn number(self) -> u32 {
        match self {
            Self::Prerouting => 0,
            Self::Input => 1,
            Self::Forward => 2,
            Self::Output => 3,
            Self::Postrouting => 4,
        }
    }
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChainSpec {
    /// Where the kernel calls it; `None` for a chain that only other chains call.
    pub base: Option<Base>,
    /// Its rules.
    pub rules: Vec<RuleSpec>,
}

/// A rule of a chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// Its steps.
    pub exprs: Arc<[Expr]>,
    /// For people; empty for none.
    pub comment: &'static str,
}
