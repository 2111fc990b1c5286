//! The table in nft's own language: for people, and for the program nft.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use nftables::expr::{BinaryOperation, Expression, FibFlag, MetaKey, NamedExpression, Payload};
use nftables::stmt::{Operator, Statement};
use proxy_core::address::IpFamily;
use proxy_core::rules::RuleSet;

use crate::compile::Rules;
use crate::expr::{Ct, Expr};
use crate::json::{self, Reading, Said, Term};
use crate::layout::TABLE;
use crate::model::{ChainSpec, ChainType, Hook, Key, KeyPart, Rule, RuleSpec, SetData, SetSpec};

/// The objects as a file that `nft -f` loads in place of the table, in one transaction.
///
/// What nft has no syntax for (rules that remember clients) stands there as a comment.
pub fn render_text(rules: &RuleSet<Key, Rule>, family: IpFamily) -> String {
    Script::of(rules, family).text
}

/// A file for `nft -f`.
#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) text: String,
    /// What it lacks.
    pub(crate) unsaid: Vec<Unsaid>,
}

/// An object that nft has no syntax for. It is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaid {
    /// The chain or set it belongs to.
    pub place: String,
    /// Whether it only remembers clients: everything else works without it.
    pub remembers: bool,
}

impl Script {
    pub(crate) fn of(rules: &Rules, family: IpFamily) -> Self {
        Author { rules, family, text: String::new(), unsaid: Vec::new() }.write()
    }
}

/// Writes a script.
struct Author<'a> {
    rules: &'a Rules,
    family: IpFamily,
    text: String,
    unsaid: Vec<Unsaid>,
}

impl Author<'_> {
    fn write(mut self) -> Script {
        let family = match self.family {
            IpFamily::V4 => "ip",
            IpFamily::V6 => "ip6",
        };
        self.line(&format!("add table {family} {TABLE}"));
        self.line(&format!("delete table {family} {TABLE}"));
        self.line(&format!("table {family} {TABLE} {{"));
        let elements = self.elements();
        for (key, rule) in self.rules {
            match (key, rule) {
                (Key::Set(name), Rule::Set(spec)) => {
                    let elements = elements.get(name.as_ref()).map_or(&[][..], Vec::as_slice);
                    self.set(name, spec, elements);
                }
                (Key::Chain(name), Rule::Chain(spec)) => self.chain(&name.0, spec),
                _ => {}
            }
        }
        self.line("}");
        Script { text: self.text, unsaid: self.unsaid }
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    fn leave_out(&mut self, place: &str, remembers: bool) {
        self.unsaid.push(Unsaid { place: place.to_owned(), remembers });
    }

    // === sets ===

    fn set(&mut self, name: &str, spec: &SetSpec, elements: &[String]) {
        if !is_plain_name(name) {
            return self.leave_out(name, false);
        }
        let word = if spec.data == SetData::None { "set" } else { "map" };
        self.line(&format!("\t{word} {name} {{"));
        let (keyword, words) = self.type_words(spec);
        let key = parts(&spec.key, words);
        let data = match spec.data {
            SetData::None => String::new(),
            SetData::Verdict => " : verdict".to_owned(),
            SetData::Endpoint => {
                format!(" : {}", parts(&[KeyPart::Address, KeyPart::Port], words))
            }
        };
        self.line(&format!("\t\t{keyword} {key}{data}"));
        match (spec.interval, spec.dynamic) {
            (true, _) => self.line("\t\tflags interval"),
            (false, Some(size)) => {
                self.line(&format!("\t\tsize {size}"));
                self.line("\t\tflags dynamic,timeout");
            }
            (false, None) => {}
        }
        if !elements.is_empty() {
            self.line(&format!("\t\telements = {{ {} }}", elements.join(",\n\t\t\t")));
        }
        self.line("\t}\n");
    }

    /// Words for an address, protocol, port and number, and what they are: types or fields.
    fn type_words(&self, spec: &SetSpec) -> (&'static str, [&'static str; 4]) {
        // Only by fields can a random number be part of a key.
        let by_field = spec.key.contains(&KeyPart::Number);
        match (by_field, self.family) {
            (true, IpFamily::V4) => ("typeof", ["ip daddr", "meta l4proto", "th dport", RANDOM]),
            (true, IpFamily::V6) => ("typeof", ["ip6 daddr", "meta l4proto", "th dport", RANDOM]),
            (false, IpFamily::V4) => ("type", ["ipv4_addr", "inet_proto", "inet_service", "mark"]),
            (false, IpFamily::V6) => ("type", ["ipv6_addr", "inet_proto", "inet_service", "mark"]),
        }
    }

    /// The elements by set, each as text.
    fn elements(&mut self) -> BTreeMap<String, Vec<String>> {
        let mut sets: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, rule) in self.rules {
            let Some((set, term)) = json::element_term(self.rules, key, self.family) else {
                continue;
            };
            match element_text(&term, rule) {
                Some(element) => sets.entry(set.to_owned()).or_default().push(element),
                None => self.leave_out(set, false),
            }
        }
        sets
    }

    // === chains ===

    fn chain(&mut self, name: &str, spec: &ChainSpec) {
        if !is_plain_name(name) {
            return self.leave_out(name, false);
        }
        self.line(&format!("\tchain {name} {{"));
        if let Some(base) = base(spec) {
            self.line(&format!("\t\t{base}"));
        }
        for rule in &spec.rules {
            let said = Reading::new(self.rules, self.family).read(rule);
            if let Some(line) = rule_text(&said, rule) {
                self.line(&format!("\t\t{line}"));
            } else {
                let said: serde_json::Value = said.iter().map(Said::to_json).collect();
                self.line(&format!("\t\t# by netlink only: {said}"));
                self.leave_out(name, remembers(rule));
            }
        }
        self.line("\t}\n");
    }
}

const RANDOM: &str = "numgen random mod 2";

/// Names are taken as they are, so they must be such that nft takes them for names.
fn is_plain_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._".contains(&byte);
    name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_plain)
}

fn parts(parts: &[KeyPart], words: [&'static str; 4]) -> String {
    let [address, protocol, port, number] = words;
    let word = |part: &KeyPart| match part {
        KeyPart::Address => address,
        KeyPart::Protocol => protocol,
        KeyPart::Port => port,
        KeyPart::Number => number,
    };
    parts.iter().map(word).collect::<Vec<_>>().join(" . ")
}

fn element_text(key: &Term, rule: &Rule) -> Option<String> {
    let mut text = term_text(key)?;
    match rule {
        Rule::Endpoint(address, port) => {
            let _infallible = write!(text, " : {address} . {port}");
        }
        Rule::Verdict(action) => {
            if !action.comment.is_empty() {
                let _infallible = write!(text, " comment {}", quoted(&action.comment)?);
            }
            let verdict = statement_text(&json::verdict_statement(&action.verdict))?;
            let _infallible = write!(text, " : {verdict}");
        }
        _ => {}
    }
    Some(text)
}

/// Whether the rule is one of those that remember clients, for which nft has no syntax.
pub(crate) fn remembers(rule: &RuleSpec) -> bool {
    rule.exprs.iter().any(|expr| match expr {
        Expr::UpdateMap { .. } => true,
        Expr::Ct { key, .. } => *key == Ct::OriginalDestinationPort,
        _ => false,
    })
}

/// A rule as text; `None` if there is no syntax for it.
fn rule_text(said: &[Said], rule: &RuleSpec) -> Option<String> {
    if remembers(rule) {
        return None;
    }
    let mut words = Vec::new();
    for said in said {
        let Said::Statement(statement) = said else { return None };
        words.push(statement_text(statement)?);
    }
    if !rule.comment.is_empty() {
        words.push(format!("comment {}", quoted(rule.comment)?));
    }
    Some(words.join(" "))
}

fn base(spec: &ChainSpec) -> Option<String> {
    let base = spec.base.as_ref()?;
    let kind = match base.chain_type {
        ChainType::Filter => "filter",
        ChainType::Nat => "nat",
        ChainType::Other => "route",
    };
    let hook = match base.hook {
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
    };
    Some(format!("type {kind} hook {hook} priority {}; policy accept;", base.priority))
}

fn statement_text(statement: &Statement<'static>) -> Option<String> {
    Some(match statement {
        Statement::Accept(_) => "accept".to_owned(),
        Statement::Drop(_) => "drop".to_owned(),
        Statement::Return(_) => "return".to_owned(),
        Statement::Jump(jump) => format!("jump {}", jump.target),
        Statement::Goto(goto) => format!("goto {}", goto.target),
        Statement::Match(found) => {
            let operator = if found.op == Operator::NEQ { "!= " } else { "" };
            let right = match &found.right {
                Expression::String(name) if is_interface(&found.left) => quoted(name)?,
                right => term_text(right)?,
            };
            format!("{} {operator}{right}", term_text(&found.left)?)
        }
        Statement::Mangle(mangle) => {
            format!("{} set {}", term_text(&mangle.key)?, term_text(&mangle.value)?)
        }
        Statement::VerdictMap(map) => {
            format!("{} vmap {}", term_text(&map.key)?, term_text(&map.data)?)
        }
        Statement::DNAT(Some(nat)) => {
            let family = match nat.family? {
                nftables::stmt::NATFamily::IP => "ip",
                nftables::stmt::NATFamily::IP6 => "ip6",
            };
            format!("dnat {family} to {}", term_text(nat.addr.as_ref()?)?)
        }
        Statement::Masquerade(_) => "masquerade fully-random".to_owned(),
        Statement::Reject(Some(reject)) => match reject._type? {
            nftables::stmt::RejectType::TCPReset => "reject with tcp reset".to_owned(),
            nftables::stmt::RejectType::ICMP => "reject with icmp port-unreachable".to_owned(),
            nftables::stmt::RejectType::ICMPv6 => "reject with icmpv6 port-unreachable".to_owned(),
            nftables::stmt::RejectType::ICMPX => return None,
        },
        _ => return None,
    })
}

fn is_interface(term: &Term) -> bool {
    matches!(term, Expression::Named(NamedExpression::Meta(meta)) if meta.key == MetaKey::Iifname)
}

/// In quotes; `None` if a character would need more than that.
fn quoted(text: &str) -> Option<String> {
    let is_odd = |c: char| c.is_control() || ['"', '\\'].contains(&c);
    (!text.contains(is_odd)).then(|| format!("\"{text}\""))
}

fn term_text(term: &Expression<'_>) -> Option<String> {
    Some(match term {
        Expression::String(text) => text.to_string(),
        Expression::Number(number) => number.to_string(),
        Expression::BinaryOperation(operation) => operation_text(operation)?,
        Expression::Named(named) => named_text(named)?,
        _ => return None,
    })
}

fn operation_text(operation: &BinaryOperation<'_>) -> Option<String> {
    Some(match operation {
        BinaryOperation::AND(left, right) => {
            format!("{} & {}", term_text(left)?, term_text(right)?)
        }
        BinaryOperation::XOR(left, right) => {
            format!("{} ^ {}", term_text(left)?, term_text(right)?)
        }
        BinaryOperation::OR(terms) => {
            terms.iter().map(term_text).collect::<Option<Vec<_>>>()?.join(" | ")
        }
        _ => return None,
    })
}

fn named_text(named: &NamedExpression<'_>) -> Option<String> {
    Some(match named {
        NamedExpression::Concat(terms) => {
            terms.iter().map(term_text).collect::<Option<Vec<_>>>()?.join(" . ")
        }
        NamedExpression::Map(map) => {
            format!("{} map {}", term_text(&map.key)?, term_text(&map.data)?)
        }
        NamedExpression::Prefix(prefix) => format!("{}/{}", term_text(&prefix.addr)?, prefix.len),
        NamedExpression::Payload(Payload::PayloadField(field)) => {
            format!("{} {}", field.protocol, field.field)
        }
        NamedExpression::Meta(meta) => match meta.key {
            MetaKey::Mark => "meta mark".to_owned(),
            MetaKey::Iifname => "meta iifname".to_owned(),
            MetaKey::L4proto => "meta l4proto".to_owned(),
            _ => return None,
        },
        // Of the original direction nft has no types that could be put together with others.
        NamedExpression::CT(ct) if ct.dir.is_none() => format!("ct {}", ct.key),
        NamedExpression::Numgen(numgen) => {
            format!("numgen random mod {} offset {}", numgen.ng_mod, numgen.offset.unwrap_or(0))
        }
        NamedExpression::Fib(fib) if fib.flags.contains(&FibFlag::Saddr) => {
            "fib saddr type".to_owned()
        }
        NamedExpression::Fib(_) => "fib daddr type".to_owned(),
        _ => return None,
    })
}
