//! The kernel objects of this backend.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::Protocol;
use proxy_core::scheduler::Scheduler;

/// Identifies a kernel object. The order is the order of dependency: what leads packets to a
/// virtual server comes after everything that the virtual server needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// A set of addresses or ports.
    Set(SetName),
    /// The fixed iptables rules, which look into the sets.
    Rules,
    /// An element of a set.
    Entry(SetName, Entry),
    /// A virtual server.
    Server(ServerKey),
    /// A real server of a virtual server.
    Real(ServerKey, IpAddr, u16),
    /// The element of the set `live` that opens a virtual server for new connections.
    Live(ServerKey),
    /// An address on the device.
    Bound(IpAddr),
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(set) => write!(f, "set {set}"),
            Self::Rules => f.write_str("iptables rules"),
            Self::Entry(set, entry) => write!(f, "entry {entry} of set {set}"),
            Self::Server(server) => write!(f, "virtual server {server}"),
            Self::Real(server, address, port) => {
                write!(f, "real server {address} port {port} of virtual server {server}")
            }
            Self::Live(server) => write!(f, "entry {server} of set {}", SetName::Live),
            Self::Bound(address) => write!(f, "address {address}"),
        }
    }
}

/// Contents of a kernel object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rule {
    /// The key says it all.
    Present,
    /// What is at this key cannot be ours as it is, such as a set of another type.
    Foreign,
    /// The fixed rules, as iptables-save shows them.
    Rules(Arc<[String]>),
    /// A virtual server.
    Server(ServerSpec),
    /// A real server.
    Real(RealSpec),
}

/// What a virtual server listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerKey {
    /// The address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { address, port, protocol } = self;
        match address {
            IpAddr::V4(address) => write!(f, "{address}:{port}/{protocol}"),
            IpAddr::V6(address) => write!(f, "[{address}]:{port}/{protocol}"),
        }
    }
}

/// How a virtual server chooses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpec {
    /// The scheduler; a name that is none of ours only ever comes from the kernel.
    pub scheduler: Arc<str>,
    /// `IP_VS_SVC_F_*` (`linux/ip_vs.h`), without the one that the kernel sets itself.
    pub flags: u32,
    /// Seconds for which a client stays with its real server.
    pub timeout: u32,
}

impl ServerSpec {
    /// Flag: clients stay with their real servers (`IP_VS_SVC_F_PERSISTENT`).
    pub const PERSISTENT: u32 = 0x0001;
    /// Flag: Maglev hashes the port as well (`IP_VS_SVC_F_SCHED_MH_PORT`), as kube-proxy has it:
    /// many clients may stand behind one address.
    const HASH_PORT: u32 = 0x0010;
    /// Set by the kernel on every virtual server (`IP_VS_SVC_F_HASHED`).
    pub(crate) const HASHED: u32 = 0x0002;

    /// With this scheduler; `affinity` in seconds.
    pub(crate) fn new(scheduler: Scheduler, affinity: Option<u32>) -> Self {
        let flags = if scheduler == Scheduler::Mh { Self::HASH_PORT } else { 0 };
        let persistent = affinity.map_or(0, |_| Self::PERSISTENT);
        Self {
            scheduler: scheduler.as_str().into(),
            flags: flags | persistent,
            timeout: affinity.unwrap_or(0),
        }
    }
}

/// How a real server is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RealSpec {
    /// Its share; with 0 it gets no new connections.
    pub weight: u32,
    /// Forwarding method (`IP_VS_CONN_F_FWD_MASK`); 0 is masquerading, that is NAT.
    pub method: u32,
}

impl RealSpec {
    /// A server like all others.
    pub const IN_USE: Self = Self { weight: 1, method: 0 };
    /// One that gets no new connections.
    pub(crate) const DRAINING: Self = Self { weight: 0, method: 0 };
}

/// The sets. Each table has its own, named after the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetName {
    /// Virtual servers that are ours, also those that only drain.
    Servers,
    /// Virtual servers that take new connections.
    Live,
    /// Addresses on the device.
    Addresses,
    /// Endpoints of this node as they meet themselves: `endpoint, port, endpoint`.
    Hairpin,
    /// Frontends that only some sources may use.
    Ranges,
    /// The sources that may: `address, port, range`.
    Allowed,
    /// Frontends that answer nobody.
    Drop,
    /// Frontends that answer nobody outside.
    DropOutside,
    /// Frontends that are refused.
    Reject,
    /// Frontends to which pods are masqueraded.
    MasqueradePod,
    /// Frontends to which the host is masqueraded.
    MasqueradeHost,
    /// Frontends to which everyone else is masqueraded.
    MasqueradeOutside,
    /// Health check ports, which the host's firewall shall not close.
    HealthPorts,
}

/// Shape of a set's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetType {
    Ip,
    IpPort,
    IpPortIp,
    IpPortNet,
    Port,
}

impl SetName {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Servers,
        Self::Live,
        Self::Addresses,
        Self::Hairpin,
        Self::Ranges,
        Self::Allowed,
        Self::Drop,
        Self::DropOutside,
        Self::Reject,
        Self::MasqueradePod,
        Self::MasqueradeHost,
        Self::MasqueradeOutside,
        Self::HealthPorts,
    ];

    /// Its name without the family.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Servers => "servers",
            Self::Live => "live",
            Self::Addresses => "addresses",
            Self::Hairpin => "hairpin",
            Self::Ranges => "ranges",
            Self::Allowed => "allowed",
            Self::Drop => "drop",
            Self::DropOutside => "drop-outside",
            Self::Reject => "reject",
            Self::MasqueradePod => "masq-pod",
            Self::MasqueradeHost => "masq-host",
            Self::MasqueradeOutside => "masq-outside",
            Self::HealthPorts => "health-ports",
        }
    }

    /// Its name in the kernel, such as `proxyd4-live`.
    pub fn of(self, family: IpFamily) -> String {
        let digit = match family {
            IpFamily::V4 => '4',
            IpFamily::V6 => '6',
        };
        format!("proxyd{digit}-{self}")
    }

    pub(crate) fn kind(self) -> SetType {
        match self {
            Self::Addresses => SetType::Ip,
            Self::Hairpin => SetType::IpPortIp,
            Self::Allowed => SetType::IpPortNet,
            Self::HealthPorts => SetType::Port,
            _ => SetType::IpPort,
        }
    }
}

impl fmt::Display for SetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An element of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Entry {
    /// An address.
    Ip(IpAddr),
    /// An address and port.
    IpPort(ServerKey),
    /// An address and port, and the range or address of who talks to it.
    IpPortNet(ServerKey, Cidr),
    /// A port.
    Port(u16),
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => write!(f, "{address}"),
            Self::IpPort(server) => write!(f, "{server}"),
            Self::IpPortNet(server, range) => write!(f, "{server} from {range}"),
            Self::Port(port) => write!(f, "{port}"),
        }
    }
}
