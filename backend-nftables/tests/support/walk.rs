//! Interprets the rules: what becomes of a packet.
//!
//! It follows the first packet of a connection through the hooks like the kernel does, so a test
//! can compare the outcome with the facts that the rules were compiled from. Keys of elements are
//! encoded here once more, apart from the code under test.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use backend_nftables::{
    Base, ChainSpec, ChainType, Ct, Expr, FibAddress, Header, Hook, Key, Meta, Refusal, Rule,
    RuleSpec, Verdict,
};
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::resolved::FrontendKey;

use super::Rules;

/// Where a connection's first packet comes from and goes to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) port: u16,
    /// Where it came in; `None` for one that a process of this node sends.
    pub(crate) interface: Option<&'static str>,
}

/// What becomes of a packet that is let through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passed {
    /// The new destination.
    pub(crate) to: Option<(IpAddr, u16)>,
    pub(crate) masqueraded: bool,
    pub(crate) mark: u32,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed(Passed),
    Dropped,
    Rejected(Refusal),
}

type Elements<'a> = HashMap<Vec<u8>, &'a Rule>;

/// The rules, ready to be walked.
pub(crate) struct Walker<'a> {
    family: IpFamily,
    chains: HashMap<&'a str, &'a ChainSpec>,
    bases: Vec<(&'a Base, &'a ChainSpec)>,
    sets: HashMap<&'a str, Elements<'a>>,
    ranges: BTreeMap<Vec<u8>, Vec<Cidr>>,
    local: BTreeSet<IpAddr>,
    /// Client addresses and their endpoints, by map.
    pub(crate) remembered: BTreeMap<(String, IpAddr), (IpAddr, u16)>,
    random: u64,
    /// Faults of the rules themselves, such as a look-up in a set that does not exist.
    pub(crate) faults: Vec<String>,
}

/// A packet on its way.
struct Way {
    packet: Packet,
    registers: [u8; 64],
    mark: u32,
    to: Option<(IpAddr, u16)>,
    masqueraded: bool,
}

enum Step {
    Next,
    EndRule,
    Verdict(Verdict),
    Reject(Refusal),
    /// Translated; no other rule of this hook's NAT chains counts.
    Translated,
}

enum Fate {
    Continue,
    Accept,
    Drop,
    Reject(Refusal),
}

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

fn put_address(bytes: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(address) => bytes.extend(address.octets()),
        IpAddr::V6(address) => bytes.extend(address.octets()),
    }
}

fn put_port(bytes: &mut Vec<u8>, protocol: u8, port: u16) {
    bytes.push(protocol);
    pad(bytes);
    bytes.extend(port.to_be_bytes());
    pad(bytes);
}

fn put_frontend(bytes: &mut Vec<u8>, key: &FrontendKey) {
    if let FrontendKey::Address { address, .. } = key {
        put_address(bytes, *address);
    }
    put_port(bytes, key.protocol().number(), key.port());
}

/// The set an object is an element of, with its key.
fn element<'a>(key: &'a Key) -> Option<(&'a str, Vec<u8>)> {
    let mut bytes = Vec::new();
    let by_kind = |key: &FrontendKey, address: &'a str, node_port: &'a str| match key {
        FrontendKey::Address { .. } => address,
        FrontendKey::NodePort { .. } => node_port,
    };
    let set = match key {
        Key::Table | Key::Set(_) | Key::Chain(_) | Key::SourceRange(_) => return None,
        Key::StaleClient { map, client } => {
            put_address(&mut bytes, *client);
            map
        }
        Key::ClusterIp(address) | Key::NodePortIp(address) => {
            put_address(&mut bytes, *address);
            if matches!(key, Key::ClusterIp(_)) { "cluster-ips" } else { "nodeport-ips" }
        }
        Key::Hairpin(address, protocol, port) => {
            put_address(&mut bytes, *address);
            put_address(&mut bytes, *address);
            put_port(&mut bytes, protocol.number(), *port);
            "hairpin-connections"
        }
        Key::AffinityEndpoint(address, protocol, port) => {
            put_address(&mut bytes, *address);
            put_port(&mut bytes, protocol.number(), *port);
            "affinity-endpoints"
        }
        Key::Endpoint(frontend, number) => {
            put_frontend(&mut bytes, frontend);
            bytes.extend(number.to_ne_bytes());
            by_kind(frontend, "service-endpoints", "nodeport-endpoints")
        }
        Key::PoolEndpoint(map, protocol, number) => {
            bytes.push(protocol.number());
            pad(&mut bytes);
            bytes.extend(number.to_ne_bytes());
            map
        }
        Key::AffinityFrontend(frontend) => {
            put_frontend(&mut bytes, frontend);
            by_kind(frontend, "affinity-services", "affinity-nodeports")
        }
        Key::Firewall(frontend) => {
            put_frontend(&mut bytes, frontend);
            "firewall-ips"
        }
        Key::Refusal(frontend) => {
            put_frontend(&mut bytes, frontend);
            by_kind(frontend, "no-endpoint-services", "no-endpoint-nodeports")
        }
        Key::Frontend(frontend) => {
            put_frontend(&mut bytes, frontend);
            by_kind(frontend, "service-ips", "service-nodeports")
        }
    };
    Some((set, bytes))
}

impl<'a> Walker<'a> {
    /// `local` are the addresses of this node.
    pub(crate) fn new(rules: &'a Rules, family: IpFamily, local: &[IpAddr]) -> Self {
        let mut walker = Self {
            family,
            chains: HashMap::new(),
            bases: Vec::new(),
            sets: HashMap::new(),
            ranges: BTreeMap::new(),
            local: local.iter().copied().collect(),
            remembered: BTreeMap::new(),
            random: 0x9e37_79b9_7f4a_7c15,
            faults: Vec::new(),
        };
        for (key, rule) in rules {
            match (key, rule) {
                (Key::Set(name), _) => drop(walker.sets.entry(name).or_default()),
                (Key::Chain(name), Rule::Chain(spec)) => {
                    walker.chains.insert(&name.0, spec);
                    walker.bases.extend(spec.base.as_ref().map(|base| (base, spec.as_ref())));
                }
                (Key::SourceRange(range), _) => {
                    let mut bytes = Vec::new();
                    put_frontend(&mut bytes, &range.0);
                    walker.ranges.entry(bytes).or_default().push(range.1);
                }
                _ => {}
            }
            if let Some((set, bytes)) = element(key) {
                walker.sets.entry(set).or_default().insert(bytes, rule);
            }
        }
        walker.bases.sort_by_key(|(base, _)| base.priority);
        walker
    }

    /// Follows the first packet of a connection.
    pub(crate) fn walk(&mut self, packet: Packet) -> Outcome {
        let mut way = Way { packet, registers: [0; 64], mark: 0, to: None, masqueraded: false };
        let is_host = packet.interface.is_none();
        let first = if is_host { Hook::Output } else { Hook::Prerouting };
        let fate = self.hook(first, true, &mut way);
        if let Some(end) = ended(&fate) {
            return end;
        }
        let to_node = self.local.contains(&way.destination());
        let mut hooks = Vec::new();
        match (is_host, to_node) {
            (true, false) => hooks.push((Hook::Postrouting, true)),
            // By the loopback interface. The connection's translation is settled by then.
            (true, true) => hooks.extend([
                (Hook::Postrouting, true),
                (Hook::Prerouting, false),
                (Hook::Input, false),
            ]),
            (false, true) => hooks.push((Hook::Input, false)),
            (false, false) => hooks.extend([(Hook::Forward, false), (Hook::Postrouting, true)]),
        }
        for (hook, translates) in hooks {
            let fate = self.hook(hook, translates, &mut way);
            if let Some(end) = ended(&fate) {
                return end;
            }
        }
        Outcome::Passed(Passed { to: way.to, masqueraded: way.masqueraded, mark: way.mark })
    }

    fn hook(&mut self, hook: Hook, translates: bool, way: &mut Way) -> Fate {
        for (base, chain) in self.bases.clone() {
            if base.hook != hook || (base.chain_type == ChainType::Nat && !translates) {
                continue;
            }
            way.registers = [0; 64];
            match self.chain(chain, way) {
                Fate::Continue | Fate::Accept => {}
                end => return end,
            }
        }
        Fate::Continue
    }

    fn chain(&mut self, chain: &'a ChainSpec, way: &mut Way) -> Fate {
        for rule in &chain.rules {
            match self.rule(rule, way) {
                Step::Next | Step::EndRule | Step::Verdict(Verdict::Jump(_)) => {}
                Step::Translated | Step::Verdict(Verdict::Accept) => return Fate::Accept,
                Step::Verdict(Verdict::Drop) => return Fate::Drop,
                Step::Verdict(Verdict::Return) => return Fate::Continue,
                Step::Verdict(Verdict::Goto(name)) => return self.chain_named(&name, way),
                Step::Reject(refusal) => return Fate::Reject(refusal),
            }
        }
        Fate::Continue
    }

    fn chain_named(&mut self, name: &str, way: &mut Way) -> Fate {
        if let Some(chain) = self.chains.get(name) {
            return self.chain(chain, way);
        }
        self.faults.push(format!("no chain {name}"));
        Fate::Continue
    }

    /// Runs a rule. A jump that comes back without a verdict goes on with the next rule.
    fn rule(&mut self, rule: &'a RuleSpec, way: &mut Way) -> Step {
        for expr in rule.exprs.iter() {
            let step = self.expr(expr, way);
            match step {
                Step::Next => {}
                Step::Verdict(Verdict::Jump(name)) => {
                    return match self.chain_named(&name, way) {
                        Fate::Continue => Step::Next,
                        Fate::Accept => Step::Verdict(Verdict::Accept),
                        Fate::Drop => Step::Verdict(Verdict::Drop),
                        Fate::Reject(refusal) => Step::Reject(refusal),
                    };
                }
                end => return end,
            }
        }
        Step::Next
    }

    fn expr(&mut self, expr: &'a Expr, way: &mut Way) -> Step {
        match expr {
            Expr::Payload { header, offset, len, to } => {
                let bytes = way.payload(*header, *offset, *len);
                way.store(to.0, &bytes);
            }
            Expr::Meta { key, to } => {
                let bytes = match key {
                    Meta::Mark => way.mark.to_ne_bytes().to_vec(),
                    Meta::L4Protocol => vec![way.packet.protocol],
                    Meta::InputInterface => {
                        let mut name = way.packet.interface.unwrap_or("").as_bytes().to_vec();
                        name.resize(16, 0);
                        name
                    }
                };
                way.store(to.0, &bytes);
            }
            Expr::SetMark { from } => {
                way.mark = u32::from_ne_bytes(way.word(from.0));
            }
            Expr::Ct { key, to } => way.store(to.0, &way.connection(*key)),
            Expr::FibType { address, to } => {
                let address = match address {
                    FibAddress::Source => way.packet.source,
                    FibAddress::Destination => way.destination(),
                };
                // RTN_LOCAL or RTN_UNICAST.
                let kind: u32 = if self.local.contains(&address) { 2 } else { 1 };
                way.store(to.0, &kind.to_ne_bytes());
            }
            Expr::Cmp { register, differs, bytes } => {
                if (way.load(register.0, bytes.len()) == *bytes) == *differs {
                    return Step::EndRule;
                }
            }
            Expr::Bitwise { from, to, mask, xor } => {
                let mut bytes = way.load(from.0, mask.len());
                for ((byte, mask), xor) in bytes.iter_mut().zip(mask).zip(xor) {
                    *byte = (*byte & mask) ^ xor;
                }
                way.store(to.0, &bytes);
            }
            Expr::Random { modulus, offset, to } => {
                let number = offset + self.draw(*modulus);
                way.store(to.0, &number.to_ne_bytes());
            }
            _ => return self.action(expr, way),
        }
        Step::Next
    }

    fn action(&mut self, expr: &'a Expr, way: &mut Way) -> Step {
        match expr {
            Expr::Contains { set, key } if &**set == "source-ranges" => {
                let frontend = way.load(key.0, usize::from(self.address_words() + 2) * 4);
                let source = way.packet.source;
                let ranges = self.ranges.get(&frontend);
                if !ranges.is_some_and(|ranges| ranges.iter().any(|r| r.contains(source))) {
                    return Step::EndRule;
                }
            }
            Expr::Contains { set, key } => {
                if self.look_up(set, key.0, way).is_none() {
                    return Step::EndRule;
                }
            }
            Expr::Map { map, key, to } => {
                let client = (map.to_string(), way.packet.source);
                let found = match self.look_up(map, key.0, way) {
                    Some(Rule::Endpoint(address, port)) => Some((*address, *port)),
                    _ => self.remembered.get(&client).copied(),
                };
                let Some((address, port)) = found else { return Step::EndRule };
                let mut bytes = Vec::new();
                put_address(&mut bytes, address);
                bytes.extend(port.to_be_bytes());
                way.store(to.0, &bytes);
            }
            Expr::VerdictMap { map, key } => match self.look_up(map, key.0, way) {
                Some(Rule::Verdict(action)) => return Step::Verdict(action.verdict.clone()),
                _ => return Step::EndRule,
            },
            Expr::Dnat { address, port, .. } => {
                let address = way.load_address(address.0, self.family);
                let [high, low, ..] = way.word(port.0);
                way.to = Some((address, u16::from_be_bytes([high, low])));
                return Step::Translated;
            }
            Expr::Masquerade => {
                way.masqueraded = true;
                return Step::Translated;
            }
            Expr::UpdateMap { map, key, value, .. } => {
                let client = way.load_address(key.0, self.family);
                let address = way.load_address(value.0, self.family);
                let [high, low, ..] = way.word(value.0 + self.address_words());
                let endpoint = (address, u16::from_be_bytes([high, low]));
                self.remembered.entry((map.to_string(), client)).or_insert(endpoint);
            }
            Expr::Reject(refusal) => return Step::Reject(*refusal),
            Expr::Verdict(verdict) => return Step::Verdict(verdict.clone()),
            other => self.faults.push(format!("unknown step {other:?}")),
        }
        Step::Next
    }

    fn look_up(&mut self, set: &str, register: u8, way: &Way) -> Option<&'a Rule> {
        let Some(elements) = self.sets.get(set) else {
            self.faults.push(format!("no set {set}"));
            return None;
        };
        // All keys of a set are of one length.
        let len = elements.keys().next()?.len();
        elements.get(&way.load(register, len)).copied()
    }

    fn address_words(&self) -> u8 {
        match self.family {
            IpFamily::V4 => 1,
            IpFamily::V6 => 4,
        }
    }

    /// A number below `modulus` (splitmix64).
    fn draw(&mut self, modulus: u32) -> u32 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        u32::try_from(mixed % u64::from(modulus)).unwrap()
    }
}

fn ended(fate: &Fate) -> Option<Outcome> {
    match fate {
        Fate::Continue | Fate::Accept => None,
        Fate::Drop => Some(Outcome::Dropped),
        Fate::Reject(refusal) => Some(Outcome::Rejected(*refusal)),
    }
}

impl Way {
    fn destination(&self) -> IpAddr {
        self.to.map_or(self.packet.destination, |(address, _)| address)
    }

    fn port(&self) -> u16 {
        self.to.map_or(self.packet.port, |(_, port)| port)
    }

    fn payload(&self, header: Header, offset: u32, len: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        match (header, self.packet.source) {
            (Header::Transport, _) => {
                bytes.extend(40_000_u16.to_be_bytes());
                bytes.extend(self.port().to_be_bytes());
            }
            (Header::Network, IpAddr::V4(_)) => bytes.resize(12, 0),
            (Header::Network, IpAddr::V6(_)) => bytes.resize(8, 0),
        }
        if header == Header::Network {
            put_address(&mut bytes, self.packet.source);
            put_address(&mut bytes, self.destination());
        }
        let (offset, len) = (usize::try_from(offset).unwrap(), usize::try_from(len).unwrap());
        bytes[offset..offset + len].to_vec()
    }

    fn connection(&self, key: Ct) -> Vec<u8> {
        let mut bytes = Vec::new();
        match key {
            // IP_CT_NEW as a bit, IPS_DST_NAT.
            Ct::State => bytes.extend(8_u32.to_ne_bytes()),
            Ct::Status => {
                let status: u32 = if self.to.is_some() { 0x20 } else { 0 };
                bytes.extend(status.to_ne_bytes());
            }
            Ct::OriginalDestination(_) => put_address(&mut bytes, self.packet.destination),
            Ct::OriginalDestinationPort => bytes.extend(self.packet.port.to_be_bytes()),
        }
        bytes
    }

    /// Stores like the kernel, which clears the rest of the last word.
    fn store(&mut self, register: u8, bytes: &[u8]) {
        let start = usize::from(register) * 4;
        let mut padded = bytes.to_vec();
        pad(&mut padded);
        self.registers[start..start + padded.len()].copy_from_slice(&padded);
    }

    fn load(&self, register: u8, len: usize) -> Vec<u8> {
        let start = usize::from(register) * 4;
        self.registers[start..start + len].to_vec()
    }

    fn word(&self, register: u8) -> [u8; 4] {
        let start = usize::from(register) * 4;
        self.registers[start..start + 4].try_into().unwrap()
    }

    fn load_address(&self, register: u8, family: IpFamily) -> IpAddr {
        match family {
            IpFamily::V4 => IpAddr::from(self.word(register)),
            IpFamily::V6 => {
                let bytes: [u8; 16] = self.load(register, 16).try_into().unwrap();
                IpAddr::from(bytes)
            }
        }
    }
}
