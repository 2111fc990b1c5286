//! How a kernel that can choose among endpoints in several ways does so.

use std::fmt;
use std::str::FromStr;

/// A scheduler of IPVS (`net/netfilter/ipvs/ip_vs_*.c`). Other kernel facilities choose at random.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheduler {
    /// Destination hashing.
    Dh,
    /// Locality-based least connections.
    Lblc,
    /// Locality-based least connections with replication.
    Lblcr,
    /// Least connections.
    Lc,
    /// Maglev hashing.
    Mh,
    /// Never queue.
    Nq,
    /// Round robin.
    #[default]
    Rr,
    /// Shortest expected delay.
    Sed,
    /// Source hashing.
    Sh,
    /// Weighted least connections.
    Wlc,
    /// Weighted round robin.
    Wrr,
}

impl Scheduler {
    /// All of them, by name.
    pub const ALL: [Self; 11] = [
        Self::Dh,
        Self::Lblc,
        Self::Lblcr,
        Self::Lc,
        Self::Mh,
        Self::Nq,
        Self::Rr,
        Self::Sed,
        Self::Sh,
        Self::Wlc,
        Self::Wrr,
    ];

    /// Its name in the kernel.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dh => "dh",
            Self::Lblc => "lblc",
            Self::Lblcr => "lblcr",
            Self::Lc => "lc",
            Self::Mh => "mh",
            Self::Nq => "nq",
            Self::Rr => "rr",
            Self::Sed => "sed",
            Self::Sh => "sh",
            Self::Wlc => "wlc",
            Self::Wrr => "wrr",
        }
    }
}

impl fmt::Display for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A name that no scheduler has.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no scheduler is called {0:?}; there are {all}", all = names())]
pub struct UnknownScheduler(pub String);

fn names() -> String {
    Scheduler::ALL.map(Scheduler::as_str).join(", ")
}

impl FromStr for Scheduler {
    type Err = UnknownScheduler;

    fn from_str(name: &str) -> Result<Self, UnknownScheduler> {
        let known = Self::ALL.into_iter().find(|scheduler| scheduler.as_str() == name);
        known.ok_or_else(|| UnknownScheduler(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for scheduler in Scheduler::ALL {
            assert_eq!(scheduler.as_str().parse(), Ok(scheduler));
        }
        let error = "RR".parse::<Scheduler>().unwrap_err();
        assert!(error.to_string().contains("wrr"), "{error}");
    }
}
