//! Reading what is installed, as `iptables-save` prints it.

use std::collections::BTreeMap;

use crate::layout;
use crate::model::{Key, Rule, Rules, Table, Text};
use crate::text;

/// The objects of ours in a table. What is not understood is not ours.
///
/// [`layout::LOCALNET_FIREWALL`] is shared with the kubelet: of it only `localnet_rule` counts, and
/// nothing if that is `None`.
pub(crate) fn parse(table: Table, saved: &str, localnet_rule: Option<&str>, out: &mut Rules) {
    let mut section = "";
    let mut chains: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            section = name;
        } else if section != table.as_str() {
        } else if let Some(chain) = line.strip_prefix(':') {
            chains.entry(first_word(chain)).or_default();
        } else if let Some((chain, rule)) = line.strip_prefix("-A ").and_then(split_word) {
            chains.entry(chain).or_default().push(rule);
        }
    }
    for (name, rules) in chains {
        take_chain(table, name, &rules, localnet_rule, out);
    }
}

fn take_chain(table: Table, name: &str, rules: &[&str], localnet: Option<&str>, out: &mut Rules) {
    let name = Text::from(name);
    if &*name == layout::LOCALNET_FIREWALL {
        let Some(wanted) = localnet else { return };
        out.insert(Key::chain(table, &name), Rule::Shared);
        if rules.contains(&wanted) {
            out.insert(Key::entry(table, &name, &wanted.into()), Rule::Entry);
        }
    } else if layout::is_shared(&name) {
        out.insert(Key::chain(table, &name), Rule::Shared);
        for rule in rules {
            out.insert(Key::entry(table, &name, &(*rule).into()), Rule::Entry);
        }
    } else if layout::is_ours(&name) {
        let rules = rules.iter().map(|rule| Text::from(*rule)).collect();
        out.insert(Key::chain(table, &name), Rule::Chain(rules));
    } else {
        let is_jump = |rule: &&&str| match text::target(rule) {
            layout::LOCALNET_FIREWALL => localnet.is_some(),
            target => layout::is_ours(target),
        };
        let jumps: Vec<Text> = rules.iter().filter(is_jump).map(|rule| (*rule).into()).collect();
        if !jumps.is_empty() {
            out.insert(Key::Jumps(table, name), Rule::Jumps(jumps.into()));
        }
    }
}

fn first_word(text: &str) -> &str {
    text.split(' ').next().unwrap_or(text)
}

fn split_word(text: &str) -> Option<(&str, &str)> {
    Some(text.split_once(' ').unwrap_or((text, ""))).filter(|(word, _)| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(saved: &str, localnet: Option<&str>) -> Rules {
        let mut out = Rules::new();
        parse(Table::Nat, saved, localnet, &mut out);
        out
    }

    #[test]
    fn only_what_is_ours_is_taken() {
        let saved = "# comment\n*filter\n:KUBE-SERVICES - [0:0]\nCOMMIT\n*nat\n\
             :PREROUTING ACCEPT [1:2]\n:KUBE-SVC-A - [0:0]\n:KUBE-SERVICES - [0:0]\n:OTHER - [0:0]\n\
             -A PREROUTING -j OTHER\n-A PREROUTING -m comment --comment \"a b\" -j KUBE-SERVICES\n\
             -A OTHER -j RETURN\n-A KUBE-SERVICES -d 10.0.0.1/32 -j KUBE-SVC-A\n\
             -A KUBE-SVC-A -j RETURN\nCOMMIT\n";
        let found = parsed(saved, None);
        let keys: Vec<String> = found.iter().map(|(key, _)| format!("{key:?}")).collect();
        assert_eq!(found.len(), 4, "{keys:?}");
        let jumps = found.get(&Key::Jumps(Table::Nat, "PREROUTING".into()));
        let expected = "-m comment --comment \"a b\" -j KUBE-SERVICES";
        assert_eq!(jumps, Some(&Rule::Jumps([Text::from(expected)].into())));
    }

    #[test]
    fn the_firewall_that_the_kubelet_shares_counts_only_if_it_is_wanted() {
        let saved = "*nat\n:KUBE-FIREWALL - [0:0]\n-A INPUT -j KUBE-FIREWALL\n\
             -A KUBE-FIREWALL -j MINE\n-A KUBE-FIREWALL -j THEIRS\n";
        assert!(parsed(saved, None).is_empty());
        let found = parsed(saved, Some("-j MINE"));
        assert_eq!(found.len(), 3, "{found:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_survived(text in "[*:A-Z a-z\\-\"\n\\PC]{0,200}") {
            parsed(&text, Some("x"));
            parsed(&format!("*nat\n{text}"), None);
        }
    }
}
