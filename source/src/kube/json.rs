//! JSON texts cut into objects while they arrive.
//!
//! A list of 10,000 EndpointSlices is tens of megabytes in one value, since a server may answer
//! without pages whatever was asked for. Only the object at hand is ever held.

/// More than this for one object is not believed. The API server itself takes at most 3 MiB.
const LONGEST: usize = 16 << 20;

/// Why a text cannot be cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotCut(pub(super) &'static str);

/// Bytes that arrived and were not used up.
#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Everything before was handed out.
    used: usize,
    /// Everything before was looked at.
    seen: usize,
}

impl Buffer {
    fn push(&mut self, chunk: &[u8]) -> Result<(), NotCut> {
        self.bytes.drain(..self.used);
        self.seen -= self.used;
        self.used = 0;
        self.bytes.extend_from_slice(chunk);
        if self.bytes.len() - chunk.len() > LONGEST {
            return Err(NotCut("an object is too long"));
        }
        Ok(())
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.bytes.get(self.seen).copied()?;
        self.seen += 1;
        Some(byte)
    }

    /// Everything that was looked at becomes used; returns it.
    fn take(&mut self) -> &[u8] {
        let from = std::mem::replace(&mut self.used, self.seen);
        &self.bytes[from..self.seen]
    }
}

/// Cuts a text into lines.
#[derive(Debug, Default)]
pub(super) struct Lines(Buffer);

impl Lines {
    /// More text has arrived.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<(), NotCut> {
        self.0.push(chunk)
    }

    /// The next line that is complete and not blank.
    pub(super) fn next(&mut self) -> Option<&[u8]> {
        loop {
            let rest = &self.0.bytes[self.0.seen..];
            let Some(length) = rest.iter().position(|byte| *byte == b'\n') else {
                self.0.seen = self.0.bytes.len();
                return None;
            };
            self.0.seen += length + 1;
            let from = std::mem::replace(&mut self.0.used, self.0.seen);
            if !self.0.bytes[from..self.0.used].trim_ascii().is_empty() {
                return Some(self.0.bytes[from..self.0.used].trim_ascii());
            }
        }
    }

    /// Whether the text ended in the middle of a line.
    pub(super) fn is_open(&self) -> bool {
        !self.0.bytes[self.0.used..].trim_ascii().is_empty()
    }
}

/// Cuts a Kubernetes list into its items and what is around them.
#[derive(Debug, Default)]
pub(super) struct ListItems {
    buffer: Buffer,
    /// The list without its items.
    envelope: Vec<u8>,
    depth: usize,
    /// Inside a string; whether the next byte is escaped.
    string: Option<bool>,
    /// Where in the envelope the last string of the list itself began.
    key: usize,
    /// Whether that string was `items`.
    says_items: bool,
    /// Whether what follows is the value of `items`.
    key_is_items: bool,
    place: Place,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    /// Before the list.
    #[default]
    Before,
    /// In the list itself; whether its items are behind.
    Around(bool),
    /// Between two items.
    Between,
    /// In an item.
    Item,
    /// Behind the list; whether it had items at all.
    Behind(bool),
}

impl ListItems {
    /// More text has arrived.
    pub(super) fn push(&mut self, chunk: &[u8]) -> Result<(), NotCut> {
        self.buffer.push(chunk)
    }

    /// The next item that is complete.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, NotCut> {
        while let Some(byte) = self.buffer.next() {
            if self.step(byte)? {
                let text = self.buffer.take();
                // The last byte is what ended the item.
                return Ok(Some(text[..text.len() - 1].trim_ascii()));
            }
            if self.place != Place::Item {
                self.buffer.used = self.buffer.seen;
            }
        }
        Ok(None)
    }

    /// The list without its items, if it has come to its end.
    pub(super) fn envelope(&self) -> Option<&[u8]> {
        (self.place == Place::Behind(true)).then_some(&self.envelope)
    }

    /// Whether a list has come to its end that had no items at all, not even an empty list.
    pub(super) fn lacks_items(&self) -> bool {
        self.place == Place::Behind(false)
    }

    /// Looks at one byte. Returns whether it ended an item.
    fn step(&mut self, byte: u8) -> Result<bool, NotCut> {
        let blank = byte.is_ascii_whitespace();
        match self.place {
            Place::Before if byte == b'{' => {
                self.place = Place::Around(false);
                self.depth = 1;
                self.envelope.push(byte);
            }
            Place::Before | Place::Behind(_) if !blank => return Err(NotCut("this is no list")),
            Place::Before | Place::Behind(_) => {}
            Place::Around(done) => self.around(byte, done)?,
            Place::Between if byte == b']' => {
                self.depth -= 1;
                self.place = Place::Around(true);
                self.envelope.push(byte);
            }
            Place::Between if blank || byte == b',' => {}
            Place::Between => {
                // Blanks before it do not belong to it.
                self.buffer.used = self.buffer.seen - 1;
                self.place = Place::Item;
                self.nest(byte);
            }
            Place::Item => return Ok(self.item(byte)),
        }
        Ok(false)
    }

    fn item(&mut self, byte: u8) -> bool {
        let ends = self.string.is_none() && self.depth == 2 && (byte == b',' || byte == b']');
        if !ends {
            self.nest(byte);
            return false;
        }
        self.place = Place::Between;
        if byte == b']' {
            self.depth -= 1;
            self.place = Place::Around(true);
            self.envelope.push(byte);
        }
        true
    }

    fn around(&mut self, byte: u8, done: bool) -> Result<(), NotCut> {
        let in_string = self.string.is_some();
        self.nest(byte);
        self.envelope.push(byte);
        if self.envelope.len() > LONGEST {
            return Err(NotCut("a list's metadata is too long"));
        }
        let is_items = self.key_is_items && !done;
        match (self.depth, byte) {
            (0, _) => self.place = Place::Behind(done || is_items),
            (1, _) if !in_string && self.string.is_some() => self.key = self.envelope.len() - 1,
            (1, _) if in_string && self.string.is_none() => {
                self.says_items = self.envelope[self.key..] == *b"\"items\"";
            }
            (1, b':') if !in_string => self.key_is_items = self.says_items,
            (1, b',') if !in_string => {
                // `"items": null` is an empty list.
                self.place = Place::Around(done || is_items);
                self.key_is_items = false;
            }
            (2, b'[') if is_items && !in_string => {
                self.key_is_items = false;
                self.place = Place::Between;
            }
            _ => {}
        }
        Ok(())
    }

    /// Keeps track of strings and brackets.
    fn nest(&mut self, byte: u8) {
        match (self.string, byte) {
            (Some(true), _) | (None, b'"') => self.string = Some(false),
            (Some(false), b'\\') => self.string = Some(true),
            (Some(false), b'"') => self.string = None,
            (None, b'{' | b'[') => self.depth += 1,
            (None, b'}' | b']') => self.depth = self.depth.saturating_sub(1),
            (Some(false) | None, _) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    type Cut = (Vec<Value>, Option<Value>);

    /// Cuts a text that arrives in pieces of this size.
    fn cut(text: &str, size: usize) -> Result<Cut, NotCut> {
        let mut list = ListItems::default();
        let mut items = Vec::new();
        for chunk in text.as_bytes().chunks(size) {
            list.push(chunk)?;
            while let Some(item) = list.next()? {
                items.push(serde_json::from_slice(item).unwrap());
            }
        }
        Ok((items, list.envelope().map(|envelope| serde_json::from_slice(envelope).unwrap())))
    }

    #[test]
    fn a_list_is_cut_wherever_the_text_is_torn() {
        let text = r#" {"kind":"L", "meta":{"items":[1,{"a":2}],"x":"\"items\":["},
            "items": [ {"a":"}],\\\""} , {"b":[1,[2]]},{},null ],"more":"items" } "#;
        let items = vec![json!({"a":"}],\\\""}), json!({"b":[1,[2]]}), json!({}), Value::Null];
        let meta = json!({"items":[1,{"a":2}],"x":"\"items\":["});
        let envelope = json!({"kind":"L","meta":meta,"items":[],"more":"items"});
        for size in 1..=text.len() {
            assert_eq!(cut(text, size), Ok((items.clone(), Some(envelope.clone()))), "{size}");
        }
    }

    #[test]
    fn an_empty_list_is_a_list() {
        for text in [r#"{"items":[]}"#, r#"{"items":null,"x":1}"#, r#"{"items":[],"x":[1]}"#] {
            let (items, envelope) = cut(text, 3).unwrap();
            assert!(items.is_empty());
            assert!(envelope.is_some(), "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["<html>", "[1]", r#"{"items":[]} x"#] {
            assert!(cut(text, 2).is_err(), "{text}");
        }
        let mut list = ListItems::default();
        list.push(br#"{"kind":"Status"}"#).unwrap();
        assert_eq!(list.next(), Ok(None));
        assert!(list.lacks_items() && list.envelope().is_none());
    }

    #[test]
    fn a_torn_list_has_no_envelope() {
        let text = r#"{"items":[{"a":1},{"b":2}],"metadata":{"resourceVersion":"1"}}"#;
        for length in 0..text.len() {
            assert_eq!(cut(&text[..length], 5).unwrap().1, None, "{length}");
        }
    }

    #[test]
    fn lines_are_cut_wherever_the_text_is_torn() {
        let text = "{\"a\":1}\r\n\n{\"b\":2}\n{\"c\"";
        for size in 1..=text.len() {
            let mut lines = Lines::default();
            let mut found = Vec::new();
            for chunk in text.as_bytes().chunks(size) {
                lines.push(chunk).unwrap();
                while let Some(line) = lines.next() {
                    found.push(String::from_utf8(line.to_vec()).unwrap());
                }
            }
            assert_eq!(found, ["{\"a\":1}", "{\"b\":2}"], "{size}");
            assert!(lines.is_open());
        }
    }

    #[test]
    fn an_endless_line_is_refused() {
        let mut lines = Lines::default();
        let chunk = vec![b'x'; 1 << 20];
        let refused = (0..32).any(|_| {
            let refused = lines.push(&chunk).is_err();
            assert_eq!(lines.next(), None);
            refused
        });
        assert!(refused);
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            "[\\PC\\[\\]{}\",\\\\]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 20, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-z\"{\\[]{0,6}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_list_is_cut_into_its_items(
            items in prop::collection::vec(value(), 0..6),
            around in value(),
            size in 1..40_usize,
            pretty in any::<bool>(),
        ) {
            let list = json!({"around": around, "items": items, "z": "z"});
            let text = if pretty { format!("{list:#}") } else { list.to_string() };
            let envelope = json!({"around": around, "items": [], "z": "z"});
            prop_assert_eq!(cut(&text, size), Ok((items, Some(envelope))));
        }

        #[test]
        fn any_bytes_do_no_harm(text in any::<Vec<u8>>(), size in 1..9_usize) {
            let mut list = ListItems::default();
            for chunk in [b"{\"items\":[".as_slice(), &text].concat().chunks(size) {
                if list.push(chunk).is_err() {
                    break;
                }
                while let Ok(Some(_)) = list.next() {}
            }
        }
    }
}
