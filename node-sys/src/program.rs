//! Running programs of the system.

use std::io::{self, Read, Write as _};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// What a program left behind.
#[derive(Debug)]
pub struct Output {
    /// How it ended.
    pub status: ExitStatus,
    /// What it wrote to its standard output.
    pub stdout: Vec<u8>,
    /// What it wrote to its standard error.
    pub stderr: Vec<u8>,
}

/// A program could not be run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// It could not be started: it does not exist, say.
    #[error("start {program}")]
    Start {
        /// The program.
        program: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// It was started, but its end could not be waited for or its output not be read.
    #[error("wait for {program}")]
    Wait {
        /// The program.
        program: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// It took too long and was killed.
    #[error("wait for {program}: it did not end within {limit:?}")]
    TimedOut {
        /// The program.
        program: String,
        /// The limit.
        limit: Duration,
    },
}

/// Runs a program with `input` as its standard input, and waits for its end.
///
/// No shell is involved. The environment is empty but for `PATH` and the language, so that
/// messages are the same everywhere. A program that runs longer than `limit` is killed. Success
/// is up to the caller to judge from [`Output::status`].
pub fn run(
    program: &str,
    arguments: &[&str],
    input: &[u8],
    limit: Duration,
) -> Result<Output, ProgramError> {
    run_in(program, arguments, &[], input, limit, |_| ())
}

/// Like [`run`], with these variables of our environment passed on as well.
///
/// `started` is called with the process's id after its start and before it is given any input;
/// what it returns is dropped after its end.
pub fn run_in<G>(
    program: &str,
    arguments: &[&str],
    environment: &[&str],
    input: &[u8],
    limit: Duration,
    started: impl FnOnce(u32) -> G,
) -> Result<Output, ProgramError> {
    let passed = ["PATH"].iter().chain(environment);
    let mut child = Command::new(program)
        .args(arguments)
        .env_clear()
        .envs(passed.filter_map(|name| Some((name, std::env::var_os(name)?))))
        .env("LC_ALL", "C")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| ProgramError::Start { program: program.to_owned(), source })?;
    let _until_its_end = started(child.id());
    let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let wait_error = |source| ProgramError::Wait { program: program.to_owned(), source };
    thread::scope(|scope| {
        scope.spawn(move || {
            // A program that does not want its input closes the pipe; its status tells more.
            pipes.0.map(|mut pipe| pipe.write_all(input).is_ok())
        });
        let stdout = scope.spawn(move || read_all(pipes.1));
        let stderr = scope.spawn(move || read_all(pipes.2));
        let ended = wait_until(&child, limit);
        if !matches!(ended, Ok(true)) {
            // Whether or not this works: the error tells that it did not end.
            let _killed = child.kill();
        }
        let status = child.wait().map_err(wait_error)?;
        if !ended.map_err(wait_error)? {
            return Err(ProgramError::TimedOut { program: program.to_owned(), limit });
        }
        let join = |reader: thread::ScopedJoinHandle<'_, io::Result<Vec<u8>>>| {
            reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader failed")))
        };
        let (stdout, stderr) = (join(stdout), join(stderr));
        Ok(Output {
            status,
            stdout: stdout.map_err(wait_error)?,
            stderr: stderr.map_err(wait_error)?,
        })
    })
}

fn read_all(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        pipe.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Waits for the end of a child; returns whether it came in time.
fn wait_until(child: &Child, limit: Duration) -> io::Result<bool> {
    let pid = Pid::from_child(child);
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
    let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
    let ready = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit)))?;
    Ok(ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn input_and_output_are_passed_on() {
        let input = vec![b'x'; 1 << 20];
        let output = run("cat", &[], &input, LONG).unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, input);
    }

    #[test]
    fn failure_is_left_to_the_caller() {
        let output = run("cat", &["/does/not/exist"], b"", LONG).unwrap();
        assert!(!output.status.success());
        assert!(!output.stderr.is_empty());
        // One that ignores a large input.
        assert!(run("true", &[], &vec![0; 1 << 20], LONG).unwrap().status.success());
    }

    #[test]
    fn arguments_reach_no_shell() {
        let output = run("printf", &["%s", "$(id); `id` > /dev/full"], b"", LONG).unwrap();
        assert_eq!(output.stdout, b"$(id); `id` > /dev/full");
    }

    #[test]
    fn a_missing_program_is_told() {
        let error = run("no-such-program", &[], b"", LONG).unwrap_err();
        assert!(matches!(error, ProgramError::Start { .. }), "{error}");
    }

    #[test]
    fn its_start_is_told_before_it_reads_and_its_end_afterwards() {
        struct Held(std::sync::mpsc::Sender<String>);
        impl Drop for Held {
            fn drop(&mut self) {
                self.0.send("ended".to_owned()).unwrap();
            }
        }
        let (sender, told) = std::sync::mpsc::channel();
        let started = |id| {
            // It reads, so it cannot have ended.
            let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
            sender.send(name.trim().to_owned()).unwrap();
            Held(sender)
        };
        run_in("cat", &[], &[], b"x", LONG, started).unwrap();
        assert_eq!(told.iter().collect::<Vec<_>>(), ["cat", "ended"]);
    }

    #[test]
    fn one_that_hangs_is_killed() {
        let error = run("sleep", &["1000"], b"", Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, ProgramError::TimedOut { .. }), "{error}");
    }
}
