//! The objects a proxy knows, kept small, and what they amount to in each IP family.
//!
//! Events only record and mark what is concerned. [`Store::take_changes`] resolves the marked
//! Services and tells what is different from the last time, at a cost that follows the change and
//! not the number of Services. What comes out depends on the objects that exist, never on the
//! order in which they became known.

mod family;
mod findings;
mod lists;
mod node;
mod per_family;
pub(crate) mod service;
pub(crate) mod slice;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use self::family::{Family, Objects};
use self::findings::Findings;
use self::lists::Lists;
use self::node::Place;
use self::per_family::PerFamily;
use self::service::StoredService;
use self::slice::{SliceKey, SliceReader, Slices, StoredSlice};
use crate::address::{Cidr, IpFamily};
use crate::api;
use crate::conntrack::FlowCleaner;
use crate::diagnostic::Diagnostic;
use crate::event::{EventCounts, Kind, Object, ObjectRef, SourceEvent};
use crate::intern::Interner;
use crate::names::ServiceName;
use crate::node::{LocalDetector, NodeFacts};
use crate::options::Options;
use crate::resolve::{Context, object, without_covered};
use crate::resolved::ResolvedService;

pub use self::family::{FamilyChanges, Trigger};
pub use self::node::NodeState;

/// A Service and the round of lists in which it was last seen.
#[derive(Debug)]
pub(crate) struct ListedService {
    pub(crate) service: StoredService,
    round: u32,
}

/// Boxed, as the nodes of the map are only two thirds full.
type StoredServices = BTreeMap<ServiceName, Box<ListedService>>;

/// A ServiceCIDR and the round of lists in which it was last seen.
#[derive(Debug)]
struct ListedRanges {
    ranges: Vec<Cidr>,
    findings: Findings,
    round: u32,
}

/// The objects a proxy knows and what they amount to.
#[derive(Debug)]
pub struct Store {
    options: Options,
    names: Interner,
    lists: Lists,
    services: StoredServices,
    slices: Slices,
    service_ranges: BTreeMap<String, ListedRanges>,
    node: NodeState,
    node_findings: Findings,
    interface_addresses: Vec<IpAddr>,
    source_findings: Vec<Diagnostic>,
    families: PerFamily<Family>,
}

impl Store {
    /// A store that knows nothing yet.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            names: Interner::new(),
            lists: Lists::default(),
            services: BTreeMap::new(),
            slices: Slices::default(),
            service_ranges: BTreeMap::new(),
            node: NodeState::default(),
            node_findings: Findings::default(),
            interface_addresses: Vec::new(),
            source_findings: Vec::new(),
            families: PerFamily::default(),
        }
    }

    /// Takes in one step of a source's stream. What is wrong with an object becomes a finding.
    pub fn apply(&mut self, event: SourceEvent) {
        self.apply_counted(event, &mut EventCounts::default());
    }

    /// As [`Store::apply`], and counts the objects that are told of, or gone because a complete
    /// list has them no more.
    pub fn apply_counted(&mut self, event: SourceEvent, counts: &mut EventCounts) {
        counts.add(&event);
        match event {
            SourceEvent::ListStarted(kind) => self.lists.start(kind),
            SourceEvent::Applied(object) => self.apply_object(&object),
            SourceEvent::Deleted(object) => self.delete(&object),
            SourceEvent::Unreadable(object) => self.keep(&object),
            SourceEvent::ListDone(kind) => {
                if self.lists.finish(kind) {
                    counts.add_unlisted(kind, self.forget_unlisted(kind));
                }
            }
            SourceEvent::Findings(findings) => self.source_findings = findings,
        }
    }

    /// Tells the machine's own addresses. Node ports answer on some of them, and without a Node
    /// object the first that others can reach stands for the node's address in its family.
    pub fn set_interface_addresses(&mut self, addresses: &[IpAddr]) {
        self.interface_addresses = addresses.to_vec();
    }

    /// Whether all Services and all EndpointSlices have been handed over once. Before that, what
    /// is missing here may well exist, and no rule may be taken away for its absence (S1.9).
    pub fn is_ready(&self) -> bool {
        self.lists.is_complete(Kind::Service) && self.lists.is_complete(Kind::EndpointSlice)
    }

    /// Resolves what is concerned by the events since the last call, and tells what is different.
    pub fn take_changes(&mut self, family: IpFamily) -> FamilyChanges {
        let context = self.context(family);
        let facts = self.node_facts(family);
        let flows = FlowCleaner::new(&facts, &self.interface_addresses);
        let objects = Objects { services: &self.services, slices: &self.slices };
        self.families.of_mut(family).take(context, facts, objects, flows)
    }

    /// The flows that may be stale after the rules of this family were missing or wrong for a
    /// while: all UDP flows of its Services are to be looked at, as after a start.
    pub fn all_flows(&self, family: IpFamily) -> FlowCleaner {
        let mut flows = FlowCleaner::new(&self.node_facts(family), &self.interface_addresses);
        for service in self.services(family) {
            flows.add_change(None, Some(service));
        }
        flows
    }

    /// The Services of this family by name, as of the last [`Store::take_changes`].
    pub fn services(&self, family: IpFamily) -> impl Iterator<Item = &Arc<ResolvedService>> {
        self.families.of(family).resolved().values()
    }

    /// One Service of this family, as of the last [`Store::take_changes`].
    pub fn service(&self, family: IpFamily, name: &ServiceName) -> Option<&Arc<ResolvedService>> {
        self.families.of(family).resolved().get(name)
    }

    /// The facts about the node that rules of this family depend on.
    pub fn node_facts(&self, family: IpFamily) -> NodeFacts {
        let ranges = self.service_ranges.values().flat_map(|listed| &listed.ranges).copied();
        NodeFacts {
            family,
            node_port_addresses: self.place().node_port_addresses(family),
            addresses: self.place().addresses(family),
            service_ranges: without_covered(
                ranges.filter(|range| range.family() == family).collect(),
            ),
        }
    }

    /// How the traffic of local pods is told in this family; `None` if there is no way (S8).
    pub fn detector(&self, family: IpFamily) -> Option<LocalDetector> {
        self.place().detector(family)
    }

    /// The address of the node in this family; loopback if none is known (S7.2).
    pub fn node_ip(&self, family: IpFamily) -> IpAddr {
        self.place().node_ip(family)
    }

    /// The family of the node's first address (S7.2).
    pub fn primary_family(&self) -> IpFamily {
        self.place().primary_family()
    }

    /// What is known of the node from its Node object.
    pub fn node(&self) -> NodeState {
        self.node.clone()
    }

    /// Everything that is wrong now, in order and each once. What concerns one family only is as
    /// of its last [`Store::take_changes`].
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let services = self
            .services
            .iter()
            .flat_map(|(name, listed)| listed.service.findings.diagnostics(|| object(name)));
        let slices = self.slices.iter().flat_map(|(key, slice)| {
            let namespace = &key.service.namespace;
            let object = || format!("{}/{namespace}/{}", Kind::EndpointSlice, key.slice);
            slice.findings.diagnostics(object)
        });
        let ranges = self.service_ranges.iter().flat_map(|(name, listed)| {
            listed.findings.diagnostics(|| format!("{}/{name}", Kind::ServiceCidr))
        });
        let families = self.families.both().flat_map(Family::findings).cloned();
        let findings: BTreeSet<Diagnostic> = services
            .chain(slices)
            .chain(ranges)
            .chain(self.node_findings.diagnostics(|| self.node_object()))
            .chain(IpFamily::ALL.into_iter().filter_map(|family| self.missing_primary(family)))
            .chain(families)
            .chain(self.source_findings.iter().cloned())
            .collect();
        findings.into_iter().collect()
    }

    fn place(&self) -> Place<'_> {
        Place {
            options: &self.options,
            node: &self.node,
            interface_addresses: &self.interface_addresses,
        }
    }

    fn context(&self, family: IpFamily) -> Context {
        let place = self.place();
        // A label without a value names no zone, so no hint can mean it.
        let zone = self.node.zone.clone().filter(|zone| !zone.is_empty());
        Context {
            family,
            zone,
            node_ip: place.node_ip(family),
            has_detector: place.detector(family).is_some(),
            masquerade_all: self.options.masquerade_all,
            allow_external_ips: self.options.allow_external_ips,
            external_ip_ranges: Arc::clone(&self.options.external_ip_ranges),
        }
    }

    fn node_object(&self) -> String {
        format!("{}/{}", Kind::Node, self.options.node_name)
    }

    fn missing_primary(&self, family: IpFamily) -> Option<Diagnostic> {
        let open = self.families.of(family).is_served() && self.place().lacks_primary(family);
        open.then(|| {
            let message = format!(
                "no {family} address for nodePortAddresses \"primary\"; node ports answer on \
                 every {family} address"
            );
            Diagnostic::new(self.node_object(), "status.addresses", message)
        })
    }
}

// === Events ===

impl Store {
    fn apply_object(&mut self, object: &Object) {
        match object {
            Object::Service(service) => self.apply_service(service),
            Object::EndpointSlice(slice) => self.apply_slice(slice),
            Object::Node(node) => self.apply_node(node),
            Object::ServiceCidr(ranges) => self.apply_service_ranges(ranges),
        }
    }

    fn delete(&mut self, object: &ObjectRef) {
        match object.kind {
            Kind::Service => {
                let name = self.name(&object.namespace, &object.name);
                self.remove_service(&name);
            }
            Kind::EndpointSlice => self.delete_slice(&object.namespace, &object.name),
            // The node we run on exists, whatever happened to its object (S7.4).
            Kind::Node => {}
            Kind::ServiceCidr => {
                self.service_ranges.remove(&object.name);
            }
        }
    }

    /// Notes that the present list has this object, and leaves what is known of it as it is.
    fn keep(&mut self, object: &ObjectRef) {
        let round = self.lists.round(object.kind);
        let name = self.name(&object.namespace, &object.name);
        match object.kind {
            Kind::Service => {
                if let Some(listed) = self.services.get_mut(&name) {
                    listed.round = round;
                }
            }
            Kind::EndpointSlice => {
                let owner = self.slices.owner(&name.namespace, &name.name);
                let key = owner.map(|service| SliceKey { service, slice: name.name });
                if let Some(slice) = key.and_then(|key| self.slices.get_mut(&key)) {
                    slice.round = round;
                }
            }
            Kind::Node => {}
            Kind::ServiceCidr => {
                if let Some(listed) = self.service_ranges.get_mut(&object.name) {
                    listed.round = round;
                }
            }
        }
    }

    fn forget_unlisted(&mut self, kind: Kind) -> usize {
        let round = self.lists.round(kind);
        match kind {
            Kind::Service => {
                let gone = self.services.iter().filter(|(_, listed)| listed.round != round);
                let gone: Vec<ServiceName> = gone.map(|(name, _)| name.clone()).collect();
                for name in &gone {
                    self.remove_service(name);
                }
                gone.len()
            }
            Kind::EndpointSlice => {
                let gone = self.slices.iter().filter(|(_, slice)| slice.round != round);
                let gone: Vec<SliceKey> = gone.map(|(key, _)| key.clone()).collect();
                for key in &gone {
                    self.remove_slice(key);
                }
                gone.len()
            }
            Kind::Node => 0,
            Kind::ServiceCidr => {
                let before = self.service_ranges.len();
                self.service_ranges.retain(|_, listed| listed.round == round);
                before - self.service_ranges.len()
            }
        }
    }

    fn apply_service(&mut self, service: &api::Service) {
        let name = self.name(&service.metadata.namespace, &service.metadata.name);
        let Some(service) = StoredService::read(service, &mut self.names) else {
            self.remove_service(&name);
            return;
        };
        let round = self.lists.round(Kind::Service);
        match self.services.get_mut(&name) {
            Some(known) if known.service == service => known.round = round,
            _ => {
                self.mark(&name);
                self.services.insert(name, Box::new(ListedService { service, round }));
            }
        }
    }

    fn remove_service(&mut self, name: &ServiceName) {
        if self.services.remove(name).is_some() {
            self.mark(name);
        }
    }

    fn apply_slice(&mut self, slice: &api::EndpointSlice) {
        let round = self.lists.round(Kind::EndpointSlice);
        let mut reader = SliceReader { names: &mut self.names, node_name: &self.options.node_name };
        let Some(stored) = reader.read(slice, round) else {
            self.delete_slice(&slice.metadata.namespace, &slice.metadata.name);
            return;
        };
        let owner = slice.metadata.labels.service_name.as_deref().unwrap_or_default();
        let service = self.name(&slice.metadata.namespace, owner);
        let key = SliceKey { service, slice: self.names.intern(&slice.metadata.name) };
        let former = self.slices.owner(&key.service.namespace, &key.slice);
        if let Some(former) = former.filter(|former| *former != key.service) {
            // Moved to another Service by a change of its label: it must not stay with both.
            self.remove_slice(&SliceKey { service: former, slice: Arc::clone(&key.slice) });
        }
        self.put_slice(key, stored);
    }

    fn put_slice(&mut self, key: SliceKey, slice: StoredSlice) {
        let known = self.slices.get_mut(&key);
        let known_time = known.as_ref().and_then(|known| known.trigger_time);
        let new_time = slice.trigger_time.filter(|_| slice.trigger_time != known_time);
        if let (Some(time), Some(family)) = (new_time, slice.family()) {
            self.families.of_mut(family).note_trigger(&key.service, time);
        }
        match known {
            Some(known) if known.content == slice.content => *known = slice,
            _ => {
                self.mark(&key.service);
                self.slices.insert(key, slice);
            }
        }
    }

    fn delete_slice(&mut self, namespace: &str, slice: &str) {
        let namespace = self.names.intern(namespace);
        let slice = self.names.intern(slice);
        if let Some(service) = self.slices.owner(&namespace, &slice) {
            self.remove_slice(&SliceKey { service, slice });
        }
    }

    fn remove_slice(&mut self, key: &SliceKey) {
        let Some(slice) = self.slices.remove(key) else { return };
        self.mark(&key.service);
        if let Some(family) = slice.family() {
            self.families.of_mut(family).forget_triggers(&key.service);
        }
    }

    /// A folder of manifests may hold the objects of many nodes; only ours is about us.
    fn apply_node(&mut self, node: &api::Node) {
        if node.metadata.name == self.options.node_name {
            self.node_findings = Findings::default();
            self.node = NodeState::read(node, &mut self.names, &mut self.node_findings);
        }
    }

    fn apply_service_ranges(&mut self, object: &api::ServiceCidr) {
        let round = self.lists.round(Kind::ServiceCidr);
        let mut findings = Findings::default();
        let texts = object.spec.cidrs.iter().enumerate();
        let ranges = texts.filter_map(|(index, text)| {
            findings.ok(format_args!("spec.cidrs[{index}]"), Cidr::parse(text))
        });
        let ranges = ranges.collect();
        let listed = ListedRanges { ranges, findings, round };
        self.service_ranges.insert(object.metadata.name.clone(), listed);
    }

    fn name(&mut self, namespace: &str, name: &str) -> ServiceName {
        ServiceName { namespace: self.names.intern(namespace), name: self.names.intern(name) }
    }

    fn mark(&mut self, service: &ServiceName) {
        for family in self.families.both_mut() {
            family.mark(service);
        }
    }
}
