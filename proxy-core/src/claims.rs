//! One owner for each frontend.
//!
//! Two Services may ask for the same address and port. A kernel table has one entry for it, so
//! one of them gets it: the same one on every node, after every restart, and whatever the order in
//! which they became known. When the owner lets go, the next one in line takes over.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::names::{ServiceName, ServicePortName};
use crate::resolved::{FrontendKey, FrontendKind};

/// A frontend that a service port asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    /// The frontend.
    pub(crate) key: FrontendKey,
    /// Where its address comes from.
    pub(crate) kind: FrontendKind,
    /// Name of the port that asks.
    pub(crate) port: Arc<str>,
}

/// Everything that one Service asks for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ServiceClaims {
    /// The Service.
    pub(crate) service: ServiceName,
    /// When the Service was created, as [`crate::store`] counts time; the older one wins.
    pub(crate) created: i64,
    /// The frontends.
    pub(crate) claims: Box<[Claim]>,
}

/// Cluster IPs are handed out by the cluster itself and so cannot be taken away by what a user
/// writes into `externalIPs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    ClusterIp,
    Outside,
    NodePort,
}

impl From<FrontendKind> for Rank {
    fn from(kind: FrontendKind) -> Self {
        match kind {
            FrontendKind::ClusterIp => Self::ClusterIp,
            FrontendKind::ExternalIp | FrontendKind::LoadBalancerIp => Self::Outside,
            FrontendKind::NodePort => Self::NodePort,
        }
    }
}

/// One who asks for a frontend; the smallest one gets it.
#[derive(Clone, Debug)]
struct Claimant {
    of: Arc<ServiceClaims>,
    /// Which of the claims.
    index: usize,
}

impl Claimant {
    fn claim(&self) -> &Claim {
        &self.of.claims[self.index]
    }

    fn order(&self) -> (Rank, i64, &ServiceName, &str) {
        let claim = self.claim();
        (claim.kind.into(), self.of.created, &self.of.service, &claim.port)
    }
}

impl PartialEq for Claimant {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Claimant {}

impl Ord for Claimant {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

impl PartialOrd for Claimant {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Who asks for which frontend, in one IP family.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    owners: HashMap<FrontendKey, Claimant>,
    /// Those who would have the frontend if its owner had not; few frontends have any.
    waiting: HashMap<FrontendKey, Vec<Claimant>>,
    services: HashMap<ServiceName, Arc<ServiceClaims>>,
}

impl Claims {
    /// Puts `claims` in place of everything the Service asked for before, and adds to `affected`
    /// the Services that compete for a frontend whose owner changed.
    pub(crate) fn replace(
        &mut self,
        service: &ServiceName,
        claims: Option<ServiceClaims>,
        affected: &mut BTreeSet<ServiceName>,
    ) {
        if self.services.get(service).map(|known| &**known) == claims.as_ref() {
            return;
        }
        if let Some(old) = self.services.remove(service) {
            for index in 0..old.claims.len() {
                self.release(&Claimant { of: Arc::clone(&old), index }, affected);
            }
        }
        if let Some(new) = claims.map(Arc::new) {
            for index in 0..new.claims.len() {
                self.add(Claimant { of: Arc::clone(&new), index }, affected);
            }
            self.services.insert(service.clone(), new);
        }
    }

    /// The service port that owns the frontend.
    pub(crate) fn owner(&self, key: &FrontendKey) -> Option<ServicePortName> {
        self.owners.get(key).map(|owner| ServicePortName {
            service: owner.of.service.clone(),
            port: Arc::clone(&owner.claim().port),
            protocol: key.protocol(),
        })
    }

    /// Whether this service port owns the frontend.
    pub(crate) fn is_owner(&self, key: &FrontendKey, service: &ServiceName, port: &str) -> bool {
        let owner = self.owners.get(key);
        owner.is_some_and(|it| it.of.service == *service && *it.claim().port == *port)
    }

    fn add(&mut self, mut claimant: Claimant, affected: &mut BTreeSet<ServiceName>) {
        let key = claimant.claim().key;
        let Some(owner) = self.owners.get_mut(&key) else {
            self.owners.insert(key, claimant);
            return;
        };
        let takes_over = claimant < *owner;
        if takes_over {
            std::mem::swap(&mut claimant, owner);
        }
        self.waiting.entry(key).or_default().push(claimant);
        if takes_over {
            affected.extend(self.contenders(&key));
        }
    }

    fn release(&mut self, claimant: &Claimant, affected: &mut BTreeSet<ServiceName>) {
        let key = claimant.claim().key;
        let mut waiting = self.waiting.remove(&key).unwrap_or_default();
        let owned = self.owners.get(&key) == Some(claimant);
        if owned {
            self.owners.remove(&key);
            let next = (0..waiting.len()).min_by(|&a, &b| waiting[a].cmp(&waiting[b]));
            let next = next.map(|next| waiting.swap_remove(next));
            self.owners.extend(next.map(|next| (key, next)));
        } else {
            waiting.retain(|other| other != claimant);
        }
        if !waiting.is_empty() {
            self.waiting.insert(key, waiting);
        }
        if owned {
            affected.extend(self.contenders(&key));
        }
    }

    fn contenders(&self, key: &FrontendKey) -> impl Iterator<Item = ServiceName> + '_ {
        let waiting = self.waiting.get(key).into_iter().flatten();
        self.owners.get(key).into_iter().chain(waiting).map(|it| it.of.service.clone())
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::names::Protocol;

    fn key(port: u16) -> FrontendKey {
        let address = Ipv4Addr::new(192, 0, 2, 1).into();
        FrontendKey::Address { address, port, protocol: Protocol::Tcp }
    }

    fn service(name: &str) -> ServiceName {
        ServiceName::new("default", name)
    }

    fn claims(name: &str, created: i64, kind: FrontendKind) -> ServiceClaims {
        let claims = [Claim { key: key(80), kind, port: "http".into() }].into();
        ServiceClaims { service: service(name), created, claims }
    }

    fn replace(all: &mut Claims, name: &str, claims: Option<ServiceClaims>) -> Vec<String> {
        let mut affected = BTreeSet::new();
        all.replace(&service(name), claims, &mut affected);
        affected.iter().map(|service| service.name.to_string()).collect()
    }

    fn owner(claims: &Claims) -> Option<String> {
        claims.owner(&key(80)).map(|owner| owner.to_string())
    }

    #[test]
    fn known_failure_33_the_owner_does_not_depend_on_the_order() {
        let wanted = [
            ("younger", 2, FrontendKind::ExternalIp),
            ("a-same-age", 1, FrontendKind::LoadBalancerIp),
            ("b-same-age", 1, FrontendKind::ExternalIp),
        ];
        for first in 0..wanted.len() {
            let mut all = Claims::default();
            for offset in 0..wanted.len() {
                let (name, created, kind) = wanted[(first + offset) % wanted.len()];
                replace(&mut all, name, Some(claims(name, created, kind)));
            }
            assert_eq!(owner(&all).as_deref(), Some("default/a-same-age:http"));
        }
    }

    #[test]
    fn a_cluster_ip_cannot_be_taken_by_an_external_ip() {
        let mut all = Claims::default();
        replace(&mut all, "old", Some(claims("old", 1, FrontendKind::ExternalIp)));
        let affected = replace(&mut all, "new", Some(claims("new", 9, FrontendKind::ClusterIp)));
        assert_eq!(owner(&all).as_deref(), Some("default/new:http"));
        assert_eq!(affected, ["new", "old"]);
    }

    #[test]
    fn known_failure_33_the_next_in_line_takes_over() {
        let mut all = Claims::default();
        for (name, created) in [("a", 1), ("b", 2), ("c", 3)] {
            replace(&mut all, name, Some(claims(name, created, FrontendKind::ExternalIp)));
        }
        assert_eq!(replace(&mut all, "a", None), ["b", "c"]);
        assert_eq!(owner(&all).as_deref(), Some("default/b:http"));
        assert_eq!(replace(&mut all, "c", None), [""; 0]);
        replace(&mut all, "b", None);
        assert_eq!(owner(&all), None);
        assert!(all.owners.is_empty() && all.waiting.is_empty() && all.services.is_empty());
    }
}
