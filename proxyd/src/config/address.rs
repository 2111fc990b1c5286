//! Addresses and servers, with the lenient parser of Kubernetes (C2.1).

use std::net::{IpAddr, SocketAddr};

pub use proxy_core::address::Cidr;

/// Reads an address; no brackets, no zone, no port.
pub(super) fn parse_ip(text: &str) -> Option<IpAddr> {
    proxy_core::address::parse_ip(text).ok()
}

/// Reads an address block.
pub(super) fn parse_cidr(text: &str) -> Option<Cidr> {
    Cidr::parse(text).ok()
}

/// Reads `IP` or `IP:port`; a bare address gets `default_port`.
pub(super) fn parse_server(text: &str, default_port: u16) -> Option<SocketAddr> {
    if let Some(ip) = parse_ip(text) {
        return Some(SocketAddr::new(ip, default_port));
    }
    let (host, port) = text.rsplit_once(':')?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']')?,
        // An unbracketed IPv6 address with a port cannot be told from one without.
        None if host.contains(':') => return None,
        None => host,
    };
    let port: u16 = port.parse().ok()?;
    (port > 0).then_some(SocketAddr::new(parse_ip(host)?, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c9_7_servers() {
        let server = |text| parse_server(text, 9).map(|server| server.to_string());
        assert_eq!(server("[::]:10256").as_deref(), Some("[::]:10256"));
        assert_eq!(server("::1").as_deref(), Some("[::1]:9"));
        assert_eq!(server("127.0.0.1").as_deref(), Some("127.0.0.1:9"));
        for text in ["localhost:10249", ":10249", "[::]", "1.2.3.4:0", "1.2.3.4:65536", "1.2.3.4:"]
        {
            assert_eq!(server(text), None, "{text}");
        }
    }
}
