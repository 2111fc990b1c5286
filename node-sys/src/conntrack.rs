//! Connection tracking: streaming tracked flows and deleting them.
//!
//! The table may hold millions of flows, so nothing here ever holds it: flows are handed out one
//! by one as the kernel lists them. A listing is no snapshot; flows that come or go meanwhile may
//! or may not be seen.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::netlink::{
    Attribute, KernelError, Message, MessageBuffer, NetlinkError, Protocol, Socket, Subsystem,
    flags,
};
use crate::sysctl::{self, SysctlError};

/// `IPCTNL_MSG_CT_NEW` (all of these: `linux/netfilter/nfnetlink_conntrack.h`).
const CT_NEW: u8 = 0;
/// `IPCTNL_MSG_CT_GET`.
const CT_GET: u8 = 1;
/// `IPCTNL_MSG_CT_DELETE`.
const CT_DELETE: u8 = 2;

// Attributes, in the same header: of a flow, of a tuple, of its addresses, of its protocol.
const CTA_TUPLE_ORIG: u16 = 1;
const CTA_TUPLE_REPLY: u16 = 2;
const CTA_STATUS: u16 = 3;
const CTA_TIMEOUT: u16 = 7;
const CTA_MARK: u16 = 8;
const CTA_ID: u16 = 12;
const CTA_ZONE: u16 = 18;
const CTA_FILTER: u16 = 25;
const CTA_FILTER_ORIG_FLAGS: u16 = 1;

const CTA_TUPLE_IP: u16 = 1;
const CTA_TUPLE_PROTO: u16 = 2;
const CTA_TUPLE_ZONE: u16 = 3;

const CTA_IP_V4_SRC: u16 = 1;
const CTA_IP_V4_DST: u16 = 2;
const CTA_IP_V6_SRC: u16 = 3;
const CTA_IP_V6_DST: u16 = 4;

const CTA_PROTO_NUM: u16 = 1;
const CTA_PROTO_SRC_PORT: u16 = 2;
const CTA_PROTO_DST_PORT: u16 = 3;
const CTA_PROTO_ICMP_ID: u16 = 4;
const CTA_PROTO_ICMP_TYPE: u16 = 5;
const CTA_PROTO_ICMP_CODE: u16 = 6;
const CTA_PROTO_ICMPV6_ID: u16 = 7;
const CTA_PROTO_ICMPV6_TYPE: u16 = 8;
const CTA_PROTO_ICMPV6_CODE: u16 = 9;

/// `CTA_FILTER_F_CTA_PROTO_NUM` (the kernel's `net/netfilter/nf_internals.h`; since 5.8).
const FILTER_BY_PROTOCOL: u32 = 1 << 3;

/// How many deletions go out in one send. Their answers must fit the receive buffer.
const DELETE_BATCH: u32 = 128;

/// An IP protocol number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IpProtocol(pub u8);

impl IpProtocol {
    /// ICMP.
    pub const ICMP: Self = Self(1);
    /// TCP.
    pub const TCP: Self = Self(6);
    /// UDP.
    pub const UDP: Self = Self(17);
    /// ICMP for IPv6.
    pub const ICMPV6: Self = Self(58);
    /// SCTP.
    pub const SCTP: Self = Self(132);
}

/// An IP family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// The family of an address.
    pub const fn of(address: &IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// `NFPROTO_IPV4` or `NFPROTO_IPV6` (`linux/netfilter.h`).
    pub const fn number(self) -> u8 {
        match self {
            Self::V4 => 2,
            Self::V6 => 10,
        }
    }
}

/// One direction of a flow.
///
/// For ICMP, the source port is the identifier, and the destination port holds type and code in
/// its upper and lower byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address.
    pub src: IpAddr,
    /// Destination address.
    pub dst: IpAddr,
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
}

/// To which directions a flow's zone applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum ZoneDirection {
    /// Both.
    #[default]
    Both,
    /// Only the original direction.
    Original,
    /// Only the reply direction.
    Reply,
}

/// A tracked flow.
///
/// With destination NAT, `original.dst` is what the client dialled, and `reply.src` is who
/// answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Flow {
    /// Protocol above IP.
    pub protocol: IpProtocol,
    /// The flow as its first packet went.
    pub original: Tuple,
    /// The flow as answers to it come.
    pub reply: Tuple,
    /// Conntrack zone; 0 unless a rule chose one.
    pub zone: u16,
    /// To which directions the zone applies.
    pub zone_direction: ZoneDirection,
    /// The kernel's id, which a later flow with the same addresses does not share.
    pub id: Option<u32>,
    /// Seconds until the flow is forgotten.
    pub timeout: Option<u32>,
    /// `IPS_*` bits (`linux/netfilter/nf_conntrack_common.h`).
    pub status: u32,
    /// Conntrack mark.
    pub mark: u32,
}

impl Flow {
    /// The family of its addresses.
    pub const fn family(&self) -> Family {
        Family::of(&self.original.src)
    }

    /// `IPS_SEEN_REPLY`: somebody has answered.
    pub const fn has_seen_reply(&self) -> bool {
        self.status & (1 << 1) != 0
    }

    /// `IPS_SRC_NAT`: the source was rewritten.
    pub const fn has_source_nat(&self) -> bool {
        self.status & (1 << 4) != 0
    }

    /// `IPS_DST_NAT`: the destination was rewritten.
    pub const fn has_destination_nat(&self) -> bool {
        self.status & (1 << 5) != 0
    }
}

/// What became of flows that were to be deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Deleted {
    /// Deleted by us.
    pub deleted: usize,
    /// Gone before we came.
    pub gone: usize,
    /// Refused by the kernel for now (`EBUSY`): older kernels do not delete flows that are
    /// offloaded to a flow table.
    pub busy: usize,
}

/// Access to the connection tracking table of a network namespace.
#[derive(Debug)]
pub struct Conntrack {
    listing: Listing,
    /// Apart from the listing's socket, so that deletions can go out in the middle of a listing.
    control: Socket,
    requests: MessageBuffer,
}

impl Conntrack {
    /// Opens the table of the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self {
            listing: Listing { socket: Socket::open(Protocol::NETFILTER)?, kernel_filter: true },
            control: Socket::open(Protocol::NETFILTER)?,
            requests: MessageBuffer::new(),
        })
    }

    /// Hands every flow of a family, and if given of a protocol, to `each`.
    ///
    /// The kernel picks the protocol where it can (since 5.8).
    pub fn for_each_flow(
        &mut self,
        family: Family,
        protocol: Option<IpProtocol>,
        each: impl FnMut(&Flow),
    ) -> Result<(), NetlinkError> {
        self.listing.for_each(family, protocol, each)
    }

    /// Deletes a flow, if it is still the same one. Returns whether it was there.
    pub fn delete_flow(&mut self, flow: &Flow) -> Result<bool, NetlinkError> {
        self.requests.clear();
        let sequence = self.control.next_sequence();
        write_delete(&mut self.requests, sequence, flow);
        match self.control.request(&self.requests) {
            Ok(()) => Ok(true),
            Err(NetlinkError::Kernel(error)) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Deletes the flows for which `matches` holds, in bounded batches while the table is listed.
    ///
    /// After an error the remaining flows are left alone; what was deleted stays deleted, and the
    /// call can simply be repeated.
    pub fn delete_matching(
        &mut self,
        family: Family,
        protocol: Option<IpProtocol>,
        mut matches: impl FnMut(&Flow) -> bool,
    ) -> Result<Deleted, NetlinkError> {
        let mut deletion = Deletion {
            socket: &mut self.control,
            requests: &mut self.requests,
            pending: 0,
            report: Deleted::default(),
            failure: None,
        };
        deletion.requests.clear();
        let listed = self.listing.for_each(family, protocol, |flow| {
            if deletion.failure.is_none() && matches(flow) {
                deletion.push(flow);
            }
        });
        deletion.flush();
        let (report, failure) = (deletion.report, deletion.failure);
        listed?;
        failure.map_or(Ok(report), Err)
    }
}

/// The half of [`Conntrack`] that lists.
#[derive(Debug)]
struct Listing {
    socket: Socket,
    /// Whether the kernel filters; learnt from its first refusal.
    kernel_filter: bool,
}

impl Listing {
    fn for_each(
        &mut self,
        family: Family,
        protocol: Option<IpProtocol>,
        mut each: impl FnMut(&Flow),
    ) -> Result<(), NetlinkError> {
        if let (Some(wanted), true) = (protocol, self.kernel_filter) {
            let request = self.request(family, Some(wanted));
            match self.dump(&request, protocol, &mut each) {
                // Refused before the first flow, so nothing is handed out twice.
                Err(NetlinkError::Kernel(error)) if is_filter_refused(&error) => {
                    self.kernel_filter = false;
                }
                result => return result,
            }
        }
        let request = self.request(family, None);
        self.dump(&request, protocol, &mut each)
    }

    fn request(&mut self, family: Family, filter: Option<IpProtocol>) -> MessageBuffer {
        let mut request = MessageBuffer::new();
        request.begin_netfilter(
            Subsystem::CONNTRACK.message_type(CT_GET),
            flags::REQUEST | flags::DUMP,
            self.socket.next_sequence(),
            family.number(),
        );
        if let Some(protocol) = filter {
            request.nested(CTA_TUPLE_ORIG, |tuple| {
                tuple.nested(CTA_TUPLE_PROTO, |proto| proto.attr_u8(CTA_PROTO_NUM, protocol.0));
            });
            request.nested(CTA_FILTER, |filter| {
                filter.attr_u32(CTA_FILTER_ORIG_FLAGS, FILTER_BY_PROTOCOL);
            });
        }
        request.end();
        request
    }

    fn dump(
        &mut self,
        request: &MessageBuffer,
        protocol: Option<IpProtocol>,
        each: &mut impl FnMut(&Flow),
    ) -> Result<(), NetlinkError> {
        self.socket.dump(request, |message| {
            // Kernels before 5.8 ignore the filter, so it is applied here in any case.
            match parse(message) {
                Some(flow) if protocol.is_none_or(|wanted| wanted == flow.protocol) => each(&flow),
                _ => {}
            }
        })
    }
}

/// Flows being deleted while others are listed.
struct Deletion<'a> {
    socket: &'a mut Socket,
    requests: &'a mut MessageBuffer,
    pending: u32,
    report: Deleted,
    failure: Option<NetlinkError>,
}

impl Deletion<'_> {
    fn push(&mut self, flow: &Flow) {
        let sequence = self.socket.next_sequence();
        write_delete(self.requests, sequence, flow);
        self.pending += 1;
        if self.pending == DELETE_BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        let report = &mut self.report;
        let mut refused = None;
        let sent = self.socket.request_each(self.requests, |_, result| match result {
            Ok(()) => report.deleted += 1,
            Err(error) if error.is_not_found() => report.gone += 1,
            Err(error) if error.is_busy() => report.busy += 1,
            Err(error) => {
                refused.get_or_insert(error);
            }
        });
        self.requests.clear();
        self.pending = 0;
        if self.failure.is_none() {
            self.failure = sent.err().or_else(|| refused.map(NetlinkError::Kernel));
        }
    }
}

/// How full the table of the calling thread's network namespace is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Flows tracked in this namespace.
    pub count: u64,
    /// How many the kernel tracks at most.
    pub max: u64,
}

/// Reads how full the table is; [`SysctlError::Missing`] means that conntrack is not loaded.
pub fn usage() -> Result<Usage, SysctlError> {
    Ok(Usage {
        count: sysctl::read_number("net.netfilter.nf_conntrack_count")?,
        max: sysctl::read_number("net.netfilter.nf_conntrack_max")?,
    })
}

/// What has happened to flows so far, by the kernel's name of the event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics(BTreeMap<String, u64>);

impl Statistics {
    /// How often this has happened, such as `insert_failed`; `None` if the kernel does not count
    /// it.
    pub fn get(&self, event: &str) -> Option<u64> {
        self.0.get(event).copied()
    }
}

/// Reads what has happened to flows in the calling thread's network namespace.
pub fn statistics() -> std::io::Result<Statistics> {
    std::fs::read_to_string("/proc/thread-self/net/stat/nf_conntrack")
        .map(|text| parse_statistics(&text))
}

/// A line of names, then one line for each processor with numbers in base 16. Kernels differ in
/// which columns they have.
fn parse_statistics(text: &str) -> Statistics {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().unwrap_or_default().split_whitespace().collect();
    let mut sums = BTreeMap::new();
    for line in lines {
        for (name, value) in names.iter().zip(line.split_whitespace()) {
            if let Ok(value) = u64::from_str_radix(value, 16) {
                let sum: &mut u64 = sums.entry((*name).to_owned()).or_default();
                *sum = sum.saturating_add(value);
            }
        }
    }
    Statistics(sums)
}

fn is_filter_refused(error: &KernelError) -> bool {
    error.is_unsupported() || error.errno == libc::EINVAL
}

fn parse(message: &Message<'_>) -> Option<Flow> {
    if message.kind != Subsystem::CONNTRACK.message_type(CT_NEW) {
        return None;
    }
    let (mut original, mut reply, mut zone) = (None, None, None);
    let (mut id, mut timeout, mut status, mut mark) = (None, None, 0, 0);
    for attribute in message.netfilter_attributes() {
        match attribute.kind {
            CTA_TUPLE_ORIG => original = parse_tuple(&attribute),
            CTA_TUPLE_REPLY => reply = parse_tuple(&attribute),
            CTA_STATUS => status = attribute.u32_be().unwrap_or(0),
            CTA_TIMEOUT => timeout = attribute.u32_be(),
            CTA_MARK => mark = attribute.u32_be().unwrap_or(0),
            CTA_ID => id = attribute.u32_be(),
            CTA_ZONE => zone = attribute.u16_be(),
            _ => {}
        }
    }
    let (original, reply) = (original?, reply?);
    let (zone, zone_direction) = match (zone, original.zone, reply.zone) {
        (Some(zone), ..) => (zone, ZoneDirection::Both),
        (None, Some(zone), _) => (zone, ZoneDirection::Original),
        (None, None, Some(zone)) => (zone, ZoneDirection::Reply),
        (None, None, None) => (0, ZoneDirection::Both),
    };
    Some(Flow {
        protocol: original.protocol,
        original: original.tuple,
        reply: reply.tuple,
        zone,
        zone_direction,
        id,
        timeout,
        status,
        mark,
    })
}

/// A tuple with what [`Flow`] holds once for both.
struct ParsedTuple {
    tuple: Tuple,
    protocol: IpProtocol,
    zone: Option<u16>,
}

fn parse_tuple(attribute: &Attribute<'_>) -> Option<ParsedTuple> {
    let parts = attribute.nested();
    let (src, dst) = parse_addresses(&parts.get(CTA_TUPLE_IP)?)?;
    let (protocol, src_port, dst_port) = parse_protocol(&parts.get(CTA_TUPLE_PROTO)?)?;
    let zone = parts.get(CTA_TUPLE_ZONE).and_then(|zone| zone.u16_be());
    Some(ParsedTuple { tuple: Tuple { src, dst, src_port, dst_port }, protocol, zone })
}

fn parse_addresses(attribute: &Attribute<'_>) -> Option<(IpAddr, IpAddr)> {
    let (mut src, mut dst) = (None, None);
    for address in attribute.nested() {
        match address.kind {
            CTA_IP_V4_SRC => src = address.ipv4().map(IpAddr::V4),
            CTA_IP_V4_DST => dst = address.ipv4().map(IpAddr::V4),
            CTA_IP_V6_SRC => src = address.ipv6().map(IpAddr::V6),
            CTA_IP_V6_DST => dst = address.ipv6().map(IpAddr::V6),
            _ => {}
        }
    }
    Some((src?, dst?))
}

/// Protocol and ports; see [`Tuple`] for those of ICMP. Other protocols have none.
fn parse_protocol(attribute: &Attribute<'_>) -> Option<(IpProtocol, u16, u16)> {
    let (mut protocol, mut src_port, mut dst_port) = (None, 0, [0, 0]);
    for field in attribute.nested() {
        match field.kind {
            CTA_PROTO_NUM => protocol = field.u8().map(IpProtocol),
            CTA_PROTO_SRC_PORT | CTA_PROTO_ICMP_ID | CTA_PROTO_ICMPV6_ID => {
                src_port = field.u16_be()?;
            }
            CTA_PROTO_DST_PORT => dst_port = field.u16_be()?.to_be_bytes(),
            CTA_PROTO_ICMP_TYPE | CTA_PROTO_ICMPV6_TYPE => dst_port[0] = field.u8()?,
            CTA_PROTO_ICMP_CODE | CTA_PROTO_ICMPV6_CODE => dst_port[1] = field.u8()?,
            _ => {}
        }
    }
    Some((protocol?, src_port, u16::from_be_bytes(dst_port)))
}

/// Writes a deletion. It always carries a tuple: without one the kernel would empty the table.
fn write_delete(requests: &mut MessageBuffer, sequence: u32, flow: &Flow) {
    requests.begin_netfilter(
        Subsystem::CONNTRACK.message_type(CT_DELETE),
        flags::REQUEST | flags::ACK,
        sequence,
        flow.family().number(),
    );
    requests.nested(CTA_TUPLE_ORIG, |tuple| {
        tuple.nested(CTA_TUPLE_IP, |ip| write_addresses(ip, &flow.original));
        tuple.nested(CTA_TUPLE_PROTO, |proto| write_protocol(proto, flow));
        if flow.zone_direction == ZoneDirection::Original {
            tuple.attr_u16_be(CTA_TUPLE_ZONE, flow.zone);
        }
    });
    if flow.zone_direction == ZoneDirection::Both && flow.zone != 0 {
        requests.attr_u16_be(CTA_ZONE, flow.zone);
    }
    if let Some(id) = flow.id {
        requests.attr_u32_be(CTA_ID, id);
    }
    requests.end();
}

fn write_addresses(ip: &mut MessageBuffer, tuple: &Tuple) {
    match tuple.src {
        IpAddr::V4(address) => ip.attr_bytes(CTA_IP_V4_SRC, &address.octets()),
        IpAddr::V6(address) => ip.attr_bytes(CTA_IP_V6_SRC, &address.octets()),
    }
    match tuple.dst {
        IpAddr::V4(address) => ip.attr_bytes(CTA_IP_V4_DST, &address.octets()),
        IpAddr::V6(address) => ip.attr_bytes(CTA_IP_V6_DST, &address.octets()),
    }
}

fn write_protocol(proto: &mut MessageBuffer, flow: &Flow) {
    proto.attr_u8(CTA_PROTO_NUM, flow.protocol.0);
    let Tuple { src_port, dst_port, .. } = flow.original;
    let [upper, lower] = dst_port.to_be_bytes();
    match flow.protocol {
        IpProtocol::ICMP => {
            proto.attr_u16_be(CTA_PROTO_ICMP_ID, src_port);
            proto.attr_u8(CTA_PROTO_ICMP_TYPE, upper);
            proto.attr_u8(CTA_PROTO_ICMP_CODE, lower);
        }
        IpProtocol::ICMPV6 => {
            proto.attr_u16_be(CTA_PROTO_ICMPV6_ID, src_port);
            proto.attr_u8(CTA_PROTO_ICMPV6_TYPE, upper);
            proto.attr_u8(CTA_PROTO_ICMPV6_CODE, lower);
        }
        _ => {
            proto.attr_u16_be(CTA_PROTO_SRC_PORT, src_port);
            proto.attr_u16_be(CTA_PROTO_DST_PORT, dst_port);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::Messages;
    use crate::netlink::codec::tests_support::bytes;

    /// Captured on Linux 6.18 (little endian): answered UDP from 127.0.0.1:7000 to 127.0.0.1:7001.
    const CAPTURED: &str = "
        a40000000001220001000000243c0000020000003400018014000180080001007f00000108000200
        7f0000011c0002800500010011000000060002001b580000060003001b5900003400028014000180
        080001007f000001080002007f0000011c0002800500010011000000060002001b59000006000300
        1b580000080003000000000a080008000000000008000c003c4f000008000b000000000108000700
        0000001d";

    #[test]
    fn statistics_are_summed_by_name() {
        let text = "entries  found insert_failed\n0000000a  00000000 000000ff\n\
                    0000000a  00000001 00000001\n0000000a x\n";
        let statistics = parse_statistics(text);
        assert_eq!(statistics.get("insert_failed"), Some(256));
        assert_eq!(statistics.get("found"), Some(1));
        assert_eq!(statistics.get("early_drop"), None);
        assert_eq!(parse_statistics(""), Statistics::default());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn captured_flow_is_read() {
        let bytes = bytes(CAPTURED);
        let flow = parse(&Messages::new(&bytes).next().unwrap()).unwrap();
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let tuple = |src_port, dst_port| Tuple { src: loopback, dst: loopback, src_port, dst_port };
        let expected = Flow {
            protocol: IpProtocol::UDP,
            original: tuple(7000, 7001),
            reply: tuple(7001, 7000),
            zone: 0,
            zone_direction: ZoneDirection::Both,
            id: Some(0x3c4f_0000),
            timeout: Some(29),
            status: 0x0a,
            mark: 0,
        };
        assert_eq!(flow, expected);
        assert!(flow.has_seen_reply() && !flow.has_destination_nat() && !flow.has_source_nat());
    }

    fn deletion(flow: &Flow) -> Vec<u8> {
        let mut buffer = MessageBuffer::new();
        write_delete(&mut buffer, 1, flow);
        buffer.finish().unwrap().to_vec()
    }

    fn attribute(bytes: &[u8], path: &[u16]) -> Option<Vec<u8>> {
        let mut attributes = Messages::new(bytes).next()?.netfilter_attributes();
        let mut payload = None;
        for kind in path {
            let found = attributes.get(*kind)?;
            attributes = found.nested();
            payload = Some(found.payload.to_vec());
        }
        payload
    }

    fn flow(protocol: IpProtocol) -> Flow {
        let src = IpAddr::from([0x20, 1, 0, 0, 0, 0, 0, 1]);
        let tuple = Tuple { src, dst: src, src_port: 0x0102, dst_port: 0x8000 };
        Flow {
            protocol,
            original: tuple,
            reply: tuple,
            zone: 7,
            zone_direction: ZoneDirection::Both,
            id: Some(9),
            timeout: None,
            status: 0,
            mark: 0,
        }
    }

    #[test]
    fn deletions_name_the_flow_exactly() {
        let bytes = deletion(&flow(IpProtocol::ICMPV6));
        assert_eq!(attribute(&bytes, &[CTA_ID]), Some(vec![0, 0, 0, 9]));
        assert_eq!(attribute(&bytes, &[CTA_ZONE]), Some(vec![0, 7]));
        let proto = |kind| attribute(&bytes, &[CTA_TUPLE_ORIG, CTA_TUPLE_PROTO, kind]);
        assert_eq!(proto(CTA_PROTO_NUM), Some(vec![58]));
        assert_eq!(proto(CTA_PROTO_ICMPV6_ID), Some(vec![1, 2]));
        assert_eq!(proto(CTA_PROTO_ICMPV6_TYPE), Some(vec![0x80]));
        assert_eq!(proto(CTA_PROTO_ICMPV6_CODE), Some(vec![0]));
        assert_eq!(proto(CTA_PROTO_SRC_PORT), None);
    }

    #[test]
    fn zones_of_one_direction_are_named_there() {
        let original = Flow { zone_direction: ZoneDirection::Original, ..flow(IpProtocol::TCP) };
        let bytes = deletion(&original);
        assert_eq!(attribute(&bytes, &[CTA_ZONE]), None);
        assert_eq!(attribute(&bytes, &[CTA_TUPLE_ORIG, CTA_TUPLE_ZONE]), Some(vec![0, 7]));
        let reply = Flow { zone_direction: ZoneDirection::Reply, ..original };
        let bytes = deletion(&reply);
        assert_eq!(attribute(&bytes, &[CTA_ZONE]), None);
        assert_eq!(attribute(&bytes, &[CTA_TUPLE_ORIG, CTA_TUPLE_ZONE]), None);
    }

    proptest! {
        #[test]
        fn garbage_never_panics(payload: Vec<u8>) {
            let kind = Subsystem::CONNTRACK.message_type(CT_NEW);
            parse(&Message { kind, flags: 0, sequence: 0, port: 0, payload: &payload });
        }

        /// Garbage that looks like the real thing: a captured flow with bytes changed.
        #[test]
        fn damaged_flows_never_panic(at in 0_usize..140, value: u8) {
            let mut bytes = bytes(CAPTURED);
            bytes[16 + at] = value;
            Messages::new(&bytes).for_each(|message| { parse(&message); });
        }
    }
}
