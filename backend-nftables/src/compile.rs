//! From facts to kernel objects. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proxy_core::address::IpFamily;
use proxy_core::names::ServicePortName;
use proxy_core::node::{LocalDetector, NodeFacts, NodePortAddresses};
use proxy_core::resolved::{
    Endpoint, Frontend, FrontendKey, FrontendKind, PoolKind, ResolvedPort, ResolvedService, Route,
    Routes,
};
use proxy_core::rules::RuleSet;
use sha2::{Digest, Sha256};

use crate::expr::{Ct, Expr, FibAddress, Header, Meta, Refusal, Register, Verdict};
use crate::layout::{self, chain, rule_comment};
use crate::model::{
    Action, Base, ChainName, ChainSpec, ChainType, Hook, Key, Rule, RuleSpec, SetSpec,
};

/// What the rules of one family depend on besides objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// The family.
    pub family: IpFamily,
    /// How local pods' traffic is told; `None`: not at all.
    pub detector: Option<LocalDetector>,
    /// The mark's bit, 0 to 31, that asks for masquerading (S6.3).
    pub masquerade_bit: u8,
}

pub(crate) type Rules = RuleSet<Key, Rule>;

/// Everything that the table of one family holds, for these Services on this node.
pub fn compile<'a>(
    config: &TableConfig,
    node: &NodeFacts,
    services: impl IntoIterator<Item = &'a ResolvedService>,
) -> RuleSet<Key, Rule> {
    let compiler = Compiler::new(config);
    let mut rules = RuleSet::new();
    compiler.node(node, &mut rules);
    for service in services {
        compiler.service(service, &mut rules);
    }
    rules
}

/// Compiles facts for one table.
#[derive(Debug)]
pub(crate) struct Compiler {
    family: IpFamily,
    detector: Option<LocalDetector>,
    mark: u32,
    /// Shared chains that were compiled before. They are a function of their names, and most
    /// Services use the same few.
    known: Mutex<BTreeMap<Arc<str>, Rule>>,
}

/// `IP_CT_NEW` as a bit of `ct state`; `IPS_DST_NAT` of `ct status`.
const CT_STATE_NEW: u32 = 8;
const CT_STATUS_DNAT: u32 = 0x20;
/// `RTN_LOCAL`.
const ROUTE_LOCAL: u32 = 2;
/// Size of an interface name (`IFNAMSIZ`).
const INTERFACE_NAME_LEN: usize = 16;

const R0: Register = Register(0);

fn rule(exprs: Vec<Expr>) -> RuleSpec {
    commented(exprs, "")
}

fn commented(exprs: Vec<Expr>, comment: &'static str) -> RuleSpec {
    RuleSpec { exprs: exprs.into(), comment }
}

fn verdict(verdict: Verdict) -> Expr {
    Expr::Verdict(verdict)
}

fn goto(chain: &Arc<str>) -> Expr {
    verdict(Verdict::Goto(Arc::clone(chain)))
}

fn jump(chain: &str) -> Expr {
    verdict(Verdict::Jump(chain.into()))
}

/// Ends the rule unless the register has one of the bits.
fn any_bit(register: Register, bits: u32) -> [Expr; 2] {
    [
        Expr::Bitwise {
            from: register,
            to: register,
            mask: bits.to_ne_bytes().to_vec(),
            xor: vec![0; 4],
        },
        Expr::Cmp { register, differs: true, bytes: vec![0; 4] },
    ]
}

fn new_connection() -> Vec<Expr> {
    let mut exprs = vec![Expr::Ct { key: Ct::State, to: R0 }];
    exprs.extend(any_bit(R0, CT_STATE_NEW));
    exprs
}

fn concat<const N: usize>(parts: [Vec<Expr>; N]) -> Vec<Expr> {
    parts.into_iter().flatten().collect()
}

/// A frontend's or a pool's set of endpoints, and how packets find a number in it.
#[derive(Clone, Copy)]
enum Space<'a> {
    /// By the service address that was dialled.
    Address,
    /// By the node port that was dialled.
    NodePort,
    /// The service port's own maps.
    Own(&'a OwnPool<'a>),
}

/// Identity of a service port with maps of its own.
struct OwnPool<'a> {
    id: String,
    port: &'a ResolvedPort,
}

impl OwnPool<'_> {
    fn endpoints_map(&self, kind: PoolKind) -> Arc<str> {
        layout::name(&[layout::POOL_ENDPOINTS, layout::pool_infix(kind), &self.id])
    }

    fn affinity_map(&self, kind: PoolKind) -> Arc<str> {
        layout::name(&[layout::POOL_AFFINITY, layout::pool_infix(kind), &self.id])
    }
}

/// `HASH-namespace/name/protocol/port`, which kernel and tools accept whatever the names are.
///
/// The hash is kube-proxy's, over the unshortened text, so that the same Service is found under
/// the same hash in both.
pub(crate) fn service_port_id(name: &ServicePortName) -> String {
    // The kernel takes 255 bytes for a name; the longest prefix is that of `pool-route-`, with 50.
    const MAX_TEXT: usize = 190;
    let text = format!("{}/{}/{}", name.service, name.protocol.as_str(), name.port);
    let digest = Sha256::digest(text.as_bytes());
    let mut id = String::with_capacity(text.len() + 9);
    for chunk in 0..8 {
        id.push(base32_digit(&digest, chunk));
    }
    id.push('-');
    let legible = |c: char| if c.is_ascii_alphanumeric() || "/-.".contains(c) { c } else { '_' };
    id.extend(text.chars().take(MAX_TEXT).map(legible));
    id
}

/// Digit `index` of the bytes in base 32 (RFC 4648).
fn base32_digit(bytes: &[u8], index: usize) -> char {
    const DIGITS: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
    let bit = index * 5;
    let byte = |at: usize| u16::from(bytes.get(at).copied().unwrap_or(0));
    let window = (byte(bit / 8) << 8) | byte(bit / 8 + 1);
    let digit = (window >> (11 - bit % 8)) & 31;
    DIGITS.get(usize::from(digit)).map_or('A', |digit| char::from(*digit))
}

/// The longest comment that tools read (`NFTNL_UDATA_COMMENT_MAXLEN`), without its final zero.
const MAX_COMMENT: usize = 127;

fn comment(port: &ServicePortName, kind: FrontendKind) -> Arc<str> {
    let mut text = port.to_string();
    if kind != FrontendKind::ClusterIp {
        let _infallible = write!(text, " {}", kind.as_str());
    }
    if text.len() > MAX_COMMENT {
        let end = (0..=MAX_COMMENT - 3).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text.push_str("...");
    }
    text.replace(|c: char| c == '"' || c.is_control(), "_").into()
}

impl Compiler {
    pub(crate) fn new(config: &TableConfig) -> Self {
        Self {
            family: config.family,
            detector: config.detector.clone(),
            mark: 1_u32.checked_shl(config.masquerade_bit.into()).unwrap_or(1 << 14),
            known: Mutex::default(),
        }
    }

    /// Adds a chain for Services. `rules` is not asked if the chain is known.
    fn service_chain(
        &self,
        name: Arc<str>,
        rules: impl FnOnce() -> Vec<RuleSpec>,
        out: &mut Rules,
    ) -> Arc<str> {
        let build = || Rule::Chain(Arc::new(ChainSpec { base: None, rules: rules() }));
        let (name, spec) = if layout::is_shared_chain(&name) {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some((name, spec)) = known.get_key_value(&name) {
                (Arc::clone(name), spec.clone())
            } else {
                let spec = build();
                known.insert(Arc::clone(&name), spec.clone());
                (name, spec)
            }
        } else if out.get(&Key::Chain(ChainName(Arc::clone(&name)))).is_some() {
            // Another frontend of the service port has brought it.
            return name;
        } else {
            (name, build())
        };
        out.insert(Key::Chain(ChainName(Arc::clone(&name))), spec);
        name
    }

    // === packet fields ===

    fn address_words(&self) -> u8 {
        match self.family {
            IpFamily::V4 => 1,
            IpFamily::V6 => 4,
        }
    }

    fn address_len(&self) -> u32 {
        u32::from(self.address_words()) * 4
    }

    fn source(&self, to: Register) -> Expr {
        let offset = match self.family {
            IpFamily::V4 => 12,
            IpFamily::V6 => 8,
        };
        Expr::Payload { header: Header::Network, offset, len: self.address_len(), to }
    }

    fn destination(&self, to: Register) -> Expr {
        let offset = match self.family {
            IpFamily::V4 => 16,
            IpFamily::V6 => 24,
        };
        Expr::Payload { header: Header::Network, offset, len: self.address_len(), to }
    }

    /// Loads protocol and destination port into the two words from `word` on.
    fn port(word: u8) -> Vec<Expr> {
        vec![
            Expr::Meta { key: Meta::L4Protocol, to: Register(word) },
            Expr::Payload { header: Header::Transport, offset: 2, len: 2, to: Register(word + 1) },
        ]
    }

    /// Loads `destination . protocol . port` from the first word on.
    fn dialled(&self) -> Vec<Expr> {
        concat([vec![self.destination(R0)], Self::port(self.address_words())])
    }

    fn look_up_dialled(&self, map: &str) -> Vec<Expr> {
        concat([self.dialled(), vec![Expr::VerdictMap { map: map.into(), key: R0 }]])
    }

    fn look_up_port(map: &str) -> Vec<Expr> {
        concat([Self::port(0), vec![Expr::VerdictMap { map: map.into(), key: R0 }]])
    }

    fn address_bytes(address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        }
    }

    /// Ends the rule unless the address field lies in the range. Whole bytes are compared as
    /// such, like the tools do it, so that a listing shows the range.
    fn in_range(field: &Expr, range: proxy_core::address::Cidr) -> Vec<Expr> {
        let bits = range.prefix_len();
        let bytes = Self::address_bytes(range.address());
        let whole = usize::from(bits / 8);
        if bits == 0 {
            return Vec::new();
        }
        if bits.is_multiple_of(8) {
            let Expr::Payload { header, offset, to, .. } = *field else { return Vec::new() };
            let len = u32::from(bits / 8);
            let bytes = bytes.get(..whole).unwrap_or_default().to_vec();
            return vec![
                Expr::Payload { header, offset, len, to },
                Expr::Cmp { register: to, differs: false, bytes },
            ];
        }
        let mut mask = vec![0xff_u8; whole];
        mask.push(0xff_u8 << (8 - bits % 8));
        mask.resize(bytes.len(), 0);
        let xor = vec![0; bytes.len()];
        vec![
            field.clone(),
            Expr::Bitwise { from: R0, to: R0, mask, xor },
            Expr::Cmp { register: R0, differs: false, bytes },
        ]
    }

    /// Ends the rule unless the packet comes from a local pod; `None`: pods are not told.
    fn pod_condition(&self) -> Option<Vec<Expr>> {
        let interface = |name: &str, whole: bool| {
            let mut bytes = name.as_bytes().to_vec();
            bytes.truncate(INTERFACE_NAME_LEN - 1);
            if whole {
                bytes.resize(INTERFACE_NAME_LEN, 0);
            }
            vec![
                Expr::Meta { key: Meta::InputInterface, to: R0 },
                Expr::Cmp { register: R0, differs: false, bytes },
            ]
        };
        Some(match self.detector.as_ref()? {
            LocalDetector::Source(range) => Self::in_range(&self.source(R0), *range),
            LocalDetector::Interface(name) => interface(name, true),
            LocalDetector::InterfacePrefix(prefix) => interface(prefix, false),
        })
    }

    fn is_local(address: FibAddress) -> Vec<Expr> {
        vec![
            Expr::FibType { address, to: R0 },
            Expr::Cmp { register: R0, differs: false, bytes: ROUTE_LOCAL.to_ne_bytes().to_vec() },
        ]
    }

    /// Ends the rule unless the destination is an address on which node ports answer.
    fn to_node(&self, addresses: &NodePortAddresses) -> Vec<Expr> {
        match addresses {
            NodePortAddresses::Only(_) => vec![
                self.destination(R0),
                Expr::Contains { set: layout::NODEPORT_IPS.into(), key: R0 },
            ],
            NodePortAddresses::All => {
                let not_loopback = match self.family {
                    IpFamily::V4 => vec![
                        Expr::Payload { header: Header::Network, offset: 16, len: 1, to: R0 },
                        Expr::Cmp { register: R0, differs: true, bytes: vec![127] },
                    ],
                    IpFamily::V6 => vec![
                        self.destination(R0),
                        Expr::Cmp {
                            register: R0,
                            differs: true,
                            bytes: Self::address_bytes(IpFamily::V6.loopback()),
                        },
                    ],
                };
                concat([Self::is_local(FibAddress::Destination), not_loopback])
            }
        }
    }

    fn set_mark(&self) -> Vec<Expr> {
        vec![
            Expr::Meta { key: Meta::Mark, to: R0 },
            Expr::Bitwise {
                from: R0,
                to: R0,
                mask: (!self.mark).to_ne_bytes().to_vec(),
                xor: self.mark.to_ne_bytes().to_vec(),
            },
            Expr::SetMark { from: R0 },
        ]
    }

    // === the node ===

    /// Sets, hooks and chains that are there whatever the Services are.
    pub(crate) fn node(&self, node: &NodeFacts, out: &mut Rules) {
        out.insert(Key::Table, Rule::Table { dormant: false });
        for (name, spec) in layout::fixed_sets() {
            out.insert(Key::Set(name.into()), Rule::Set(Arc::new(spec)));
        }
        if let NodePortAddresses::Only(addresses) = &node.node_port_addresses {
            out.extend(addresses.iter().map(|ip| (Key::NodePortIp(*ip), Rule::Member)));
        }
        self.check_chains(node, out);
        Self::base_chains(out);
        let mut bucket = 1;
        while bucket <= layout::STANDING_BUCKET {
            self.pick_chain(Space::Address, PoolKind::Cluster, bucket, out);
            bucket *= 2;
        }
    }

    fn check_chains(&self, node: &NodeFacts, out: &mut Rules) {
        let to_node = self.to_node(&node.node_port_addresses);
        let by_node_port = |map| rule(concat([to_node.clone(), Self::look_up_port(map)]));
        let mut unused = vec![rule(vec![
            self.destination(R0),
            Expr::Contains { set: layout::CLUSTER_IPS.into(), key: R0 },
            goto(&chain::REJECT.into()),
        ])];
        unused.extend(node.service_ranges.iter().map(|range| {
            let field = self.destination(R0);
            rule(concat([Self::in_range(&field, *range), vec![verdict(Verdict::Drop)]]))
        }));
        let is_tcp = vec![
            Expr::Meta { key: Meta::L4Protocol, to: R0 },
            Expr::Cmp { register: R0, differs: false, bytes: vec![6] },
            Expr::Reject(Refusal::TcpReset),
        ];
        let others = vec![Expr::Reject(Refusal::PortUnreachable(self.family))];
        let admitted = concat([
            self.dialled(),
            vec![
                self.source(Register(self.address_words() + 2)),
                Expr::Contains { set: layout::SOURCE_RANGES.into(), key: R0 },
                verdict(Verdict::Return),
            ],
        ]);
        let chains = [
            (
                chain::SERVICES,
                vec![
                    rule(self.look_up_dialled(layout::SERVICE_IPS)),
                    by_node_port(layout::SERVICE_NODEPORTS),
                ],
            ),
            (chain::FIREWALL_CHECK, vec![rule(self.look_up_dialled(layout::FIREWALL_IPS))]),
            (chain::FIREWALL, vec![rule(admitted), rule(vec![verdict(Verdict::Drop)])]),
            (
                chain::ENDPOINTS_CHECK,
                vec![rule(self.look_up_dialled(layout::NO_ENDPOINT_SERVICES))],
            ),
            (chain::NODEPORTS_CHECK, vec![by_node_port(layout::NO_ENDPOINT_NODEPORTS)]),
            (chain::CLUSTER_IPS_CHECK, unused),
            (chain::REJECT, vec![rule(is_tcp), rule(others)]),
            (chain::AFFINITY_RECORD, self.affinity_record_rules()),
            (chain::MASQUERADING, self.masquerade_rules()),
        ];
        for (name, rules) in chains {
            Self::chain(&name.into(), rules, out);
        }
    }

    fn masquerade_rules(&self) -> Vec<RuleSpec> {
        // The mark goes before the packet is masqueraded, so that an encapsulated copy of it is
        // not masqueraded again.
        let marked = concat([
            vec![Expr::Meta { key: Meta::Mark, to: R0 }],
            any_bit(R0, self.mark).to_vec(),
            vec![
                Expr::Meta { key: Meta::Mark, to: R0 },
                Expr::Bitwise {
                    from: R0,
                    to: R0,
                    mask: u32::MAX.to_ne_bytes().to_vec(),
                    xor: self.mark.to_ne_bytes().to_vec(),
                },
                Expr::SetMark { from: R0 },
                Expr::Masquerade,
            ],
        ]);
        let words = self.address_words();
        let hairpin = concat([
            vec![Expr::Ct { key: Ct::Status, to: R0 }],
            any_bit(R0, CT_STATUS_DNAT).to_vec(),
            vec![self.source(R0), self.destination(Register(words))],
            Self::port(words * 2),
            vec![Expr::Contains { set: layout::HAIRPIN.into(), key: R0 }, Expr::Masquerade],
        ]);
        vec![commented(marked, rule_comment::MARKED), commented(hairpin, rule_comment::HAIRPIN)]
    }

    /// Right after the translation: find the chain that remembers where this client went.
    fn affinity_record_rules(&self) -> Vec<RuleSpec> {
        let words = self.address_words();
        let translated = concat([
            vec![Expr::Ct { key: Ct::Status, to: R0 }],
            any_bit(R0, CT_STATUS_DNAT).to_vec(),
            self.dialled(),
            vec![Expr::Contains { set: layout::AFFINITY_ENDPOINTS.into(), key: R0 }],
        ]);
        let original_port = |word: u8| {
            vec![
                Expr::Meta { key: Meta::L4Protocol, to: Register(word) },
                Expr::Ct { key: Ct::OriginalDestinationPort, to: Register(word + 1) },
            ]
        };
        let original = Expr::Ct { key: Ct::OriginalDestination(self.family), to: R0 };
        let by_address = concat([
            translated.clone(),
            vec![original],
            original_port(words),
            vec![Expr::VerdictMap { map: layout::AFFINITY_SERVICES.into(), key: R0 }],
        ]);
        let by_node_port = concat([
            translated,
            original_port(0),
            vec![Expr::VerdictMap { map: layout::AFFINITY_NODEPORTS.into(), key: R0 }],
        ]);
        vec![rule(by_address), rule(by_node_port)]
    }

    fn base_chains(out: &mut Rules) {
        use ChainType::{Filter, Nat};
        use Hook::{Forward, Input, Output, Postrouting, Prerouting};
        let new = |target: &str| rule(concat([new_connection(), vec![jump(target)]]));
        let always = |target: &str| rule(vec![jump(target)]);
        let checks = vec![new(chain::ENDPOINTS_CHECK), new(chain::CLUSTER_IPS_CHECK)];
        let input = vec![new(chain::NODEPORTS_CHECK), new(chain::ENDPOINTS_CHECK)];
        let firewall = vec![new(chain::FIREWALL_CHECK)];
        let services = vec![always(chain::SERVICES)];
        let record = vec![new(chain::AFFINITY_RECORD)];
        let masquerading = vec![always(chain::MASQUERADING)];
        let pre = layout::PRIORITY_PRE_DNAT;
        let post = layout::PRIORITY_POST_DNAT;
        let filter = layout::PRIORITY_FILTER;
        let (dnat, snat) = (layout::PRIORITY_DNAT, layout::PRIORITY_SNAT);
        let bases = [
            (chain::FILTER_PREROUTING, Filter, Prerouting, pre, firewall.clone()),
            (chain::FILTER_OUTPUT_PRE_DNAT, Filter, Output, pre, firewall),
            (chain::NAT_PREROUTING, Nat, Prerouting, dnat, services.clone()),
            (chain::NAT_OUTPUT, Nat, Output, dnat, services),
            (chain::AFFINITY_PREROUTING, Filter, Prerouting, post, record.clone()),
            (chain::AFFINITY_OUTPUT, Filter, Output, post, record),
            (chain::FILTER_INPUT, Filter, Input, filter, input),
            (chain::FILTER_FORWARD, Filter, Forward, filter, checks.clone()),
            (chain::FILTER_OUTPUT, Filter, Output, filter, checks),
            (chain::NAT_POSTROUTING, Nat, Postrouting, snat, masquerading),
        ];
        for (name, chain_type, hook, priority, rules) in bases {
            let base = Some(Base { chain_type, hook, priority });
            let spec = Rule::Chain(Arc::new(ChainSpec { base, rules }));
            out.insert(Key::Chain(ChainName(name.into())), spec);
        }
    }

    fn chain(name: &Arc<str>, rules: Vec<RuleSpec>, out: &mut Rules) {
        let spec = Rule::Chain(Arc::new(ChainSpec { base: None, rules }));
        out.insert(Key::Chain(ChainName(Arc::clone(name))), spec);
    }

    // === Services ===

    /// The objects of one Service.
    pub(crate) fn service(&self, service: &ResolvedService, out: &mut Rules) {
        out.insert(Key::ClusterIp(service.cluster_ip), Rule::Member);
        for port in &service.ports {
            self.service_port(port, out);
        }
    }

    fn service_port(&self, port: &ResolvedPort, out: &mut Rules) {
        let own = has_own_maps(port).then(|| OwnPool { id: service_port_id(&port.name), port });
        let used = used_pools(port.frontends.iter());
        for kind in &used {
            if let Some(own) = &own {
                self.own_pool(own, *kind, out);
            }
            for endpoint in &port.pool(*kind).endpoints {
                Self::endpoint_of_node(port, endpoint, out);
            }
        }
        for frontend in &port.frontends {
            self.frontend(port, own.as_ref(), frontend, out);
        }
    }

    fn endpoint_of_node(port: &ResolvedPort, endpoint: &Endpoint, out: &mut Rules) {
        let (address, protocol) = (endpoint.address, port.name.protocol);
        if endpoint.is_local {
            out.insert(Key::Hairpin(address, protocol, endpoint.port), Rule::Member);
        }
        if port.affinity.is_some() {
            out.insert(Key::AffinityEndpoint(address, protocol, endpoint.port), Rule::Member);
        }
    }

    /// Maps and chains of a pool that is not repeated for each frontend.
    fn own_pool(&self, own: &OwnPool<'_>, kind: PoolKind, out: &mut Rules) {
        let endpoints = own.endpoints_map(kind);
        for (number, endpoint) in (0..).zip(&own.port.pool(kind).endpoints) {
            let key = Key::PoolEndpoint(Arc::clone(&endpoints), own.port.name.protocol, number);
            out.insert(key, Rule::Endpoint(endpoint.address, endpoint.port));
        }
        let set = |spec: SetSpec| Rule::Set(Arc::new(spec));
        out.insert(Key::Set(endpoints), set(layout::pool_endpoints_set()));
        if let Some(timeout) = own.port.affinity {
            let map = own.affinity_map(kind);
            let record = layout::name(&[layout::RECORD, layout::pool_infix(kind), &own.id]);
            self.service_chain(record, || vec![self.record_rule(&map, timeout)], out);
            out.insert(Key::Set(map), set(layout::pool_affinity_set()));
        }
    }

    fn record_rule(&self, map: &Arc<str>, timeout: Duration) -> RuleSpec {
        let value = Register(self.address_words());
        let port = Register(self.address_words() * 2);
        rule(vec![
            self.source(R0),
            self.destination(value),
            Expr::Payload { header: Header::Transport, offset: 2, len: 2, to: port },
            Expr::UpdateMap {
                map: Arc::clone(map),
                key: R0,
                value,
                timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX),
            },
        ])
    }

    fn frontend(
        &self,
        port: &ResolvedPort,
        own: Option<&OwnPool<'_>>,
        frontend: &Frontend,
        out: &mut Rules,
    ) {
        let key = frontend.key;
        let note = comment(&port.name, frontend.kind);
        let action = |verdict| Rule::Verdict(Arc::new(Action { verdict, comment: note.clone() }));
        if let Some(ranges) = &frontend.source_ranges {
            let firewall = Verdict::Goto(chain::FIREWALL.into());
            out.insert(Key::Firewall(key), action(firewall));
            for range in ranges.iter() {
                out.insert(Key::SourceRange(Box::new((key, *range))), Rule::Member);
            }
        }
        match frontend.routes.refusal() {
            Some(Route::Drop) => drop(out.insert(Key::Refusal(key), action(Verdict::Drop))),
            Some(_) => {
                let reject = Verdict::Goto(chain::REJECT.into());
                out.insert(Key::Refusal(key), action(reject));
            }
            None => {}
        }
        let space = match (own, key) {
            (Some(own), _) => Space::Own(own),
            (None, FrontendKey::Address { .. }) => Space::Address,
            (None, FrontendKey::NodePort { .. }) => Space::NodePort,
        };
        let Some(target) = self.dispatch(port, space, frontend.routes, out) else { return };
        out.insert(Key::Frontend(key), action(Verdict::Goto(target)));
        match own {
            None => Self::number_endpoints(port, frontend, out),
            Some(own) if port.affinity.is_some() => {
                let target = self.record_dispatch(own, frontend.routes, out);
                if let Some(target) = target {
                    out.insert(Key::AffinityFrontend(key), action(Verdict::Goto(target)));
                }
            }
            Some(_) => {}
        }
    }

    /// Repeats the endpoints under the frontend's key.
    fn number_endpoints(port: &ResolvedPort, frontend: &Frontend, out: &mut Rules) {
        for kind in used_pools(std::iter::once(frontend)) {
            for (number, endpoint) in (offset(kind)..).zip(&port.pool(kind).endpoints) {
                let key = Key::Endpoint(frontend.key, number);
                out.insert(key, Rule::Endpoint(endpoint.address, endpoint.port));
            }
        }
    }

    /// The chain a frontend's traffic goes to; `None` if no source is forwarded.
    fn dispatch(
        &self,
        port: &ResolvedPort,
        space: Space<'_>,
        routes: Routes,
        out: &mut Rules,
    ) -> Option<Arc<str>> {
        let routes = self.effective(routes);
        let mut target = |route: Route| match route {
            Route::Forward { pool, masquerade } => {
                let bucket = layout::bucket(port.pool(pool).endpoints.len());
                let pick = self.pick_chain(space, pool, bucket, out);
                Some(if masquerade { self.masquerade_chain(&pick, out) } else { pick })
            }
            Route::Reject | Route::Drop => None,
        };
        let targets = [target(routes.pod), target(routes.host), target(routes.outside)];
        let name = || {
            let word = |route| route_word(port, space, route);
            let words = [word(routes.pod), word(routes.host), word(routes.outside)].join("-");
            match space {
                Space::Address => layout::name(&[layout::ROUTE, &words]),
                Space::NodePort => layout::name(&[layout::ROUTE, "nodeport-", &words]),
                Space::Own(own) => layout::name(&[layout::POOL_ROUTE, &words, "-", &own.id]),
            }
        };
        self.by_source(targets, name, out)
    }

    /// The chain that remembers a frontend's clients.
    fn record_dispatch(
        &self,
        own: &OwnPool<'_>,
        routes: Routes,
        out: &mut Rules,
    ) -> Option<Arc<str>> {
        let routes = self.effective(routes);
        let target = |route| match route {
            Route::Forward { pool, .. } => {
                Some(layout::name(&[layout::RECORD, layout::pool_infix(pool), &own.id]))
            }
            Route::Reject | Route::Drop => None,
        };
        let targets = [target(routes.pod), target(routes.host), target(routes.outside)];
        let word = |route| match route {
            Route::Forward { pool: PoolKind::Cluster, .. } => "cluster",
            Route::Forward { pool: PoolKind::Local, .. } => "local",
            Route::Reject | Route::Drop => "none",
        };
        let name = || {
            let words = [word(routes.pod), word(routes.host), word(routes.outside)].join("-");
            layout::name(&[layout::RECORD_ROUTE, &words, "-", &own.id])
        };
        self.by_source(targets, name, out)
    }

    /// Without a detector nobody is a pod.
    fn effective(&self, routes: Routes) -> Routes {
        match self.detector {
            Some(_) => routes,
            None => Routes { pod: routes.outside, ..routes },
        }
    }

    /// A chain that goes to one of the targets, by class of source: pod, host, outside.
    fn by_source(
        &self,
        targets: [Option<Arc<str>>; 3],
        name: impl FnOnce() -> Arc<str>,
        out: &mut Rules,
    ) -> Option<Arc<str>> {
        let [pod, host, outside] = targets;
        if pod == outside && host == outside {
            return outside;
        }
        let to = |condition: Vec<Expr>, target: &Option<Arc<str>>| {
            let end = match target {
                Some(chain) => goto(chain),
                None => verdict(Verdict::Return),
            };
            rule(concat([condition, vec![end]]))
        };
        let rules = || {
            let mut rules = Vec::new();
            rules.extend(self.pod_condition().map(|condition| to(condition, &pod)));
            if host != outside {
                rules.push(to(Self::is_local(FibAddress::Source), &host));
            }
            if outside.is_some() {
                rules.push(to(Vec::new(), &outside));
            }
            rules
        };
        Some(self.service_chain(name(), rules, out))
    }

    fn masquerade_chain(&self, target: &Arc<str>, out: &mut Rules) -> Arc<str> {
        let name = layout::name(&[layout::MASQUERADE, target]);
        let rules = || vec![rule(concat([self.set_mark(), vec![goto(target)]]))];
        self.service_chain(name, rules, out)
    }

    /// The chain that sends a connection to one of `bucket` numbered endpoints, or fewer.
    fn pick_chain(
        &self,
        space: Space<'_>,
        kind: PoolKind,
        bucket: u32,
        out: &mut Rules,
    ) -> Arc<str> {
        let infix = layout::pool_infix(kind);
        let number = bucket.to_string();
        let name = match space {
            Space::Address => layout::name(&[layout::PICK, infix, &number]),
            Space::NodePort => layout::name(&[layout::PICK, "nodeport-", infix, &number]),
            Space::Own(own) => layout::name(&[layout::POOL, infix, &own.id]),
        };
        self.service_chain(name, || self.pick_rules(space, kind, bucket), out)
    }

    fn pick_rules(&self, space: Space<'_>, kind: PoolKind, bucket: u32) -> Vec<RuleSpec> {
        let mut rules = Vec::new();
        if let Space::Own(own) = space
            && own.port.affinity.is_some()
        {
            rules.push(self.remembered_rule(own, kind));
        }
        rules.push(self.draw_rule(space, kind, bucket, ""));
        // One or two endpoints fill their bucket: every number has an endpoint.
        if bucket > 2 {
            let again = self.draw_rule(space, kind, bucket, rule_comment::DRAW_AGAIN);
            rules.extend(std::iter::repeat_n(again, layout::DRAWS - 1));
            rules.push(self.draw_rule(space, kind, bucket / 2, rule_comment::DRAW_LAST));
        }
        rules
    }

    fn remembered_rule(&self, own: &OwnPool<'_>, kind: PoolKind) -> RuleSpec {
        let exprs = vec![
            Expr::Meta { key: Meta::L4Protocol, to: R0 },
            Expr::Cmp {
                register: R0,
                differs: false,
                bytes: vec![own.port.name.protocol.number()],
            },
            self.source(R0),
            Expr::Map { map: own.affinity_map(kind), key: R0, to: R0 },
            self.dnat(),
        ];
        commented(exprs, rule_comment::REMEMBERED)
    }

    fn draw_rule(
        &self,
        space: Space<'_>,
        kind: PoolKind,
        modulus: u32,
        comment: &'static str,
    ) -> RuleSpec {
        let words = self.address_words();
        let (key, word, offset, map) = match space {
            Space::Address => {
                let map = Arc::from(layout::SERVICE_ENDPOINTS);
                (self.dialled(), words + 2, offset(kind), map)
            }
            Space::NodePort => {
                (Self::port(0), 2, offset(kind), Arc::from(layout::NODEPORT_ENDPOINTS))
            }
            Space::Own(own) => {
                let protocol = vec![Expr::Meta { key: Meta::L4Protocol, to: R0 }];
                (protocol, 1, 0, own.endpoints_map(kind))
            }
        };
        let exprs = concat([
            key,
            vec![
                Expr::Random { modulus, offset, to: Register(word) },
                Expr::Map { map, key: R0, to: R0 },
                self.dnat(),
            ],
        ]);
        commented(exprs, comment)
    }

    fn dnat(&self) -> Expr {
        Expr::Dnat { family: self.family, address: R0, port: Register(self.address_words()) }
    }
}

/// Whether a service port's endpoints are in maps of its own, not under each frontend's key.
pub(crate) fn has_own_maps(port: &ResolvedPort) -> bool {
    port.affinity.is_some() || port.frontends.len() > layout::MAX_SHARED_FRONTENDS
}

/// The number of a pool's first endpoint under a frontend's key.
pub(crate) fn offset(kind: PoolKind) -> u32 {
    match kind {
        PoolKind::Cluster => 0,
        PoolKind::Local => layout::LOCAL_OFFSET,
    }
}

fn used_pools<'a>(frontends: impl Iterator<Item = &'a Frontend>) -> BTreeSet<PoolKind> {
    frontends
        .flat_map(|frontend| frontend.routes.iter())
        .filter_map(|route| match route {
            Route::Forward { pool, .. } => Some(pool),
            Route::Reject | Route::Drop => None,
        })
        .collect()
}

/// A route in the name of a shared chain: pool, masquerading, number of endpoints.
fn route_word(port: &ResolvedPort, space: Space<'_>, route: Route) -> String {
    let Route::Forward { pool, masquerade } = route else { return "none".to_owned() };
    let mut word = String::from(match pool {
        PoolKind::Cluster => "cluster",
        PoolKind::Local => "local",
    });
    // The size is in the name of the chain gone to; here it only has to tell shared chains apart.
    if !matches!(space, Space::Own(_)) {
        let bucket = layout::bucket(port.pool(pool).endpoints.len());
        let _infallible = write!(word, ".{bucket}");
    }
    if masquerade {
        word.push_str(".masq");
    }
    word
}

#[cfg(test)]
mod tests;
