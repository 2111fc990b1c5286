//! Kernel objects as the programs of the field take them.

use std::fmt::Write as _;
use std::net::IpAddr;

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::Protocol;

use crate::compile::Rules;
use crate::ipset::set_type;
use crate::model::{Entry, Key, Rule, ServerKey, ServerSpec, SetName};
use crate::rules;
use crate::table::DEVICE;

/// The objects as input of `ipset restore`, `iptables-restore --noflush`, `ipvsadm -R` and
/// `ip -batch`, each under a comment that names the program.
pub fn render_text(rules: &Rules, family: IpFamily) -> String {
    let mut sets = String::new();
    let mut servers = String::new();
    let mut addresses = String::new();
    let mut chains = String::new();
    for (key, rule) in rules {
        match (key, rule) {
            (Key::Set(set), _) => line(&mut sets, &create(*set, family)),
            (Key::Entry(set, entry), _) => line(&mut sets, &add(*set, entry, family)),
            (Key::Live(server), _) => {
                line(&mut sets, &add(SetName::Live, &Entry::IpPort(*server), family));
            }
            (Key::Rules, Rule::Rules(lines)) => chains = rules::restore(&[], lines),
            (Key::Server(server), Rule::Server(spec)) => line(&mut servers, &service(server, spec)),
            (Key::Real(server, address, port), Rule::Real(spec)) => {
                let real = text_of(*address, *port);
                let server = selector(server);
                line(&mut servers, &format!("-a {server} -r {real} -m -w {}", spec.weight));
            }
            (Key::Bound(address), _) => {
                line(&mut addresses, &format!("address add {address} dev {DEVICE}"));
            }
            _ => {}
        }
    }
    let name = match family {
        IpFamily::V4 => "iptables-restore",
        IpFamily::V6 => "ip6tables-restore",
    };
    format!(
        "# ipset restore\n{sets}# {name} --noflush\n{chains}# ipvsadm -R\n{servers}\
         # ip -batch -\nlink add {DEVICE} type dummy\n{addresses}"
    )
}

fn line(text: &mut String, line: &str) {
    // Writing to a string never fails.
    let _written = writeln!(text, "{line}");
}

fn create(set: SetName, family: IpFamily) -> String {
    let (kind, _) = set_type(set);
    let options = match (kind, family) {
        ("bitmap:port", _) => "range 0-65535",
        (_, IpFamily::V4) => "family inet",
        (_, IpFamily::V6) => "family inet6",
    };
    format!("create {} {kind} {options}", set.of(family))
}

fn add(set: SetName, entry: &Entry, family: IpFamily) -> String {
    let ip_port =
        |server: &ServerKey| format!("{},{}:{}", server.address, server.protocol, server.port);
    let element = match entry {
        Entry::Ip(address) => address.to_string(),
        Entry::Port(port) => port.to_string(),
        Entry::IpPort(server) => ip_port(server),
        Entry::IpPortNet(server, range) if *range == Cidr::host(range.address()) => {
            format!("{},{}", ip_port(server), range.address())
        }
        Entry::IpPortNet(server, range) => format!("{},{range}", ip_port(server)),
    };
    format!("add {} {element}", set.of(family))
}

fn service(server: &ServerKey, spec: &ServerSpec) -> String {
    let mut words = vec![format!("-A {} -s {}", selector(server), spec.scheduler)];
    if spec.flags & ServerSpec::PERSISTENT != 0 {
        words.push(format!("-p {}", spec.timeout));
    }
    if spec.flags & !ServerSpec::PERSISTENT != 0 {
        words.push(format!("-b {}-port", spec.scheduler));
    }
    words.join(" ")
}

fn selector(server: &ServerKey) -> String {
    let flag = match server.protocol {
        Protocol::Tcp => "-t",
        Protocol::Udp => "-u",
        Protocol::Sctp => "--sctp-service",
    };
    format!("{flag} {}", text_of(server.address, server.port))
}

fn text_of(address: IpAddr, port: u16) -> String {
    std::net::SocketAddr::new(address, port).to_string()
}
