//! Another mode than the node ran before.

use std::process::Command;

use anyhow::Result;
use serde_json::json;
use testbed::world::Families;

use crate::rig::{LIMIT, Rig, go_on, stop};

const WEB: &str = "172.30.0.10:80/TCP";

/// A mode, the variant of iptables, the program that lists its rules, and what they contain.
type Mode = (&'static str, &'static str, &'static str, &'static str);

const MODES: [Mode; 3] = [
    ("nftables", "auto", "nft list ruleset", "table ip proxyd"),
    ("iptables", "nft", "iptables-nft-save", ":KUBE-SVC-"),
    ("iptables", "legacy", "iptables-legacy-save", ":KUBE-SVC-"),
];

fn has_rules(rig: &Rig, (_, _, list, sign): Mode) -> Result<bool> {
    let mut words = list.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    let output = rig.run(command.args(words))?;
    Ok(String::from_utf8_lossy(&output.stdout).contains(sign))
}

#[test]
fn failure_72_a_change_of_mode_fails_no_connection_and_leaves_nothing_behind() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    rig.service("web", "172.30.0.10", &["10.180.0.11", "10.180.0.12"])?;
    let mut traffic = None;
    for index in [0, 1, 2, 1, 0, 2, 0] {
        let (mode, variant, ..) = MODES[index];
        rig.config["mode"] = json!(mode);
        rig.settings = Some(json!({
            "apiVersion": "proxyd.io/v1alpha1",
            "kind": "ProxydConfiguration",
            "iptables": { "variant": variant },
        }));
        if rig.proxy.is_some() {
            rig.proxy()?.stop()?;
        }
        rig.start()?;
        let traffic = match &traffic {
            Some(traffic) => traffic,
            None => traffic.insert(rig.traffic(WEB)?),
        };
        rig.wait(&format!("{mode} {variant} alone"), LIMIT, |rig| {
            let listed: Result<Vec<bool>> =
                MODES.iter().map(|mode| has_rules(rig, *mode)).collect();
            listed.is_ok_and(|listed| (0..MODES.len()).all(|at| listed[at] == (at == index)))
        })?;
        go_on(traffic, 20)?;
    }
    traffic.map_or(Ok(()), |traffic| stop(traffic).map(drop))
}
