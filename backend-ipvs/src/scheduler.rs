//! How virtual servers choose among their real servers (`ipvsadm(8)`).

use std::fmt;
use std::str::FromStr;

/// A scheduler of IPVS; each is a kernel module, `ip_vs_NAME`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scheduler {
    /// Round robin.
    #[default]
    Rr,
    /// Weighted round robin.
    Wrr,
    /// Least connections.
    Lc,
    /// Weighted least connections.
    Wlc,
    /// Locality-based least connections.
    Lblc,
    /// The same with replication.
    Lblcr,
    /// By hash of the source address.
    Sh,
    /// By hash of the destination address.
    Dh,
    /// Shortest expected delay.
    Sed,
    /// Never queue.
    Nq,
    /// Maglev hashing, of address and port.
    Mh,
}

impl Scheduler {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Rr,
        Self::Wrr,
        Self::Lc,
        Self::Wlc,
        Self::Lblc,
        Self::Lblcr,
        Self::Sh,
        Self::Dh,
        Self::Sed,
        Self::Nq,
        Self::Mh,
    ];

    /// Its name in the kernel.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rr => "rr",
            Self::Wrr => "wrr",
            Self::Lc => "lc",
            Self::Wlc => "wlc",
            Self::Lblc => "lblc",
            Self::Lblcr => "lblcr",
            Self::Sh => "sh",
            Self::Dh => "dh",
            Self::Sed => "sed",
            Self::Nq => "nq",
            Self::Mh => "mh",
        }
    }

    /// Flags it needs. Maglev is told to hash the port as well (`IP_VS_SVC_F_SCHED_MH_PORT`), as
    /// kube-proxy does: many clients may stand behind one address.
    pub(crate) fn flags(self) -> u32 {
        match self {
            Self::Mh => 0x0010,
            _ => 0,
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
#[error("no IPVS scheduler is called {0:?}; there are {all}", all = names())]
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
