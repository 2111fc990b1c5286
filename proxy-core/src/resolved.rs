//! The neutral layer between meaning and kernel: frontends, routes and pools.
//!
//! Core resolves every policy down to these facts; a backend only translates them. One level
//! lower, at packet matches, the kernel facilities differ too much; one level higher, each
//! backend would have to derive policy again, which is how proxies drift apart.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::address::Cidr;
use crate::names::{Protocol, ServiceName, ServicePortName};
use crate::scheduler::Scheduler;

/// What a client dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKey {
    /// A service address: cluster IP, external IP or load-balancer IP.
    Address {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The protocol.
        protocol: Protocol,
    },
    /// A port of each accepted address of the node.
    NodePort {
        /// The port.
        port: u16,
        /// The protocol.
        protocol: Protocol,
    },
}

impl FrontendKey {
    /// Protocol of the frontend.
    pub fn protocol(&self) -> Protocol {
        match *self {
            Self::Address { protocol, .. } | Self::NodePort { protocol, .. } => protocol,
        }
    }

    /// Port of the frontend.
    pub fn port(&self) -> u16 {
        match *self {
            Self::Address { port, .. } | Self::NodePort { port, .. } => port,
        }
    }
}

impl std::fmt::Display for FrontendKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Address { address: IpAddr::V4(address), port, protocol } => {
                write!(f, "{address}:{port}/{protocol}")
            }
            Self::Address { address: IpAddr::V6(address), port, protocol } => {
                write!(f, "[{address}]:{port}/{protocol}")
            }
            Self::NodePort { port, protocol } => write!(f, "*:{port}/{protocol}"),
        }
    }
}

/// Kind of a frontend, in order of precedence when several would fit one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FrontendKind {
    /// `spec.clusterIPs`.
    ClusterIp,
    /// `spec.externalIPs`.
    ExternalIp,
    /// `status.loadBalancer.ingress`.
    LoadBalancerIp,
    /// `spec.ports[].nodePort`.
    NodePort,
}

impl FrontendKind {
    /// The words an operator uses for this kind.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterIp => "cluster IP",
            Self::ExternalIp => "external IP",
            Self::LoadBalancerIp => "load-balancer IP",
            Self::NodePort => "node port",
        }
    }
}

/// Which of a service port's two endpoint sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PoolKind {
    /// Endpoints anywhere in the cluster, narrowed by topology.
    Cluster,
    /// Endpoints on this node.
    Local,
}

/// What becomes of a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// Sent to one endpoint of the pool, which is not empty.
    Forward {
        /// The pool.
        pool: PoolKind,
        /// Whether the source becomes an address of this node.
        masquerade: bool,
    },
    /// Refused at once.
    Reject,
    /// Left without an answer.
    Drop,
}

/// The route of each class of source. Classes are tested in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Routes {
    /// Sources that the local-traffic detector calls pods; nobody where there is no detector.
    pub pod: Route,
    /// Sources that are an address of this node.
    pub host: Route,
    /// Everyone else.
    pub outside: Route,
}

impl Routes {
    /// The same route for every source.
    pub fn all(route: Route) -> Self {
        Self { pod: route, host: route, outside: route }
    }

    /// The routes, in the order in which the classes are tested.
    pub fn iter(&self) -> impl Iterator<Item = Route> {
        [self.pod, self.host, self.outside].into_iter()
    }

    /// The refusal among the routes, if there is one: `Reject` or `Drop`.
    pub fn refusal(&self) -> Option<Route> {
        self.iter().find(|route| !matches!(route, Route::Forward { .. }))
    }
}

/// One address that a client can dial, and what becomes of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// What is dialled.
    pub key: FrontendKey,
    /// Where the address comes from.
    pub kind: FrontendKind,
    /// Sources that are admitted; `None` admits everyone. No range covers another one.
    pub source_ranges: Option<Arc<[Cidr]>>,
    /// Routes by class of source.
    pub routes: Routes,
}

/// A place where connections end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Address of the pod or host.
    pub address: IpAddr,
    /// Port at that address.
    pub port: u16,
    /// Whether it is on this node.
    pub is_local: bool,
}

/// Which rule filled a pool; kept so that a question about it needs no second computation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolReason {
    /// No endpoint is usable, or the pool is not used by any frontend.
    Empty,
    /// The ready endpoints.
    Ready,
    /// The ready endpoints whose hints name this node.
    SameNode,
    /// The ready endpoints whose hints name this node's zone.
    SameZone,
    /// No endpoint is ready: those that terminate and still serve.
    Terminating,
}

/// Endpoints that take turns.
///
/// Core hands them over in the byte order of `address:port`. Where a kernel layout numbers the
/// endpoints, [`crate::numbering`] keeps the numbers of those that stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The endpoints; the position is the number.
    pub endpoints: Vec<Endpoint>,
    /// Why these.
    pub reason: PoolReason,
}

impl Pool {
    /// A pool without endpoints.
    pub fn empty() -> Self {
        Self { endpoints: Vec::new(), reason: PoolReason::Empty }
    }
}

/// A service port as one IP family sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedPort {
    /// Its name.
    pub name: ServicePortName,
    /// The frontends this port owns, in order of their keys.
    pub frontends: Vec<Frontend>,
    /// Endpoints for traffic that may go anywhere.
    pub cluster: Pool,
    /// Endpoints for traffic that must stay on this node.
    pub local: Pool,
    /// How long a client stays with its endpoint after its last new connection.
    pub affinity: Option<Duration>,
    /// For UDP: every endpoint that existing flows may stay on, whatever policy or topology say
    /// (S11.2, S11.6d). Empty for other protocols.
    pub flow_endpoints: Vec<(IpAddr, u16)>,
}

impl ResolvedPort {
    /// The pool of this kind.
    pub fn pool(&self, kind: PoolKind) -> &Pool {
        match kind {
            PoolKind::Cluster => &self.cluster,
            PoolKind::Local => &self.local,
        }
    }

    /// The pool of this kind, to change it.
    pub fn pool_mut(&mut self, kind: PoolKind) -> &mut Pool {
        match kind {
            PoolKind::Cluster => &mut self.cluster,
            PoolKind::Local => &mut self.local,
        }
    }
}

/// The health check of a load balancer (S13).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// Port to listen on, `spec.healthCheckNodePort`.
    pub port: u16,
    /// Number of ready endpoint addresses on this node, over all ports of the Service.
    pub local_endpoints: usize,
}

/// A Service as one IP family sees it, down to the facts a backend needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResolvedService {
    /// Its name.
    pub name: ServiceName,
    /// The cluster IP in this family.
    pub cluster_ip: IpAddr,
    /// Its ports, by name.
    pub ports: Vec<ResolvedPort>,
    /// The health check to answer, if any.
    pub health_check: Option<HealthCheck>,
    /// How endpoints take turns where the kernel can choose in several ways; `None` leaves it to
    /// the configuration.
    pub scheduler: Option<Scheduler>,
}
