use proxy_core::address::Cidr;
use proxy_core::scheduler::Scheduler;

use super::*;

fn config(family: IpFamily, detector: Option<LocalDetector>) -> TableConfig {
    TableConfig { family, detector, masquerade_bit: 14, scheduler: Scheduler::Rr }
}

fn pods() -> LocalDetector {
    LocalDetector::Source(Cidr::parse("10.180.0.0/16").unwrap())
}

/// What iptables-save shows once `restore` was applied to what it showed before: chains with
/// their rules, by a small model of iptables-restore.
fn applied(saved: &str, restore: &str) -> String {
    use std::collections::BTreeMap;
    let mut tables: BTreeMap<String, BTreeMap<String, Vec<String>>> = BTreeMap::new();
    for text in [saved, restore] {
        let mut table = String::new();
        for line in text.lines() {
            let chains = tables.entry(table.clone()).or_default();
            let words: Vec<&str> = line.splitn(3, ' ').collect();
            match words[..] {
                [name] if name.starts_with('*') => table = name[1..].to_owned(),
                [name, ..] if name.starts_with(':') => {
                    chains.insert(name[1..].to_owned(), Vec::new());
                }
                ["-A", chain, rule] => chains.get_mut(chain).unwrap().push(rule.to_owned()),
                ["-I", chain, rule] => chains.get_mut(chain).unwrap().insert(0, rule.to_owned()),
                ["-D", chain, rule] => {
                    let rules = chains.get_mut(chain).unwrap();
                    let place = rules.iter().position(|it| it == rule).expect(line);
                    rules.remove(place);
                }
                ["-X", chain] => assert_eq!(chains.remove(chain).unwrap(), [""; 0]),
                ["COMMIT"] => {}
                _ => panic!("{line}"),
            }
        }
    }
    let mut lines = Vec::new();
    for (table, chains) in tables.iter().filter(|(table, _)| !table.is_empty()) {
        lines.push(format!("*{table}"));
        lines.extend(chains.keys().map(|chain| format!(":{chain} - [0:0]")));
        for (chain, rules) in chains {
            lines.extend(rules.iter().map(|rule| format!("-A {chain} {rule}")));
        }
        lines.push("COMMIT".to_owned());
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

const HOST: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OTHERS - [0:0]
-A INPUT -j OTHERS
-A OTHERS -p tcp -j ACCEPT
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
COMMIT
*nat
:POSTROUTING ACCEPT [0:0]
COMMIT
";

#[test]
fn what_is_restored_is_read_back() {
    for family in IpFamily::ALL {
        for detector in
            [None, Some(pods()), Some(LocalDetector::InterfacePrefix("veth".to_owned()))]
        {
            let wanted = lines(&config(family, detector));
            let saved = applied(HOST, &restore(&[], &wanted));
            assert_eq!(read(&saved), wanted);
            assert!(saved.contains("-A OTHERS -p tcp -j ACCEPT"), "foreign rules stay");
            let removed = applied(&saved, &restore(&read(&saved), &[]));
            assert_eq!(read(&removed), [""; 0]);
            assert_eq!(removed, applied(HOST, ""), "nothing of ours is left");
        }
    }
}

#[test]
fn damage_is_repaired() {
    let wanted = lines(&config(IpFamily::V4, Some(pods())));
    let whole = applied(HOST, &restore(&[], &wanted));
    for damage in ["-A INPUT -j PROXYD-IPVS-IN\n", "-A PROXYD-IPVS-RANGES -j DROP\n"] {
        let damaged = whole.replace(damage, "");
        assert_ne!(damaged, whole, "{damage}");
        assert_ne!(read(&damaged), wanted);
        let repaired = applied(&damaged, &restore(&read(&damaged), &wanted));
        assert_eq!(repaired, whole);
    }
    // Somebody's rule in a chain of ours.
    let damaged = applied(&whole, "*filter\n-A PROXYD-IPVS-IN -j ACCEPT\nCOMMIT\n");
    assert_eq!(applied(&damaged, &restore(&read(&damaged), &wanted)), whole);
    // A chain that another version had, and that the jump still leads to.
    let old = "*filter\n:PROXYD-IPVS-OLD - [0:0]\n-I INPUT -j PROXYD-IPVS-OLD\nCOMMIT\n";
    let damaged = applied(&whole, old);
    assert_eq!(applied(&damaged, &restore(&read(&damaged), &wanted)), whole);
}

#[test]
fn what_is_so_already_is_not_written() {
    let wanted = lines(&config(IpFamily::V6, None));
    assert_eq!(restore(&wanted, &wanted), "");
}

#[test]
fn names_of_interfaces_cannot_say_more() {
    for name in ["eth0", "cali1a2b3c", "br-5.7", "a_b@c:0"] {
        assert!(is_plain_interface(name), "{name}");
    }
    for name in ["", "-j", "a b", "a\nb", "eth0;", "sixteen-letters-x", "eth+", "ä"] {
        assert!(!is_plain_interface(name), "{name:?}");
    }
}
