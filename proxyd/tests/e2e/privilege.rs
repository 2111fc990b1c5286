//! How little privilege is enough, and what is said where some is missing.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};
use testbed::Place;
use testbed::builders::{self, Port};
use testbed::echo::Listen;
use testbed::target::Protocol;
use testbed::world::{Families, NODE_NAME};

use crate::rig::{LIMIT, Rig, is_answer};

const WEB: &str = "172.30.0.10:80/TCP";
const DNS: &str = "172.30.0.53:53/UDP";
const DNS_PORT: Port<'_> = Port { name: "dns", protocol: "UDP", port: 53, target: 5353 };
/// `CapEff` of a process with nothing but `CAP_NET_ADMIN`, which is capability 12.
const NET_ADMIN: &str = "CapEff:\t0000000000001000";

/// As a container runtime leaves it to a container that is not privileged: the root file system
/// and the kernel's settings can only be read.
const READ_ONLY: &str = "mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && \
                         mount -o remount,bind,ro / && exec \"$@\"";

/// Runs a command in a mount namespace of its own where nothing can be written.
fn read_only(command: &Command) -> Command {
    let mut confined = Command::new("unshare");
    confined.args(["--mount", "sh", "-c", READ_ONLY, "sh"]);
    confined.arg(command.get_program()).args(command.get_args());
    confined
}

/// Takes all capabilities but these from a command, and every way to get them back.
fn with_only(capabilities: &[&str], user: &[&str], command: &Command) -> Command {
    let sets = [&["-all"], capabilities].concat().join(",+");
    let mut confined = Command::new("setpriv");
    confined.arg("--no-new-privs").args(user);
    confined.arg(format!("--bounding-set={sets}")).arg(format!("--inh-caps={sets}"));
    if !user.is_empty() {
        confined.arg(format!("--ambient-caps={sets}"));
    }
    confined.arg(command.get_program()).args(command.get_args());
    confined
}

/// The program with objects from a folder, and everything at its default.
fn rig() -> Result<Option<Rig>> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(None) };
    rig.world.serve(&[Listen { protocol: Protocol::Udp, address: None, port: DNS_PORT.target }])?;
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    let dns = builders::service("dns", "172.30.0.53", &[DNS_PORT]);
    rig.manifests.apply(&dns)?;
    dns_at(&mut rig, "10.180.0.11")?;
    rig.config.as_object_mut().context("configuration")?.remove("conntrack");
    Ok(Some(rig))
}

fn dns_at(rig: &mut Rig, pod: &str) -> Result<()> {
    rig.manifests.apply(&builders::endpoint_slice("dns", &[DNS_PORT], &[(pod, NODE_NAME)]))
}

/// Everything that the program does to the kernel, one after the other.
fn exercise(rig: &mut Rig) -> Result<()> {
    rig.wait_for_answer(WEB)?;
    let status = fs::read_to_string(format!("/proc/{}/status", rig.proxy()?.pid()))?;
    ensure!(status.contains(NET_ADMIN), "more than intended: {status}");
    // Damage is noticed and repaired.
    rig.world.node().nft("flush ruleset")?;
    rig.wait_for_answer(WEB)?;
    // Flows to an endpoint that is gone are forgotten.
    rig.wait_for_answer(DNS)?;
    dns_at(rig, "10.180.0.12")?;
    rig.wait("a stale flow is forgotten", LIMIT, |rig| {
        rig.get("127.0.0.1:10249", "/metrics").is_ok_and(|response| {
            let name = "kubeproxy_conntrack_reconciler_deleted_entries_total{ip_family=\"IPv4\"}";
            let value = response.body.lines().find_map(|line| line.strip_prefix(name));
            value.is_some_and(|value| value.trim() != "0")
        })
    })?;
    rig.wait_for_answer(DNS)?;
    ensure!(rig.get("192.168.0.2:10256", "/healthz")?.status == 200, "healthz");
    ensure!(rig.proxy()?.stop()?.code() == Some(0), "{}", rig.log());
    ensure!(is_answer(&rig.dial(Place::LocalPod, WEB)?), "rules went with the process");
    Ok(())
}

/// Every warning must be about a setting, and say what it would take; or about our own damage.
fn warnings_say_what_lacks(rig: &Rig) -> Result<()> {
    for line in rig.log().lines().filter(|line| line.contains("WARN") || line.contains("ERROR")) {
        let told = line.contains("lack=") || line.contains("only the host's network namespace");
        let setting = line.contains("kernel_settings") && told;
        ensure!(setting || line.contains("somebody else changed our rules"), "{line}");
    }
    Ok(())
}

#[test]
fn net_admin_on_a_read_only_root_is_enough() -> Result<()> {
    let Some(mut rig) = rig()? else { return Ok(()) };
    let mut command = read_only(&with_only(&["net_admin"], &[], &rig.command()?));
    rig.launch_as(&mut command)?;
    exercise(&mut rig)?;
    warnings_say_what_lacks(&rig)
}

#[test]
fn another_user_than_root_will_do() -> Result<()> {
    let user = ["--reuid=1000", "--regid=1000", "--clear-groups"];
    let Some(mut rig) = rig()? else { return Ok(()) };
    if !Command::new("setpriv").args(user).arg("true").output()?.status.success() {
        ensure!(std::env::var_os("CI").is_none(), "needs user 1000, which root has");
        writeln!(io::stderr(), "skipped: user 1000 is not to be had in this user namespace")?;
        return Ok(());
    }
    // The user has to be able to read all of it, whoever owns the build's folder.
    let command = rig.command()?;
    let program = rig.manifests.beside("proxyd");
    fs::copy(command.get_program(), &program)?;
    let folder = program.parent().context("a folder")?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755))?;
    let mut copy = Command::new(&program);
    copy.args(command.get_args());
    let mut command = read_only(&with_only(&["net_admin"], &user, &copy));
    rig.launch_as(&mut command)?;
    exercise(&mut rig)?;
    warnings_say_what_lacks(&rig)
}

/// `--init-only` run to its end by this command.
fn init(rig: &Rig, confine: impl Fn(&Command) -> Command) -> Result<(Output, String)> {
    let mut command = rig.command()?;
    command.arg("--init-only");
    let output = rig.run(&mut confine(&command))?;
    let said = [&output.stdout[..], &output.stderr].concat();
    Ok((output, String::from_utf8(said)?))
}

/// C7: an init container writes the settings; the container after it may find them read-only.
#[test]
fn c7_settings_are_written_once_and_read_only_from_then_on() -> Result<()> {
    let Some(mut rig) = rig()? else { return Ok(()) };
    rig.config["conntrack"] = serde_json::json!({
        "maxPerCore": 0, "tcpEstablishedTimeout": "1000s", "tcpCloseWaitTimeout": "100s",
    });
    let confined = |command: &Command| read_only(&with_only(&["net_admin"], &[], command));
    // The other way about, the value that was asked for cannot be had, and it is said why.
    let (output, said) = init(&rig, confined)?;
    ensure!(output.status.code() == Some(1), "{said}");
    for text in ["conntrack.tcpEstablishedTimeout", "1000", "read-only", "--init-only"] {
        ensure!(said.contains(text), "{text:?}: {said}");
    }
    // No API server is asked, and no rule is written.
    let (output, said) = init(&rig, |command| with_only(&["net_admin"], &[], command))?;
    ensure!(output.status.success(), "{said}");
    ensure!(rig.nft("list ruleset")?.is_empty(), "--init-only wrote rules");
    let (output, said) = init(&rig, confined)?;
    ensure!(output.status.success(), "{said}");
    ensure!(!said.contains("tcp_timeout"), "written twice: {said}");
    Ok(())
}

#[test]
fn the_capability_that_is_missing_is_named() -> Result<()> {
    let Some(rig) = rig()? else { return Ok(()) };
    // Everything else does not make up for it.
    let mut command = with_only(&[], &[], &rig.command()?);
    let output = rig.run(&mut command)?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.code() == Some(1) && said.contains("CAP_NET_ADMIN"), "{said}");
    ensure!(rig.nft("list ruleset")?.is_empty(), "rules were written");
    Ok(())
}
