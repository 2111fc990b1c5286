//! Nobody else's tables are touched or needed.

use std::collections::BTreeSet;
use std::sync::Arc;

use backend_nftables::detect;
use proxy_core::address::IpFamily;
use proxy_core::sync::TableSync as _;

use crate::support::{
    Services, Transactions, assert_in_step, block_on, config, every_shape, in_namespace_with_nft,
    nft, nft_run, sync_to, synchronizer,
};

/// Odd things that tables can have. `FAMILY` and `NAME` are put in.
const ODD: &str = r#"
table FAMILY NAME {
  quota q1 { over 10 mbytes }
  counter c1 { }
  limit l1 { rate 5/second }
  set s1 { typeof ip saddr . tcp dport . meta mark
           elements = { 1.2.3.4 . 80 . 0x7 comment "; drop" } }
  set s2 { type ipv4_addr . inet_service; flags interval
           elements = { 10.0.0.0/8 . 80-90, 11.1.1.1 . 1-65535 } }
  set s3 { type ipv4_addr; flags timeout,dynamic; timeout 1h; size 100
           elements = { 1.1.1.1 timeout 10h } }
  set s4 { type ipv4_addr; flags interval; auto-merge
           elements = { 10.0.0.0/8, 192.168.1.1-192.168.1.9 } }
  set s5 { type ipv4_addr; counter; elements = { 9.9.9.9 } }
  set s6 { typeof vlan id; elements = { 2, 3 } }
  map m1 { type ipv4_addr . inet_proto . inet_service : verdict
           elements = { 1.1.1.1 . tcp . 80 : drop } }
  map m2 { type ipv4_addr : counter; elements = { 1.1.1.1 : "c1" } }
  map m3 { type ipv4_addr : ipv4_addr . inet_service; elements = { 1.1.1.1 : 2.2.2.2 . 80 } }
  map m4 { type inet_service : quota; elements = { 80 : "q1" } }
  map service-ips { type ipv4_addr : mark; elements = { 1.1.1.1 : 0x10 } }
  chain services {
    type filter hook input priority 5; policy accept;
    ip saddr . tcp dport . meta mark @s1 counter quota name "q1" accept
    ip daddr { 1.1.1.1, 2.2.2.2 } meta mark set 5
    meta mark & 0x4000 == 0x4000 meta mark set mark xor 0x4000
    update @s3 { ip saddr }
  }
}
"#;

fn load_foreign_tables() -> String {
    for (family, name) in
        [("ip", "foreign"), ("ip", "proxyd2"), ("ip", "proxy"), ("inet", "proxyd"), ("inet", "x")]
    {
        nft_run(&ODD.replace("FAMILY", family).replace("NAME", name));
    }
    nft_run("add table arp proxyd\nadd chain arp proxyd c { type filter hook input priority 0; }");
    foreign_tables()
}

/// The listing of all tables but ours, without what changes by itself.
fn foreign_tables() -> String {
    let all = nft(&["-s", "list", "tables"], "");
    let foreign =
        all.lines().filter(|line| !["table ip proxyd", "table ip6 proxyd"].contains(line));
    // They are listed in the order in which they were made.
    let foreign: BTreeSet<_> = foreign.collect();
    foreign
        .into_iter()
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            nft(&["-s", "list", "table", words[1], words[2]], "")
        })
        .collect()
}

#[test]
fn foreign_tables_stay_as_they_are() {
    in_namespace_with_nft(|| {
        let before = load_foreign_tables();
        assert!(before.contains("comment \"; drop\""));
        for family in IpFamily::ALL {
            let services: Services = every_shape(family).into_iter().map(Arc::new).collect();
            detect(&config(family)).unwrap();
            let mut sync = synchronizer(family);
            sync_to(&mut sync, &Services::new(), &services);
            assert_in_step(&sync);
            let fewer: Services = services.iter().take(3).cloned().collect();
            sync_to(&mut sync, &services, &fewer);
            nft_run("delete table ip proxyd2\nadd table ip proxyd2");
            sync.distrust();
            block_on(sync.sync()).unwrap();
            assert_in_step(&sync);
            nft_run(&ODD.replace("FAMILY", "ip").replace("NAME", "proxyd2"));
            sync_to(&mut sync, &fewer, &services);
            assert_eq!(foreign_tables(), before);
            block_on(sync.clear()).unwrap();
            assert_eq!(foreign_tables(), before);
        }
        let tables = nft(&["list", "tables"], "");
        assert!(!tables.lines().any(|line| line == "table ip proxyd"), "{tables}");
    });
}

#[test]
fn detection_leaves_nothing_behind() {
    in_namespace_with_nft(|| {
        let mut transactions = Transactions::new();
        for family in IpFamily::ALL {
            detect(&config(family)).unwrap();
        }
        assert_eq!(transactions.count(), 0);
        assert_eq!(nft(&["list", "ruleset"], ""), "");
        // Nor does it mind what is there.
        let mut sync = synchronizer(IpFamily::V4);
        let services = every_shape(IpFamily::V4).into_iter().map(Arc::new).collect();
        sync_to(&mut sync, &Services::new(), &services);
        detect(&config(IpFamily::V4)).unwrap();
        assert_in_step(&sync);
    });
}
