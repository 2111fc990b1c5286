//! What a source of objects tells the core.

use std::collections::BTreeMap;
use std::fmt;

use crate::api::{EndpointSlice, Node, Service, ServiceCidr};
use crate::diagnostic::Diagnostic;

/// Kinds of objects that a proxy watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `v1` Node.
    Node,
    /// `networking.k8s.io/v1` ServiceCIDR.
    ServiceCidr,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Service, Self::EndpointSlice, Self::Node, Self::ServiceCidr];

    /// The kind's name in objects.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::ServiceCidr => "ServiceCIDR",
        }
    }

    /// The API version a proxy reads this kind in.
    pub fn api_version(self) -> &'static str {
        match self {
            Self::Service | Self::Node => "v1",
            Self::EndpointSlice => "discovery.k8s.io/v1",
            Self::ServiceCidr => "networking.k8s.io/v1",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Which object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Its namespace; empty for kinds without one.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{}/{}", self.kind, self.name)
        } else {
            write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// An object that a proxy watches.
#[expect(clippy::large_enum_variant, reason = "lives only while it is handed over")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// A Service.
    Service(Service),
    /// An EndpointSlice.
    EndpointSlice(EndpointSlice),
    /// A Node.
    Node(Node),
    /// A ServiceCIDR.
    ServiceCidr(ServiceCidr),
}

impl Object {
    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Node(_) => Kind::Node,
            Self::ServiceCidr(_) => Kind::ServiceCidr,
        }
    }

    /// Which object it is.
    pub fn reference(&self) -> ObjectRef {
        let (kind, metadata) = match self {
            Self::Service(object) => (Kind::Service, &object.metadata),
            Self::EndpointSlice(object) => (Kind::EndpointSlice, &object.metadata),
            Self::Node(object) => (Kind::Node, &object.metadata),
            Self::ServiceCidr(object) => (Kind::ServiceCidr, &object.metadata),
        };
        ObjectRef { kind, namespace: metadata.namespace.clone(), name: metadata.name.clone() }
    }
}

/// One step of a source's stream.
///
/// A list is `ListStarted`, any number of `Applied`, `ListDone`: what is known of the kind and was
/// not applied in between is gone (S2.5). Between lists, objects are applied and deleted one by
/// one. Repeats, deletions of the unknown and lists that repeat what is known are harmless.
#[expect(clippy::large_enum_variant, reason = "lives only while it is handed over")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceEvent {
    /// A complete list of this kind begins.
    ListStarted(Kind),
    /// An object exists and looks like this.
    Applied(Object),
    /// An object is gone.
    Deleted(ObjectRef),
    /// An object exists but cannot be read: what is known of it stays in force, also if a list
    /// has nothing better.
    Unreadable(ObjectRef),
    /// Every object of the list has been handed over.
    ListDone(Kind),
    /// All findings of the source that are in force now, in place of all earlier ones.
    Findings(Vec<Diagnostic>),
}

/// How many objects of each kind a source has told of, one way or the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventCounts {
    /// Those that exist, repeats included.
    pub applied: BTreeMap<Kind, usize>,
    /// Those that are gone, those that a list left out among them.
    pub deleted: BTreeMap<Kind, usize>,
}

impl EventCounts {
    /// Counts an event in.
    pub(crate) fn add(&mut self, event: &SourceEvent) {
        let (counts, kind) = match event {
            SourceEvent::Applied(object) => (&mut self.applied, object.kind()),
            SourceEvent::Deleted(reference) => (&mut self.deleted, reference.kind),
            _ => return,
        };
        *counts.entry(kind).or_default() += 1;
    }

    /// Counts objects of which the end of a list has shown that they are gone.
    pub(crate) fn add_unlisted(&mut self, kind: Kind, count: usize) {
        if count > 0 {
            *self.deleted.entry(kind).or_default() += count;
        }
    }

    /// Whether no object was told of.
    pub fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.deleted.is_empty()
    }

    /// How many objects of this kind were told of.
    pub fn of(&self, kind: Kind) -> usize {
        [&self.applied, &self.deleted].iter().filter_map(|counts| counts.get(&kind)).sum()
    }
}
