//! From text to objects.
//!
//! A manifest is YAML with any number of documents, or JSON with any number of values. Each is a
//! `v1` Service, a `v1` Node, a `discovery.k8s.io/v1` EndpointSlice, a `networking.k8s.io/v1`
//! ServiceCIDR, or a list of such; everything else is skipped and named in the result.
//!
//! Objects are decoded one after the other straight from the text, without a tree in between.
//! Only when something is wrong is the document read a second time, to learn which field it was.

mod document;
mod error;
mod object;
mod simple;

use std::collections::BTreeSet;

use proxy_core::event::{Kind, Object};

use self::document::{Document, Format};
pub use self::error::DecodeError;
use self::object::Context;

/// Decodes all objects of a manifest and hands them to `sink`, in the order of the text.
///
/// `file` names the manifest in errors; its ending `.json` says that it must be JSON. Without that
/// ending, text that begins with `{` or `[` is read as JSON if it is JSON. Returns the kinds that
/// were skipped, as `apiVersion/Kind`.
///
/// Objects of kinds that live in a namespace and name none get `default`.
///
/// # Errors
///
/// The first document that is no object, or no object that this crate can read. What `sink` was
/// given before that should be forgotten: a manifest counts as a whole.
///
/// # Examples
///
/// ```
/// let text = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {clusterIP: 10.0.0.1}}";
/// let mut objects = Vec::new();
/// source::decode::decode("web.yaml", text.as_bytes(), &mut |object| objects.push(object))?;
/// assert_eq!(objects[0].reference().to_string(), "Service/default/web");
/// # Ok::<(), source::decode::DecodeError>(())
/// ```
pub fn decode(
    file: &str,
    text: &[u8],
    sink: &mut dyn FnMut(Object),
) -> Result<BTreeSet<String>, DecodeError> {
    decode_kind(file, text, None, sink)
}

/// Like [`decode`], but skips objects of other kinds than `only`.
pub(crate) fn decode_kind(
    file: &str,
    text: &[u8],
    only: Option<Kind>,
    sink: &mut dyn FnMut(Object),
) -> Result<BTreeSet<String>, DecodeError> {
    let text = document::utf8(file, text)?;
    let (format, documents) = document::split(file, text)?;
    let mut context = Context::new(only, sink);
    for (index, document) in documents.iter().enumerate() {
        decode_document(format, document, &mut context).map_err(|failure| {
            let number = (documents.len() > 1).then_some(index + 1);
            error::locate(file, text, format, document, number, &failure)
        })?;
    }
    Ok(context.skipped)
}

fn decode_document(
    format: Format,
    document: &Document<'_>,
    context: &mut Context<'_>,
) -> Result<(), String> {
    let head = document::head(format, document);
    if context.skips(&head) {
        return Ok(());
    }
    context.repeated = 0;
    if format == Format::Yaml {
        context.sent = 0;
        if simple::read(document.text, object::Seed::document(context, &head)).is_ok() {
            return Ok(());
        }
        context.repeated = context.sent;
    }
    document::read(format, document, object::Seed::document(context, &head))
}

#[cfg(test)]
mod tests;
