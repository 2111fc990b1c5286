//! Where in a text the documents are, and how one of them is read.

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_saphyr::Options;

use super::error::DecodeError;
use super::object::{Field, Head};

/// How a text is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

/// One document of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Document<'a> {
    /// The document.
    pub(super) text: &'a str,
    /// Where it begins, in bytes from the beginning of the whole text.
    pub(super) offset: usize,
}

impl Document<'_> {
    /// Where its first line that says something begins, from the beginning of the whole text.
    pub(super) fn content(&self) -> usize {
        let mut offset = self.offset;
        for line in self.text.split_inclusive('\n') {
            if !is_blank(line.strip_prefix("---").unwrap_or(line)) {
                break;
            }
            offset += line.len();
        }
        offset
    }
}

/// The number of the line that byte `offset` is in, from 1.
pub(super) fn line_at(text: &[u8], offset: usize) -> usize {
    let before = text.get(..offset).unwrap_or(text);
    1 + before.split(|byte| *byte == b'\n').count().saturating_sub(1)
}

/// The text of a manifest, without a byte order mark.
pub(super) fn utf8<'a>(file: &str, bytes: &'a [u8]) -> Result<&'a str, DecodeError> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    std::str::from_utf8(bytes).map_err(|error| {
        DecodeError::whole(file, line_at(bytes, error.valid_up_to()), "not UTF-8 text")
    })
}

/// Finds the documents of a manifest.
pub(super) fn split<'a>(
    file: &str,
    text: &'a str,
) -> Result<(Format, Vec<Document<'a>>), DecodeError> {
    let must_be_json = std::path::Path::new(file)
        .extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    if must_be_json || text.trim_start().starts_with(['{', '[']) {
        match split_json(text) {
            Ok(documents) => return Ok((Format::Json, documents)),
            Err(error) if must_be_json => {
                return Err(DecodeError::whole(file, error.line(), json_message(&error)));
            }
            // YAML in its flow style looks like JSON from afar.
            Err(_) => {}
        }
    }
    Ok((Format::Yaml, split_yaml(text)))
}

fn split_json(text: &str) -> Result<Vec<Document<'_>>, serde_json::Error> {
    let mut documents = Vec::new();
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<IgnoredAny>();
    let mut start = 0;
    while let Some(value) = values.next() {
        value?;
        let end = values.byte_offset();
        documents.push(Document { text: &text[start..end], offset: start });
        start = end;
    }
    Ok(documents)
}

/// A line of three dashes or dots at the very left parts documents, whatever stands around it.
fn split_yaml(text: &str) -> Vec<Document<'_>> {
    let mut documents = Vec::new();
    let mut start = 0;
    let mut offset = 0;
    let mut empty = true;
    let mut finish = |range: std::ops::Range<usize>, empty: bool| {
        if !empty {
            documents.push(Document { text: &text[range.clone()], offset: range.start });
        }
    };
    for line in text.split_inclusive('\n') {
        if is_marker(line, "---") {
            finish(start..offset, empty);
            start = offset;
            empty = is_blank(&line[3..]);
        } else if is_marker(line, "...") {
            finish(start..offset, empty);
            start = offset + line.len();
            empty = true;
        } else if empty && !line.starts_with('%') {
            empty = is_blank(line);
        }
        offset += line.len();
    }
    finish(start..text.len(), empty);
    documents
}

fn is_marker(line: &str, marker: &str) -> bool {
    line.strip_prefix(marker)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']))
}

fn is_blank(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// Reads one document.
pub(super) fn read<'a, S>(format: Format, document: &Document<'a>, seed: S) -> Result<(), String>
where
    S: DeserializeSeed<'a, Value = ()>,
{
    read_located(format, document, seed).map_err(|(_, message)| message)
}

/// Reads one document; an error comes with the line it is in, from 1, if known.
pub(super) fn read_located<'a, S>(
    format: Format,
    document: &Document<'a>,
    seed: S,
) -> Result<(), (Option<usize>, String)>
where
    S: DeserializeSeed<'a, Value = ()>,
{
    match format {
        Format::Json => seed
            .deserialize(&mut serde_json::Deserializer::from_str(document.text))
            .map_err(|error| (Some(error.line()), json_message(&error))),
        Format::Yaml => read_yaml(document.text, seed),
    }
}

fn read_yaml<'a, S>(text: &'a str, seed: S) -> Result<(), (Option<usize>, String)>
where
    S: DeserializeSeed<'a, Value = ()>,
{
    serde_saphyr::with_deserializer_from_str_with_options(text, yaml_options(text), |yaml| {
        seed.deserialize(yaml)
    })
    .map_err(|error| {
        let line = error.location().and_then(|location| usize::try_from(location.line()).ok());
        (line.filter(|line| *line > 0), yaml_message(text, &error))
    })
}

/// Limits that a text of this length cannot reach by itself, so that only what multiplies
/// (aliases) or goes deep is stopped.
fn yaml_options(text: &str) -> Options {
    let limit = text.len().max(1024);
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_events: limit.saturating_mul(4),
            max_nodes: limit.saturating_mul(4),
            max_total_scalar_bytes: limit.saturating_mul(4),
            max_documents: 2,
        },
        with_snippet: false,
    }
}

fn json_message(error: &serde_json::Error) -> String {
    let message = error.to_string();
    let suffix = format!(" at line {} column {}", error.line(), error.column());
    message.strip_suffix(&suffix).unwrap_or(&message).to_owned()
}

fn yaml_message(text: &str, error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    if let serde_saphyr::Error::InvalidScalar { ty, location } = error
        && let Some(value) = rest_of_line(text, location)
    {
        return format!("invalid value: {value}, expected {ty}");
    }
    let message = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    let suffix = error.location().map_or_else(String::new, |location| {
        format!(" at line {}, column {}", location.line(), location.column())
    });
    message.strip_suffix(&suffix).unwrap_or(&message).to_owned()
}

/// The value at a place, if it ends with its line.
fn rest_of_line<'a>(text: &'a str, location: &serde_saphyr::Location) -> Option<&'a str> {
    let line = text.lines().nth(usize::try_from(location.line()).ok()?.checked_sub(1)?)?;
    let column = usize::try_from(location.column()).ok()?.checked_sub(1)?;
    let value = &line[line.char_indices().nth(column)?.0..];
    let value = value.split(" #").next().unwrap_or(value).trim_end();
    (!value.is_empty() && value.len() <= 80 && !value.contains([',', '}', ']'])).then_some(value)
}

/// What kind of object a document is, as far as it says so itself.
pub(super) fn head(format: Format, document: &Document<'_>) -> Head {
    if format == Format::Yaml
        && let Some(head) = head_by_lines(document.text)
    {
        return head;
    }
    let mut head = Head::default();
    // An error is what stops the reading early; a real one comes again when the rest is read.
    let _ = read(format, document, HeadSeed { head: &mut head });
    head
}

/// The head of a document in block style, where both lines stand at the very left.
fn head_by_lines(text: &str) -> Option<Head> {
    let mut head = Head::default();
    for line in text.lines() {
        match line.as_bytes().first() {
            Some(b'k') if head.kind.is_none() => head.kind = plain_value(line, "kind:"),
            Some(b'a') if head.api_version.is_none() => {
                head.api_version = plain_value(line, "apiVersion:");
            }
            Some(b'{' | b'[') => return None,
            _ => continue,
        }
        if head.kind.is_some() && head.api_version.is_some() {
            return Some(head);
        }
    }
    None
}

fn plain_value(line: &str, key: &str) -> Option<String> {
    let value = line.strip_prefix(key)?;
    let value = value.split(" #").next().unwrap_or(value).trim();
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/' | b'-');
    (!value.is_empty() && value.bytes().all(plain)).then(|| value.to_owned())
}

/// Reads `apiVersion` and `kind`, and nothing after them.
struct HeadSeed<'h> {
    head: &'h mut Head,
}

impl<'de> DeserializeSeed<'de> for HeadSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for HeadSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(field) = map.next_key()? {
            match field {
                Field::ApiVersion => self.head.api_version = map.next_value()?,
                Field::Kind => self.head.kind = map.next_value()?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
            if self.head.api_version.is_some() && self.head.kind.is_some() {
                return Err(A::Error::custom("complete"));
            }
        }
        Ok(())
    }
}
