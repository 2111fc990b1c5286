//! Events in the cluster (S17).

use std::net::TcpListener;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use testbed::Place;
use testbed::apiserver::{ApiServer, On, What};
use testbed::builders::{self, Port};
use testbed::world::NODE_NAME;

use crate::cluster::{cluster, endpoints};
use crate::rig::{LIMIT, Rig};

const WEB: &str = "172.30.0.10:80/TCP";

fn event(server: &ApiServer, reason: &str) -> Option<Value> {
    server.objects("events").into_iter().find(|event| event["reason"] == reason)
}

fn wait_for_event(rig: &Rig, server: &ApiServer, reason: &str) -> Result<Value> {
    rig.wait(&format!("event {reason}"), LIMIT, |_| event(server, reason).is_some())?;
    event(server, reason).context("the event is gone")
}

/// Damages the rules and waits for their repair.
pub(crate) fn damage(rig: &Rig) -> Result<()> {
    let repairs = |rig: &Rig| rig.log().matches("repaired").count();
    let before = repairs(rig);
    rig.nft("delete table ip proxyd")?;
    rig.wait("a repair", LIMIT, |rig| repairs(rig) > before)
}

#[test]
fn s17_people_are_told_what_is_wrong_with_the_node() -> Result<()> {
    let Some((mut rig, server)) = cluster()? else { return Ok(()) };
    rig.wait_for_answer(WEB)?;
    let starting = wait_for_event(&rig, &server, "Starting")?;
    ensure!(starting["type"] == "Normal" && starting["action"] == "StartKubeProxy", "{starting}");
    ensure!(starting["regarding"]["name"] == NODE_NAME, "{starting}");

    let _taken = rig.world.at(Place::Node, || TcpListener::bind(("0.0.0.0", 31000)))?;
    let mut service = builders::service("checked", "172.30.0.12", &[Port::HTTP]);
    service["spec"]["type"] = "LoadBalancer".into();
    service["spec"]["externalTrafficPolicy"] = "Local".into();
    service["spec"]["healthCheckNodePort"] = 31000.into();
    server.apply(service);
    server.apply(endpoints("checked", &["10.180.0.12"]));
    let busy = wait_for_event(&rig, &server, "FailedToStartServiceHealthcheck")?;
    ensure!(busy["regarding"]["kind"] == "Service", "{busy}");
    ensure!(busy["regarding"]["name"] == "checked" && busy["action"] == "Listen", "{busy}");
    ensure!(busy["note"].as_str().is_some_and(|note| note.contains("31000")), "{busy}");

    rig.nft("delete table ip proxyd")?;
    let repaired = wait_for_event(&rig, &server, "RulesRepaired")?;
    ensure!(repaired["note"].as_str().is_some_and(|note| note.contains("nft (pid ")), "{repaired}");
    rig.answer(WEB)?;

    let mode = rig.config["mode"].take();
    rig.config["mode"] = json!("ebpf");
    rig.write_config()?;
    let unusable = wait_for_event(&rig, &server, "ConfigurationUnusable")?;
    ensure!(unusable["note"].as_str().is_some_and(|note| note.contains("ebpf")), "{unusable}");
    rig.config["mode"] = mode;
    rig.config["nftables"]["minSyncPeriod"] = json!("2s");
    rig.write_config()?;
    let pending = wait_for_event(&rig, &server, "ConfigurationPending")?;
    ensure!(pending["note"].as_str().is_some_and(|note| note.contains("minSyncPeriod")));
    Ok(())
}

#[test]
fn s17_events_that_cannot_be_written_hold_nothing_up() -> Result<()> {
    for what in [What::Hang, What::status(403, "Forbidden"), What::status(429, "TooManyRequests")] {
        let Some((rig, server)) = cluster()? else { return Ok(()) };
        server.fault("events", On::Write, what, usize::MAX);
        rig.wait_for_answer(WEB)?;
        for _ in 0..3 {
            damage(&rig)?;
            rig.answer(WEB)?;
        }
        server.apply(builders::service("late", "172.30.0.11", &[Port::HTTP]));
        server.apply(endpoints("late", &["10.180.0.12"]));
        rig.wait_for_answer("172.30.0.11:80/TCP")?;
    }
    Ok(())
}

#[test]
fn events_can_be_switched_off() -> Result<()> {
    let Some((mut rig, server)) = cluster()? else { return Ok(()) };
    wait_for_event(&rig, &server, "Starting")?;
    let starts = |rig: &Rig| rig.log().matches("in step for the first time").count();
    rig.wait("both families in step", LIMIT, |rig| starts(rig) >= 2)?;
    rig.kill()?;
    let writes = || server.requests().iter().filter(|request| request.is_write()).count();
    let before = writes();
    rig.settings = Some(json!({
        "apiVersion": "proxyd.io/v1alpha1", "kind": "ProxydConfiguration",
        "events": {"enabled": false},
    }));
    crate::cluster::start(&mut rig, &server)?;
    // With events, a repair would be one.
    rig.wait("a second start", LIMIT, |rig| starts(rig) >= 4)?;
    damage(&rig)?;
    rig.answer(WEB)?;
    ensure!(writes() == before, "{:#?}", server.objects("events"));
    Ok(())
}
