//! What this process uses of the machine (proc(5)).

use std::env;
use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use crate::sys;

/// What this process uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on a processor, for itself and in the kernel, of all threads.
    pub cpu: Duration,
    /// Number of threads.
    pub threads: u64,
    /// Virtual memory.
    pub virtual_memory_bytes: u64,
    /// Memory that is occupied (resident set size).
    pub resident_memory_bytes: u64,
    /// Open file descriptors.
    pub open_files: u64,
    /// How many file descriptors may be open; `None` without a limit.
    pub max_open_files: Option<u64>,
    /// How much virtual memory there may be; `None` without a limit.
    pub max_virtual_memory_bytes: Option<u64>,
}

/// Replaces this process by a fresh start of its program with the same arguments (execve(2)): id,
/// environment and privileges stay, threads, sockets and memory go. Returns only if that fails.
pub fn start_anew() -> io::Error {
    // The program's file may have been replaced; then the version that runs goes on.
    let program = env::current_exe().ok().filter(|path| path.exists());
    let mut command = Command::new(program.unwrap_or_else(|| "/proc/self/exe".into()));
    let mut arguments = env::args_os();
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    command.args(arguments).exec()
}

/// Reads what this process uses.
pub fn usage() -> io::Result<Usage> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let ticks = rustix::param::clock_ticks_per_second();
    let page_size = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
    let usage = parse_stat(&stat, ticks, page_size)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "/proc/self/stat is unusual"))?;
    let limits = fs::read_to_string("/proc/self/limits")?;
    // One of them is the one that lists the others.
    let open_files = fs::read_dir("/proc/self/fd")?.count().saturating_sub(1);
    Ok(Usage {
        open_files: u64::try_from(open_files).unwrap_or(u64::MAX),
        max_open_files: parse_limit(&limits, "Max open files"),
        max_virtual_memory_bytes: parse_limit(&limits, "Max address space"),
        ..usage
    })
}

/// What was used so far, to the microsecond, by this process and by those of its children that
/// have ended and were waited for (getrusage(2)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time on a processor, in user and kernel mode.
    pub cpu: Duration,
    /// The most memory that one child ever occupied; 0 without children.
    pub largest_child_bytes: u64,
}

/// Reads what was used so far.
pub fn spent() -> io::Result<Spent> {
    let own = sys::resources_used(libc::RUSAGE_SELF)?;
    let children = sys::resources_used(libc::RUSAGE_CHILDREN)?;
    let times = [own.ru_utime, own.ru_stime, children.ru_utime, children.ru_stime];
    let kib = u64::try_from(children.ru_maxrss).unwrap_or(0);
    Ok(Spent {
        cpu: times.into_iter().map(span).sum(),
        largest_child_bytes: kib.saturating_mul(1024),
    })
}

/// A span of time; the kernel gives none that is negative.
fn span(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec).unwrap_or(0);
    Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros))
}

/// Lets the kernel kill this process as soon as the thread that started it is gone (prctl(2)).
pub fn end_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
}

fn parse_stat(stat: &str, ticks: u64, page_size: u64) -> Option<Usage> {
    // The second field is the name in parentheses, which may hold anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    // Field numbers as in proc(5); the first one after the name is number 3.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let cpu_ticks = field(14)?.saturating_add(field(15)?);
    Some(Usage {
        cpu: Duration::from_millis(cpu_ticks.saturating_mul(1000) / ticks.max(1)),
        threads: field(20)?,
        virtual_memory_bytes: field(23)?,
        resident_memory_bytes: field(24)?.saturating_mul(page_size),
        ..Usage::default()
    })
}

/// The soft limit of this name.
fn parse_limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stat_is_parsed() {
        let stat = "7 (a) b) S 1 7 7 0 -1 0 1 2 3 4 150 50 0 0 20 0 3 0 99 4096 5 0 0";
        let usage = parse_stat(stat, 100, 4096).unwrap();
        assert_eq!(usage.cpu, Duration::from_secs(2));
        assert_eq!((usage.threads, usage.virtual_memory_bytes), (3, 4096));
        assert_eq!(usage.resident_memory_bytes, 5 * 4096);
        assert_eq!(parse_stat("7 (a) S 1", 100, 4096), None);
    }

    #[test]
    fn limits_are_parsed() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space  unlimited  \
                      unlimited  bytes\nMax open files  1024  4096  files\n";
        assert_eq!(parse_limit(limits, "Max open files"), Some(1024));
        assert_eq!(parse_limit(limits, "Max address space"), None);
    }

    #[test]
    fn what_a_child_used_is_counted_once_it_has_ended() {
        let before = spent().unwrap();
        let status = Command::new("sh").args(["-c", ":"]).status().unwrap();
        let after = spent().unwrap();
        assert!(status.success());
        assert!(after.cpu > before.cpu);
        assert!(after.largest_child_bytes > 0);
    }

    #[test]
    fn this_process_answers() {
        let usage = usage().unwrap();
        assert!(usage.open_files > 0 && usage.threads > 0 && usage.resident_memory_bytes > 0);
    }
}
