//! What is written is what is read, after a restart, after damage, and beside others.

use anyhow::{Result, ensure};
use backend_ipvs::{DEVICE, IpvsConfig, TableConfig, detect, find_tool};
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::Protocol;
use proxy_core::scheduler::Scheduler;
use testbed::uml::GuestTest;

use crate::support::{
    Rig, address, config, listed, node_address, of_every_kind, output, service, test,
};

pub(crate) fn tests() -> Vec<GuestTest> {
    vec![
        test("restart_commits_nothing", restart_commits_nothing),
        test("damage_is_repaired", damage_is_repaired),
        test("foreign_objects_stay", foreign_objects_stay),
        test("nothing_is_left_after_clear", nothing_is_left_after_clear),
        test("changes_are_differences", changes_are_differences),
        test("every_scheduler_is_found", every_scheduler_is_found),
        test("own_addresses_are_not_bound", own_addresses_are_not_bound),
    ]
}

/// Known failure 16.
fn restart_commits_nothing() -> Result<()> {
    for family in IpFamily::ALL {
        let mut rig = Rig::open(&config(family))?;
        rig.want(&of_every_kind(family));
        let report = rig.sync()?;
        ensure!(report.left_out.is_empty() && report.changed_objects > 50, "{report:?}");
        drop(rig);
        let mut rig = Rig::open(&config(family))?;
        rig.want(&of_every_kind(family));
        let report = rig.sync()?;
        ensure!(report.changed_objects == 0, "{family}: {report:?}");
    }
    Ok(())
}

/// Known failure 70: whatever is damaged, the next comparison puts it right.
fn damage_is_repaired() -> Result<()> {
    let family = IpFamily::V4;
    let mut rig = Rig::open(&config(family))?;
    rig.want(&of_every_kind(family));
    rig.sync()?;
    let before = (listed()?, output("iptables-legacy-save", &[])?);
    let server = format!("{}:80", address(family, 172, 1));
    let real = format!("{}:8080", address(family, 10, 1));
    let entry = format!("{},tcp:80", address(family, 172, 1));
    let bound = format!("{}/32", address(family, 172, 1));
    let damages: [(&str, &[&str]); 9] = [
        ("ipvsadm", &["-d", "-t", &server, "-r", &real]),
        ("ipvsadm", &["-e", "-t", &server, "-r", &real, "-m", "-w", "5"]),
        ("ipvsadm", &["-E", "-t", &server, "-s", "wlc"]),
        ("ipvsadm", &["-C"]),
        ("ipset", &["flush", "proxyd4-live"]),
        ("ipset", &["add", "proxyd4-drop", &entry]),
        ("ip", &["address", "del", &bound, "dev", DEVICE]),
        ("iptables-legacy", &["-F", "PROXYD-IPVS-IN"]),
        ("iptables-legacy", &["-t", "mangle", "-F", "PREROUTING"]),
    ];
    for (program, arguments) in damages {
        output(program, arguments)?;
        let written = rig.compare()?;
        ensure!(written > 0, "{program} {arguments:?} was not noticed");
        ensure!(rig.compare()? == 0, "{program} {arguments:?} was not repaired");
        let list = listed()?;
        ensure!(list == before.0, "after {program} {arguments:?}:\n{list}");
    }
    let strip = |saved: String| -> Vec<String> {
        saved.lines().filter(|it| it.starts_with("-A")).map(str::to_owned).collect()
    };
    let after = output("iptables-legacy-save", &[])?;
    ensure!(strip(after) == strip(before.1), "rules differ");
    Ok(())
}

/// Known failure 54.
fn foreign_objects_stay() -> Result<()> {
    let family = IpFamily::V4;
    output("ipvsadm", &["-A", "-t", "10.9.9.9:80", "-s", "wlc"])?;
    output("ipvsadm", &["-a", "-t", "10.9.9.9:80", "-r", "10.9.9.10:80", "-m", "-w", "0"])?;
    output("ipvsadm", &["-A", "-f", "7", "-s", "rr"])?;
    output("iptables-legacy", &["-A", "INPUT", "-p", "tcp", "--dport", "9", "-j", "DROP"])?;
    let (foreign, rules) = (listed()?, output("iptables-legacy-save", &["-t", "filter"])?);
    let exclude = Cidr::new(address(family, 198, 0), 24).into_iter().collect();
    let config = IpvsConfig { exclude, ..config(family) };
    let mut rig = Rig::open(&config)?;
    rig.want(&of_every_kind(family));
    rig.sync()?;
    // On an address of ours, but in a range that is left alone.
    let excluded = format!("{}:9", address(family, 198, 1));
    output("ipvsadm", &["-A", "-t", &excluded, "-s", "rr"])?;
    // On an address of ours.
    let stranger = format!("{}:9", address(family, 172, 1));
    output("ipvsadm", &["-A", "-t", &stranger, "-s", "rr"])?;
    ensure!(rig.compare()? == 1, "the stranger was not removed");
    let list = listed()?;
    ensure!(list.contains(&excluded) && !list.contains(&stranger), "{list}");
    output("ipvsadm", &["-D", "-t", &excluded])?;
    rig.clear()?;
    ensure!(listed()? == foreign, "{}", listed()?);
    let kept = |rules: &str| rules.lines().filter(|it| it.starts_with("-A")).count();
    let left = output("iptables-legacy-save", &["-t", "filter"])?;
    ensure!(kept(&left) == kept(&rules) && !left.contains("PROXYD"), "{left}");
    Ok(())
}

fn nothing_is_left_after_clear() -> Result<()> {
    let nothing = listed()?;
    let mut rigs = Vec::new();
    for family in IpFamily::ALL {
        let mut rig = Rig::open(&config(family))?;
        rig.want(&of_every_kind(family));
        rig.sync()?;
        rigs.push(rig);
    }
    for rig in &mut rigs {
        rig.clear()?;
        // Twice does no harm.
        rig.clear()?;
    }
    ensure!(listed()? == nothing, "{}", listed()?);
    ensure!(output("ipset", &["list", "-n"])?.is_empty(), "sets are left");
    ensure!(output("ip", &["link", "show", "dev", DEVICE]).is_err(), "the device is left");
    for program in ["iptables-legacy-save", "ip6tables-legacy-save"] {
        let saved = output(program, &[])?;
        ensure!(!saved.contains("PROXYD"), "{saved}");
    }
    Ok(())
}

/// Known failure 19.
fn changes_are_differences() -> Result<()> {
    for family in IpFamily::ALL {
        let mut rig = Rig::open(&config(family))?;
        let mut services = of_every_kind(family);
        rig.want(&services);
        rig.sync()?;
        services[1] = service(family, 2, Protocol::Udp, &[1, 2, 5]);
        rig.want(&services[1..2]);
        let report = rig.sync()?;
        // A real server goes, one comes; the health check goes.
        ensure!(!report.full && report.changed_objects == 3, "{report:?}");
        ensure!(rig.compare()? == 0, "the difference did not lead there");
        services[1] = service(family, 2, Protocol::Udp, &[]);
        rig.want(&services[1..2]);
        rig.sync()?;
        ensure!(rig.compare()? == 0, "the virtual server did not go");
        rig.clear()?;
    }
    Ok(())
}

fn every_scheduler_is_found() -> Result<()> {
    for scheduler in Scheduler::ALL {
        detect(
            &TableConfig { scheduler, ..config(IpFamily::V4).table },
            &find_tool(IpFamily::V4)?,
        )?;
    }
    detect(&config(IpFamily::V6).table, &find_tool(IpFamily::V6)?)?;
    Ok(())
}

/// An external IP that is the node's own stays where it is, and what the node listens on there is
/// not refused.
fn own_addresses_are_not_bound() -> Result<()> {
    let family = IpFamily::V4;
    let mut rig = Rig::open(&config(family))?;
    let mut services = vec![service(family, 1, Protocol::Tcp, &[1])];
    let mut external = services[0].ports[0].frontends[0].clone();
    external.key = crate::support::at(node_address(family), 81, Protocol::Tcp);
    services[0].ports[0].frontends.push(external);
    rig.want(&services);
    rig.sync()?;
    let bound = output("ip", &["-o", "address", "show", "dev", DEVICE])?;
    ensure!(!bound.contains(&node_address(family).to_string()), "{bound}");
    let set = output("ipset", &["list", "proxyd4-addresses"])?;
    ensure!(!set.contains(&node_address(family).to_string()), "{set}");
    ensure!(listed()?.contains(&format!("{}:81", node_address(family))), "{}", listed()?);
    Ok(())
}
