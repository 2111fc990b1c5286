//! `/healthz`, `/livez` and the health checks of load balancers.

use std::net::TcpListener;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use testbed::builders::{self, Port};
use testbed::world::{Families, NODE_NAME};

use crate::rig::{LIMIT, Rig, is_answer};
use testbed::Place;

const HEALTHZ: &str = "192.168.0.2:10256";
const CHECK_PORT: u16 = 31000;

/// A Service that load balancers ask about, with one endpoint here and one elsewhere.
fn balanced(rig: &mut Rig, name: &str, cluster_ips: [&str; 2], port: u16) -> Result<()> {
    let mut service = builders::service(name, cluster_ips[0], &[Port::HTTP]);
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["spec"]["healthCheckNodePort"] = port.into();
    service["spec"]["clusterIPs"] = json!(cluster_ips);
    service["spec"]["ipFamilies"] = json!(["IPv4", "IPv6"]);
    rig.manifests.apply(&service)?;
    let v4 = [("10.180.0.11", NODE_NAME), ("10.180.1.11", "node-b")];
    rig.manifests.apply(&builders::endpoint_slice(name, &[Port::HTTP], &v4))?;
    let v6 = [("fd00:10:180::11", NODE_NAME), ("fd00:10:180::12", NODE_NAME)];
    let mut slice = builders::endpoint_slice(name, &[Port::HTTP], &v6);
    slice["metadata"]["name"] = format!("{name}-2").into();
    rig.manifests.apply(&slice)
}

fn json_of(rig: &Rig, path: &str, status: u16) -> Result<Value> {
    let response = rig.get(HEALTHZ, path)?;
    ensure!(response.status == status, "{path}: {response:?}");
    Ok(serde_json::from_str(&response.body)?)
}

#[test]
fn healthz_tells_of_proxy_and_node_livez_of_the_proxy() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    rig.start()?;
    let body = json_of(&rig, "/healthz", 200)?;
    ensure!(body["healthy"] == true && body["nodeEligible"] == true, "{body}");
    for family in ["IPv4", "IPv6"] {
        ensure!(body["status"][family]["healthy"] == true, "{body}");
    }
    let body = json_of(&rig, "/livez", 200)?;
    ensure!(body["healthy"] == true && body["nodeEligible"].is_null(), "{body}");
    ensure!(rig.get(HEALTHZ, "/other")?.status == 404, "other paths");

    let [mut node, _] = builders::cluster(Families::Dual);
    node["spec"]["taints"] =
        json!([{"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}]);
    rig.manifests.apply(&node)?;
    rig.wait("the node is not eligible", LIMIT, |rig| {
        rig.get(HEALTHZ, "/healthz").is_ok_and(|healthz| healthz.status == 503)
    })?;
    let body = json_of(&rig, "/healthz", 503)?;
    ensure!(body["healthy"] == true && body["nodeEligible"] == false, "{body}");
    json_of(&rig, "/livez", 200)?;
    node["spec"]["taints"] = json!([]);
    rig.manifests.apply(&node)?;
    rig.wait("the node is eligible again", LIMIT, |rig| {
        rig.get(HEALTHZ, "/healthz").is_ok_and(|healthz| healthz.status == 200)
    })
}

#[test]
fn a_taken_port_does_not_stop_forwarding_and_is_tried_again() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    balanced(&mut rig, "web", ["172.30.0.10", "fd00:172:30::10"], CHECK_PORT)?;
    let taken = |port: u16| rig.world.at(Place::Node, move || TcpListener::bind(("0.0.0.0", port)));
    let (health, check) = (taken(10256)?, taken(CHECK_PORT)?);
    rig.start()?;
    rig.answer("172.30.0.10:80/TCP")?;
    rig.wait_for_log("failed to listen for /healthz; trying again")?;
    rig.wait_for_log("failed to listen for health checks; trying again")?;
    // The other family has the port to itself.
    let v6 = format!("[fd00:192:168::2]:{CHECK_PORT}");
    rig.wait("IPv6 health checks", LIMIT, |rig| rig.get(&v6, "/").is_ok())?;
    drop((health, check));
    let v4 = format!("192.168.0.2:{CHECK_PORT}");
    rig.wait("health checks, at last", LIMIT, |rig| rig.get(&v4, "/").is_ok())?;
    rig.wait("healthz, at last", LIMIT, |rig| rig.get(HEALTHZ, "/healthz").is_ok())
}

#[test]
fn health_checks_count_the_endpoints_of_their_family() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Dual)? else { return Ok(()) };
    balanced(&mut rig, "web", ["172.30.0.10", "fd00:172:30::10"], CHECK_PORT)?;
    rig.start()?;
    let asked = |rig: &Rig, host: &str| -> Option<(u16, u64)> {
        let response = rig.get(&format!("{host}:{CHECK_PORT}"), "/").ok()?;
        let body: Value = serde_json::from_str(&response.body).ok()?;
        Some((response.status, body["localEndpoints"].as_u64()?))
    };
    for (host, endpoints) in [("192.168.0.2", 1), ("[fd00:192:168::2]", 2)] {
        rig.wait(host, LIMIT, |rig| asked(rig, host) == Some((200, endpoints)))?;
    }
    rig.endpoints("web", &[])?;
    rig.wait("no endpoint here", LIMIT, |rig| asked(rig, "192.168.0.2") == Some((503, 0)))?;
    ensure!(asked(&rig, "[fd00:192:168::2]") == Some((200, 2)), "the other family");
    let mut service = rig.manifests.get("Service/default/web").cloned().context("web")?;
    service["spec"]["externalTrafficPolicy"] = "Cluster".into();
    rig.manifests.apply(&service)?;
    let closed = "192.168.0.2:31000/TCP";
    rig.wait_for(Place::Node, closed, LIMIT, |outcome| !is_answer(outcome))?;
    rig.wait("closed", LIMIT, |rig| rig.get("192.168.0.2:31000", "/").is_err())
}
