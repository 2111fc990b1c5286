//! The conformance runner: plays a case against the program under test with real packets.
//!
//! A case gets a world of its own, its objects and a configuration file. The objects are in a folder
//! of manifests or on a pretended API server. The program runs in the node's namespace and sees
//! nothing but these. Changes reach it one object at a time and with some delay, so each stage ends
//! with a *canary*: one more Service, written last, that must answer before the checks of the stage
//! count. A check then has a few seconds to come true, as the canary says only that the last object
//! was read; of a cluster, kinds are followed each for itself.

mod judge;
mod objects;
mod setup;

use std::fmt;
use std::path::Path;
use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};

use crate::cases::{Case, Check, Mode, Need};
use crate::proxy::{Proxyd, binary};
use crate::uml;
use crate::world::{NODE_NAME, Place, World};
use judge::Judge;
use objects::Objects;
pub use objects::Origin;
use setup::Canary;

/// How long the program may take from its start to the first rules.
const START_LIMIT: Duration = Duration::from_secs(15);
/// How many times as long everything may take where one processor is emulated for all.
const GUEST_PATIENCE: u32 = 4;
/// How long a change may take to come into force.
const CHANGE_LIMIT: Duration = Duration::from_secs(10);
/// How long a check may take to come true once the canary answered.
const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// A mode as it is tried: mode iptables once with each kind of iptables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flavour {
    /// A mode.
    Mode(Mode),
    /// Mode iptables with this variant: `nft` or `legacy`.
    Iptables(&'static str),
}

impl Flavour {
    /// Its mode.
    pub fn mode(self) -> Mode {
        match self {
            Self::Mode(mode) => mode,
            Self::Iptables(_) => Mode::Iptables,
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => write!(f, "{mode}"),
            Self::Iptables(variant) => write!(f, "iptables-{variant}"),
        }
    }
}

impl FromStr for Flavour {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "iptables-nft" => Self::Iptables("nft"),
            "iptables-legacy" => Self::Iptables("legacy"),
            _ => Self::Mode(text.parse()?),
        })
    }
}

/// The program under test, as a command line with placeholders.
///
/// `{mode}`, `{config}` and `{node}` stand for the mode, the configuration file and the node's name.
/// Objects are in the folder `{manifests}` or, if the command names it, on the API server `{server}`.
#[derive(Debug, Clone)]
pub struct Subject {
    words: Vec<String>,
}

impl Subject {
    /// A command line, taken apart at white space.
    pub fn new(command: &str) -> Self {
        Self { words: command.split_whitespace().map(str::to_owned).collect() }
    }

    /// The `proxyd` that was built beside the test.
    pub fn proxyd(origin: Origin) -> Result<Self> {
        let objects = match origin {
            Origin::Manifests => "--manifests {manifests}",
            Origin::Cluster => "--master {server}",
        };
        let mut subject = Self::new(&format!(
            "proxyd run --mode {{mode}} {objects} --config {{config}} --hostname-override {{node}}"
        ));
        binary()?.to_str().context("path that is not UTF-8")?.clone_into(&mut subject.words[0]);
        Ok(subject)
    }

    /// Where the command takes objects from.
    pub fn origin(&self) -> Origin {
        let is_cluster = self.words.iter().any(|word| word.contains("{server}"));
        if is_cluster { Origin::Cluster } else { Origin::Manifests }
    }

    /// The command for a mode, objects in this folder or on this server, and a configuration file.
    fn command(&self, mode: Mode, objects: &str, config: &Path) -> Result<Command> {
        let fill = |word: &String| {
            word.replace("{mode}", &mode.to_string())
                .replace("{manifests}", objects)
                .replace("{server}", objects)
                .replace("{config}", &config.display().to_string())
                .replace("{node}", NODE_NAME)
        };
        let mut words = self.words.iter().map(fill);
        let mut command = Command::new(words.next().context("empty command")?);
        command.args(words);
        Ok(command)
    }
}

/// The limit on this kernel.
fn limit(limit: Duration) -> Duration {
    if uml::is_guest() { limit * GUEST_PATIENCE } else { limit }
}

/// The reason why a case cannot be played, if there is one.
pub fn missing_need(case: &Case) -> Option<&'static str> {
    let missing = |need: &Need| match need {
        // Of kernels that tests run on, only User Mode Linux has these sockets at all.
        Need::Sctp => "SCTP sockets do not answer at any address, as this world's servers have to",
    };
    case.needs.first().map(missing)
}

/// Plays a case; the error tells what did not hold and what the program said.
pub fn run(case: &Case, flavour: Flavour, subject: &Subject) -> Result<()> {
    let mode = flavour.mode();
    ensure!(case.modes.contains(&mode), "{} is not for mode {mode}", case.name);
    let mut play = Play::start(case, flavour, subject)?;
    play.stages().map_err(|error| {
        let rules = std::env::var_os("PROXYD_DUMP").map(|_| play.rules()).unwrap_or_default();
        let why = case.why.as_deref().unwrap_or_default();
        anyhow!("{error:#}\ncase: {why}\n{rules}--- output of the program\n{}", play.proxy.log())
    })
}

/// A case that is being played; the program goes first, then what it depends on.
struct Play<'a> {
    case: &'a Case,
    proxy: Proxyd,
    judge: Judge,
    objects: Objects,
    world: World,
}

impl<'a> Play<'a> {
    fn start(case: &'a Case, flavour: Flavour, subject: &Subject) -> Result<Self> {
        let mode = flavour.mode();
        let world = setup::world(case).context("building the world")?;
        let mut objects = Objects::new(subject.origin(), world.node())?;
        setup::cluster(case, &mut objects).context("writing the objects")?;
        Canary::of_stage(0).write(case.family, &mut objects)?;
        let config = objects.beside("config.yaml");
        setup::config(case, flavour, &config).context("writing the configuration")?;
        let mut command = subject.command(mode, &objects.place(), &config)?;
        let proxy = Proxyd::start(world.node(), &mut command, &objects.beside("log"))?;
        Ok(Self { case, proxy, judge: Judge::new(mode), objects, world })
    }

    fn stages(&mut self) -> Result<()> {
        let case = self.case;
        self.await_canary(0, limit(START_LIMIT))?;
        self.checks(&case.checks)?;
        for (number, step) in (1..).zip(&case.steps) {
            let change = || format!("changing the objects for step {number}");
            for key in &step.delete {
                self.objects.delete(key).with_context(change)?;
            }
            for object in &step.apply {
                self.objects.apply(object).with_context(change)?;
            }
            Canary::of_stage(number).write(case.family, &mut self.objects)?;
            self.await_canary(number, limit(CHANGE_LIMIT))?;
            self.checks(&step.checks).with_context(|| format!("after step {number}"))?;
        }
        Ok(())
    }

    fn await_canary(&mut self, stage: u8, limit: Duration) -> Result<()> {
        let canary = Canary::of_stage(stage);
        let answers = canary.checks(self.case.family);
        for check in &answers {
            let judged = self.judge.until_true(
                limit,
                || self.proxy.status().is_some(),
                |judge| judge.connection(&self.world, check),
            );
            if let Some(status) = self.proxy.status() {
                bail!("the program ended by itself: {status}");
            }
            judged.with_context(|| format!("the canary of stage {stage} stays silent"))?;
        }
        Ok(())
    }

    fn checks(&mut self, checks: &[Check]) -> Result<()> {
        for check in checks {
            let world = &self.world;
            self.judge.until_true(
                limit(CHECK_LIMIT),
                || false,
                |judge| judge.check(world, check),
            )?;
        }
        ensure!(self.proxy.status().is_none(), "the program ended by itself");
        Ok(())
    }

    /// The node's rules, to look at after a failure.
    fn rules(&self) -> String {
        let list = |words: &[&str]| {
            let listed =
                self.world.at(Place::Node, || Command::new(words[0]).args(&words[1..]).output());
            listed.map_or_else(
                |error| format!("(no rules: {error})\n"),
                |output| format!("--- {words:?}\n{}", String::from_utf8_lossy(&output.stdout)),
            )
        };
        list(&["nft", "list", "ruleset"])
            + &list(&["iptables-legacy-save"])
            + &list(&["ip6tables-legacy-save"])
            + &list(&["ipvsadm", "-Ln"])
            + &list(&["ipset", "list"])
    }
}
