//! What is wrong with a manifest, and where.

use std::fmt;

use super::document::{self, Document, Format};
use super::object::{Context, Seed};

/// A manifest that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct DecodeError {
    /// Name of the manifest.
    pub file: String,
    /// The line, from 1.
    pub line: usize,
    /// The document, from 1, if there are several.
    pub document: Option<usize>,
    /// The object, as `Kind/namespace/name`, if it got as far as its name.
    pub object: Option<String>,
    /// Path of the field, as in `spec.ports[0].port`; empty if none is meant.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

impl DecodeError {
    /// Something is wrong with a line, whatever object it belongs to.
    pub(super) fn whole(file: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            file: file.to_owned(),
            line,
            document: None,
            object: None,
            field: String::new(),
            message: message.into(),
        }
    }

    /// Where it is: file, line, and the object or the document.
    pub fn place(&self) -> String {
        let Self { file, line, .. } = self;
        match (&self.object, self.document) {
            (Some(object), _) => format!("{file}:{line}: {object}"),
            (None, Some(number)) => format!("{file}:{line}: document {number}"),
            (None, None) => format!("{file}:{line}"),
        }
    }
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place())?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.message)
    }
}

/// Reads a document that failed once more, to learn where.
pub(super) fn locate(
    file: &str,
    text: &str,
    format: Format,
    document: &Document<'_>,
    number: Option<usize>,
    failure: &str,
) -> DecodeError {
    let mut sink = drop;
    let mut context = Context::named(&mut sink);
    let mut track = serde_path_to_error::Track::new();
    let head = document::head(format, document);
    let seed = Tracked { seed: Seed::document(&mut context, &head), track: &mut track };
    let (line, message) = match document::read_located(format, document, seed) {
        Ok(()) => (None, failure.to_owned()),
        Err(failure) => failure,
    };
    let path = track.path().to_string();
    let path = path.trim_start_matches('.').trim_end_matches(['?', '.']);
    let field = match context.field {
        Some(field) if path.is_empty() || path == field => field.to_owned(),
        Some(field) if path.ends_with(']') => format!("{path}.{field}"),
        Some(_) | None => path.to_owned(),
    };
    let start = if line.is_some() { document.offset } else { document.content() };
    DecodeError {
        file: file.to_owned(),
        line: document::line_at(text.as_bytes(), start) + line.unwrap_or(1) - 1,
        document: number,
        object: context.object,
        field,
        message,
    }
}

/// Keeps track of the path while `seed` reads.
struct Tracked<'t, S> {
    seed: S,
    track: &'t mut serde_path_to_error::Track,
}

impl<'de, S: serde::de::DeserializeSeed<'de>> serde::de::DeserializeSeed<'de> for Tracked<'_, S> {
    type Value = S::Value;

    fn deserialize<D: serde::Deserializer<'de>>(
        self,
        deserializer: D,
    ) -> Result<S::Value, D::Error> {
        self.seed.deserialize(serde_path_to_error::Deserializer::new(deserializer, self.track))
    }
}
