//! The programs iptables-save and iptables-restore, for the fixed rules.

use std::time::Duration;

use node_sys::program::{self, Output, ProgramError};
use proxy_core::address::IpFamily;
use proxy_core::table::{TableError, TableErrorKind};

/// How long a program may take, the wait for the lock included.
const LIMIT: Duration = Duration::from_secs(30);
/// Seconds to wait for the lock of the legacy variant.
const LOCK_WAIT: &str = "5";
/// How iptables-restore ends when somebody else holds the lock (`RESOURCE_PROBLEM`).
const RESOURCE_PROBLEM: i32 = 4;

/// The programs of one family and variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tool {
    save: &'static str,
    restore: &'static str,
}

impl Tool {
    const fn legacy(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => {
                Self { save: "iptables-legacy-save", restore: "iptables-legacy-restore" }
            }
            IpFamily::V6 => {
                Self { save: "ip6tables-legacy-save", restore: "ip6tables-legacy-restore" }
            }
        }
    }

    const fn nft(family: IpFamily) -> Self {
        match family {
            IpFamily::V4 => Self { save: "iptables-nft-save", restore: "iptables-nft-restore" },
            IpFamily::V6 => Self { save: "ip6tables-nft-save", restore: "ip6tables-nft-restore" },
        }
    }

    /// The variant that the host's rules are in, or else one that this kernel accepts.
    pub(crate) fn find(family: IpFamily) -> Result<Self, TableError> {
        let (nft, legacy) = (Self::nft(family), Self::legacy(family));
        let rules = |tool: Self| tool.save().map_or(0, |saved| count_rules(&saved));
        let prefers_legacy = has_legacy_tables(family) && rules(legacy) > rules(nft);
        let candidates = if prefers_legacy { [legacy, nft] } else { [nft, legacy] };
        let works = |tool: &Self| tool.restore(TRIAL).is_ok();
        candidates.into_iter().find(works).ok_or_else(|| {
            let operation = "find a variant of iptables that works on this kernel";
            TableError::new(TableErrorKind::Unsupported, operation)
        })
    }

    /// All rules of all tables.
    pub(crate) fn save(self) -> Result<String, TableError> {
        let output = run(self.save, &[], b"")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Applies lines without touching what they do not name.
    pub(crate) fn restore(self, input: &str) -> Result<(), TableError> {
        run(self.restore, &["--noflush", "-w", LOCK_WAIT], input.as_bytes()).map(drop)
    }
}

/// Makes a chain and takes it away again: nothing is left, but the kernel was asked.
const TRIAL: &str = "*mangle\n:PROXYD-IPVS-TRIAL - [0:0]\n-X PROXYD-IPVS-TRIAL\nCOMMIT\n";

/// Whether tables of the legacy variant are in use: the kernel makes them only for who asks.
fn has_legacy_tables(family: IpFamily) -> bool {
    let path = match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    std::fs::read_to_string(path).is_ok_and(|names| !names.trim().is_empty())
}

fn count_rules(saved: &str) -> usize {
    saved.lines().filter(|line| line.starts_with("-A ")).count()
}

fn run(program: &str, arguments: &[&str], input: &[u8]) -> Result<Output, TableError> {
    let output = program::run(program, arguments, input, LIMIT).map_err(|error| {
        let kind = match &error {
            ProgramError::Start { .. } => TableErrorKind::Unsupported,
            _ => TableErrorKind::Transient,
        };
        TableError::new(kind, format!("run {program}")).with_source(error)
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let kind = match output.status.code() {
        Some(RESOURCE_PROBLEM) => TableErrorKind::Transient,
        _ => TableErrorKind::Rejected,
    };
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim().replace('\n', "; ");
    Err(TableError::new(kind, format!("run {program}: {}: {said}", output.status)))
}
