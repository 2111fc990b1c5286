//! What is not ours stays as it is, to the byte.

use anyhow::{Result, ensure};
use testbed::world::Families;

use crate::rig::{Rig, program};

/// Tables of others, some under names that look like ours.
const FOREIGN: &str = "\
table inet proxyd {
    comment \"the name is ours, the family is not\"
    set cluster-ips { type ipv4_addr; elements = { 172.30.0.10 }; }
    chain services { ip daddr @cluster-ips counter; }
}
table ip proxyd-other {
    chain services { type nat hook prerouting priority -50; policy accept; }
}
table ip odd {
    set ranges { type ipv4_addr; flags interval; auto-merge;
        elements = { 10.0.0.0/9, 192.0.2.7-192.0.2.99 }; }
    set pairs { type ipv4_addr . inet_service . inet_proto; flags interval;
        elements = { 192.0.2.0/24 . 1000-2000 . tcp, 198.51.100.1 . 53 . udp }; }
    set timed { type ether_addr; flags timeout; timeout 2h; gc-interval 1h; size 100; }
    set seen { type ipv4_addr; size 128; flags dynamic,timeout; timeout 10m; }
    map where { type inet_service : ipv4_addr . inet_service;
        elements = { 8080 : 192.0.2.1 . 80 }; }
    map verdicts { type ifname : verdict;
        elements = { \"dummy0\" : jump nothing, \"with space\" : drop }; }
    chain nothing { comment \"ümläut\"; }
    chain forward {
        type filter hook forward priority filter + 5; policy accept;
        ct state invalid counter packets 0 bytes 0 comment \"a comment; with { marks }\"
        iifname vmap @verdicts
        tcp dport 1-2 limit rate 5/second burst 7 packets log prefix \"odd \"
    }
}
table ip6 nat { chain POSTROUTING { type nat hook postrouting priority srcnat; }; }
table bridge b { chain c { type filter hook input priority 0; }; }
table arp a { chain c { type filter hook input priority 0; }; }
table netdev n { chain c { type filter hook ingress device \"lo\" priority 0; }; }
";

/// Everything but our own two tables.
fn foreign(rig: &Rig) -> Result<String> {
    let mut ours = false;
    let ruleset = rig.nft("--stateless list ruleset")?;
    let lines = ruleset.lines().filter(|line| {
        if line.starts_with("table ") {
            ours = matches!(*line, "table ip proxyd {" | "table ip6 proxyd {");
        }
        !ours
    });
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

#[test]
fn tables_of_others_stay_as_they_are_to_the_byte() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    rig.world.node().nft(FOREIGN)?;
    let before = foreign(&rig)?;
    for kept in ["table inet proxyd", "table ip proxyd-other", "ümläut", "auto-merge"] {
        ensure!(before.contains(kept), "{before}");
    }
    let same = |rig: &Rig, when: &str| -> Result<()> {
        let now = foreign(rig)?;
        ensure!(now == before, "{when}: {now}\n--- before: {before}");
        Ok(())
    };
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    rig.start()?;
    same(&rig, "after the start")?;
    rig.service("more", "172.30.0.11", &["10.180.0.12"])?;
    rig.wait_for_answer("172.30.0.11:80/TCP")?;
    rig.manifests.delete("Service/default/web")?;
    rig.manifests.delete("EndpointSlice/default/web-1")?;
    rig.wait("web is gone", crate::rig::LIMIT, |rig| {
        rig.nft("list set ip proxyd cluster-ips").is_ok_and(|set| !set.contains("172.30.0.10"))
    })?;
    same(&rig, "after changes")?;
    let rules = rig.rules()?;
    rig.nft("delete table ip proxyd")?;
    rig.wait_for_rules(&rules)?;
    same(&rig, "after a repair")?;
    rig.proxy()?.stop()?;
    let mut cleanup = program();
    let cleaned = rig.run(cleanup.arg("cleanup").arg("--config").arg(rig.write_config()?))?;
    ensure!(cleaned.status.success(), "{cleaned:?}");
    let left = rig.nft("--stateless list ruleset")?;
    ensure!(left.trim_end() == before.trim_end(), "after cleanup: {left}\n--- before: {before}");
    // Cleaning up twice does no harm.
    let mut cleanup = program();
    ensure!(rig.run(cleanup.args(["run", "--cleanup"]))?.status.success(), "a second cleanup");
    let mut cleanup = program();
    let cleaned = rig.run(cleanup.arg("cleanup").env("PATH", ""))?;
    ensure!(cleaned.status.success(), "without the programs of other modes: {cleaned:?}");
    Ok(())
}
