//! What every test here needs: a world, a folder of objects, and `proxyd` in the node's namespace.

use std::fs;
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use testbed::builders::{self, Port};
use testbed::dial::{Answer, Outcome};
use testbed::echo::Listen;
use testbed::http::{self, Response};
use testbed::manifests::Manifests;
use testbed::netns::namespaces_available;
use testbed::target::{Protocol, Target};
use testbed::traffic::TrafficReport;
use testbed::world::{Families, NODE_NAME};
use testbed::{Place, Proxyd, Traffic, World, wait_until};

/// How long anything may take that is waited for.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);
/// How long a repair may take.
pub(crate) const REPAIR_LIMIT: Duration = Duration::from_secs(1);
/// Pause between two connections of a stream.
pub(crate) const PAUSE: Duration = Duration::from_millis(2);

/// What proxyd says once a family is in step after its start.
const IN_STEP: &str = "in step for the first time";

/// How Services are programmed in a test that is the same for several modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flavour {
    Nftables,
    /// Mode iptables, in a variant of it: `nft` or `legacy`.
    Iptables(&'static str),
}

impl Flavour {
    pub(crate) const IPTABLES: [Self; 2] = [Self::Iptables("nft"), Self::Iptables("legacy")];
    pub(crate) const ALL: [Self; 3] =
        [Self::Nftables, Self::Iptables("nft"), Self::Iptables("legacy")];
}

/// A node and everything around it. The program goes first, then what it depends on.
pub(crate) struct Rig {
    pub(crate) proxy: Option<Proxyd>,
    pub(crate) manifests: Manifests,
    pub(crate) config: Value,
    /// The second document of the configuration file.
    pub(crate) settings: Option<Value>,
    pub(crate) flavour: Flavour,
    pub(crate) world: World,
}

impl Rig {
    /// A world with the objects of every cluster and servers on port 8080; none, and a word about
    /// it, where namespaces are not to be had.
    pub(crate) fn new(families: Families) -> Result<Option<Self>> {
        Self::of(Flavour::Nftables, families)
    }

    /// The same for another mode.
    pub(crate) fn of(flavour: Flavour, families: Families) -> Result<Option<Self>> {
        if !namespaces_available() {
            writeln!(io::stderr(), "skipped: network namespaces cannot be made here")?;
            return Ok(None);
        }
        let mut world = World::new(families)?;
        let listen = |protocol| Listen { protocol, address: None, port: Port::HTTP.target };
        world.serve(&[listen(Protocol::Tcp), listen(Protocol::Udp)])?;
        world.refuse_untranslated()?;
        let mut manifests = Manifests::new()?;
        for object in builders::cluster(families) {
            manifests.apply(&object)?;
        }
        let (mut config, mut settings) = (builders::configuration("nftables", families), None);
        if let Flavour::Iptables(variant) = flavour {
            config["mode"] = json!("iptables");
            // The least time between two syncs is 1s here: one repair would wait for another.
            config["iptables"] = json!({"minSyncPeriod": "10ms"});
            settings = Some(json!({
                "apiVersion": "proxyd.io/v1alpha1",
                "kind": "ProxydConfiguration",
                "iptables": {"variant": variant},
            }));
        }
        Ok(Some(Self { proxy: None, manifests, config, settings, flavour, world }))
    }

    // === objects ===

    /// A Service with port 80 and endpoints on port 8080 of these pods.
    pub(crate) fn service(&mut self, name: &str, cluster_ip: &str, pods: &[&str]) -> Result<()> {
        self.manifests.apply(&builders::service(name, cluster_ip, &[Port::HTTP]))?;
        self.endpoints(name, pods)
    }

    /// Replaces the endpoints of a Service.
    pub(crate) fn endpoints(&mut self, name: &str, pods: &[&str]) -> Result<()> {
        let pods: Vec<_> = pods.iter().map(|pod| (*pod, NODE_NAME)).collect();
        self.manifests.apply(&builders::endpoint_slice(name, &[Port::HTTP], &pods))
    }

    /// A file in the folder of manifests with this text, at one go.
    pub(crate) fn write(&self, name: &str, text: &str) -> Result<()> {
        let new = self.manifests.beside("new");
        fs::write(&new, text)?;
        Ok(fs::rename(new, self.manifests.folder().join(name))?)
    }

    // === the program ===

    /// `proxyd run` with the rig's configuration.
    pub(crate) fn command(&self) -> Result<Command> {
        let mut command = program();
        command.args(["run", "--hostname-override", NODE_NAME]);
        command.arg("--manifests").arg(self.manifests.folder());
        command.arg("--config").arg(self.write_config()?);
        Ok(command)
    }

    pub(crate) fn write_config(&self) -> Result<PathBuf> {
        let path = self.manifests.beside("config.yaml");
        let new = self.manifests.beside("config.new");
        fs::write(&new, self.config_text()?)?;
        fs::rename(new, &path)?;
        Ok(path)
    }

    /// The configuration file: JSON, which is YAML.
    pub(crate) fn config_text(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(&self.config)?;
        if let Some(settings) = &self.settings {
            text.push_str("\n---\n");
            text.push_str(&serde_json::to_string_pretty(settings)?);
        }
        Ok(text)
    }

    /// Starts the program without waiting for anything.
    pub(crate) fn launch(&mut self) -> Result<()> {
        let mut command = self.command()?;
        self.launch_as(&mut command)
    }

    /// Starts this command without waiting for anything.
    pub(crate) fn launch_as(&mut self, command: &mut Command) -> Result<()> {
        let log = self.manifests.beside("log");
        self.proxy = Some(Proxyd::start(self.world.node(), command, &log)?);
        Ok(())
    }

    /// Starts the program and waits until it is in step; returns how long that took.
    pub(crate) fn start(&mut self) -> Result<Duration> {
        self.start_within(LIMIT)
    }

    pub(crate) fn start_within(&mut self, limit: Duration) -> Result<Duration> {
        let mut command = self.command()?;
        self.start_as_within(&mut command, limit)
    }

    /// Starts this command and waits until it is in step.
    pub(crate) fn start_as(&mut self, command: &mut Command) -> Result<Duration> {
        self.start_as_within(command, LIMIT)
    }

    fn start_as_within(&mut self, command: &mut Command, limit: Duration) -> Result<Duration> {
        let start = Instant::now();
        let before = self.log().matches(IN_STEP).count();
        self.launch_as(command)?;
        // The program serves both families wherever the kernel has both.
        let tables = 1 + usize::from(std::path::Path::new("/proc/net/if_inet6").exists());
        self.wait("in step", limit, |rig| rig.log().matches(IN_STEP).count() >= before + tables)?;
        Ok(start.elapsed())
    }

    pub(crate) fn proxy(&mut self) -> Result<&mut Proxyd> {
        self.proxy.as_mut().context("the program was not started")
    }

    /// `kill -9`.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.proxy()?.kill()
    }

    /// Everything that all runs of the program have said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.manifests.beside("log")).unwrap_or_default()
    }

    /// Waits for a condition; the error shows the log.
    pub(crate) fn wait(
        &self,
        what: &str,
        limit: Duration,
        condition: impl Fn(&Self) -> bool,
    ) -> Result<()> {
        let waited = wait_until(limit, what, || condition(self));
        waited.with_context(|| format!("log:\n{}", self.log()))
    }

    pub(crate) fn wait_for_log(&self, text: &str) -> Result<()> {
        self.wait(&format!("{text:?} in the log"), LIMIT, |rig| rig.log().contains(text))
    }

    /// Runs a command of the program to its end.
    pub(crate) fn run(&self, command: &mut Command) -> Result<Output> {
        Ok(self.world.node().run(|| command.output())?)
    }

    // === the kernel ===

    /// Output of `nft` in the node's namespace.
    pub(crate) fn nft(&self, arguments: &str) -> Result<String> {
        let mut nft = Command::new("nft");
        let output = self.world.node().output(nft.args(arguments.split(' ')))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Output of a program of iptables, such as `iptables`, in the node's namespace.
    pub(crate) fn iptables(&self, command: &str) -> Result<String> {
        let Flavour::Iptables(variant) = self.flavour else { bail!("not mode iptables") };
        let (program, arguments) = command.split_once(' ').context("a program's arguments")?;
        let program = match program.split_once('-') {
            Some((base, action)) => format!("{base}-{variant}-{action}"),
            None => format!("{program}-{variant}"),
        };
        let mut command = Command::new(program);
        let output = self.world.node().output(command.args(arguments.split(' ')))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What is in the table, as words in an order that does not depend on the kernel's hashing.
    pub(crate) fn rules(&self) -> Result<Vec<String>> {
        if self.flavour == Flavour::Nftables {
            return Ok(words(&self.nft("--stateless list ruleset")?));
        }
        let mut rules = Vec::new();
        for program in ["iptables-save", "ip6tables-save"] {
            for table in ["filter", "nat"] {
                let saved = self.iptables(&format!("{program} -t {table}"))?;
                let ours = saved.lines().filter(|line| line.contains("KUBE-"));
                let without_counters = |line: &str| line.split(" [").next().map(str::to_owned);
                rules.extend(ours.filter_map(without_counters));
            }
        }
        Ok(rules)
    }

    /// Somebody else removes all rules.
    pub(crate) fn flush(&self) -> Result<()> {
        if self.flavour == Flavour::Nftables {
            return self.nft("flush ruleset").map(drop);
        }
        for program in ["iptables", "ip6tables"] {
            for table in ["filter", "nat"] {
                self.iptables(&format!("{program} -t {table} -F"))?;
                // Refused where a repair has been quicker.
                let _chains_in_use = self.iptables(&format!("{program} -t {table} -X"));
            }
        }
        Ok(())
    }

    /// Waits until the rules are as they were; returns how long that took.
    pub(crate) fn wait_for_rules(&self, rules: &[String]) -> Result<Duration> {
        let start = Instant::now();
        self.wait("the rules are as before", LIMIT, |rig| {
            rig.rules().is_ok_and(|now| now == rules)
        })?;
        Ok(start.elapsed())
    }

    // === packets ===

    pub(crate) fn dial(&self, place: Place, target: &str) -> Result<Outcome> {
        let target: Target = target.parse()?;
        Ok(self.world.dial(place, &target))
    }

    /// One try from a pod that has to be answered.
    pub(crate) fn answer(&self, target: &str) -> Result<Answer> {
        match self.dial(Place::LocalPod, target)? {
            Outcome::Answered(answer) => Ok(answer),
            outcome => anyhow::bail!("{target}: {outcome:?}; log:\n{}", self.log()),
        }
    }

    /// Waits until a try from a place comes out like this.
    pub(crate) fn wait_for(
        &self,
        place: Place,
        target: &str,
        limit: Duration,
        good: impl Fn(&Outcome) -> bool,
    ) -> Result<Duration> {
        let target: Target = target.parse()?;
        let start = Instant::now();
        self.wait(&format!("{target} from {place:?}"), limit, |rig| {
            good(&rig.world.dial(place, &target))
        })?;
        Ok(start.elapsed())
    }

    pub(crate) fn wait_for_answer(&self, target: &str) -> Result<Duration> {
        self.wait_for(Place::LocalPod, target, LIMIT, is_answer)
    }

    /// A stream of connections from a pod, of which some were made already.
    pub(crate) fn traffic(&self, target: &str) -> Result<Traffic> {
        let traffic = Traffic::start(&self.world, Place::LocalPod, target.parse()?, PAUSE);
        go_on(&traffic, 5)?;
        Ok(traffic)
    }

    /// Asks the node by HTTP, from the node itself.
    pub(crate) fn get(&self, address: &str, path: &str) -> Result<Response> {
        let address: SocketAddr = address.parse()?;
        let asked = || http::get(&testbed::dial::Origin::default(), address, path, LIMIT);
        Ok(self.world.at(Place::Node, asked)?)
    }
}

/// The program under test.
pub(crate) fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_proxyd"))
}

pub(crate) fn is_answer(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Answered(_))
}

/// Waits until a stream has made some more connections.
pub(crate) fn go_on(traffic: &Traffic, connections: usize) -> Result<()> {
    let tried = traffic.tried();
    wait_until(LIMIT, "traffic goes on", || traffic.tried() >= tried + connections)
}

/// Ends a stream, of which every connection must have been answered.
pub(crate) fn stop(traffic: Traffic) -> Result<TrafficReport> {
    go_on(&traffic, 5)?;
    let report = traffic.stop()?;
    ensure!(report.failures.is_empty(), "of {} connections failed: {report:?}", report.tried);
    Ok(report)
}

/// The words of a listing, sorted.
pub(crate) fn words(text: &str) -> Vec<String> {
    let parts = text.split(['\n', ',', '{', '}']).map(str::trim);
    let mut words: Vec<_> = parts.filter(|part| !part.is_empty()).map(str::to_owned).collect();
    words.sort_unstable();
    words
}
