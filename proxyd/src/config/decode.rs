//! From a [`Node`] tree to typed sections and back to JSON, collecting every problem.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value as Json, json};

use super::error::{ConfigError, Place};
use super::scalar::{GoDuration, parse_quantity};
use super::tree::{Entry, Node, Tree};

/// A field's value: how a file spells it, when it counts as unset, how it is written back.
pub(super) trait Value: Sized {
    /// The spellings allowed, to follow "must be".
    const ALLOWED: &'static str;
    /// Whether it is a section, with fields of its own.
    const IS_SECTION: bool = false;

    /// Reads `node`; `None` if it is of the wrong type.
    fn from_node(node: &Node, path: &str, decoder: &mut Decoder) -> Option<Self>;

    /// Whether this is the zero value, which in most fields means "unset" (C1.3).
    fn is_zero(&self) -> bool;

    /// The value as `--write-config-to` shows it.
    fn to_json(&self) -> Json;
}

/// Collects what is found while a file is read.
#[derive(Debug)]
pub(super) struct Decoder {
    pub(super) file: String,
    pub(super) errors: Vec<ConfigError>,
    pub(super) warnings: Vec<String>,
    /// The line of every field seen, for the errors of later stages.
    pub(super) lines: BTreeMap<String, u64>,
    /// Fields whose value does not mean "unset".
    pub(super) given: BTreeSet<String>,
}

impl Decoder {
    pub(super) fn new(file: String) -> Self {
        Self {
            file,
            errors: Vec::new(),
            warnings: Vec::new(),
            lines: BTreeMap::new(),
            given: BTreeSet::new(),
        }
    }

    pub(super) fn place(&self, line: u64) -> Place {
        Place { file: self.file.clone(), line: Some(line) }
    }

    fn warn(&mut self, line: u64, message: &str) {
        self.warnings.push(format!("{}: {message}", self.place(line)));
    }

    pub(super) fn refuse(&mut self, node: &Node, path: &str, allowed: &str) {
        self.errors.push(ConfigError::Field {
            place: Some(self.place(node.line)),
            field: path.to_owned(),
            value: node.to_string(),
            allowed: allowed.to_owned(),
        });
    }

    /// Reads one value, reporting a wrong type.
    pub(super) fn read<T: Value>(&mut self, node: &Node, path: &str) -> Option<T> {
        self.lines.insert(path.to_owned(), node.line);
        let value = T::from_node(node, path, self);
        if value.is_none() {
            self.refuse(node, path, T::ALLOWED);
        }
        value
    }

    /// Stores the value of a field unless it means "unset" (C1.3).
    pub(super) fn assign<T: Value>(
        &mut self,
        slot: &mut T,
        node: &Node,
        path: &str,
        keep_zero: bool,
    ) {
        if node.tree == Tree::Null {
            return;
        }
        if let Some(value) = self.read::<T>(node, path)
            && (keep_zero || !value.is_zero())
        {
            *slot = value;
            if !T::IS_SECTION {
                self.given.insert(path.to_owned());
            }
        }
    }

    /// The entries of a mapping that count, each with its path; warns of the others (C1.2).
    pub(super) fn entries<'n>(
        &mut self,
        node: &'n Node,
        path: &str,
        known: Option<&[&str]>,
    ) -> Option<Vec<(&'n Entry, String)>> {
        let Tree::Map(entries) = &node.tree else { return None };
        let mut kept = Vec::new();
        for (index, entry) in entries.iter().enumerate() {
            let field =
                if path.is_empty() { entry.key.clone() } else { format!("{path}.{}", entry.key) };
            if let Some(known) = known
                && !known.contains(&entry.key.as_str())
            {
                let near = known.iter().find(|name| name.eq_ignore_ascii_case(&entry.key));
                let hint = near.map(|name| format!(", did you mean {name:?}?")).unwrap_or_default();
                self.warn(entry.line, &format!("unknown field {field:?} is ignored{hint}"));
            } else if let Some(later) = entries[index + 1..].iter().find(|e| e.key == entry.key) {
                let message =
                    format!("field {field:?} is ignored: it is set again in line {}", later.line);
                self.warn(entry.line, &message);
            } else {
                kept.push((entry, field));
            }
        }
        Some(kept)
    }
}

/// Declares a section of the file: per field its type, default and JSON name.
///
/// `keep_zero` marks Go's pointer fields, where an explicit zero differs from unset;
/// `omit_zero` marks those left out when written back.
macro_rules! section {
    ($(#[$meta:meta])* $name:ident {
        $($field:ident: $type:ty = $default:expr, $json:literal $(, $mark:ident)?;)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq)]
        pub(super) struct $name { $(pub(super) $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $crate::config::decode::Value for $name {
            const ALLOWED: &'static str = "a mapping";
            const IS_SECTION: bool = true;

            fn from_node(
                node: &$crate::config::tree::Node,
                path: &str,
                decoder: &mut $crate::config::decode::Decoder,
            ) -> Option<Self> {
                let mut section = Self::default();
                for (entry, path) in decoder.entries(node, path, Some(&[$($json),*]))? {
                    match entry.key.as_str() {
                        $($json => decoder.assign(
                            &mut section.$field,
                            &entry.value,
                            &path,
                            stringify!($($mark)?) == "keep_zero",
                        ),)*
                        _ => {}
                    }
                }
                Some(section)
            }

            fn is_zero(&self) -> bool {
                false
            }

            fn to_json(&self) -> serde_json::Value {
                let mut map = serde_json::Map::new();
                $(if !(stringify!($($mark)?) == "omit_zero" && self.$field.is_zero()) {
                    map.insert($json.to_owned(), self.$field.to_json());
                })*
                map.into()
            }
        }
    };
}
pub(super) use section;

/// An interval that may also be a whole number of nanoseconds (`logging.flushFrequency`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FlushInterval(pub(super) GoDuration);

/// A number of bytes spelled as a Kubernetes quantity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Quantity(pub(super) String);

impl Value for bool {
    const ALLOWED: &'static str = "true or false, without quotes";

    fn from_node(node: &Node, _: &str, _: &mut Decoder) -> Option<Self> {
        let Tree::Bool(value) = node.tree else { return None };
        Some(value)
    }

    fn is_zero(&self) -> bool {
        !self
    }

    fn to_json(&self) -> Json {
        json!(self)
    }
}

/// The whole number that `node` is, also when spelled `1e3` as Go accepts.
fn integer(node: &Node) -> Option<i128> {
    match node.tree {
        Tree::Int(value) => Some(value),
        Tree::Float(value) if value.fract() == 0.0 => format!("{value}").parse().ok(),
        _ => None,
    }
}

macro_rules! whole_number {
    ($type:ty, $allowed:literal) => {
        impl Value for $type {
            const ALLOWED: &'static str = $allowed;

            fn from_node(node: &Node, _: &str, _: &mut Decoder) -> Option<Self> {
                Self::try_from(integer(node)?).ok()
            }

            fn is_zero(&self) -> bool {
                *self == 0
            }

            fn to_json(&self) -> Json {
                json!(self)
            }
        }
    };
}
whole_number!(i32, "a whole number of at most 32 bits, without quotes");
whole_number!(u32, "a whole number from 0 to 4294967295, without quotes");

impl Value for f64 {
    const ALLOWED: &'static str = "a number, without quotes";

    fn from_node(node: &Node, _: &str, _: &mut Decoder) -> Option<Self> {
        match node.tree {
            Tree::Int(value) => value.to_string().parse().ok(),
            Tree::Float(value) if value.is_finite() => Some(value),
            _ => None,
        }
    }

    fn is_zero(&self) -> bool {
        *self == 0.0
    }

    fn to_json(&self) -> Json {
        // `5` rather than `5.0`, as kube-proxy writes it.
        format!("{self}").parse::<i64>().map_or_else(|_| json!(self), |whole| json!(whole))
    }
}

impl Value for String {
    const ALLOWED: &'static str = "a string (numbers, true, yes and the like need quotes)";

    fn from_node(node: &Node, _: &str, _: &mut Decoder) -> Option<Self> {
        node.text().map(str::to_owned)
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn to_json(&self) -> Json {
        json!(self)
    }
}

impl Value for GoDuration {
    const ALLOWED: &'static str = "a duration with a unit, like \"30s\", \"1h2m\" or \"100ms\"";

    fn from_node(node: &Node, _: &str, _: &mut Decoder) -> Option<Self> {
        match &node.tree {
            Tree::Text(text) if text.is_empty() => Some(Self::default()),
            Tree::Text(text) => text.parse().ok(),
            // Zero needs no unit; any other bare number does (C1.2, C1.3).
            Tree::Int(0) => Some(Self::default()),
            _ => None,
        }
    }

    fn is_zero(&self) -> bool {
        self.0 == 0
    }

    fn to_json(&self) -> Json {
        json!(self.to_string())
    }
}

impl Value for FlushInterval {
    const ALLOWED: &'static str = "a duration like \"5s\" or a whole number of nanoseconds";

    fn from_node(node: &Node, path: &str, decoder: &mut Decoder) -> Option<Self> {
        let nanos = integer(node).and_then(|nanos| i64::try_from(nanos).ok());
        nanos.map(GoDuration).or_else(|| GoDuration::from_node(node, path, decoder)).map(Self)
    }

    fn is_zero(&self) -> bool {
        self.0.is_zero()
    }

    fn to_json(&self) -> Json {
        self.0.to_json()
    }
}

impl Value for Quantity {
    const ALLOWED: &'static str = "a number of bytes like \"0\", \"512\", \"1K\" or \"2Ki\"";

    fn from_node(node: &Node, _: &str, _: &mut Decoder) -> Option<Self> {
        let text = match &node.tree {
            Tree::Text(text) => text.clone(),
            _ => integer(node)?.to_string(),
        };
        (text.is_empty() || parse_quantity(&text).is_some()).then_some(Self(text))
    }

    fn is_zero(&self) -> bool {
        parse_quantity(&self.0).unwrap_or(0) == 0
    }

    fn to_json(&self) -> Json {
        json!(self.0)
    }
}

impl<T: Value> Value for Vec<T> {
    const ALLOWED: &'static str = "a list";

    fn from_node(node: &Node, path: &str, decoder: &mut Decoder) -> Option<Self> {
        let Tree::List(nodes) = &node.tree else { return None };
        let items = nodes.iter().enumerate();
        Some(items.filter_map(|(i, n)| decoder.read(n, &format!("{path}[{i}]"))).collect())
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn to_json(&self) -> Json {
        if self.is_empty() { Json::Null } else { self.iter().map(Value::to_json).collect() }
    }
}

impl<T: Value> Value for BTreeMap<String, T> {
    const ALLOWED: &'static str = "a mapping";

    fn from_node(node: &Node, path: &str, decoder: &mut Decoder) -> Option<Self> {
        let mut map = Self::new();
        for (entry, path) in decoder.entries(node, path, None)? {
            if let Some(value) = decoder.read(&entry.value, &path) {
                map.insert(entry.key.clone(), value);
            }
        }
        Some(map)
    }

    fn is_zero(&self) -> bool {
        self.is_empty()
    }

    fn to_json(&self) -> Json {
        self.iter().map(|(key, value)| (key.clone(), value.to_json())).collect()
    }
}
