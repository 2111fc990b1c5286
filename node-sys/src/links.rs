//! Links without a device behind them, and the addresses on them.

use std::net::IpAddr;

use crate::netlink::{KernelError, MessageBuffer, NetlinkError, Protocol, Socket, flags};

/// `RTM_NEWLINK`, `RTM_DELLINK`, `RTM_NEWADDR`, `RTM_DELADDR` (`linux/rtnetlink.h`).
const RTM_NEWLINK: u16 = 16;
const RTM_DELLINK: u16 = 17;
const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
/// Size of `struct ifinfomsg` (`linux/rtnetlink.h`).
const IFINFO_LEN: usize = 16;
/// `IFLA_*` and `IFLA_INFO_KIND` (`linux/if_link.h`).
const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
/// `IFA_*` (`linux/if_addr.h`).
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_CACHEINFO: u16 = 6;
/// `IFA_F_NODAD` (`linux/if_addr.h`): nobody else is asked whether the address is free.
const IFA_F_NODAD: u8 = 0x02;
/// `RT_SCOPE_HOST` (`linux/rtnetlink.h`).
const SCOPE_HOST: u8 = 254;
/// Requests of one send: more gain nothing, and all results must fit the receive buffer.
const REQUESTS_PER_SEND: usize = 256;

/// Makes links and changes their addresses, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct LinkEditor {
    socket: Socket,
}

/// A change of an address that the kernel refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedAddress {
    /// The address.
    pub address: IpAddr,
    /// The kernel's reason.
    pub error: KernelError,
}

impl LinkEditor {
    /// Opens a socket to the kernel.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: Socket::open(Protocol::ROUTE)? })
    }

    /// The index of a link, if there is one of this name.
    pub fn index(&self, name: &str) -> Option<u32> {
        rustix::net::netdevice::name_to_index(&self.socket, name).ok()
    }

    /// Makes a dummy link, which stays down, unless there is a link of this name.
    pub fn add_dummy(&mut self, name: &str) -> Result<(), NetlinkError> {
        let mut request = MessageBuffer::new();
        let kind = flags::REQUEST | flags::ACK | flags::CREATE | flags::EXCLUSIVE;
        request.begin(RTM_NEWLINK, kind, self.socket.next_sequence());
        request.put(&[0; IFINFO_LEN]);
        request.attr_str(IFLA_IFNAME, name);
        request.nested(IFLA_LINKINFO, |info| info.attr_str(IFLA_INFO_KIND, "dummy"));
        request.end();
        match self.socket.request(&request) {
            Err(NetlinkError::Kernel(error)) if error.is_exists() => Ok(()),
            result => result,
        }
    }

    /// Removes a link with its addresses; one that does not exist is no error.
    pub fn delete(&mut self, name: &str) -> Result<(), NetlinkError> {
        let mut request = MessageBuffer::new();
        request.begin(RTM_DELLINK, flags::REQUEST | flags::ACK, self.socket.next_sequence());
        request.put(&[0; IFINFO_LEN]);
        request.attr_str(IFLA_IFNAME, name);
        request.end();
        match self.socket.request(&request) {
            Err(NetlinkError::Kernel(error)) if error.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// Gives a link addresses for this host's own use: they are local, but nothing is sent from
    /// them unless a program asks for it. One that is there is no error.
    pub fn add_addresses(
        &mut self,
        link: u32,
        addresses: &[IpAddr],
    ) -> Result<Vec<RefusedAddress>, NetlinkError> {
        let kind = flags::CREATE | flags::EXCLUSIVE;
        let mut refused = self.change(RTM_NEWADDR, kind, link, addresses)?;
        refused.retain(|refused| !refused.error.is_exists());
        Ok(refused)
    }

    /// Takes addresses off a link. One that is not there is no error.
    pub fn remove_addresses(
        &mut self,
        link: u32,
        addresses: &[IpAddr],
    ) -> Result<Vec<RefusedAddress>, NetlinkError> {
        let mut refused = self.change(RTM_DELADDR, 0, link, addresses)?;
        refused.retain(|refused| refused.error.errno != libc::EADDRNOTAVAIL);
        Ok(refused)
    }

    fn change(
        &mut self,
        command: u16,
        kind: u16,
        link: u32,
        addresses: &[IpAddr],
    ) -> Result<Vec<RefusedAddress>, NetlinkError> {
        let mut all = Vec::new();
        for chunk in addresses.chunks(REQUESTS_PER_SEND) {
            let mut buffer = MessageBuffer::new();
            let mut numbers = Vec::with_capacity(chunk.len());
            for address in chunk {
                let sequence = self.socket.next_sequence();
                numbers.push((sequence, *address));
                buffer.begin(command, flags::REQUEST | flags::ACK | kind, sequence);
                write_address(&mut buffer, link, *address);
                buffer.end();
            }
            self.socket.request_each(&buffer, |sequence, result| {
                let address = numbers.iter().find(|(number, _)| *number == sequence);
                if let (Err(error), Some((_, address))) = (result, address) {
                    all.push(RefusedAddress { address: *address, error });
                }
            })?;
        }
        Ok(all)
    }
}

fn write_address(buffer: &mut MessageBuffer, link: u32, address: IpAddr) {
    let (family, bits) = match address {
        IpAddr::V4(_) => (libc::AF_INET, 32),
        IpAddr::V6(_) => (libc::AF_INET6, 128),
    };
    let family = u8::try_from(family).unwrap_or_default();
    let [i0, i1, i2, i3] = link.to_ne_bytes();
    buffer.put(&[family, bits, IFA_F_NODAD, SCOPE_HOST, i0, i1, i2, i3]);
    match address {
        IpAddr::V4(address) => {
            buffer.attr_bytes(IFA_LOCAL, &address.octets());
            buffer.attr_bytes(IFA_ADDRESS, &address.octets());
        }
        IpAddr::V6(address) => {
            buffer.attr_bytes(IFA_LOCAL, &address.octets());
            // `struct ifa_cacheinfo`: for IPv6 it is the end of the preferred time, not the
            // scope, that keeps an address from being chosen as a source.
            let (preferred, valid) = (0_u32.to_ne_bytes(), u32::MAX.to_ne_bytes());
            buffer.attr_concat(IFA_CACHEINFO, &[&preferred, &valid, &[0; 8]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::Messages;
    use crate::netlink::codec::HEADER_LEN;

    fn written(address: &str) -> Vec<u8> {
        let mut buffer = MessageBuffer::new();
        buffer.begin(RTM_NEWADDR, flags::REQUEST, 1);
        write_address(&mut buffer, 0x0102, address.parse().unwrap());
        buffer.end();
        buffer.finish().unwrap()[HEADER_LEN..].to_vec()
    }

    /// As `ip address add 192.0.2.7/32 dev LINK scope host` writes it, apart from the flag.
    #[test]
    #[cfg(target_endian = "little")]
    fn addresses_are_written_as_ip_does() {
        let expected =
            [2, 32, 2, 254, 2, 1, 0, 0, 8, 0, 2, 0, 192, 0, 2, 7, 8, 0, 1, 0, 192, 0, 2, 7];
        assert_eq!(written("192.0.2.7"), expected);
    }

    #[test]
    fn ipv6_addresses_are_no_sources() {
        let mut buffer = MessageBuffer::new();
        buffer.begin(RTM_NEWADDR, flags::REQUEST, 1);
        write_address(&mut buffer, 1, "fd00::1".parse().unwrap());
        buffer.end();
        let message = Messages::new(buffer.finish().unwrap()).next().unwrap();
        let attributes = message.attributes(8);
        assert_eq!(attributes.get(IFA_LOCAL).unwrap().ipv6(), Some("fd00::1".parse().unwrap()));
        let times = attributes.get(IFA_CACHEINFO).unwrap().payload;
        assert_eq!(times[..8], [0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    }
}
