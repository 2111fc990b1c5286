//! The process of one contender: its node, its rules, its traffic.

use std::io::{BufRead as _, ErrorKind, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use node_sys::{host, process, sysctl};
use proxy_core::address::IpFamily;
use proxy_core::event::{Object, SourceEvent};
use proxy_core::store::Store;
use proxy_core::sync::TableSync;
use tokio::runtime::Runtime;

use super::cluster::Cluster;
use super::contender::Contender;
use super::protocol::{Activity, Answer, Programmed, Request, Sample};
use super::traffic::{self, Arrived};
use super::world::World;
use crate::config::KubeProxyConfiguration;
use crate::{run, tables};

const FAMILY: IpFamily = IpFamily::V4;

/// How a worker is told what it is.
#[derive(Debug, clap::Args)]
pub struct WorkerArgs {
    /// Name of the contender.
    contender: String,
    /// Number of Services.
    services: usize,
    /// Endpoints of each.
    endpoints: usize,
}

/// Does what standard input asks for, until its end.
pub fn work(arguments: &WorkerArgs) -> anyhow::Result<()> {
    let contender = Contender::named(&arguments.contender).context("no such contender")?;
    let cluster = Cluster { services: arguments.services, endpoints: arguments.endpoints };
    let mut node = None;
    for line in std::io::stdin().lock().lines() {
        let request: Request = serde_json::from_str(&line?)?;
        let answer = answer(&mut node, contender, cluster, request)
            .unwrap_or_else(|error| Answer::Failed(format!("{error:#}")));
        match writeln!(std::io::stdout(), "{}", serde_json::to_string(&answer)?) {
            // Whoever asked has ended meanwhile.
            Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
            written => written?,
        }
    }
    Ok(())
}

fn answer(
    node: &mut Option<Node>,
    contender: Contender,
    cluster: Cluster,
    request: Request,
) -> anyhow::Result<Answer> {
    if request == Request::Prepare {
        *node = Some(Node::prepare(contender, cluster)?);
        return Ok(Answer::Prepared);
    }
    let node = node.as_mut().context("asked before it was prepared")?;
    match request {
        Request::Prepare | Request::Program => node.program().map(Answer::Programmed),
        Request::Slice { activity, time } => node.slice(activity, time).map(Answer::Measured),
    }
}

/// A node in namespaces of its own. The calling thread is on it.
struct Node {
    world: World,
    cluster: Cluster,
    config: KubeProxyConfiguration,
    runtime: Runtime,
    arrived: Arc<Arrived>,
    programmed: Option<(Store, Box<dyn TableSync>)>,
    /// How many changes each Service has seen.
    changes: Vec<usize>,
    /// How many changes and connections there were.
    turns: (u64, u64),
}

impl Node {
    fn prepare(contender: Contender, cluster: Cluster) -> anyhow::Result<Self> {
        let world = World::enter()?;
        // Only now: taking other credentials would undo it.
        process::end_with_parent()?;
        let config = contender.config()?;
        tables::check(&config, &[FAMILY])?;
        tables::prepare(&config)?;
        Ok(Self {
            arrived: traffic::serve(&world).context("failed to start servers")?,
            world,
            cluster,
            config,
            runtime: run::runtime()?,
            programmed: None,
            changes: vec![0; cluster.services],
            turns: (0, 0),
        })
    }

    fn program(&mut self) -> anyhow::Result<Programmed> {
        let before = process::spent()?;
        let start = Instant::now();
        let mut store = Store::new(tables::options(&self.config)?);
        self.cluster.lists().for_each(|event| store.apply(event));
        let table = tables::table(&self.config, FAMILY, store.detector(FAMILY))?.table;
        let (store, table) = self.programmed.insert((store, table));
        sync(&self.runtime, store, table.as_mut())?;
        let time = start.elapsed();
        let after = process::spent()?;
        forget_closed_flows();
        Ok(Programmed {
            time,
            cpu: after.cpu.saturating_sub(before.cpu),
            resident_bytes: host::resident_memory_bytes()?,
            // What was the largest before is a program that made the namespaces.
            largest_child_bytes: Some(after.largest_child_bytes)
                .filter(|largest| *largest > before.largest_child_bytes)
                .unwrap_or_default(),
        })
    }

    fn slice(&mut self, activity: Activity, time: Duration) -> anyhow::Result<Sample> {
        let (cluster, turn, arrived) = (self.cluster, &mut self.turns.1, &self.arrived);
        match activity {
            Activity::Changes => self.change(time),
            Activity::Connections => {
                self.world.in_peer(|| traffic::connect(cluster, turn, time))?
            }
            Activity::Datagrams => {
                self.world.in_peer(|| traffic::send_datagrams(cluster, arrived, time))?
            }
            Activity::Stream => self.world.in_peer(|| traffic::stream(cluster, arrived, time))?,
        }
    }

    /// One change after the other, from the changed object to its rules in the kernel.
    fn change(&mut self, time: Duration) -> anyhow::Result<Sample> {
        let Some((store, table)) = &mut self.programmed else { bail!("nothing is programmed") };
        let mut nanos = Vec::new();
        let before = process::spent()?;
        let start = Instant::now();
        while nanos.is_empty() || start.elapsed() < time {
            let number = self.cluster.pick(self.turns.0);
            self.turns.0 += 1;
            self.changes[number] += 1;
            let slice = self.cluster.slice(number, self.changes[number]);
            let begin = Instant::now();
            store.apply(SourceEvent::Applied(Object::EndpointSlice(slice)));
            sync(&self.runtime, store, table.as_mut())?;
            nanos.push(u64::try_from(begin.elapsed().as_nanos()).unwrap_or(u64::MAX));
        }
        let time = start.elapsed();
        let cpu = process::spent()?.cpu.saturating_sub(before.cpu);
        let amount = u64::try_from(nanos.len()).unwrap_or(u64::MAX);
        Ok(Sample { nanos, time, cpu, amount })
    }
}

/// Brings the kernel in step with the store.
fn sync(runtime: &Runtime, store: &mut Store, table: &mut dyn TableSync) -> anyhow::Result<()> {
    let changes = store.take_changes(FAMILY);
    table.stage(changes.services, changes.node);
    let report = runtime.block_on(table.sync())?;
    if let Some((service, reason)) = report.left_out.first() {
        bail!("the kernel refuses {} Services; {service}: {reason}", report.left_out.len());
    }
    if report.changed_objects == 0 {
        bail!("a change has changed nothing in the kernel");
    }
    Ok(())
}

/// Shortens the memory of reset connections, which would fill the tracking table.
fn forget_closed_flows() {
    // The setting exists once something tracks connections; without it there is only more memory.
    let _kept = sysctl::write("net.netfilter.nf_conntrack_tcp_timeout_close", "1");
}
