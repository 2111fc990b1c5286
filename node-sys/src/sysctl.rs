//! Reading and writing kernel settings below `/proc/sys`.
//!
//! Names are dotted, as for sysctl(8): `net.ipv4.ip_forward`. A dot inside a component, as in the
//! VLAN interface `eth0.7`, is written as a slash: `net.ipv4.conf.eth0/7.forwarding`. Settings
//! below `net` are those of the calling thread's network namespace.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;

/// A setting could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SysctlError {
    /// The name is not a dotted path.
    #[error("{name:?} is not the name of a sysctl")]
    Name {
        /// The name.
        name: String,
    },
    /// The kernel has no such setting; its module may not be loaded.
    #[error("sysctl {name} does not exist")]
    Missing {
        /// The name.
        name: String,
    },
    /// `/proc/sys` is mounted read-only, as in most containers.
    #[error("sysctl {name} is on a read-only file system")]
    ReadOnly {
        /// The name.
        name: String,
    },
    /// The privilege is missing, or the setting can only be read.
    #[error("sysctl {name} may not be accessed")]
    Permission {
        /// The name.
        name: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the value.
    #[error("sysctl {name} does not accept {value:?}")]
    Refused {
        /// The name.
        name: String,
        /// The value.
        value: String,
    },
    /// The content is not a number.
    #[error("sysctl {name} is {content:?}, not a number")]
    NotANumber {
        /// The name.
        name: String,
        /// What was read.
        content: String,
    },
    /// Anything else.
    #[error("access sysctl {name}")]
    Io {
        /// The name.
        name: String,
        /// Cause.
        #[source]
        source: io::Error,
    },
}

impl SysctlError {
    /// Whether the setting does not exist.
    pub const fn is_missing(&self) -> bool {
        matches!(self, Self::Missing { .. })
    }

    /// Whether writing is impossible for want of privilege or on a read-only mount.
    pub const fn is_denied(&self) -> bool {
        matches!(self, Self::ReadOnly { .. } | Self::Permission { .. })
    }
}

/// Reads a setting, without surrounding white space.
pub fn read(name: &str) -> Result<String, SysctlError> {
    let path = path(name)?;
    let content = fs::read_to_string(path).map_err(|source| error(name, source))?;
    Ok(content.trim().to_owned())
}

/// Reads a setting that is one number.
pub fn read_number(name: &str) -> Result<u64, SysctlError> {
    let content = read(name)?;
    content.parse().map_err(|_| SysctlError::NotANumber { name: name.to_owned(), content })
}

/// Writes a setting.
pub fn write(name: &str, value: &str) -> Result<(), SysctlError> {
    let path = path(name)?;
    // Neither created nor truncated: procfs knows only the files it has.
    let mut file =
        fs::OpenOptions::new().write(true).open(path).map_err(|source| error(name, source))?;
    // One write: the kernel takes each write as a whole value.
    file.write_all(format!("{value}\n").as_bytes()).map_err(|source| match source.kind() {
        io::ErrorKind::InvalidInput => {
            SysctlError::Refused { name: name.to_owned(), value: value.to_owned() }
        }
        _ => error(name, source),
    })
}

/// Writes a setting unless it has the value already; returns whether it had to be written.
///
/// This works on a read-only `/proc/sys` as long as somebody else has set the value.
pub fn ensure(name: &str, value: &str) -> Result<bool, SysctlError> {
    if read(name)? == value {
        return Ok(false);
    }
    write(name, value)?;
    Ok(true)
}

fn path(name: &str) -> Result<PathBuf, SysctlError> {
    let mut path = PathBuf::from("/proc/sys");
    for component in name.split('.') {
        let component = component.replace('/', ".");
        // Without these, and with no slash left, the path cannot leave /proc/sys.
        let forbidden = matches!(component.as_str(), "" | "." | "..");
        if forbidden || component.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return Err(SysctlError::Name { name: name.to_owned() });
        }
        path.push(component);
    }
    Ok(path)
}

fn error(name: &str, source: io::Error) -> SysctlError {
    let name = name.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound => SysctlError::Missing { name },
        io::ErrorKind::ReadOnlyFilesystem => SysctlError::ReadOnly { name },
        io::ErrorKind::PermissionDenied => SysctlError::Permission { name, source },
        _ => SysctlError::Io { name, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_paths() {
        let check = |name: &str, expected: &str| {
            assert_eq!(path(name).unwrap().to_str().unwrap(), expected);
        };
        check("net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward");
        check("net.ipv4.conf.eth0/7.forwarding", "/proc/sys/net/ipv4/conf/eth0.7/forwarding");
    }

    #[test]
    fn names_cannot_leave_the_tree() {
        let bad = ["", ".", "net..x", "..", "net.//.//.etc", "/", "net.//", "a\0b", "a b", "net."];
        for name in bad {
            assert!(matches!(path(name), Err(SysctlError::Name { .. })), "{name:?}");
        }
        // A slash becomes a dot, so this stays one harmless component.
        assert_eq!(path("net./etc").unwrap().to_str().unwrap(), "/proc/sys/net/.etc");
    }

    #[test]
    fn reads_and_reports_missing() {
        assert!(!read("kernel.osrelease").unwrap().is_empty());
        assert!(read_number("kernel.pid_max").unwrap() > 0);
        assert!(read("net.ipv4.no_such_setting").unwrap_err().is_missing());
        assert!(matches!(read_number("kernel.ostype"), Err(SysctlError::NotANumber { .. })));
        assert!(write("kernel.osrelease", "x").unwrap_err().is_denied());
    }
}
