//! Sets of addresses and ports over netlink (`linux/netfilter/ipset/ip_set.h`).
//!
//! Adding what is there and removing what is not are no errors, so a change can be repeated.

use std::net::IpAddr;

use node_sys::netlink::{
    Attributes, Message, MessageBuffer, NetlinkError, Protocol as Netlink, Socket, Subsystem,
    flags, retry_interrupted,
};
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::Protocol;

use crate::model::{Entry, ServerKey, SetName, SetType};

/// `IPSET_PROTOCOL_MIN`, which every kernel since 2.6.39 speaks.
const PROTOCOL: u8 = 6;

/// `IPSET_CMD_*`.
mod cmd {
    pub(super) const CREATE: u8 = 2;
    pub(super) const DESTROY: u8 = 3;
    pub(super) const LIST: u8 = 7;
    pub(super) const ADD: u8 = 9;
    pub(super) const DEL: u8 = 10;
}

/// `IPSET_ATTR_*` of a command.
mod attr {
    pub(super) const PROTOCOL: u16 = 1;
    pub(super) const SETNAME: u16 = 2;
    pub(super) const TYPENAME: u16 = 3;
    pub(super) const REVISION: u16 = 4;
    pub(super) const FAMILY: u16 = 5;
    pub(super) const DATA: u16 = 7;
    pub(super) const ADT: u16 = 8;
    pub(super) const LINENO: u16 = 9;
}

/// `IPSET_ATTR_*` of a set or an element.
mod data {
    pub(super) const IP: u16 = 1;
    pub(super) const PORT: u16 = 4;
    pub(super) const PORT_TO: u16 = 5;
    pub(super) const PROTO: u16 = 7;
    pub(super) const HASHSIZE: u16 = 18;
    pub(super) const MAXELEM: u16 = 19;
    pub(super) const IP2: u16 = 20;
    pub(super) const CIDR2: u16 = 21;
    pub(super) const IPADDR_V4: u16 = 1;
    pub(super) const IPADDR_V6: u16 = 2;
}

/// `NLA_F_NET_BYTEORDER`: ipset insists on it.
const BIG_ENDIAN: u16 = 1 << 14;
/// Elements that a set may hold; it takes memory only for those that it has.
const MOST_ELEMENTS: u32 = 1 << 22;
/// Elements of one message: more gain nothing.
const ELEMENTS_PER_MESSAGE: usize = 500;
const MAX_DUMPS: usize = 16;

/// A set as the kernel has it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedSet {
    /// Whether it has the type that it must have.
    pub(crate) is_ours: bool,
    pub(crate) entries: Vec<Entry>,
}

/// The sets of a family in a network namespace.
#[derive(Debug)]
pub(crate) struct Ipset {
    socket: Socket,
    family: IpFamily,
}

impl Ipset {
    pub(crate) fn open(family: IpFamily) -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Netlink::NETFILTER)?, family })
    }

    /// Makes a set unless there is one of this name and type.
    pub(crate) fn create(&mut self, set: SetName) -> Result<(), NetlinkError> {
        let mut request = MessageBuffer::new();
        write_create(&mut request, self.socket.next_sequence(), self.family, set);
        self.socket.request(&request)
    }

    /// Removes a set with all its elements; rules must not refer to it any more.
    pub(crate) fn destroy(&mut self, set: SetName) -> Result<(), NetlinkError> {
        let mut request = MessageBuffer::new();
        begin(&mut request, cmd::DESTROY, flags::ACK, self.socket.next_sequence(), self.family);
        request.attr_str(attr::SETNAME, &set.of(self.family));
        request.end();
        match self.socket.request(&request) {
            Err(NetlinkError::Kernel(error)) if error.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// Adds elements.
    pub(crate) fn add(&mut self, set: SetName, entries: &[Entry]) -> Result<(), NetlinkError> {
        self.change(cmd::ADD, set, entries)
    }

    /// Removes elements.
    pub(crate) fn remove(&mut self, set: SetName, entries: &[Entry]) -> Result<(), NetlinkError> {
        self.change(cmd::DEL, set, entries)
    }

    fn change(&mut self, command: u8, set: SetName, entries: &[Entry]) -> Result<(), NetlinkError> {
        let name = set.of(self.family);
        for chunk in entries.chunks(ELEMENTS_PER_MESSAGE) {
            let mut request = MessageBuffer::new();
            let sequence = self.socket.next_sequence();
            write_change(&mut request, sequence, self.family, command, &name, chunk);
            self.socket.request(&request)?;
        }
        Ok(())
    }

    /// Lists a set; `None` if it does not exist.
    pub(crate) fn list(&mut self, set: SetName) -> Result<Option<ListedSet>, NetlinkError> {
        let family = self.family;
        let listed = retry_interrupted(MAX_DUMPS, || {
            let mut request = MessageBuffer::new();
            begin(&mut request, cmd::LIST, flags::DUMP, self.socket.next_sequence(), family);
            request.attr_str(attr::SETNAME, &set.of(family));
            request.end();
            let mut listed = ListedSet::default();
            self.socket.dump(&request, |message| read_list(message, family, set, &mut listed))?;
            Ok(listed)
        });
        match listed {
            Ok(listed) => Ok(Some(listed)),
            Err(NetlinkError::Kernel(error)) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }
}

// === writing ===

fn begin(buffer: &mut MessageBuffer, command: u8, extra: u16, sequence: u32, family: IpFamily) {
    let kind = Subsystem::IPSET.message_type(command);
    buffer.begin_netfilter(kind, flags::REQUEST | extra, sequence, nfproto(family));
    buffer.attr_u8(attr::PROTOCOL, PROTOCOL);
}

/// `NFPROTO_IPV4`, `NFPROTO_IPV6`.
fn nfproto(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => 2,
        IpFamily::V6 => 10,
    }
}

/// Name of the type, and the oldest revision that can do what is needed (SCTP ports).
pub(crate) fn set_type(set: SetName) -> (&'static str, u8) {
    match set.kind() {
        SetType::Ip => ("hash:ip", 0),
        SetType::IpPort => ("hash:ip,port", 1),
        SetType::IpPortIp => ("hash:ip,port,ip", 1),
        SetType::IpPortNet => ("hash:ip,port,net", 2),
        SetType::Port => ("bitmap:port", 0),
    }
}

fn write_create(buffer: &mut MessageBuffer, sequence: u32, family: IpFamily, set: SetName) {
    let (name, revision) = set_type(set);
    begin(buffer, cmd::CREATE, flags::ACK, sequence, family);
    buffer.attr_str(attr::SETNAME, &set.of(family));
    buffer.attr_str(attr::TYPENAME, name);
    buffer.attr_u8(attr::REVISION, revision);
    let of_ports = set.kind() == SetType::Port;
    // Sets of ports alone have no family (`NFPROTO_UNSPEC`).
    buffer.attr_u8(attr::FAMILY, if of_ports { 0 } else { nfproto(family) });
    buffer.nested(attr::DATA, |nest| {
        if of_ports {
            nest.attr_u16_be(data::PORT | BIG_ENDIAN, 0);
            nest.attr_u16_be(data::PORT_TO | BIG_ENDIAN, u16::MAX);
        } else {
            nest.attr_u32_be(data::HASHSIZE | BIG_ENDIAN, 1024);
            nest.attr_u32_be(data::MAXELEM | BIG_ENDIAN, MOST_ELEMENTS);
        }
    });
    buffer.end();
}

fn write_change(
    buffer: &mut MessageBuffer,
    sequence: u32,
    family: IpFamily,
    command: u8,
    name: &str,
    entries: &[Entry],
) {
    begin(buffer, command, flags::ACK, sequence, family);
    buffer.attr_str(attr::SETNAME, name);
    // With several elements the kernel wants a place to say which of them was bad.
    buffer.attr_u32_be(attr::LINENO | BIG_ENDIAN, 0);
    buffer.nested(attr::ADT, |list| {
        for (line, entry) in (1..).zip(entries) {
            list.nested(attr::DATA, |nest| {
                write_entry(nest, entry);
                nest.attr_u32_be(attr::LINENO | BIG_ENDIAN, line);
            });
        }
    });
    buffer.end();
}

fn write_entry(nest: &mut MessageBuffer, entry: &Entry) {
    match entry {
        Entry::Ip(address) => write_address(nest, data::IP, *address),
        Entry::Port(port) => nest.attr_u16_be(data::PORT | BIG_ENDIAN, *port),
        Entry::IpPort(server) => write_ip_port(nest, server),
        Entry::IpPortNet(server, range) => {
            write_ip_port(nest, server);
            write_address(nest, data::IP2, range.address());
            if *range != Cidr::host(range.address()) {
                nest.attr_u8(data::CIDR2, range.prefix_len());
            }
        }
    }
}

fn write_ip_port(nest: &mut MessageBuffer, server: &ServerKey) {
    write_address(nest, data::IP, server.address);
    nest.attr_u16_be(data::PORT | BIG_ENDIAN, server.port);
    nest.attr_u8(data::PROTO, server.protocol.number());
}

fn write_address(nest: &mut MessageBuffer, kind: u16, address: IpAddr) {
    nest.nested(kind, |inner| match address {
        IpAddr::V4(address) => inner.attr_bytes(data::IPADDR_V4 | BIG_ENDIAN, &address.octets()),
        IpAddr::V6(address) => inner.attr_bytes(data::IPADDR_V6 | BIG_ENDIAN, &address.octets()),
    });
}

// === reading ===

fn read_list(message: &Message<'_>, family: IpFamily, set: SetName, listed: &mut ListedSet) {
    let attributes = message.netfilter_attributes();
    if let Some(name) = attributes.get(attr::TYPENAME) {
        let of_family = attributes.get(attr::FAMILY).and_then(|it| it.u8());
        let is_family = set.kind() == SetType::Port || of_family == Some(nfproto(family));
        listed.is_ours = name.str() == Some(set_type(set).0) && is_family;
    }
    let Some(list) = attributes.get(attr::ADT) else { return };
    let elements = list.nested().filter(|it| it.kind == attr::DATA);
    listed.entries.extend(elements.filter_map(|it| read_entry(&it.nested(), set)));
}

fn read_entry(attributes: &Attributes<'_>, set: SetName) -> Option<Entry> {
    let address = |kind| {
        let nest = attributes.get(kind)?.nested();
        let v4 = nest.get(data::IPADDR_V4).and_then(|it| it.ipv4()).map(IpAddr::V4);
        v4.or_else(|| nest.get(data::IPADDR_V6).and_then(|it| it.ipv6()).map(IpAddr::V6))
    };
    let port = || attributes.get(data::PORT)?.u16_be();
    let ip_port = || {
        let protocol = attributes.get(data::PROTO)?.u8()?;
        Some(ServerKey {
            address: address(data::IP)?,
            port: port()?,
            protocol: Protocol::from_number(protocol)?,
        })
    };
    Some(match set.kind() {
        SetType::Ip => Entry::Ip(address(data::IP)?),
        SetType::Port => Entry::Port(port()?),
        SetType::IpPort => Entry::IpPort(ip_port()?),
        SetType::IpPortIp => Entry::IpPortNet(ip_port()?, Cidr::host(address(data::IP2)?)),
        SetType::IpPortNet => {
            let address = address(data::IP2)?;
            let length = attributes.get(data::CIDR2).and_then(|it| it.u8());
            let length = length.unwrap_or_else(|| IpFamily::of(address).bits());
            Entry::IpPortNet(ip_port()?, Cidr::new(address, length)?)
        }
    })
}

#[cfg(test)]
mod tests;
