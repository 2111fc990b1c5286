//! The world of a test: a node, the pods on it, and everything outside.
//!
//! ```text
//!   netns pods                netns node                       netns outside
//!  ┌────────────────┐        ┌──────────────────────┐         ┌─────────────────────────────┐
//!  │ every pod of   │        │ node-a               │         │ other nodes, their pods,    │
//!  │ node-a         │  veth  │ 192.168.0.2          │  veth   │ clients, and the owner of   │
//!  │ 10.180.0.0/24  │ eth0 ══ vpods          eth0 ══ eth0 ══ │ every address nobody else   │
//!  │                │        │ pod range  → vpods   │         │ has                         │
//!  │ out: → eth0    │        │ all else   → eth0    │         │ out: → eth0                 │
//!  │ in:  all local │        │ (the program tested) │         │ in:  all local              │
//!  └────────────────┘        └──────────────────────┘         └─────────────────────────────┘
//! ```
//!
//! The two outer namespaces have no addresses. One routing rule decides what is at home there:
//! whatever *arrives* on `eth0` is local, whatever its destination, and whatever *starts* there
//! leaves by `eth0`. So one server answers under any address, a client can bind any source, and the
//! same service address can be dialled from `outside` and, when the node lets the packet pass
//! untouched, be owned by `outside` as well. Everything crosses the node.
//!
//! Both ends of a cable have one MAC address and no ARP or neighbour discovery: every address is at
//! the other end. That spares neighbour entries for addresses that exist by routing only, and all
//! waiting for duplicate address detection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;

use crate::dial::{self, Origin, Outcome};
use crate::echo::{Listen, Responder};
use crate::netns::Netns;
use crate::target::Target;

/// The node's IPv4 address.
pub const NODE_V4: Ipv4Addr = Ipv4Addr::new(192, 168, 0, 2);
/// The node's IPv6 address.
pub const NODE_V6: Ipv6Addr = Ipv6Addr::new(0xfd00, 0x192, 0x168, 0, 0, 0, 0, 2);
/// The node's name.
pub const NODE_NAME: &str = "node-a";

/// How long a try waits for an answer: one retransmission of a TCP SYN (after 1 s) fits.
///
/// A refusal by ICMPv6 is noticed by a TCP client only with that retransmission.
pub const PATIENCE: Duration = Duration::from_millis(1300);

/// IP families that a world has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Families {
    /// IPv4 alone.
    Ipv4,
    /// IPv6 alone.
    Ipv6,
    /// Both.
    Dual,
}

impl Families {
    /// Whether IPv4 is among them.
    pub fn has_v4(self) -> bool {
        self != Self::Ipv6
    }

    /// Whether IPv6 is among them.
    pub fn has_v6(self) -> bool {
        self != Self::Ipv4
    }
}

/// Where a connection starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// A pod of the node.
    LocalPod,
    /// The node's own host network.
    Node,
    /// A client outside the cluster.
    Outside,
    /// Another node's host network.
    RemoteNode,
    /// A pod of another node.
    RemotePod,
}

impl Place {
    /// The source address used unless a test names one; on the node, routing chooses.
    pub fn default_source(self, destination: IpAddr) -> Option<IpAddr> {
        let (v4, v6) = match self {
            Self::Node => return None,
            Self::LocalPod => ([10, 180, 0, 5], [0xfd00, 0x10, 0x180, 0, 0, 0, 0, 5]),
            Self::RemotePod => ([10, 180, 1, 5], [0xfd00, 0x10, 0x180, 1, 0, 0, 0, 5]),
            Self::RemoteNode => ([192, 168, 0, 3], [0xfd00, 0x192, 0x168, 0, 0, 0, 0, 3]),
            Self::Outside => ([203, 0, 113, 55], [0x2001, 0xdb8, 0xcafe, 0, 0, 0, 0, 0x55]),
        };
        Some(if destination.is_ipv4() { v4.into() } else { v6.into() })
    }
}

/// Three namespaces wired together, and the servers in them.
#[derive(Debug)]
pub struct World {
    node: Netns,
    pods: Netns,
    outside: Netns,
    addresses: Vec<IpAddr>,
    responders: Vec<Responder>,
}

impl World {
    /// A world whose node has its usual addresses.
    pub fn new(families: Families) -> Result<Self> {
        Self::with_extra_addresses(families, &[])
    }

    /// A world whose node has more addresses (`ADDRESS/LENGTH`) on `eth0`.
    pub fn with_extra_addresses(families: Families, extra: &[String]) -> Result<Self> {
        let (node, pods, outside) = (Netns::new()?, Netns::new()?, Netns::new()?);
        let mut addresses = node_addresses(families);
        for address in extra {
            let (address, _) = address.split_once('/').context("extra address without length")?;
            addresses.push(address.parse().with_context(|| format!("address {address}"))?);
        }
        for netns in [&node, &pods, &outside] {
            netns.sysctl(QUIET)?;
        }
        node.sysctl(ROUTER)?;
        node.ip(&format!("{}{}", cable("vpods", 1, &pods), cable("eth0", 2, &outside)))?;
        for netns in [&pods, &outside] {
            netns.ip(END)?;
            netns.ip6(END)?;
        }
        node.ip(&node_batch(families, extra))?;
        Ok(Self { node, pods, outside, addresses, responders: Vec::new() })
    }

    /// The node's namespace, where the program under test runs.
    pub fn node(&self) -> &Netns {
        &self.node
    }

    /// The namespace in which connections from `place` start.
    pub fn netns(&self, place: Place) -> &Netns {
        match place {
            Place::LocalPod => &self.pods,
            Place::Node => &self.node,
            Place::Outside | Place::RemoteNode | Place::RemotePod => &self.outside,
        }
    }

    /// The node's addresses, without loopback.
    pub fn node_addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Whether packets to `address` end on the node itself when nothing translates them.
    pub fn is_on_node(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.addresses.contains(&address)
    }

    /// Serves ports under every address of pods and of the outside.
    pub fn serve(&mut self, listens: &[Listen]) -> Result<()> {
        let pods = Responder::start(&self.pods, listens, true).context("servers of pods")?;
        let outside = Responder::start(&self.outside, listens, true).context("outside servers")?;
        self.responders.extend([pods, outside]);
        Ok(())
    }

    /// Serves ports on the node itself.
    pub fn serve_on_node(&mut self, listens: &[Listen]) -> Result<()> {
        self.responders.push(Responder::start(&self.node, listens, false).context("node servers")?);
        Ok(())
    }

    /// Lets the outside refuse TCP connections to service addresses at once.
    ///
    /// Whatever gets there was not translated. Without this it would wait for its time-out, and
    /// the end of an outage could not be seen to the millisecond.
    pub fn refuse_untranslated(&self) -> Result<()> {
        self.outside.nft(REFUSE_UNTRANSLATED)
    }

    /// How a connection from `place` to `destination` starts, `source` or the default one.
    pub fn origin(&self, place: Place, source: Option<IpAddr>, destination: IpAddr) -> Origin {
        Origin {
            source: source.or_else(|| place.default_source(destination)),
            port: None,
            transparent: place != Place::Node,
        }
    }

    /// Runs `work` in the namespace of a place.
    pub fn at<T: Send>(&self, place: Place, work: impl FnOnce() -> T + Send) -> T {
        self.netns(place).run(work)
    }

    /// One try from a place's default source.
    pub fn dial(&self, place: Place, target: &Target) -> Outcome {
        let origin = self.origin(place, None, target.ip());
        self.at(place, || dial::dial(&origin, target, PATIENCE))
    }
}

/// The addresses that the Node object lists.
pub fn node_addresses(families: Families) -> Vec<IpAddr> {
    let v4 = families.has_v4().then_some(IpAddr::V4(NODE_V4));
    v4.into_iter().chain(families.has_v6().then_some(IpAddr::V6(NODE_V6))).collect()
}

/// Settings of every namespace: no filtering by source, no redirects, no limit on ICMP errors (a
/// second refusal within a second would look like a drop), and binding of foreign addresses.
const QUIET: &[(&str, &str)] = &[
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv4/conf/all/send_redirects", "0"),
    ("ipv4/conf/default/send_redirects", "0"),
    ("ipv4/conf/all/accept_redirects", "0"),
    ("ipv4/conf/default/accept_redirects", "0"),
    ("ipv4/icmp_ratemask", "0"),
    ("ipv6/conf/all/accept_redirects", "0"),
    ("ipv6/conf/default/accept_redirects", "0"),
    ("ipv6/conf/all/accept_ra", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/icmp/ratelimit", "0"),
    // SCTP has no sockets that are transparent.
    ("ipv4/ip_nonlocal_bind", "1"),
    ("ipv6/ip_nonlocal_bind", "1"),
];

/// Rules of the outside; the ranges are those of [`crate::builders::SERVICE_RANGES`].
const REFUSE_UNTRANSLATED: &str = "\
table inet untranslated {
    chain input {
        type filter hook input priority 0
        ip daddr 172.30.0.0/16 reject with tcp reset
        ip6 daddr fd00:172:30::/108 reject with tcp reset
    }
}
";

/// Settings of the node alone.
const ROUTER: &[(&str, &str)] = &[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];

/// The far end of a cable, for either family: what arrives is local, what starts leaves.
const END: &str = "\
link set lo up
link set eth0 arp off up
rule add iif eth0 lookup 100 priority 100
route add local default dev lo table 100
route add default dev eth0
";

fn cable(name: &str, number: u8, far: &Netns) -> String {
    let mac = format!("02:00:00:00:00:{number:02}");
    let far = far.path();
    format!(
        "link add {name} address {mac} type veth peer name eth0 address {mac} netns {far}\n\
         link set {name} arp off\n"
    )
}

fn node_batch(families: Families, extra: &[String]) -> String {
    let mut lines = vec!["link set lo up".to_owned()];
    lines.extend(["vpods", "eth0"].map(|name| format!("link set {name} up")));
    let address = |address: &str| {
        let nodad = if address.contains(':') { " nodad" } else { "" };
        format!("address add {address} dev eth0{nodad}")
    };
    if families.has_v4() {
        lines.push(address(&format!("{NODE_V4}/24")));
        lines.push(format!("route add 10.180.0.0/24 dev vpods src {NODE_V4}"));
        lines.push(format!("route add 0.0.0.0/0 dev eth0 src {NODE_V4}"));
    }
    if families.has_v6() {
        lines.push(address(&format!("{NODE_V6}/64")));
        lines.push(format!("route add fd00:10:180::/64 dev vpods src {NODE_V6}"));
        lines.push(format!("route add ::/0 dev eth0 src {NODE_V6}"));
    }
    lines.extend(extra.iter().map(|extra| address(extra)));
    lines.join("\n") + "\n"
}
