//! Whatever others do to the table is undone.

use std::sync::Arc;

use proxy_core::address::IpFamily;
use proxy_core::sync::TableSync as _;
use proxy_core::table::ServiceTable as _;

use crate::support::{
    Services, Sync, Transactions, assert_in_step, block_on, every_shape, in_namespace_with_nft,
    listing, nft_run, sync_to, synchronizer, table, word,
};

fn services(family: IpFamily) -> Services {
    every_shape(family).into_iter().map(Arc::new).collect()
}

/// Commands that damage the table. `T` stands for the family and the table's name, `A` for an
/// address.
const DAMAGE: &[&str] = &[
    "add chain T stranger",
    "add chain T first\nadd chain T second\nadd rule T first jump second",
    "add chain T first\nadd chain T second\nadd rule T second jump first",
    "add set T strange { type inet_service; flags interval; }\n\
     add element T strange { 1-9, 80 }\nadd rule T services tcp dport @strange drop",
    "add chain T target\nadd map T strange { type inet_service : verdict; }\n\
     add element T strange { 80 : goto target }\n\
     add chain T caller\nadd rule T caller tcp dport vmap @strange",
    "add map T strange { type inet_service : verdict; }\n\
     add element T strange { 80 : goto services }",
    "insert rule T services tcp dport { 1, 2, 3 } drop",
    "insert rule T services tcp dport { 1, 2, 3 } drop\nadd chain T stranger",
    "add rule T reject-chain counter accept comment \"; drop\"",
    "flush chain T services",
    "flush chain T reject-chain\n\
     add rule T reject-chain reject\nadd rule T reject-chain meta l4proto tcp reject with tcp reset",
    "rename chain T firewall-check other",
    "delete chain T nat-prerouting",
    "delete chain T nat-prerouting\nadd chain T nat-prerouting",
    "add chain T stranger { type filter hook input priority -5; policy drop; }",
    "chain T filter-input { policy drop; }",
    "add table T { flags dormant; }",
    "add element T cluster-ips { A comment \"; drop\" }",
    "add element T service-ips { A . tcp . 99 : drop }",
    "add element T service-ips { A . icmp . 99 : drop }",
    "add element T service-ips { A . tcp . 99 comment \"'x'; $(reboot)\" : goto pick-4 }",
    "add element T hairpin-connections { A . A . tcp . 1 }",
    "flush set T cluster-ips",
    "flush map T service-ips",
    "flush map T service-endpoints",
    "flush set T source-ranges",
    "add counter T strange\nadd quota T odd over 10 mbytes",
    "add counter T strange\nadd rule T services counter name strange",
    "delete table T",
    "flush ruleset",
];

fn damage(commands: &str, family: IpFamily) {
    let address = crate::support::address(family, 9, 9).to_string();
    let place = format!("{} {}", word(family), backend_nftables::TABLE);
    let command = |line: &str| -> String {
        let words = line.split(' ').map(|word| match word {
            "T" => place.as_str(),
            "A" => address.as_str(),
            _ => word,
        });
        words.collect::<Vec<_>>().join(" ")
    };
    let lines: Vec<_> = commands.lines().map(command).collect();
    nft_run(&lines.join("\n"));
}

fn repair(sync: &mut Sync) -> usize {
    sync.distrust();
    block_on(sync.sync()).unwrap().changed_objects
}

#[test]
fn damage_is_repaired() {
    for family in IpFamily::ALL {
        in_namespace_with_nft(|| {
            let mut sync = synchronizer(family);
            sync_to(&mut sync, &Services::new(), &services(family));
            let intact = listing(family);
            for commands in DAMAGE {
                damage(commands, family);
                let changed = repair(&mut sync);
                assert_in_step(&sync);
                let only_adds_objects = commands.ends_with("mbytes");
                assert_eq!(changed == 0, only_adds_objects, "{commands}");
                let mut transactions = Transactions::new();
                assert_eq!(repair(&mut sync), 0, "{commands}");
                assert_eq!(transactions.count(), 0, "{commands}");
            }
            // The last damage took everything, so the table is as at the start.
            assert_eq!(listing(family), intact);
        });
    }
}

#[test]
fn another_layout_is_replaced_at_once() {
    let make = "{ type ipv4_addr; flags interval; }";
    for other in [
        format!(
            "add table T\nadd set T cluster-ips {make}\nadd element T cluster-ips {{ 10.0.0.0/8 }}"
        ),
        "add table T\nadd map T service-ips { type ipv4_addr . inet_service : verdict; }\n\
         add chain T services\nadd chain T c { type nat hook prerouting priority -100; }\n\
         add chain T d\nadd element T service-ips { 1.2.3.4 . 80 : goto d }\n\
         add rule T services ip daddr . tcp dport vmap @service-ips\n\
         add rule T c jump services"
            .to_owned(),
        "add table T\nadd set T affinity-x/y { type ipv4_addr; flags timeout; }".to_owned(),
    ] {
        in_namespace_with_nft(|| {
            let family = IpFamily::V4;
            damage(&other, family);
            let mut sync = synchronizer(family);
            let mut transactions = Transactions::new();
            sync_to(&mut sync, &Services::new(), &services(family));
            assert_eq!(transactions.count(), 1, "{other}");
            assert_in_step(&sync);
            assert!(!sync.table().replaces_all());
        });
    }
}

#[test]
fn the_other_family_is_left_alone() {
    in_namespace_with_nft(|| {
        let mut v4 = synchronizer(IpFamily::V4);
        sync_to(&mut v4, &Services::new(), &services(IpFamily::V4));
        let mut v6 = synchronizer(IpFamily::V6);
        sync_to(&mut v6, &Services::new(), &services(IpFamily::V6));
        assert_in_step(&v4);
        block_on(v4.clear()).unwrap();
        assert!(block_on(table(IpFamily::V4).observe()).unwrap().is_empty());
        assert_in_step(&v6);
    });
}
