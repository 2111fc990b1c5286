//! Interface addresses, and a signal when they change.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};

use crate::netlink::{
    Attribute, Listener, Message, MessageBuffer, NetlinkError, Protocol, Socket, flags,
    retry_interrupted,
};

/// `RTM_NEWADDR` (`linux/rtnetlink.h`).
const RTM_NEWADDR: u16 = 20;
/// `RTM_GETADDR` (`linux/rtnetlink.h`).
const RTM_GETADDR: u16 = 22;
/// Size of `struct ifaddrmsg` (`linux/if_addr.h`).
const IFADDR_LEN: usize = 8;
/// `IFA_ADDRESS` (`linux/if_addr.h`): the address, or the peer of a point-to-point link.
const IFA_ADDRESS: u16 = 1;
/// `IFA_LOCAL` (`linux/if_addr.h`): our own address of a point-to-point link.
const IFA_LOCAL: u16 = 2;
/// `IFA_FLAGS` (`linux/if_addr.h`): flags that do not fit the header's byte.
const IFA_FLAGS: u16 = 8;
/// `RTNLGRP_IPV4_IFADDR` and `RTNLGRP_IPV6_IFADDR` (`linux/rtnetlink.h`).
const GROUPS: [u32; 2] = [5, 9];
/// Addresses rarely change, so a second try nearly always succeeds.
const ATTEMPTS: usize = 5;

/// How far an address is valid (`RT_SCOPE_*` in `linux/rtnetlink.h`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Scope {
    /// Everywhere.
    Global,
    /// Inside a site (old IPv6).
    Site,
    /// On the link.
    Link,
    /// On this host, such as loopback.
    Host,
    /// Nowhere.
    Nowhere,
    /// A number without a name.
    Other(u8),
}

impl Scope {
    const fn from_number(number: u8) -> Self {
        match number {
            0 => Self::Global,
            200 => Self::Site,
            253 => Self::Link,
            254 => Self::Host,
            255 => Self::Nowhere,
            other => Self::Other(other),
        }
    }
}

/// An address of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterfaceAddress {
    /// The address; on a point-to-point link our own end.
    pub address: IpAddr,
    /// Length of its network prefix.
    pub prefix_len: u8,
    /// Index of the interface.
    pub interface_index: u32,
    /// Name of the interface, unless it vanished meanwhile.
    pub interface: Option<String>,
    /// How far the address is valid.
    pub scope: Scope,
    /// `IFA_F_*` (`linux/if_addr.h`).
    pub flags: u32,
}

impl InterfaceAddress {
    /// `IFA_F_DADFAILED`: another host has the address, so it is not in use here.
    pub const fn is_duplicate(&self) -> bool {
        self.flags & 0x08 != 0
    }

    /// `IFA_F_DEPRECATED`: not for new connections.
    pub const fn is_deprecated(&self) -> bool {
        self.flags & 0x20 != 0
    }

    /// `IFA_F_TENTATIVE`: not usable until it is known to be unique.
    pub const fn is_tentative(&self) -> bool {
        self.flags & 0x40 != 0
    }
}

/// The addresses of all interfaces, of both families, ordered by interface and address.
pub fn list() -> Result<Vec<InterfaceAddress>, NetlinkError> {
    let mut socket = Socket::open(Protocol::ROUTE)?;
    let mut addresses = retry_interrupted(ATTEMPTS, || dump(&mut socket))?;
    let mut names: BTreeMap<u32, Option<String>> = BTreeMap::new();
    for address in &mut addresses {
        let index = address.interface_index;
        let name = names
            .entry(index)
            .or_insert_with(|| rustix::net::netdevice::index_to_name(&socket, index).ok());
        address.interface.clone_from(name);
    }
    addresses.sort_by_key(|address| (address.interface_index, address.address));
    Ok(addresses)
}

fn dump(socket: &mut Socket) -> Result<Vec<InterfaceAddress>, NetlinkError> {
    let mut request = MessageBuffer::new();
    request.begin(RTM_GETADDR, flags::REQUEST | flags::DUMP, socket.next_sequence());
    // AF_UNSPEC: all families in one go.
    request.put(&[0; IFADDR_LEN]);
    request.end();
    let mut addresses = Vec::new();
    socket.dump(&request, |message| addresses.extend(parse(message)))?;
    Ok(addresses)
}

fn parse(message: &Message<'_>) -> Option<InterfaceAddress> {
    if message.kind != RTM_NEWADDR {
        return None;
    }
    let [family, prefix_len, flags, scope, index @ ..] =
        message.payload.first_chunk::<IFADDR_LEN>()?;
    let family = i32::from(*family);
    let address_of = |attribute: &Attribute<'_>| match family {
        libc::AF_INET => attribute.ipv4().map(IpAddr::V4),
        libc::AF_INET6 => attribute.ipv6().map(IpAddr::V6),
        _ => None,
    };
    let (mut address, mut local, mut flags) = (None, None, u32::from(*flags));
    for attribute in message.attributes(IFADDR_LEN) {
        match attribute.kind {
            IFA_ADDRESS => address = address_of(&attribute),
            IFA_LOCAL => local = address_of(&attribute),
            IFA_FLAGS => flags = attribute.u32().unwrap_or(flags),
            _ => {}
        }
    }
    Some(InterfaceAddress {
        address: local.or(address)?,
        prefix_len: *prefix_len,
        interface_index: u32::from_ne_bytes(*index),
        interface: None,
        scope: Scope::from_number(*scope),
        flags,
    })
}

/// Says when interface addresses change.
///
/// It only says that something changed, so open it before the first [`list`], and list again on
/// each change. Bursts count once. It implements [`AsFd`] (readable when something changed).
#[derive(Debug)]
pub struct AddressMonitor {
    listener: Listener,
}

impl AddressMonitor {
    /// Starts listening in the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { listener: Listener::open(Protocol::ROUTE, &GROUPS)? })
    }

    /// Whether anything changed since the last call; does not wait.
    pub fn poll_changed(&mut self) -> Result<bool, NetlinkError> {
        self.listener.drain()
    }

    /// Turns it into a monitor that can be awaited. Call this inside a tokio runtime.
    #[cfg(feature = "tokio")]
    pub fn into_async(self) -> Result<AsyncAddressMonitor, NetlinkError> {
        Ok(AsyncAddressMonitor { listener: crate::netlink::AsyncListener::new(self.listener)? })
    }
}

impl AsFd for AddressMonitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// An [`AddressMonitor`] that waits without blocking the thread.
#[cfg(feature = "tokio")]
#[derive(Debug)]
pub struct AsyncAddressMonitor {
    listener: crate::netlink::AsyncListener,
}

#[cfg(feature = "tokio")]
impl AsyncAddressMonitor {
    /// Opens a monitor. Call this inside a tokio runtime.
    pub fn open() -> Result<Self, NetlinkError> {
        AddressMonitor::open()?.into_async()
    }

    /// Waits until an address changed, or until so many changed that the kernel lost count.
    ///
    /// Safe to cancel: a change is reported by the next call.
    pub async fn changed(&mut self) -> Result<(), NetlinkError> {
        self.listener.changed().await
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::Messages;
    use crate::netlink::codec::tests_support::bytes;

    /// Captured on Linux 6.18 (little endian) after `ip link set lo up`,
    /// `ip addr add 192.0.2.7/24 dev lo` and `ip addr add 2001:db8::7/64 dev lo nodad`.
    const CAPTURED: &str = "
        4c0000001400020001000000e23b0000020880fe01000000080001007f000001080002007f000001
        070003006c6f0000080008008000000014000600ffffffffffffffff3d9402003d940200
        4c0000001400020001000000e23b0000021880000100000008000100c000020708000200c0000207
        070003006c6f0000080008008000000014000600ffffffffffffffff3d9402003d940200
        480000001400020001000000e23b00000a408200010000001400010020010db80000000000000000
        0000000714000600ffffffffffffffff3d9402003d9402000800080082000000
        500000001400020001000000e23b00000a8080fe0100000014000100000000000000000000000000
        0000000114000600ffffffffffffffff3d9402003d940200080008008000000008000b0001000000
        140000000300020001000000e23b000000000000";

    #[test]
    #[cfg(target_endian = "little")]
    fn captured_addresses_are_read() {
        let bytes = bytes(CAPTURED);
        let seen: Vec<_> = Messages::new(&bytes)
            .filter_map(|message| parse(&message))
            .map(|a| (a.address.to_string(), a.prefix_len, a.interface_index, a.scope, a.flags))
            .collect();
        let expected = [
            ("127.0.0.1", 8, Scope::Host, 0x80),
            ("192.0.2.7", 24, Scope::Global, 0x80),
            ("2001:db8::7", 64, Scope::Global, 0x82),
            ("::1", 128, Scope::Host, 0x80),
        ];
        let expected =
            expected.map(|(address, len, scope, flags)| (address.to_owned(), len, 1, scope, flags));
        assert_eq!(seen, expected);
    }

    #[test]
    fn own_end_of_a_point_to_point_link_wins() {
        let mut buffer = MessageBuffer::new();
        buffer.begin(RTM_NEWADDR, 0, 1);
        buffer.put(&[2, 32, 0, 0, 0, 0, 0, 0]);
        buffer.attr_bytes(IFA_ADDRESS, &[10, 0, 0, 2]);
        buffer.attr_bytes(IFA_LOCAL, &[10, 0, 0, 1]);
        buffer.end();
        let message = Messages::new(buffer.finish().unwrap()).next().unwrap();
        assert_eq!(parse(&message).unwrap().address, IpAddr::from([10, 0, 0, 1]));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(payload: Vec<u8>) {
            parse(&Message { kind: RTM_NEWADDR, flags: 0, sequence: 0, port: 0, payload: &payload });
        }
    }
}
