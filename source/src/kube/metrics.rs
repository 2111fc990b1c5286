//! What a source counts.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proxy_core::event::Kind;

use super::fault::Fault;

/// Why a list or watch had to be begun anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RestartReason {
    /// The answer broke off.
    Cut,
    /// The server ended a watch in good order.
    Ended,
    /// The server has forgotten that far back: everything is listed again.
    Expired,
    /// The answer made no sense.
    Garbage,
    /// The server refused, or there were no credentials.
    Refused,
    /// Nothing was heard for too long.
    Silent,
    /// The server could not be reached.
    Unreachable,
}

impl RestartReason {
    /// All reasons.
    pub const ALL: [Self; 7] = [
        Self::Cut,
        Self::Ended,
        Self::Expired,
        Self::Garbage,
        Self::Refused,
        Self::Silent,
        Self::Unreachable,
    ];

    /// A word for it, as in a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cut => "cut",
            Self::Ended => "ended",
            Self::Expired => "expired",
            Self::Garbage => "garbage",
            Self::Refused => "refused",
            Self::Silent => "silent",
            Self::Unreachable => "unreachable",
        }
    }

    pub(super) fn of(fault: &Fault) -> Self {
        match fault {
            fault if fault.is_expiry() => Self::Expired,
            Fault::Credentials(_) | Fault::Refused(_) => Self::Refused,
            Fault::Cut(_) => Self::Cut,
            Fault::Ended => Self::Ended,
            Fault::Garbage(_) => Self::Garbage,
            Fault::Silent(_) => Self::Silent,
            Fault::Unreachable(_) => Self::Unreachable,
        }
    }
}

/// Why an Event was never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum EventLoss {
    /// It could not be written while it was news.
    Outdated,
    /// Too many others wait to be written.
    Overflow,
    /// The server refused it.
    Refused,
}

impl EventLoss {
    /// All reasons.
    pub const ALL: [Self; 3] = [Self::Outdated, Self::Overflow, Self::Refused];

    /// A word for it, as in a metric's label.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Outdated => "outdated",
            Self::Overflow => "overflow",
            Self::Refused => "refused",
        }
    }
}

/// What a source has counted since it began. Reading costs nothing and never waits.
#[derive(Debug, Default)]
pub struct SourceMetrics {
    kinds: [KindMetrics; Kind::ALL.len()],
    /// Kinds that are in trouble, one bit each. Before the first answer all are.
    trouble: AtomicU64,
    /// When that last became or ceased to be zero, in milliseconds since 1970.
    since: AtomicU64,
    events_written: AtomicU64,
    events_lost: [AtomicU64; EventLoss::ALL.len()],
}

#[derive(Debug, Default)]
struct KindMetrics {
    lists: AtomicU64,
    watches: AtomicU64,
    undecodable: AtomicU64,
    restarts: [AtomicU64; RestartReason::ALL.len()],
}

impl SourceMetrics {
    pub(super) fn new() -> Self {
        let metrics = Self::default();
        metrics.trouble.store((1 << Kind::ALL.len()) - 1, Ordering::Relaxed);
        metrics.since.store(now(), Ordering::Relaxed);
        metrics
    }

    /// Complete lists of this kind that were handed over.
    pub fn lists(&self, kind: Kind) -> u64 {
        self.of(kind).lists.load(Ordering::Relaxed)
    }

    /// Watches of this kind that the server agreed to, streaming lists included.
    pub fn watches(&self, kind: Kind) -> u64 {
        self.of(kind).watches.load(Ordering::Relaxed)
    }

    /// Objects of this kind that could not be read and were skipped, repeats included.
    pub fn undecodable(&self, kind: Kind) -> u64 {
        self.of(kind).undecodable.load(Ordering::Relaxed)
    }

    /// Requests for this kind that came to their end for this reason.
    pub fn restarts(&self, kind: Kind, reason: RestartReason) -> u64 {
        self.restarts_of(kind, reason).load(Ordering::Relaxed)
    }

    /// Whether the server answers for every kind.
    pub fn is_connected(&self) -> bool {
        self.trouble.load(Ordering::Relaxed) == 0
    }

    /// Since when [`SourceMetrics::is_connected`] has been what it is.
    pub fn since(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.since.load(Ordering::Relaxed))
    }

    /// Events of this node that the server has taken, first ones and counts of repetitions.
    pub fn events_written(&self) -> u64 {
        self.events_written.load(Ordering::Relaxed)
    }

    /// Events of this node that were lost for this reason.
    pub fn events_lost(&self, reason: EventLoss) -> u64 {
        self.events_lost_for(reason).load(Ordering::Relaxed)
    }

    pub(super) fn count_event_written(&self) {
        self.events_written.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_event_lost(&self, reason: EventLoss) {
        self.events_lost_for(reason).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_list(&self, kind: Kind) {
        self.of(kind).lists.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_watch(&self, kind: Kind) {
        self.of(kind).watches.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_restart(&self, kind: Kind, fault: &Fault) {
        self.restarts_of(kind, RestartReason::of(fault)).fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn set_undecodable(&self, kind: Kind, count: u64) {
        self.of(kind).undecodable.store(count, Ordering::Relaxed);
    }

    /// Returns whether this changed whether the server answers.
    pub(super) fn set_trouble(&self, kind: Kind, trouble: bool) -> bool {
        let bit = 1 << index(kind);
        let before = if trouble {
            self.trouble.fetch_or(bit, Ordering::Relaxed)
        } else {
            self.trouble.fetch_and(!bit, Ordering::Relaxed)
        };
        let after = if trouble { before | bit } else { before & !bit };
        let changed = (before == 0) != (after == 0);
        if changed {
            self.since.store(now(), Ordering::Relaxed);
        }
        changed
    }

    fn of(&self, kind: Kind) -> &KindMetrics {
        &self.kinds[index(kind)]
    }

    fn events_lost_for(&self, reason: EventLoss) -> &AtomicU64 {
        let place = EventLoss::ALL.iter().position(|other| *other == reason);
        &self.events_lost[place.unwrap_or_default()]
    }

    fn restarts_of(&self, kind: Kind, reason: RestartReason) -> &AtomicU64 {
        let place = RestartReason::ALL.iter().position(|other| *other == reason);
        &self.of(kind).restarts[place.unwrap_or_default()]
    }
}

fn index(kind: Kind) -> usize {
    Kind::ALL.iter().position(|other| *other == kind).unwrap_or_default()
}

fn now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connected_means_every_kind_is_answered_for() {
        let metrics = SourceMetrics::new();
        assert!(!metrics.is_connected());
        let changes: Vec<_> =
            Kind::ALL.into_iter().map(|kind| metrics.set_trouble(kind, false)).collect();
        assert_eq!(changes, [false, false, false, true]);
        assert!(metrics.is_connected());
        assert!(metrics.set_trouble(Kind::Node, true));
        assert!(!metrics.set_trouble(Kind::Node, true));
        assert!(!metrics.is_connected());
        assert!(metrics.since() <= SystemTime::now());
    }

    #[test]
    fn each_reason_has_a_counter() {
        let metrics = SourceMetrics::new();
        metrics.count_restart(Kind::Node, &Fault::Unreachable(String::new()));
        metrics.count_restart(Kind::Node, &Fault::Ended);
        let counts: Vec<_> = RestartReason::ALL
            .into_iter()
            .map(|reason| metrics.restarts(Kind::Node, reason))
            .collect();
        assert_eq!(counts, [0, 1, 0, 0, 0, 0, 1]);
    }
}
