//! Running tests on another kernel: User Mode Linux (Debian's package `user-mode-linux`), for what
//! the host's kernel lacks, such as IPVS and SCTP.
//!
//! The machine's own files are the guest's root file system (hostfs), so the guest runs the very
//! test executable that started it, first as its init process and then as the tests:
//!
//! ```text
//!   host: test executable ── starts ──► linux (the kernel as a program)
//!            ▲                            init  = the executable: mounts, starts the next, ends
//!            │                            child = the executable: runs the trials
//!            └──────────── results, one JSON line each, in a folder that both see ◄──┘
//! ```
//!
//! One boot serves all trials of an executable. A `main` that uses it looks like this:
//!
//! ```no_run
//! # use std::process::ExitCode;
//! use libtest_mimic::{Arguments, Completion};
//! use testbed::uml::{self, GuestTest};
//!
//! fn main() -> anyhow::Result<ExitCode> {
//!     uml::enter()?;
//!     let tests = vec![GuestTest::new("has IPVS", || Ok(Completion::Completed))];
//!     Ok(libtest_mimic::run(&Arguments::from_args(), uml::trials(tests)).exit_code())
//! }
//! ```

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use libtest_mimic::{Completion, Failed, Trial};
use nix::mount::{MsFlags, mount};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::wait::wait_until;

/// Names the job's folder. The kernel hands parameters that it does not know to init as variables.
const JOB: &str = "PROXYD_UML_JOB";
/// The kernel as a program.
const KERNEL: &str = "linux";
/// Where the package keeps the modules of its kernel.
const MODULES: &str = "/usr/lib/uml/modules";
/// Memory of the guest; only what is used is taken from the host.
const MEMORY: &str = "mem=2G";
/// How long all trials of one executable may take, boot included.
const LIMIT: Duration = Duration::from_secs(1200);
/// How much of the console is shown when something went wrong.
const SHOWN_CONSOLE: usize = 8 << 10;

/// What a test has to say in the end.
pub type Verdict = Result<Completion, Failed>;

/// A test that runs in the guest.
pub struct GuestTest {
    name: String,
    run: Box<dyn FnOnce() -> Verdict + Send>,
}

impl std::fmt::Debug for GuestTest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GuestTest").field("name", &self.name).finish_non_exhaustive()
    }
}

impl GuestTest {
    /// A test of this name, which must be unique in the executable.
    pub fn new(name: impl Into<String>, run: impl FnOnce() -> Verdict + Send + 'static) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }
}

/// What is to be done in the guest.
#[derive(Debug, Serialize, Deserialize)]
struct Job {
    executable: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    variables: BTreeMap<String, String>,
}

/// How a trial in the guest ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
enum Ended {
    Well,
    Ignored(Option<String>),
    Badly(String),
}

/// One line of the results.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
    name: String,
    ended: Ended,
}

/// Whether this process runs in the guest.
pub fn is_guest() -> bool {
    std::env::var_os(JOB).is_some()
}

/// Does init's work and never returns if this process is the guest's init. To be called first.
pub fn enter() -> Result<()> {
    let Some(folder) = std::env::var_os(JOB) else { return Ok(()) };
    if std::process::id() != 1 {
        return Ok(());
    }
    if let Err(error) = serve_as_init(Path::new(&folder)) {
        // The console is all there is to tell it.
        writeln!(std::io::stderr(), "init: {error:#}")?;
    }
    reboot(RebootMode::RB_POWER_OFF).context("switching the guest off")?;
    Ok(())
}

/// The trials as the test harness wants them: in the guest the tests themselves, on the host
/// questions after what became of them there.
pub fn trials(tests: Vec<GuestTest>) -> Vec<Trial> {
    let inside = std::env::var_os(JOB).map(PathBuf::from);
    let results = Arc::new(OnceLock::new());
    let trial = |test: GuestTest| {
        let name = test.name.clone();
        if let Some(folder) = inside.clone() {
            return Trial::ignorable_test(test.name, move || report(&folder, name, test.run));
        }
        let results = Arc::clone(&results);
        Trial::ignorable_test(test.name, move || {
            results.get_or_init(Results::of_guest).verdict(&name)
        })
    };
    tests.into_iter().map(trial).collect()
}

// === host ===

/// What came out of the guest.
#[derive(Debug)]
enum Results {
    /// There is no such kernel on this machine.
    Missing,
    /// How the trials ended that ended, and what the console said.
    Ended(BTreeMap<String, Ended>, String),
    /// There was no run, and why.
    Failed(String),
}

impl Results {
    fn of_guest() -> Self {
        if !is_installed() {
            return Self::Missing;
        }
        run_guest().unwrap_or_else(|error| Self::Failed(format!("{error:#}")))
    }

    fn verdict(&self, name: &str) -> Verdict {
        match self {
            Self::Missing if std::env::var_os("CI").is_none() => {
                Ok(Completion::ignored_with("no User Mode Linux (package user-mode-linux)"))
            }
            Self::Missing => Err("no User Mode Linux (package user-mode-linux)".into()),
            Self::Failed(error) => Err(error.into()),
            Self::Ended(results, console) => match results.get(name) {
                Some(Ended::Well) => Ok(Completion::Completed),
                Some(Ended::Ignored(None)) => Ok(Completion::ignored()),
                Some(Ended::Ignored(Some(reason))) => Ok(Completion::ignored_with(reason)),
                Some(Ended::Badly(why)) => Err(why.into()),
                None => Err(format!("the guest told no result; its console:\n{console}").into()),
            },
        }
    }
}

/// Whether the kernel is on this machine.
pub fn is_installed() -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(KERNEL).is_file())
        && Path::new(MODULES).is_dir()
}

/// Boots a guest that runs this executable with the same arguments, and waits for its end.
fn run_guest() -> Result<Results> {
    let folder = tempfile::tempdir().context("making a folder for the results")?;
    let executable = std::env::current_exe().context("path of the running test")?;
    let job = Job {
        executable: executable.clone(),
        arguments: std::env::args().skip(1).collect(),
        folder: std::env::current_dir()?,
        variables: std::env::vars().filter(|(name, _)| is_passed_on(name)).collect(),
    };
    fs::write(folder.path().join("job"), serde_json::to_vec(&job)?)?;
    let mut guest = Guest::boot(folder.path(), &executable)?;
    let ended = wait_until(LIMIT, "the guest ends", || guest.has_ended());
    drop(guest);
    let console = tail(&folder.path().join("console"));
    let results = results(&folder.path().join("results"))?;
    ensure!(
        ended.is_ok() || !results.is_empty(),
        "the guest did not end within {LIMIT:?}; its console:\n{console}"
    );
    Ok(Results::Ended(results, console))
}

/// Variables that concern what is tested or how the tests run.
fn is_passed_on(name: &str) -> bool {
    name.starts_with("PROXYD_") || matches!(name, "CI" | "RUST_BACKTRACE" | "RUST_LOG")
}

/// A running guest; it goes with the value.
struct Guest {
    child: Child,
}

impl Guest {
    fn boot(folder: &Path, init: &Path) -> Result<Self> {
        let console = File::create(folder.join("console"))?;
        let child = Command::new(KERNEL)
            .args([MEMORY, "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw"])
            .args(["con=null", "con0=null,fd:1", "panic=-1", "quiet"])
            .arg(format!("init={}", init.display()))
            .arg(format!("{JOB}={}", folder.display()))
            .stdin(Stdio::null())
            .stderr(console.try_clone()?)
            .stdout(console)
            // The kernel has a process of the host for each of its own.
            .process_group(0)
            .spawn()
            .context("starting User Mode Linux")?;
        Ok(Self { child })
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Its own group: nobody else is in it. It may be gone already.
        let _ended = killpg(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGKILL);
        let _status = self.child.wait();
    }
}

fn tail(path: &Path) -> String {
    let text = fs::read(path).unwrap_or_default();
    String::from_utf8_lossy(&text[text.len().saturating_sub(SHOWN_CONSOLE)..]).into_owned()
}

fn results(path: &Path) -> Result<BTreeMap<String, Ended>> {
    // Without the file the guest did not come so far.
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().map(serde_json::from_str::<Line>);
    lines.map(|line| line.map(|line| (line.name, line.ended)).context("result")).collect()
}

// === guest ===

fn report(folder: &Path, name: String, run: Box<dyn FnOnce() -> Verdict + Send>) -> Verdict {
    let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run))
        .unwrap_or_else(|cause| Err(panic_text(&*cause).into()));
    let ended = match &verdict {
        Ok(Completion::Completed) => Ended::Well,
        Ok(Completion::Ignored { reason }) => Ended::Ignored(reason.clone()),
        Err(failed) => Ended::Badly(failed.message().unwrap_or("failed without a word").to_owned()),
    };
    let mut line = serde_json::to_string(&Line { name, ended }).map_err(Failed::from)?;
    line.push('\n');
    let file = File::options().create(true).append(true).open(folder.join("results"));
    file.and_then(|mut file| file.write_all(line.as_bytes())).map_err(Failed::from)?;
    verdict
}

fn panic_text(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| cause.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
}

/// Mounts what a machine has, makes modules loadable, and runs the job.
fn serve_as_init(folder: &Path) -> Result<()> {
    let job: Job = serde_json::from_slice(&fs::read(folder.join("job"))?).context("job")?;
    mount_all()?;
    make_modules_loadable()?;
    let mut child = Command::new(&job.executable)
        .args(&job.arguments)
        .current_dir(&job.folder)
        .envs(&job.variables)
        .env(JOB, folder)
        .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
        // In memory of the guest: quick, and gone with it.
        .env("TMPDIR", "/run/tmp")
        .spawn()
        .with_context(|| format!("starting {}", job.executable.display()))?;
    // On its own as well: whoever started the guest may be gone.
    wait_until(LIMIT, "the tests end", || !matches!(child.try_wait(), Ok(None)))
}

fn mount_all() -> Result<()> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("tmpfs", "/run")] {
        mount(Some(kind), target, Some(kind), MsFlags::empty(), None::<&str>)
            .with_context(|| format!("mounting {target}"))?;
    }
    fs::create_dir_all("/run/tmp")?;
    Ok(())
}

/// The kernel starts a program to load a module that it misses. This one looks where the package
/// keeps them, which is not where modprobe looks by itself.
fn make_modules_loadable() -> Result<()> {
    const LOADER: &str = "/run/modprobe";
    let release = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let modules = Path::new(MODULES).join(release.trim());
    if !modules.is_dir() {
        bail!("{} is missing", modules.display());
    }
    fs::create_dir_all("/run/lib/modules")?;
    symlink(&modules, Path::new("/run/lib/modules").join(release.trim()))?;
    fs::write(LOADER, "#!/bin/sh\nexec /sbin/modprobe -d /run \"$@\"\n")?;
    fs::set_permissions(LOADER, fs::Permissions::from_mode(0o755))?;
    fs::write("/proc/sys/kernel/modprobe", LOADER)?;
    // Nobody asks for it by name, and tests count on its settings.
    let loaded = Command::new(LOADER).arg("ipv6").status().context("loading IPv6")?;
    ensure!(loaded.success(), "loading IPv6: {loaded}");
    Ok(())
}
