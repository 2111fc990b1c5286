//! Network namespaces without names: they live as long as a descriptor, a thread or a process holds
//! them, so nothing is left behind whatever way a test ends.
//!
//! A thread has one network namespace for its whole life here: closures run on a thread of their
//! own that enters the namespace first. A child process inherits the namespace of the thread that
//! starts it, and `/proc/sys/net` shows the namespace of the thread that opens a file in it, so
//! neither needs a mount or a name under `/run/netns`.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::{io, panic, thread};

use anyhow::{Context, Result, bail, ensure};
use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace of this process; clones share it, and it goes with the last of them.
#[derive(Debug, Clone)]
pub struct Netns {
    file: Arc<File>,
}

impl Netns {
    /// A new, empty namespace: only `lo`, and that is down.
    pub fn new() -> Result<Self> {
        let made = thread::spawn(|| -> Result<File> {
            unshare(CloneFlags::CLONE_NEWNET).context("making a network namespace")?;
            File::open("/proc/thread-self/ns/net").context("opening the new network namespace")
        });
        let file = made.join().map_err(|_| anyhow::anyhow!("namespace thread ended early"))??;
        Ok(Self { file: Arc::new(file) })
    }

    /// A new namespace whose loopback interface is up.
    pub fn with_loopback() -> Result<Self> {
        let netns = Self::new()?;
        netns.ip("link set lo up")?;
        Ok(netns)
    }

    /// Runs `work` inside the namespace on a thread of its own and waits for it.
    ///
    /// Sockets made by `work` belong to the namespace for good, also when they are returned. A
    /// panic of `work` goes on in the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter();
                work()
            });
            inside.join().unwrap_or_else(|cause| panic::resume_unwind(cause))
        })
    }

    /// Starts a thread inside the namespace that outlives the call.
    pub fn spawn_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let netns = self.clone();
        thread::spawn(move || {
            netns.enter();
            work()
        })
    }

    /// Starts a program inside the namespace.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Child> {
        self.run(|| command.spawn())
    }

    /// Runs a program inside the namespace to its end; an error if it fails, with what it printed.
    pub fn output(&self, command: &mut Command) -> Result<Output> {
        let output = self.run(|| command.output()).with_context(|| format!("{command:?}"))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{command:?}: {}: {said}", output.status);
        Ok(output)
    }

    /// Runs commands of the `ip` tool inside the namespace, one a line, in one process.
    pub fn ip(&self, lines: &str) -> Result<()> {
        self.feed(Command::new("ip").args(["-batch", "-"]), lines)
    }

    /// Like [`Self::ip`], for commands that are about IPv6 without saying so.
    pub fn ip6(&self, lines: &str) -> Result<()> {
        self.feed(Command::new("ip").args(["-6", "-batch", "-"]), lines)
    }

    /// Loads a ruleset of the `nft` tool inside the namespace.
    pub fn nft(&self, ruleset: &str) -> Result<()> {
        self.feed(Command::new("nft").args(["-f", "-"]), ruleset)
    }

    /// Writes sysctls of the namespace, given as pairs of a path below `/proc/sys/net` and a value.
    pub fn sysctl(&self, settings: &[(&str, &str)]) -> Result<()> {
        self.run(|| {
            for (path, value) in settings {
                fs::write(format!("/proc/sys/net/{path}"), value)
                    .with_context(|| format!("sysctl net/{path} = {value}"))?;
            }
            Ok(())
        })
    }

    /// A path by which other processes of this user can open the namespace while `self` lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Moves the calling thread, which must be one of this module's own, into the namespace.
    fn enter(&self) {
        setns(&*self.file, CloneFlags::CLONE_NEWNET)
            .expect("whoever could make a namespace can enter it");
    }

    fn feed(&self, command: &mut Command, input: &str) -> Result<()> {
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = self.spawn(command).with_context(|| format!("starting {command:?}"))?;
        let mut stdin = child.stdin.take().context("standard input was piped")?;
        // A program that stops reading early says why on its standard error, which is shown below.
        let written = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output()?;
        if !output.status.success() || written.is_err() {
            bail!("{command:?}: {}\n{input}", String::from_utf8_lossy(&output.stderr));
        }
        Ok(())
    }
}

/// Says why namespaces cannot be made here, if so.
///
/// Tests report this as the reason for being skipped; a build server should fail instead.
pub fn missing_privilege() -> Option<String> {
    Netns::with_loopback().err().map(|error| format!("{error:#}"))
}

/// Whether tests that need namespaces can run; where they must (`CI` is set), it panics if not.
pub fn namespaces_available() -> bool {
    let missing = missing_privilege();
    let must = std::env::var_os("CI").is_some();
    assert!(missing.is_none() || !must, "no network namespaces: {}", missing.unwrap_or_default());
    missing.is_none()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn netns() -> Option<Netns> {
        Netns::with_loopback().ok()
    }

    #[test]
    fn namespaces_do_not_see_each_other() {
        let (Some(left), Some(right)) = (netns(), netns()) else { return };
        let listener = left.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let dial = move || std::net::TcpStream::connect(address).is_ok();
        assert!(left.run(dial));
        assert!(!right.run(dial));
    }

    #[test]
    fn sysctls_and_children_belong_to_the_namespace() {
        let Some(netns) = netns() else { return };
        let file = "/proc/sys/net/ipv4/ip_default_ttl";
        let before = fs::read_to_string(file).unwrap();
        netns.sysctl(&[("ipv4/ip_default_ttl", "77")]).unwrap();
        let shown = netns.output(Command::new("cat").arg(file)).unwrap();
        assert_eq!(String::from_utf8_lossy(&shown.stdout).trim(), "77");
        assert_eq!(fs::read_to_string(file).unwrap(), before);
    }

    #[test]
    fn failing_batches_are_errors() {
        let Some(netns) = netns() else { return };
        assert!(netns.ip("link set nothing up").is_err());
    }
}
