//! EndpointSlices as the store keeps them (S4).

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::findings::Findings;
use super::service::{read_protocol, valid_port};
use crate::address::{IpFamily, parse_ip};
use crate::api;
use crate::intern::Interner;
use crate::names::{Protocol, ServiceName};
use crate::topology::EndpointFlags;

/// The parts of a slice that decide which endpoints a Service has.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SliceContent {
    pub(crate) ports: Box<[SlicePort]>,
    endpoints: StoredEndpoints,
    /// The distinct sets of zones that endpoints of this slice are hinted to.
    zones: Box<[Box<[Arc<str>]>]>,
}

/// One port of a slice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SlicePort {
    pub(crate) name: Arc<str>,
    pub(crate) protocol: Protocol,
    pub(crate) port: u16,
}

/// The endpoints of a slice, which are all of one family.
#[derive(Debug, PartialEq, Eq)]
enum StoredEndpoints {
    V4(Box<[StoredEndpoint<Ipv4Addr>]>),
    V6(Box<[StoredEndpoint<Ipv6Addr>]>),
}

/// One endpoint of a slice. There are very many of these.
#[derive(Debug, PartialEq, Eq)]
struct StoredEndpoint<A> {
    address: A,
    /// All but [`EndpointFlags::HINTS_THIS_ZONE`], as the zone of the node can change.
    flags: EndpointFlags,
    /// Index into [`SliceContent::zones`]; meaningful with [`EndpointFlags::ZONE_HINT`].
    zones: u16,
}

impl SliceContent {
    /// The family of the endpoints.
    pub(crate) fn family(&self) -> IpFamily {
        match self.endpoints {
            StoredEndpoints::V4(_) => IpFamily::V4,
            StoredEndpoints::V6(_) => IpFamily::V6,
        }
    }

    /// The endpoints, as seen from a node in this zone.
    pub(crate) fn endpoints<'a>(
        &'a self,
        zone: Option<&'a str>,
    ) -> impl Iterator<Item = (IpAddr, EndpointFlags)> + 'a {
        let (v4, v6) = match &self.endpoints {
            StoredEndpoints::V4(endpoints) => (&**endpoints, &[][..]),
            StoredEndpoints::V6(endpoints) => (&[][..], &**endpoints),
        };
        let v4 = v4.iter().map(move |it| (it.address.into(), self.flags(it, zone)));
        let v6 = v6.iter().map(move |it| (it.address.into(), self.flags(it, zone)));
        v4.chain(v6)
    }

    fn flags<A>(&self, endpoint: &StoredEndpoint<A>, zone: Option<&str>) -> EndpointFlags {
        let zones = self.zones.get(usize::from(endpoint.zones));
        let ours = endpoint.flags.has(EndpointFlags::ZONE_HINT)
            && zones.is_some_and(|zones| zones.iter().any(|name| Some(&**name) == zone));
        endpoint.flags.with(EndpointFlags::HINTS_THIS_ZONE, ours)
    }
}

/// A slice.
#[derive(Debug)]
pub(crate) struct StoredSlice {
    /// `None` if the slice as a whole makes no sense.
    pub(crate) content: Option<SliceContent>,
    /// When the change it tells of happened (S10.3).
    pub(crate) trigger_time: Option<OffsetDateTime>,
    pub(crate) findings: Findings,
    /// The round of lists in which the slice was last seen.
    pub(crate) round: u32,
}

impl StoredSlice {
    /// The family of the endpoints.
    pub(crate) fn family(&self) -> Option<IpFamily> {
        self.content.as_ref().map(SliceContent::family)
    }
}

/// Reads slices on behalf of one node.
pub(crate) struct SliceReader<'a> {
    pub(crate) names: &'a mut Interner,
    pub(crate) node_name: &'a str,
}

impl SliceReader<'_> {
    /// Reads a slice; `None` if it is of a headless Service (S2.1).
    pub(crate) fn read(&mut self, slice: &api::EndpointSlice, round: u32) -> Option<StoredSlice> {
        if slice.metadata.labels.headless.is_some() {
            return None;
        }
        let mut findings = Findings::default();
        Some(StoredSlice {
            content: self.content(slice, &mut findings),
            trigger_time: trigger_time(slice, &mut findings),
            findings,
            round,
        })
    }

    fn content(
        &mut self,
        slice: &api::EndpointSlice,
        findings: &mut Findings,
    ) -> Option<SliceContent> {
        let owner = slice.metadata.labels.service_name.as_deref().unwrap_or_default();
        if owner.is_empty() {
            let field = format_args!("metadata.labels[{}]", api::LABEL_SERVICE_NAME);
            findings.add(field, "missing, so the slice belongs to no Service; left out");
            return None;
        }
        let mut zones = ZoneSets::default();
        let endpoints = match slice.address_type.as_str() {
            "IPv4" => StoredEndpoints::V4(self.endpoints(slice, as_v4, &mut zones, findings)),
            "IPv6" => StoredEndpoints::V6(self.endpoints(slice, as_v6, &mut zones, findings)),
            other => {
                findings
                    .add("addressType", format_args!("{other:?} is not an IP family; left out"));
                return None;
            }
        };
        Some(SliceContent {
            ports: self.ports(slice, findings),
            endpoints,
            zones: zones.sets.into(),
        })
    }

    fn ports(&mut self, slice: &api::EndpointSlice, findings: &mut Findings) -> Box<[SlicePort]> {
        let ports = slice.ports.iter().enumerate();
        ports.filter_map(|(index, port)| self.port(index, port, findings)).collect()
    }

    fn port(
        &mut self,
        index: usize,
        port: &api::EndpointPort,
        findings: &mut Findings,
    ) -> Option<SlicePort> {
        let field = format!("ports[{index}]");
        let Some(name) = &port.name else {
            findings.add(format_args!("{field}.name"), "missing; left out");
            return None;
        };
        let Some(number) = port.port else {
            let message = "missing would mean all ports, which is not supported; left out";
            findings.add(format_args!("{field}.port"), message);
            return None;
        };
        let protocol = read_protocol(&field, port.protocol.as_deref(), findings)?;
        let port = valid_port(format_args!("{field}.port"), number, "left out", findings)?;
        Some(SlicePort { name: self.names.intern(name), protocol, port })
    }

    fn endpoints<'a, A>(
        &mut self,
        slice: &'a api::EndpointSlice,
        of_family: fn(IpAddr) -> Option<A>,
        zones: &mut ZoneSets<'a>,
        findings: &mut Findings,
    ) -> Box<[StoredEndpoint<A>]> {
        let mut endpoints = Vec::with_capacity(slice.endpoints.len());
        for (index, endpoint) in slice.endpoints.iter().enumerate() {
            match endpoint_address(endpoint, of_family) {
                Ok(address) => endpoints.push(self.endpoint(address, endpoint, zones)),
                Err(fault) => {
                    let field = format_args!("endpoints[{index}].addresses");
                    findings.add(field, format_args!("{fault}; endpoint left out"));
                }
            }
        }
        endpoints.into()
    }

    fn endpoint<'a, A>(
        &mut self,
        address: A,
        endpoint: &'a api::SliceEndpoint,
        zones: &mut ZoneSets<'a>,
    ) -> StoredEndpoint<A> {
        let conditions = &endpoint.conditions;
        let node = self.node_name;
        let is_this_node = |name: &str| !node.is_empty() && name == node;
        let hints = endpoint.hints.as_ref();
        let for_nodes = hints.map_or(&[][..], |hints| &hints.for_nodes);
        let for_zones = hints.map_or(&[][..], |hints| &hints.for_zones);
        let zones = zones.index(for_zones, self.names);
        let flags = EndpointFlags::none()
            .with(EndpointFlags::READY, conditions.ready.unwrap_or(true))
            .with(EndpointFlags::SERVING, conditions.serving.unwrap_or(true))
            .with(EndpointFlags::TERMINATING, conditions.terminating.unwrap_or(false))
            .with(EndpointFlags::LOCAL, endpoint.node_name.as_deref().is_some_and(is_this_node))
            .with(EndpointFlags::NODE_HINT, !for_nodes.is_empty())
            .with(
                EndpointFlags::HINTS_THIS_NODE,
                for_nodes.iter().any(|hint| is_this_node(&hint.name)),
            )
            .with(EndpointFlags::ZONE_HINT, zones.is_some());
        StoredEndpoint { address, flags, zones: zones.unwrap_or_default() }
    }
}

fn endpoint_address<A>(
    endpoint: &api::SliceEndpoint,
    of_family: fn(IpAddr) -> Option<A>,
) -> Result<A, String> {
    let text = endpoint.addresses.first().ok_or("empty")?;
    let address = parse_ip(text).map_err(|error| error.to_string())?;
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!("{address} is nobody's address"));
    }
    of_family(address).ok_or_else(|| format!("{address} is not of the slice's address type"))
}

fn as_v4(address: IpAddr) -> Option<Ipv4Addr> {
    match address {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    }
}

fn as_v6(address: IpAddr) -> Option<Ipv6Addr> {
    match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(address),
    }
}

fn trigger_time(slice: &api::EndpointSlice, findings: &mut Findings) -> Option<OffsetDateTime> {
    let text = slice.metadata.annotations.trigger_time.as_deref()?;
    let parsed = OffsetDateTime::parse(text, &Rfc3339);
    if parsed.is_err() {
        let field = format_args!("metadata.annotations[{}]", api::ANNOTATION_TRIGGER_TIME);
        findings.add(field, format_args!("{text:?} is not an RFC 3339 time; left out"));
    }
    parsed.ok()
}

/// The distinct sets of zones of one slice: most endpoints of a slice share one.
#[derive(Default)]
struct ZoneSets<'a> {
    sets: Vec<Box<[Arc<str>]>>,
    known: HashMap<Vec<&'a str>, u16>,
    last: Option<(&'a [api::ForName], u16)>,
}

impl<'a> ZoneSets<'a> {
    /// The number of this set; `None` if it is empty, or if there are too many to be numbered.
    /// The endpoint then counts as one without a hint, which only widens the choice.
    fn index(&mut self, hints: &'a [api::ForName], names: &mut Interner) -> Option<u16> {
        if hints.is_empty() {
            return None;
        }
        if let Some((_, index)) = self.last.filter(|(last, _)| *last == hints) {
            return Some(index);
        }
        let index = self.search(hints, names)?;
        self.last = Some((hints, index));
        Some(index)
    }

    fn search(&mut self, hints: &'a [api::ForName], names: &mut Interner) -> Option<u16> {
        let mut zones: Vec<&str> = hints.iter().map(|hint| hint.name.as_str()).collect();
        zones.sort_unstable();
        zones.dedup();
        if let Some(&index) = self.known.get(&zones) {
            return Some(index);
        }
        let index = u16::try_from(self.sets.len()).ok()?;
        self.sets.push(zones.iter().map(|zone| names.intern(zone)).collect());
        self.known.insert(zones, index);
        Some(index)
    }
}

/// Identity of a slice, ordered so that the slices of one Service are neighbours.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SliceKey {
    /// The Service it belongs to; without a name if it belongs to none.
    pub(crate) service: ServiceName,
    /// Name of the slice.
    pub(crate) slice: Arc<str>,
}

/// All slices, by the Service they belong to.
#[derive(Debug, Default)]
pub(crate) struct Slices {
    slices: BTreeMap<SliceKey, StoredSlice>,
    /// Namespace and name of each slice, and the Service its label names.
    owners: HashMap<(Arc<str>, Arc<str>), Arc<str>>,
}

impl Slices {
    /// The slices of a Service, by name.
    pub(crate) fn of<'a>(
        &'a self,
        service: &'a ServiceName,
    ) -> impl Iterator<Item = &'a StoredSlice> {
        let first = SliceKey { service: service.clone(), slice: "".into() };
        self.slices
            .range(first..)
            .take_while(|(key, _)| key.service == *service)
            .map(|(_, slice)| slice)
    }

    /// All slices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&SliceKey, &StoredSlice)> {
        self.slices.iter()
    }

    /// The Service to which the slice of this name belongs.
    pub(crate) fn owner(&self, namespace: &Arc<str>, slice: &Arc<str>) -> Option<ServiceName> {
        let owner = self.owners.get(&(Arc::clone(namespace), Arc::clone(slice)))?;
        Some(ServiceName { namespace: Arc::clone(namespace), name: Arc::clone(owner) })
    }

    /// The slice of this key.
    pub(crate) fn get_mut(&mut self, key: &SliceKey) -> Option<&mut StoredSlice> {
        self.slices.get_mut(key)
    }

    /// Puts the slice in place of one of the same key.
    pub(crate) fn insert(&mut self, key: SliceKey, slice: StoredSlice) {
        let object = (Arc::clone(&key.service.namespace), Arc::clone(&key.slice));
        self.owners.insert(object, Arc::clone(&key.service.name));
        self.slices.insert(key, slice);
    }

    /// Takes the slice out.
    pub(crate) fn remove(&mut self, key: &SliceKey) -> Option<StoredSlice> {
        self.owners.remove(&(Arc::clone(&key.service.namespace), Arc::clone(&key.slice)));
        self.slices.remove(key)
    }
}
