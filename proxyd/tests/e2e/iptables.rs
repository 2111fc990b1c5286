//! What mode iptables tells, and how it gets on with others who hold the lock.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::json;
use testbed::world::Families;

use crate::rig::{Flavour, LIMIT, Rig};

const METRICS: &str = "192.168.0.2:10249";
const RULES: &str = "kubeproxy_sync_proxy_rules_iptables_total";

/// The value of a series, whose labels are given in the order of their names.
fn value(metrics: &str, series: &str) -> Option<f64> {
    let mut lines = metrics.lines().filter_map(|line| line.strip_prefix(series));
    lines.next().and_then(|rest| rest.trim().parse().ok())
}

#[test]
fn the_variant_and_the_number_of_rules_are_told() -> Result<()> {
    for flavour in Flavour::IPTABLES {
        let Flavour::Iptables(variant) = flavour else { continue };
        let Some(mut rig) = Rig::of(flavour, Families::Ipv4)? else { return Ok(()) };
        rig.config["metricsBindAddress"] = json!(METRICS);
        rig.config["featureGates"] = json!({"ComponentStatusz": true});
        rig.service("web", "172.30.0.10", &["10.180.0.11", "10.180.0.12"])?;
        rig.start()?;
        let status = rig.get(METRICS, "/statusz")?.body;
        let line = format!("\nVariant of iptables: IPv4 {variant}");
        ensure!(status.contains(&line), "{status}");
        let metrics = rig.get(METRICS, "/metrics")?.body;
        let series =
            format!("proxyd_iptables_variant_info{{ip_family=\"IPv4\",variant=\"{variant}\"}}");
        ensure!(value(&metrics, &series) == Some(1.0), "{metrics}");
        for table in ["filter", "nat"] {
            let saved = rig.iptables(&format!("iptables-save -t {table}"))?;
            let is_ours = |line: &&str| line.starts_with("-A ") && line.contains("KUBE-");
            let count = u32::try_from(saved.lines().filter(is_ours).count())?;
            let series = format!("{RULES}{{ip_family=\"IPv4\",table=\"{table}\"}}");
            ensure!(count > 0, "{saved}");
            ensure!(value(&metrics, &series) == Some(f64::from(count)), "{count}: {metrics}");
        }
    }
    Ok(())
}

#[test]
fn a_change_is_in_effect_two_seconds_after_the_lock_is_free() -> Result<()> {
    const RELEASE_LIMIT: Duration = Duration::from_secs(2);
    const FAILURES: &str = "proxyd_sync_failures_total{ip_family=\"IPv4\",reason=\"busy\"}";
    let Some(mut rig) = Rig::of(Flavour::Iptables("legacy"), Families::Ipv4)? else {
        return Ok(());
    };
    rig.config["metricsBindAddress"] = json!(METRICS);
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    let path = rig.manifests.beside("xtables.lock");
    let lock = File::create(&path)?;
    let mut command = rig.command()?;
    rig.start_as(command.env("XTABLES_LOCKFILE", &path))?;
    lock.lock()?;
    rig.service("late", "172.30.0.11", &["10.180.0.12"])?;
    let failures = |rig: &Rig| {
        let metrics = rig.get(METRICS, "/metrics").ok()?;
        value(&metrics.body, FAILURES)
    };
    // Each try waits for some seconds.
    rig.wait("two tries have failed", 2 * LIMIT, |rig| failures(rig) >= Some(2.0))?;
    let health = rig.get("192.168.0.2:10256", "/healthz")?;
    ensure!(health.status == 200, "{health:?}");
    rig.answer("172.30.0.10:80/TCP")?;
    lock.unlock()?;
    let free = Instant::now();
    rig.wait_for_answer("172.30.0.11:80/TCP").context("the lock is free")?;
    let took = free.elapsed();
    eprintln!("in effect {took:?} after the lock was free");
    ensure!(took <= RELEASE_LIMIT, "{took:?}; log:\n{}", rig.log());
    Ok(())
}
