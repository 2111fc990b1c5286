//! What mode ipvs costs, beside the same objects written one request at a time.
//!
//! ```sh
//! cargo run --release -p benches --bin ipvs -- [SERVICES]
//! ```
//!
//! Needs a kernel with IPVS, and privilege to make network namespaces. One request at a time is
//! how kube-proxy writes virtual and real servers and addresses; it reads each of them back before,
//! and starts a process for each element of a set, neither of which is counted here. Its sync of
//! one change reads everything back, as a full comparison does.

use std::io::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use backend_ipvs::{IpvsConfig, IpvsTable, TableConfig, find_tool};
use benches::cluster::{Cluster, applied};
use benches::rig::{new_namespace, runtime};
use node_sys::process;
use proxy_core::address::IpFamily;
use proxy_core::event::Object;
use proxy_core::rules::{RuleDelta, RuleSet, reconcile};
use proxy_core::scheduler::Scheduler;
use proxy_core::store::Store;
use proxy_core::sync::{Synchronizer, TableSync as _};
use proxy_core::table::ServiceTable as _;
use tokio::runtime::Runtime;

/// Endpoints that are replaced one after the other.
const CHANGES: usize = 200;

fn main() -> anyhow::Result<()> {
    let services = match std::env::args().nth(1) {
        Some(text) => text.parse().with_context(|| format!("not a number: {text}"))?,
        None => 2_000,
    };
    let cluster = Cluster::new(IpFamily::V4, services);
    let mut store = Store::new(cluster.options());
    cluster.lists().for_each(|event| store.apply(event));
    let runtime = runtime();
    one_by_one(&cluster, &mut store, &runtime)?;
    changes(cluster, &runtime)
}

fn config(store: &Store) -> TableConfig {
    TableConfig {
        family: IpFamily::V4,
        detector: store.detector(IpFamily::V4),
        masquerade_bit: 14,
        scheduler: Scheduler::default(),
    }
}

fn table(store: &Store) -> anyhow::Result<IpvsTable> {
    let config = IpvsConfig {
        table: config(store),
        exclude: Vec::new(),
        drain_limit: IpvsConfig::DRAIN_LIMIT,
    };
    Ok(IpvsTable::open(&config, find_tool(IpFamily::V4)?)?)
}

fn one_by_one(cluster: &Cluster, store: &mut Store, runtime: &Runtime) -> anyhow::Result<()> {
    new_namespace();
    let _everything = store.take_changes(IpFamily::V4);
    let node = store.node_facts(IpFamily::V4);
    let services = store.services(IpFamily::V4).map(AsRef::as_ref);
    let wanted = backend_ipvs::compile(&config(store), &node, services);
    let mut table = table(store)?;
    let installed = runtime.block_on(table.observe())?;
    let delta = reconcile(&wanted, &installed);
    let started = Instant::now();
    for change in delta.changes {
        runtime.block_on(table.commit(&RuleDelta { changes: vec![change] }))?;
    }
    say(&format!(
        "{} Services: {} objects one request at a time {:?}",
        cluster.services,
        wanted.len(),
        started.elapsed()
    ))?;
    let left = reconcile(&wanted, &runtime.block_on(table.observe())?);
    ensure!(left.is_empty(), "{} objects are not as written", left.len());
    ensure!(!reconcile(&RuleSet::new(), &wanted).is_empty(), "there is nothing to write");
    Ok(())
}

fn changes(cluster: Cluster, runtime: &Runtime) -> anyhow::Result<()> {
    new_namespace();
    let mut store = Store::new(cluster.options());
    cluster.lists().for_each(|event| store.apply(event));
    let mut stage = |table: &mut Synchronizer<IpvsTable>, event| {
        if let Some(event) = event {
            store.apply(event);
        }
        let changes = store.take_changes(IpFamily::V4);
        table.stage(changes.services, changes.node);
    };
    let mut synchronizer = Synchronizer::new(table(&Store::new(cluster.options()))?);
    stage(&mut synchronizer, None);
    let started = Instant::now();
    let report = runtime.block_on(synchronizer.sync())?;
    say(&format!("  many at a time: {} objects {:?}", report.changed_objects, started.elapsed()))?;
    let (before, started) = (cpu()?, Instant::now());
    synchronizer.distrust();
    let report = runtime.block_on(synchronizer.sync())?;
    ensure!(report.changed_objects == 0, "a comparison wrote {} objects", report.changed_objects);
    let (took, used) = (started.elapsed(), cpu()?.saturating_sub(before));
    say(&format!("  comparison of everything: {took:?}, {used:?} of CPU"))?;
    let (before, started) = (cpu()?, Instant::now());
    for turn in 0..CHANGES {
        let number = turn * 37 % cluster.services;
        let pods = cluster.pods(number).skip(1).chain([cluster.spare_pod(number, turn)]);
        let slice = cluster.slice(number, pods);
        stage(&mut synchronizer, Some(applied(Object::EndpointSlice(slice))));
        let report = runtime.block_on(synchronizer.sync())?;
        ensure!(!report.full && report.changed_objects > 0, "an endpoint was not replaced");
    }
    let changes = u32::try_from(CHANGES)?;
    let (took, used) = (started.elapsed() / changes, cpu()?.saturating_sub(before) / changes);
    say(&format!("  one endpoint replaced: {took:?}, {used:?} of CPU"))
}

/// CPU time of this process so far.
fn cpu() -> anyhow::Result<Duration> {
    Ok(process::usage()?.cpu)
}

fn say(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
