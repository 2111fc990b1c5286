//! Running the programs of iptables.

use std::fmt;
use std::fs;
use std::str::FromStr;
use std::time::Duration;

use node_sys::program::{self, Output, ProgramError};
use proxy_core::address::IpFamily;
use proxy_core::table::{TableError, TableErrorKind};

use crate::drift::nft::OwnProcess;
use crate::model::Table;

/// No run takes longer, whatever the machine.
const LIMIT: Duration = Duration::from_secs(300);
/// How long a run waits for the lock, in seconds.
const LOCK_SECONDS: &str = "5";
/// Exit code of the programs for want of a resource: the lock, in the legacy variant.
const RESOURCE_PROBLEM: i32 = 4;
/// The first version that can make source ports fully random.
const MIN_VERSION: (u32, u32, u32) = (1, 6, 2);
/// Chains of the kubelet, which tell what variant it uses.
const KUBELET_CHAINS: [&str; 2] = [":KUBE-IPTABLES-HINT ", ":KUBE-KUBELET-CANARY "];
/// Tells the legacy variant where the lock is.
const LOCK_FILE: &str = "XTABLES_LOCKFILE";

/// The two kinds of iptables, which do not see each other's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// Rules are kept by nf_tables.
    Nft,
    /// Rules are kept by ip_tables, a table a piece.
    Legacy,
}

impl Variant {
    /// Its name in names of programs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nft => "nft",
            Self::Legacy => "legacy",
        }
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Variant {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "nft" => Ok(Self::Nft),
            "legacy" => Ok(Self::Legacy),
            _ => Err(()),
        }
    }
}

/// The programs of iptables cannot be used, or have failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum ToolError {
    /// There is no such program.
    Missing {
        /// What was looked for.
        programs: Vec<String>,
    },
    /// The program is too old.
    TooOld {
        /// The program.
        program: String,
        /// What it says of its version.
        version: String,
    },
    /// The program could not be run to its end.
    Program(ProgramError),
    /// Somebody else held the lock all the time.
    Locked {
        /// The program.
        program: String,
    },
    /// The program failed.
    Failed {
        /// The program.
        program: String,
        /// Its exit status, and what it said.
        message: String,
    },
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { programs } => write!(
                f,
                "none of the programs {} was found: install iptables, or use another mode",
                programs.join(", ")
            ),
            Self::TooOld { program, version } => {
                let (major, minor, patch) = MIN_VERSION;
                write!(f, "{program} is {version}; {major}.{minor}.{patch} or later is needed")
            }
            Self::Program(error) => write!(f, "{error}"),
            Self::Locked { program } => write!(
                f,
                "{program} waited {LOCK_SECONDS} s for the lock of iptables, which another program \
                 holds"
            ),
            Self::Failed { program, message } => write!(f, "{program}: {message}"),
        }
    }
}

impl std::error::Error for ToolError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Program(error) => error.source(),
            _ => None,
        }
    }
}

impl ToolError {
    /// The error of a table; `operation` completes "failed to …".
    pub fn into_table_error(self, operation: impl Into<String>) -> TableError {
        let kind = match &self {
            Self::Missing { .. } | Self::TooOld { .. } => TableErrorKind::Unsupported,
            Self::Program(_) => TableErrorKind::Transient,
            Self::Locked { .. } => TableErrorKind::Busy,
            Self::Failed { .. } => TableErrorKind::Rejected,
        };
        TableError::new(kind, operation).with_source(self)
    }
}

/// The programs of one family in one variant.
#[derive(Clone, Debug)]
pub struct Tool {
    family: IpFamily,
    variant: Variant,
    save: String,
    restore: String,
}

fn base_name(family: IpFamily) -> &'static str {
    match family {
        IpFamily::V4 => "iptables",
        IpFamily::V6 => "ip6tables",
    }
}

impl Tool {
    /// Finds the programs of this variant. `iptables-nft` is preferred to a plain `iptables` of the
    /// same variant.
    pub fn find(family: IpFamily, variant: Variant) -> Result<Self, ToolError> {
        let base = base_name(family);
        let named = format!("{base}-{variant}");
        for program in [named.as_str(), base] {
            let Some(version) = version(program)? else { continue };
            if version.variant != variant {
                continue;
            }
            if version.number < MIN_VERSION {
                return Err(ToolError::TooOld {
                    program: program.to_owned(),
                    version: version.text,
                });
            }
            let (save, restore) = (format!("{program}-save"), format!("{program}-restore"));
            return Ok(Self { family, variant, save, restore });
        }
        Err(ToolError::Missing { programs: vec![named, base.to_owned()] })
    }

    /// Those of every variant that may hold rules. Without programs there are none to be read.
    pub fn all(family: IpFamily) -> Result<Vec<Self>, ToolError> {
        let mut variants = vec![Variant::Nft];
        variants.extend(legacy_in_use(family).then_some(Variant::Legacy));
        let found = variants.into_iter().map(|variant| match Self::find(family, variant) {
            Err(ToolError::Missing { .. }) => Ok(None),
            found => found.map(Some),
        });
        found.filter_map(Result::transpose).collect()
    }

    /// The variant that the rest of the node uses, so that rules are seen by all: that of the
    /// kubelet's chains, else the one with more rules, else that of the program `iptables`.
    pub fn detect(family: IpFamily) -> Result<Self, ToolError> {
        let nft = Self::find(family, Variant::Nft);
        // Asking would load the legacy tables where nobody uses them.
        let legacy = if legacy_in_use(family) || nft.is_err() {
            Self::find(family, Variant::Legacy)
        } else {
            Err(ToolError::Missing { programs: Vec::new() })
        };
        let (nft, legacy) = match (nft, legacy) {
            (Ok(nft), Ok(legacy)) => (nft, legacy),
            (Ok(only), Err(_)) | (Err(_), Ok(only)) => return Ok(only),
            (Err(error), Err(_)) => return Err(error),
        };
        let (in_nft, in_legacy) = (nft.rules_of_others(), legacy.rules_of_others());
        for (tool, uses) in [(&nft, &in_nft), (&legacy, &in_legacy)] {
            if uses.has_kubelet {
                return Ok(tool.clone());
            }
        }
        if in_nft.rules > 0 && in_legacy.rules > 0 {
            tracing::warn!(
                %family, nft = in_nft.rules, legacy = in_legacy.rules,
                "rules are in use in both variants of iptables, which do not see each other; \
                 choosing the one with more (iptables.variant overrides)"
            );
        }
        Ok(if in_legacy.rules > in_nft.rules { legacy } else { nft })
    }

    /// The family.
    pub fn family(&self) -> IpFamily {
        self.family
    }

    /// The variant.
    pub fn variant(&self) -> Variant {
        self.variant
    }

    /// Reads the tables, to see that it can be done: by this process, on this kernel.
    pub fn check(&self) -> Result<(), ToolError> {
        Table::ALL.into_iter().try_for_each(|table| self.save(table).map(drop))
    }

    /// All chains and rules of a table, in the form of `iptables-save`.
    pub fn save(&self, table: Table) -> Result<String, ToolError> {
        self.save_named(table.as_str())
    }

    /// The same of a table that mode iptables has no rules in, such as `mangle`.
    pub fn save_named(&self, table: &str) -> Result<String, ToolError> {
        let output = self.run(&self.save, &["-t", table], b"")?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Takes the steps of a script, in the form of `iptables-restore`. Chains that it does not name
    /// stay as they are.
    pub fn restore(&self, script: &str) -> Result<(), ToolError> {
        let arguments = ["-w", LOCK_SECONDS, "--noflush"];
        self.run(&self.restore, &arguments, script.as_bytes()).map(drop)
    }

    fn run(&self, program: &str, arguments: &[&str], input: &[u8]) -> Result<Output, ToolError> {
        let writes_nft = self.variant == Variant::Nft && program == self.restore;
        let started = |id| writes_nft.then(|| OwnProcess::enter(id));
        let output = program::run_in(program, arguments, &[LOCK_FILE], input, LIMIT, started)
            .map_err(ToolError::Program)?;
        if output.status.success() {
            return Ok(output);
        }
        let program = program.to_owned();
        let is_legacy = self.variant == Variant::Legacy;
        if is_legacy && output.status.code() == Some(RESOURCE_PROBLEM) {
            return Err(ToolError::Locked { program });
        }
        let said = String::from_utf8_lossy(&output.stderr);
        let said: Vec<&str> = said.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
        Err(ToolError::Failed {
            program,
            message: format!("{}: {}", output.status, said.join("; ")),
        })
    }

    /// What is there already; nothing where it cannot be read.
    fn rules_of_others(&self) -> InUse {
        let mut found = InUse::default();
        for table in ["mangle", "filter", "nat"] {
            let saved = self.save_named(table).unwrap_or_default();
            found.rules += saved.lines().filter(|line| line.starts_with('-')).count();
            found.has_kubelet |= saved
                .lines()
                .any(|line| KUBELET_CHAINS.iter().any(|chain| line.starts_with(chain)));
        }
        found
    }
}

#[derive(Debug, Default)]
struct InUse {
    rules: usize,
    has_kubelet: bool,
}

/// Whether the kernel has a table of the legacy variant.
fn legacy_in_use(family: IpFamily) -> bool {
    // Of this thread's network namespace.
    let file = match family {
        IpFamily::V4 => "/proc/thread-self/net/ip_tables_names",
        IpFamily::V6 => "/proc/thread-self/net/ip6_tables_names",
    };
    fs::read_to_string(file).is_ok_and(|names| !names.trim().is_empty())
}

struct Version {
    number: (u32, u32, u32),
    variant: Variant,
    text: String,
}

/// What a program says of its version; `None` if there is no such program.
fn version(program: &str) -> Result<Option<Version>, ToolError> {
    match program::run(program, &["--version"], b"", LIMIT) {
        Ok(output) => Ok(parse_version(&String::from_utf8_lossy(&output.stdout))),
        Err(ProgramError::Start { source, .. })
            if source.kind() == std::io::ErrorKind::NotFound =>
        {
            Ok(None)
        }
        Err(error) => Err(ToolError::Program(error)),
    }
}

/// `iptables v1.8.9 (nf_tables)`; before 1.8 there was only what is legacy now.
fn parse_version(text: &str) -> Option<Version> {
    let text = text.trim();
    let number = text.split_once(" v")?.1.split([' ', '-']).next()?;
    let mut parts = number.split('.').map(|part| part.parse().ok());
    let number = (parts.next()??, parts.next()??, parts.next().flatten().unwrap_or(0));
    let variant = if text.contains("(nf_tables)") { Variant::Nft } else { Variant::Legacy };
    Some(Version { number, variant, text: text.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        for (text, number, variant) in [
            ("iptables v1.8.9 (nf_tables)\n", (1, 8, 9), Variant::Nft),
            ("ip6tables v1.8.9 (legacy)", (1, 8, 9), Variant::Legacy),
            ("iptables v1.6.0", (1, 6, 0), Variant::Legacy),
            ("iptables v1.8", (1, 8, 0), Variant::Legacy),
        ] {
            let version = parse_version(text).unwrap();
            assert_eq!((version.number, version.variant), (number, variant), "{text}");
        }
        assert!(parse_version("not found").is_none());
    }
}
