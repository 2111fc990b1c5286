//! Damage from outside is repaired at once, without any event from the source, and named.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use testbed::builders::{self, Port};
use testbed::dial::{Outcome, ask, bind_datagram};
use testbed::target::Target;
use testbed::world::{Families, NODE_NAME, PATIENCE};
use testbed::{Place, wait_until};

use crate::rig::{Flavour, LIMIT, PAUSE, REPAIR_LIMIT, Rig, go_on, is_answer};

/// What somebody else does, and what of it the log names.
const DAMAGE: [(&str, &str); 12] = [
    ("flush ruleset", "chain affinity-record deleted"),
    ("delete table ip proxyd", "chain affinity-record deleted"),
    ("delete table ip6 proxyd", "chain affinity-record deleted"),
    ("flush chain ip proxyd services", "rule in chain services deleted"),
    ("flush chain ip proxyd pick-2", "rule in chain pick-2 deleted"),
    ("delete chain ip proxyd nat-prerouting", "chain nat-prerouting deleted"),
    (
        "delete element ip proxyd service-ips { 172.30.0.10 . tcp . 80 }",
        "element in set service-ips deleted",
    ),
    ("flush set ip proxyd cluster-ips", "element in set cluster-ips deleted"),
    ("flush map ip proxyd service-endpoints", "element in set service-endpoints deleted"),
    ("add element ip proxyd cluster-ips { 172.30.0.77 }", "element in set cluster-ips added"),
    ("insert rule ip proxyd nat-prerouting counter drop", "rule in chain nat-prerouting added"),
    ("add chain ip proxyd intruder", "chain intruder changed"),
];

fn rig() -> Result<Option<Rig>> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(None) };
    rig.service("web", "172.30.0.10", &["10.180.0.11", "10.180.0.12"])?;
    rig.service("web6", "fd00:172:30::10", &["fd00:10:180::11"])?;
    rig.start()?;
    Ok(Some(rig))
}

#[test]
fn damage_from_outside_is_repaired_within_a_second_and_named() -> Result<()> {
    let Some(rig) = rig()? else { return Ok(()) };
    let rules = rig.rules()?;
    for (damage, named) in DAMAGE {
        let said = rig.log().len();
        let start = Instant::now();
        rig.nft(damage)?;
        let done = start.elapsed();
        rig.wait_for_rules(&rules)?;
        let took = start.elapsed();
        eprintln!("{damage}: repaired {took:?} after its start, which took {done:?}");
        ensure!(took.saturating_sub(done) <= REPAIR_LIMIT, "{damage}: {took:?}");
        rig.answer("172.30.0.10:80/TCP")?;
        rig.answer("[fd00:172:30::10]:80/TCP")?;
        let report = |rig: &Rig| rig.log()[said..].contains("somebody else changed our rules");
        rig.wait("a report", REPAIR_LIMIT, report)?;
        let log = rig.log().split_off(said);
        ensure!(log.contains(named) && log.contains(" by nft (pid "), "{damage}: {log}");
    }
    Ok(())
}

/// What somebody else does to rules of mode iptables.
const IPTABLES_DAMAGE: [&str; 9] = [
    "iptables -t nat -F",
    "iptables -t filter -F",
    "iptables -t nat -D PREROUTING 1",
    "iptables -t nat -D OUTPUT 1",
    "iptables -t nat -D KUBE-SERVICES 1",
    "iptables -t filter -F KUBE-FORWARD",
    "iptables -t nat -I KUBE-SERVICES -j RETURN",
    "iptables -t nat -N KUBE-SVC-AAAAAAAAAAAAAAAA",
    "ip6tables -t nat -F",
];

#[test]
fn damage_to_rules_of_mode_iptables_is_repaired_within_a_second() -> Result<()> {
    for flavour in Flavour::IPTABLES {
        let Some(mut rig) = Rig::of(flavour, Families::Dual)? else { return Ok(()) };
        rig.service("web", "172.30.0.10", &["10.180.0.11", "10.180.0.12"])?;
        rig.service("web6", "fd00:172:30::10", &["fd00:10:180::11"])?;
        rig.start()?;
        let rules = rig.rules()?;
        for damage in IPTABLES_DAMAGE {
            let said = rig.log().len();
            let start = Instant::now();
            rig.iptables(damage)?;
            let done = start.elapsed();
            rig.wait_for_rules(&rules)?;
            let took = start.elapsed();
            eprintln!("{flavour:?}, {damage}: repaired {took:?} after its start, done {done:?}");
            ensure!(took.saturating_sub(done) <= REPAIR_LIMIT, "{damage}: {took:?}");
            rig.answer("172.30.0.10:80/TCP")?;
            rig.answer("[fd00:172:30::10]:80/TCP")?;
            let report = |rig: &Rig| rig.log()[said..].contains("somebody else changed our rules");
            rig.wait("a report", REPAIR_LIMIT, report)?;
        }
        rig.flush()?;
        rig.wait_for_rules(&rules)?;
        rig.answer("172.30.0.10:80/TCP")?;
    }
    Ok(())
}

#[test]
fn repeated_damage_under_traffic_costs_only_its_moments() -> Result<()> {
    const FLUSHES: usize = 5;
    let Some(rig) = rig()? else { return Ok(()) };
    let rules = rig.rules()?;
    let traffic = rig.traffic("172.30.0.10:80/TCP")?;
    for _ in 0..FLUSHES {
        rig.nft("flush ruleset")?;
        rig.wait_for_rules(&rules)?;
        go_on(&traffic, 20)?;
    }
    let report = traffic.stop()?;
    eprintln!("{FLUSHES} flushes: {} of {} failed", report.failures.len(), report.tried);
    ensure!(report.answered() > FLUSHES * 20 / 2, "{report:?}");
    let outage = REPAIR_LIMIT * u32::try_from(FLUSHES)?;
    let cost = report.failures.len() * usize::try_from(PAUSE.as_millis())?;
    ensure!(cost < usize::try_from(outage.as_millis())?, "{report:?}");
    Ok(())
}

#[test]
fn datagram_flows_that_began_during_the_outage_are_led_right() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    let port = Port { name: "dns", protocol: "UDP", port: 53, target: 8080 };
    rig.manifests.apply(&builders::service("dns", "172.30.0.53", &[port]))?;
    let pods = [("10.180.0.21", NODE_NAME)];
    rig.manifests.apply(&builders::endpoint_slice("dns", &[port], &pods))?;
    rig.start()?;
    let target: Target = "172.30.0.53:53/UDP".parse()?;
    let origin = rig.world.origin(Place::LocalPod, None, target.ip());
    // Without another rule that needs them the kernel would forget all flows with our table.
    rig.world
        .node()
        .nft("table ip other { chain c { type nat hook postrouting priority 0; }; }")?;
    let asking = rig.world.netns(Place::LocalPod).spawn_thread(move || -> Result<_> {
        let mut unanswered = Vec::new();
        let start = Instant::now();
        while unanswered.len() < 10 && start.elapsed() < LIMIT {
            let socket = bind_datagram(&origin, &target)?;
            if ask(&socket, Duration::from_millis(2)) == Outcome::Silent {
                unanswered.push(socket);
            }
        }
        Ok(unanswered)
    });
    let rules = rig.rules()?;
    while !asking.is_finished() {
        rig.nft("delete table ip proxyd")?;
        rig.wait_for_rules(&rules)?;
    }
    let unanswered = asking.join().map_err(|_| anyhow!("the asking thread died"))??;
    ensure!(!unanswered.is_empty(), "no flow began during an outage");
    for socket in &unanswered {
        // Every question keeps the flow alive, so it must be put right by somebody.
        let mut asked = Outcome::Silent;
        let led_right = wait_until(PATIENCE, "the flow is led right", || {
            asked = ask(socket, PATIENCE);
            is_answer(&asked)
        });
        led_right.with_context(|| format!("{asked:?}; log:\n{}", rig.log()))?;
    }
    Ok(())
}
