//! `proxyd ab` on a kernel that has IPVS, and lacks nf_tables.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use libtest_mimic::{Arguments, Completion};
use serde_json::Value;
use testbed::uml::{self, GuestTest};

fn main() -> Result<ExitCode> {
    uml::enter()?;
    let test = || match modes_are_compared() {
        Ok(()) => Ok(Completion::Completed),
        Err(error) => Err(format!("{error:#}").into()),
    };
    let tests = vec![GuestTest::new("modes are compared", test)];
    Ok(libtest_mimic::run(&Arguments::from_args(), uml::trials(tests)).exit_code())
}

fn modes_are_compared() -> Result<()> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_proxyd"));
    command.args(["ab", "--services=5", "--endpoints=2", "--duration=2s", "--output=json"]);
    let output = command.output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).context(error)?;
    let names = |list: &str| -> Vec<String> {
        let modes = report[list].as_array().into_iter().flatten();
        modes.filter_map(|mode| mode["mode"].as_str().map(str::to_owned)).collect()
    };
    // The kernel of Debian's package has no nf_tables.
    ensure!(names("modes") == ["ipvs", "iptables-legacy"], "{report:#}");
    ensure!(names("not_measured") == ["nftables", "iptables-nft"], "{report:#}");
    ensure!(report["recommendation"]["mode"].is_string(), "{report:#}");
    Ok(())
}
