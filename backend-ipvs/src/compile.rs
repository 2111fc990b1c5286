//! From resolved Services to kernel objects; pure.
//!
//! A virtual server has one list of real servers, whoever calls, so where the routes of a frontend
//! name two pools the one for outside traffic is taken. Who is served, refused, masqueraded or not
//! answered is decided before and after it by the fixed rules, from the sets that the frontend is
//! in.

use std::collections::BTreeSet;
use std::net::IpAddr;

use proxy_core::address::{Cidr, IpFamily};
use proxy_core::node::{LocalDetector, NodeFacts, NodePortAddresses};
use proxy_core::resolved::{
    Frontend, FrontendKey, PoolKind, ResolvedPort, ResolvedService, Route, Routes,
};
use proxy_core::rules::RuleSet;
use proxy_core::scheduler::Scheduler;

use crate::model::{Entry, Key, RealSpec, Rule, ServerKey, ServerSpec, SetName};
use crate::rules;

/// Kernel objects by key.
pub(crate) type Rules = RuleSet<Key, Rule>;

/// What the objects of a family depend on, besides Services and the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableConfig {
    /// The family.
    pub family: IpFamily,
    /// How to tell the traffic of local pods.
    pub detector: Option<LocalDetector>,
    /// Bit of the packet mark that asks for masquerading, 0 to 31.
    pub masquerade_bit: u8,
    /// Scheduler of virtual servers.
    pub scheduler: Scheduler,
}

/// Translates Services.
#[derive(Clone, Debug)]
pub(crate) struct Compiler {
    config: TableConfig,
    node_ports: NodePortAddresses,
    /// Addresses of the node; those on our device are not among them.
    addresses: BTreeSet<IpAddr>,
}

/// All objects that are wanted on this node.
pub fn compile<'a>(
    config: &TableConfig,
    node: &NodeFacts,
    services: impl IntoIterator<Item = &'a ResolvedService>,
) -> RuleSet<Key, Rule> {
    let mut compiler = Compiler::new(config);
    compiler.set_node(node);
    let mut out = RuleSet::new();
    compiler.node(&mut out);
    for service in services {
        compiler.service(service, &mut out);
    }
    out
}

impl Compiler {
    pub(crate) fn new(config: &TableConfig) -> Self {
        Self {
            config: config.clone(),
            node_ports: NodePortAddresses::Only(BTreeSet::new()),
            addresses: BTreeSet::new(),
        }
    }

    pub(crate) fn config(&self) -> &TableConfig {
        &self.config
    }

    /// Takes note of the node's addresses and where node ports answer. Returns whether that has
    /// changed.
    pub(crate) fn set_node(&mut self, node: &NodeFacts) -> bool {
        let changed =
            (&self.node_ports, &self.addresses) != (&node.node_port_addresses, &node.addresses);
        self.node_ports.clone_from(&node.node_port_addresses);
        self.addresses.clone_from(&node.addresses);
        changed
    }

    /// The objects that are needed whatever the Services are.
    pub(crate) fn node(&self, out: &mut Rules) {
        for set in SetName::ALL {
            out.insert(Key::Set(set), Rule::Present);
        }
        out.insert(Key::Rules, Rule::Rules(rules::lines(&self.config).into()));
    }

    pub(crate) fn service(&self, service: &ResolvedService, out: &mut Rules) {
        // Also without a port that answers: what the address does not serve is refused.
        self.bind(service.cluster_ip, out);
        for port in &service.ports {
            for frontend in &port.frontends {
                self.frontend(service.scheduler, port, frontend, out);
            }
        }
        if let Some(check) = service.health_check {
            out.insert(Key::Entry(SetName::HealthPorts, Entry::Port(check.port)), Rule::Present);
        }
    }

    /// Makes an address local, unless it is one of the node's own anyway.
    fn bind(&self, address: IpAddr, out: &mut Rules) {
        if !self.addresses.contains(&address) {
            out.insert(Key::Entry(SetName::Addresses, Entry::Ip(address)), Rule::Present);
            out.insert(Key::Bound(address), Rule::Present);
        }
    }

    fn frontend(
        &self,
        scheduler: Option<Scheduler>,
        port: &ResolvedPort,
        frontend: &Frontend,
        out: &mut Rules,
    ) {
        let affinity = port.affinity.map(|it| u32::try_from(it.as_secs()).unwrap_or(u32::MAX));
        let spec = ServerSpec::new(scheduler.unwrap_or(self.config.scheduler), affinity);
        let wanted = Wanted { port, frontend, spec };
        match frontend.key {
            FrontendKey::Address { address, port: number, protocol } => {
                self.bind(address, out);
                Self::server(&wanted, ServerKey { address, port: number, protocol }, out);
            }
            FrontendKey::NodePort { port: number, protocol } => {
                for address in self.node_port_addresses() {
                    let key = ServerKey { address, port: number, protocol };
                    Self::server(&wanted, key, out);
                }
            }
        }
    }

    fn node_port_addresses(&self) -> Vec<IpAddr> {
        let answers = |address: &IpAddr| match address {
            IpAddr::V4(address) => !address.is_loopback(),
            IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
        };
        let of_family = |address: &IpAddr| IpFamily::of(*address) == self.config.family;
        let addresses = match &self.node_ports {
            NodePortAddresses::All => &self.addresses,
            NodePortAddresses::Only(addresses) => addresses,
        };
        addresses.iter().copied().filter(of_family).filter(answers).collect()
    }

    fn server(wanted: &Wanted<'_>, key: ServerKey, out: &mut Rules) {
        let frontend = wanted.frontend;
        let entry = |set| Key::Entry(set, Entry::IpPort(key));
        if let Some(ranges) = &frontend.source_ranges {
            out.insert(entry(SetName::Ranges), Rule::Present);
            for range in ranges.iter().flat_map(|range| storable(*range)) {
                let allowed = Entry::IpPortNet(key, range);
                out.insert(Key::Entry(SetName::Allowed, allowed), Rule::Present);
            }
        }
        match Plan::of(frontend.routes) {
            Plan::Refuse(Route::Drop) => drop(out.insert(entry(SetName::Drop), Rule::Present)),
            Plan::Refuse(_) => drop(out.insert(entry(SetName::Reject), Rule::Present)),
            Plan::Forward { pool, drops_outside } => {
                if drops_outside {
                    out.insert(entry(SetName::DropOutside), Rule::Present);
                }
                for set in masquerades(frontend.routes) {
                    out.insert(entry(set), Rule::Present);
                }
                Self::pool(wanted, key, pool, out);
            }
        }
    }

    fn pool(wanted: &Wanted<'_>, key: ServerKey, pool: PoolKind, out: &mut Rules) {
        out.insert(Key::Entry(SetName::Servers, Entry::IpPort(key)), Rule::Present);
        out.insert(Key::Server(key), Rule::Server(wanted.spec.clone()));
        for endpoint in &wanted.port.pool(pool).endpoints {
            let (address, number) = (endpoint.address, endpoint.port);
            out.insert(Key::Real(key, address, number), Rule::Real(RealSpec::IN_USE));
            if endpoint.is_local {
                let itself = ServerKey { address, port: number, protocol: key.protocol };
                let entry = Entry::IpPortNet(itself, Cidr::host(address));
                out.insert(Key::Entry(SetName::Hairpin, entry), Rule::Present);
            }
        }
        out.insert(Key::Live(key), Rule::Present);
    }
}

/// A frontend and how its virtual servers choose.
struct Wanted<'a> {
    port: &'a ResolvedPort,
    frontend: &'a Frontend,
    spec: ServerSpec,
}

/// What becomes of a frontend as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Plan {
    Forward { pool: PoolKind, drops_outside: bool },
    Refuse(Route),
}

impl Plan {
    fn of(routes: Routes) -> Self {
        let pool = |route| match route {
            Route::Forward { pool, .. } => Some(pool),
            Route::Reject | Route::Drop => None,
        };
        // Sources inside the cluster are never refused what others get.
        match (pool(routes.outside), pool(routes.pod).or_else(|| pool(routes.host))) {
            (Some(pool), _) => Self::Forward { pool, drops_outside: false },
            (None, Some(pool)) => Self::Forward { pool, drops_outside: true },
            (None, None) => Self::Refuse(routes.outside),
        }
    }
}

/// The sets that ask for masquerading.
fn masquerades(routes: Routes) -> impl Iterator<Item = SetName> {
    let masquerades = |route| matches!(route, Route::Forward { masquerade: true, .. });
    [
        (routes.pod, SetName::MasqueradePod),
        (routes.host, SetName::MasqueradeHost),
        (routes.outside, SetName::MasqueradeOutside),
    ]
    .into_iter()
    .filter(move |(route, _)| masquerades(*route))
    .map(|(_, set)| set)
}

/// The range in the form in which a set can hold it: a prefix of no bits is not among them.
fn storable(range: Cidr) -> Vec<Cidr> {
    if range.prefix_len() > 0 {
        return vec![range];
    }
    let upper = match range.family() {
        IpFamily::V4 => IpAddr::from([128, 0, 0, 0]),
        IpFamily::V6 => IpAddr::from([0x8000, 0, 0, 0, 0, 0, 0, 0]),
    };
    [range.address(), upper].into_iter().filter_map(|half| Cidr::new(half, 1)).collect()
}

#[cfg(test)]
mod tests;
