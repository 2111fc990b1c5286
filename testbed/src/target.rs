//! Where a connection goes: address, port and protocol, written `172.30.0.1:80/TCP`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail};
use serde::Deserialize;

/// A transport protocol of a Service port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP, in its one-to-one style, which behaves like TCP here.
    Sctp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Sctp => "SCTP",
        })
    }
}

impl FromStr for Protocol {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "TCP" => Self::Tcp,
            "UDP" => Self::Udp,
            "SCTP" => Self::Sctp,
            _ => bail!("protocol {text:?} is none of TCP, UDP, SCTP"),
        })
    }
}

/// An address, port and protocol to dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Target {
    /// Address and port.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: Protocol,
}

impl Target {
    /// A TCP target.
    pub fn tcp(address: SocketAddr) -> Self {
        Self { address, protocol: Protocol::Tcp }
    }

    /// A UDP target.
    pub fn udp(address: SocketAddr) -> Self {
        Self { address, protocol: Protocol::Udp }
    }

    /// The address without the port.
    pub fn ip(&self) -> IpAddr {
        self.address.ip()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.protocol)
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, protocol) = text
            .rsplit_once('/')
            .with_context(|| format!("target {text:?} is not of the form ADDRESS:PORT/PROTOCOL"))?;
        let address = address.parse().with_context(|| format!("address of target {text:?}"))?;
        Ok(Self { address, protocol: protocol.parse()? })
    }
}

impl TryFrom<String> for Target {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_back_as_written() {
        for text in ["172.30.0.1:80/TCP", "[fd00:172:30::1]:53/UDP", "192.0.2.1:9/SCTP"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn broken_targets_are_refused() {
        for text in ["172.30.0.1:80", "172.30.0.1/TCP", "fd00::1:80/TCP", "172.30.0.1:80/tcp", ""] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }
}
