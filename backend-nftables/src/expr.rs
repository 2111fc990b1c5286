//! Expressions, of which the kernel's rules are made.
//!
//! Only those in use are known. They are compared in this form, so a rule that went to the kernel
//! and came back equals itself, and a rule that somebody else wrote or changed does not.

use std::sync::Arc;

use node_sys::netlink::{Attributes, MessageBuffer};
use proxy_core::address::IpFamily;

use crate::uapi::data::VALUE;
use crate::uapi::{LIST_ELEMENT, data, expr, nfproto};

/// A register, by the number of its first 32-bit word (0 to 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u8);

impl Register {
    /// `NFT_REG_1`.
    const WIDE: u32 = 1;
    /// `NFT_REG32_00`.
    const NARROW: u32 = 8;

    /// The number the kernel itself reports for this register (`nft_dump_register`).
    fn number(self) -> u32 {
        let word = u32::from(self.0);
        if word.is_multiple_of(4) { Self::WIDE + word / 4 } else { Self::NARROW + word }
    }

    fn from_number(number: u32) -> Option<Self> {
        let word = match number {
            Self::WIDE..=4 => (number - Self::WIDE) * 4,
            Self::NARROW..=23 => number - Self::NARROW,
            _ => return None,
        };
        u8::try_from(word).ok().map(Self)
    }
}

/// Part of the packet an offset counts from (`enum nft_payload_bases`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// `NFT_PAYLOAD_NETWORK_HEADER`.
    Network,
    /// `NFT_PAYLOAD_TRANSPORT_HEADER`.
    Transport,
}

/// A fact about the packet that is not in it (`enum nft_meta_keys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// `NFT_META_MARK`.
    Mark,
    /// `NFT_META_IIFNAME`.
    InputInterface,
    /// `NFT_META_L4PROTO`.
    L4Protocol,
}

/// A fact about the connection (`enum nft_ct_keys`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ct {
    /// `NFT_CT_STATE`.
    State,
    /// `NFT_CT_STATUS`.
    Status,
    /// `NFT_CT_DST_IP` or `NFT_CT_DST_IP6`, original direction.
    OriginalDestination(IpFamily),
    /// `NFT_CT_PROTO_DST`, original direction.
    OriginalDestinationPort,
}

/// Which address a route look-up is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FibAddress {
    /// `NFTA_FIB_F_SADDR`.
    Source,
    /// `NFTA_FIB_F_DADDR`.
    Destination,
}

/// How to refuse a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// `NFT_REJECT_TCP_RST`.
    TcpReset,
    /// `NFT_REJECT_ICMP_UNREACH`, port unreachable.
    PortUnreachable(IpFamily),
}

impl Refusal {
    fn numbers(self) -> (u32, u8) {
        match self {
            Self::PortUnreachable(IpFamily::V4) => (0, 3),
            Self::PortUnreachable(IpFamily::V6) => (0, 4),
            Self::TcpReset => (1, 0),
        }
    }
}

/// What becomes of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Thrown away.
    Drop,
    /// Let through this hook.
    Accept,
    /// Back to the calling chain.
    Return,
    /// To a chain, and back if it gives no verdict.
    Jump(Arc<str>),
    /// To a chain, and not back.
    Goto(Arc<str>),
}

impl Verdict {
    pub(crate) fn write(&self, out: &mut MessageBuffer) {
        let (code, chain) = match self {
            Self::Drop => (data::DROP, None),
            Self::Accept => (data::ACCEPT, None),
            Self::Return => (data::RETURN, None),
            Self::Jump(chain) => (data::JUMP, Some(chain)),
            Self::Goto(chain) => (data::GOTO, Some(chain)),
        };
        out.nested(data::VERDICT, |out| {
            out.attr_bytes(data::VERDICT_CODE, &code.to_be_bytes());
            if let Some(chain) = chain {
                out.attr_str(data::VERDICT_CHAIN, chain);
            }
        });
    }

    /// Reads the contents of a data attribute.
    pub(crate) fn read(data: &Attributes<'_>) -> Option<Self> {
        let verdict = data.get(data::VERDICT)?.nested();
        let code = verdict.get(data::VERDICT_CODE)?.u32_be()?.cast_signed();
        let chain = || Some(Arc::from(verdict.get(data::VERDICT_CHAIN)?.str()?));
        Some(match code {
            data::DROP => Self::Drop,
            data::ACCEPT => Self::Accept,
            data::RETURN => Self::Return,
            data::JUMP => Self::Jump(chain()?),
            data::GOTO => Self::Goto(chain()?),
            _ => return None,
        })
    }
}

/// One step of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expr {
    /// Loads bytes of the packet.
    Payload {
        /// Where the offset counts from.
        header: Header,
        /// Offset in bytes.
        offset: u32,
        /// Number of bytes.
        len: u32,
        /// Where to.
        to: Register,
    },
    /// Loads a fact about the packet.
    Meta {
        /// The fact.
        key: Meta,
        /// Where to.
        to: Register,
    },
    /// Sets the packet's mark.
    SetMark {
        /// Where from.
        from: Register,
    },
    /// Loads a fact about the connection.
    Ct {
        /// The fact.
        key: Ct,
        /// Where to.
        to: Register,
    },
    /// Loads the kind of an address, as routing sees it.
    FibType {
        /// Which address.
        address: FibAddress,
        /// Where to.
        to: Register,
    },
    /// Ends the rule unless the register equals (or, inverted, differs from) the bytes.
    Cmp {
        /// The register.
        register: Register,
        /// Whether it has to differ.
        differs: bool,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`.
    Bitwise {
        /// Where from.
        from: Register,
        /// Where to.
        to: Register,
        /// The mask.
        mask: Vec<u8>,
        /// What is flipped afterwards.
        xor: Vec<u8>,
    },
    /// Ends the rule unless the set has the key.
    Contains {
        /// Name of the set.
        set: Arc<str>,
        /// Where the key is.
        key: Register,
    },
    /// Replaces the key by what the map has for it; ends the rule if it has nothing.
    Map {
        /// Name of the map.
        map: Arc<str>,
        /// Where the key is.
        key: Register,
        /// Where to.
        to: Register,
    },
    /// Takes the verdict that the map has for the key; ends the rule if it has none.
    VerdictMap {
        /// Name of the map.
        map: Arc<str>,
        /// Where the key is.
        key: Register,
    },
    /// Loads a random number from `offset` to `offset + modulus - 1`.
    Random {
        /// How many numbers.
        modulus: u32,
        /// The smallest.
        offset: u32,
        /// Where to.
        to: Register,
    },
    /// Translates the destination.
    Dnat {
        /// Family of the address.
        family: IpFamily,
        /// Where the address is.
        address: Register,
        /// Where the port is.
        port: Register,
    },
    /// Translates the source to an address of the outgoing interface, with a random port.
    Masquerade,
    /// Puts key and value into a map, or renews the time the key has left.
    UpdateMap {
        /// Name of the map.
        map: Arc<str>,
        /// Where the key is.
        key: Register,
        /// Where the value is.
        value: Register,
        /// How long the map keeps it, in milliseconds.
        timeout_ms: u64,
    },
    /// Refuses the packet.
    Reject(Refusal),
    /// Gives a verdict.
    Verdict(Verdict),
    /// An expression that this program never writes, by name.
    Unknown(String),
}

/// `NFT_REG_VERDICT`.
const VERDICT_REGISTER: u32 = 0;
/// `NFT_CMP_EQ`, `NFT_CMP_NEQ`.
const CMP_EQUAL: u32 = 0;
const CMP_DIFFERS: u32 = 1;
/// `NFTA_FIB_F_SADDR`, `NFTA_FIB_F_DADDR`.
const FIB_SOURCE: u32 = 1;
const FIB_DESTINATION: u32 = 2;

impl Meta {
    const ALL: [Self; 3] = [Self::Mark, Self::InputInterface, Self::L4Protocol];

    fn number(self) -> u32 {
        match self {
            Self::Mark => 3,
            Self::InputInterface => 6,
            Self::L4Protocol => 16,
        }
    }
}

impl Ct {
    const ALL: [Self; 5] = [
        Self::State,
        Self::Status,
        Self::OriginalDestination(IpFamily::V4),
        Self::OriginalDestination(IpFamily::V6),
        Self::OriginalDestinationPort,
    ];

    /// Key and, where the kernel wants one, direction (`IP_CT_DIR_ORIGINAL`).
    fn numbers(self) -> (u32, Option<u8>) {
        match self {
            Self::State => (0, None),
            Self::Status => (2, None),
            Self::OriginalDestination(IpFamily::V4) => (20, Some(0)),
            Self::OriginalDestination(IpFamily::V6) => (22, Some(0)),
            Self::OriginalDestinationPort => (12, Some(0)),
        }
    }
}

pub(crate) fn family_number(family: IpFamily) -> u8 {
    match family {
        IpFamily::V4 => nfproto::IPV4,
        IpFamily::V6 => nfproto::IPV6,
    }
}

fn write_register(out: &mut MessageBuffer, attribute: u16, register: Register) {
    out.attr_u32_be(attribute, register.number());
}

fn write_value(out: &mut MessageBuffer, attribute: u16, bytes: &[u8]) {
    out.nested(attribute, |out| out.attr_bytes(VALUE, bytes));
}

impl Expr {
    /// The kernel's name of the expression.
    fn name(&self) -> &str {
        match self {
            Self::Payload { .. } => "payload",
            Self::Meta { .. } | Self::SetMark { .. } => "meta",
            Self::Ct { .. } => "ct",
            Self::FibType { .. } => "fib",
            Self::Cmp { .. } => "cmp",
            Self::Bitwise { .. } => "bitwise",
            Self::Contains { .. } | Self::Map { .. } | Self::VerdictMap { .. } => "lookup",
            Self::Random { .. } => "numgen",
            Self::Dnat { .. } => "nat",
            Self::Masquerade => "masq",
            Self::UpdateMap { .. } => "dynset",
            Self::Reject(_) => "reject",
            Self::Verdict(_) => "immediate",
            Self::Unknown(name) => name,
        }
    }

    /// Writes the expression as an element of a rule's list.
    pub(crate) fn write(&self, out: &mut MessageBuffer) {
        out.nested(LIST_ELEMENT, |out| {
            out.attr_str(expr::NAME, self.name());
            out.nested(expr::DATA, |out| self.write_data(out));
        });
    }

    fn write_data(&self, out: &mut MessageBuffer) {
        match self {
            Self::Payload { header, offset, len, to } => {
                let base = match header {
                    Header::Network => 1,
                    Header::Transport => 2,
                };
                write_register(out, expr::PAYLOAD_DREG, *to);
                out.attr_u32_be(expr::PAYLOAD_BASE, base);
                out.attr_u32_be(expr::PAYLOAD_OFFSET, *offset);
                out.attr_u32_be(expr::PAYLOAD_LEN, *len);
            }
            Self::Meta { key, to } => {
                write_register(out, expr::META_DREG, *to);
                out.attr_u32_be(expr::META_KEY, key.number());
            }
            Self::SetMark { from } => {
                out.attr_u32_be(expr::META_KEY, Meta::Mark.number());
                write_register(out, expr::META_SREG, *from);
            }
            Self::Ct { key, to } => {
                let (number, direction) = key.numbers();
                write_register(out, expr::CT_DREG, *to);
                out.attr_u32_be(expr::CT_KEY, number);
                if let Some(direction) = direction {
                    out.attr_u8(expr::CT_DIRECTION, direction);
                }
            }
            Self::FibType { address, to } => {
                let flags = match address {
                    FibAddress::Source => FIB_SOURCE,
                    FibAddress::Destination => FIB_DESTINATION,
                };
                write_register(out, expr::FIB_DREG, *to);
                out.attr_u32_be(expr::FIB_RESULT, expr::FIB_ADDRESS_TYPE);
                out.attr_u32_be(expr::FIB_FLAGS, flags);
            }
            Self::Cmp { register, differs, bytes } => {
                write_register(out, expr::CMP_SREG, *register);
                let operation = if *differs { CMP_DIFFERS } else { CMP_EQUAL };
                out.attr_u32_be(expr::CMP_OP, operation);
                write_value(out, expr::CMP_DATA, bytes);
            }
            Self::Bitwise { from, to, mask, xor } => {
                write_register(out, expr::BITWISE_SREG, *from);
                write_register(out, expr::BITWISE_DREG, *to);
                let len = u32::try_from(mask.len()).unwrap_or(u32::MAX);
                out.attr_u32_be(expr::BITWISE_LEN, len);
                write_value(out, expr::BITWISE_MASK, mask);
                write_value(out, expr::BITWISE_XOR, xor);
            }
            Self::Verdict(verdict) => {
                out.attr_u32_be(expr::IMMEDIATE_DREG, VERDICT_REGISTER);
                out.nested(expr::IMMEDIATE_DATA, |out| verdict.write(out));
            }
            Self::Unknown(_) => {}
            _ => self.write_action(out),
        }
    }

    /// Look-ups, translations and refusals.
    fn write_action(&self, out: &mut MessageBuffer) {
        match self {
            Self::Contains { set, key } => {
                out.attr_str(expr::LOOKUP_SET, set);
                write_register(out, expr::LOOKUP_SREG, *key);
            }
            Self::Map { map, key, to } => {
                out.attr_str(expr::LOOKUP_SET, map);
                write_register(out, expr::LOOKUP_SREG, *key);
                write_register(out, expr::LOOKUP_DREG, *to);
            }
            Self::VerdictMap { map, key } => {
                out.attr_str(expr::LOOKUP_SET, map);
                write_register(out, expr::LOOKUP_SREG, *key);
                out.attr_u32_be(expr::LOOKUP_DREG, VERDICT_REGISTER);
            }
            Self::Random { modulus, offset, to } => {
                write_register(out, expr::NUMGEN_DREG, *to);
                out.attr_u32_be(expr::NUMGEN_MODULUS, *modulus);
                out.attr_u32_be(expr::NUMGEN_TYPE, expr::NUMGEN_RANDOM);
                out.attr_u32_be(expr::NUMGEN_OFFSET, *offset);
            }
            Self::Dnat { family, address, port } => {
                out.attr_u32_be(expr::NAT_TYPE, expr::NAT_DNAT);
                out.attr_u32_be(expr::NAT_FAMILY, family_number(*family).into());
                write_register(out, expr::NAT_ADDRESS_MIN, *address);
                write_register(out, expr::NAT_ADDRESS_MAX, *address);
                write_register(out, expr::NAT_PORT_MIN, *port);
                write_register(out, expr::NAT_PORT_MAX, *port);
            }
            Self::Masquerade => out.attr_u32_be(expr::MASQ_FLAGS, expr::MASQ_RANDOM_FULLY),
            Self::UpdateMap { map, key, value, timeout_ms } => {
                out.attr_str(expr::DYNSET_SET, map);
                out.attr_u32_be(expr::DYNSET_OP, expr::DYNSET_UPDATE);
                write_register(out, expr::DYNSET_SREG_KEY, *key);
                write_register(out, expr::DYNSET_SREG_DATA, *value);
                out.attr_u64_be(expr::DYNSET_TIMEOUT, *timeout_ms);
            }
            Self::Reject(refusal) => {
                let (kind, code) = refusal.numbers();
                out.attr_u32_be(expr::REJECT_TYPE, kind);
                out.attr_u8(expr::REJECT_CODE, code);
            }
            _ => {}
        }
    }

    /// Reads an element of a rule's list.
    pub(crate) fn read(element: &Attributes<'_>, family: IpFamily) -> Self {
        let name = element.get(expr::NAME).and_then(|name| name.str()).unwrap_or_default();
        element
            .get(expr::DATA)
            .map(|data| data.nested())
            .and_then(|data| Self::read_data(name, &data, family))
            .unwrap_or_else(|| Self::Unknown(name.to_owned()))
    }

    fn read_data(name: &str, data: &Attributes<'_>, family: IpFamily) -> Option<Self> {
        let number = |attribute| data.get(attribute)?.u32_be();
        let register = |attribute| Register::from_number(number(attribute)?);
        let bytes = |attribute| Some(data.get(attribute)?.nested().get(VALUE)?.payload.to_vec());
        Some(match name {
            "payload" => Self::Payload {
                header: match number(expr::PAYLOAD_BASE)? {
                    1 => Header::Network,
                    2 => Header::Transport,
                    _ => return None,
                },
                offset: number(expr::PAYLOAD_OFFSET)?,
                len: number(expr::PAYLOAD_LEN)?,
                to: register(expr::PAYLOAD_DREG)?,
            },
            "meta" => {
                let key = number(expr::META_KEY)?;
                let key = Meta::ALL.into_iter().find(|meta| meta.number() == key)?;
                match (register(expr::META_DREG), register(expr::META_SREG)) {
                    (Some(to), None) => Self::Meta { key, to },
                    (None, Some(from)) if key == Meta::Mark => Self::SetMark { from },
                    _ => return None,
                }
            }
            "ct" => {
                let key = number(expr::CT_KEY)?;
                let direction = data.get(expr::CT_DIRECTION).and_then(|d| d.u8());
                let key = Ct::ALL.into_iter().find(|ct| ct.numbers() == (key, direction))?;
                Self::Ct { key, to: register(expr::CT_DREG)? }
            }
            "fib" if number(expr::FIB_RESULT)? == expr::FIB_ADDRESS_TYPE => Self::FibType {
                address: match number(expr::FIB_FLAGS)? {
                    FIB_SOURCE => FibAddress::Source,
                    FIB_DESTINATION => FibAddress::Destination,
                    _ => return None,
                },
                to: register(expr::FIB_DREG)?,
            },
            "cmp" => Self::Cmp {
                register: register(expr::CMP_SREG)?,
                differs: match number(expr::CMP_OP)? {
                    CMP_EQUAL => false,
                    CMP_DIFFERS => true,
                    _ => return None,
                },
                bytes: bytes(expr::CMP_DATA)?,
            },
            "bitwise" => Self::Bitwise {
                from: register(expr::BITWISE_SREG)?,
                to: register(expr::BITWISE_DREG)?,
                mask: bytes(expr::BITWISE_MASK)?,
                xor: bytes(expr::BITWISE_XOR)?,
            },
            "immediate" if number(expr::IMMEDIATE_DREG)? == VERDICT_REGISTER => {
                Self::Verdict(Verdict::read(&data.get(expr::IMMEDIATE_DATA)?.nested())?)
            }
            _ => return Self::read_action(name, data, family),
        })
    }

    fn read_action(name: &str, data: &Attributes<'_>, family: IpFamily) -> Option<Self> {
        let number = |attribute| data.get(attribute)?.u32_be();
        let register = |attribute| Register::from_number(number(attribute)?);
        let text = |attribute| Some(Arc::from(data.get(attribute)?.str()?));
        Some(match name {
            "lookup" => {
                let (set, key) = (text(expr::LOOKUP_SET)?, register(expr::LOOKUP_SREG)?);
                match number(expr::LOOKUP_DREG) {
                    None => Self::Contains { set, key },
                    Some(VERDICT_REGISTER) => Self::VerdictMap { map: set, key },
                    Some(to) => Self::Map { map: set, key, to: Register::from_number(to)? },
                }
            }
            "numgen" if number(expr::NUMGEN_TYPE)? == expr::NUMGEN_RANDOM => Self::Random {
                modulus: number(expr::NUMGEN_MODULUS)?,
                offset: number(expr::NUMGEN_OFFSET)?,
                to: register(expr::NUMGEN_DREG)?,
            },
            "nat" if number(expr::NAT_TYPE)? == expr::NAT_DNAT => {
                let (address, port) =
                    (register(expr::NAT_ADDRESS_MIN)?, register(expr::NAT_PORT_MIN)?);
                let ours = number(expr::NAT_FAMILY)? == u32::from(family_number(family))
                    && register(expr::NAT_ADDRESS_MAX)? == address
                    && register(expr::NAT_PORT_MAX)? == port;
                ours.then_some(Self::Dnat { family, address, port })?
            }
            "masq" if number(expr::MASQ_FLAGS)? == expr::MASQ_RANDOM_FULLY => Self::Masquerade,
            "dynset" if number(expr::DYNSET_OP)? == expr::DYNSET_UPDATE => Self::UpdateMap {
                map: text(expr::DYNSET_SET)?,
                key: register(expr::DYNSET_SREG_KEY)?,
                value: register(expr::DYNSET_SREG_DATA)?,
                timeout_ms: data.get(expr::DYNSET_TIMEOUT)?.u64_be()?,
            },
            "reject" => {
                let code = data.get(expr::REJECT_CODE).and_then(|code| code.u8()).unwrap_or(0);
                let numbers = (number(expr::REJECT_TYPE)?, code);
                let refusal = [Refusal::TcpReset, Refusal::PortUnreachable(family)]
                    .into_iter()
                    .find(|refusal| refusal.numbers() == numbers)?;
                Self::Reject(refusal)
            }
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
