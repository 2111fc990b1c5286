//! What is reported.

use serde::Serialize;

use super::figures::ModeResult;
use super::recommend::Recommendation;

/// What no run can measure, and why.
pub const LIMITS: &[&str] = &[
    "kernel memory of the rules: the kernel does not count it by network namespace",
    "work of kernel threads, such as freeing old rules: it is nobody's CPU time",
    "network cards and IPv6: packets cross two virtual cables, over IPv4",
];

/// The whole comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Where and what.
    pub setup: Setup,
    /// The modes that were measured.
    pub modes: Vec<ModeResult>,
    /// The modes that were not, each with the reason.
    pub not_measured: Vec<NotMeasured>,
    /// What else was not measured.
    pub limits: Vec<&'static str>,
    /// Absent if nothing could be measured.
    pub recommendation: Option<Recommendation>,
}

/// Where and what was measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Setup {
    /// Release of the kernel.
    pub kernel: String,
    /// Number of processors.
    pub cpus: usize,
    /// Number of Services.
    pub services: usize,
    /// Endpoints of each.
    pub endpoints: usize,
    /// How often each mode had its turn.
    pub rounds: u32,
    /// Length of one slice of time, of which each mode gets one per round and activity.
    pub slice_ms: u64,
}

/// A mode that could not be measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotMeasured {
    /// Its name.
    pub mode: String,
    /// Why.
    pub reason: String,
}
