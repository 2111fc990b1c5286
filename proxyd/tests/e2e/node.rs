//! The node's own addresses.

use std::fs;

use anyhow::{Result, ensure};
use serde_json::json;
use testbed::Place;
use testbed::builders::{self, Port};
use testbed::dial::Outcome;
use testbed::world::Families;

use crate::rig::{REPAIR_LIMIT, Rig, is_answer};

#[test]
fn node_ports_follow_the_addresses_of_the_node() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    rig.config["nodePortAddresses"] = json!(["198.51.100.0/24", "2001:db8:77::/64"]);
    let mut service = builders::service("web", "172.30.0.10", &[Port::HTTP]);
    service["spec"]["type"] = "NodePort".into();
    service["spec"]["ports"][0]["nodePort"] = 30080.into();
    service["spec"]["clusterIPs"] = json!(["172.30.0.10", "fd00:172:30::10"]);
    service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    rig.endpoints("web", &["10.180.0.11"])?;
    rig.manifests.apply(&service)?;
    let mut slice =
        builders::endpoint_slice("web", &[Port::HTTP], &[("fd00:10:180::11", "node-a")]);
    slice["metadata"]["name"] = "web-2".into();
    rig.manifests.apply(&slice)?;
    rig.start()?;
    for (address, host) in
        [("198.51.100.7/24", "198.51.100.7"), ("2001:db8:77::7/64 nodad", "[2001:db8:77::7]")]
    {
        let node_port = format!("{host}:30080/TCP");
        rig.world.node().ip(&format!("address add {address} dev eth0\n"))?;
        let added = rig.wait_for(Place::Outside, &node_port, REPAIR_LIMIT * 2, is_answer)?;
        rig.world
            .node()
            .ip(&format!("address del {} dev eth0\n", address.replace(" nodad", "")))?;
        rig.wait("the address is gone from the rules", REPAIR_LIMIT, |rig| {
            let bare = host.trim_matches(['[', ']']);
            rig.rules().is_ok_and(|rules| !rules.iter().any(|word| word.contains(bare)))
        })?;
        let after = rig.dial(Place::Outside, &node_port)?;
        ensure!(!is_answer(&after), "{node_port} is still served: {after:?}");
        eprintln!("{host}: served {added:?} after it was added");
        ensure!(added <= REPAIR_LIMIT, "{added:?}");
    }
    // An address outside the ranges does not count.
    let outcome = rig.dial(Place::Outside, "192.168.0.2:30080/TCP")?;
    ensure!(outcome != Outcome::Silent && !is_answer(&outcome), "{outcome:?}");
    Ok(())
}

/// How many sockets the program has open.
fn sockets(rig: &mut Rig) -> Result<usize> {
    let folder = fs::read_dir(format!("/proc/{}/fd", rig.proxy()?.pid()))?;
    let links = folder.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    Ok(links.filter(|link| link.to_string_lossy().starts_with("socket:")).count())
}

#[test]
fn known_failure_24_no_address_or_port_of_a_service_costs_a_socket() -> Result<()> {
    const ADDRESSES: usize = 10_000;
    const FEW: usize = 8;
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.start()?;
    let before = sockets(&mut rig)?;
    let mut service = builders::service("web", "172.30.0.10", &[Port::HTTP]);
    service["spec"]["type"] = "NodePort".into();
    service["spec"]["ports"][0]["nodePort"] = 30080.into();
    let addresses = (0..ADDRESSES).map(|n| format!("203.0.{}.{}", n / 250, 1 + n % 250));
    service["spec"]["externalIPs"] = addresses.collect();
    rig.endpoints("web", &["10.180.0.11"])?;
    rig.manifests.apply(&service)?;
    let last = format!("203.0.{}.{}:80/TCP", (ADDRESSES - 1) / 250, 1 + (ADDRESSES - 1) % 250);
    for target in [last.as_str(), "203.0.0.1:80/TCP", "192.168.0.2:30080/TCP"] {
        rig.wait_for_answer(target)?;
    }
    let after = sockets(&mut rig)?;
    // One or two for work as such come and go: flows are looked through, other modes' rules looked for.
    ensure!(after <= before + FEW, "{after} sockets instead of {before}");
    Ok(())
}
