//! A configuration file that changes while the program runs (C5).

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::world::Families;

use crate::rig::{LIMIT, Rig, stop};

const WEB: &str = "172.30.0.10:80/TCP";

fn rig() -> Result<Option<Rig>> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(None) };
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    Ok(Some(rig))
}

fn metric(rig: &Rig, name: &str) -> Result<f64> {
    let address = rig.config["metricsBindAddress"].as_str().context("no metrics")?;
    let page = rig.get(address, "/metrics")?.body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)).context("no such metric")?;
    Ok(line.trim().parse()?)
}

fn wait_for_metric(rig: &Rig, name: &str, value: f64) -> Result<()> {
    rig.wait(&format!("{name} is {value}"), LIMIT, |rig| {
        metric(rig, name).is_ok_and(|now| (now - value).abs() < 0.1)
    })
}

fn settings(fields: &Value) -> Value {
    let mut document = json!({"apiVersion": "proxyd.io/v1alpha1", "kind": "ProxydConfiguration"});
    for (name, value) in fields.as_object().into_iter().flatten() {
        document[name] = value.clone();
    }
    document
}

#[test]
fn c5_3_by_default_a_change_is_reported_and_nothing_restarts() -> Result<()> {
    let Some(mut rig) = rig()? else { return Ok(()) };
    rig.config["metricsBindAddress"] = json!("127.0.0.1:10249");
    rig.start()?;
    let before = rig.config.clone();
    rig.config["nftables"]["minSyncPeriod"] = json!("2s");
    rig.write_config()?;
    rig.wait_for_log("a restart takes it in")?;
    ensure!(rig.log().contains("nftables.minSyncPeriod"), "{}", rig.log());
    wait_for_metric(&rig, "proxyd_config_pending", 1.0)?;
    rig.config["mode"] = json!("ebpf");
    rig.write_config()?;
    rig.wait_for_log("iptables, ipvs or nftables")?;
    wait_for_metric(&rig, "proxyd_config_unusable", 1.0)?;
    ensure!(metric(&rig, "proxyd_config_pending")? < 0.1);
    rig.config = before;
    rig.write_config()?;
    wait_for_metric(&rig, "proxyd_config_unusable", 0.0)?;
    ensure!(rig.log().matches("starting").count() == 1, "{}", rig.log());
    rig.answer(WEB)?;
    Ok(())
}

#[test]
fn a_restart_takes_the_change_in_under_traffic() -> Result<()> {
    let Some(mut rig) = rig()? else { return Ok(()) };
    rig.config["metricsBindAddress"] = json!("127.0.0.1:10249");
    rig.start()?;
    let pid = rig.proxy()?.pid();
    let traffic = rig.traffic(WEB)?;
    rig.settings = Some(settings(&json!({"configChange": "Restart"})));
    rig.config["nftables"]["minSyncPeriod"] = json!("1s");
    rig.write_config()?;
    rig.wait("a second start", LIMIT, |rig| {
        rig.log().matches("in step for the first time").count() >= 4
    })?;
    let in_force: Value = serde_json::from_str(&rig.get("127.0.0.1:10249", "/configz")?.body)?;
    let config = &in_force["kubeproxy.config.k8s.io"];
    ensure!(config.to_string().contains("\"minSyncPeriod\":\"1s\""), "{in_force}");
    ensure!(rig.proxy()?.pid() == pid && rig.proxy()?.status().is_none(), "not the same process");
    stop(traffic)?;
    // It still watches.
    rig.config["nftables"]["minSyncPeriod"] = json!("3s");
    rig.write_config()?;
    rig.wait("a third start", LIMIT, |rig| {
        rig.log().matches("in step for the first time").count() >= 6
    })
}

#[test]
fn c5_2_a_mounted_config_map_is_followed_to_the_exit_that_was_asked_for() -> Result<()> {
    let Some(mut rig) = rig()? else { return Ok(()) };
    let mount = rig.manifests.beside("mount");
    let publish = |version: &str, text: &str| -> Result<()> {
        let folder = mount.join(version);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("config.conf"), text)?;
        let new = mount.join("..data_tmp");
        symlink(version, &new)?;
        Ok(fs::rename(new, mount.join("..data"))?)
    };
    rig.settings = Some(settings(&json!({"configChange": "Exit"})));
    publish("..1", &rig.config_text()?)?;
    symlink(Path::new("..data/config.conf"), mount.join("config.conf"))?;
    let mut command = rig.command()?;
    // The last one counts.
    command.arg("--config").arg(mount.join("config.conf"));
    rig.start_as(&mut command)?;
    // The same meaning in other words changes nothing.
    publish("..2", &format!("# as before\n{}", rig.config_text()?))?;
    rig.config["mode"] = json!("none");
    publish("..3", &rig.config_text()?)?;
    rig.wait_for_log("the old one stays in force")?;
    ensure!(rig.proxy()?.status().is_none(), "an unusable file ended the program");
    rig.config["mode"] = json!("nftables");
    rig.config["nftables"]["syncPeriod"] = json!("17s");
    publish("..4", &rig.config_text()?)?;
    rig.wait_for_log("restart to take it in")?;
    let proxy = rig.proxy()?;
    testbed::wait_until(LIMIT, "the program ends", || proxy.status().is_some())?;
    ensure!(proxy.status().and_then(|status| status.code()) == Some(1));
    rig.answer(WEB)?;
    Ok(())
}

#[test]
fn the_program_nft_can_write_the_rules() -> Result<()> {
    let Some(mut rig) = rig()? else { return Ok(()) };
    rig.settings = Some(settings(&json!({"nftables": {"driver": "nft"}})));
    rig.start()?;
    rig.answer(WEB)?;
    rig.service("api", "172.30.0.11", &["10.180.0.12"])?;
    rig.wait_for_answer("172.30.0.11:80/TCP")?;
    let traffic = rig.traffic(WEB)?;
    rig.kill()?;
    rig.settings = None;
    rig.start()?;
    stop(traffic)?;
    let listing = rig.nft("list table ip proxyd")?;
    ensure!(listing.contains("default/api:http"), "{listing}");
    Ok(())
}
