//! Kernel objects as netlink messages, and back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use node_sys::netlink::{Attributes, Batch, Message, MessageBuffer, flags};
use proxy_core::address::{Cidr, IpFamily};
use proxy_core::names::Protocol;
use proxy_core::resolved::FrontendKey;

use crate::expr::{Expr, Verdict, family_number};
use crate::layout;
use crate::model::{
    Action, Base, ChainName, ChainSpec, ChainType, Hook, Key, KeyPart, Rule, RuleSpec, SetData,
    SetSpec,
};
use crate::uapi::{self, LIST_ELEMENT, chain, data, element, msg, rule, set, table};

/// Header of a nf_tables message: `struct nfgenmsg`.
const NFGEN_LEN: usize = 4;
/// `NFT_TABLE_F_DORMANT`.
const TABLE_DORMANT: u32 = 1;
/// `NFTNL_UDATA_*_COMMENT` of elements and rules (libnftnl): type of a comment in user data.
const COMMENT_TYPE: u8 = 0;
/// No element takes more bytes: key, end of range, data, comment.
const MAX_ELEMENT: usize = 512;

/// Numbers of nft's data types (`enum datatypes`); six bits each in a concatenation.
const TYPE_IPADDR: u32 = 7;
const TYPE_IP6ADDR: u32 = 8;
const TYPE_INET_PROTOCOL: u32 = 12;
const TYPE_INET_SERVICE: u32 = 13;
const TYPE_MARK: u32 = 19;
/// What nft itself declares where this program says `mark`; to the kernel both are the same.
const TYPE_INTEGER: u32 = 4;
const TYPE_BITS: u32 = 6;

impl KeyPart {
    fn type_number(self, family: IpFamily) -> u32 {
        match (self, family) {
            (Self::Address, IpFamily::V4) => TYPE_IPADDR,
            (Self::Address, IpFamily::V6) => TYPE_IP6ADDR,
            (Self::Protocol, _) => TYPE_INET_PROTOCOL,
            (Self::Port, _) => TYPE_INET_SERVICE,
            (Self::Number, _) => TYPE_MARK,
        }
    }

    /// Bytes of the part in a register, padded to whole words.
    pub(crate) fn len(self, family: IpFamily) -> u32 {
        match (self, family) {
            (Self::Address, IpFamily::V6) => 16,
            _ => 4,
        }
    }

    /// Bytes of the part alone. A key of one part is not padded.
    fn own_len(self, family: IpFamily) -> u32 {
        match self {
            Self::Address | Self::Number => self.len(family),
            Self::Protocol => 1,
            Self::Port => 2,
        }
    }
}

fn concat_type(parts: &[KeyPart], family: IpFamily) -> u32 {
    parts.iter().fold(0, |number, part| (number << TYPE_BITS) | part.type_number(family))
}

fn key_len(parts: &[KeyPart], family: IpFamily) -> u32 {
    match parts {
        [single] => single.own_len(family),
        _ => parts.iter().map(|part| part.len(family)).sum(),
    }
}

/// The parts of `address . port`, the data of endpoint maps.
const ENDPOINT_PARTS: [KeyPart; 2] = [KeyPart::Address, KeyPart::Port];

/// A comment as nft stores it: type, length, text, zero.
fn comment_data(comment: &str) -> Option<Vec<u8>> {
    let len = u8::try_from(comment.len() + 1).ok().filter(|_| !comment.is_empty())?;
    let mut bytes = vec![COMMENT_TYPE, len];
    bytes.extend_from_slice(comment.as_bytes());
    bytes.push(0);
    Some(bytes)
}

fn read_comment(bytes: &[u8]) -> Option<&str> {
    let mut rest = bytes;
    while let [kind, len, tail @ ..] = rest {
        let (text, next) = tail.split_at_checked(usize::from(*len))?;
        if *kind == COMMENT_TYPE {
            return std::str::from_utf8(text.strip_suffix(&[0]).unwrap_or(text)).ok();
        }
        rest = next;
    }
    None
}

/// Key or data of a set element, as the kernel has it in registers.
pub(crate) struct Words {
    bytes: [u8; 64],
    len: usize,
}

impl Words {
    const EMPTY: Self = Self { bytes: [0; 64], len: 0 };

    /// Appends a part, padded to whole words.
    fn push(&mut self, part: &[u8]) {
        if let Some(place) = self.bytes.get_mut(self.len..self.len + part.len()) {
            place.copy_from_slice(part);
            self.len = (self.len + part.len()).next_multiple_of(4);
        }
    }

    fn address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(address) => self.push(&address.octets()),
            IpAddr::V6(address) => self.push(&address.octets()),
        }
    }

    fn port(&mut self, protocol: Protocol, port: u16) {
        self.push(&[protocol.number()]);
        self.push(&port.to_be_bytes());
    }

    fn frontend(&mut self, frontend: &FrontendKey) {
        if let FrontendKey::Address { address, .. } = frontend {
            self.address(*address);
        }
        self.port(frontend.protocol(), frontend.port());
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The set an element is in, with its key and, for ranges, the last key.
pub(crate) struct ElementKey<'a> {
    pub(crate) set: &'a str,
    pub(crate) first: Words,
    pub(crate) last: Option<Words>,
}

fn by_kind<'a>(frontend: &FrontendKey, address: &'a str, node_port: &'a str) -> &'a str {
    match frontend {
        FrontendKey::Address { .. } => address,
        FrontendKey::NodePort { .. } => node_port,
    }
}

/// Where an object is an element; `None` for objects that are none.
pub(crate) fn element_key(key: &Key) -> Option<ElementKey<'_>> {
    let mut first = Words::EMPTY;
    let mut last = None;
    let set = match key {
        Key::Table | Key::Set(_) | Key::Chain(_) => return None,
        Key::StaleClient { map, client } => {
            first.address(*client);
            map
        }
        Key::ClusterIp(address) => {
            first.address(*address);
            layout::CLUSTER_IPS
        }
        Key::NodePortIp(address) => {
            first.address(*address);
            layout::NODEPORT_IPS
        }
        Key::Hairpin(address, protocol, port) => {
            first.address(*address);
            first.address(*address);
            first.port(*protocol, *port);
            layout::HAIRPIN
        }
        Key::AffinityEndpoint(address, protocol, port) => {
            first.address(*address);
            first.port(*protocol, *port);
            layout::AFFINITY_ENDPOINTS
        }
        Key::Endpoint(frontend, number) => {
            first.frontend(frontend);
            first.push(&number.to_ne_bytes());
            by_kind(frontend, layout::SERVICE_ENDPOINTS, layout::NODEPORT_ENDPOINTS)
        }
        Key::PoolEndpoint(map, protocol, number) => {
            first.push(&[protocol.number()]);
            first.push(&number.to_ne_bytes());
            map
        }
        Key::SourceRange(range) => {
            let (frontend, sources) = range.as_ref();
            let mut end = Words::EMPTY;
            first.frontend(frontend);
            end.frontend(frontend);
            first.address(sources.address());
            end.address(sources.last());
            last = Some(end);
            layout::SOURCE_RANGES
        }
        Key::AffinityFrontend(frontend) => {
            first.frontend(frontend);
            by_kind(frontend, layout::AFFINITY_SERVICES, layout::AFFINITY_NODEPORTS)
        }
        Key::Firewall(frontend) => {
            first.frontend(frontend);
            layout::FIREWALL_IPS
        }
        Key::Refusal(frontend) => {
            first.frontend(frontend);
            by_kind(frontend, layout::NO_ENDPOINT_SERVICES, layout::NO_ENDPOINT_NODEPORTS)
        }
        Key::Frontend(frontend) => {
            first.frontend(frontend);
            by_kind(frontend, layout::SERVICE_IPS, layout::SERVICE_NODEPORTS)
        }
    };
    Some(ElementKey { set, first, last })
}

/// Name of the set an object is an element of.
pub(crate) fn set_of(key: &Key) -> Option<&str> {
    element_key(key).map(|element| element.set)
}

/// Appends messages about the objects of one table to a batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer<'a> {
    pub(crate) family: IpFamily,
    pub(crate) table: &'a str,
}

impl Writer<'_> {
    fn message(
        &self,
        batch: &mut Batch,
        command: u8,
        flags: u16,
        write: impl FnOnce(&mut MessageBuffer),
    ) -> u32 {
        batch.message(command, flags, family_number(self.family), write)
    }

    pub(crate) fn table(&self, batch: &mut Batch) -> u32 {
        self.message(batch, msg::NEWTABLE, flags::CREATE, |out| {
            out.attr_str(table::NAME, self.table);
            out.attr_u32_be(table::FLAGS, 0);
        })
    }

    pub(crate) fn delete_table(&self, batch: &mut Batch) -> u32 {
        self.message(batch, msg::DELTABLE, 0, |out| out.attr_str(table::NAME, self.table))
    }

    pub(crate) fn set(&self, name: &str, spec: &SetSpec, batch: &mut Batch) -> u32 {
        // Rules and elements name the set, but the kernel also wants a number that is unique in
        // the batch.
        let id = batch.count() + 1;
        self.message(batch, msg::NEWSET, flags::CREATE | flags::EXCLUSIVE, |out| {
            out.attr_str(set::TABLE, self.table);
            out.attr_str(set::NAME, name);
            out.attr_u32_be(set::ID, id);
            spec.write(self.family, out);
        })
    }

    pub(crate) fn delete_set(&self, name: &str, batch: &mut Batch) -> u32 {
        self.message(batch, msg::DELSET, 0, |out| {
            out.attr_str(set::TABLE, self.table);
            out.attr_str(set::NAME, name);
        })
    }

    pub(crate) fn chain(&self, name: &str, spec: &ChainSpec, batch: &mut Batch) -> u32 {
        self.message(batch, msg::NEWCHAIN, flags::CREATE | flags::EXCLUSIVE, |out| {
            out.attr_str(chain::TABLE, self.table);
            out.attr_str(chain::NAME, name);
            if let Some(base) = &spec.base {
                base.write(out);
            }
        })
    }

    pub(crate) fn delete_chain(&self, name: &str, batch: &mut Batch) -> u32 {
        self.message(batch, msg::DELCHAIN, 0, |out| {
            out.attr_str(chain::TABLE, self.table);
            out.attr_str(chain::NAME, name);
        })
    }

    pub(crate) fn rule(&self, chain: &str, spec: &RuleSpec, batch: &mut Batch) -> u32 {
        self.message(batch, msg::NEWRULE, flags::CREATE | flags::APPEND, |out| {
            out.attr_str(rule::TABLE, self.table);
            out.attr_str(rule::CHAIN, chain);
            out.nested(rule::EXPRESSIONS, |out| {
                for expr in spec.exprs.iter() {
                    expr.write(out);
                }
            });
            if let Some(comment) = comment_data(spec.comment) {
                out.attr_bytes(rule::USERDATA, &comment);
            }
        })
    }

    /// Deletes all rules of a chain.
    pub(crate) fn flush_chain(&self, name: &str, batch: &mut Batch) -> u32 {
        self.message(batch, msg::DELRULE, 0, |out| {
            out.attr_str(rule::TABLE, self.table);
            out.attr_str(rule::CHAIN, name);
        })
    }

    /// Adds or deletes elements, all of one set.
    pub(crate) fn elements<'k>(
        &self,
        command: u8,
        elements: impl Iterator<Item = (&'k Key, Option<&'k Rule>)>,
        batch: &mut Batch,
    ) {
        let mut elements = elements.peekable();
        let flags = if command == msg::NEWSETELEM { flags::CREATE } else { 0 };
        while let Some(set) = elements.peek().and_then(|(key, _)| set_of(key)) {
            self.message(batch, command, flags, |out| {
                out.attr_str(element::LIST_TABLE, self.table);
                out.attr_str(element::LIST_SET, set);
                let list = out.begin_nested(element::LIST_ELEMENTS);
                while out.remaining(list) > MAX_ELEMENT
                    && let Some((key, rule)) = elements.next()
                {
                    write_element(key, rule, out);
                }
                out.end_nested(list);
            });
        }
    }
}

impl SetSpec {
    fn flags(&self) -> u32 {
        let when = |condition: bool, flag: u32| if condition { flag } else { 0 };
        when(self.data != SetData::None, set::FLAG_MAP)
            | when(self.interval, set::FLAG_INTERVAL | set::FLAG_CONCAT)
            | when(self.dynamic.is_some(), set::FLAG_TIMEOUT | set::FLAG_EVAL)
    }

    fn write(&self, family: IpFamily, out: &mut MessageBuffer) {
        out.attr_u32_be(set::FLAGS, self.flags());
        out.attr_u32_be(set::KEY_TYPE, concat_type(&self.key, family));
        out.attr_u32_be(set::KEY_LEN, key_len(&self.key, family));
        match self.data {
            SetData::None => {}
            SetData::Verdict => {
                out.attr_u32_be(set::DATA_TYPE, set::VERDICT_DATA);
                out.attr_u32_be(set::DATA_LEN, 16);
            }
            SetData::Endpoint => {
                out.attr_u32_be(set::DATA_TYPE, concat_type(&ENDPOINT_PARTS, family));
                out.attr_u32_be(set::DATA_LEN, key_len(&ENDPOINT_PARTS, family));
            }
        }
        if self.interval || self.dynamic.is_some() {
            out.nested(set::DESC, |out| self.write_description(family, out));
        }
    }

    fn write_description(&self, family: IpFamily, out: &mut MessageBuffer) {
        if let Some(size) = self.dynamic {
            out.attr_u32_be(set::DESC_SIZE, size);
        }
        if self.interval {
            let fields = out.begin_nested(set::DESC_CONCAT);
            for part in &self.key {
                let len = part.own_len(family);
                out.nested(LIST_ELEMENT, |out| out.attr_u32_be(set::FIELD_LEN, len));
            }
            out.end_nested(fields);
        }
    }

    /// Reads the make of a set; `None` if it is none that this program writes.
    fn read(attributes: &Attributes<'_>, family: IpFamily) -> Option<Self> {
        let number = |attribute| attributes.get(attribute)?.u32_be();
        let flags = number(set::FLAGS).unwrap_or(0);
        let data = match number(set::DATA_TYPE) {
            None => SetData::None,
            Some(set::VERDICT_DATA) => SetData::Verdict,
            Some(_) if number(set::DATA_LEN)? == key_len(&ENDPOINT_PARTS, family) => {
                SetData::Endpoint
            }
            Some(_) => return None,
        };
        let size =
            attributes.get(set::DESC).and_then(|desc| desc.nested().get(set::DESC_SIZE)?.u32_be());
        let spec = Self {
            key: read_key_type(number(set::KEY_TYPE)?, family)?,
            data,
            interval: flags & set::FLAG_INTERVAL != 0,
            dynamic: size.filter(|_| flags & set::FLAG_EVAL != 0),
        };
        let same = spec.flags() == flags && number(set::KEY_LEN)? == key_len(&spec.key, family);
        same.then_some(spec)
    }
}

fn read_key_type(mut number: u32, family: IpFamily) -> Option<Vec<KeyPart>> {
    let mut parts = Vec::new();
    while number > 0 {
        let parts_known = [KeyPart::Address, KeyPart::Protocol, KeyPart::Port, KeyPart::Number];
        let last = match number & ((1 << TYPE_BITS) - 1) {
            TYPE_INTEGER => TYPE_MARK,
            last => last,
        };
        parts.insert(0, parts_known.into_iter().find(|part| part.type_number(family) == last)?);
        number >>= TYPE_BITS;
    }
    Some(parts)
}

impl Base {
    fn write(&self, out: &mut MessageBuffer) {
        let name = match self.chain_type {
            ChainType::Filter => "filter",
            ChainType::Nat => "nat",
            ChainType::Other => "route",
        };
        out.attr_str(chain::TYPE, name);
        out.nested(chain::HOOK, |out| {
            out.attr_u32_be(chain::HOOK_NUMBER, self.hook.number());
            out.attr_u32_be(chain::HOOK_PRIORITY, self.priority.cast_unsigned());
        });
        out.attr_u32_be(chain::POLICY, data::ACCEPT.cast_unsigned());
    }

    fn read(attributes: &Attributes<'_>) -> Option<Self> {
        let hook = attributes.get(chain::HOOK)?.nested();
        let number = hook.get(chain::HOOK_NUMBER)?.u32_be()?;
        let accepts = attributes.get(chain::POLICY).and_then(|policy| policy.u32_be())
            == Some(data::ACCEPT.cast_unsigned());
        let chain_type = match attributes.get(chain::TYPE)?.str()? {
            "filter" if accepts => ChainType::Filter,
            "nat" if accepts => ChainType::Nat,
            _ => ChainType::Other,
        };
        Some(Self {
            chain_type,
            hook: Hook::ALL.into_iter().find(|hook| hook.number() == number)?,
            priority: hook.get(chain::HOOK_PRIORITY)?.u32_be()?.cast_signed(),
        })
    }
}

fn write_element(key: &Key, rule: Option<&Rule>, out: &mut MessageBuffer) {
    let Some(ElementKey { first, last, .. }) = element_key(key) else { return };
    let value = |out: &mut MessageBuffer, attribute, words: &Words| {
        out.nested(attribute, |out| out.attr_bytes(data::VALUE, words.as_bytes()));
    };
    out.nested(LIST_ELEMENT, |out| {
        value(out, element::KEY, &first);
        if let Some(last) = &last {
            value(out, element::KEY_END, last);
        }
        match rule {
            Some(Rule::Endpoint(address, port)) => {
                let mut words = Words::EMPTY;
                words.address(*address);
                words.push(&port.to_be_bytes());
                value(out, element::DATA, &words);
            }
            Some(Rule::Verdict(action)) => {
                out.nested(element::DATA, |out| action.verdict.write(out));
                if let Some(comment) = comment_data(&action.comment) {
                    out.attr_bytes(element::USERDATA, &comment);
                }
            }
            _ => {}
        }
    });
}

// === reading ===

/// A set as listed.
pub(crate) struct ListedSet {
    pub(crate) name: Arc<str>,
    /// `None`: a make that this program never writes.
    pub(crate) spec: Option<SetSpec>,
}

/// Reads a table message about `table`; `None` if it is about another one.
pub(crate) fn read_table(message: &Message<'_>, name: &str) -> Option<Rule> {
    let attributes = message.netfilter_attributes();
    (attributes.get(table::NAME)?.str()? == name).then(|| {
        let flags = attributes.get(table::FLAGS).and_then(|flags| flags.u32_be()).unwrap_or(0);
        Rule::Table { dormant: flags & TABLE_DORMANT != 0 }
    })
}

/// Reads a set message about a named set of `table`.
pub(crate) fn read_set(message: &Message<'_>, table: &str, family: IpFamily) -> Option<ListedSet> {
    let attributes = message.netfilter_attributes();
    let flags = attributes.get(set::FLAGS).and_then(|flags| flags.u32_be()).unwrap_or(0);
    // An anonymous set belongs to a rule and goes with it.
    if attributes.get(set::TABLE)?.str()? != table || flags & set::FLAG_ANONYMOUS != 0 {
        return None;
    }
    let name = attributes.get(set::NAME)?.str()?.into();
    Some(ListedSet { name, spec: SetSpec::read(&attributes, family) })
}

/// Reads a chain message about `table`: its name and base.
pub(crate) fn read_chain(message: &Message<'_>, table: &str) -> Option<(ChainName, ChainSpec)> {
    let attributes = message.netfilter_attributes();
    if attributes.get(chain::TABLE)?.str()? != table {
        return None;
    }
    let name = ChainName(attributes.get(chain::NAME)?.str()?.into());
    Some((name, ChainSpec { base: Base::read(&attributes), rules: Vec::new() }))
}

/// Reads a rule message about `table`: its chain and itself.
pub(crate) fn read_rule(
    message: &Message<'_>,
    table: &str,
    family: IpFamily,
) -> Option<(ChainName, RuleSpec)> {
    let attributes = message.netfilter_attributes();
    if attributes.get(rule::TABLE)?.str()? != table {
        return None;
    }
    let name = ChainName(attributes.get(rule::CHAIN)?.str()?.into());
    let exprs: Vec<Expr> = attributes.get(rule::EXPRESSIONS).map_or_else(Vec::new, |list| {
        list.nested().map(|element| Expr::read(&element.nested(), family)).collect()
    });
    let comment = attributes
        .get(rule::USERDATA)
        .and_then(|data| read_comment(data.payload))
        .map_or("", |text| {
            layout::rule_comment::ALL.into_iter().find(|known| *known == text).unwrap_or("?")
        });
    Some((name, RuleSpec { exprs: exprs.into(), comment }))
}

/// Reads key and data words.
struct Reader<'a> {
    rest: &'a [u8],
    family: IpFamily,
}

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.rest.first_chunk::<N>()?;
        self.rest = self.rest.get(N.next_multiple_of(4)..).unwrap_or_default();
        Some(bytes)
    }

    fn address(&mut self) -> Option<IpAddr> {
        Some(match self.family {
            IpFamily::V4 => Ipv4Addr::from(self.take::<4>()?).into(),
            IpFamily::V6 => Ipv6Addr::from(self.take::<16>()?).into(),
        })
    }

    fn protocol(&mut self) -> Option<Protocol> {
        Protocol::from_number(self.take::<1>()?[0])
    }

    fn port(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn number(&mut self) -> Option<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn service(&mut self) -> Option<FrontendKey> {
        let (address, protocol, port) = (self.address()?, self.protocol()?, self.port()?);
        Some(FrontendKey::Address { address, port, protocol })
    }

    fn node_port(&mut self) -> Option<FrontendKey> {
        let (protocol, port) = (self.protocol()?, self.port()?);
        Some(FrontendKey::NodePort { port, protocol })
    }
}

/// Reads one element of a set. `None`: an element that this program never writes; it cannot be
/// named, so its whole set has to be made anew.
pub(crate) fn read_element(
    set: &Arc<str>,
    element: &Attributes<'_>,
    family: IpFamily,
) -> Option<(Key, Rule)> {
    let value = |attribute| Some(element.get(attribute)?.nested().get(data::VALUE)?.payload);
    let mut key = Reader { rest: value(element::KEY)?, family };
    let address_and_port = |key: &mut Reader<'_>| {
        let (address, protocol, port) = (key.address()?, key.protocol()?, key.port()?);
        Some((address, protocol, port))
    };
    let object = match set.as_ref() {
        layout::CLUSTER_IPS => Key::ClusterIp(key.address()?),
        layout::NODEPORT_IPS => Key::NodePortIp(key.address()?),
        layout::HAIRPIN => {
            let source = key.address()?;
            let (address, protocol, port) = address_and_port(&mut key)?;
            (source == address).then_some(Key::Hairpin(address, protocol, port))?
        }
        layout::AFFINITY_ENDPOINTS => {
            let (address, protocol, port) = address_and_port(&mut key)?;
            Key::AffinityEndpoint(address, protocol, port)
        }
        layout::SERVICE_ENDPOINTS => Key::Endpoint(key.service()?, key.number()?),
        layout::NODEPORT_ENDPOINTS => Key::Endpoint(key.node_port()?, key.number()?),
        layout::SOURCE_RANGES => {
            let (frontend, first) = (key.service()?, key.address()?);
            let mut end = Reader { rest: value(element::KEY_END)?, family };
            (end.service()? == frontend).then_some(())?;
            Key::SourceRange(Box::new((frontend, range_between(first, end.address()?)?)))
        }
        layout::AFFINITY_SERVICES => Key::AffinityFrontend(key.service()?),
        layout::AFFINITY_NODEPORTS => Key::AffinityFrontend(key.node_port()?),
        layout::FIREWALL_IPS => Key::Firewall(key.service()?),
        layout::NO_ENDPOINT_SERVICES => Key::Refusal(key.service()?),
        layout::NO_ENDPOINT_NODEPORTS => Key::Refusal(key.node_port()?),
        layout::SERVICE_IPS => Key::Frontend(key.service()?),
        layout::SERVICE_NODEPORTS => Key::Frontend(key.node_port()?),
        _ if set.starts_with(layout::POOL_ENDPOINTS) => {
            Key::PoolEndpoint(Arc::clone(set), key.protocol()?, key.number()?)
        }
        _ if set.starts_with(layout::POOL_AFFINITY) => {
            Key::StaleClient { map: Arc::clone(set), client: key.address()? }
        }
        _ => return None,
    };
    Some((object, read_data(element, family)?))
}

fn read_data(element: &Attributes<'_>, family: IpFamily) -> Option<Rule> {
    let Some(data) = element.get(element::DATA) else { return Some(Rule::Member) };
    let data = data.nested();
    if let Some(value) = data.get(data::VALUE) {
        let mut reader = Reader { rest: value.payload, family };
        return Some(Rule::Endpoint(reader.address()?, reader.port()?));
    }
    let comment = element
        .get(element::USERDATA)
        .and_then(|data| read_comment(data.payload))
        .unwrap_or_default();
    let verdict = Verdict::read(&data)?;
    Some(Rule::Verdict(Arc::new(Action { verdict, comment: comment.into() })))
}

/// The range with these ends, if it is one that CIDR notation can say.
fn range_between(first: IpAddr, last: IpAddr) -> Option<Cidr> {
    (0..=IpFamily::of(first).bits())
        .filter_map(|bits| Cidr::new(first, bits))
        .find(|range| range.address() == first && range.last() == last)
}

/// Elements in a message of an element dump.
pub(crate) fn listed_elements<'a>(message: &Message<'a>) -> Attributes<'a> {
    message
        .netfilter_attributes()
        .get(element::LIST_ELEMENTS)
        .map_or(Attributes::new(&[]), |list| list.nested())
}

/// A request for a dump of what belongs to a table.
pub(crate) fn dump_request(
    command: u8,
    sequence: u32,
    family: IpFamily,
    write: impl FnOnce(&mut MessageBuffer),
) -> MessageBuffer {
    let mut request = MessageBuffer::new();
    let kind = node_sys::netlink::Subsystem::NFTABLES.message_type(command);
    let flags = flags::REQUEST | flags::DUMP;
    request.begin_netfilter(kind, flags, sequence, family_number(family));
    write(&mut request);
    request.end();
    request
}

/// What a notification is about, if it is about `table`: for people.
pub(crate) fn describe_notification(
    message: &Message<'_>,
    table: &str,
    family: IpFamily,
) -> Option<String> {
    if message.family() != Some(family_number(family)) {
        return None;
    }
    let attributes = message.payload.get(NFGEN_LEN..).map(Attributes::new)?;
    let text = |attribute| attributes.get(attribute).and_then(|a| a.str());
    // The table's name is attribute 1 of every kind of message.
    if text(table::NAME) != Some(table) {
        return None;
    }
    let (verb, object) = match message.command() {
        msg::NEWTABLE => ("changed", "table".to_owned()),
        msg::DELTABLE => ("deleted", "table".to_owned()),
        msg::NEWCHAIN => ("changed", format!("chain {}", text(chain::NAME)?)),
        msg::DELCHAIN => ("deleted", format!("chain {}", text(chain::NAME)?)),
        msg::NEWRULE => ("added", format!("rule in chain {}", text(rule::CHAIN)?)),
        msg::DELRULE => ("deleted", format!("rule in chain {}", text(rule::CHAIN)?)),
        msg::NEWSET => ("changed", format!("set {}", text(set::NAME)?)),
        msg::DELSET => ("deleted", format!("set {}", text(set::NAME)?)),
        msg::NEWSETELEM => ("added", format!("element in set {}", text(element::LIST_SET)?)),
        msg::DELSETELEM => ("deleted", format!("element in set {}", text(element::LIST_SET)?)),
        _ => return None,
    };
    Some(format!("{object} {verb}"))
}

/// The process behind the changes that were notified before this message, if it says so.
pub(crate) fn changing_process(message: &Message<'_>) -> Option<String> {
    if message.command() != msg::NEWGEN {
        return None;
    }
    let attributes = message.netfilter_attributes();
    let name = attributes.get(uapi::generation::PROCESS_NAME)?.str()?;
    let id = attributes.get(uapi::generation::PROCESS_ID)?.u32_be()?;
    Some(format!("{name} (pid {id})"))
}

#[cfg(test)]
mod tests;
