//! From event to committed, through the driver and for both families, as in the program.
//!
//! ```sh
//! cargo run --release -p benches --bin latency -- [SERVICES ...]
//! ```
//!
//! Another thread sends one changed EndpointSlice and waits for [`DriverEvent::Synced`]; what is
//! measured is the time between the two, channel and wake-up included.

use std::io::Write as _;
use std::sync::mpsc as std_mpsc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use benches::cluster::{Cluster, applied};
use benches::rig::{self, new_namespace};
use proxy_core::address::IpFamily;
use proxy_core::driver::{Driver, DriverEvent, DriverOptions};
use proxy_core::event::{Object, SourceEvent};
use proxy_core::store::Store;
use proxy_core::sync::TableSync;
use tokio::sync::{mpsc, watch};

/// Changes of each kind.
const CHANGES: usize = 2_000;
/// A table that is not in step after this time never will be.
const PATIENCE: Duration = Duration::from_secs(60);
/// As in the program.
const QUEUE: usize = 1024;

fn main() -> anyhow::Result<()> {
    let sizes: Vec<usize> = std::env::args()
        .skip(1)
        .map(|text| text.parse().with_context(|| format!("not a number: {text}")))
        .collect::<anyhow::Result<_>>()?;
    for services in if sizes.is_empty() { vec![1_000, 10_000] } else { sizes } {
        measure(Cluster::new(IpFamily::V4, services))?;
    }
    Ok(())
}

fn measure(cluster: Cluster) -> anyhow::Result<()> {
    let (source, queue) = mpsc::channel(QUEUE);
    let (stop, stopped) = watch::channel(false);
    let (synced, in_step) = std_mpsc::channel();
    let driver = std::thread::spawn(move || run_driver(cluster, queue, stopped, synced));
    let mut bench = Bench { cluster, source, in_step };
    let started = Instant::now();
    for event in cluster.lists() {
        bench.source.blocking_send(event)?;
    }
    let in_step = bench.wait(IpFamily::V4)?.saturating_duration_since(started);
    bench.wait(IpFamily::V6)?;
    say(&format!("{} Services, in step after {in_step:?}", cluster.services))?;
    bench.series("endpoint replaced", |cluster, number, turn| {
        cluster.pods(number).skip(1).chain([cluster.spare_pod(number, turn)]).collect()
    })?;
    bench.series("endpoint added or removed", |cluster, number, turn| {
        let more = (turn.is_multiple_of(2)).then(|| cluster.spare_pod(number, 0));
        cluster.pods(number).chain(more).collect()
    })?;
    stop.send_replace(true);
    drop(bench);
    driver.join().ok().context("the driver panicked")
}

fn run_driver(
    cluster: Cluster,
    queue: mpsc::Receiver<SourceEvent>,
    stop: watch::Receiver<bool>,
    synced: std_mpsc::Sender<(IpFamily, Instant)>,
) {
    new_namespace();
    let store = Store::new(cluster.options());
    let tables = IpFamily::ALL.into_iter().map(|family| {
        let table: Box<dyn TableSync> = Box::new(rig::table(&store, family));
        table
    });
    let tables = tables.collect();
    let (_addresses, watched) = watch::channel(Vec::new());
    let sink = move |event| {
        if let DriverEvent::Synced { family, .. } = event {
            // The other end is gone once all is measured.
            let _gone = synced.send((family, Instant::now()));
        }
    };
    rig::runtime().block_on(async {
        let driver = Driver::new(store, tables, DriverOptions::default(), sink);
        driver.run(queue, watched, stop).await;
    });
}

struct Bench {
    cluster: Cluster,
    source: mpsc::Sender<SourceEvent>,
    in_step: std_mpsc::Receiver<(IpFamily, Instant)>,
}

impl Bench {
    /// Waits until the table of this family is in step, and tells when that was.
    fn wait(&self, wanted: IpFamily) -> anyhow::Result<Instant> {
        loop {
            let synced = self.in_step.recv_timeout(PATIENCE);
            let (family, when) = synced.context("the table is not in step")?;
            if family == wanted {
                return Ok(when);
            }
        }
    }

    /// Changes one Service after the other. `pods` tells which it has, by number and turn.
    fn series(
        &mut self,
        what: &str,
        pods: impl Fn(&Cluster, usize, usize) -> Vec<usize>,
    ) -> anyhow::Result<()> {
        let mut times = Vec::with_capacity(CHANGES);
        for change in 0..CHANGES {
            // A large step, so that neighbours in the tables are not neighbours in time.
            let number = (change / 2) * 37 % self.cluster.services;
            // Turn 0 of the first round would repeat what is known.
            let turn = 2 * (change / 2 * 37 / self.cluster.services) + change % 2;
            let slice = self.cluster.slice(number, pods(&self.cluster, number, turn));
            let event = applied(Object::EndpointSlice(slice));
            let sent = Instant::now();
            self.source.blocking_send(event)?;
            times.push(self.wait(IpFamily::V4)?.saturating_duration_since(sent));
        }
        times.sort_unstable();
        let at = |percent: usize| times.get(times.len() * percent / 100).copied();
        say(&format!(
            "  {what}: p50 {:?}, p99 {:?}, most {:?}",
            at(50).unwrap_or_default(),
            at(99).unwrap_or_default(),
            times.last().copied().unwrap_or_default(),
        ))
    }
}

fn say(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
