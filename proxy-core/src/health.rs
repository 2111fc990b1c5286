//! Whether the proxy does its work (S14). Pure: times are arguments.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::address::IpFamily;

/// What is known of one family's syncs.
#[derive(Clone, Copy, Debug, Default)]
struct FamilyHealth {
    /// When it was last in step.
    last_updated: Option<SystemTime>,
    /// Since when something waits to be written.
    oldest_pending: Option<Instant>,
}

/// Health of all families.
#[derive(Clone, Debug)]
pub struct Health {
    limit: Duration,
    families: BTreeMap<IpFamily, FamilyHealth>,
}

impl Health {
    /// Health that turns bad when something waits for `limit` or longer (S14.2).
    pub fn new(limit: Duration) -> Self {
        Self { limit, families: BTreeMap::new() }
    }

    /// The loop of a family has started (S14.2). It counts from now on.
    pub fn started(&mut self, family: IpFamily, now: SystemTime) {
        self.families.entry(family).or_default().last_updated = Some(now);
    }

    /// Something waits to be written since now, unless something waits for longer. To be called
    /// when the first lists are complete, too: until the first sync there are no rules (S14.5).
    pub fn queued(&mut self, family: IpFamily, now: Instant) {
        self.families.entry(family).or_default().oldest_pending.get_or_insert(now);
    }

    /// The family is in step.
    pub fn synced(&mut self, family: IpFamily, now: SystemTime) {
        let health = self.families.entry(family).or_default();
        health.last_updated = Some(now);
        health.oldest_pending = None;
    }

    /// The health at this time. Families that have not started are not looked at.
    pub fn report(&self, now: Instant, time: SystemTime, node_eligible: bool) -> HealthReport {
        let families = self
            .families
            .iter()
            .filter_map(|(family, health)| {
                let late = health
                    .oldest_pending
                    .is_some_and(|pending| now.saturating_duration_since(pending) >= self.limit);
                Some((*family, (health.last_updated?, !late)))
            })
            .collect();
        HealthReport { time, node_eligible, families }
    }
}

/// The health at one time.
#[derive(Clone, Debug)]
pub struct HealthReport {
    time: SystemTime,
    node_eligible: bool,
    families: BTreeMap<IpFamily, (SystemTime, bool)>,
}

impl HealthReport {
    /// Whether every family is in step or not long behind: `/livez` answers 200 (S14.3).
    pub fn is_healthy(&self) -> bool {
        self.families.values().all(|(_, healthy)| *healthy)
    }

    /// Whether the node should get traffic from load balancers as well: `/healthz` answers 200.
    pub fn is_ready(&self) -> bool {
        self.is_healthy() && self.node_eligible
    }

    /// Body of the answer to `/healthz` (S14.4).
    pub fn healthz(&self) -> HealthBody {
        self.body(self.is_ready(), Some(self.node_eligible))
    }

    /// Body of the answer to `/livez` (S14.4).
    pub fn livez(&self) -> HealthBody {
        self.body(self.is_healthy(), None)
    }

    fn body(&self, good: bool, node_eligible: Option<bool>) -> HealthBody {
        let newest = self.families.values().map(|(updated, _)| *updated).max();
        let last_updated = if good { Some(self.time) } else { newest };
        let status = self.families.iter().map(|(family, (updated, healthy))| {
            let status = FamilyStatus { last_updated: text(*updated), healthy: *healthy };
            (family.to_string(), status)
        });
        HealthBody {
            last_updated: text(last_updated.unwrap_or(SystemTime::UNIX_EPOCH)),
            current_time: text(self.time),
            node_eligible,
            healthy: self.is_healthy(),
            status: status.collect(),
        }
    }
}

fn text(time: SystemTime) -> String {
    // Only years beyond 9999 cannot be written.
    OffsetDateTime::from(time).format(&Rfc3339).unwrap_or_default()
}

/// Body of an answer about health; its fields are in the order they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct HealthBody {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    status: BTreeMap<String, FamilyStatus>,
}

/// Health of one family in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyStatus {
    last_updated: String,
    healthy: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    struct Clock {
        start: Instant,
        epoch: SystemTime,
    }

    impl Clock {
        fn new() -> Self {
            let epoch = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
            Self { start: Instant::now(), epoch }
        }

        fn at(&self, seconds: u64) -> (Instant, SystemTime) {
            let passed = Duration::from_secs(seconds);
            (self.start + passed, self.epoch + passed)
        }
    }

    fn json(body: &HealthBody) -> String {
        serde_json::to_string(body).unwrap()
    }

    #[test]
    fn s14_2_one_late_family_is_bad_health() {
        let clock = Clock::new();
        let mut health = Health::new(LIMIT);
        for family in IpFamily::ALL {
            health.started(family, clock.at(0).1);
            health.queued(family, clock.at(0).0);
        }
        health.synced(IpFamily::V4, clock.at(1).1);
        // Later requests do not hide that the first one waits.
        health.queued(IpFamily::V6, clock.at(59).0);
        let report = |seconds| {
            let (now, time) = clock.at(seconds);
            health.report(now, time, true)
        };
        assert!(report(59).is_ready());
        assert!(!report(60).is_healthy());
        assert_eq!(
            json(&report(60).livez()),
            r#"{"lastUpdated":"2001-09-09T01:46:41Z","currentTime":"2001-09-09T01:47:40Z","healthy":false,"status":{"IPv4":{"lastUpdated":"2001-09-09T01:46:41Z","healthy":true},"IPv6":{"lastUpdated":"2001-09-09T01:46:40Z","healthy":false}}}"#
        );
    }

    #[test]
    fn s14_4_an_ineligible_node_is_healthy_but_not_ready() {
        let clock = Clock::new();
        let mut health = Health::new(LIMIT);
        health.started(IpFamily::V4, clock.at(0).1);
        let (now, time) = clock.at(5);
        let report = health.report(now, time, false);
        assert!(report.is_healthy() && !report.is_ready());
        assert_eq!(
            json(&report.healthz()),
            r#"{"lastUpdated":"2001-09-09T01:46:40Z","currentTime":"2001-09-09T01:46:45Z","nodeEligible":false,"healthy":true,"status":{"IPv4":{"lastUpdated":"2001-09-09T01:46:40Z","healthy":true}}}"#
        );
        assert_eq!(
            json(&health.report(now, time, true).healthz()),
            r#"{"lastUpdated":"2001-09-09T01:46:45Z","currentTime":"2001-09-09T01:46:45Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2001-09-09T01:46:40Z","healthy":true}}}"#
        );
    }

    #[test]
    fn s14_2_a_family_that_has_not_started_is_not_looked_at() {
        let clock = Clock::new();
        let mut health = Health::new(LIMIT);
        health.queued(IpFamily::V4, clock.at(0).0);
        let (now, time) = clock.at(600);
        assert!(health.report(now, time, true).is_ready());
        assert!(!json(&health.report(now, time, true).livez()).contains("status"));
    }
}
