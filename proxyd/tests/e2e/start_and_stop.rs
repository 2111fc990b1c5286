//! The command line, the first moment and the last.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testbed::world::Families;

use crate::rig::{Rig, go_on, is_answer, program, stop};

/// How long an end may take.
const FAREWELL: Duration = Duration::from_millis(1500);

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn sigterm_ends_it_at_once_and_leaves_the_rules() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    rig.service("web", "172.30.0.10", &["10.180.0.11", "10.180.0.12"])?;
    rig.start()?;
    let traffic = rig.traffic("172.30.0.10:80/TCP")?;
    let rules = rig.rules()?;
    let start = Instant::now();
    let status = rig.proxy()?.stop()?;
    let took = start.elapsed();
    ensure!(status.code() == Some(0) && took < FAREWELL, "{status} after {took:?}");
    ensure!(rig.rules()? == rules, "rules went with the process");
    go_on(&traffic, 50)?;
    stop(traffic)?;
    ensure!(rig.log().contains("rules stay in place"), "{}", rig.log());
    // Nor does it take longer before there is anything to serve.
    std::fs::remove_dir_all(rig.manifests.folder())?;
    rig.launch()?;
    rig.wait_for_log("there is no such folder; waiting")?;
    let start = Instant::now();
    let status = rig.proxy()?.stop()?;
    let took = start.elapsed();
    ensure!(status.code() == Some(0) && took < FAREWELL, "waiting: {status} after {took:?}");
    Ok(())
}

#[test]
fn version_and_help_need_nothing() -> Result<()> {
    for arguments in [&["--version"][..], &["run", "--version"], &["--help"], &["cleanup", "-h"]] {
        let output = program().args(arguments).output()?;
        ensure!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let version = said(&program().arg("--version").output()?);
    ensure!(version == format!("proxyd v{}\n", env!("CARGO_PKG_VERSION")), "{version:?}");
    Ok(())
}

#[test]
fn the_command_line_of_kubeadm_runs() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    // As the DaemonSet has it, with the mode chosen and this node's pods.
    let text = include_str!("../data/config/kubeadm.yaml")
        .replace("mode: \"\"", "mode: nftables")
        .replace("clusterCIDR: 10.244.0.0/16", "clusterCIDR: 10.180.0.0/16");
    let config = rig.manifests.beside("config.conf");
    std::fs::write(&config, text)?;
    let mut command = program();
    command.arg(format!("--config={}", config.display()));
    command.arg(format!("--hostname-override={}", testbed::world::NODE_NAME));
    command.arg(format!("--manifests={}", rig.manifests.folder().display()));
    rig.launch_as(&mut command)?;
    rig.wait_for_answer("172.30.0.10:80/TCP")?;
    ensure!(rig.get("192.168.0.2:10256", "/healthz")?.status == 200, "healthz");
    Ok(())
}

/// Runs the program to its end, which has to be a refusal before the kernel was touched.
fn refusal(rig: &Rig, command: &mut Command, names: &[&str]) -> Result<()> {
    let output = rig.run(command)?;
    let said = said(&output);
    ensure!(output.status.code() == Some(1), "{command:?}: {}: {said}", output.status);
    for name in names {
        ensure!(said.contains(name), "{command:?} does not name {name:?}: {said}");
    }
    ensure!(rig.nft("list ruleset")?.is_empty(), "{command:?} wrote rules");
    Ok(())
}

#[test]
fn what_is_wrong_is_refused_before_the_kernel_is_touched() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    let flags = |arguments: &[&str]| -> Result<Command> {
        let mut command = program();
        command.arg("run").arg("--manifests").arg(rig.manifests.folder()).args(arguments);
        Ok(command)
    };
    refusal(
        &rig,
        &mut flags(&["--mode", "Nftables"])?,
        &["mode", "must be iptables, ipvs or nftables"],
    )?;
    refusal(&rig, &mut flags(&["--bogus"])?, &["--bogus"])?;
    refusal(
        &rig,
        &mut flags(&["--cluster-cidr", "10.0.0.0/40"])?,
        &["clusterCIDR", "must be one CIDR"],
    )?;
    refusal(&rig, &mut flags(&["--v", "many"])?, &["--v"])?;
    refusal(&rig, &mut flags(&["--config", "/nonexistent"])?, &["/nonexistent"])?;
    refusal(&rig, program().args(["run", "--mode", "nftables"]), &["--manifests"])?;

    rig.config["mode"] = "iptable".into();
    let allowed = "must be iptables, ipvs or nftables";
    refusal(&rig, &mut rig.command()?, &["config.yaml:", "mode: \"iptable\"", allowed])?;
    rig.config["mode"] = "nftables".into();
    rig.config["nftables"] = serde_json::json!({"masqueradeBit": 32});
    refusal(&rig, &mut rig.command()?, &["config.yaml:", "nftables.masqueradeBit", "0 to 31"])
}

#[test]
fn unknown_fields_warn() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.config["Mode"] = "ipvs".into();
    rig.start()?;
    let log = rig.log();
    let warned = log.lines().find(|line| line.contains("WARN") && line.contains("\"Mode\""));
    let warned = warned.with_context(|| log.clone())?;
    ensure!(warned.contains("config.yaml:") && warned.contains("did you mean"), "{warned}");
    Ok(())
}

#[test]
fn a_folder_that_appears_later_is_served() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    let (folder, aside) = (rig.manifests.folder(), rig.manifests.beside("aside"));
    std::fs::rename(&folder, &aside)?;
    rig.launch()?;
    rig.wait_for_log("there is no such folder; waiting")?;
    ensure!(rig.nft("list ruleset")?.is_empty(), "rules without a list");
    ensure!(!is_answer(&rig.dial(testbed::Place::LocalPod, "172.30.0.10:80/TCP")?), "served");
    std::fs::rename(&aside, &folder)?;
    rig.wait_for_answer("172.30.0.10:80/TCP").map(drop)
}
