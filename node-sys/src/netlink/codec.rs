//! Bytes in, bytes out: writing netlink messages and reading them back.
//!
//! Writing never fails half way: a message or nest that outgrows its length field is remembered,
//! and [`MessageBuffer::finish`] (which every send goes through) reports it. Reading never
//! panics: what does not parse ends the iteration.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Size of `struct nlmsghdr`.
pub const HEADER_LEN: usize = 16;
/// Size of `struct nlattr`.
pub const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Size of `struct nfgenmsg` (`linux/netfilter/nfnetlink.h`), which starts nfnetlink payloads.
pub const NFGEN_LEN: usize = 4;
/// Size of `struct genlmsghdr` (`linux/genetlink.h`), which starts generic netlink payloads.
pub const GENL_LEN: usize = 4;

/// `NLMSG_ERROR`: acknowledgement or error.
pub const TYPE_ERROR: u16 = 2;
/// `NLMSG_DONE`: end of a multi-part answer.
pub const TYPE_DONE: u16 = 3;
/// `NLMSG_OVERRUN`: data was lost.
pub const TYPE_OVERRUN: u16 = 4;
/// `NLMSG_NOOP`: does nothing.
pub const TYPE_NOOP: u16 = 1;

/// `NLA_F_NESTED`: the payload is a list of attributes.
const NESTED: u16 = 1 << 15;
/// `NLA_TYPE_MASK`: the type without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const TYPE_MASK: u16 = 0x3fff;

/// A written message that does not fit its length fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// An attribute or nest is longer than its 16-bit length can say.
    #[error("attribute {kind} of message {sequence} takes {len} bytes, more than 65535")]
    AttributeTooLong {
        /// Attribute type.
        kind: u16,
        /// Sequence number of the message it is in.
        sequence: u32,
        /// Bytes it would take with its header.
        len: usize,
    },
    /// A message is longer than its 32-bit length can say.
    #[error("message {sequence} takes {len} bytes, more than its length field can hold")]
    MessageTooLong {
        /// Sequence number of the message.
        sequence: u32,
        /// Its bytes.
        len: usize,
    },
    /// A request lacks the flag that makes the kernel answer it in the expected way.
    #[error("message {sequence} needs the flag {flag}")]
    MissingFlag {
        /// Sequence number of the message.
        sequence: u32,
        /// Name of the flag.
        flag: &'static str,
    },
    /// There is no message to send.
    #[error("no message to send")]
    Empty,
    /// A message was begun but not ended.
    #[error("message {sequence} was not ended")]
    Unfinished {
        /// Sequence number of the message.
        sequence: u32,
    },
}

const fn align(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// A begun nest, to be handed to [`MessageBuffer::end_nested`].
#[derive(Debug, Clone, Copy)]
#[must_use = "a nest that is not ended has a wrong length"]
pub struct Nest {
    start: usize,
}

/// A growing buffer of netlink messages.
///
/// ```
/// use node_sys::netlink::{MessageBuffer, flags};
///
/// let mut buffer = MessageBuffer::new();
/// buffer.begin(18, flags::REQUEST, 7);
/// buffer.put(&[0; 16]);
/// buffer.nested(1, |nest| nest.attr_str(2, "lo"));
/// buffer.end();
/// assert_eq!(buffer.finish().unwrap().len(), 16 + 16 + 4 + 8);
/// ```
#[derive(Debug, Clone, Default)]
pub struct MessageBuffer {
    bytes: Vec<u8>,
    open: Option<usize>,
    error: Option<CodecError>,
}

impl MessageBuffer {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), open: None, error: None }
    }

    /// An empty buffer with room for `bytes`.
    pub fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), open: None, error: None }
    }

    /// Forgets the messages and any error, keeps the memory.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.open = None;
        self.error = None;
    }

    /// Bytes written so far.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What was written, whether or not it is well formed. For sending use [`Self::finish`].
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The finished messages, or the first reason why they must not be sent.
    pub fn finish(&self) -> Result<&[u8], CodecError> {
        match (self.error, self.open) {
            (Some(error), _) => Err(error),
            (None, Some(_)) => Err(CodecError::Unfinished { sequence: self.open_sequence() }),
            (None, None) => Ok(&self.bytes),
        }
    }

    /// Cuts off messages at the end; `len` must be where one of them began.
    pub(super) fn truncate(&mut self, len: usize) {
        self.bytes.truncate(len);
    }

    /// Begins a message; everything up to [`Self::end`] belongs to it.
    ///
    /// An unfinished message before it is recorded as an error.
    pub fn begin(&mut self, kind: u16, flags: u16, sequence: u32) {
        if self.open.is_some() {
            let sequence = self.open_sequence();
            self.record(CodecError::Unfinished { sequence });
            self.end();
        }
        self.open = Some(self.bytes.len());
        let mut header = [0; HEADER_LEN];
        header[4..6].copy_from_slice(&kind.to_ne_bytes());
        header[6..8].copy_from_slice(&flags.to_ne_bytes());
        header[8..12].copy_from_slice(&sequence.to_ne_bytes());
        // Bytes 12..16 stay 0: the kernel fills in the sender's port id.
        self.bytes.extend_from_slice(&header);
    }

    /// Begins an nfnetlink message: header and `struct nfgenmsg`.
    pub fn begin_netfilter(&mut self, kind: u16, flags: u16, sequence: u32, family: u8) {
        self.begin(kind, flags, sequence);
        // version NFNETLINK_V0, res_id 0.
        self.bytes.extend_from_slice(&[family, 0, 0, 0]);
    }

    /// Begins a generic netlink message: header and `struct genlmsghdr`.
    pub fn begin_generic(
        &mut self,
        family: u16,
        flags: u16,
        sequence: u32,
        command: u8,
        version: u8,
    ) {
        self.begin(family, flags, sequence);
        self.bytes.extend_from_slice(&[command, version, 0, 0]);
    }

    /// Ends the message: writes its length and pads it.
    pub fn end(&mut self) {
        let Some(start) = self.open else { return };
        let len = self.bytes.len() - start;
        if let Ok(len) = u32::try_from(len) {
            self.bytes[start..start + 4].copy_from_slice(&len.to_ne_bytes());
        } else {
            let sequence = self.open_sequence();
            self.record(CodecError::MessageTooLong { sequence, len });
        }
        self.open = None;
        self.pad();
    }

    /// Appends raw bytes, such as the fixed header of a family, and pads them.
    pub fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    /// Appends an attribute with these bytes.
    pub fn attr_bytes(&mut self, kind: u16, payload: &[u8]) {
        self.attr_header(kind, payload.len());
        self.bytes.extend_from_slice(payload);
        self.pad();
    }

    /// Appends an attribute whose payload is several slices in a row (a concatenated key).
    pub fn attr_concat(&mut self, kind: u16, parts: &[&[u8]]) {
        self.attr_header(kind, parts.iter().map(|part| part.len()).sum());
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.pad();
    }

    /// Appends an attribute without payload (a flag).
    pub fn attr_flag(&mut self, kind: u16) {
        self.attr_header(kind, 0);
    }

    /// Appends a byte.
    pub fn attr_u8(&mut self, kind: u16, value: u8) {
        self.attr_bytes(kind, &[value]);
    }

    /// Appends a 16-bit number in network byte order.
    pub fn attr_u16_be(&mut self, kind: u16, value: u16) {
        self.attr_bytes(kind, &value.to_be_bytes());
    }

    /// Appends a 16-bit number in host byte order.
    pub fn attr_u16(&mut self, kind: u16, value: u16) {
        self.attr_bytes(kind, &value.to_ne_bytes());
    }

    /// Appends a 32-bit number in network byte order.
    pub fn attr_u32_be(&mut self, kind: u16, value: u32) {
        self.attr_bytes(kind, &value.to_be_bytes());
    }

    /// Appends a 32-bit number in host byte order.
    pub fn attr_u32(&mut self, kind: u16, value: u32) {
        self.attr_bytes(kind, &value.to_ne_bytes());
    }

    /// Appends a 64-bit number in network byte order.
    pub fn attr_u64_be(&mut self, kind: u16, value: u64) {
        self.attr_bytes(kind, &value.to_be_bytes());
    }

    /// Appends a string with its terminating zero. A zero inside ends it early for the kernel.
    pub fn attr_str(&mut self, kind: u16, value: &str) {
        self.attr_header(kind, value.len() + 1);
        self.bytes.extend_from_slice(value.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    /// Begins a list of attributes.
    pub fn begin_nested(&mut self, kind: u16) -> Nest {
        let start = self.bytes.len();
        self.attr_header(kind | NESTED, 0);
        Nest { start }
    }

    /// Ends a list of attributes: writes its length.
    pub fn end_nested(&mut self, nest: Nest) {
        let len = self.bytes.len() - nest.start;
        let at = nest.start..nest.start + 2;
        match u16::try_from(len) {
            Ok(len) => self.bytes[at].copy_from_slice(&len.to_ne_bytes()),
            Err(_) => self.attribute_too_long(self.kind_at(nest.start), len),
        }
    }

    /// Appends a list of attributes written by `write`.
    pub fn nested(&mut self, kind: u16, write: impl FnOnce(&mut Self)) {
        let nest = self.begin_nested(kind);
        write(self);
        self.end_nested(nest);
    }

    /// How many bytes may still be added to a begun nest before it outgrows its length field.
    ///
    /// Callers that put many elements into one list end it, and the message, when the next
    /// element might not fit.
    pub fn remaining(&self, nest: Nest) -> usize {
        usize::from(u16::MAX).saturating_sub(self.bytes.len() - nest.start)
    }

    fn attr_header(&mut self, kind: u16, payload: usize) {
        let len = payload + ATTRIBUTE_HEADER_LEN;
        let short = u16::try_from(len).unwrap_or_else(|_| {
            self.attribute_too_long(kind & TYPE_MASK, len);
            u16::MAX
        });
        let [l0, l1] = short.to_ne_bytes();
        let [k0, k1] = kind.to_ne_bytes();
        self.bytes.extend_from_slice(&[l0, l1, k0, k1]);
    }

    fn pad(&mut self) {
        self.bytes.resize(align(self.bytes.len()), 0);
    }

    #[cold]
    fn attribute_too_long(&mut self, kind: u16, len: usize) {
        let sequence = self.open_sequence();
        self.record(CodecError::AttributeTooLong { kind, sequence, len });
    }

    /// Keeps the first error: later ones tend to follow from it.
    #[cold]
    fn record(&mut self, error: CodecError) {
        self.error.get_or_insert(error);
    }

    fn kind_at(&self, start: usize) -> u16 {
        u16_ne(&self.bytes, start + 2).unwrap_or_default() & TYPE_MASK
    }

    fn open_sequence(&self) -> u32 {
        self.open.and_then(|start| u32_ne(&self.bytes, start + 8)).unwrap_or_default()
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_ne(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_ne_bytes)
}

fn u32_ne(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_ne_bytes)
}

/// One received message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message<'a> {
    /// `nlmsg_type`.
    pub kind: u16,
    /// `nlmsg_flags`.
    pub flags: u16,
    /// `nlmsg_seq`: that of the request it answers, in notifications that of their cause.
    pub sequence: u32,
    /// `nlmsg_pid`: port id of the socket that asked for it or caused it; 0 is the kernel.
    pub port: u32,
    /// What follows the header.
    pub payload: &'a [u8],
}

impl<'a> Message<'a> {
    /// The attributes behind a fixed header of `header_len` bytes.
    pub fn attributes(&self, header_len: usize) -> Attributes<'a> {
        Attributes::new(self.payload.get(align(header_len)..).unwrap_or_default())
    }

    /// The address family (first payload byte) of an nfnetlink or rtnetlink message.
    pub fn family(&self) -> Option<u8> {
        self.payload.first().copied()
    }

    /// The nfnetlink subsystem, the upper byte of the type (`NFNL_SUBSYS_ID`).
    pub const fn subsystem(&self) -> u8 {
        self.kind.to_be_bytes()[0]
    }

    /// The message number inside the nfnetlink subsystem, the lower byte of the type
    /// (`NFNL_MSG_TYPE`).
    pub const fn command(&self) -> u8 {
        self.kind.to_be_bytes()[1]
    }

    /// The attributes of an nfnetlink message, which follow its `struct nfgenmsg`.
    pub fn netfilter_attributes(&self) -> Attributes<'a> {
        self.attributes(NFGEN_LEN)
    }
}

/// The messages in a received buffer.
///
/// Stops at the first message that does not fit the buffer; [`Messages::rest`] is then not empty.
#[derive(Debug, Clone)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Messages<'a> {
    /// Iterates over `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes not yet read; after the end, those that are no message.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        let len = usize::try_from(u32_ne(self.rest, 0)?).ok()?;
        let payload = self.rest.get(HEADER_LEN..len)?;
        let message = Message {
            kind: u16_ne(self.rest, 4)?,
            flags: u16_ne(self.rest, 6)?,
            sequence: u32_ne(self.rest, 8)?,
            port: u32_ne(self.rest, 12)?,
            payload,
        };
        self.rest = self.rest.get(align(len)..).unwrap_or_default();
        Some(message)
    }
}

/// The attributes in a payload.
///
/// Stops at the first attribute that does not fit.
#[derive(Debug, Clone)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// Iterates over `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The first attribute of this type.
    pub fn get(&self, kind: u16) -> Option<Attribute<'a>> {
        self.clone().find(|attribute| attribute.kind == kind)
    }

    /// The bytes not yet read; after the end, those that are no attribute.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let len = usize::from(u16_ne(self.rest, 0)?);
        let kind = u16_ne(self.rest, 2)? & TYPE_MASK;
        let payload = self.rest.get(ATTRIBUTE_HEADER_LEN..len)?;
        self.rest = self.rest.get(align(len)..).unwrap_or_default();
        Some(Attribute { kind, payload })
    }
}

/// One attribute. The getters return `None` if the payload has another size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Type, without the flags in its upper bits.
    pub kind: u16,
    /// Its bytes, without padding.
    pub payload: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// A byte.
    pub fn u8(&self) -> Option<u8> {
        self.exact().map(u8::from_ne_bytes)
    }

    /// A 16-bit number in network byte order.
    pub fn u16_be(&self) -> Option<u16> {
        self.exact().map(u16::from_be_bytes)
    }

    /// A 16-bit number in host byte order.
    pub fn u16(&self) -> Option<u16> {
        self.exact().map(u16::from_ne_bytes)
    }

    /// A 32-bit number in network byte order.
    pub fn u32_be(&self) -> Option<u32> {
        self.exact().map(u32::from_be_bytes)
    }

    /// A 32-bit number in host byte order.
    pub fn u32(&self) -> Option<u32> {
        self.exact().map(u32::from_ne_bytes)
    }

    /// A 64-bit number in network byte order.
    pub fn u64_be(&self) -> Option<u64> {
        self.exact().map(u64::from_be_bytes)
    }

    /// A string, up to the first zero.
    pub fn str(&self) -> Option<&'a str> {
        let text = self.payload.split(|byte| *byte == 0).next()?;
        std::str::from_utf8(text).ok()
    }

    /// An IPv4 address.
    pub fn ipv4(&self) -> Option<Ipv4Addr> {
        self.exact::<4>().map(Ipv4Addr::from)
    }

    /// An IPv6 address.
    pub fn ipv6(&self) -> Option<Ipv6Addr> {
        self.exact::<16>().map(Ipv6Addr::from)
    }

    /// The attributes inside a nest.
    pub const fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.payload)
    }

    fn exact<const N: usize>(&self) -> Option<[u8; N]> {
        self.payload.try_into().ok()
    }
}

/// Shared by the tests of this crate that hold captured bytes.
#[cfg(test)]
pub(crate) mod tests_support {
    /// Bytes from hexadecimal digits.
    pub(crate) fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<u32> = hex.chars().filter_map(|c| c.to_digit(16)).collect();
        digits.chunks(2).map(|pair| u8::try_from(pair[0] * 16 + pair[1]).unwrap()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::netlink::flags;

    fn written(write: impl FnOnce(&mut MessageBuffer)) -> Vec<u8> {
        let mut buffer = MessageBuffer::new();
        buffer.begin(0x1234, flags::REQUEST, 9);
        write(&mut buffer);
        buffer.end();
        buffer.finish().unwrap()[HEADER_LEN..].to_vec()
    }

    #[test]
    fn attributes_are_laid_out_and_padded() {
        let check = |write: fn(&mut MessageBuffer), expected: &[u8]| {
            let [l0, l1] = u16::to_ne_bytes(u16::from(expected[0]));
            let expected = [&[l0, l1], &expected[1..]].concat();
            assert_eq!(written(write), expected);
        };
        // Length first (expanded to two bytes in host order), then the type, which the calls
        // below choose the same in both byte orders.
        check(|b| b.attr_u8(0x0101, 7), &[5, 1, 1, 7, 0, 0, 0]);
        check(|b| b.attr_u16_be(0x0101, 0x0203), &[6, 1, 1, 2, 3, 0, 0]);
        check(|b| b.attr_u32_be(0x0101, 0x0203_0405), &[8, 1, 1, 2, 3, 4, 5]);
        check(|b| b.attr_u64_be(0x0101, 1), &[12, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1]);
        check(|b| b.attr_str(0x0101, "lo"), &[7, 1, 1, b'l', b'o', 0, 0]);
        check(|b| b.attr_flag(0x0101), &[4, 1, 1]);
        check(|b| b.attr_concat(0x0101, &[&[1, 2], &[3]]), &[7, 1, 1, 1, 2, 3, 0]);
    }

    #[test]
    fn nests_carry_their_flag_and_length() {
        let bytes = written(|buffer| {
            buffer.nested(3, |outer| {
                outer.nested(4, |inner| inner.attr_u32(5, 6));
                outer.attr_u8(7, 8);
            });
        });
        assert_eq!(u16_ne(&bytes, 2), Some(3 | NESTED));
        let outer = Attributes::new(&bytes).get(3).unwrap();
        assert_eq!(outer.payload.len(), 4 + 8 + 8);
        assert_eq!(outer.nested().get(4).unwrap().nested().get(5).unwrap().u32(), Some(6));
        assert_eq!(outer.nested().get(7).unwrap().u8(), Some(8));
    }

    #[test]
    fn headers_are_laid_out() {
        let mut buffer = MessageBuffer::new();
        buffer.begin_netfilter(0x0a01, flags::REQUEST | flags::ACK, 5, 2);
        buffer.end();
        buffer.begin_generic(0x20, flags::REQUEST, 6, 3, 1);
        buffer.end();
        let seen: Vec<_> = Messages::new(buffer.finish().unwrap()).collect();
        assert_eq!(seen.len(), 2);
        assert_eq!((seen[0].kind, seen[0].flags, seen[0].sequence), (0x0a01, 5, 5));
        assert_eq!((seen[0].subsystem(), seen[0].command()), (10, 1));
        assert_eq!((seen[0].family(), seen[0].payload), (Some(2), &[2, 0, 0, 0][..]));
        assert_eq!(seen[1].payload, [3, 1, 0, 0]);
    }

    #[test]
    fn oversize_is_reported_once_and_never_sent() {
        let mut buffer = MessageBuffer::new();
        buffer.begin(1, 0, 77);
        buffer.nested(2, |nest| {
            for _ in 0..20_000 {
                nest.attr_u8(3, 1);
            }
        });
        buffer.end();
        let expected = CodecError::AttributeTooLong { kind: 2, sequence: 77, len: 160_004 };
        assert_eq!(buffer.finish(), Err(expected));
        buffer.clear();
        buffer.begin(1, 0, 78);
        buffer.attr_bytes(4, &vec![0; 70_000]);
        buffer.end();
        let expected = CodecError::AttributeTooLong { kind: 4, sequence: 78, len: 70_004 };
        assert_eq!(buffer.finish(), Err(expected));
    }

    #[test]
    fn remaining_says_when_a_nest_is_full() {
        let mut buffer = MessageBuffer::new();
        buffer.begin(1, 0, 1);
        let nest = buffer.begin_nested(2);
        let mut elements = 0;
        while buffer.remaining(nest) >= 12 {
            buffer.attr_u64_be(3, elements);
            elements += 1;
        }
        buffer.end_nested(nest);
        buffer.end();
        assert_eq!(elements, 65_531 / 12);
        buffer.finish().unwrap();
    }

    #[test]
    fn unfinished_messages_are_reported() {
        let mut buffer = MessageBuffer::new();
        buffer.begin(1, 0, 3);
        assert_eq!(buffer.finish(), Err(CodecError::Unfinished { sequence: 3 }));
        buffer.begin(1, 0, 4);
        buffer.end();
        assert_eq!(buffer.finish(), Err(CodecError::Unfinished { sequence: 3 }));
    }

    #[test]
    fn truncated_input_ends_the_iteration() {
        let mut buffer = MessageBuffer::new();
        for sequence in 0..3 {
            buffer.begin(1, 0, sequence);
            buffer.attr_u32(2, 3);
            buffer.end();
        }
        let bytes = buffer.finish().unwrap();
        for len in 0..bytes.len() {
            let mut messages = Messages::new(&bytes[..len]);
            assert_eq!(messages.by_ref().count(), len / 24);
            assert_eq!(messages.rest().len(), len % 24);
        }
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes: Vec<u8>) {
            for message in Messages::new(&bytes) {
                for attribute in message.attributes(4) {
                    let _text = attribute.str();
                    attribute.nested().for_each(drop);
                }
            }
            Attributes::new(&bytes).for_each(drop);
        }

        #[test]
        fn what_is_written_is_read(
            attributes in proptest::collection::vec(
                (0_u16..TYPE_MASK, proptest::collection::vec(any::<u8>(), 0..40)),
                0..20,
            )
        ) {
            let bytes = written(|buffer| {
                for (kind, payload) in &attributes {
                    buffer.attr_bytes(*kind, payload);
                }
            });
            let read: Vec<_> =
                Attributes::new(&bytes).map(|a| (a.kind, a.payload.to_vec())).collect();
            prop_assert_eq!(read, attributes);
        }
    }
}
