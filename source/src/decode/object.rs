//! One object, or a list of objects, read field by field.
//!
//! What a field means depends on the object's kind, and nothing says that the kind comes first.
//! For a whole document it is looked up beforehand. For an item of a list it is inherited, or
//! guessed from fields that only one kind has, or else the fields wait for it.

use std::collections::BTreeSet;
use std::fmt;

use proxy_core::api::{EndpointSlice, Metadata, Node, Service, ServiceCidr};
use proxy_core::event::{Kind, Object};
use serde::Deserialize;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde_json::Value;

/// `apiVersion` and `kind` of an object, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) api_version: Option<String>,
    pub(super) kind: Option<String>,
}

/// A field at the top of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(field_identifier, rename_all = "camelCase")]
pub(super) enum Field {
    AddressType,
    ApiVersion,
    Endpoints,
    Items,
    Kind,
    Metadata,
    Ports,
    Spec,
    Status,
    #[serde(other)]
    Other,
}

impl Field {
    fn as_str(self) -> &'static str {
        match self {
            Self::AddressType => "addressType",
            Self::ApiVersion => "apiVersion",
            Self::Endpoints => "endpoints",
            Self::Items => "items",
            Self::Kind => "kind",
            Self::Metadata => "metadata",
            Self::Ports => "ports",
            Self::Spec => "spec",
            Self::Status => "status",
            Self::Other => "",
        }
    }
}

/// What is gathered while a document is read.
pub(super) struct Context<'a> {
    sink: &'a mut dyn FnMut(Object),
    /// The only kind that is wanted.
    only: Option<Kind>,
    /// How many objects of the document were found.
    pub(super) sent: usize,
    /// How many of them the sink has from an earlier reading of the document.
    pub(super) repeated: usize,
    /// The kinds that were skipped.
    pub(super) skipped: BTreeSet<String>,
    /// Whether to remember which object is being read.
    named: bool,
    /// The object being read, as far as known.
    pub(super) object: Option<String>,
    /// The field of that object that an error of our own is about.
    pub(super) field: Option<&'static str>,
}

impl<'a> Context<'a> {
    pub(super) fn new(only: Option<Kind>, sink: &'a mut dyn FnMut(Object)) -> Self {
        Self {
            sink,
            only,
            sent: 0,
            repeated: 0,
            skipped: BTreeSet::new(),
            named: false,
            object: None,
            field: None,
        }
    }

    /// A context that can tell afterwards which object was being read.
    pub(super) fn named(sink: &'a mut dyn FnMut(Object)) -> Self {
        Self { named: true, ..Self::new(None, sink) }
    }

    /// Whether a document with this head cannot hold anything that is wanted.
    pub(super) fn skips(&self, head: &Head) -> bool {
        let watched = |kind: &str| Kind::ALL.into_iter().find(|other| other.as_str() == kind);
        let kind = head.kind.as_deref().and_then(watched);
        kind.is_some_and(|kind| self.is_unwanted(kind))
    }

    fn is_unwanted(&self, kind: Kind) -> bool {
        self.only.is_some_and(|only| only != kind)
    }

    fn send(&mut self, object: Object) {
        if self.repeated > 0 {
            self.repeated -= 1;
            return;
        }
        self.sent += 1;
        (self.sink)(object);
    }

    fn fail<E: serde::de::Error>(&mut self, field: &'static str, message: impl fmt::Display) -> E {
        self.field = Some(field);
        E::custom(message)
    }
}

/// What an object is to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Watched(Kind),
    /// A list, with the kind of its items if its own says so.
    List(Option<Kind>),
    Skipped,
}

impl Role {
    fn of(api_version: Option<&str>, kind: &str) -> Self {
        if api_version.is_some_and(is_foreign) {
            return Self::Skipped;
        }
        let watched = |name: &str| Kind::ALL.into_iter().find(|kind| kind.as_str() == name);
        match (watched(kind), kind.strip_suffix("List")) {
            (Some(kind), _) => Self::Watched(kind),
            (None, Some("")) => Self::List(None),
            (None, Some(item)) => {
                watched(item).map_or(Self::Skipped, |kind| Self::List(Some(kind)))
            }
            (None, None) => Self::Skipped,
        }
    }

    /// The version that the object must have.
    fn api_version(self) -> Option<&'static str> {
        match self {
            Self::Watched(kind) | Self::List(Some(kind)) => Some(kind.api_version()),
            Self::List(None) => Some("v1"),
            Self::Skipped => None,
        }
    }
}

/// Whether a group is somebody else's, so that its kinds only share a name with ours.
fn is_foreign(api_version: &str) -> bool {
    api_version
        .split_once('/')
        .is_some_and(|(group, _)| group.contains('.') && !group.ends_with(".k8s.io"))
}

/// Reads an object and what is in it.
pub(super) struct Seed<'s, 'c> {
    context: &'s mut Context<'c>,
    /// What is known beforehand.
    head: Head,
    /// Whether this is a whole document.
    top: bool,
}

impl<'s, 'c> Seed<'s, 'c> {
    /// Reads a whole document, whose head was looked up.
    pub(super) fn document(context: &'s mut Context<'c>, head: &Head) -> Self {
        Self { context, head: head.clone(), top: true }
    }
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        if self.top { Ok(()) } else { Err(E::invalid_type(serde::de::Unexpected::Unit, &self)) }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<(), A::Error> {
        if !self.top {
            return Err(A::Error::invalid_type(serde::de::Unexpected::Seq, &self));
        }
        Items { context: self.context, head: &Head::default() }.visit_seq(seq)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut reader = Reader {
            context: self.context,
            known: self.head,
            own: Head::default(),
            seen: 0,
            metadata: None,
            object: None,
            waiting: Vec::new(),
        };
        reader.context.object = None;
        while let Some(field) = map.next_key()? {
            reader.field(field, &mut map)?;
        }
        reader.finish()
    }
}

/// Reads the items of a list.
struct Items<'s, 'c, 'h> {
    context: &'s mut Context<'c>,
    /// What the items are unless they say so themselves.
    head: &'h Head,
}

impl<'de> DeserializeSeed<'de> for Items<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence of objects")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        loop {
            let head = self.head.clone();
            let item = Seed { context: &mut *self.context, head, top: false };
            if seq.next_element_seed(item)?.is_none() {
                return Ok(());
            }
        }
    }
}

/// An object half read.
struct Reader<'s, 'c> {
    context: &'s mut Context<'c>,
    /// Known beforehand: looked up or inherited.
    known: Head,
    /// Said by the object.
    own: Head,
    /// Bits of the fields that occurred.
    seen: u16,
    metadata: Option<Metadata>,
    object: Option<Object>,
    /// Fields that wait for the kind.
    waiting: Vec<(Field, Value)>,
}

impl Reader<'_, '_> {
    fn api_version(&self) -> Option<&str> {
        self.own.api_version.as_deref().or(self.known.api_version.as_deref())
    }

    fn kind(&self) -> Option<&str> {
        self.own.kind.as_deref().or(self.known.kind.as_deref())
    }

    fn role(&self) -> Option<Role> {
        self.kind().map(|kind| Role::of(self.api_version(), kind))
    }

    fn field<'de, A: MapAccess<'de>>(&mut self, field: Field, map: &mut A) -> Result<(), A::Error> {
        if field != Field::Other {
            let bit = 1 << (field as u16);
            if self.seen & bit != 0 {
                return Err(A::Error::duplicate_field(field.as_str()));
            }
            self.seen |= bit;
        }
        match field {
            Field::ApiVersion => {
                self.own.api_version = map.next_value()?;
                self.check_version()
            }
            Field::Kind => {
                self.own.kind = map.next_value()?;
                self.check_version()
            }
            Field::Metadata if self.role() != Some(Role::Skipped) => {
                self.metadata = Some(map.next_value::<Option<Metadata>>()?.unwrap_or_default());
                self.note_name();
                Ok(())
            }
            Field::Other | Field::Metadata => map.next_value::<IgnoredAny>().map(drop),
            _ => self.payload(field, map),
        }
    }

    /// Fails if the object is of a kind that is watched, in a version that is not.
    fn check_version<E: serde::de::Error>(&mut self) -> Result<(), E> {
        let (Some(role), Some(version)) = (self.role(), self.api_version()) else {
            return Ok(());
        };
        match role.api_version() {
            Some(wanted) if wanted != version => {
                let kind = self.kind().unwrap_or_default();
                let message = format!("{version} {kind} is not supported, only {wanted} is");
                Err(self.context.fail("apiVersion", message))
            }
            _ => Ok(()),
        }
    }

    /// Remembers which object this is, for errors.
    fn note_name(&mut self) {
        if !self.context.named {
            return;
        }
        if let (Some(Role::Watched(kind)), Some(metadata)) = (self.role(), &self.metadata)
            && !metadata.name.is_empty()
        {
            let mut object = empty(kind);
            *metadata_of(&mut object) = completed(kind, metadata.clone());
            self.context.object = Some(object.reference().to_string());
        }
    }

    fn payload<'de, A: MapAccess<'de>>(
        &mut self,
        field: Field,
        map: &mut A,
    ) -> Result<(), A::Error> {
        let role = match (self.role(), field) {
            (Some(role), _) => role,
            (None, Field::AddressType | Field::Endpoints) => Role::Watched(Kind::EndpointSlice),
            (None, Field::Items) => Role::List(None),
            (None, _) => {
                self.waiting.push((field, map.next_value()?));
                return Ok(());
            }
        };
        match (role, field) {
            (Role::Watched(kind), _) if !self.context.is_unwanted(kind) => {
                let object = self.object.get_or_insert_with(|| empty(kind));
                set_field(object, field, map)
            }
            (Role::List(item), Field::Items) => {
                let head = Head {
                    api_version: item.map(|kind| kind.api_version().to_owned()),
                    kind: item.map(|kind| kind.as_str().to_owned()),
                };
                map.next_value_seed(Items { context: &mut *self.context, head: &head })
            }
            _ => map.next_value::<IgnoredAny>().map(drop),
        }
    }

    fn finish<E: serde::de::Error>(mut self) -> Result<(), E> {
        let Some(role) = self.role() else {
            return Err(self.context.fail("kind", "missing"));
        };
        self.note_name();
        match role {
            Role::Watched(kind) => self.finish_object(kind),
            _ if self.api_version().is_none() => Err(self.context.fail("apiVersion", "missing")),
            Role::List(_) => Ok(()),
            Role::Skipped => {
                let kind = self.kind().unwrap_or_default();
                let name = format!("{}/{kind}", self.api_version().unwrap_or_default());
                self.context.skipped.insert(name);
                Ok(())
            }
        }
    }

    fn finish_object<E: serde::de::Error>(mut self, kind: Kind) -> Result<(), E> {
        if self.api_version().is_none() {
            return Err(self.context.fail("apiVersion", "missing"));
        }
        if self.context.is_unwanted(kind) {
            return Ok(());
        }
        let metadata = self.metadata.take().unwrap_or_default();
        if metadata.name.is_empty() {
            return Err(self.context.fail("metadata.name", format!("missing in a {kind}")));
        }
        let mut object = self.object.take().unwrap_or_else(|| empty(kind));
        if object.reference().kind != kind {
            return Err(self.context.fail("kind", format!("a {kind} has no such fields")));
        }
        for (field, value) in std::mem::take(&mut self.waiting) {
            let mut value = Waiting { value: Some(value) };
            set_field(&mut object, field, &mut value)
                .map_err(|error| self.context.fail::<E>(field.as_str(), error))?;
        }
        *metadata_of(&mut object) = completed(kind, metadata);
        self.context.send(object);
        Ok(())
    }
}

/// A field whose value was read before it was known what it is.
struct Waiting {
    value: Option<Value>,
}

impl<'de> MapAccess<'de> for Waiting {
    type Error = serde_json::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        _: K,
    ) -> Result<Option<K::Value>, Self::Error> {
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(
        &mut self,
        seed: V,
    ) -> Result<V::Value, Self::Error> {
        seed.deserialize(self.value.take().unwrap_or_default())
    }
}

fn empty(kind: Kind) -> Object {
    match kind {
        Kind::Service => Object::Service(Service::default()),
        Kind::EndpointSlice => Object::EndpointSlice(EndpointSlice::default()),
        Kind::Node => Object::Node(Node::default()),
        Kind::ServiceCidr => Object::ServiceCidr(ServiceCidr::default()),
    }
}

fn metadata_of(object: &mut Object) -> &mut Metadata {
    match object {
        Object::Service(object) => &mut object.metadata,
        Object::EndpointSlice(object) => &mut object.metadata,
        Object::Node(object) => &mut object.metadata,
        Object::ServiceCidr(object) => &mut object.metadata,
    }
}

/// Metadata as the API server would have stored it.
fn completed(kind: Kind, mut metadata: Metadata) -> Metadata {
    match kind {
        Kind::Service | Kind::EndpointSlice if metadata.namespace.is_empty() => {
            "default".clone_into(&mut metadata.namespace);
        }
        Kind::Service | Kind::EndpointSlice => {}
        Kind::Node | Kind::ServiceCidr => metadata.namespace.clear(),
    }
    metadata
}

/// Reads the value of `field` into `object`, or skips it if such an object has no such field.
fn set_field<'de, A: MapAccess<'de>>(
    object: &mut Object,
    field: Field,
    map: &mut A,
) -> Result<(), A::Error> {
    match (object, field) {
        (Object::Service(object), Field::Spec) => set(&mut object.spec, map),
        (Object::Service(object), Field::Status) => set(&mut object.status, map),
        (Object::EndpointSlice(object), Field::AddressType) => set(&mut object.address_type, map),
        (Object::EndpointSlice(object), Field::Ports) => set(&mut object.ports, map),
        (Object::EndpointSlice(object), Field::Endpoints) => set(&mut object.endpoints, map),
        (Object::Node(object), Field::Spec) => set(&mut object.spec, map),
        (Object::Node(object), Field::Status) => set(&mut object.status, map),
        (Object::ServiceCidr(object), Field::Spec) => set(&mut object.spec, map),
        _ => map.next_value::<IgnoredAny>().map(drop),
    }
}

/// `null` reads as the default, as the API server itself reads it.
fn set<'de, A, T>(place: &mut T, map: &mut A) -> Result<(), A::Error>
where
    A: MapAccess<'de>,
    T: Default + DeserializeOwned,
{
    *place = map.next_value::<Option<T>>()?.unwrap_or_default();
    Ok(())
}
