//! `proxyd ab`: a short comparison, as root and as an ordinary user.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use testbed::netns::{Netns, namespaces_available};
use testbed::wait_until;

use crate::rig::program;

const SHORT: [&str; 4] = ["ab", "--services=5", "--endpoints=2", "--duration=1s"];
/// For programming five Services in all modes, on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// A namespace to start from, with rules of somebody else; none where it cannot be made.
fn host() -> Result<Option<Netns>> {
    if !namespaces_available() {
        writeln!(io::stderr(), "skipped: network namespaces cannot be made here")?;
        return Ok(None);
    }
    let host = Netns::with_loopback()?;
    host.nft("table ip proxyd { chain services { counter; }; }\n")?;
    Ok(Some(host))
}

/// Everything that a namespace has of network: rules, interfaces, addresses and routes.
fn state(host: &Netns) -> Result<String> {
    let mut state = String::new();
    for (program, arguments) in
        [("nft", "list ruleset"), ("ip", "address"), ("ip", "route show table all"), ("ip", "rule")]
    {
        let output = host.output(Command::new(program).args(arguments.split(' ')))?;
        state += &String::from_utf8_lossy(&output.stdout);
    }
    Ok(state)
}

fn succeeded(output: Output) -> Result<String> {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "{error}");
    ensure!(error.is_empty(), "progress where nobody watches: {error}");
    Ok(String::from_utf8(output.stdout)?)
}

/// Every mode has its figures or a reason, and mode nftables its figures.
fn is_complete(report: &Value) -> Result<()> {
    let modes = report["modes"].as_array().context("modes")?;
    let missing = report["not_measured"].as_array().context("not_measured")?;
    let mut names: Vec<_> =
        modes.iter().chain(missing).filter_map(|it| it["mode"].as_str()).collect();
    ensure!(modes.iter().any(|mode| mode["mode"] == "nftables"), "{report:#}");
    names.sort_unstable();
    ensure!(names == ["iptables-legacy", "iptables-nft", "ipvs", "nftables"], "{names:?}");
    for mode in modes {
        let figures = mode["figures"].as_object().context("figures")?;
        ensure!(figures.len() == 12, "{mode:#}");
        for (name, figure) in figures {
            let part = |name: &str| figure[name].as_f64().context("number");
            let (value, low, high) = (part("value")?, part("low")?, part("high")?);
            let may_be_zero = name == "largest_child_mib";
            ensure!(value > 0.0 || may_be_zero, "{name}: {mode:#}");
            ensure!(low <= value && value <= high, "{name}: {mode:#}");
        }
        ensure!(mode["changes"].as_u64() > Some(2) && mode["connections"].as_u64() > Some(2));
    }
    ensure!(missing.iter().all(|it| it["reason"].as_str().is_some_and(|it| !it.is_empty())));
    let advice = &report["recommendation"]["mode"];
    ensure!(modes.iter().any(|mode| mode["mode"] == *advice), "{report:#}");
    Ok(())
}

#[test]
fn modes_are_compared_and_the_host_stays_as_it_was() -> Result<()> {
    let Some(host) = host()? else { return Ok(()) };
    let before = state(&host)?;
    let folder = tempfile::tempdir()?;
    let page = folder.path().join("report.html");
    let mut command = program();
    command.args(SHORT).arg("--output=json").arg("--html").arg(&page);
    let report = succeeded(host.run(|| command.output())?)?;
    is_complete(&serde_json::from_str(&report)?)?;
    let page = fs::read_to_string(page)?;
    ensure!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"), "{page}");
    ensure!(state(&host)? == before, "the host's network was touched");
    Ok(())
}

#[test]
fn an_ordinary_user_can_compare() -> Result<()> {
    let Some(host) = host()? else { return Ok(()) };
    let user = ["--reuid=1000", "--regid=1000", "--clear-groups", "--bounding-set=-all"];
    // As in the user's own case: rights come from a new user namespace alone.
    let can = Command::new("setpriv").args(user).args(["unshare", "--user", "true"]).output()?;
    if !can.status.success() {
        ensure!(std::env::var_os("CI").is_none(), "needs user 1000 and user namespaces");
        writeln!(io::stderr(), "skipped: no user 1000 who may make user namespaces")?;
        return Ok(());
    }
    // The user has to be able to read it, whoever owns the build's folder.
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("proxyd");
    fs::copy(program().get_program(), &copy)?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
    let mut command = Command::new("setpriv");
    command.args(user).arg(copy).args(SHORT).arg("--output=json");
    // Ordinary users do not find system programs.
    command.env("PATH", "/usr/bin:/bin");
    is_complete(&serde_json::from_str(&succeeded(host.run(|| command.output())?)?)?)
}

/// Processes that this one has started and not waited for.
fn children(pid: u32) -> Vec<String> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    listed.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Whether a process is there and is not just waiting to be waited for.
fn runs(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().any(|line| line.starts_with("State:") && !line.contains('Z'))
}

#[test]
fn nothing_stays_behind_an_interruption() -> Result<()> {
    let Some(host) = host()? else { return Ok(()) };
    let before = state(&host)?;
    let mut command = program();
    command.args(["ab", "--services=5", "--duration=1h", "--modes=nftables,iptables-nft"]);
    command.stdout(Stdio::null());
    let mut child = host.spawn(&mut command)?;
    let pid = child.id();
    wait_until(LIMIT, "two workers", || children(pid).len() == 2)?;
    let workers = children(pid);
    let kill = Command::new("kill").args(["-INT", &pid.to_string()]).status()?;
    ensure!(kill.success());
    let status = child.wait()?;
    ensure!(status.signal() == Some(2), "{status}");
    wait_until(LIMIT, "the workers are gone", || !workers.iter().any(|pid| runs(pid)))?;
    ensure!(state(&host)? == before, "the host's network was touched");
    Ok(())
}

#[test]
fn what_cannot_be_compared_is_refused_at_once() -> Result<()> {
    for (flag, word) in [
        ("--modes=userspace", "\"userspace\""),
        ("--services=0", "--services"),
        ("--endpoints=0", "--endpoints"),
        ("--endpoints=10000000", "--endpoints"),
        ("--duration=10ms", "--duration"),
        ("--duration=soon", "soon"),
    ] {
        let output = program().args(["ab", flag]).output()?;
        let error = String::from_utf8(output.stderr)?;
        ensure!(output.status.code() == Some(1) && error.contains(word), "{flag}: {error}");
        ensure!(output.stdout.is_empty());
    }
    Ok(())
}
