//! The table: observe and commit.
//!
//! A virtual server is ours if it is in the set `servers`, or if its address is on our device. One
//! that is not wanted any more but has connections is kept, out of the set `live`, and with all
//! its real servers at weight 0: so a new process sees what drains, and that nothing else does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use backend_iptables::Tool;
use node_sys::links::LinkEditor;
use node_sys::netlink::NetlinkError;
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::Protocol;
use proxy_core::node::{LocalDetector, NodeFacts};
use proxy_core::resolved::ResolvedService;
use proxy_core::rules::{RuleDelta, RuleSet};
use proxy_core::table::{ServiceTable, TableError, TableErrorKind};

use crate::compile::{Compiler, Rules, TableConfig};
use crate::drain::{Drain, Real};
use crate::error::{ipset_error, ipvs_error, kernel_error, netlink_error};
use crate::ipset::Ipset;
use crate::ipvs::{Command, Ipvs, ListedReal};
use crate::model::{Entry, Key, RealSpec, Rule, ServerKey, ServerSpec, SetName};
use crate::rules;
use crate::steps::{Steps, Upsert};
use crate::tool;

/// The link that carries the addresses of Services. It has kube-proxy's name, since other programs
/// on a node know to leave a link of this name alone.
pub const DEVICE: &str = "kube-ipvs0";
/// How often draining real servers are looked at.
const DRAIN_PAUSE: Duration = Duration::from_secs(5);

/// Everything the table of a family depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpvsConfig {
    /// What the objects depend on.
    pub table: TableConfig,
    /// Virtual servers in these ranges are left alone unless a Service asks for them.
    pub exclude: Vec<Cidr>,
    /// How long a real server may drain that still has connections.
    pub drain_limit: Duration,
}

impl IpvsConfig {
    /// Longest time for which connections of a removed endpoint are kept, unless told otherwise.
    pub const DRAIN_LIMIT: Duration = Duration::from_secs(3600);
}

/// Service rules of one family as IPVS virtual servers.
#[derive(Debug)]
pub struct IpvsTable {
    compiler: Compiler,
    config: IpvsConfig,
    ipvs: Ipvs,
    ipset: Ipset,
    links: LinkEditor,
    tool: Tool,
    drain: Drain,
    /// Virtual servers that only drain.
    retired: BTreeSet<ServerKey>,
    /// Addresses that only retired virtual servers need.
    held: BTreeSet<IpAddr>,
    has_observed: bool,
}

impl IpvsTable {
    /// Opens sockets to the kernel, with `tool` for the fixed rules. The kernel loads its modules; nothing is written or read yet.
    pub fn open(config: &IpvsConfig, tool: Tool) -> Result<Self, TableError> {
        let family = config.table.family;
        check_detector(config.table.detector.as_ref())?;
        let ipvs = open_ipvs()?;
        let ipset = Ipset::open(family).map_err(|error| netlink_error("open a socket", error))?;
        let links = LinkEditor::open().map_err(|error| netlink_error("open a socket", error))?;
        Ok(Self {
            compiler: Compiler::new(&config.table),
            config: config.clone(),
            ipvs,
            ipset,
            links,
            tool,
            drain: Drain::default(),
            retired: BTreeSet::new(),
            held: BTreeSet::new(),
            has_observed: false,
        })
    }

    fn family(&self) -> IpFamily {
        self.compiler.config().family
    }

    // === reading ===

    pub(crate) fn observe_now(&mut self) -> Result<Rules, TableError> {
        let mut out = RuleSet::new();
        self.observe_addresses(&mut out)?;
        self.observe_sets(&mut out)?;
        let lines = tool::read(&self.tool)?;
        if !lines.is_empty() {
            out.insert(Key::Rules, Rule::Rules(lines.into()));
        }
        self.observe_servers(&mut out)?;
        self.has_observed = true;
        Ok(out)
    }

    /// Reads the addresses on our device.
    fn observe_addresses(&mut self, out: &mut Rules) -> Result<(), TableError> {
        let family = self.family();
        let listed = node_sys::addresses::list()
            .map_err(|error| netlink_error("list interface addresses", error))?;
        let bound = listed
            .into_iter()
            .filter(|it| IpFamily::of(it.address) == family)
            .filter(|it| it.interface.as_deref() == Some(DEVICE));
        // The kernel gives a link that is up an address of its own.
        let is_ours =
            |address: &IpAddr| !matches!(address, IpAddr::V6(it) if it.is_unicast_link_local());
        let bound = bound.map(|it| it.address).filter(is_ours);
        out.extend(bound.map(|address| (Key::Bound(address), Rule::Present)));
        Ok(())
    }

    fn observe_sets(&mut self, out: &mut Rules) -> Result<(), TableError> {
        for set in SetName::ALL {
            let listed = self.ipset.list(set).map_err(|error| ipset_error("list", set, error))?;
            let Some(listed) = listed else { continue };
            if !listed.is_ours {
                out.insert(Key::Set(set), Rule::Foreign);
                continue;
            }
            out.insert(Key::Set(set), Rule::Present);
            let keys = listed.entries.into_iter().map(|entry| match (set, entry) {
                (SetName::Live, Entry::IpPort(server)) => Key::Live(server),
                _ => Key::Entry(set, entry),
            });
            out.extend(keys.map(|key| (key, Rule::Present)));
        }
        Ok(())
    }

    fn observe_servers(&mut self, out: &mut Rules) -> Result<(), TableError> {
        let servers = self.list_servers(out)?;
        let now = Instant::now();
        let mut draining = BTreeSet::new();
        let mut in_use = BTreeSet::new();
        self.retired.clear();
        for (server, spec) in servers {
            let reals = self.reals(&server)?;
            let (drained, used): (Vec<_>, Vec<_>) =
                reals.into_iter().partition(|real| real.spec.weight == 0);
            for real in &drained {
                let real = (real.address, real.port);
                self.drain.begin(server, real, now);
                draining.insert((server, real));
            }
            let is_live = out.get(&Key::Live(server)).is_some();
            if !is_live && used.is_empty() && !drained.is_empty() {
                self.retired.insert(server);
                out.remove(&Key::Entry(SetName::Servers, Entry::IpPort(server)));
                continue;
            }
            in_use.insert(server.address);
            out.insert(Key::Server(server), Rule::Server(spec));
            let used = used
                .into_iter()
                .map(|real| (Key::Real(server, real.address, real.port), Rule::Real(real.spec)));
            out.extend(used);
        }
        self.drain.retain(|server, real| draining.contains(&(*server, real)));
        self.note_held(&in_use, out);
        Ok(())
    }

    /// Takes out the addresses that only draining connections need.
    fn note_held(&mut self, in_use: &BTreeSet<IpAddr>, out: &mut Rules) {
        let of_retired: BTreeSet<IpAddr> = self.retired.iter().map(|it| it.address).collect();
        if self.has_observed {
            self.held.retain(|address| of_retired.contains(address));
        } else {
            self.held = &of_retired - in_use;
        }
        for address in &self.held {
            out.remove(&Key::Bound(*address));
            out.remove(&Key::Entry(SetName::Addresses, Entry::Ip(*address)));
        }
    }

    /// The virtual servers that are ours.
    fn list_servers(&mut self, known: &Rules) -> Result<Vec<(ServerKey, ServerSpec)>, TableError> {
        let family = self.family();
        let mut servers = self
            .ipvs
            .servers(family)
            .map_err(|error| netlink_error("list virtual servers", error))?;
        let is_excluded = |address| self.config.exclude.iter().any(|range| range.contains(address));
        servers.retain(|(server, _)| {
            let listed = Key::Entry(SetName::Servers, Entry::IpPort(*server));
            let on_device = known.get(&Key::Bound(server.address)).is_some();
            known.get(&listed).is_some() || (on_device && !is_excluded(server.address))
        });
        Ok(servers)
    }

    fn reals(&mut self, server: &ServerKey) -> Result<Vec<ListedReal>, TableError> {
        self.ipvs.reals(server).map_err(|error| {
            netlink_error(&format!("list real servers of virtual server {server}"), error)
        })
    }

    // === writing ===

    pub(crate) fn commit_now(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        let steps = Steps::of(delta);
        for set in &steps.create_sets {
            self.ipset.create(*set).map_err(|error| ipset_error("make", *set, error))?;
        }
        if let Some((old, new)) = &steps.rules {
            tool::write(&self.tool, old, new)?;
        }
        self.add_entries(&steps.add_entries)?;
        self.upsert(&steps.servers, &steps.reals)?;
        self.add_entries(&BTreeMap::from([(SetName::Live, steps.add_live.clone())]))?;
        self.bind(&steps.bind)?;
        self.remove(&steps)
    }

    fn add_entries(&mut self, entries: &BTreeMap<SetName, Vec<Entry>>) -> Result<(), TableError> {
        for (set, entries) in entries {
            self.ipset.add(*set, entries).map_err(|error| ipset_error("add to", *set, error))?;
        }
        Ok(())
    }

    /// Makes or changes virtual and real servers. What exists although it was not known, because
    /// it drains or because somebody else made it, is taken over.
    fn upsert(
        &mut self,
        servers: &[(ServerKey, Upsert<ServerSpec>)],
        reals: &[(ServerKey, Real, Upsert<RealSpec>)],
    ) -> Result<(), TableError> {
        let mut commands = Vec::with_capacity(servers.len() + reals.len());
        for (server, change) in servers {
            self.retired.remove(server);
            commands.push(match change {
                Upsert::New(spec) => Command::NewServer(*server, spec.clone()),
                Upsert::Set(spec) => Command::SetServer(*server, spec.clone()),
            });
        }
        for (server, real, change) in reals {
            commands.push(match change {
                Upsert::New(spec) => Command::NewReal(*server, *real, *spec),
                Upsert::Set(spec) => Command::SetReal(*server, *real, *spec),
            });
        }
        let again = self.send(&commands, |command| match command {
            Command::NewServer(server, spec) => Some(Command::SetServer(*server, spec.clone())),
            Command::NewReal(server, real, spec) => Some(Command::SetReal(*server, *real, *spec)),
            _ => None,
        })?;
        self.send(&again, |_| None)?;
        for (server, real, _) in reals {
            self.drain.end(server, *real);
        }
        Ok(())
    }

    /// Sends commands. One that is refused because its object exists may be `replaced`; these are
    /// returned. The removal of what is not there is no error.
    fn send(
        &mut self,
        commands: &[Command],
        replace: impl Fn(&Command) -> Option<Command>,
    ) -> Result<Vec<Command>, TableError> {
        let refused = self
            .ipvs
            .send(commands)
            .map_err(|error| netlink_error("write virtual servers", error))?;
        let mut again = Vec::new();
        for (place, error) in refused {
            let Some(command) = commands.get(place) else { continue };
            let is_removal = matches!(command, Command::DeleteServer(_) | Command::DeleteReal(..));
            if is_removal && error.is_not_found() {
                continue;
            }
            match replace(command).filter(|_| error.is_exists()) {
                Some(other) => again.push(other),
                None => return Err(ipvs_error(command, error)),
            }
        }
        Ok(again)
    }

    fn bind(&mut self, addresses: &[IpAddr]) -> Result<(), TableError> {
        if addresses.is_empty() {
            return Ok(());
        }
        for address in addresses {
            self.held.remove(address);
        }
        let link = self.device()?;
        let refused = self
            .links
            .add_addresses(link, addresses)
            .map_err(|error| netlink_error(&format!("add addresses to {DEVICE}"), error))?;
        match refused.into_iter().next() {
            None => Ok(()),
            Some(refused) => {
                let operation = format!("add {} to {DEVICE}", refused.address);
                Err(kernel_error(&operation, refused.error))
            }
        }
    }

    fn device(&mut self) -> Result<u32, TableError> {
        if let Some(link) = self.links.index(DEVICE) {
            return Ok(link);
        }
        let add = |error: NetlinkError| netlink_error(&format!("add link {DEVICE}"), error);
        self.links.add_dummy(DEVICE).map_err(add)?;
        let lost = || TableError::new(TableErrorKind::Transient, format!("find link {DEVICE}"));
        self.links.index(DEVICE).ok_or_else(lost)
    }

    fn unbind(&mut self, addresses: &[IpAddr]) -> Result<(), TableError> {
        // Asking for a link that does not exist makes the kernel start modprobe.
        if addresses.is_empty() {
            return Ok(());
        }
        let Some(link) = self.links.index(DEVICE) else { return Ok(()) };
        let operation = format!("remove addresses from {DEVICE}");
        let refused = self
            .links
            .remove_addresses(link, addresses)
            .map_err(|error| netlink_error(&operation, error))?;
        match refused.into_iter().next() {
            None => Ok(()),
            Some(refused) => Err(kernel_error(&operation, refused.error)),
        }
    }

    // === removing ===

    fn remove(&mut self, steps: &Steps) -> Result<(), TableError> {
        let gone = |set, error| ipset_error("remove from", set, error);
        self.ipset
            .remove(SetName::Live, &steps.remove_live)
            .map_err(|error| gone(SetName::Live, error))?;
        self.remove_reals(&steps.remove_reals)?;
        let (retire, delete): (Vec<ServerKey>, Vec<ServerKey>) =
            steps.remove_servers.iter().partition(|server| self.drain.is_draining(server));
        self.retired.extend(retire);
        let delete: Vec<_> = delete.into_iter().map(Command::DeleteServer).collect();
        self.send(&delete, |_| None)?;
        let of_retired: BTreeSet<IpAddr> = self.retired.iter().map(|it| it.address).collect();
        let (held, unbind): (Vec<IpAddr>, Vec<IpAddr>) =
            steps.unbind.iter().partition(|address| of_retired.contains(address));
        self.held.extend(held);
        self.unbind(&unbind)?;
        for (set, entries) in &steps.remove_entries {
            let unused: Vec<Entry> =
                entries.iter().copied().filter(|it| !self.drains_on(*set, it)).collect();
            self.ipset.remove(*set, &unused).map_err(|error| gone(*set, error))?;
        }
        if let Some(old) = &steps.remove_rules {
            tool::write(&self.tool, old, &[])?;
        }
        for set in &steps.destroy_sets {
            self.ipset.destroy(*set).map_err(|error| ipset_error("destroy", *set, error))?;
        }
        Ok(())
    }

    /// Whether draining connections need this element.
    fn drains_on(&self, set: SetName, entry: &Entry) -> bool {
        match (set, entry) {
            (SetName::Servers, Entry::IpPort(server)) => self.retired.contains(server),
            (SetName::Addresses, Entry::Ip(address)) => self.held.contains(address),
            _ => false,
        }
    }

    /// Connections of TCP servers may go on; datagrams and associations find another server at
    /// once.
    fn remove_reals(&mut self, reals: &[(ServerKey, Real)]) -> Result<(), TableError> {
        let now = Instant::now();
        let mut commands = Vec::with_capacity(reals.len());
        let mut servers = BTreeSet::new();
        for (server, real) in reals {
            if server.protocol == Protocol::Tcp {
                commands.push(Command::SetReal(*server, *real, RealSpec::DRAINING));
                self.drain.begin(*server, *real, now);
                servers.insert(*server);
            } else {
                commands.push(Command::DeleteReal(*server, *real));
            }
        }
        let refused = self
            .ipvs
            .send(&commands)
            .map_err(|error| netlink_error("write real servers", error))?;
        for (place, error) in refused {
            match commands.get(place) {
                // Somebody was quicker.
                Some(_) if error.is_not_found() => {}
                Some(command) => return Err(ipvs_error(command, error)),
                None => {}
            }
        }
        for server in servers {
            self.look_at(&server)?;
        }
        Ok(())
    }

    /// Removes the real servers of a virtual server that have drained.
    fn look_at(&mut self, server: &ServerKey) -> Result<(), TableError> {
        let listed = self.reals(server)?;
        let due = self.drain.due(server, &listed, self.config.drain_limit, Instant::now());
        for (address, port) in &due.overdue {
            tracing::info!(%server, %address, port, "removed with connections: time is up");
        }
        let gone: Vec<Real> = due.idle.into_iter().chain(due.overdue).collect();
        let commands: Vec<_> =
            gone.iter().map(|real| Command::DeleteReal(*server, *real)).collect();
        self.send(&commands, |_| None)?;
        for real in gone {
            self.drain.end(server, real);
        }
        Ok(())
    }

    fn tend_now(&mut self) -> Result<(), TableError> {
        for server in self.drain.servers() {
            self.look_at(&server)?;
        }
        let done: Vec<ServerKey> =
            self.retired.iter().copied().filter(|it| !self.drain.is_draining(it)).collect();
        let delete: Vec<_> = done.iter().map(|it| Command::DeleteServer(*it)).collect();
        self.send(&delete, |_| None)?;
        let entries: Vec<_> = done.iter().map(|it| Entry::IpPort(*it)).collect();
        self.ipset
            .remove(SetName::Servers, &entries)
            .map_err(|error| ipset_error("remove from", SetName::Servers, error))?;
        for server in &done {
            self.retired.remove(server);
        }
        let of_retired: BTreeSet<IpAddr> = self.retired.iter().map(|it| it.address).collect();
        let unused: Vec<IpAddr> = self.held.difference(&of_retired).copied().collect();
        self.unbind(&unused)?;
        let entries: Vec<_> = unused.iter().map(|it| Entry::Ip(*it)).collect();
        self.ipset
            .remove(SetName::Addresses, &entries)
            .map_err(|error| ipset_error("remove from", SetName::Addresses, error))?;
        self.held.retain(|address| of_retired.contains(address));
        Ok(())
    }

    fn clear_now(&mut self) -> Result<(), TableError> {
        let installed = self.observe_now()?;
        let servers = installed.iter().filter_map(|(key, _)| match key {
            Key::Server(server) => Some(*server),
            _ => None,
        });
        let servers: Vec<_> =
            servers.chain(self.retired.iter().copied()).map(Command::DeleteServer).collect();
        let mut bound: Vec<IpAddr> = self.held.iter().copied().collect();
        bound.extend(installed.iter().filter_map(|(key, _)| match key {
            Key::Bound(address) => Some(*address),
            _ => None,
        }));
        self.unbind(&bound)?;
        self.send(&servers, |_| None)?;
        if let Some(Rule::Rules(lines)) = installed.get(&Key::Rules) {
            tool::write(&self.tool, lines, &[])?;
        }
        for set in SetName::ALL {
            if installed.get(&Key::Set(set)) == Some(&Rule::Present) {
                self.ipset.destroy(set).map_err(|error| ipset_error("destroy", set, error))?;
            }
        }
        self.drain = Drain::default();
        self.retired.clear();
        self.held.clear();
        self.remove_unused_device()
    }

    /// The device goes with its last address, of whichever family.
    fn remove_unused_device(&mut self) -> Result<(), TableError> {
        let addresses = node_sys::addresses::list()
            .map_err(|error| netlink_error("list interface addresses", error))?;
        if addresses.iter().any(|it| it.interface.as_deref() == Some(DEVICE)) {
            return Ok(());
        }
        self.links
            .delete(DEVICE)
            .map_err(|error| netlink_error(&format!("remove link {DEVICE}"), error))
    }
}

fn open_ipvs() -> Result<Ipvs, TableError> {
    let ipvs = Ipvs::open().map_err(|error| netlink_error("ask for IPVS", error))?;
    ipvs.ok_or_else(|| {
        TableError::new(TableErrorKind::Unsupported, "find IPVS (kernel module ip_vs)")
    })
}

/// Refuses a kernel that has no IPVS and no module for it.
pub fn check_kernel() -> Result<(), TableError> {
    open_ipvs().map(drop)
}

/// The detector's text stands in rules.
fn check_detector(detector: Option<&LocalDetector>) -> Result<(), TableError> {
    match detector {
        Some(LocalDetector::Interface(name) | LocalDetector::InterfacePrefix(name))
            if !rules::is_plain_interface(name) =>
        {
            let operation = format!("use {name:?} as the name of an interface");
            Err(TableError::new(TableErrorKind::Unsupported, operation))
        }
        _ => Ok(()),
    }
}

#[async_trait]
impl ServiceTable for IpvsTable {
    type Key = Key;
    type Rule = Rule;

    fn family(&self) -> IpFamily {
        self.compiler.config().family
    }

    fn note_node(&mut self, node: &NodeFacts) -> bool {
        self.compiler.set_node(node)
    }

    fn compile_node(&self, _: &NodeFacts, out: &mut Rules) {
        self.compiler.node(out);
    }

    fn compile_service(&self, service: &ResolvedService, out: &mut Rules) {
        self.compiler.service(service, out);
    }

    fn is_shared(key: &Key) -> bool {
        matches!(key, Key::Entry(SetName::Addresses | SetName::Hairpin, _) | Key::Bound(_))
    }

    async fn observe(&mut self) -> Result<Rules, TableError> {
        self.observe_now()
    }

    async fn commit(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        self.commit_now(delta)
    }

    async fn clear(&mut self) -> Result<(), TableError> {
        self.clear_now()
    }

    fn tend_in(&self) -> Option<Duration> {
        (!self.drain.is_empty()).then_some(DRAIN_PAUSE)
    }

    async fn tend(&mut self) -> Result<(), TableError> {
        self.tend_now()
    }
}
