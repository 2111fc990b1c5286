//! Many endpoints, many Services.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use node_sys::netlink::{Event, Listener, Protocol};
use serde_json::json;
use testbed::builders::{self, Port};
use testbed::scale;
use testbed::wait::{pause, wait_until};
use testbed::world::Families;

use crate::rig::{LIMIT, Rig, stop};

/// Endpoints of the one large Service, and of each of its slices.
const ENDPOINTS: usize = 3000;
const PER_SLICE: usize = 1000;
/// The large cluster.
const SERVICES: usize = 10_000;
const EACH: usize = 10;
/// Services in one file.
const PER_FILE: usize = 500;
/// How long a start with the large cluster may take, without optimisation and on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Memory that a process with the large cluster may keep.
const MEMORY_LIMIT: u64 = 200 << 20;

/// The multicast group that tells of changes of nf_tables (`NFNLGRP_NFTABLES`).
const NFTABLES: u32 = 7;

/// Address of endpoint `n` of the large Service: all are pods elsewhere.
fn pod(n: usize) -> String {
    format!("10.180.{}.{}", 1 + n / 250, 1 + n % 250)
}

fn slice(number: usize, pods: &[String]) -> serde_json::Value {
    let pods: Vec<_> = pods.iter().map(|pod| (pod.as_str(), "node-b")).collect();
    let mut slice = builders::endpoint_slice("big", &[Port::HTTP], &pods);
    slice["metadata"]["name"] = format!("big-{number}").into();
    slice
}

#[test]
fn three_thousand_endpoints_share_a_service_and_one_leaves() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    rig.manifests.apply(&builders::service("big", "172.30.0.10", &[Port::HTTP]))?;
    let pods: Vec<_> = (0..ENDPOINTS).map(pod).collect();
    for (number, pods) in pods.chunks(PER_SLICE).enumerate() {
        rig.manifests.apply(&slice(number, pods))?;
    }
    let took = rig.start()?;
    let endpoints = |rig: &Rig| rig.nft("list map ip proxyd service-endpoints");
    let count = endpoints(&rig)?.matches("172.30.0.10 .").count();
    ensure!(count == ENDPOINTS, "{count} endpoints");
    let traffic = rig.traffic("172.30.0.10:80/TCP")?;
    let gone = pods[1500].clone();
    let left: Vec<_> = pods[1000..2000].iter().filter(|pod| **pod != gone).cloned().collect();
    let start = Instant::now();
    rig.manifests.apply(&slice(1, &left))?;
    let needle = format!(": {gone} .");
    rig.wait("the endpoint is gone", LIMIT, |rig| {
        endpoints(rig).is_ok_and(|map| !map.contains(&needle))
    })?;
    let left_after = start.elapsed();
    ensure!(endpoints(&rig)?.matches("172.30.0.10 .").count() == ENDPOINTS - 1, "one less");
    crate::rig::go_on(&traffic, 200)?;
    let report = stop(traffic)?;
    ensure!(report.backends.len() > 100, "only {} took part", report.backends.len());
    eprintln!("{ENDPOINTS} endpoints: in step after {took:?}, one gone after {left_after:?}");
    Ok(())
}

/// Hears of every change of nf_tables in the node's namespace, whoever makes it.
struct Monitor {
    listener: Listener,
}

impl Monitor {
    fn start(rig: &Rig) -> Result<Self> {
        let listener = rig.world.node().run(|| Listener::open(Protocol::NETFILTER, &[NFTABLES]))?;
        Ok(Self { listener })
    }

    /// How many messages told of changes since the last look.
    fn heard(&mut self) -> Result<usize> {
        let mut count = 0;
        while let Some(event) = self.listener.next_event()? {
            match event {
                Event::Messages(messages) => count += messages.count(),
                Event::Overrun => bail!("more changes than could be followed"),
            }
        }
        Ok(count)
    }
}

/// A figure from `/proc/PID/status`, in bytes.
fn memory(rig: &mut Rig, name: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{}/status", rig.proxy()?.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")).context("no figure")?;
    Ok(kilobytes.parse::<u64>()? << 10)
}

/// Ticks of processor time that the process has used.
fn ticks(rig: &mut Rig) -> Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", rig.proxy()?.pid()))?;
    let (_, fields) = stat.rsplit_once(") ").context("stat")?;
    let fields: Vec<_> = fields.split(' ').collect();
    Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
}

#[test]
fn ten_thousand_services_start_soon_and_a_restart_writes_nothing() -> Result<()> {
    let Some(mut rig) = Rig::new(Families::Ipv4)? else { return Ok(()) };
    let objects = scale::manifests(SERVICES, EACH);
    for (number, chunk) in objects.chunks(2 * PER_FILE).enumerate() {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": chunk});
        rig.write(&format!("services-{number:03}.json"), &list.to_string())?;
    }
    drop(objects);
    let took = rig.start_within(START_LIMIT)?;
    for service in [0, SERVICES / 2, SERVICES - 1] {
        rig.answer(&format!("{}:80/TCP", scale::cluster_ip(service)))?;
    }
    let peak = memory(&mut rig, "VmHWM")?;
    rig.proxy()?.stop()?;

    let mut monitor = Monitor::start(&rig)?;
    let again = rig.start_within(START_LIMIT)?;
    let resident = memory(&mut rig, "VmRSS")?;
    let mib = |bytes: u64| bytes >> 20;
    eprintln!(
        "{SERVICES} x {EACH}: in step after {took:?}, after a restart {again:?}; \
         {} MiB resident, {} MiB at most",
        mib(resident),
        mib(peak)
    );
    let heard = monitor.heard()?;
    ensure!(heard == 0, "a restart without changes made {heard}; log:\n{}", rig.log());
    ensure!(resident < MEMORY_LIMIT, "{resident} bytes resident");

    // Findings are looked up once things are quiet.
    let settle = Instant::now();
    let mut before = ticks(&mut rig)?;
    while settle.elapsed() < LIMIT {
        pause(Duration::from_secs(1));
        let now = ticks(&mut rig)?;
        if now == before {
            break;
        }
        before = now;
    }
    pause(Duration::from_secs(2));
    let used = ticks(&mut rig)? - before;
    ensure!(used <= 1, "{used} ticks of processor time while nothing happened");

    // One change costs what it changes.
    let start = Instant::now();
    rig.service("new", "172.30.200.200", &["10.180.0.99"])?;
    let mut heard = 0;
    wait_until(LIMIT, "the change is written", || {
        heard += monitor.heard().unwrap_or_default();
        heard > 0
    })?;
    let changed = start.elapsed();
    rig.answer("172.30.200.200:80/TCP")?;
    heard += monitor.heard()?;
    eprintln!("one Service more: written after {changed:?}, {heard} notifications");
    ensure!(heard < 20, "{heard} notifications");
    Ok(())
}
