//! Death at any moment and a new start cost nothing.

use anyhow::{Result, ensure};
use testbed::Place;
use testbed::dial::{Outcome, ask, bind_datagram, connect};
use testbed::target::Target;
use testbed::world::{Families, PATIENCE};

use crate::rig::{Flavour, LIMIT, Rig, stop};

/// Services that change all the time.
const CHANGING: usize = 8;
/// Deaths.
const ROUNDS: usize = 5;

impl Rig {
    /// One change of a stream of them: endpoints come and go, Services too.
    fn change(&mut self, number: usize) -> Result<()> {
        let service = number % CHANGING;
        let name = format!("changing-{service}");
        let cluster_ip = format!("172.30.1.{service}");
        let pods: Vec<_> =
            (0..=number % 5).map(|pod| format!("10.180.0.{}", 50 + number % 100 + pod)).collect();
        let pods: Vec<_> = pods.iter().map(String::as_str).collect();
        if number % 7 == 6 && self.manifests.get(&format!("Service/default/{name}")).is_some() {
            return self.manifests.delete(&format!("Service/default/{name}"));
        }
        self.service(&name, &cluster_ip, &pods)
    }
}

#[test]
fn killed_amid_changes_and_started_again_costs_unchanged_services_nothing() -> Result<()> {
    for flavour in Flavour::ALL {
        let Some(connections) = killed_amid_changes(flavour)? else { return Ok(()) };
        eprintln!("{flavour:?}: {ROUNDS} deaths, 0 of {connections} connections failed");
    }
    Ok(())
}

/// Returns how many connections were made; none where there can be no world.
fn killed_amid_changes(flavour: Flavour) -> Result<Option<usize>> {
    let Some(mut rig) = Rig::of(flavour, Families::Ipv4)? else { return Ok(None) };
    rig.service("steady", "172.30.0.10", &["10.180.0.11", "10.180.0.12", "10.180.0.13"])?;
    rig.start()?;
    let traffic = rig.traffic("172.30.0.10:80/TCP")?;
    let target: Target = "172.30.0.10:80/TCP".parse()?;
    let origin = rig.world.origin(Place::LocalPod, None, target.ip());
    let (mut flow, first) =
        rig.world.at(Place::LocalPod, || connect(&origin, &target, PATIENCE))?;
    let mut number = 0;
    for round in 0..ROUNDS {
        for step in 0..30 {
            rig.change(number)?;
            number += 1;
            // Each round at another moment of reading and writing.
            if step == 10 + round {
                rig.kill()?;
            }
        }
        rig.launch()?;
    }
    rig.service("last", "172.30.2.1", &["10.180.0.99"])?;
    rig.manifests.delete("Service/default/changing-0")?;
    rig.wait_for_answer("172.30.2.1:80/TCP")?;
    rig.wait("changes are in effect", LIMIT, |rig| {
        rig.rules().is_ok_and(|rules| !rules.iter().any(|rule| rule.contains("172.30.1.0")))
    })?;
    let spoken = flow.speak(PATIENCE);
    let kept = matches!(&spoken, Outcome::Answered(answer) if answer.backend == first.backend);
    ensure!(kept, "the connection of the beginning: {spoken:?}, before {first:?}");
    let report = stop(traffic)?;
    ensure!(report.backends.len() == 3, "{report:?}");

    // What is there is what a start from nothing makes of the same objects.
    let rules = rig.rules()?;
    rig.proxy()?.stop()?;
    rig.flush()?;
    rig.start()?;
    let fresh = rig.rules()?;
    let standing = |words: &[String]| -> Vec<String> {
        words
            .iter()
            .filter(|word| word.contains("172.30.") || word.contains("10.180."))
            .cloned()
            .collect()
    };
    // Endpoints are numbered by what was installed before, so their order is history.
    ensure!(standing(&rules).len() == standing(&fresh).len(), "{rules:#?}\nfresh: {fresh:#?}");
    Ok(Some(report.tried))
}

#[test]
fn datagram_flows_are_kept_over_a_restart_and_forgotten_with_their_endpoint() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    let port = testbed::builders::Port { name: "dns", protocol: "UDP", port: 53, target: 8080 };
    let slice = |pods: &[&str]| {
        let pods: Vec<_> = pods.iter().map(|pod| (*pod, testbed::world::NODE_NAME)).collect();
        testbed::builders::endpoint_slice("dns", &[port], &pods)
    };
    rig.manifests.apply(&testbed::builders::service("dns", "172.30.0.53", &[port]))?;
    rig.manifests.apply(&slice(&["10.180.0.21", "10.180.0.22"]))?;
    rig.start()?;
    let target: Target = "172.30.0.53:53/UDP".parse()?;
    let origin = rig.world.origin(Place::LocalPod, None, target.ip());
    let socket = rig.world.at(Place::LocalPod, || bind_datagram(&origin, &target))?;
    let Outcome::Answered(first) = ask(&socket, PATIENCE) else { anyhow::bail!("{}", rig.log()) };
    rig.kill()?;
    rig.start()?;
    let again = ask(&socket, PATIENCE);
    ensure!(again == Outcome::Answered(first), "{again:?}, before {first:?}");

    // The endpoint leaves while no process looks.
    rig.kill()?;
    let gone = first.backend.ip().to_string();
    let other = if gone == "10.180.0.21" { "10.180.0.22" } else { "10.180.0.21" };
    rig.manifests.apply(&slice(&[other]))?;
    rig.start()?;
    rig.wait("the flow finds the endpoint that is left", LIMIT, |_| {
        matches!(ask(&socket, PATIENCE), Outcome::Answered(now) if now.backend != first.backend)
    })
}

#[test]
fn nothing_is_written_before_the_first_list_is_complete() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.service("web", "172.30.0.10", &["10.180.0.11"])?;
    rig.start()?;
    rig.kill()?;
    let rules = rig.nft("list ruleset")?;
    let folder = rig.manifests.folder();
    let aside = rig.manifests.beside("aside");
    std::fs::rename(&folder, &aside)?;
    let traffic = rig.traffic("172.30.0.10:80/TCP")?;
    rig.launch()?;
    rig.wait_for_log("there is no such folder; waiting")?;
    rig.wait("livez answers", LIMIT, |rig| {
        rig.get("192.168.0.2:10256", "/livez").is_ok_and(|livez| livez.status == 200)
    })?;
    crate::rig::go_on(&traffic, 100)?;
    ensure!(rig.nft("list ruleset")? == rules, "rules changed without a list");
    std::fs::rename(&aside, &folder)?;
    rig.service("new", "172.30.0.11", &["10.180.0.12"])?;
    rig.wait_for_answer("172.30.0.11:80/TCP")?;
    stop(traffic)?;
    Ok(())
}
