//! `proxyd render`: what would be programmed.

use std::process::{Command, Output};

use anyhow::{Result, ensure};
use serde_json::Value;
use testbed::world::{Families, NODE_NAME};

use crate::rig::{Rig, program};

fn render(rig: &Rig, arguments: &[&str]) -> Result<Output> {
    let mut command: Command = program();
    command.args(["render", "--hostname-override", NODE_NAME]).args(arguments);
    command.arg("--manifests").arg(rig.manifests.folder());
    command.arg("--config").arg(rig.write_config()?);
    rig.run(&mut command)
}

fn succeeded(output: Output) -> Result<(String, String)> {
    let (out, err) = (String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?);
    ensure!(output.status.success(), "{err}");
    Ok((out, err))
}

#[test]
fn what_is_rendered_serves_once_nft_has_loaded_it() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.service("web", "172.30.0.10", &["10.180.0.11", "10.180.0.12"])?;
    rig.write("odd.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: [x]}\n")?;
    let (text, log) = succeeded(render(&rig, &[])?)?;
    ensure!(rig.rules()?.is_empty(), "render wrote to the kernel");
    ensure!(log.contains("odd.yaml:3"), "a finding is missing: {log}");
    ensure!(text.contains("default/web:http"), "{text}");
    rig.world.node().nft(&text)?;
    rig.answer("172.30.0.10:80/TCP")?;
    // The daemon goes on from there.
    rig.start()?;
    rig.answer("172.30.0.10:80/TCP")?;
    Ok(())
}

#[test]
fn json_has_both_families_and_is_the_same_each_time() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    let (first, _) = succeeded(render(&rig, &["--output", "json"])?)?;
    let (second, _) = succeeded(render(&rig, &["--output=json"])?)?;
    ensure!(first == second, "equal inputs, different documents");
    let document: Value = serde_json::from_str(&first)?;
    let commands = document["nftables"].as_array().cloned().unwrap_or_default();
    for family in ["ip", "ip6"] {
        let is_table = |command: &&Value| command["add"]["table"]["family"] == family;
        ensure!(commands.iter().filter(is_table).count() == 1, "{family}: {first}");
    }
    Ok(())
}

#[test]
fn a_folder_that_is_missing_is_an_error() -> Result<()> {
    let mut command = program();
    let output = command.args(["render", "--mode=nftables", "--manifests=/no/such"]).output()?;
    let error = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1) && error.contains("/no/such"), "{error}");
    ensure!(output.stdout.is_empty());
    Ok(())
}
