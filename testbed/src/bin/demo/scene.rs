//! The world of the demo, the program in it and its copy of the examples.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;
use testbed::dial::{Answer, Outcome};
use testbed::echo::Listen;
use testbed::proxy::binary;
use testbed::target::{Protocol, Target};
use testbed::world::{Families, NODE_NAME};
use testbed::{Place, Proxyd, World, wait_until};

/// What proxyd says once a family is in step after its start.
const IN_STEP: &str = "in step for the first time";
/// How long anything may take that is waited for.
const LIMIT: Duration = Duration::from_secs(5);

/// World, program and objects. The program goes first, then what it depends on.
#[derive(Debug)]
pub(crate) struct Scene {
    proxy: Option<Proxyd>,
    world: World,
    families: Families,
    folder: TempDir,
}

/// What a process did until it was in step.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) duration: Duration,
    /// Kernel objects written, over all families.
    pub(crate) written: u64,
}

impl Scene {
    pub(crate) fn new() -> Result<Self> {
        let has_ipv6 = Path::new("/proc/net/if_inet6").exists();
        let families = if has_ipv6 { Families::Dual } else { Families::Ipv4 };
        let mut world = World::new(families)?;
        // The targets of the examples. Nobody listens on the ports of the Services themselves.
        let listen = |protocol, port| Listen { protocol, address: None, port };
        world.serve(&[
            listen(Protocol::Tcp, 8080),
            listen(Protocol::Tcp, 5353),
            listen(Protocol::Udp, 5353),
        ])?;
        world.refuse_untranslated()?;
        let folder = tempfile::Builder::new().prefix("proxyd-demo-").tempdir()?;
        let scene = Self { proxy: None, world, families, folder };
        scene.copy_examples()?;
        Ok(scene)
    }

    fn copy_examples(&self) -> Result<()> {
        let examples = examples()?;
        fs::copy(examples.join("config.yaml"), self.path("config.yaml"))?;
        fs::create_dir(self.path("manifests"))?;
        for file in fs::read_dir(examples.join("manifests"))? {
            let file = file?;
            fs::copy(file.path(), self.path("manifests").join(file.file_name()))?;
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn world(&self) -> &World {
        &self.world
    }

    pub(crate) fn families(&self) -> Families {
        self.families
    }

    /// How many objects the manifests hold.
    pub(crate) fn objects(&self) -> Result<usize> {
        let mut count = 0;
        for file in fs::read_dir(self.path("manifests"))? {
            let text = fs::read_to_string(file?.path())?;
            count += text.lines().filter(|line| line.starts_with("kind:")).count();
        }
        Ok(count)
    }

    /// Replaces a part of a manifest, at one go.
    pub(crate) fn edit(&self, manifest: &str, from: &str, to: &str) -> Result<()> {
        let path = self.path("manifests").join(manifest);
        let text = fs::read_to_string(&path)?;
        ensure!(text.contains(from), "{manifest} does not contain {from:?}");
        let new = self.path("new");
        fs::write(&new, text.replacen(from, to, 1))?;
        Ok(fs::rename(new, path)?)
    }

    /// Starts proxyd and waits until what it programmed is in step.
    pub(crate) fn start(&mut self) -> Result<Started> {
        let mut command = Command::new(binary()?);
        command.args(["run", "--hostname-override", NODE_NAME]);
        command.arg("--manifests").arg(self.path("manifests"));
        command.arg("--config").arg(self.path("config.yaml"));
        let log = self.path("log");
        let said = |proxy: &Proxyd| in_step(&proxy.log()).len();
        let before = fs::read_to_string(&log).map_or(0, |log| in_step(&log).len());
        let start = Instant::now();
        let mut proxy = Proxyd::start(self.world.node(), &mut command, &log)?;
        let tables = if self.families == Families::Dual { 2 } else { 1 };
        let waited = wait_until(LIMIT, "proxyd is in step", || {
            said(&proxy) >= before + tables || proxy.status().is_some()
        });
        let duration = start.elapsed();
        let counts = in_step(&proxy.log()).split_off(before);
        self.proxy = Some(proxy);
        waited?;
        ensure!(counts.len() >= tables, "proxyd ended by itself");
        Ok(Started { duration, written: counts.iter().sum() })
    }

    /// Ends proxyd as `kill -9` does.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.proxy.take().context("proxyd is not running")?.kill()
    }

    /// What proxyd has said in all its runs.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// Runs `nft` in the node's namespace and returns what it prints.
    pub(crate) fn nft(&self, arguments: &str) -> Result<String> {
        let mut nft = Command::new("nft");
        let output = self.world.node().output(nft.args(arguments.split(' ')))?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// One try that has to be answered.
    pub(crate) fn answer(&self, place: Place, target: Target) -> Result<Answer> {
        match self.world.dial(place, &target) {
            Outcome::Answered(answer) => Ok(answer),
            outcome => bail!("{target} from {place:?}: {outcome:?}"),
        }
    }

    /// Who answers how many of several connections.
    pub(crate) fn spread(
        &self,
        place: Place,
        target: Target,
        connections: usize,
    ) -> Result<BTreeMap<SocketAddr, usize>> {
        let mut counts = BTreeMap::new();
        for _ in 0..connections {
            *counts.entry(self.answer(place, target)?.backend).or_default() += 1;
        }
        Ok(counts)
    }

    /// Stops the program and takes everything down.
    pub(crate) fn end(mut self) -> Result<()> {
        if let Some(mut proxy) = self.proxy.take() {
            let status = proxy.stop()?;
            ensure!(status.success(), "proxyd ended with {status}");
        }
        Ok(self.folder.close()?)
    }
}

/// The counts of written objects in the lines that say that a family is in step.
fn in_step(log: &str) -> Vec<u64> {
    let count = |line: &str| {
        let (_, text) = line.split_once(IN_STEP)?;
        let word = text.split(' ').find_map(|word| word.strip_prefix("changed="))?;
        word.parse().ok()
    };
    log.lines().filter_map(count).collect()
}

/// The examples of this repository: beside or above the current folder, or where this was built.
fn examples() -> Result<PathBuf> {
    let here = std::env::current_dir()?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = here.ancestors().chain(sources.ancestors());
    folders
        .find_map(|folder| Some(folder.join("examples")).filter(|it| it.join("manifests").is_dir()))
        .context("the folder examples is missing: start this in the repository")
}

/// Sizes of the connection table, which all namespaces share.
const CONNTRACK: [&str; 2] =
    ["/proc/sys/net/netfilter/nf_conntrack_max", "/sys/module/nf_conntrack/parameters/hashsize"];

/// What of the machine itself a proxy could change.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Machine {
    links: String,
    routes: String,
    rules: String,
    conntrack: [Option<String>; 2],
}

impl Machine {
    /// Looks at the namespace that this process was started in.
    pub(crate) fn look() -> Result<Self> {
        let output = |program: &str, arguments: &[&str]| -> Result<String> {
            let output = Command::new(program).args(arguments).output();
            let output = output.with_context(|| format!("starting {program}"))?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{program}: {said}");
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        Ok(Self {
            links: output("ip", &["-oneline", "link"])?,
            routes: output("ip", &["route", "show", "table", "all"])?,
            rules: output("nft", &["--stateless", "list", "ruleset"])?,
            conntrack: CONNTRACK.map(|path| fs::read_to_string(path).ok()),
        })
    }

    pub(crate) fn compare(&self, now: &Self) -> Result<()> {
        ensure!(self == now, "the machine has changed meanwhile: {self:#?}\nnow: {now:#?}");
        Ok(())
    }
}
