//! Real servers that get no new connections and go with their last one; pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::ipvs::ListedReal;
use crate::model::ServerKey;

/// A real server: address and port.
pub(crate) type Real = (IpAddr, u16);

/// Which real servers drain, and since when.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    since: BTreeMap<ServerKey, BTreeMap<Real, Instant>>,
}

/// What to do about a virtual server's draining real servers.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Due {
    /// These have no connection left.
    pub(crate) idle: Vec<Real>,
    /// These had as much time as they get.
    pub(crate) overdue: Vec<Real>,
}

impl Drain {
    /// Begins to drain; one that drains already keeps its time.
    pub(crate) fn begin(&mut self, server: ServerKey, real: Real, now: Instant) {
        self.since.entry(server).or_default().entry(real).or_insert(now);
    }

    /// It is gone, or in use again.
    pub(crate) fn end(&mut self, server: &ServerKey, real: Real) {
        if let Some(reals) = self.since.get_mut(server) {
            reals.remove(&real);
            if reals.is_empty() {
                self.since.remove(server);
            }
        }
    }

    /// Forgets what is not among these.
    pub(crate) fn retain(&mut self, keep: impl Fn(&ServerKey, Real) -> bool) {
        self.since.retain(|server, reals| {
            reals.retain(|real, _| keep(server, *real));
            !reals.is_empty()
        });
    }

    /// Whether a virtual server has draining real servers.
    pub(crate) fn is_draining(&self, server: &ServerKey) -> bool {
        self.since.contains_key(server)
    }

    /// Whether nothing drains.
    pub(crate) fn is_empty(&self) -> bool {
        self.since.is_empty()
    }

    /// Virtual servers with draining real servers.
    pub(crate) fn servers(&self) -> Vec<ServerKey> {
        self.since.keys().copied().collect()
    }

    /// Which of a virtual server's draining real servers have to go, given what the kernel lists.
    /// One that is not listed any more is forgotten: somebody else removed it.
    pub(crate) fn due(
        &mut self,
        server: &ServerKey,
        listed: &[ListedReal],
        limit: Duration,
        now: Instant,
    ) -> Due {
        let mut due = Due::default();
        let Some(reals) = self.since.get_mut(server) else { return due };
        reals.retain(|real, since| {
            let Some(found) = listed.iter().find(|it| (it.address, it.port) == *real) else {
                return false;
            };
            if found.connections == 0 {
                due.idle.push(*real);
            } else if now.saturating_duration_since(*since) >= limit {
                due.overdue.push(*real);
            }
            true
        });
        if reals.is_empty() {
            self.since.remove(server);
        }
        due
    }
}

#[cfg(test)]
mod tests;
