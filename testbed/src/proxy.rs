//! The program under test as a child process in the node's namespace.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::netns::Netns;
use crate::wait::wait_until;

/// How long a process may take to end after SIGTERM before it is killed.
const FAREWELL: Duration = Duration::from_secs(5);

/// A running program that ends, at the latest, when the guard is dropped.
#[derive(Debug)]
pub struct Proxyd {
    child: Child,
    status: Option<ExitStatus>,
    log: PathBuf,
}

impl Proxyd {
    /// Starts `command` inside `netns`; its output goes to the file `log`, after what is there.
    pub fn start(netns: &Netns, command: &mut Command, log: &Path) -> Result<Self> {
        let open = || File::options().create(true).append(true).open(log);
        let (out, err) = (open().context("opening the log")?, open()?);
        command.stdin(Stdio::null()).stdout(out).stderr(err);
        let child = netns.spawn(command).with_context(|| format!("starting {command:?}"))?;
        Ok(Self { child, status: None, log: log.to_owned() })
    }

    /// Process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// The exit status once the process has ended.
    pub fn status(&mut self) -> Option<ExitStatus> {
        if self.status.is_none() {
            self.status = self.child.try_wait().ok().flatten();
        }
        self.status
    }

    /// Sends a signal, unless the process has ended already.
    pub fn signal(&mut self, signal: Signal) -> Result<()> {
        if self.status().is_none() {
            // Not reaped yet, so the id cannot belong to another process.
            kill(self.pid(), signal).with_context(|| format!("sending {signal}"))?;
        }
        Ok(())
    }

    /// Asks the process to end and waits for it; kills it and fails if it takes too long.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        let ended = wait_until(FAREWELL, "process ends after SIGTERM", || self.status().is_some());
        if ended.is_err() {
            self.kill()?;
        }
        ended?;
        self.status().context("status of an ended process")
    }

    /// Ends the process without giving it a chance to do anything (`kill -9`).
    pub fn kill(&mut self) -> Result<()> {
        if self.status().is_none() {
            self.child.kill().context("killing")?;
            self.status = Some(self.child.wait().context("waiting for a killed process")?);
        }
        Ok(())
    }

    /// All output so far.
    pub fn log(&self) -> String {
        fs::read(&self.log).map_or_else(
            |error| format!("(no log: {error})"),
            |bytes| String::from_utf8_lossy(&bytes).into_owned(),
        )
    }
}

impl Drop for Proxyd {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

/// The `proxyd` executable: `PROXYD_BIN`, or the one cargo built beside the running test.
pub fn binary() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("PROXYD_BIN") {
        let path = PathBuf::from(path);
        ensure!(path.is_file(), "PROXYD_BIN names {}, which is no file", path.display());
        return Ok(path);
    }
    // Tests live in target/PROFILE/deps, the programs one folder up.
    let test = std::env::current_exe().context("path of the running test")?;
    let profile = test.ancestors().skip(1).find(|dir| dir.file_name() != Some(OsStr::new("deps")));
    let path = profile.context("test without a folder")?.join("proxyd");
    ensure!(
        path.is_file(),
        "{} is missing: build it with `cargo build -p proxyd` or name one in PROXYD_BIN",
        path.display()
    );
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::namespaces_available;

    #[test]
    fn programs_end_when_asked_or_killed_and_leave_a_log() {
        if !namespaces_available() {
            return;
        }
        let netns = Netns::with_loopback().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let start = |script: &str| {
            let log = folder.path().join("log");
            Proxyd::start(&netns, Command::new("sh").args(["-c", script]), &log).unwrap()
        };
        let mut polite = start("echo hello >&2; trap 'exit 3' TERM; echo; while :; do wait; done");
        let second = Duration::from_secs(5);
        wait_until(second, "it speaks", || polite.log().ends_with("hello\n\n")).unwrap();
        assert_eq!(polite.stop().unwrap().code(), Some(3));
        assert_eq!(polite.stop().unwrap().code(), Some(3), "stopping twice does no harm");

        let mut stubborn = start("trap '' TERM; while :; do wait; done");
        assert!(stubborn.status().is_none());
        stubborn.kill().unwrap();
        assert!(stubborn.status().is_some_and(|status| status.code().is_none()));
    }
}
