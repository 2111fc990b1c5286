//! What the program costs on a node of a large cluster: `proxyd` in mode nftables, in a network
//! namespace of its own, with a pretended API server on loopback.
//!
//! ```sh
//! cargo build --release -p proxyd -p benches
//! target/release/program [SERVICES [ENDPOINTS]]
//! ```
//!
//! The server runs in this process, so its work is in the times but not in the program's
//! processor time and memory. A change is in effect when the kernel announces the end of its
//! transaction.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use benches::announced::Announcements;
use serde_json::{Value, json};
use testbed::apiserver::ApiServer;
use testbed::netns::Netns;
use testbed::world::{Families, NODE_NAME};
use testbed::{builders, scale};

/// Changes of one series.
const CHANGES: usize = 2_000;
/// How often a slice is rewritten that stays the same.
const REWRITES: usize = 100;
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the program is watched while nothing happens.
const IDLE: Duration = Duration::from_secs(20);
/// What the program says once a family is in step.
const IN_STEP: &str = "in step for the first time";

fn main() -> anyhow::Result<()> {
    let arguments = std::env::args().skip(1);
    let mut numbers = arguments
        .map(|text| text.parse::<usize>().with_context(|| format!("not a number: {text}")));
    let services = numbers.next().unwrap_or(Ok(10_000))?;
    let endpoints = numbers.next().unwrap_or(Ok(10))?;
    ensure!(services > 0 && endpoints > 0, "at least one Service with one endpoint");
    say(&format!("{services} Services x {endpoints} endpoints"))?;
    let cluster = Cluster::new(services, endpoints)?;
    let mut heard = cluster.netns.run(Announcements::listen)?;
    for what in ["first start", "restart, rules in place"] {
        let start = Instant::now();
        let program = Program::start(&cluster)?;
        say(&format!("{what}: in step after {:?}", start.elapsed()))?;
        program.memory()?;
    }
    let program = Program::start(&cluster)?;
    idle(&program)?;
    // What was announced so far is of no interest.
    heard.take()?;
    changes(&cluster, &program, &mut heard)?;
    rewrites(&cluster, &program, &mut heard)?;
    program.memory()
}

// === measurements ===

/// How often the program wakes up while nothing happens, by its threads' context switches.
fn idle(program: &Program) -> anyhow::Result<()> {
    program.settle()?;
    let (before, start) = (program.switches()?, program.processor_time()?);
    testbed::wait::pause(IDLE);
    // Threads that have ended meanwhile are left out; new ones count from their beginning.
    let after = program.switches()?.into_iter();
    let count: u64 =
        after.map(|(thread, count)| count - before.get(&thread).copied().unwrap_or_default()).sum();
    let used = program.processor_time()?.saturating_sub(start);
    say(&format!("idle for {IDLE:?}: {count} wake-ups, {used:?} of processor time"))
}

/// One endpoint after the other is replaced, each of another Service.
fn changes(cluster: &Cluster, program: &Program, heard: &mut Announcements) -> anyhow::Result<()> {
    let mut times = Vec::with_capacity(CHANGES);
    let used = program.processor_time()?;
    for change in 0..CHANGES {
        // A large step, so that neighbours in the tables are not neighbours in time.
        let mut slice = cluster.slice(change * 37 % cluster.services);
        let pod = spare_pod(change);
        slice["endpoints"][0]["addresses"][0] = pod.to_string().into();
        let sent = Instant::now();
        cluster.server.apply(slice);
        heard.until(&pod.octets(), PATIENCE).context("the change does not take effect")?;
        times.push(sent.elapsed());
    }
    let used = program.processor_time()?.saturating_sub(used);
    times.sort_unstable();
    let at = |percent: usize| times.get(times.len() * percent / 100).copied().unwrap_or_default();
    let most = times.last().copied().unwrap_or_default();
    say(&format!(
        "endpoint replaced: p50 {:?}, p99 {:?}, most {most:?}; {:?} of processor time each",
        at(50),
        at(99),
        used / u32::try_from(CHANGES)?,
    ))
}

/// One slice is written again and again with nothing new but its metadata.
fn rewrites(cluster: &Cluster, program: &Program, heard: &mut Announcements) -> anyhow::Result<()> {
    let with_pod = |number: usize| {
        let (mut slice, pod) = (cluster.slice(0), spare_pod(CHANGES + number));
        slice["endpoints"][0]["addresses"][0] = pod.to_string().into();
        (slice, pod.octets())
    };
    let (mut slice, pod) = with_pod(0);
    cluster.server.apply(slice.clone());
    heard.until(&pod, PATIENCE)?;
    let used = program.processor_time()?;
    for rewrite in 0..REWRITES {
        let metadata = &mut slice["metadata"];
        let time = format!("2026-01-01T00:{:02}:{:02}Z", rewrite / 60, rewrite % 60);
        metadata["managedFields"][0]["time"] = time.as_str().into();
        metadata["annotations"]["endpoints.kubernetes.io/last-change-trigger-time"] = time.into();
        metadata["generation"] = (4 + rewrite).into();
        cluster.server.apply(slice.clone());
    }
    // The server tells of changes in their order: once this one is in effect, all were looked at.
    let (slice, pod) = with_pod(1);
    cluster.server.apply(slice);
    let announced = heard.until(&pod, PATIENCE)?;
    let writes = announced.transactions - 1;
    let used = program.processor_time()?.saturating_sub(used);
    say(&format!("{REWRITES} rewrites of metadata: {writes} kernel writes, {used:?} in all"))
}

// === the cluster ===

struct Cluster {
    server: ApiServer,
    netns: Netns,
    services: usize,
    slices: Vec<Value>,
    folder: tempfile::TempDir,
}

impl Cluster {
    fn new(services: usize, endpoints: usize) -> anyhow::Result<Self> {
        let netns = Netns::with_loopback().context("root is needed for network namespaces")?;
        let server = netns.run(ApiServer::start)?;
        for object in builders::cluster(Families::Ipv4) {
            server.apply(object);
        }
        let mut slices = Vec::with_capacity(services);
        for mut object in scale::manifests(services, endpoints) {
            complete(&mut object);
            if object["kind"] == "EndpointSlice" {
                slices.push(object.clone());
            }
            server.apply(object);
        }
        let folder = tempfile::tempdir()?;
        let mut config = builders::configuration("nftables", Families::Ipv4);
        config["clusterCIDR"] = "10.0.0.0/8".into();
        fs::write(folder.path().join("config.json"), config.to_string())?;
        Ok(Self { server, netns, services, slices, folder })
    }

    fn slice(&self, number: usize) -> Value {
        self.slices.get(number).cloned().unwrap_or_default()
    }
}

/// A pod that no Service has by itself.
fn spare_pod(number: usize) -> Ipv4Addr {
    const FIRST: Ipv4Addr = Ipv4Addr::new(10, 200, 1, 1);
    Ipv4Addr::from(u32::from(FIRST) + u32::try_from(number).unwrap_or(u32::MAX) % (1 << 20))
}

/// Adds what objects of a real cluster carry besides their meaning, which has to be read past.
fn complete(object: &mut Value) {
    let name = object["metadata"]["name"].clone();
    let metadata = &mut object["metadata"];
    metadata["uid"] = "5f0c7e3c-6f5e-4c5d-9d41-1f6c3a0f6a1b".into();
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    metadata["generation"] = 3.into();
    metadata["managedFields"] = json!([{
        "manager": "kube-controller-manager", "operation": "Update", "fieldsType": "FieldsV1",
        "apiVersion": "v1", "time": "2026-01-01T00:00:00Z",
        "fieldsV1": {
            "f:addressType": {}, "f:endpoints": {}, "f:ports": {},
            "f:metadata": {
                "f:annotations": {".": {}, "f:endpoints.kubernetes.io/last-change-trigger-time": {}},
                "f:generateName": {}, "f:labels": {".": {}, "f:kubernetes.io/service-name": {}},
            },
        },
    }]);
    for endpoint in object["endpoints"].as_array_mut().into_iter().flatten() {
        endpoint["targetRef"] = json!({
            "kind": "Pod", "namespace": "default", "name": format!("{}-7d4b9c6f5-x2k8p", name),
            "uid": "0d1f6f0e-52c5-4f0c-8a55-d2e1f3b7c9a0",
        });
    }
}

// === the program ===

struct Program {
    child: Child,
}

impl Program {
    /// Starts the program and waits until every family is in step.
    fn start(cluster: &Cluster) -> anyhow::Result<Self> {
        let path = std::env::current_exe()?.with_file_name("proxyd");
        let mut command = Command::new(&path);
        command.args(["--hostname-override", NODE_NAME, "--master", &cluster.server.url()]);
        command.arg("--config").arg(cluster.folder.path().join("config.json"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = cluster.netns.spawn(&mut command);
        let mut child = child.with_context(|| format!("build it first: {}", path.display()))?;
        let said = child.stderr.take().context("standard error was piped")?;
        let program = Self { child };
        let (sender, lines) = mpsc::channel();
        // Reads to the end, so that the program can always write.
        thread::spawn(move || {
            for line in BufReader::new(said).lines().map_while(Result::ok) {
                // Nobody listens any more once the program is in step.
                let _gone = sender.send(line);
            }
        });
        let mut families = 1 + usize::from(fs::exists("/proc/net/if_inet6")?);
        let mut log = String::new();
        while families > 0 {
            let line = lines.recv_timeout(PATIENCE);
            let line = line.with_context(|| format!("the program is not in step:\n{log}"))?;
            families -= usize::from(line.contains(IN_STEP));
            log.push_str(&line);
            log.push('\n');
        }
        Ok(program)
    }

    fn path(&self, file: &str) -> String {
        format!("/proc/{}/{file}", self.child.id())
    }

    /// Says what the program occupies, and ever occupied.
    fn memory(&self) -> anyhow::Result<()> {
        let status = fs::read_to_string(self.path("status"))?;
        let mib = |name: &str| -> anyhow::Result<f64> {
            let kib = field(&status, name)?.trim_end_matches(" kB").parse::<u32>()?;
            Ok(f64::from(kib) / 1024.0)
        };
        let (now, most) = (mib("VmRSS")?, mib("VmHWM")?);
        say(&format!("  {now:.1} MiB resident, {most:.1} MiB at most"))
    }

    /// Processor time of all threads, those that have ended included; in steps of a tick.
    fn processor_time(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(self.path("stat"))?;
        let (_, fields) = stat.rsplit_once(") ").context("stat")?;
        // The 14th and 15th field of proc_pid_stat(5), the first two being cut off.
        let ticks = fields.split(' ').skip(11).take(2).map(str::parse::<u64>);
        let ticks: u64 = ticks.sum::<Result<_, _>>()?;
        let tick = Duration::from_secs(1) / u32::try_from(rustix::param::clock_ticks_per_second())?;
        Ok(tick * u32::try_from(ticks)?)
    }

    /// How often each thread of the program has gone to sleep or was made to.
    fn switches(&self) -> anyhow::Result<BTreeMap<OsString, u64>> {
        let mut switches = BTreeMap::new();
        for task in fs::read_dir(self.path("task"))? {
            let task = task?;
            let status = fs::read_to_string(task.path().join("status"))?;
            let mut count = 0;
            for name in ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"] {
                count += field(&status, name)?.parse::<u64>()?;
            }
            switches.insert(task.file_name(), count);
        }
        Ok(switches)
    }

    /// Waits until the program has nothing to do.
    fn settle(&self) -> anyhow::Result<()> {
        let limit = Instant::now() + PATIENCE;
        let mut before = self.processor_time()?;
        loop {
            testbed::wait::pause(Duration::from_secs(2));
            let now = self.processor_time()?;
            if now == before {
                return Ok(());
            }
            ensure!(Instant::now() < limit, "the program is never idle");
            before = now;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended by itself, which the measurement has noticed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A field of a status file of proc(5).
fn field<'s>(status: &'s str, name: &str) -> anyhow::Result<&'s str> {
    let mut lines = status.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Ok(value.with_context(|| format!("no {name}"))?.trim())
}

fn say(line: &str) -> anyhow::Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
