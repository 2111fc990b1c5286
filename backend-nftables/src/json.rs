//! The table as nft's JSON.
//!
//! A rule's steps are read back into what nft calls statements. Their typed form serves two
//! outputs: JSON, and the text for what JSON cannot say (module `text`).

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use nftables::expr::{
    BinaryOperation, CT, CTDir, Elem, Expression, Fib, FibFlag, FibResult, Map, Meta as MetaField,
    MetaKey, NamedExpression, NgMode, Numgen, Payload, PayloadField, Prefix,
};
use nftables::schema::{
    Chain, Element, Map as MapObject, NfCmd, NfListObject, NfObject, Nftables, Rule as RuleObject,
    Set, SetFlag, SetType, SetTypeValue, Table,
};
use nftables::stmt::{
    JumpTarget, Mangle, Match, NAT, NATFamily, NATFlag, Operator, Reject, RejectType, Statement,
    VerdictMap,
};
use nftables::types::{NfChainPolicy, NfChainType, NfFamily, NfHook, RejectCode};
use proxy_core::address::IpFamily;
use proxy_core::names::Protocol;
use proxy_core::rules::RuleSet;
use serde_json::{Value, json};

use crate::compile::Rules;
use crate::expr::{Ct, Expr, FibAddress, Header, Meta, Refusal, Register, Verdict};
use crate::layout::TABLE;
use crate::model::{
    ChainName, ChainSpec, ChainType, Hook, Key, KeyPart, Rule, RuleSpec, SetData, SetSpec,
};
use crate::wire::{Words, element_key};

pub(crate) type Term = Expression<'static>;

/// The tables as one document in the JSON of `nft -j`: commands that add their objects.
///
/// It says what is in the tables. nft cannot load all of it: it takes no maps to addresses with
/// ports, and no rules that remember clients.
pub fn render_json<'a>(
    tables: impl IntoIterator<Item = (IpFamily, &'a RuleSet<Key, Rule>)>,
) -> Value {
    let mut objects = Vec::new();
    for (family, rules) in tables {
        objects.extend(declarations(rules, family));
        objects.extend(all_rules(rules, family));
        objects.extend(elements(rules, rules, family, Command::Add));
    }
    json!({ "nftables": objects })
}

pub(crate) fn family_word(family: IpFamily) -> NfFamily {
    match family {
        IpFamily::V4 => NfFamily::IP,
        IpFamily::V6 => NfFamily::IP6,
    }
}

/// What is to be done with elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Add,
    Delete,
}

/// One command that adds an object.
fn add(object: NfListObject<'static>) -> Value {
    command(NfCmd::Add(object))
}

fn command(command: NfCmd<'static>) -> Value {
    let document = Nftables { objects: vec![NfObject::CmdObject(command)].into() };
    let mut value = serde_json::to_value(document).unwrap_or_default();
    value.pointer_mut("/nftables/0").map(Value::take).unwrap_or_default()
}

fn declarations(rules: &Rules, family: IpFamily) -> Vec<Value> {
    let table = Table { family: family_word(family), name: TABLE.into(), handle: None };
    let mut objects = vec![add(NfListObject::Table(table))];
    for (key, rule) in rules {
        match (key, rule) {
            (Key::Set(name), Rule::Set(spec)) => objects.push(add_set(name, spec, family)),
            (Key::Chain(name), Rule::Chain(spec)) => objects.push(add(chain(name, spec, family))),
            _ => {}
        }
    }
    objects
}

/// Mends what the crate's types cannot say.
fn add_set(name: &str, spec: &SetSpec, family: IpFamily) -> Value {
    let mut command = add(set(name, spec, family));
    let word = if spec.data == SetData::None { "set" } else { "map" };
    let Some(fields) = command["add"][word].as_object_mut() else { return command };
    if spec.data == SetData::Verdict {
        fields.insert("map".into(), "verdict".into());
    }
    // Flags come from a hash set, but equal states are to give equal documents.
    if let Some(flags) = fields.get_mut("flags").and_then(Value::as_array_mut) {
        flags.sort_by_key(ToString::to_string);
    }
    command
}

fn owned(text: &str) -> Cow<'static, str> {
    Cow::Owned(text.to_owned())
}

fn set_type(parts: &[KeyPart], family: IpFamily) -> SetTypeValue<'static> {
    let one = |part: &KeyPart| match (part, family) {
        (KeyPart::Address, IpFamily::V4) => SetType::Ipv4Addr,
        (KeyPart::Address, IpFamily::V6) => SetType::Ipv6Addr,
        (KeyPart::Protocol, _) => SetType::InetProto,
        (KeyPart::Port, _) => SetType::InetService,
        (KeyPart::Number, _) => SetType::Mark,
    };
    match parts {
        [single] => SetTypeValue::Single(one(single)),
        _ => SetTypeValue::Concatenated(parts.iter().map(one).collect()),
    }
}

fn set(name: &str, spec: &SetSpec, family: IpFamily) -> NfListObject<'static> {
    let key = set_type(&spec.key, family);
    let mut flags = HashSet::new();
    if spec.interval {
        flags.insert(SetFlag::Interval);
    }
    if spec.dynamic.is_some() {
        flags.extend([SetFlag::Dynamic, SetFlag::Timeout]);
    }
    let flags = (!flags.is_empty()).then_some(flags);
    let (family_word, name) = (family_word(family), owned(name));
    // For verdicts as data there is no word: see `add_set`.
    let data = match spec.data {
        SetData::None => {
            return NfListObject::Set(Box::new(Set {
                family: family_word,
                table: TABLE.into(),
                name,
                set_type: key,
                flags,
                size: spec.dynamic,
                ..Set::default()
            }));
        }
        SetData::Verdict => SetTypeValue::Concatenated(Cow::Borrowed(&[])),
        SetData::Endpoint => set_type(&[KeyPart::Address, KeyPart::Port], family),
    };
    NfListObject::Map(Box::new(MapObject {
        family: family_word,
        table: TABLE.into(),
        name,
        set_type: key,
        map: data,
        flags,
        size: spec.dynamic,
        ..MapObject::default()
    }))
}

fn chain(name: &ChainName, spec: &ChainSpec, family: IpFamily) -> NfListObject<'static> {
    let mut object = Chain {
        family: family_word(family),
        table: TABLE.into(),
        name: owned(&name.0),
        ..Chain::default()
    };
    if let Some(base) = &spec.base {
        object._type = Some(match base.chain_type {
            ChainType::Filter => NfChainType::Filter,
            ChainType::Nat => NfChainType::NAT,
            ChainType::Other => NfChainType::Route,
        });
        object.hook = Some(match base.hook {
            Hook::Prerouting => NfHook::Prerouting,
            Hook::Input => NfHook::Input,
            Hook::Forward => NfHook::Forward,
            Hook::Output => NfHook::Output,
            Hook::Postrouting => NfHook::Postrouting,
        });
        object.prio = Some(base.priority);
        object.policy = Some(NfChainPolicy::Accept);
    }
    NfListObject::Chain(object)
}

fn all_rules(rules: &Rules, family: IpFamily) -> Vec<Value> {
    let mut objects = Vec::new();
    for (key, rule) in rules {
        let (Key::Chain(name), Rule::Chain(spec)) = (key, rule) else { continue };
        for rule in &spec.rules {
            let said = Reading::new(rules, family).read(rule);
            let mut object = add(NfListObject::Rule(RuleObject {
                family: family_word(family),
                table: TABLE.into(),
                chain: owned(&name.0),
                comment: (!rule.comment.is_empty()).then_some(rule.comment.into()),
                ..RuleObject::default()
            }));
            if let Some(place) = object.pointer_mut("/add/rule/expr") {
                *place = said.iter().map(Said::to_json).collect();
            }
            objects.push(object);
        }
    }
    objects
}

// === elements ===

/// Commands about elements, one for each set; `sets` says how the sets are made.
pub(crate) fn elements(
    elements: &Rules,
    sets: &Rules,
    family: IpFamily,
    what: Command,
) -> Vec<Value> {
    let mut by_set: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    for (key, rule) in elements {
        let Some((set, key)) = element_term(sets, key, family) else { continue };
        // What is deleted is known by its key.
        let rule = if what == Command::Delete { &Rule::Member } else { rule };
        by_set.entry(set).or_default().push(element(key, rule));
    }
    let of_set = |(name, elements): (&str, Vec<Value>)| {
        let object = NfListObject::Element(Element {
            family: family_word(family),
            table: TABLE.into(),
            name: owned(name),
            elem: Cow::Borrowed(&[]),
        });
        let (mut object, place) = match what {
            Command::Add => (add(object), "/add/element/elem"),
            Command::Delete => (command(NfCmd::Delete(object)), "/delete/element/elem"),
        };
        if let Some(place) = object.pointer_mut(place) {
            *place = elements.into();
        }
        object
    };
    by_set.into_iter().map(of_set).collect()
}

/// An element's set and what its key says, if the set is among the rules.
pub(crate) fn element_term<'a>(
    rules: &Rules,
    key: &'a Key,
    family: IpFamily,
) -> Option<(&'a str, Term)> {
    let place = element_key(key)?;
    let spec = set_spec(rules, place.set)?;
    let last = place.last.as_ref().map(Words::as_bytes);
    Some((place.set, concat(&terms(&spec.key, place.first.as_bytes(), last, family))))
}

fn element(key: Term, rule: &Rule) -> Value {
    let json = |term: &Term| serde_json::to_value(term).unwrap_or_default();
    match rule {
        Rule::Endpoint(address, port) => {
            json!([json(&key), json(&concat(&[address_term(*address), port_term(*port)]))])
        }
        Rule::Verdict(action) => {
            let comment = (!action.comment.is_empty()).then(|| owned(&action.comment));
            let named = Elem { val: Box::new(key), comment, ..absent_element() };
            let mut key = json(&Expression::Named(NamedExpression::Elem(named)));
            // nft takes what is null here for something that is there.
            if let Some(fields) = key.get_mut("elem").and_then(Value::as_object_mut) {
                fields.retain(|_, value| !value.is_null());
            }
            let verdict = verdict_statement(&action.verdict);
            json!([key, serde_json::to_value(verdict).unwrap_or_default()])
        }
        _ => json(&key),
    }
}

fn absent_element() -> Elem<'static> {
    Elem {
        val: Box::new(Expression::Number(0)),
        timeout: None,
        expires: None,
        comment: None,
        counter: None,
    }
}

fn set_spec<'a>(rules: &'a Rules, name: &str) -> Option<&'a SetSpec> {
    match rules.get(&Key::Set(name.into()))? {
        Rule::Set(spec) => Some(spec),
        _ => None,
    }
}

/// What the words of a key say; `last` ends a range, which only addresses have.
fn terms(parts: &[KeyPart], first: &[u8], last: Option<&[u8]>, family: IpFamily) -> Vec<Term> {
    let mut at = 0;
    let mut terms = Vec::new();
    for part in parts {
        let len = usize::try_from(part.len(family)).unwrap_or(0);
        let part_of = |words: &[u8]| words.get(at..at + len).unwrap_or_default().to_vec();
        terms.push(term(*part, &part_of(first), last.map(part_of).as_deref()));
        at += len;
    }
    terms
}

fn term(part: KeyPart, first: &[u8], last: Option<&[u8]>) -> Term {
    match (part, first) {
        (KeyPart::Protocol, [number, ..]) => protocol_term(*number),
        (KeyPart::Port, [high, low, ..]) => port_term(u16::from_be_bytes([*high, *low])),
        (KeyPart::Number, [a, b, c, d]) => Expression::Number(u32::from_ne_bytes([*a, *b, *c, *d])),
        _ => {
            let differing = last.map_or(0, |last| {
                first.iter().zip(last).map(|(first, last)| (first ^ last).count_ones()).sum()
            });
            let bits = u32::try_from(first.len()).unwrap_or(0) * 8;
            prefix_term(address(first), bits - differing)
        }
    }
}

fn address(bytes: &[u8]) -> IpAddr {
    if let Ok(bytes) = <[u8; 4]>::try_from(bytes) {
        Ipv4Addr::from(bytes).into()
    } else {
        Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap_or_default()).into()
    }
}

fn address_term(address: IpAddr) -> Term {
    Expression::String(address.to_string().into())
}

fn prefix_term(address: IpAddr, len: u32) -> Term {
    if len == u32::from(IpFamily::of(address).bits()) {
        return address_term(address);
    }
    let addr = Box::new(address_term(address));
    Expression::Named(NamedExpression::Prefix(Prefix { addr, len }))
}

fn port_term(port: u16) -> Term {
    Expression::Number(port.into())
}

fn protocol_term(number: u8) -> Term {
    match Protocol::from_number(number) {
        Some(protocol) => Expression::String(protocol.as_str().into()),
        None => Expression::Number(number.into()),
    }
}

fn concat(terms: &[Term]) -> Term {
    match terms {
        [single] => single.clone(),
        _ => Expression::Named(NamedExpression::Concat(terms.to_vec())),
    }
}

// === rules ===

/// A part of a rule.
#[derive(Debug)]
pub(crate) enum Said {
    /// A statement.
    Statement(Statement<'static>),
    /// One that the crate has no type for, and nft no syntax.
    UpdateMap(Value),
    /// A step that has no meaning for nft in this place.
    Nothing(String),
}

impl Said {
    pub(crate) fn to_json(&self) -> Value {
        match self {
            Self::Statement(statement) => serde_json::to_value(statement).unwrap_or_default(),
            Self::UpdateMap(value) => value.clone(),
            Self::Nothing(step) => json!({ "xt": { "name": step } }),
        }
    }
}

/// What a register holds.
#[derive(Clone, Debug)]
enum Loaded {
    /// The first bits of an address.
    Address { field: &'static str, prefix: u32 },
    /// Something, and how constants are written that it is compared with.
    Field { term: Term, constants: Constants },
    /// Bits of something.
    Bits { term: Term, mask: u32, xor: u32 },
}

#[derive(Clone, Copy, Debug)]
enum Constants {
    Protocol,
    RouteType,
    Interface,
    ConnectionState,
    ConnectionStatus,
    None,
}

/// Reads a rule's steps back into statements.
pub(crate) struct Reading<'a> {
    rules: &'a Rules,
    family: IpFamily,
    registers: BTreeMap<u8, Loaded>,
    said: Vec<Said>,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(rules: &'a Rules, family: IpFamily) -> Self {
        Self { rules, family, registers: BTreeMap::new(), said: Vec::new() }
    }

    pub(crate) fn read(mut self, rule: &RuleSpec) -> Vec<Said> {
        for expr in rule.exprs.iter() {
            match self.load(expr) {
                Some((to, loaded)) => drop(self.registers.insert(to.0, loaded)),
                None => self.step(expr),
            }
        }
        self.said
    }

    fn say(&mut self, statement: Statement<'static>) {
        self.said.push(Said::Statement(statement));
    }

    fn load(&self, expr: &Expr) -> Option<(Register, Loaded)> {
        let field = |term, constants| Loaded::Field { term, constants };
        Some(match expr {
            Expr::Payload { header: Header::Network, offset, len, to } => {
                let field = match (self.family, offset) {
                    (IpFamily::V4, 12) | (IpFamily::V6, 8) => "saddr",
                    _ => "daddr",
                };
                (*to, Loaded::Address { field, prefix: len * 8 })
            }
            Expr::Payload { header: Header::Transport, to, .. } => {
                (*to, field(payload("th", "dport"), Constants::None))
            }
            Expr::Meta { key, to } => {
                let (key, constants) = match key {
                    Meta::Mark => (MetaKey::Mark, Constants::None),
                    Meta::InputInterface => (MetaKey::Iifname, Constants::Interface),
                    Meta::L4Protocol => (MetaKey::L4proto, Constants::Protocol),
                };
                (*to, field(meta(key), constants))
            }
            Expr::Ct { key, to } => {
                let constants = match key {
                    Ct::State => Constants::ConnectionState,
                    Ct::Status => Constants::ConnectionStatus,
                    _ => Constants::None,
                };
                (*to, field(connection(*key), constants))
            }
            Expr::FibType { address, to } => {
                let flag = match address {
                    FibAddress::Source => FibFlag::Saddr,
                    FibAddress::Destination => FibFlag::Daddr,
                };
                let fib = Fib { result: FibResult::Type, flags: [flag].into() };
                (*to, field(Expression::Named(NamedExpression::Fib(fib)), Constants::RouteType))
            }
            Expr::Random { modulus, offset, to } => {
                let offset = (*offset > 0).then_some(*offset);
                let random = Numgen { mode: NgMode::Random, ng_mod: *modulus, offset };
                (*to, field(Expression::Named(NamedExpression::Numgen(random)), Constants::None))
            }
            Expr::Map { map, key, to } => {
                let key = self.key(map, *key);
                let data = set_name(map);
                let found = Map { key, data };
                let found = Expression::Named(NamedExpression::Map(Box::new(found)));
                (*to, field(found, Constants::None))
            }
            Expr::Bitwise { from, to, mask, xor } => (*to, self.bitwise(*from, mask, xor)?),
            _ => return None,
        })
    }

    fn bitwise(&self, from: Register, mask: &[u8], xor: &[u8]) -> Option<Loaded> {
        let word = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
        Some(match self.registers.get(&from.0)? {
            Loaded::Address { field, .. } => {
                let prefix = mask.iter().map(|byte| byte.count_ones()).sum();
                Loaded::Address { field, prefix }
            }
            Loaded::Field { term, constants } => {
                let mask = word(mask)?;
                // The first of several flags is as good as a name, since only one is asked for.
                let named = match (constants, mask) {
                    (Constants::ConnectionState, 8) | (Constants::ConnectionStatus, 0x20) => {
                        return Some(Loaded::Field { term: term.clone(), constants: *constants });
                    }
                    _ => term.clone(),
                };
                Loaded::Bits { term: named, mask, xor: word(xor)? }
            }
            Loaded::Bits { .. } => return None,
        })
    }

    fn term(&self, register: u8) -> Term {
        match self.registers.get(&register) {
            Some(Loaded::Address { field, .. }) => payload(self.protocol(), field),
            Some(Loaded::Field { term, .. } | Loaded::Bits { term, .. }) => term.clone(),
            None => Expression::Boolean(false),
        }
    }

    fn protocol(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => "ip",
            IpFamily::V6 => "ip6",
        }
    }

    /// The key that is looked up in a set.
    fn key(&self, set: &str, register: Register) -> Term {
        let mut word = register.0;
        let mut terms = Vec::new();
        for part in set_spec(self.rules, set).iter().flat_map(|spec| &spec.key) {
            terms.push(self.term(word));
            word += u8::try_from(part.len(self.family) / 4).unwrap_or(1);
        }
        concat(&terms)
    }

    fn step(&mut self, expr: &Expr) {
        let statement = match expr {
            Expr::Cmp { register, differs, bytes } => self.comparison(*register, *differs, bytes),
            Expr::SetMark { from } => self.mark(*from),
            Expr::Contains { set, key } => {
                Some(matches(self.key(set, *key), Operator::EQ, set_name(set)))
            }
            Expr::VerdictMap { map, key } => Some(Statement::VerdictMap(VerdictMap {
                key: self.key(map, *key),
                data: set_name(map),
            })),
            Expr::Dnat { address, .. } => Some(Statement::DNAT(Some(NAT {
                addr: Some(self.term(address.0)),
                family: Some(match self.family {
                    IpFamily::V4 => NATFamily::IP,
                    IpFamily::V6 => NATFamily::IP6,
                }),
                port: None,
                flags: None,
            }))),
            Expr::Masquerade => Some(Statement::Masquerade(Some(NAT {
                addr: None,
                family: None,
                port: None,
                flags: Some([NATFlag::FullyRandom].into()),
            }))),
            Expr::Reject(refusal) => Some(reject(*refusal)),
            Expr::Verdict(verdict) => Some(verdict_statement(verdict)),
            Expr::UpdateMap { map, key, value, timeout_ms } => {
                let said = self.update(map, *key, *value, *timeout_ms);
                self.said.push(Said::UpdateMap(said));
                return;
            }
            _ => None,
        };
        match statement {
            Some(statement) => self.say(statement),
            None => self.said.push(Said::Nothing(format!("{expr:?}"))),
        }
    }

    fn comparison(
        &self,
        register: Register,
        differs: bool,
        bytes: &[u8],
    ) -> Option<Statement<'static>> {
        let operator = if differs { Operator::NEQ } else { Operator::EQ };
        let word = |text: &'static str| Expression::String(text.into());
        Some(match self.registers.get(&register.0)? {
            Loaded::Address { field, prefix } => {
                let mut bytes = bytes.to_vec();
                bytes.resize(usize::from(self.family.bits() / 8), 0);
                let range = prefix_term(address(&bytes), *prefix);
                matches(payload(self.protocol(), field), operator, range)
            }
            Loaded::Bits { term, mask, xor: 0 } => {
                let masked = BinaryOperation::AND(term.clone(), Expression::Number(*mask));
                let masked = Expression::BinaryOperation(Box::new(masked));
                matches(masked, operator, Expression::Number(0))
            }
            Loaded::Bits { .. } => return None,
            Loaded::Field { term, constants } => match constants {
                Constants::Protocol => {
                    matches(term.clone(), operator, protocol_term(*bytes.first()?))
                }
                Constants::RouteType => matches(term.clone(), operator, word("local")),
                Constants::ConnectionState => matches(term.clone(), Operator::IN, word("new")),
                Constants::ConnectionStatus => matches(term.clone(), Operator::IN, word("dnat")),
                Constants::Interface => {
                    matches(term.clone(), operator, Expression::String(interface(bytes).into()))
                }
                Constants::None => return None,
            },
        })
    }

    fn mark(&self, from: Register) -> Option<Statement<'static>> {
        let Some(Loaded::Bits { term, mask, xor }) = self.registers.get(&from.0) else {
            return None;
        };
        let (term, bits) = (term.clone(), Expression::Number(*xor));
        let value = match *mask {
            u32::MAX => BinaryOperation::XOR(term, bits),
            mask if mask == !xor => BinaryOperation::OR(vec![term, bits]),
            _ => return None,
        };
        let value = Expression::BinaryOperation(Box::new(value));
        Some(Statement::Mangle(Mangle { key: meta(MetaKey::Mark), value }))
    }

    /// As `nft -j list` shows it.
    fn update(&self, map: &Arc<str>, key: Register, value: Register, timeout_ms: u64) -> Value {
        let words = match self.family {
            IpFamily::V4 => 1,
            IpFamily::V6 => 4,
        };
        let data = concat(&[self.term(value.0), self.term(value.0 + words)]);
        json!({ "map": {
            "op": "update",
            "elem": { "elem": { "val": self.key(map, key), "timeout": timeout_ms / 1000 } },
            "data": data,
            "map": format!("@{map}"),
        }})
    }
}

fn matches(left: Term, op: Operator, right: Term) -> Statement<'static> {
    Statement::Match(Match { left, right, op })
}

fn set_name(name: &str) -> Term {
    Expression::String(format!("@{name}").into())
}

fn payload(protocol: &'static str, field: &'static str) -> Term {
    let field = PayloadField { protocol: protocol.into(), field: field.into() };
    Expression::Named(NamedExpression::Payload(Payload::PayloadField(field)))
}

fn meta(key: MetaKey) -> Term {
    Expression::Named(NamedExpression::Meta(MetaField { key }))
}

fn connection(key: Ct) -> Term {
    let (key, dir) = match key {
        Ct::State => ("state", None),
        Ct::Status => ("status", None),
        Ct::OriginalDestination(IpFamily::V4) => ("ip daddr", Some(CTDir::Original)),
        Ct::OriginalDestination(IpFamily::V6) => ("ip6 daddr", Some(CTDir::Original)),
        Ct::OriginalDestinationPort => ("proto-dst", Some(CTDir::Original)),
    };
    Expression::Named(NamedExpression::CT(CT { key: key.into(), family: None, dir }))
}

/// An interface name as nft writes it; one that is not padded is a prefix.
fn interface(bytes: &[u8]) -> String {
    let name: Vec<u8> = bytes.iter().copied().take_while(|byte| *byte != 0).collect();
    let mut name = String::from_utf8_lossy(&name).into_owned();
    if name.ends_with('*') {
        // Only as itself, not as a wildcard.
        name.insert(name.len() - 1, '\\');
    }
    if bytes.last() != Some(&0) {
        name.push('*');
    }
    name
}

fn reject(refusal: Refusal) -> Statement<'static> {
    let (kind, code) = match refusal {
        Refusal::TcpReset => (RejectType::TCPReset, None),
        Refusal::PortUnreachable(IpFamily::V4) => (RejectType::ICMP, Some(RejectCode::PortUnreach)),
        Refusal::PortUnreachable(IpFamily::V6) => {
            (RejectType::ICMPv6, Some(RejectCode::PortUnreach))
        }
    };
    Statement::Reject(Some(Reject::new(Some(kind), code)))
}

pub(crate) fn verdict_statement(verdict: &Verdict) -> Statement<'static> {
    let target = |name: &str| JumpTarget { target: owned(name) };
    match verdict {
        Verdict::Drop => Statement::Drop(None),
        Verdict::Accept => Statement::Accept(None),
        Verdict::Return => Statement::Return(None),
        Verdict::Jump(name) => Statement::Jump(target(name)),
        Verdict::Goto(name) => Statement::Goto(target(name)),
    }
}
