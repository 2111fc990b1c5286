//! Loading by the program nft, where netlink is no choice.
//!
//! nft's JSON has no maps to addresses with ports and no random numbers in keys, so tables, sets
//! and rules go to it as text; elements, which are most of a state, as JSON. Nothing of both
//! reaches a shell, and names come from users only in a form that needs no quotes.

use std::fmt::Write as _;
use std::time::Duration;

use nftables::expr::{BinaryOperation, Expression, FibFlag, MetaKey, NamedExpression, Payload};
use nftables::stmt::{Operator, Statement};
use node_sys::program;
use proxy_core::address::IpFamily;
use proxy_core::rules::RuleSet;
use proxy_core::table::{TableError, TableErrorKind};
use serde_json::json;

use crate::compile::Rules;
use crate::expr::{Ct, Expr};
use crate::json::{self, Reading, Said, Term};
use crate::layout::TABLE;
use crate::model::{ChainSpec, ChainType, Hook, Key, KeyPart, Rule, RuleSpec, SetData, SetSpec};

/// No load takes longer, whatever the machine.
const LIMIT: Duration = Duration::from_secs(300);

/// A rule that nft has no syntax for. It is left out; without it clients are not remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaid {
    /// The chain it belongs to.
    pub chain: String,
}

/// The program nft.
///
/// It loads whole states only: a fallback, and a second opinion for tests. Services with session
/// affinity work without it.
#[derive(Clone, Debug)]
pub struct NftTool {
    program: String,
    family: IpFamily,
}

impl NftTool {
    /// The program of this name or path, for the table of one family.
    pub fn new(program: impl Into<String>, family: IpFamily) -> Self {
        Self { program: program.into(), family }
    }

    /// Replaces the table by one with these objects. Returns the rules that cannot be said.
    ///
    /// The table is replaced at once, but its elements follow in a second transaction: what the
    /// rules forward is interrupted for that long.
    pub fn load(&self, rules: &RuleSet<Key, Rule>) -> Result<Vec<Unsaid>, TableError> {
        let mut unsaid = Vec::new();
        let text = self.declarations(rules, &mut unsaid)?;
        self.run(&["-f", "-"], text.as_bytes(), "sets and rules")?;
        let elements = json!({ "nftables": json::elements(rules, self.family) });
        self.run(&["-j", "-f", "-"], elements.to_string().as_bytes(), "elements")?;
        Ok(unsaid)
    }

    fn run(&self, arguments: &[&str], input: &[u8], what: &str) -> Result<(), TableError> {
        let operation = format!("load {what} of table {TABLE} with {}", self.program);
        let output = program::run(&self.program, arguments, input, LIMIT).map_err(|error| {
            TableError::new(TableErrorKind::Transient, &operation).with_source(error)
        })?;
        if output.status.success() {
            return Ok(());
        }
        // The text is for people: nothing is decided by it.
        let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let cause = format!("{}: {text}", output.status);
        Err(TableError::new(TableErrorKind::Rejected, operation).with_source(cause))
    }

    fn family_word(&self) -> &'static str {
        match self.family {
            IpFamily::V4 => "ip",
            IpFamily::V6 => "ip6",
        }
    }

    /// The table without elements, in nft's own language.
    fn declarations(&self, rules: &Rules, unsaid: &mut Vec<Unsaid>) -> Result<String, TableError> {
        let family = self.family_word();
        let mut text = format!("add table {family} {TABLE}\ndelete table {family} {TABLE}\n");
        let _infallible = writeln!(text, "table {family} {TABLE} {{");
        for (key, rule) in rules {
            match (key, rule) {
                (Key::Set(name), Rule::Set(spec)) => {
                    check_name(name)?;
                    let _infallible = writeln!(text, "{}", self.set(name, spec));
                }
                (Key::Chain(name), Rule::Chain(spec)) => {
                    check_name(&name.0)?;
                    text.push_str(&self.chain(rules, &name.0, spec, unsaid)?);
                }
                _ => {}
            }
        }
        text.push_str("}\n");
        Ok(text)
    }

    fn chain(
        &self,
        rules: &Rules,
        name: &str,
        spec: &ChainSpec,
        unsaid: &mut Vec<Unsaid>,
    ) -> Result<String, TableError> {
        let mut text = format!("chain {name} {{\n{}", base(spec));
        for rule in &spec.rules {
            if remembers(rule) {
                unsaid.push(Unsaid { chain: name.to_owned() });
                continue;
            }
            let line = self.rule(rules, rule).ok_or_else(|| {
                let operation = format!("write a rule of chain {name} for nft: {:?}", rule.exprs);
                TableError::new(TableErrorKind::Rejected, operation)
            })?;
            let _infallible = writeln!(text, "{line}");
        }
        text.push_str("}\n");
        Ok(text)
    }

    fn set(&self, name: &str, spec: &SetSpec) -> String {
        let word = if spec.data == SetData::None { "set" } else { "map" };
        let has_number = spec.key.contains(&KeyPart::Number);
        let (keyword, key) = if has_number {
            // Only so can a random number be part of a key.
            ("typeof", Self::parts(&spec.key, self.fields()))
        } else {
            ("type", Self::parts(&spec.key, self.types()))
        };
        let endpoint = [KeyPart::Address, KeyPart::Port];
        let data = match spec.data {
            SetData::None => String::new(),
            SetData::Verdict => " : verdict".to_owned(),
            SetData::Endpoint if has_number => {
                format!(" : {}", Self::parts(&endpoint, self.fields()))
            }
            SetData::Endpoint => format!(" : {}", Self::parts(&endpoint, self.types())),
        };
        let flags = match (spec.interval, spec.dynamic) {
            (true, _) => "flags interval; ".to_owned(),
            (false, Some(size)) => format!("size {size}; flags dynamic,timeout; "),
            (false, None) => String::new(),
        };
        format!("{word} {name} {{ {keyword} {key}{data}; {flags}}}")
    }

    /// Types of an address, protocol, port, number.
    fn types(&self) -> [&'static str; 4] {
        match self.family {
            IpFamily::V4 => ["ipv4_addr", "inet_proto", "inet_service", "mark"],
            IpFamily::V6 => ["ipv6_addr", "inet_proto", "inet_service", "mark"],
        }
    }

    /// Fields that have these types.
    fn fields(&self) -> [&'static str; 4] {
        match self.family {
            IpFamily::V4 => ["ip daddr", "meta l4proto", "th dport", "numgen random mod 2"],
            IpFamily::V6 => ["ip6 daddr", "meta l4proto", "th dport", "numgen random mod 2"],
        }
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

    /// A rule as text; `None` if there is no syntax for it.
    fn rule(&self, rules: &Rules, rule: &RuleSpec) -> Option<String> {
        let mut words = Vec::new();
        for said in Reading::new(rules, self.family).read(rule) {
            let Said::Statement(statement) = said else { return None };
            words.push(statement_text(&statement)?);
        }
        if !rule.comment.is_empty() {
            words.push(format!("comment \"{}\"", rule.comment));
        }
        Some(words.join(" "))
    }
}

/// Whether the rule is one of those that remember clients, for which nft has no syntax.
fn remembers(rule: &RuleSpec) -> bool {
    rule.exprs.iter().any(|expr| match expr {
        Expr::UpdateMap { .. } => true,
        Expr::Ct { key, .. } => *key == Ct::OriginalDestinationPort,
        _ => false,
    })
}

/// Names are taken as they are, so they must be such that nft takes them for names.
fn check_name(name: &str) -> Result<(), TableError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._".contains(&byte);
    if name.starts_with(|first: char| first.is_ascii_alphabetic()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    let operation = format!("write the name {name:?} for nft");
    Err(TableError::new(TableErrorKind::Rejected, operation))
}

fn base(spec: &ChainSpec) -> String {
    let Some(base) = &spec.base else { return String::new() };
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
    format!("type {kind} hook {hook} priority {}; policy accept;\n", base.priority)
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

/// An interface name in quotes; `None` if it has a character that would need more than that.
fn quoted(name: &str) -> Option<String> {
    let is_odd = |c: char| c.is_control() || ['"', '\\'].contains(&c);
    (!name.contains(is_odd)).then(|| format!("\"{name}\""))
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
