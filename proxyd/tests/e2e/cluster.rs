//! Objects from a cluster: a fake API server in the node's namespace.

use anyhow::{Context, Result, ensure};
use testbed::Place;
use testbed::apiserver::ApiServer;
use testbed::builders::{self, Port};
use testbed::world::{Families, NODE_NAME};

use crate::rig::{Rig, is_answer};

pub(crate) const WEB: &str = "172.30.0.10:80/TCP";
const HEALTHZ: &str = "192.168.0.2:10256";
const METRICS: &str = "127.0.0.1:10249";
const LATE: &str = "172.30.0.11:80/TCP";

/// A rig whose program watches a cluster with one Service.
pub(crate) fn cluster() -> Result<Option<(Rig, ApiServer)>> {
    prepared(|_| ())
}

/// The same, with the server prepared before the program starts.
pub(crate) fn prepared(prepare: impl FnOnce(&ApiServer)) -> Result<Option<(Rig, ApiServer)>> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(None) };
    let server = rig.world.node().run(ApiServer::start)?;
    for object in builders::cluster(Families::Ipv4) {
        server.apply(object);
    }
    server.apply(builders::service("web", "172.30.0.10", &[Port::HTTP]));
    server.apply(endpoints("web", &["10.180.0.11"]));
    prepare(&server);
    start(&mut rig, &server)?;
    Ok(Some((rig, server)))
}

pub(crate) fn endpoints(service: &str, pods: &[&str]) -> serde_json::Value {
    let pods: Vec<_> = pods.iter().map(|pod| (*pod, NODE_NAME)).collect();
    builders::endpoint_slice(service, &[Port::HTTP], &pods)
}

pub(crate) fn start(rig: &mut Rig, server: &ApiServer) -> Result<()> {
    let mut command = crate::rig::program();
    command.args(["--hostname-override", NODE_NAME, "--master", &server.url()]);
    command.arg("--config").arg(rig.write_config()?);
    rig.launch_as(&mut command)
}

/// The Node with something changed.
fn node(change: impl FnOnce(&mut serde_json::Value)) -> serde_json::Value {
    let [mut node, _] = builders::cluster(Families::Ipv4);
    change(&mut node);
    node
}

/// Waits until `/healthz` has this status; `/livez` is good all the time.
fn wait_for_healthz(rig: &Rig, status: u16) -> Result<()> {
    rig.wait(&format!("/healthz {status}"), crate::rig::LIMIT, |rig| {
        rig.get(HEALTHZ, "/healthz").is_ok_and(|it| it.status == status)
            && rig.get(HEALTHZ, "/livez").is_ok_and(|it| it.status == 200)
    })
}

#[test]
fn s7_7_a_node_about_to_go_gets_no_new_connections() -> Result<()> {
    let Some((rig, server)) = cluster()? else { return Ok(()) };
    wait_for_healthz(&rig, 200)?;
    let key = "ToBeDeletedByClusterAutoscaler";
    let taints = serde_json::json!([{"key": key, "effect": "NoSchedule"}]);
    server.apply(node(|node| node["spec"]["taints"] = taints));
    wait_for_healthz(&rig, 503)?;
    server.apply(node(|_| {}));
    wait_for_healthz(&rig, 200)?;
    let time = "2026-01-01T00:00:00Z";
    server.apply(node(|node| node["metadata"]["deletionTimestamp"] = time.into()));
    wait_for_healthz(&rig, 503)?;
    ensure!(is_answer(&rig.dial(Place::LocalPod, WEB)?), "rules stay");
    Ok(())
}

#[test]
fn s7_6_a_zone_that_becomes_known_late_changes_the_topology() -> Result<()> {
    let Some((rig, server)) = cluster()? else { return Ok(()) };
    let zone =
        |zone: Option<&str>| node(|node| node["metadata"]["labels"][builders::ZONE] = zone.into());
    let mut slice = endpoints("web", &["10.180.0.11", "10.180.0.12"]);
    for (index, zone) in ["east", "west"].into_iter().enumerate() {
        slice["endpoints"][index]["hints"] = serde_json::json!({"forZones": [{"name": zone}]});
    }
    server.apply(slice);
    let elements = |rig: &Rig| {
        let rules = rig.nft("list ruleset").unwrap_or_default();
        ["10.180.0.11", "10.180.0.12"].map(|pod| rules.contains(pod))
    };
    for (label, expected) in [("west", [false, true]), ("east", [true, false])] {
        server.apply(zone(Some(label)));
        rig.wait(label, crate::rig::LIMIT, |rig| elements(rig) == expected)?;
    }
    // Of a node in no zone that is named, hints say nothing.
    server.apply(zone(Some("north")));
    rig.wait("all", crate::rig::LIMIT, |rig| elements(rig) == [true, true])
}

#[test]
fn s7_2_node_ports_follow_the_addresses_that_the_node_object_gives() -> Result<()> {
    const OLD: &str = "192.168.0.2:30080/TCP";
    const NEW: &str = "198.51.100.7:30080/TCP";
    let Some((rig, server)) = prepared(|server| {
        let mut service = builders::service("web", "172.30.0.10", &[Port::HTTP]);
        service["spec"]["type"] = "NodePort".into();
        service["spec"]["ports"][0]["nodePort"] = 30080.into();
        server.apply(service);
    })?
    else {
        return Ok(());
    };
    rig.world.node().ip("address add 198.51.100.7/24 dev eth0\n")?;
    // By default node ports answer where the Node object says that the node is.
    rig.wait_for(Place::Outside, OLD, crate::rig::LIMIT, is_answer)?;
    ensure!(!is_answer(&rig.dial(Place::Outside, NEW)?), "an address nobody named is served");
    let named = |address: &str| {
        let addresses = serde_json::json!([{"type": "InternalIP", "address": address}]);
        node(|node| node["status"]["addresses"] = addresses)
    };
    for (address, served, other) in [("198.51.100.7", NEW, OLD), ("192.168.0.2", OLD, NEW)] {
        server.apply(named(address));
        rig.wait_for(Place::Outside, served, crate::rig::LIMIT, is_answer)?;
        rig.wait_for(Place::Outside, other, crate::rig::LIMIT, |outcome| !is_answer(outcome))?;
    }
    Ok(())
}

/// A kubeconfig whose cluster and user have these extra lines.
fn kubeconfig(cluster: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: default\n\
         contexts: [{{name: default, context: {{cluster: default, user: default}}}}]\n\
         clusters: [{{name: default, cluster: {{server: 'https://127.0.0.1:6443'{cluster}}}}}]\n\
         users: [{{name: default, user: {{{user}}}}}]\n"
    )
}

#[test]
fn a_bad_kubeconfig_or_certificate_ends_the_start_with_file_and_reason() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    let path = rig.manifests.beside("kubeconfig");
    rig.config["clientConnection"] = serde_json::json!({"kubeconfig": path});
    let config = rig.write_config()?;
    let garbage = rig.manifests.beside("garbage");
    std::fs::write(&garbage, "hello")?;
    let pair = "client-certificate: garbage, client-key: garbage";
    for (text, reasons) in [
        (None, ["kubeconfig: ", "No such file"]),
        (Some("{".to_owned()), ["kubeconfig ", "line 1"]),
        (Some("apiVersion: v1\nkind: Config\n".to_owned()), ["kubeconfig ", "context"]),
        (Some(kubeconfig(", certificate-authority: none.crt", "")), ["none.crt", "No such file"]),
        (Some(kubeconfig(", certificate-authority: garbage", "")), ["garbage", "no certificate"]),
        (Some(kubeconfig("", "tokenFile: none")), ["none", "No such file"]),
        (Some(kubeconfig("", pair)), ["client-certificate", "garbage"]),
    ] {
        if let Some(text) = &text {
            std::fs::write(&path, text)?;
        }
        let mut command = crate::rig::program();
        command.args(["--hostname-override", NODE_NAME]).arg("--config").arg(&config);
        let output = rig.run(&mut command)?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.code() == Some(1), "{text:?}: {:?}: {said}", output.status);
        let (_, last) = said.split_once("\nproxyd: ").unwrap_or(("", &said));
        for reason in reasons {
            ensure!(last.contains(reason), "{text:?}: {reason:?} is missing in {said}");
        }
    }
    ensure!(!rig.nft("list ruleset")?.contains("proxyd"), "rules without objects");
    Ok(())
}

#[test]
fn s7_4_changed_pod_ranges_end_the_program_and_leave_its_rules() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.config["detectLocalMode"] = "NodeCIDR".into();
    let server = rig.world.node().run(ApiServer::start)?;
    for object in builders::cluster(Families::Ipv4) {
        server.apply(object);
    }
    let ranges = |range: &str| {
        node(|node| node["spec"] = serde_json::json!({"podCIDR": range, "podCIDRs": [range]}))
    };
    server.apply(ranges("10.180.0.0/24"));
    server.apply(builders::service("web", "172.30.0.10", &[Port::HTTP]));
    server.apply(endpoints("web", &["10.180.0.11"]));
    start(&mut rig, &server)?;
    rig.wait_for_answer(WEB)?;
    server.apply(ranges("10.181.0.0/24"));
    rig.wait_for_log("pod ranges changed from 10.180.0.0/24 to 10.181.0.0/24")?;
    let proxy = rig.proxy()?;
    testbed::wait_until(crate::rig::LIMIT, "the program ends", || proxy.status().is_some())?;
    ensure!(proxy.status().and_then(|status| status.code()) == Some(1), "exit code");
    ensure!(is_answer(&rig.dial(Place::LocalPod, WEB)?), "rules went");
    start(&mut rig, &server)?;
    rig.wait("a new start serves", crate::rig::LIMIT, |rig| {
        rig.log().matches("in step for the first time").count() >= 2
    })
}

#[test]
fn a_cluster_is_followed_through_an_outage() -> Result<()> {
    let Some((mut rig, server)) = cluster()? else { return Ok(()) };
    rig.wait_for_answer(WEB)?;

    // What changes is in effect, by watch.
    server.apply(builders::service("late", "172.30.0.11", &[Port::HTTP]));
    server.apply(endpoints("late", &["10.180.0.12"]));
    rig.wait_for_answer(LATE)?;

    let metrics = rig.get(METRICS, "/metrics")?.body;
    let host = server.address();
    for series in [
        format!("rest_client_requests_total{{code=\"200\",host=\"{host}\",method=\"GET\"}}"),
        format!("rest_client_request_duration_seconds_count{{host=\"{host}\",verb=\"GET\"}}"),
        format!("rest_client_rate_limiter_duration_seconds_count{{host=\"{host}\",verb=\"GET\"}}"),
        format!("rest_client_request_size_bytes_count{{host=\"{host}\",verb=\"POST\"}}"),
        "proxyd_events_written_total 1".to_owned(),
        "proxyd_source_connected 1".to_owned(),
        "proxyd_source_unreadable_objects_total{kind=\"Service\"} 0".to_owned(),
    ] {
        ensure!(metrics.contains(&series), "{series} is missing in {metrics}");
    }

    // The server is gone: rules stay, the program lives, load balancers stay content.
    rig.world.node().run(|| server.stop());
    rig.wait("the outage is told of", crate::rig::LIMIT, |rig| {
        let health = rig.get(HEALTHZ, "/healthz");
        health.is_ok_and(|it| it.status == 200 && it.body.contains("does not answer"))
    })?;
    ensure!(is_answer(&rig.dial(Place::LocalPod, WEB)?), "rules went with the server");
    server.delete("services", "default", "late");
    server.delete("endpointslices", "default", "late-1");
    server.expire_history();
    rig.world.node().run(|| server.resume())?;

    // What vanished meanwhile is found, although nobody told of it.
    rig.wait("late is gone", crate::rig::LIMIT, |rig| {
        rig.dial(Place::LocalPod, LATE).is_ok_and(|outcome| !is_answer(&outcome))
    })?;
    ensure!(is_answer(&rig.dial(Place::LocalPod, WEB)?), "web went with late");

    // kill -9 and start again while the server is gone: the rules are still there.
    rig.world.node().run(|| server.stop());
    rig.kill()?;
    start(&mut rig, &server)?;
    rig.wait_for_log("api server").context("an unreachable server is not told of")?;
    rig.wait("the start says why it waits", crate::rig::LIMIT, |rig| {
        let (ready, live) = (rig.get(HEALTHZ, "/healthz"), rig.get(HEALTHZ, "/livez"));
        ready.is_ok_and(|it| it.status == 503 && it.body.contains("does not answer"))
            && live.is_ok_and(|it| it.status == 200)
    })?;
    ensure!(is_answer(&rig.dial(Place::LocalPod, WEB)?), "a restart took rules away");
    rig.world.node().run(|| server.resume())?;
    server.apply(builders::service("late", "172.30.0.11", &[Port::HTTP]));
    server.apply(endpoints("late", &["10.180.0.12"]));
    rig.wait_for_answer(LATE)?;
    Ok(())
}
