//! Facts about this machine and this process.

use std::fs;
use std::io;
use std::path::Path;

use crate::sysctl::{self, SysctlError};

/// A fact could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// A file of procfs could not be read.
    #[error("read {path}")]
    Read {
        /// The file.
        path: &'static str,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// A file of procfs has not the expected content.
    #[error("{path} does not tell {what}")]
    Content {
        /// The file.
        path: &'static str,
        /// What was looked for.
        what: &'static str,
    },
    /// A setting could not be read.
    #[error(transparent)]
    Sysctl(#[from] SysctlError),
}

/// The host name of the calling thread's UTS namespace.
pub fn hostname() -> Result<String, HostError> {
    Ok(sysctl::read("kernel.hostname")?)
}

/// The kernel release, such as `6.1.0-18-amd64`.
pub fn kernel_release() -> Result<String, HostError> {
    Ok(sysctl::read("kernel.osrelease")?)
}

/// The kernel version as (major, minor), such as `(6, 1)`.
///
/// Distributions back-port, so this is for reports; ask the kernel itself what it can do.
pub fn kernel_version() -> Result<(u32, u32), HostError> {
    parse_version(&kernel_release()?).ok_or(HostError::Content {
        path: "/proc/sys/kernel/osrelease",
        what: "major and minor version",
    })
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The effective capabilities of the calling thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// `CAP_NET_ADMIN` (`linux/capability.h`).
    pub const NET_ADMIN: u32 = 12;
    /// `CAP_NET_RAW` (`linux/capability.h`).
    pub const NET_RAW: u32 = 13;
    /// `CAP_SYS_MODULE` (`linux/capability.h`).
    pub const SYS_MODULE: u32 = 16;
    /// `CAP_SYS_ADMIN` (`linux/capability.h`).
    pub const SYS_ADMIN: u32 = 21;

    /// Whether a capability, given by number, is effective.
    pub const fn has(self, capability: u32) -> bool {
        capability < u64::BITS && self.0 & (1 << capability) != 0
    }

    /// Whether the network may be changed.
    pub const fn has_net_admin(self) -> bool {
        self.has(Self::NET_ADMIN)
    }

    /// The bit mask.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// The effective capabilities of the calling thread.
pub fn capabilities() -> Result<Capabilities, HostError> {
    const PATH: &str = "/proc/thread-self/status";
    parse_capabilities(&read(PATH)?)
        .ok_or(HostError::Content { path: PATH, what: "effective capabilities" })
}

fn parse_capabilities(status: &str) -> Option<Capabilities> {
    let value = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(value.trim(), 16).ok().map(Capabilities)
}

/// Whether IPv6 can be used in the calling thread's network namespace: the kernel has it, and it
/// is not switched off.
pub fn has_ipv6() -> bool {
    // Not /proc/net, which is the main thread's namespace.
    Path::new("/proc/thread-self/net/if_inet6").exists()
        && sysctl::read("net.ipv6.conf.all.disable_ipv6").is_ok_and(|value| value != "1")
}

/// How much memory this process occupies (resident set size).
pub fn resident_memory_bytes() -> Result<u64, HostError> {
    const PATH: &str = "/proc/self/statm";
    let pages = parse_resident_pages(&read(PATH)?)
        .ok_or(HostError::Content { path: PATH, what: "resident pages" })?;
    let page_size = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
    Ok(pages.saturating_mul(page_size))
}

/// The second field is the resident set size in pages (proc(5)).
fn parse_resident_pages(statm: &str) -> Option<u64> {
    statm.split_whitespace().nth(1)?.parse().ok()
}

fn read(path: &'static str) -> Result<String, HostError> {
    fs::read_to_string(path).map_err(|source| HostError::Read { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed() {
        let check = |release: &str, expected| assert_eq!(parse_version(release), expected);
        check("6.1.0-18-amd64", Some((6, 1)));
        check("5.10", Some((5, 10)));
        check("6.18-rc1", Some((6, 18)));
        check("six", None);
        check("", None);
    }

    #[test]
    fn capabilities_are_parsed() {
        let status = "Name:\tx\nCapPrm:\t0\nCapEff:\t0000000000003000\nCapBnd:\tffff\n";
        let capabilities = parse_capabilities(status).unwrap();
        assert!(capabilities.has_net_admin() && capabilities.has(Capabilities::NET_RAW));
        assert!(!capabilities.has(Capabilities::SYS_ADMIN) && !capabilities.has(200));
        assert_eq!(parse_capabilities("CapEff: zz"), None);
        assert_eq!(parse_capabilities(""), None);
    }

    #[test]
    fn resident_pages_are_parsed() {
        assert_eq!(parse_resident_pages("100 25 3 1 0 9 0\n"), Some(25));
        assert_eq!(parse_resident_pages("100"), None);
    }

    #[test]
    fn this_machine_answers() {
        assert!(!hostname().unwrap().is_empty());
        assert!(kernel_version().unwrap() >= (4, 0));
        assert!(resident_memory_bytes().unwrap() > 100_000);
        capabilities().unwrap();
    }
}
