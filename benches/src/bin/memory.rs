//! How much memory the whole library path takes: store, and tables for both families.
//!
//! ```sh
//! cargo run --release -p benches --bin memory -- [SERVICES [ENDPOINTS]]
//! ```
//!
//! A first process programs an empty namespace. A second one, as after a restart, finds
//! everything in place; both print what they occupy after each step.

use std::io::Write as _;
use std::process::Command;

use anyhow::{Context as _, bail, ensure};
use benches::cluster::Cluster;
use benches::rig::{Rig, new_namespace};
use node_sys::host::resident_memory_bytes;
use proxy_core::address::IpFamily;

/// The argument that makes this the second process.
const RESTARTED: &str = "--restarted";

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let restarted = arguments.iter().any(|argument| argument == RESTARTED);
    let mut numbers = arguments
        .iter()
        .filter(|argument| *argument != RESTARTED)
        .map(|argument| argument.parse().with_context(|| format!("not a number: {argument}")));
    let services = numbers.next().unwrap_or(Ok(10_000))?;
    let endpoints = numbers.next().unwrap_or(Ok(10))?;
    let cluster = Cluster { family: IpFamily::V4, services, endpoints };
    if !restarted {
        new_namespace();
    }
    measure(cluster, restarted)?;
    if restarted {
        return Ok(());
    }
    // A child of this thread is in this thread's namespace.
    let status = Command::new(std::env::current_exe()?)
        .args([RESTARTED, &services.to_string(), &endpoints.to_string()])
        .status()
        .context("start the second process")?;
    if !status.success() {
        bail!("the second process failed");
    }
    Ok(())
}

fn measure(cluster: Cluster, restarted: bool) -> anyhow::Result<()> {
    let title = if restarted { "restart, everything in place" } else { "first start" };
    say(&format!("{title}: {} Services x {} endpoints", cluster.services, cluster.endpoints))?;
    let start = resident_memory_bytes()?;
    step("process without objects", start)?;
    let mut rig = Rig::new(cluster.options(), &IpFamily::ALL);
    rig.apply(cluster.lists());
    step("lists taken in", resident_memory_bytes()?)?;
    rig.stage();
    step("resolved and staged", resident_memory_bytes()?)?;
    let report = rig.sync();
    ensure!(!restarted || report.changed_objects == 0, "wrote {report:?} after a restart");
    step(
        &format!("in step, {} objects written", report.changed_objects),
        resident_memory_bytes()?,
    )?;
    let report = rig.compare();
    ensure!(report.changed_objects == 0, "not in step: {report:?}");
    let end = resident_memory_bytes()?;
    step("everything compared once more", end)?;
    step("most ever", peak_memory_bytes()?)?;
    let endpoints = (cluster.services * cluster.endpoints).max(1);
    let each = end.saturating_sub(start) / u64::try_from(endpoints)?;
    say(&format!("  {each:>7} bytes per endpoint"))
}

fn step(what: &str, bytes: u64) -> anyhow::Result<()> {
    let tenths = (bytes * 10) >> 20;
    say(&format!("  {:>5}.{} MiB  {what}", tenths / 10, tenths % 10))
}

fn say(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}

/// The most memory that this process ever occupied.
fn peak_memory_bytes() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.and_then(|text| text.trim().strip_suffix("kB"));
    let peak: u64 = peak.context("no VmHWM in /proc/self/status")?.trim().parse()?;
    Ok(peak * 1024)
}
