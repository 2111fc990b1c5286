//! YAML or JSON text as trees that remember their lines.
//!
//! Serde's derived structs stop at the first problem and drop duplicate keys; the operator wants
//! all problems at once, each with its line. So the text becomes a [`Node`] tree first.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use serde_saphyr::options::{DuplicateKeyPolicy, NonFiniteFloatPolicy};

/// Far deeper than any field of ours, far shallower than the stack.
const MAX_DEPTH: usize = 64;

/// A value and the line it starts on.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub(super) line: u64,
    pub(super) tree: Tree,
}

/// What a [`Node`] holds.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Tree {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// One key of a mapping; duplicates are kept, in file order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Entry {
    pub(super) key: String,
    pub(super) line: u64,
    pub(super) value: Node,
}

/// Why a document is no tree.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct SyntaxError {
    pub(super) line: Option<u64>,
    pub(super) message: String,
}

/// Parses every non-empty document of `text`; ends after the first broken one.
pub(super) fn parse(text: &str) -> Vec<Result<Node, SyntaxError>> {
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        // As Go's YAML reader does: `014` is twelve.
        legacy_octal_numbers: true,
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        with_snippet: false,
    };
    let mut reader = text.as_bytes();
    let mut documents = Vec::new();
    for document in serde_saphyr::read_with_options::<_, Node>(&mut reader, options) {
        let document = document.map_err(|error| SyntaxError {
            line: error.location().map(|place| place.line()),
            message: error.to_string(),
        });
        let broken = document.is_err();
        documents.push(document);
        if broken {
            break;
        }
    }
    documents
}

impl Node {
    /// The last value of `key`, which is the one that counts.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Tree::Map(entries) = &self.tree else { return None };
        entries.iter().rev().find(|entry| entry.key == key).map(|entry| &entry.value)
    }

    /// The text of a string value.
    pub(super) fn text(&self) -> Option<&str> {
        let Tree::Text(text) = &self.tree else { return None };
        Some(text)
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tree {
            Tree::Null => f.write_str("null"),
            Tree::Bool(value) => value.fmt(f),
            Tree::Int(value) => value.fmt(f),
            Tree::Float(value) => value.fmt(f),
            Tree::Text(text) => write!(f, "{text:?}"),
            Tree::List(_) => f.write_str("a list"),
            Tree::Map(_) => f.write_str("a mapping"),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Tree>::deserialize(deserializer)?;
        Ok(Self { line: spanned.referenced.line(), tree: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

struct TreeVisitor;

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_none<E>(self) -> Result<Tree, E> {
        Ok(Tree::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        Tree::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Tree, E> {
        Ok(Tree::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Tree, E> {
        Ok(Tree::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Tree, E> {
        Ok(Tree::Int(value.into()))
    }

    fn visit_i128<E>(self, value: i128) -> Result<Tree, E> {
        Ok(Tree::Int(value))
    }

    fn visit_u128<E>(self, value: u128) -> Result<Tree, E> {
        Ok(Tree::Int(i128::try_from(value).unwrap_or(i128::MAX)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Tree, E> {
        Ok(Tree::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Tree, E> {
        Ok(Tree::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            list.push(item);
        }
        Ok(Tree::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut items: A) -> Result<Tree, A::Error> {
        let mut entries = Vec::new();
        while let Some(key) = items.next_key::<Node>()? {
            let name = key.text().map_or_else(|| key.to_string(), str::to_owned);
            entries.push(Entry { key: name, line: key.line, value: items.next_value()? });
        }
        Ok(Tree::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_lines_and_duplicates() {
        let documents = parse("a: 1\nb:\n  c: x\na: 2\n---\nz: 014\n");
        let first = documents[0].as_ref().unwrap();
        assert_eq!(first.get("a").unwrap().tree, Tree::Int(2));
        assert_eq!(first.get("a").unwrap().line, 4);
        assert_eq!(first.get("b").and_then(|b| b.get("c")).unwrap().line, 3);
        let second = documents[1].as_ref().unwrap();
        assert_eq!((second.line, &second.get("z").unwrap().tree), (6, &Tree::Int(12)));
    }

    #[test]
    fn reads_json_indented_with_tabs() {
        let documents = parse("{\n\t\"a\": [1, \"x\"],\n\t\"b\": null\n}");
        assert_eq!(documents[0].as_ref().unwrap().get("b").unwrap().tree, Tree::Null);
    }

    #[test]
    fn a_broken_document_ends_the_list() {
        let documents = parse("a: 1\n---\nb: [\n");
        assert_eq!(documents.len(), 2);
        assert!(documents[1].as_ref().unwrap_err().line.is_some());
    }

    #[test]
    fn refuses_absurd_depth() {
        assert!(parse(&"[".repeat(5000)).last().unwrap().is_err());
    }
}
