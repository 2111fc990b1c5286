//! The fixed iptables rules: they are the same however many Services there are, and look into the
//! sets.
//!
//! ```text
//!   mangle PREROUTING, OUTPUT   before anything is translated: source ranges, drops, and the mark
//!                               that asks for masquerading
//!   nat    POSTROUTING          masquerades what is marked, and endpoints that meet themselves
//!   filter INPUT                lets virtual servers be reached, refuses what addresses do not serve
//!   filter FORWARD              lets answers through
//! ```
//!
//! Lines are written as iptables-save shows them, so that what is installed can be compared.

use std::collections::BTreeSet;

use proxy_core::address::IpFamily;
use proxy_core::node::LocalDetector;

use crate::compile::TableConfig;
use crate::model::SetName;

/// All our chains start like this.
pub(crate) const PREFIX: &str = "PROXYD-IPVS-";
/// Tables that have rules of ours, in the order in which they are written.
pub(crate) const TABLES: [&str; 3] = ["mangle", "nat", "filter"];

/// The rules in order of table and chain, each line behind the name of its table.
pub(crate) fn lines(config: &TableConfig) -> Vec<String> {
    let mut writer = Writer { family: config.family, lines: Vec::new() };
    writer.jumps();
    writer.arrivals();
    writer.masquerade_marks(config);
    writer.outside(config);
    writer.departures(config.masquerade_bit);
    writer.filter();
    normal(writer.lines)
}

/// Lines in order of table and chain; those of one chain keep their order.
fn normal(mut lines: Vec<String>) -> Vec<String> {
    lines.sort_by(|line, other| place(line).cmp(&place(other)));
    lines
}

fn place(line: &str) -> (&str, &str) {
    let mut words = line.split(' ');
    let table = words.next().unwrap_or_default();
    (table, words.nth(1).unwrap_or_default())
}

/// What of iptables-save's output is ours.
pub(crate) fn read(saved: &str) -> Vec<String> {
    let mut table = "";
    let mut lines = Vec::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        } else if own_chain(line).is_some() || jumps_to_us(line) {
            lines.push(format!("{table} {}", line.trim_end()));
        } else if let Some(chain) = empty_chain(line) {
            // So that one without rules is seen as well.
            lines.push(format!("{table} -N {chain}"));
        }
    }
    let has_rules = |table: &str, chain: &str| {
        lines.iter().any(|line| line.starts_with(&format!("{table} -A {chain} ")))
    };
    let keep = |line: &String| {
        let mut words = line.split(' ');
        let (table, kind, chain) = (words.next(), words.next(), words.next());
        kind != Some("-N") || !has_rules(table.unwrap_or_default(), chain.unwrap_or_default())
    };
    normal(lines.iter().filter(|line| keep(line)).cloned().collect())
}

fn jumps_to_us(line: &str) -> bool {
    let mut words = line.trim_end().rsplit(' ');
    let target = words.next().unwrap_or_default();
    line.starts_with("-A ") && target.starts_with(PREFIX) && words.next() == Some("-j")
}

fn empty_chain(line: &str) -> Option<&str> {
    let name = line.strip_prefix(':')?.split(' ').next()?;
    name.starts_with(PREFIX).then_some(name)
}

/// Input for iptables-restore --noflush that leads from the lines `old` to the lines `new`. Each
/// table changes as a whole.
pub(crate) fn restore(old: &[String], new: &[String]) -> String {
    let mut script = Vec::new();
    for table in TABLES {
        let (old, new) = (of_table(old, table), of_table(new, table));
        if old != new {
            script.push(format!("*{table}"));
            change_table(&old, &new, &mut script);
            script.push("COMMIT".to_owned());
        }
    }
    script.into_iter().map(|line| line + "\n").collect()
}

/// The lines of a table, without its name.
fn of_table<'a>(lines: &'a [String], table: &str) -> Vec<&'a str> {
    let rest = |line: &'a String| line.strip_prefix(table)?.strip_prefix(' ');
    lines.iter().filter_map(rest).collect()
}

fn change_table(old: &[&str], new: &[&str], script: &mut Vec<String>) {
    let chains = |lines: &[&str]| -> BTreeSet<String> {
        lines.iter().filter_map(|line| own_chain(line)).map(str::to_owned).collect()
    };
    let (before, after) = (chains(old), chains(new));
    // Makes them, and empties those that exist.
    script.extend((&before | &after).iter().map(|chain| format!(":{chain} - [0:0]")));
    let jump = |line: &&str| {
        line.strip_prefix("-A ").filter(|_| own_chain(line).is_none()).map(str::to_owned)
    };
    script.extend(old.iter().filter_map(jump).map(|jump| format!("-D {jump}")));
    script.extend(new.iter().filter(|line| own_chain(line).is_some()).map(ToString::to_string));
    // In front of what others have there.
    script.extend(new.iter().filter_map(jump).map(|jump| format!("-I {jump}")));
    script.extend((&before - &after).iter().map(|chain| format!("-X {chain}")));
}

/// The chain of ours that a line is in.
fn own_chain(line: &str) -> Option<&str> {
    let chain = line.strip_prefix('-')?.split(' ').nth(1)?;
    chain.starts_with(PREFIX).then_some(chain)
}

struct Writer {
    family: IpFamily,
    lines: Vec<String>,
}

impl Writer {
    fn rule(&mut self, table: &str, chain: &str, rule: &str) {
        self.lines.push(format!("{table} -A {chain} {rule}"));
    }

    fn own(&mut self, table: &str, chain: &str, rule: &str) {
        self.rule(table, &format!("{PREFIX}{chain}"), rule);
    }

    /// The match of a set, by these parts of the packet.
    fn set(&self, set: SetName, by: &str) -> String {
        format!("-m set --match-set {} {by}", set.of(self.family))
    }

    fn frontend(&self, set: SetName) -> String {
        self.set(set, "dst,dst")
    }

    fn jumps(&mut self) {
        let new = "-m conntrack --ctstate NEW";
        for chain in ["PREROUTING", "OUTPUT"] {
            self.rule("mangle", chain, &format!("{new} -j {PREFIX}NEW"));
        }
        self.rule("nat", "POSTROUTING", &format!("-j {PREFIX}POST"));
        self.rule("filter", "INPUT", &format!("-j {PREFIX}IN"));
        self.rule("filter", "FORWARD", &format!("-j {PREFIX}FORWARD"));
    }

    fn arrivals(&mut self) {
        for (set, target) in [
            (SetName::Ranges, format!("{PREFIX}RANGES")),
            (SetName::Drop, "DROP".to_owned()),
            (SetName::DropOutside, format!("{PREFIX}OUTSIDE")),
            (SetName::Live, format!("{PREFIX}MASQ")),
        ] {
            let rule = format!("{} -j {target}", self.frontend(set));
            self.own("mangle", "NEW", &rule);
        }
        let allowed = format!("{} -j RETURN", self.set(SetName::Allowed, "dst,dst,src"));
        self.own("mangle", "RANGES", &allowed);
        self.own("mangle", "RANGES", "-j DROP");
    }

    fn outside(&mut self, config: &TableConfig) {
        if let Some(pod) = detector(config) {
            self.own("mangle", "OUTSIDE", &format!("{pod} -j RETURN"));
        }
        self.own("mangle", "OUTSIDE", "-m addrtype --src-type LOCAL -j RETURN");
        self.own("mangle", "OUTSIDE", "-j DROP");
    }

    /// Classes of sources are tested in the order pod, host, outside.
    fn masquerade_marks(&mut self, config: &TableConfig) {
        let mark = 1_u32 << config.masquerade_bit;
        let mark = format!("-j MARK --set-xmark {mark:#x}/{mark:#x}");
        let host = "-m addrtype --src-type LOCAL";
        // The host calls a service address from that very address, which no endpoint could answer.
        let from_service = format!("{} {mark}", self.set(SetName::Addresses, "src"));
        self.own("mangle", "MASQ", &from_service);
        if let Some(pod) = detector(config) {
            let rule = format!("{pod} {} {mark}", self.frontend(SetName::MasqueradePod));
            self.own("mangle", "MASQ", &rule);
            self.own("mangle", "MASQ", &format!("{pod} -j RETURN"));
        }
        let rule = format!("{host} {} {mark}", self.frontend(SetName::MasqueradeHost));
        self.own("mangle", "MASQ", &rule);
        self.own("mangle", "MASQ", &format!("{host} -j RETURN"));
        let rule = format!("{} {mark}", self.frontend(SetName::MasqueradeOutside));
        self.own("mangle", "MASQ", &rule);
    }

    fn departures(&mut self, masquerade_bit: u8) {
        let mark = 1_u32 << masquerade_bit;
        let hairpin = self.set(SetName::Hairpin, "dst,dst,src");
        self.own("nat", "POST", &format!("{hairpin} -j MASQUERADE --random-fully"));
        self.own("nat", "POST", &format!("-m mark ! --mark {mark:#x}/{mark:#x} -j RETURN"));
        // A packet that comes by again, inside a tunnel say, must not be masqueraded twice.
        self.own("nat", "POST", &format!("-j MARK --set-xmark {mark:#x}/0x0"));
        self.own("nat", "POST", "-j MASQUERADE --random-fully");
    }

    fn filter(&mut self) {
        let known = "-m conntrack --ctstate RELATED,ESTABLISHED";
        let new = "-m conntrack --ctstate NEW";
        let reject = match self.family {
            IpFamily::V4 => "-j REJECT --reject-with icmp-port-unreachable",
            IpFamily::V6 => "-j REJECT --reject-with icmp6-port-unreachable",
        };
        // In the other modes this traffic does not pass INPUT, so its policy must not matter here.
        let rules = [
            format!("{} -j ACCEPT", self.frontend(SetName::Live)),
            format!("{known} {} -j ACCEPT", self.frontend(SetName::Servers)),
            format!("{known} {} -j ACCEPT", self.set(SetName::Addresses, "dst")),
            format!("-p tcp {} -j ACCEPT", self.set(SetName::HealthPorts, "dst")),
            format!("{new} {} {reject}", self.frontend(SetName::Reject)),
            format!("{new} {} {reject}", self.set(SetName::Addresses, "dst")),
        ];
        for rule in rules {
            self.own("filter", "IN", &rule);
        }
        self.own("filter", "FORWARD", &format!("{known} -j ACCEPT"));
    }
}

/// The match of pods' traffic.
fn detector(config: &TableConfig) -> Option<String> {
    Some(match config.detector.as_ref()? {
        LocalDetector::Source(range) => format!("-s {range}"),
        LocalDetector::Interface(name) => format!("-i {name}"),
        LocalDetector::InterfacePrefix(prefix) => format!("-i {prefix}+"),
    })
}

/// Whether the name can stand in a rule as it is.
pub(crate) fn is_plain_interface(name: &str) -> bool {
    /// `IFNAMSIZ` less the terminating zero.
    const LONGEST: usize = 15;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | ':' | '@');
    !name.is_empty() && name.len() <= LONGEST && name.chars().all(plain) && !name.starts_with('-')
}

#[cfg(test)]
mod tests;
