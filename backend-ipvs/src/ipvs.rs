//! IPVS over generic netlink (`linux/ip_vs.h`, `net/netfilter/ipvs/ip_vs_ctl.c`).

use std::net::IpAddr;

use node_sys::netlink::codec::GENL_LEN;
use node_sys::netlink::{
    Attributes, KernelError, Message, MessageBuffer, NetlinkError, Protocol as Netlink, Socket,
    flags, retry_interrupted,
};
use proxy_core::address::IpFamily;
use proxy_core::names::Protocol;

use crate::model::{RealSpec, ServerKey, ServerSpec};

/// `GENL_ID_CTRL`, the family that knows the others (`linux/genetlink.h`).
const CONTROLLER: u16 = 0x10;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const FAMILY_NAME: &str = "IPVS";
/// `IPVS_GENL_VERSION`.
const VERSION: u8 = 1;

/// `IPVS_CMD_*`.
mod cmd {
    pub(super) const NEW_SERVICE: u8 = 1;
    pub(super) const SET_SERVICE: u8 = 2;
    pub(super) const DEL_SERVICE: u8 = 3;
    pub(super) const GET_SERVICE: u8 = 4;
    pub(super) const NEW_DEST: u8 = 5;
    pub(super) const SET_DEST: u8 = 6;
    pub(super) const DEL_DEST: u8 = 7;
    pub(super) const GET_DEST: u8 = 8;
    pub(super) const SET_CONFIG: u8 = 12;
}

/// `IPVS_CMD_ATTR_*`.
mod top {
    pub(super) const SERVICE: u16 = 1;
    pub(super) const DEST: u16 = 2;
    pub(super) const TIMEOUT_TCP: u16 = 4;
    pub(super) const TIMEOUT_TCP_FIN: u16 = 5;
    pub(super) const TIMEOUT_UDP: u16 = 6;
}

/// `IPVS_SVC_ATTR_*`.
mod svc {
    pub(super) const AF: u16 = 1;
    pub(super) const PROTOCOL: u16 = 2;
    pub(super) const ADDR: u16 = 3;
    pub(super) const PORT: u16 = 4;
    pub(super) const FWMARK: u16 = 5;
    pub(super) const SCHED_NAME: u16 = 6;
    pub(super) const FLAGS: u16 = 7;
    pub(super) const TIMEOUT: u16 = 8;
    pub(super) const NETMASK: u16 = 9;
}

/// `IPVS_DEST_ATTR_*`.
mod dest {
    pub(super) const ADDR: u16 = 1;
    pub(super) const PORT: u16 = 2;
    pub(super) const FWD_METHOD: u16 = 3;
    pub(super) const WEIGHT: u16 = 4;
    pub(super) const U_THRESH: u16 = 5;
    pub(super) const L_THRESH: u16 = 6;
    pub(super) const ACTIVE_CONNS: u16 = 7;
    pub(super) const INACT_CONNS: u16 = 8;
    pub(super) const ADDR_FAMILY: u16 = 11;
}

/// `IP_VS_CONN_F_FWD_MASK`.
const METHOD_MASK: u32 = 0x7;
/// Commands of one send: more gain nothing, and all results must fit the receive buffer.
const COMMANDS_PER_SEND: usize = 256;
/// How often a list is read again because it changed meanwhile.
const MAX_DUMPS: usize = 16;

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    NewServer(ServerKey, ServerSpec),
    SetServer(ServerKey, ServerSpec),
    DeleteServer(ServerKey),
    NewReal(ServerKey, (IpAddr, u16), RealSpec),
    SetReal(ServerKey, (IpAddr, u16), RealSpec),
    DeleteReal(ServerKey, (IpAddr, u16)),
}

/// A real server as the kernel has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ListedReal {
    pub(crate) address: IpAddr,
    pub(crate) port: u16,
    pub(crate) spec: RealSpec,
    /// Connections, also those that are closing.
    pub(crate) connections: u32,
}

/// Idle times of connections in seconds; 0 leaves the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Established TCP connections.
    pub tcp: u32,
    /// TCP connections that are closing.
    pub tcp_fin: u32,
    /// UDP flows.
    pub udp: u32,
}

/// The IPVS of a network namespace.
#[derive(Debug)]
pub(crate) struct Ipvs {
    socket: Socket,
    family_id: u16,
}

impl Ipvs {
    /// Asks for IPVS, which makes the kernel load its module. `None` if there is none.
    pub(crate) fn open() -> Result<Option<Self>, NetlinkError> {
        let mut socket = Socket::open(Netlink::GENERIC)?;
        let mut request = MessageBuffer::new();
        request.begin_generic(
            CONTROLLER,
            flags::REQUEST | flags::ACK,
            socket.next_sequence(),
            CTRL_CMD_GETFAMILY,
            1,
        );
        request.attr_str(CTRL_ATTR_FAMILY_NAME, FAMILY_NAME);
        request.end();
        let mut family_id = None;
        let asked = socket.query(&request, |message| {
            let id = message.attributes(GENL_LEN).get(CTRL_ATTR_FAMILY_ID);
            family_id = id.and_then(|id| id.u16()).or(family_id);
        });
        match asked {
            Err(NetlinkError::Kernel(error)) if error.is_not_found() => Ok(None),
            result => {
                result?;
                Ok(family_id.map(|family_id| Self { socket, family_id }))
            }
        }
    }

    /// Takes all the steps, many in flight, and tells the refusals by the number of the step. One
    /// that is refused does not stop the others.
    pub(crate) fn send(
        &mut self,
        commands: &[Command],
    ) -> Result<Vec<(usize, KernelError)>, NetlinkError> {
        let mut refused = Vec::new();
        for (round, chunk) in commands.chunks(COMMANDS_PER_SEND).enumerate() {
            let mut numbers = Vec::with_capacity(chunk.len());
            let mut buffer = MessageBuffer::new();
            for command in chunk {
                let sequence = self.socket.next_sequence();
                numbers.push(sequence);
                write_command(&mut buffer, self.family_id, sequence, command);
            }
            let first = round * COMMANDS_PER_SEND;
            self.socket.request_each(&buffer, |sequence, result| {
                let place = numbers.iter().position(|number| *number == sequence);
                if let (Err(error), Some(place)) = (result, place) {
                    refused.push((first + place, error));
                }
            })?;
        }
        Ok(refused)
    }

    /// The virtual servers of a family, apart from those for marked packets.
    pub(crate) fn servers(
        &mut self,
        family: IpFamily,
    ) -> Result<Vec<(ServerKey, ServerSpec)>, NetlinkError> {
        let id = self.family_id;
        retry_interrupted(MAX_DUMPS, || {
            let mut request = MessageBuffer::new();
            let sequence = self.socket.next_sequence();
            let kind = flags::REQUEST | flags::DUMP;
            request.begin_generic(id, kind, sequence, cmd::GET_SERVICE, VERSION);
            request.end();
            let mut servers = Vec::new();
            self.socket.dump(&request, |message| {
                servers.extend(
                    read_server(message).filter(|(key, _)| IpFamily::of(key.address) == family),
                );
            })?;
            Ok(servers)
        })
    }

    /// The real servers of a virtual server; none if it does not exist.
    pub(crate) fn reals(&mut self, server: &ServerKey) -> Result<Vec<ListedReal>, NetlinkError> {
        let id = self.family_id;
        retry_interrupted(MAX_DUMPS, || {
            let mut request = MessageBuffer::new();
            let sequence = self.socket.next_sequence();
            let kind = flags::REQUEST | flags::DUMP;
            request.begin_generic(id, kind, sequence, cmd::GET_DEST, VERSION);
            request.nested(top::SERVICE, |nest| write_server_key(nest, server));
            request.end();
            let mut reals = Vec::new();
            let family = IpFamily::of(server.address);
            self.socket.dump(&request, |message| reals.extend(read_real(message, family)))?;
            Ok(reals)
        })
    }

    /// Sets idle times.
    pub(crate) fn set_timeouts(&mut self, timeouts: Timeouts) -> Result<(), NetlinkError> {
        let mut request = MessageBuffer::new();
        let sequence = self.socket.next_sequence();
        let kind = flags::REQUEST | flags::ACK;
        request.begin_generic(self.family_id, kind, sequence, cmd::SET_CONFIG, VERSION);
        request.attr_u32(top::TIMEOUT_TCP, timeouts.tcp);
        request.attr_u32(top::TIMEOUT_TCP_FIN, timeouts.tcp_fin);
        request.attr_u32(top::TIMEOUT_UDP, timeouts.udp);
        request.end();
        self.socket.request(&request)
    }
}

// === writing ===

fn write_command(buffer: &mut MessageBuffer, id: u16, sequence: u32, command: &Command) {
    let mut begin = |command, extra| {
        buffer.begin_generic(id, flags::REQUEST | flags::ACK | extra, sequence, command, VERSION);
    };
    match command {
        Command::NewServer(server, spec) => {
            begin(cmd::NEW_SERVICE, 0);
            write_server(buffer, server, Some(spec));
        }
        Command::SetServer(server, spec) => {
            begin(cmd::SET_SERVICE, 0);
            write_server(buffer, server, Some(spec));
        }
        Command::DeleteServer(server) => {
            begin(cmd::DEL_SERVICE, 0);
            write_server(buffer, server, None);
        }
        Command::NewReal(server, real, spec) => {
            begin(cmd::NEW_DEST, 0);
            write_real(buffer, server, *real, Some(*spec));
        }
        Command::SetReal(server, real, spec) => {
            begin(cmd::SET_DEST, 0);
            write_real(buffer, server, *real, Some(*spec));
        }
        Command::DeleteReal(server, real) => {
            begin(cmd::DEL_DEST, 0);
            write_real(buffer, server, *real, None);
        }
    }
    buffer.end();
}

fn write_server(buffer: &mut MessageBuffer, server: &ServerKey, spec: Option<&ServerSpec>) {
    buffer.nested(top::SERVICE, |nest| {
        write_server_key(nest, server);
        let Some(spec) = spec else { return };
        nest.attr_str(svc::SCHED_NAME, &spec.scheduler);
        // `struct ip_vs_flags`: the bits, and which of them count.
        let [flags, mask] = [spec.flags, u32::MAX].map(u32::to_ne_bytes);
        nest.attr_concat(svc::FLAGS, &[&flags, &mask]);
        nest.attr_u32(svc::TIMEOUT, spec.timeout);
        // A mask in network byte order for IPv4, a length for IPv6.
        match server.address {
            IpAddr::V4(_) => nest.attr_u32(svc::NETMASK, u32::MAX),
            IpAddr::V6(_) => nest.attr_u32(svc::NETMASK, 128),
        }
    });
}

fn write_server_key(nest: &mut MessageBuffer, server: &ServerKey) {
    nest.attr_u16(svc::AF, family_number(server.address));
    nest.attr_u16(svc::PROTOCOL, server.protocol.number().into());
    nest.attr_bytes(svc::ADDR, &padded(server.address));
    nest.attr_u16_be(svc::PORT, server.port);
}

fn write_real(
    buffer: &mut MessageBuffer,
    server: &ServerKey,
    (address, port): (IpAddr, u16),
    spec: Option<RealSpec>,
) {
    buffer.nested(top::SERVICE, |nest| write_server_key(nest, server));
    buffer.nested(top::DEST, |nest| {
        nest.attr_bytes(dest::ADDR, &padded(address));
        nest.attr_u16_be(dest::PORT, port);
        nest.attr_u16(dest::ADDR_FAMILY, family_number(address));
        let Some(spec) = spec else { return };
        nest.attr_u32(dest::FWD_METHOD, spec.method);
        nest.attr_u32(dest::WEIGHT, spec.weight);
        nest.attr_u32(dest::U_THRESH, 0);
        nest.attr_u32(dest::L_THRESH, 0);
    });
}

/// `AF_INET`, `AF_INET6`.
fn family_number(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    }
}

/// `union nf_inet_addr`.
fn padded(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V6(address) => address.octets(),
        IpAddr::V4(address) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&address.octets());
            bytes
        }
    }
}

// === reading ===

fn read_address(bytes: &[u8], family: IpFamily) -> Option<IpAddr> {
    match family {
        IpFamily::V4 => bytes.first_chunk::<4>().copied().map(IpAddr::from),
        IpFamily::V6 => bytes.first_chunk::<16>().copied().map(IpAddr::from),
    }
}

fn read_family(number: u16) -> Option<IpFamily> {
    match number {
        2 => Some(IpFamily::V4),
        10 => Some(IpFamily::V6),
        _ => None,
    }
}

fn read_server(message: &Message<'_>) -> Option<(ServerKey, ServerSpec)> {
    let attributes: Attributes<'_> = message.attributes(GENL_LEN).get(top::SERVICE)?.nested();
    if attributes.get(svc::FWMARK).is_some() {
        return None;
    }
    let family = read_family(attributes.get(svc::AF)?.u16()?)?;
    let protocol = u8::try_from(attributes.get(svc::PROTOCOL)?.u16()?).ok()?;
    let key = ServerKey {
        address: read_address(attributes.get(svc::ADDR)?.payload, family)?,
        port: attributes.get(svc::PORT)?.u16_be()?,
        protocol: Protocol::from_number(protocol)?,
    };
    let bits = attributes.get(svc::FLAGS)?.payload.first_chunk().copied()?;
    let spec = ServerSpec {
        scheduler: attributes.get(svc::SCHED_NAME)?.str()?.into(),
        flags: u32::from_ne_bytes(bits) & !ServerSpec::HASHED,
        timeout: attributes.get(svc::TIMEOUT)?.u32()?,
    };
    Some((key, spec))
}

fn read_real(message: &Message<'_>, family: IpFamily) -> Option<ListedReal> {
    let attributes = message.attributes(GENL_LEN).get(top::DEST)?.nested();
    let number = |kind| attributes.get(kind).and_then(|it| it.u32());
    // Kernels before 3.18 do not tell; a real server then has the family of the virtual one.
    let own = attributes.get(dest::ADDR_FAMILY).and_then(|it| it.u16()).and_then(read_family);
    Some(ListedReal {
        address: read_address(attributes.get(dest::ADDR)?.payload, own.unwrap_or(family))?,
        port: attributes.get(dest::PORT)?.u16_be()?,
        spec: RealSpec {
            weight: number(dest::WEIGHT)?,
            method: number(dest::FWD_METHOD)? & METHOD_MASK,
        },
        connections: number(dest::ACTIVE_CONNS)?.saturating_add(number(dest::INACT_CONNS)?),
    })
}

#[cfg(test)]
mod tests;
