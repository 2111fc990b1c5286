//! Further processes of this program, which do one thing after the other as they are told.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A process of this program that reads requests from its standard input and writes an answer to
/// each to its standard output, one line each. It is killed when this is dropped; when the whole
/// program dies, it sees the end of its input.
#[derive(Debug)]
pub struct Worker {
    child: Child,
    requests: ChildStdin,
    answers: BufReader<ChildStdout>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The process could not be started.
    #[error("start a process of this program")]
    Start(#[source] io::Error),
    /// It has ended.
    #[error("the process has ended early")]
    Ended,
    /// It takes longer than it may.
    #[error("no answer within {0:?}")]
    TimedOut(Duration),
    /// It could not be reached.
    #[error("talk to the process")]
    Talk(#[source] io::Error),
}

impl Worker {
    /// Starts this program with other arguments. It inherits the environment, with `variables`
    /// added, and the standard error output.
    pub fn start<A: AsRef<OsStr>>(
        arguments: &[A],
        variables: &[(&str, &str)],
    ) -> Result<Self, WorkerError> {
        let mut child = Command::new("/proc/self/exe")
            .args(arguments)
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(WorkerError::Start)?;
        let (requests, answers) = (child.stdin.take(), child.stdout.take());
        let (Some(requests), Some(answers)) = (requests, answers) else {
            return Err(WorkerError::Ended);
        };
        Ok(Self { child, requests, answers: BufReader::new(answers) })
    }

    /// Sends a request, which must not contain a line break, and waits for its answer.
    pub fn ask(&mut self, request: &str, limit: Duration) -> Result<String, WorkerError> {
        let broken = |error: io::Error| match error.kind() {
            io::ErrorKind::BrokenPipe => WorkerError::Ended,
            _ => WorkerError::Talk(error),
        };
        self.requests.write_all(format!("{request}\n").as_bytes()).map_err(broken)?;
        if !self.is_readable(limit).map_err(WorkerError::Talk)? {
            return Err(WorkerError::TimedOut(limit));
        }
        let mut answer = String::new();
        match self.answers.read_line(&mut answer).map_err(WorkerError::Talk)? {
            0 => Err(WorkerError::Ended),
            _ => Ok(answer.trim_end().to_owned()),
        }
    }

    fn is_readable(&self, limit: Duration) -> io::Result<bool> {
        let limit = Timespec::try_from(limit).map_err(io::Error::other)?;
        let mut fds = [PollFd::new(self.answers.get_ref(), PollFlags::IN)];
        Ok(rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit)))? > 0)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself; either way it is waited for.
        let _killed = self.child.kill();
        let _status = self.child.wait();
    }
}
