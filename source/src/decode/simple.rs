//! YAML as programs write it, read fast.
//!
//! Manifests are mostly mappings and sequences in block style with scalars on one line, and a
//! reader of only that is ten times as fast as a complete one. It refuses everything else, and
//! everything that is wrong: then the document is read by the complete reader, whose word counts.
//! What it does accept means the same to both.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

/// Deeper documents are refused.
const MAX_DEPTH: usize = 48;
/// Longer mappings are refused.
const MAX_KEYS: usize = 128;

/// The document is not simple, or wrong.
#[derive(Debug)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not simple")
    }
}

impl std::error::Error for Refused {}

impl serde::de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self
    }
}

/// Reads a document.
pub(super) fn read<'de, S>(text: &'de str, seed: S) -> Result<S::Value, Refused>
where
    S: DeserializeSeed<'de>,
{
    let text = match text.strip_prefix("---") {
        Some(rest) => rest.strip_prefix('\n').ok_or(Refused)?,
        None => text,
    };
    let mut lines = Lines { rest: text, line: None, depth: 0 };
    lines.advance()?;
    let root = match &lines.line {
        Some(line) => Shape::Block { indent: line.indent },
        None => Shape::Null,
    };
    let value = seed.deserialize(Node { lines: &mut lines, shape: root })?;
    if lines.line.is_some() { Err(Refused) } else { Ok(value) }
}

/// What is left of a line.
#[derive(Clone, Copy, Debug)]
struct Line<'de> {
    /// The column of `text`.
    indent: usize,
    /// What stands there; never empty.
    text: &'de str,
}

impl<'de> Line<'de> {
    /// What stands after the dash of an item of a sequence; an empty line if nothing does.
    fn item(&self) -> Option<Self> {
        let rest = self.text.strip_prefix('-')?;
        let text = rest.trim_start_matches(' ');
        let indent = self.indent + self.text.len() - text.len();
        (rest.is_empty() || text.len() < rest.len()).then_some(Self { indent, text })
    }

    /// A key, and what follows it.
    fn entry(&self) -> Result<Option<(&'de str, &'de str)>, Refused> {
        let text = self.text;
        let (key, rest) = match text.as_bytes() {
            [quote @ (b'"' | b'\''), ..] => {
                let Some(end) = text[1..].find(char::from(*quote)) else { return Err(Refused) };
                (&text[..end + 2], &text[end + 2..])
            }
            [first, ..] if first.is_ascii_alphanumeric() => {
                let end = text.bytes().position(|byte| !is_key(byte)).unwrap_or(text.len());
                text.split_at(end)
            }
            _ => return Ok(None),
        };
        let Some(value) = rest.strip_prefix(':') else { return Ok(None) };
        if !value.is_empty() && !value.starts_with(' ') {
            return Ok(None);
        }
        let (Shape::Quoted(key) | Shape::Plain(key)) = Shape::scalar(key)? else {
            return Err(Refused);
        };
        Ok(Some((key, value.trim_start_matches(' '))))
    }
}

fn is_key(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'/' | b'-')
}

/// The lines not read yet.
struct Lines<'de> {
    rest: &'de str,
    line: Option<Line<'de>>,
    depth: usize,
}

impl Lines<'_> {
    /// Goes to the next line that says something.
    fn advance(&mut self) -> Result<(), Refused> {
        self.line = None;
        while self.line.is_none() && !self.rest.is_empty() {
            let (line, rest) = self.rest.split_once('\n').unwrap_or((self.rest, ""));
            self.rest = rest;
            if !line.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
                return Err(Refused);
            }
            let text = line.trim_start_matches(' ');
            let indent = line.len() - text.len();
            let text = text.trim_end_matches(' ');
            if !text.is_empty() && !text.starts_with('#') {
                self.line = Some(Line { indent, text });
            }
        }
        Ok(())
    }
}

/// How a value is written.
#[derive(Clone, Copy, Debug)]
enum Shape<'de> {
    /// A mapping or a sequence, from the current line on.
    Block {
        indent: usize,
    },
    EmptyMap,
    EmptySequence,
    Null,
    Plain(&'de str),
    Quoted(&'de str),
}

impl<'de> Shape<'de> {
    /// A value that begins and ends on this line.
    fn scalar(text: &'de str) -> Result<Self, Refused> {
        match text.as_bytes() {
            b"{}" => Ok(Self::EmptyMap),
            b"[]" => Ok(Self::EmptySequence),
            [quote @ (b'"' | b'\''), inner @ .., last] if quote == last => {
                if inner.iter().any(|byte| byte == quote || *byte == b'\\') {
                    return Err(Refused);
                }
                Ok(Self::Quoted(&text[1..text.len() - 1]))
            }
            [first, rest @ ..] => {
                let begins = first.is_ascii_alphanumeric()
                    || matches!(first, b'.' | b'/' | b'_')
                    || (matches!(first, b'-' | b':') && matches!(rest, [b'0'..=b'9' | b':', ..]));
                let ends = text.contains(": ") || text.ends_with(':') || text.contains(" #");
                if !begins || ends {
                    return Err(Refused);
                }
                Ok(if matches!(text, "null" | "Null" | "NULL") {
                    Self::Null
                } else {
                    Self::Plain(text)
                })
            }
            [] => Ok(Self::Null),
        }
    }
}

/// A value.
struct Node<'l, 'de> {
    lines: &'l mut Lines<'de>,
    shape: Shape<'de>,
}

impl<'de> Node<'_, 'de> {
    fn block<V: Visitor<'de>>(self, indent: usize, visitor: V) -> Result<V::Value, Refused> {
        let sequence = self.is_sequence();
        let lines = self.lines;
        lines.depth += 1;
        if lines.depth > MAX_DEPTH {
            return Err(Refused);
        }
        let value = if sequence {
            visitor.visit_seq(Sequence { lines, indent })?
        } else {
            visitor.visit_map(Mapping { lines, indent, keys: Vec::new(), value: "" })?
        };
        lines.depth -= 1;
        Ok(value)
    }

    /// Whether a block is a sequence.
    fn is_sequence(&self) -> bool {
        self.lines.line.is_some_and(|line| line.item().is_some())
    }

    fn text(&self) -> Result<&'de str, Refused> {
        match self.shape {
            Shape::Plain(text) | Shape::Quoted(text) => Ok(text),
            _ => Err(Refused),
        }
    }
}

impl<'de> Deserializer<'de> for Node<'_, 'de> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.shape {
            Shape::Block { indent } => self.block(indent, visitor),
            Shape::EmptyMap => visitor.visit_map(Empty),
            Shape::EmptySequence => visitor.visit_seq(Empty),
            Shape::Null => visitor.visit_unit(),
            // What a plain scalar is, is a long story.
            Shape::Plain(_) => Err(Refused),
            Shape::Quoted(text) => visitor.visit_borrowed_str(text),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.shape {
            Shape::Plain(text) => visitor.visit_borrowed_str(text),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.shape {
            Shape::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.shape {
            Shape::Plain("true") => visitor.visit_bool(true),
            Shape::Plain("false") => visitor.visit_bool(false),
            _ => Err(Refused),
        }
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        let Shape::Plain(text) = self.shape else { return Err(Refused) };
        let digits = text.strip_prefix('-').unwrap_or(text);
        let decimal = digits.bytes().all(|byte| byte.is_ascii_digit())
            && (digits.len() == 1 || !digits.starts_with('0'));
        match text.parse() {
            Ok(number) if decimal => visitor.visit_i64(number),
            _ => Err(Refused),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_borrowed_str(self.text()?)
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        self.deserialize_str(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.shape {
            Shape::EmptyMap => visitor.visit_map(Empty),
            Shape::Block { indent } if !self.is_sequence() => self.block(indent, visitor),
            _ => Err(Refused),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Refused> {
        self.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 u8 u16 u32 u64 f32 f64 char bytes byte_buf unit unit_struct newtype_struct seq
        tuple tuple_struct enum
    }
}

/// A mapping or a sequence with nothing in it.
struct Empty;

impl<'de> MapAccess<'de> for Empty {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        _: K,
    ) -> Result<Option<K::Value>, Refused> {
        Ok(None)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, _: V) -> Result<V::Value, Refused> {
        Err(Refused)
    }
}

impl<'de> SeqAccess<'de> for Empty {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        _: T,
    ) -> Result<Option<T::Value>, Refused> {
        Ok(None)
    }
}

/// A mapping whose keys stand at `indent`.
struct Mapping<'l, 'de> {
    lines: &'l mut Lines<'de>,
    indent: usize,
    /// All keys so far: none may come twice.
    keys: Vec<&'de str>,
    /// What follows the key that was read last.
    value: &'de str,
}

impl<'de> MapAccess<'de> for Mapping<'_, 'de> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        let Some(line) = self.lines.line else { return Ok(None) };
        if line.indent < self.indent {
            return Ok(None);
        }
        if line.indent > self.indent {
            return Err(Refused);
        }
        let Some((key, value)) = line.entry()? else { return Err(Refused) };
        if self.keys.len() >= MAX_KEYS || self.keys.contains(&key) {
            return Err(Refused);
        }
        self.keys.push(key);
        self.value = value;
        self.lines.advance()?;
        let shape = Shape::Quoted(key);
        seed.deserialize(Node { lines: &mut *self.lines, shape }).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let shape = match self.lines.line {
            _ if !self.value.is_empty() => Shape::scalar(self.value)?,
            Some(line) if line.indent > self.indent => Shape::Block { indent: line.indent },
            Some(line) if line.indent == self.indent && line.item().is_some() => {
                Shape::Block { indent: line.indent }
            }
            _ => Shape::Null,
        };
        seed.deserialize(Node { lines: &mut *self.lines, shape })
    }
}

/// A sequence whose dashes stand at `indent`.
struct Sequence<'l, 'de> {
    lines: &'l mut Lines<'de>,
    indent: usize,
}

impl<'de> SeqAccess<'de> for Sequence<'_, 'de> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        let Some(line) = self.lines.line else { return Ok(None) };
        if line.indent < self.indent {
            return Ok(None);
        }
        if line.indent > self.indent {
            return Err(Refused);
        }
        let Some(item) = line.item() else { return Ok(None) };
        let shape = if item.text.is_empty() {
            self.lines.advance()?;
            match self.lines.line {
                Some(line) if line.indent > self.indent => Shape::Block { indent: line.indent },
                _ => Shape::Null,
            }
        } else if item.item().is_some() || item.entry()?.is_some() {
            self.lines.line = Some(item);
            Shape::Block { indent: item.indent }
        } else {
            self.lines.advance()?;
            Shape::scalar(item.text)?
        };
        seed.deserialize(Node { lines: &mut *self.lines, shape }).map(Some)
    }
}
