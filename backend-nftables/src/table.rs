//! The table: observe and commit.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use node_sys::netlink::{
    BatchError, KernelError, Message, MessageBuffer, NetlinkError, Protocol, Socket,
    retry_interrupted,
};
use proxy_core::address::IpFamily;
use proxy_core::node::NodeFacts;
use proxy_core::resolved::{PoolKind, ResolvedPort, ResolvedService};
use proxy_core::rules::{Change, RuleDelta, RuleSet};
use proxy_core::table::{DriftSignal, ServiceTable, TableError, TableErrorKind};

use crate::compile::{Compiler, Rules, TableConfig, has_own_maps, offset, service_port_id};
use crate::drift::{OwnPort, TableMonitor};
use crate::layout::{self, TABLE};
use crate::model::{ChainName, ChainSpec, Key, Rule, SetSpec};
use crate::ranges::{InstalledRanges, source_range};
use crate::transaction::{self, Transaction};
use crate::uapi::{chain, element, msg, rule, set};
use crate::wire::{self, ListedSet, Writer};

/// Largest batch, unless the whole table has to be replaced at once. Larger ones gain nothing,
/// and the kernel holds several copies of a batch while it works on it.
const MAX_BATCH: usize = 4 << 20;
/// How often a list is read again because it changed meanwhile.
const MAX_DUMPS: usize = 16;
/// How often remembered clients of endpoints that are gone are looked for. They cannot become
/// more after the commit, so a second look finds only what a race with a time-out left.
const MAX_PURGES: usize = 8;

/// Service rules of one family as an nftables table, `ip proxyd` or `ip6 proxyd`.
///
/// The whole table is ours: whatever else is found in it is removed. No other table is touched.
#[derive(Debug)]
pub struct NftablesTable {
    family: IpFamily,
    compiler: Compiler,
    socket: Socket,
    _own_port: OwnPort,
    /// Maps that remember clients, as far as known.
    affinity_maps: BTreeSet<Arc<str>>,
    /// Source ranges that are installed.
    ranges: InstalledRanges,
    max_batch: usize,
    /// Whether what is installed cannot be changed into what is wanted, only replaced.
    rebuild: bool,
}

impl NftablesTable {
    /// Opens a socket to the kernel; nothing is written or read yet.
    pub fn open(config: &TableConfig) -> Result<Self, TableError> {
        let socket = Socket::open(Protocol::NETFILTER)
            .map_err(|error| netlink_error("open a netlink socket", error))?;
        Ok(Self {
            family: config.family,
            compiler: Compiler::new(config),
            _own_port: OwnPort::enter(socket.port()),
            socket,
            affinity_maps: BTreeSet::new(),
            ranges: InstalledRanges::default(),
            max_batch: MAX_BATCH,
            rebuild: false,
        })
    }

    fn writer(&self) -> Writer<'static> {
        Writer { family: self.family, table: TABLE }
    }

    // === reading ===

    /// Lists objects; `each` adds what a message tells to the result.
    fn dump<T: Default>(
        &mut self,
        command: u8,
        what: &str,
        write: impl Fn(&mut MessageBuffer),
        mut each: impl FnMut(&mut T, &Message<'_>),
    ) -> Result<T, TableError> {
        let family = self.family;
        retry_interrupted(MAX_DUMPS, || {
            // A list that was interrupted may repeat or miss objects: begin from nothing.
            let mut result = T::default();
            let sequence = self.socket.next_sequence();
            let request = wire::dump_request(command, sequence, family, &write);
            self.socket.dump(&request, |message| each(&mut result, message))?;
            Ok(result)
        })
        .map_err(|error| netlink_error(&format!("list {what} of table {TABLE}"), error))
    }

    fn observe_now(&mut self) -> Result<Rules, TableError> {
        self.ranges = InstalledRanges::default();
        let Some(table) = self.observe_table()? else {
            self.rebuild = false;
            return Ok(RuleSet::new());
        };
        if self.rebuild {
            return Ok(RuleSet::new());
        }
        let mut objects = vec![(Key::Table, table)];
        let sets = self.observe_sets()?;
        let mut readable = true;
        for ListedSet { name, spec } in &sets {
            let make = Make::of(name, spec.as_ref());
            if make == Make::Ours {
                let elements = self.observe_elements(name)?;
                readable &= !elements.has_stranger;
                objects.extend(elements.objects);
            }
            readable &= make != Make::Changed;
            // A stranger is only ever removed, so its make does not matter.
            let spec = spec.clone().unwrap_or_else(layout::pool_endpoints_set);
            objects.push((Key::Set(Arc::clone(name)), Rule::Set(Arc::new(spec))));
        }
        if !readable {
            tracing::warn!(
                family = %self.family,
                "table {TABLE} has another layout and will be replaced as a whole"
            );
            self.rebuild = true;
            return Ok(RuleSet::new());
        }
        self.observe_chains(&mut objects)?;
        forget_served_clients(&mut objects);
        self.ranges = objects.iter().filter_map(|(key, _)| source_range(key)).collect();
        self.affinity_maps =
            sets.into_iter().map(|set| set.name).filter(|name| is_affinity_map(name)).collect();
        Ok(objects.into_iter().collect())
    }

    fn observe_table(&mut self) -> Result<Option<Rule>, TableError> {
        self.dump(
            msg::GETTABLE,
            "name",
            |_| {},
            |found: &mut Option<Rule>, message| {
                *found = wire::read_table(message, TABLE).or_else(|| found.take());
            },
        )
    }

    fn observe_sets(&mut self) -> Result<Vec<ListedSet>, TableError> {
        let family = self.family;
        let sets = self.dump(
            msg::GETSET,
            "sets",
            |out| out.attr_str(set::TABLE, TABLE),
            |sets: &mut BTreeMap<_, _>, message| {
                if let Some(set) = wire::read_set(message, TABLE, family) {
                    sets.insert(Arc::clone(&set.name), set);
                }
            },
        )?;
        Ok(sets.into_values().collect())
    }

    /// Reads a set's elements, in order of their keys.
    ///
    /// After much was added, the kernel goes on enlarging its hash table in the background. A
    /// list that is read meanwhile is not marked as interrupted, yet repeats elements, and misses
    /// as many others.
    fn observe_elements(&mut self, name: &Arc<str>) -> Result<Elements, TableError> {
        for _ in 0..MAX_DUMPS {
            let mut elements = self.list_elements(name)?;
            elements.objects.sort_unstable_by(|(key, _), (other, _)| key.cmp(other));
            if elements.objects.is_sorted_by(|(key, _), (next, _)| key < next) {
                return Ok(elements);
            }
        }
        let operation = format!("list elements of set {name} of table {TABLE}, which grows");
        Err(TableError::new(TableErrorKind::Transient, operation))
    }

    fn list_elements(&mut self, name: &Arc<str>) -> Result<Elements, TableError> {
        let family = self.family;
        self.dump(
            msg::GETSETELEM,
            &format!("elements of set {name}"),
            |out| {
                out.attr_str(element::LIST_TABLE, TABLE);
                out.attr_str(element::LIST_SET, name);
            },
            |elements: &mut Elements, message| {
                for element in wire::listed_elements(message) {
                    match wire::read_element(name, &element.nested(), family) {
                        Some(object) => elements.objects.push(object),
                        None => elements.has_stranger = true,
                    }
                }
            },
        )
    }

    fn observe_chains(&mut self, objects: &mut Vec<(Key, Rule)>) -> Result<(), TableError> {
        let family = self.family;
        let mut chains = self.dump(
            msg::GETCHAIN,
            "chains",
            |out| out.attr_str(chain::TABLE, TABLE),
            |chains: &mut BTreeMap<ChainName, ChainSpec>, message| {
                chains.extend(wire::read_chain(message, TABLE));
            },
        )?;
        let rules = self.dump(
            msg::GETRULE,
            "rules",
            |out| out.attr_str(rule::TABLE, TABLE),
            |rules: &mut Vec<_>, message| rules.extend(wire::read_rule(message, TABLE, family)),
        )?;
        for (name, rule) in rules {
            if let Some(chain) = chains.get_mut(&name) {
                chain.rules.push(rule);
            }
        }
        let chains = chains.into_iter();
        objects.extend(chains.map(|(name, spec)| (Key::Chain(name), Rule::Chain(spec.into()))));
        Ok(())
    }

    // === writing ===

    fn commit_now(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        if delta.changes.iter().any(replaces_set) {
            self.rebuild = true;
            let operation = format!("change the make of a set of table {TABLE}");
            return Err(TableError::new(TableErrorKind::OutOfSync, operation));
        }
        let limit = if self.rebuild { self.socket.max_send() } else { self.send_limit() };
        let overlapped = self.ranges.overlapped(delta);
        let (mut at_once, later) = transaction::split(delta);
        at_once.retain(|change| !self.ranges.is_removed(change));
        let at_once = transaction::join_ranges(at_once, &overlapped);
        self.send(&at_once, limit, self.rebuild)?;
        self.rebuild = false;
        self.ranges.note(delta, &overlapped);
        self.note_affinity_maps(delta);
        for (map, gone) in gone_endpoints(delta, &self.affinity_maps) {
            self.purge(&map, gone)?;
        }
        match self.send_removals(&later, limit) {
            // Older kernels let go of a chain some time after the commit that took away the last
            // way to it. Nothing leads there any more; the next full comparison removes it.
            Err(error) if error.kind() == TableErrorKind::OutOfSync => {
                tracing::debug!(error = error.chain(), "unused chains stay for now");
                Ok(())
            }
            result => result,
        }
    }

    fn send(
        &mut self,
        steps: &[&Change<Key, Rule>],
        limit: usize,
        replace_table: bool,
    ) -> Result<(), TableError> {
        let writer = self.writer();
        transaction::write(&writer, steps, limit, replace_table, |transaction| {
            let result = self.socket.commit(&mut transaction.batch);
            result.map_err(|error| commit_error(error, transaction, steps))
        })
    }

    fn send_removals(
        &mut self,
        steps: &[&Change<Key, Rule>],
        limit: usize,
    ) -> Result<(), TableError> {
        let writer = self.writer();
        transaction::write_removals(&writer, steps, limit, |transaction| {
            let result = self.socket.commit(&mut transaction.batch);
            result.map_err(|error| commit_error(error, transaction, steps))
        })
    }

    /// Bytes of the largest batch.
    fn send_limit(&self) -> usize {
        self.socket.max_send().min(self.max_batch)
    }

    /// Splits large changes at about this many bytes, for tests of what is between the parts.
    #[doc(hidden)]
    pub fn set_max_batch(&mut self, bytes: usize) {
        self.max_batch = bytes;
    }

    /// Notes that somebody replaced the table by what is wanted.
    #[cfg(feature = "nft-tool")]
    pub(crate) fn note_replaced(&mut self) {
        self.rebuild = false;
    }

    fn note_affinity_maps(&mut self, delta: &RuleDelta<Key, Rule>) {
        for change in &delta.changes {
            match change {
                Change::Add { key: Key::Set(name), .. } if is_affinity_map(name) => {
                    self.affinity_maps.insert(Arc::clone(name));
                }
                Change::Remove { key: Key::Set(name), .. } => {
                    self.affinity_maps.remove(name);
                }
                _ => {}
            }
        }
    }

    /// Makes a map forget the clients of endpoints that are gone.
    fn purge(
        &mut self,
        map: &Arc<str>,
        mut gone: BTreeSet<(IpAddr, u16)>,
    ) -> Result<(), TableError> {
        // An endpoint that changed its number may have got the new one in an earlier commit.
        if let Some(endpoints) = endpoints_of(map) {
            for (_, rule) in self.observe_elements(&endpoints)?.objects {
                if let Rule::Endpoint(address, port) = rule {
                    gone.remove(&(address, port));
                }
            }
        }
        let limit = self.send_limit();
        for _ in 0..MAX_PURGES {
            let mut clients = self.observe_elements(map)?.objects;
            clients.retain(|(_, rule)| {
                matches!(rule, Rule::Endpoint(address, port) if gone.contains(&(*address, *port)))
            });
            if clients.is_empty() {
                return Ok(());
            }
            let steps: Vec<_> =
                clients.into_iter().map(|(key, rule)| Change::Remove { key, rule }).collect();
            let steps: Vec<_> = steps.iter().collect();
            match self.send(&steps, limit, false) {
                Err(error) if error.kind() != TableErrorKind::OutOfSync => return Err(error),
                // A client was forgotten or came back in between: look again.
                _ => {}
            }
        }
        let operation = format!("forget clients of map {map} whose endpoints are gone");
        Err(TableError::new(TableErrorKind::Transient, operation))
    }
}

fn is_affinity_map(name: &str) -> bool {
    let fixed = [layout::AFFINITY_ENDPOINTS, layout::AFFINITY_SERVICES, layout::AFFINITY_NODEPORTS];
    name.starts_with(layout::POOL_AFFINITY) && !fixed.contains(&name)
}

/// Elements of a set as listed.
#[derive(Default)]
struct Elements {
    objects: Vec<(Key, Rule)>,
    /// Whether there are elements that cannot be named.
    has_stranger: bool,
}

/// What a listed set is, by its name and make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Make {
    /// As this layout has it.
    Ours,
    /// A name of this layout with another make, which cannot be changed in place.
    Changed,
    /// Not of this layout.
    Stranger,
}

impl Make {
    fn of(name: &str, spec: Option<&SetSpec>) -> Self {
        let fixed = layout::fixed_sets().into_iter().find(|(fixed, _)| *fixed == name);
        let laid_out = match fixed {
            Some((_, fixed)) => fixed,
            None if is_affinity_map(name) => layout::pool_affinity_set(),
            None if name.starts_with(layout::POOL_ENDPOINTS) => layout::pool_endpoints_set(),
            None => return Self::Stranger,
        };
        if spec == Some(&laid_out) { Self::Ours } else { Self::Changed }
    }
}

fn replaces_set(change: &Change<Key, Rule>) -> bool {
    matches!(change, Change::Replace { key: Key::Set(_), .. })
}

/// The endpoint map that belongs to a map of clients.
fn endpoints_of(affinity_map: &str) -> Option<Arc<str>> {
    let rest = affinity_map.strip_prefix(layout::POOL_AFFINITY)?;
    Some(layout::name(&[layout::POOL_ENDPOINTS, rest]))
}

/// Takes out the remembered clients whose endpoints are installed: only the others are stale.
fn forget_served_clients(objects: &mut Vec<(Key, Rule)>) {
    let mut served: BTreeMap<Arc<str>, BTreeSet<(IpAddr, u16)>> = BTreeMap::new();
    for object in &*objects {
        if let (Key::PoolEndpoint(map, ..), Rule::Endpoint(address, port)) = object {
            served.entry(Arc::clone(map)).or_default().insert((*address, *port));
        }
    }
    objects.retain(|object| match object {
        (Key::StaleClient { map, .. }, Rule::Endpoint(address, port)) => {
            let endpoints = endpoints_of(map).and_then(|map| served.get(&map));
            !endpoints.is_some_and(|endpoints| endpoints.contains(&(*address, *port)))
        }
        _ => true,
    });
}

/// Endpoints that the steps take away, by map of clients that may remember them.
fn gone_endpoints(
    delta: &RuleDelta<Key, Rule>,
    affinity_maps: &BTreeSet<Arc<str>>,
) -> BTreeMap<Arc<str>, BTreeSet<(IpAddr, u16)>> {
    if affinity_maps.is_empty() {
        return BTreeMap::new();
    }
    let mut came: BTreeMap<&str, BTreeSet<(IpAddr, u16)>> = BTreeMap::new();
    let mut left: BTreeMap<&str, BTreeSet<(IpAddr, u16)>> = BTreeMap::new();
    for change in &delta.changes {
        let Key::PoolEndpoint(map, ..) = change.key() else { continue };
        let (old, new) = match change {
            Change::Add { rule, .. } => (None, Some(rule)),
            Change::Replace { old, new, .. } => (Some(old), Some(new)),
            Change::Remove { rule, .. } => (Some(rule), None),
        };
        if let Some(Rule::Endpoint(address, port)) = old {
            left.entry(map).or_default().insert((*address, *port));
        }
        if let Some(Rule::Endpoint(address, port)) = new {
            came.entry(map).or_default().insert((*address, *port));
        }
    }
    let mut gone = BTreeMap::new();
    for map in affinity_maps {
        let Some(endpoints) = endpoints_of(map) else { continue };
        let Some(left) = left.get(endpoints.as_ref()) else { continue };
        let empty = BTreeSet::new();
        let came = came.get(endpoints.as_ref()).unwrap_or(&empty);
        gone.insert(Arc::clone(map), left.difference(came).copied().collect());
    }
    gone.retain(|_, endpoints: &mut BTreeSet<_>| !endpoints.is_empty());
    gone
}

// === errors ===

fn netlink_kind(error: &NetlinkError) -> TableErrorKind {
    match error {
        _ if error.is_permission() => TableErrorKind::Permission,
        NetlinkError::TooBig { .. } | NetlinkError::Encode(_) => TableErrorKind::Rejected,
        NetlinkError::Kernel(error) if error.is_not_found() => TableErrorKind::OutOfSync,
        NetlinkError::Kernel(error) if error.is_unsupported() => TableErrorKind::Unsupported,
        _ => TableErrorKind::Transient,
    }
}

pub(crate) fn netlink_error(operation: &str, error: NetlinkError) -> TableError {
    TableError::new(netlink_kind(&error), operation).with_source(error)
}

/// `ENOSPC`: a set is full. Unlike lack of memory this does not pass.
const ENOSPC: i32 = 28;

/// How to answer the refusal of a single object.
fn object_kind(error: &KernelError) -> TableErrorKind {
    if error.is_not_found() || error.is_exists() || error.is_busy() {
        TableErrorKind::OutOfSync
    } else if error.is_permission() {
        TableErrorKind::Permission
    } else if error.is_interrupted() || (error.is_exhausted() && error.errno != ENOSPC) {
        TableErrorKind::Transient
    } else {
        TableErrorKind::Rejected
    }
}

fn commit_error(
    error: BatchError,
    transaction: &Transaction,
    steps: &[&Change<Key, Rule>],
) -> TableError {
    let (kind, culprit) = match &error {
        _ if error.is_permission() => (TableErrorKind::Permission, None),
        _ if error.is_unsupported() => (TableErrorKind::Unsupported, None),
        BatchError::Rejected { errors, .. } => {
            let kinds = errors.iter().map(object_kind);
            // One missing object makes others fail as well: the first tells most.
            let kind = kinds.min_by_key(|kind| match kind {
                TableErrorKind::OutOfSync => 0,
                TableErrorKind::Transient => 1,
                _ => 2,
            });
            (kind.unwrap_or(TableErrorKind::Transient), errors.first())
        }
        BatchError::Netlink(error) => (netlink_kind(error), None),
        _ => (TableErrorKind::Transient, None),
    };
    let step = culprit
        .and_then(|culprit| transaction.origin(culprit.sequence))
        .and_then(|step| steps.get(step));
    let operation = match (step, culprit) {
        (Some(step), Some(culprit)) => {
            format!("write {} of table {TABLE} ({culprit})", step.key())
        }
        _ => format!("write table {TABLE}"),
    };
    TableError::new(kind, operation).with_source(error)
}

#[async_trait]
impl ServiceTable for NftablesTable {
    type Key = Key;
    type Rule = Rule;

    fn family(&self) -> IpFamily {
        self.family
    }

    fn compile_node(&self, node: &NodeFacts, out: &mut Rules) {
        self.compiler.node(node, out);
    }

    fn compile_service(&self, service: &ResolvedService, out: &mut Rules) {
        self.compiler.service(service, out);
    }

    fn is_shared(key: &Key) -> bool {
        match key {
            Key::Chain(name) => layout::is_shared_chain(&name.0),
            Key::ClusterIp(_) | Key::Hairpin(..) | Key::AffinityEndpoint(..) => true,
            _ => false,
        }
    }

    fn installed_numbers(
        &self,
        installed: &Rules,
        port: &ResolvedPort,
        pool: PoolKind,
    ) -> Vec<(usize, (IpAddr, u16))> {
        let read = |range: std::ops::RangeInclusive<Key>, first: u32| {
            let numbered = installed.range(range).filter_map(|(key, rule)| {
                let (Key::Endpoint(_, number) | Key::PoolEndpoint(_, _, number)) = key else {
                    return None;
                };
                let Rule::Endpoint(address, port) = rule else { return None };
                let number = usize::try_from(number.checked_sub(first)?).ok()?;
                Some((number, (*address, *port)))
            });
            numbered.collect::<Vec<_>>()
        };
        if has_own_maps(port) {
            let id = service_port_id(&port.name);
            let map = layout::name(&[layout::POOL_ENDPOINTS, layout::pool_infix(pool), &id]);
            let protocol = port.name.protocol;
            let key = |number| Key::PoolEndpoint(Arc::clone(&map), protocol, number);
            return read(key(0)..=key(u32::MAX), 0);
        }
        let first = offset(pool);
        let last = first + (layout::LOCAL_OFFSET - 1);
        let numbers = port.frontends.iter().map(|frontend| {
            let key = |number| Key::Endpoint(frontend.key, number);
            read(key(first)..=key(last), first)
        });
        numbers.into_iter().find(|numbers| !numbers.is_empty()).unwrap_or_default()
    }

    async fn observe(&mut self) -> Result<Rules, TableError> {
        self.observe_now()
    }

    async fn commit(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        self.commit_now(delta)
    }

    fn replaces_all(&self) -> bool {
        self.rebuild
    }

    async fn clear(&mut self) -> Result<(), TableError> {
        let writer = self.writer();
        let mut batch = node_sys::netlink::Batch::new(node_sys::netlink::Subsystem::NFTABLES, None);
        // Adding it first makes the deletion succeed whether or not it exists.
        writer.table(&mut batch);
        writer.delete_table(&mut batch);
        self.affinity_maps.clear();
        self.ranges = InstalledRanges::default();
        self.socket.commit(&mut batch).map_err(|error| {
            let kind = match &error {
                _ if error.is_permission() => TableErrorKind::Permission,
                _ => TableErrorKind::Transient,
            };
            TableError::new(kind, format!("delete table {TABLE}")).with_source(error)
        })
    }

    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        let monitor = TableMonitor::open(self.family)?;
        Ok(Some(Box::new(monitor)))
    }
}
