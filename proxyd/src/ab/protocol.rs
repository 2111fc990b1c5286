//! What the program and its workers say to each other, one JSON document a line.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// What a worker is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Request {
    /// Make the namespaces, and see whether the mode can be used.
    Prepare,
    /// Program everything.
    Program,
    /// Do this for a while.
    Slice {
        /// What.
        activity: Activity,
        /// How long; what has begun is completed.
        time: Duration,
    },
}

/// What fills a slice of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Activity {
    /// One changed EndpointSlice after the other.
    Changes,
    /// One connection after the other.
    Connections,
    /// Datagrams of one flow.
    Datagrams,
    /// One TCP connection at full speed.
    Stream,
}

impl Activity {
    /// All, in the order in which they take turns.
    pub(super) const ALL: [Self; 4] =
        [Self::Changes, Self::Connections, Self::Datagrams, Self::Stream];

    /// The word for people.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Changes => "changes",
            Self::Connections => "connections",
            Self::Datagrams => "datagrams",
            Self::Stream => "stream",
        }
    }
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Answer {
    /// The mode can be used.
    Prepared,
    /// Everything is programmed.
    Programmed(Programmed),
    /// A slice has ended.
    Measured(Sample),
    /// It cannot be done, with the reason.
    Failed(String),
}

/// What programming everything took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Programmed {
    /// From the objects to all rules in the kernel.
    pub(super) time: Duration,
    /// Time on a processor, with that of programs that were run.
    pub(super) cpu: Duration,
    /// Memory of the process afterwards.
    pub(super) resident_bytes: u64,
    /// The most memory of a program that was run; 0 if none was.
    pub(super) largest_child_bytes: u64,
}

/// What was done in one slice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Sample {
    /// How long each change or connection took, in nanoseconds.
    pub(super) nanos: Vec<u64>,
    /// How long all of it took.
    pub(super) time: Duration,
    /// Time on a processor meanwhile, with that of programs that were run.
    pub(super) cpu: Duration,
    /// Number of changes, connections, packets that arrived, or bytes that arrived.
    pub(super) amount: u64,
}
