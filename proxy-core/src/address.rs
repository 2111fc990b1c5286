//! IP addresses and address ranges as Kubernetes objects write them.
//!
//! Old objects hold addresses that strict parsers refuse: leading zeros and IPv4-mapped IPv6.
//! Kubernetes keeps reading them, and so must a proxy (S3.4); output is always canonical.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// An IP family. Each family is a table of its own, with its own state, health and failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpFamily {
    /// Internet Protocol version 4.
    V4,
    /// Internet Protocol version 6.
    V6,
}

impl IpFamily {
    /// Both families, IPv4 first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }

    /// Number of bits in an address of this family.
    pub fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }

    /// The unspecified address of this family.
    pub fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }

    /// The usual loopback address of this family.
    pub fn loopback(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Self::V6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        }
    }
}

impl fmt::Display for IpFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

/// A text that is not an IP address or range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct AddressError {
    text: String,
    expected: &'static str,
}

impl AddressError {
    fn address(text: &str) -> Self {
        Self { text: text.to_owned(), expected: "an IP address" }
    }

    fn range(text: &str) -> Self {
        Self { text: text.to_owned(), expected: "an address range (CIDR)" }
    }
}

/// Reads an IP address leniently: leading zeros are decimal, IPv4-mapped IPv6 is IPv4 (S3.4).
pub fn parse_ip(text: &str) -> Result<IpAddr, AddressError> {
    parse_v4(text)
        .map(IpAddr::V4)
        .or_else(|| text.parse::<Ipv6Addr>().ok().map(|address| address.to_canonical()))
        .or_else(|| parse_v6_with_lenient_tail(text))
        .ok_or_else(|| AddressError::address(text))
}

fn parse_v4(text: &str) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split('.');
    for octet in &mut octets {
        *octet = parse_octet(parts.next()?)?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

fn parse_octet(text: &str) -> Option<u8> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let significant = text.trim_start_matches('0');
    match (digits, significant) {
        (false, _) => None,
        (true, "") => Some(0),
        (true, _) => significant.parse().ok(),
    }
}

/// `::ffff:010.0.0.1`: the IPv4 tail of an IPv6 address may have leading zeros too.
fn parse_v6_with_lenient_tail(text: &str) -> Option<IpAddr> {
    let (head, tail) = text.rsplit_once(':')?;
    let tail = parse_v4(tail)?;
    format!("{head}:{tail}").parse::<Ipv6Addr>().ok().map(|address| address.to_canonical())
}

/// An address range in CIDR form; the host bits of its address are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    address: IpAddr,
    prefix_len: u8,
}

impl Cidr {
    /// The range of `prefix_len` leading bits of `address`; `None` if there are more bits than
    /// the family has.
    pub fn new(address: IpAddr, prefix_len: u8) -> Option<Self> {
        (prefix_len <= IpFamily::of(address).bits())
            .then(|| Self { address: masked(address, prefix_len), prefix_len })
    }

    /// The range that holds this address alone.
    pub fn host(address: IpAddr) -> Self {
        Self { address, prefix_len: IpFamily::of(address).bits() }
    }

    /// Reads a range as leniently as [`parse_ip`] reads an address.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        let error = || AddressError::range(text);
        let (address, prefix_len) = text.split_once('/').ok_or_else(error)?;
        let mapped = address.contains(':');
        let address = parse_ip(address).map_err(|_| error())?;
        let prefix_len = parse_octet(prefix_len).ok_or_else(error)?;
        let prefix_len = match address {
            IpAddr::V4(_) if mapped => prefix_len.checked_sub(96).ok_or_else(error)?,
            _ => prefix_len,
        };
        Self::new(address, prefix_len).ok_or_else(error)
    }

    /// First address of the range.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Last address of the range.
    pub fn last(&self) -> IpAddr {
        match self.address {
            IpAddr::V4(first) => {
                let host = u32::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(first.to_bits() | host))
            }
            IpAddr::V6(first) => {
                let host = u128::MAX.checked_shr(self.prefix_len.into()).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(first.to_bits() | host))
            }
        }
    }

    /// Number of leading bits that all addresses of the range share.
    pub fn prefix_len(&self) -> u8 {
        self.prefix_len
    }

    /// Family of the range.
    pub fn family(&self) -> IpFamily {
        IpFamily::of(self.address)
    }

    /// Whether the address lies in the range.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.family() == IpFamily::of(address) && masked(address, self.prefix_len) == self.address
    }

    /// Whether every address of `other` lies in this range.
    pub fn covers(&self, other: &Self) -> bool {
        self.prefix_len <= other.prefix_len && self.contains(other.address)
    }
}

fn masked(address: IpAddr, prefix_len: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & !host))
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(prefix_len.into()).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !host))
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix_len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> Option<String> {
        parse_ip(text).ok().map(|address| address.to_string())
    }

    fn cidr(text: &str) -> Option<String> {
        Cidr::parse(text).ok().map(|range| range.to_string())
    }

    #[test]
    fn s3_4_addresses_are_read_leniently_and_written_canonically() {
        assert_eq!(ip("172.30.0.041").as_deref(), Some("172.30.0.41"));
        assert_eq!(ip("000.00.0.0").as_deref(), Some("0.0.0.0"));
        assert_eq!(ip("::ffff:10.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(ip("::ffff:010.0.0.1").as_deref(), Some("10.0.0.1"));
        assert_eq!(ip("FD00::0001").as_deref(), Some("fd00::1"));
        for text in ["", " 1.2.3.4", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.-4", "a", "::g"] {
            assert_eq!(ip(text), None, "{text:?}");
        }
    }

    #[test]
    fn s3_4_ranges_are_read_leniently_and_written_canonically() {
        assert_eq!(cidr("203.0.113.000/025").as_deref(), Some("203.0.113.0/25"));
        assert_eq!(cidr("10.1.2.3/8").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(cidr("::ffff:10.0.0.0/104").as_deref(), Some("10.0.0.0/8"));
        assert_eq!(cidr("fd00::1/0").as_deref(), Some("::/0"));
        for text in ["", "10.0.0.0", "10.0.0.0/33", "::/129", "::ffff:10.0.0.0/8", "1.2.3.4/+1"] {
            assert_eq!(cidr(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_range_knows_its_ends_and_members() {
        let range = Cidr::parse("10.180.0.0/14").unwrap();
        assert_eq!(range.last().to_string(), "10.183.255.255");
        assert!(range.contains(parse_ip("10.183.0.1").unwrap()));
        assert!(!range.contains(parse_ip("10.184.0.0").unwrap()));
        assert!(!range.contains(parse_ip("fd00::1").unwrap()));
        assert!(range.covers(&Cidr::parse("10.181.0.0/16").unwrap()));
        assert!(!range.covers(&Cidr::parse("10.0.0.0/8").unwrap()));
        assert_eq!(Cidr::parse("::/0").unwrap().last().to_string().len(), 39);
    }
}
