//! The steps of the demo, each of which fails if something is not as promised.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use testbed::dial::Outcome;
use testbed::target::Target;
use testbed::traffic::TrafficReport;
use testbed::world::{NODE_V4, PATIENCE};
use testbed::{Place, Traffic, wait_until};

use crate::excerpt;
use crate::scene::Scene;
use crate::screen::Screen;

const WEB: &str = "172.30.0.10:80/TCP";
const WEB_V6: &str = "[fd00:172:30::10]:80/TCP";
const WEB_NODE_PORT: &str = "192.168.0.2:30080/TCP";
const DNS: &str = "172.30.0.53:53/UDP";
const EMPTY: &str = "172.30.0.99:80/TCP";

/// The endpoint that leaves, and its line in the manifest.
const LEAVING: &str = "10.180.0.12:8080";
const LEAVING_LINE: &str =
    "  - {addresses: [10.180.0.12], nodeName: node-a, conditions: {ready: true}}\n";

/// Pause between two connections of the traffic that runs during a step.
const PAUSE: Duration = Duration::from_millis(1);
/// Streams of traffic: one whose connection hangs must not hide what becomes of the next ones.
const STREAMS: usize = 4;
/// How long anything may take that is waited for.
const LIMIT: Duration = Duration::from_secs(5);
/// Connections in a row without the endpoint that left, after which it counts as gone: the chance
/// that it was only not chosen is one in ten million.
const GONE: usize = 40;

pub(crate) fn world(scene: &Scene, screen: &mut Screen) -> Result<()> {
    let addresses: Vec<_> =
        scene.world().node_addresses().iter().map(ToString::to_string).collect();
    screen.step(&format!(
        "a private world: a node ({}), its pods, and everything outside",
        addresses.join(", ")
    ))
}

pub(crate) fn start(scene: &mut Scene, screen: &mut Screen) -> Result<()> {
    let objects = scene.objects()?;
    let started = scene.start()?;
    screen.step(&format!(
        "proxyd started: {objects} objects of examples/manifests in effect {} after its start",
        ms(started.duration)
    ))?;
    screen.detail(format!("{} kernel objects written", started.written))
}

pub(crate) fn connections(scene: &Scene, screen: &mut Screen) -> Result<()> {
    let web: Target = WEB.parse()?;
    let counts = scene.spread(Place::LocalPod, web, 300)?;
    screen.step(&format!("300 connections from a pod to Service web, {WEB}"))?;
    screen.bars(&counts)?;
    ensure!(counts.len() == 3, "web has 3 endpoints, {} answered", counts.len());
    ensure!(counts.values().all(|count| *count >= 50), "unfair: {counts:?}");

    let answer = scene.answer(Place::Outside, WEB_NODE_PORT.parse()?)?;
    let (client, seen) = (answer.own.ip(), answer.seen.ip());
    ensure!(seen == NODE_V4, "not masqueraded: {answer:?}");
    screen.detail(format!(
        "node port   {client} → {WEB_NODE_PORT}: {} answered and saw {seen} (masqueraded)",
        answer.backend
    ))?;
    let answer = scene.answer(Place::LocalPod, DNS.parse()?)?;
    screen.detail(format!("UDP         {DNS}: {} answered", answer.backend))?;
    if scene.families().has_v6() {
        let answer = scene.answer(Place::LocalPod, WEB_V6.parse()?)?;
        screen.detail(format!("IPv6        {WEB_V6}: {} answered", answer.backend))?;
    }
    Ok(())
}

pub(crate) fn endpoint_leaves(scene: &Scene, screen: &mut Screen) -> Result<()> {
    let web: Target = WEB.parse()?;
    let traffic = traffic(scene, web)?;
    let start = Instant::now();
    scene.edit("web.yaml", LEAVING_LINE, "")?;
    let took = last_answer(scene, web, LEAVING.parse()?, start)?;
    let counts = scene.spread(Place::LocalPod, web, 200)?;
    let report = stop(traffic)?;
    scene.edit("web.yaml", "endpoints:\n", &format!("endpoints:\n{LEAVING_LINE}"))?;
    screen.step(&format!(
        "an endpoint leaves: no connection reaches it {} after the manifest was written",
        ms(took)
    ))?;
    screen.bars(&counts)?;
    screen.detail(failed(&report))?;
    ensure!(report.failures.is_empty(), "failed: {:?}", report.failures);
    ensure!(counts.len() == 2, "web has 2 endpoints, {} answered", counts.len());
    ensure!(took < Duration::from_secs(1), "it took {took:?}");
    Ok(())
}

/// How long it took until only other servers were reached.
fn last_answer(
    scene: &Scene,
    target: Target,
    server: SocketAddr,
    start: Instant,
) -> Result<Duration> {
    let mut since = Instant::now();
    let mut others = 0;
    wait_until(LIMIT, "the endpoint is out of use", || {
        while others < GONE && start.elapsed() < LIMIT {
            let outcome = scene.world().dial(Place::LocalPod, &target);
            if matches!(outcome, Outcome::Answered(answer) if answer.backend == server) {
                others = 0;
                continue;
            }
            if others == 0 {
                since = Instant::now();
            }
            others += 1;
        }
        others >= GONE
    })?;
    Ok(since - start)
}

pub(crate) fn no_endpoints(scene: &Scene, screen: &mut Screen) -> Result<()> {
    let target: Target = EMPTY.parse()?;
    let start = Instant::now();
    let outcome = scene.world().dial(Place::LocalPod, &target);
    let took = start.elapsed();
    ensure!(outcome == Outcome::Refused, "{EMPTY} was not refused: {outcome:?}");
    ensure!(took < PATIENCE, "it took {took:?}");
    screen.step(&format!("a Service without endpoints, {EMPTY}: refused in {}", ms(took)))
}

pub(crate) fn restart(scene: &mut Scene, screen: &mut Screen) -> Result<()> {
    let web: Target = WEB.parse()?;
    let traffic = traffic(scene, web)?;
    scene.kill()?;
    go_on(&traffic, 50)?;
    let started = scene.start()?;
    let counts = scene.spread(Place::LocalPod, web, 50)?;
    let report = stop(traffic)?;
    screen.step(&format!(
        "kill -9 and restart under traffic: in step {} after the new start",
        ms(started.duration)
    ))?;
    screen.detail(format!("{} kernel objects had to be written", started.written))?;
    screen.detail(failed(&report))?;
    ensure!(report.failures.is_empty(), "failed: {:?}", report.failures);
    ensure!(started.written == 0, "a restart without changes wrote {}", started.written);
    ensure!(!counts.is_empty(), "nobody answered");
    Ok(())
}

pub(crate) fn flush(scene: &Scene, screen: &mut Screen) -> Result<()> {
    let web: Target = WEB.parse()?;
    let traffic = traffic(scene, web)?;
    scene.nft("flush ruleset")?;
    // Several connections in a row that are answered: it works again.
    wait_until(LIMIT, "proxyd repairs", || scene.spread(Place::LocalPod, web, 20).is_ok())?;
    let report = stop(traffic)?;
    let outage = outage(&report);
    screen.step(&format!(
        "somebody runs `nft flush ruleset` under traffic: repaired after {}",
        ms(outage)
    ))?;
    screen.detail(format!("{}, all within this time", failed(&report)))?;
    ensure!(outage < Duration::from_secs(1), "it took {outage:?}");
    let log = scene.log();
    let line = log.lines().find(|line| line.contains("somebody else changed our rules"));
    let (_, by) = line.and_then(|line| line.rsplit_once(" by ")).context("not reported")?;
    let by = by.split('"').next().unwrap_or(by);
    screen.detail(format!("proxyd's log names the culprit: by {by}"))
}

pub(crate) fn rules(scene: &Scene, screen: &mut Screen) -> Result<()> {
    let table = scene.nft("list table ip proxyd")?;
    screen.step("what is in the kernel now, from `nft list table ip proxyd`:")?;
    let heads = ["map service-ips", "map service-endpoints", "chain services", "chain pick-4"];
    let lines = excerpt::blocks(&table, &heads);
    for head in heads {
        ensure!(lines.iter().any(|line| line.starts_with(head)), "{head} is missing");
    }
    screen.excerpt(&lines)
}

// === traffic during a step ===

/// Several streams of new connections, of which some are over already.
fn traffic(scene: &Scene, target: Target) -> Result<Vec<Traffic>> {
    let start = |_| Traffic::start(scene.world(), Place::LocalPod, target, PAUSE);
    let streams: Vec<_> = (0..STREAMS).map(start).collect();
    go_on(&streams, 20)?;
    Ok(streams)
}

/// Waits until each stream has made some more connections.
fn go_on(streams: &[Traffic], connections: usize) -> Result<()> {
    for stream in streams {
        let tried = stream.tried();
        wait_until(LIMIT, "traffic goes on", || stream.tried() >= tried + connections)?;
    }
    Ok(())
}

/// Ends the streams, which all began at about the same time.
fn stop(streams: Vec<Traffic>) -> Result<TrafficReport> {
    go_on(&streams, 20)?;
    let mut all = TrafficReport::default();
    for stream in streams {
        let report = stream.stop()?;
        all.tried += report.tried;
        all.failures.extend(report.failures);
    }
    all.failures.sort_by_key(|(began, _)| *began);
    Ok(all)
}

fn failed(report: &TrafficReport) -> String {
    format!("{} connections meanwhile, {} failed", report.tried, report.failures.len())
}

/// From the first connection that failed to the last one, and the pause after it.
fn outage(report: &TrafficReport) -> Duration {
    match (report.failures.first(), report.failures.last()) {
        (Some((first, _)), Some((last, _))) => last.saturating_sub(*first) + PAUSE,
        _ => Duration::ZERO,
    }
}

fn ms(duration: Duration) -> String {
    let ms = duration.as_secs_f64() * 1000.0;
    if ms < 10.0 { format!("{ms:.1} ms") } else { format!("{ms:.0} ms") }
}
