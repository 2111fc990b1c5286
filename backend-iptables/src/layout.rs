//! Names of chains, and the tree by which a packet finds its Service.
//!
//! ```text
//! PREROUTING, OUTPUT ─► KUBE-SERVICES ─► KUBE-SERVICES-0A ─► KUBE-SERVICES-0A-03
//!                            │  by the lowest 5 bits of the destination, then the next 5
//!                            │              └─► KUBE-SVC-…, KUBE-EXT-…, KUBE-FW-…: one rule each
//!                            └─► KUBE-NODEPORTS ─► KUBE-NODEPORTS-6-1D5 (ports 30016 to 30031)
//! ```
//!
//! kube-proxy has one rule per address in one chain, so that a packet meets as many rules as there
//! are Services. Here it meets at most 64 and those of the addresses that share all ten bits: one in
//! a thousand. Low bits are spread evenly however addresses are allocated, in order or at random,
//! in a small range or a large one, IPv4 or IPv6, which prefixes are not; so the tree has one
//! fixed shape, and where a rule goes depends on its address alone. The refusals of the filter
//! table hang below KUBE-SERVICES, KUBE-EXTERNAL-SERVICES and KUBE-PROXY-FIREWALL in the same way.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proxy_core::address::IpFamily;
use proxy_core::names::{Protocol, ServicePortName};
use sha2::{Digest, Sha256};

use crate::model::{Key, Rule, Rules, Table, Text};

/// Frontends by address (nat); refusals of cluster IPs (filter).
pub const SERVICES: &str = "KUBE-SERVICES";
/// Refusals of the other addresses.
pub const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
/// Node ports (nat); health checks that may come in (filter).
pub const NODEPORTS: &str = "KUBE-NODEPORTS";
/// Node ports that are refused.
pub const NODEPORTS_REJECT: &str = "KUBE-NODEPORTS-REJECT";
/// Load-balancer addresses that admit only some sources.
pub const FIREWALL: &str = "KUBE-PROXY-FIREWALL";
/// What may be forwarded.
pub const FORWARD: &str = "KUBE-FORWARD";
/// Masquerades what is marked.
pub const POSTROUTING: &str = "KUBE-POSTROUTING";
/// Marks what is to be masqueraded.
pub const MARK_MASQ: &str = "KUBE-MARK-MASQ";
/// Keeps neighbours off 127.0.0.0/8. The kubelet has rules of its own in it.
pub const LOCALNET_FIREWALL: &str = "KUBE-FIREWALL";

/// Prefixes of the chains of service ports.
pub(crate) const SVC: &str = "KUBE-SVC-";
pub(crate) const SVL: &str = "KUBE-SVL-";
pub(crate) const EXT: &str = "KUBE-EXT-";
pub(crate) const FW: &str = "KUBE-FW-";
pub(crate) const SEP: &str = "KUBE-SEP-";

/// Chains that kube-proxy makes to notice a flush.
const CANARY: &str = "KUBE-PROXY-CANARY";

/// The roots of trees.
const ROOTS: [&str; 5] = [SERVICES, EXTERNAL_SERVICES, NODEPORTS, NODEPORTS_REJECT, FIREWALL];

/// Bits of the address that one level of a tree looks at.
const LEVEL_BITS: u32 = 5;
/// Ports that one chain below [`NODEPORTS`] is for.
const PORT_BLOCK: u16 = 16;

/// The first 16 digits of the base 32 of SHA-256 over all parts, as kube-proxy names chains.
pub(crate) fn chain_name(prefix: &str, parts: &[&str]) -> Text {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.as_bytes());
    }
    let hash = hash.finalize();
    let mut name = String::from(prefix);
    // 10 bytes are 16 digits of 5 bits.
    let number = hash.iter().take(10).fold(0_u128, |sum, byte| (sum << 8) | u128::from(*byte));
    for digit in (0..16).rev() {
        let digit = usize::try_from((number >> (digit * 5)) & 31).unwrap_or(0);
        name.push(DIGITS.get(digit).map_or('A', |digit| char::from(*digit)));
    }
    name.into()
}

/// The chain of a service port.
pub(crate) fn port_chain(prefix: &str, port: &ServicePortName) -> Text {
    chain_name(prefix, &[&port.to_string(), port.protocol.as_str()])
}

/// The chain of an endpoint of a service port.
pub(crate) fn endpoint_chain(port: &ServicePortName, endpoint: &str) -> Text {
    chain_name(SEP, &[&port.to_string(), port.protocol.as_str(), endpoint])
}

/// Whether a chain is ours, or kube-proxy's.
pub(crate) fn is_ours(name: &str) -> bool {
    is_shared(name)
        || [FORWARD, POSTROUTING, MARK_MASQ, CANARY].contains(&name)
        || [SVC, SVL, EXT, FW, SEP].iter().any(|prefix| name.starts_with(prefix))
}

/// Whether several owners have rules in a chain.
pub(crate) fn is_shared(name: &str) -> bool {
    name == LOCALNET_FIREWALL || ROOTS.contains(&name) || is_branch(name)
}

/// Whether a chain hangs below the root of a tree.
pub(crate) fn is_branch(name: &str) -> bool {
    name != NODEPORTS_REJECT
        && ROOTS.iter().any(|root| name.strip_prefix(root).is_some_and(|it| it.starts_with('-')))
}

/// Whether a rule leads from a chain of a tree to one below it.
pub(crate) fn is_branching(chain: &str, rule: &str) -> bool {
    let target = crate::text::target(rule);
    is_branch(target) && target.strip_prefix(chain).is_some_and(|rest| rest.starts_with('-'))
}

/// Order of chains: each jumps only to chains of smaller rank.
pub(crate) fn rank(name: &str) -> u8 {
    match name {
        MARK_MASQ | CANARY => 0,
        _ if name.starts_with(SEP) => 1,
        _ if name.starts_with(SVC) || name.starts_with(SVL) => 2,
        _ if name.starts_with(EXT) => 3,
        _ if name.starts_with(FW) => 4,
        NODEPORTS | NODEPORTS_REJECT => 6,
        _ if is_branch(name) => 5,
        _ => 7,
    }
}

/// Whether a rule goes before those that are in its chain already. In the tree's root, what leads
/// to an address goes before the node ports, so that a specific address wins.
pub(crate) fn goes_first(chain: &str, rule: &str) -> bool {
    [SERVICES, EXTERNAL_SERVICES].contains(&chain)
        && ![NODEPORTS, NODEPORTS_REJECT].contains(&crate::text::target(rule))
}

/// Where below a root the rules for an address are; brings the chains that lead there.
pub(crate) fn address_branch(table: Table, root: &str, address: IpAddr, out: &mut Rules) -> Text {
    let mut chain = Text::from(root);
    for level in 0..2 {
        let shift = level * LEVEL_BITS;
        let mask = ((1_u128 << LEVEL_BITS) - 1) << shift;
        let bits = to_number(address) & mask;
        let branch = Text::from(format!("{chain}-{:02X}", bits >> shift));
        let family = IpFamily::of(address);
        let rule =
            format!("-d {}/{} -j {branch}", from_number(bits, family), from_number(mask, family));
        out.insert(Key::entry(table, &chain, &rule.into()), Rule::Entry);
        out.insert(Key::chain(table, &branch), Rule::Shared);
        chain = branch;
    }
    chain
}

/// Where below a root the rules for a port are; brings the chains that lead there.
pub(crate) fn port_branch(
    table: Table,
    root: &str,
    protocol: Protocol,
    port: u16,
    out: &mut Rules,
) -> Text {
    let block = port / PORT_BLOCK;
    let first = block * PORT_BLOCK;
    let last = first + (PORT_BLOCK - 1);
    let branch = Text::from(format!("{root}-{:X}-{block:X}", protocol.number()));
    let name = protocol.as_str();
    let rule = format!("-p {name} -m {name} --dport {first}:{last} -j {branch}");
    out.insert(Key::entry(table, &root.into(), &rule.into()), Rule::Entry);
    out.insert(Key::chain(table, &branch), Rule::Shared);
    branch
}

fn to_number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn from_number(number: u128, family: IpFamily) -> IpAddr {
    match family {
        // Only the lowest bits are ever set.
        IpFamily::V4 => Ipv4Addr::from(u32::try_from(number).unwrap_or(0)).into(),
        IpFamily::V6 => Ipv6Addr::from(number).into(),
    }
}

/// What one of the kernel's chains jumps to, in order.
pub(crate) struct Jump {
    pub(crate) from: &'static str,
    pub(crate) table: Table,
    pub(crate) to: &'static str,
    comment: &'static str,
    only_new: bool,
}

impl Jump {
    pub(crate) fn text(&self) -> Text {
        let new = if self.only_new { "-m conntrack --ctstate NEW " } else { "" };
        let comment = if self.comment.is_empty() {
            String::new()
        } else {
            format!("-m comment --comment \"{}\" ", self.comment)
        };
        format!("{new}{comment}-j {}", self.to).into()
    }
}

/// The jumps to our chains, in the order in which each of the kernel's chains has them.
///
/// Texts are kube-proxy's, byte for byte, so that its jumps are recognised. Beyond kube-proxy,
/// what the host sends to an external address without endpoints is refused as well.
pub(crate) const JUMPS: &[Jump] = &[
    jump(Table::Filter, "INPUT", LOCALNET_FIREWALL, "", false),
    jump(Table::Filter, "INPUT", FIREWALL, LOAD_BALANCER, true),
    jump(Table::Filter, "INPUT", NODEPORTS, "kubernetes health check service ports", false),
    jump(Table::Filter, "INPUT", EXTERNAL_SERVICES, VISIBLE, true),
    jump(Table::Filter, "FORWARD", FIREWALL, LOAD_BALANCER, true),
    jump(Table::Filter, "FORWARD", FORWARD, "kubernetes forwarding rules", false),
    jump(Table::Filter, "FORWARD", SERVICES, PORTALS, true),
    jump(Table::Filter, "FORWARD", EXTERNAL_SERVICES, VISIBLE, true),
    jump(Table::Filter, "OUTPUT", LOCALNET_FIREWALL, "", false),
    jump(Table::Filter, "OUTPUT", FIREWALL, LOAD_BALANCER, true),
    jump(Table::Filter, "OUTPUT", SERVICES, PORTALS, true),
    jump(Table::Filter, "OUTPUT", EXTERNAL_SERVICES, VISIBLE, true),
    jump(Table::Nat, "PREROUTING", SERVICES, PORTALS, false),
    jump(Table::Nat, "OUTPUT", SERVICES, PORTALS, false),
    jump(Table::Nat, "POSTROUTING", POSTROUTING, "kubernetes postrouting rules", false),
];

const PORTALS: &str = "kubernetes service portals";
const VISIBLE: &str = "kubernetes externally-visible service portals";
const LOAD_BALANCER: &str = "kubernetes load balancer firewall";

const fn jump(
    table: Table,
    from: &'static str,
    to: &'static str,
    comment: &'static str,
    only_new: bool,
) -> Jump {
    Jump { from, table, to, comment, only_new }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(namespace: &str, name: &str, port: &str, protocol: Protocol) -> ServicePortName {
        ServicePortName {
            service: proxy_core::names::ServiceName::new(namespace, name),
            port: port.into(),
            protocol,
        }
    }

    #[test]
    fn chain_names_are_kube_proxys() {
        let web = port("default", "web", "http", Protocol::Tcp);
        assert_eq!(&*port_chain(SVC, &web), "KUBE-SVC-CDGGSHYLG3RE2FKL");
        let dns = port("default", "dns", "dns", Protocol::Udp);
        assert_eq!(&*port_chain(SVL, &dns), "KUBE-SVL-2MBSHUE5GJKPO227");
        let single = port("default", "single", "", Protocol::Tcp);
        assert_eq!(&*port_chain(EXT, &single), "KUBE-EXT-GI2DS44EQ6V3GHV6");
        assert_eq!(&*endpoint_chain(&web, "10.180.0.11:8080"), "KUBE-SEP-I7ZF6JQMFLEUIVJH");
        let v6 = endpoint_chain(&web, "[fd00:10:180::11]:8080");
        assert_eq!(&*v6, "KUBE-SEP-H4SI5MTBIW7VLGM6");
    }

    #[test]
    fn names_fit_and_trees_keep_to_themselves() {
        let mut out = Rules::new();
        let address = "10.96.255.255".parse().unwrap();
        for root in [SERVICES, EXTERNAL_SERVICES, FIREWALL] {
            let leaf = address_branch(Table::Filter, root, address, &mut out);
            assert!(is_branch(&leaf) && leaf.len() <= 28, "{leaf}");
        }
        for root in [NODEPORTS, NODEPORTS_REJECT] {
            let leaf = port_branch(Table::Filter, root, Protocol::Sctp, 65_535, &mut out);
            assert!(is_branch(&leaf) && leaf.len() <= 28, "{leaf}");
        }
        for (key, _) in &out {
            let Key::Entry { chain, rule, .. } = key else { continue };
            assert!(is_branching(chain, rule), "{chain} {rule}");
        }
        assert!(!is_branch(SERVICES) && !is_branch(NODEPORTS_REJECT) && !is_branch("KUBE-EXT-A"));
        assert!(!is_branching(SERVICES, "-d 10.0.0.1/32 -j KUBE-NODEPORTS"));
    }

    #[test]
    fn chains_jump_only_to_smaller_ranks() {
        let below = [
            (SEP, MARK_MASQ),
            (SVC, SEP),
            (EXT, SVC),
            (FW, EXT),
            ("KUBE-SERVICES-0A-03", FW),
            (NODEPORTS, "KUBE-NODEPORTS-6-1"),
            (SERVICES, NODEPORTS),
            (SERVICES, "KUBE-SERVICES-0A"),
            (EXTERNAL_SERVICES, NODEPORTS_REJECT),
        ];
        for (from, to) in below {
            assert!(rank(to) < rank(from), "{from} {to}");
        }
    }
}
