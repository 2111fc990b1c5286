//! From one JSON text to one object.

use proxy_core::api::Metadata;
use proxy_core::diagnostic::Diagnostic;
use proxy_core::event::{Kind, Object, ObjectRef};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// An object that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Undecodable {
    /// Which one it is, if it got as far as its name.
    pub(super) reference: Option<ObjectRef>,
    /// What is wrong.
    pub(super) finding: Diagnostic,
}

/// Reads an object of this kind. Fields that no proxy reads are skipped while reading.
pub(super) fn decode(kind: Kind, text: &[u8]) -> Result<Object, Box<Undecodable>> {
    let object = match kind {
        Kind::Service => read(text).map(Object::Service),
        Kind::EndpointSlice => read(text).map(Object::EndpointSlice),
        Kind::Node => read(text).map(Object::Node),
        Kind::ServiceCidr => read(text).map(Object::ServiceCidr),
    };
    let failure = match object {
        Ok(object) if metadata(&object).name.is_empty() => {
            ("metadata.name".to_owned(), "missing".to_owned())
        }
        Ok(object) => return Ok(object),
        Err(failure) => failure,
    };
    Err(Box::new(undecodable(kind, text, failure)))
}

fn undecodable(kind: Kind, text: &[u8], (field, message): (String, String)) -> Undecodable {
    let reference = reference(kind, text);
    let object = reference.as_ref().map_or_else(|| kind.to_string(), ToString::to_string);
    let message = format!("cannot be read, skipped: {message}");
    Undecodable { reference, finding: Diagnostic::new(object, field, message) }
}

/// Reads a value. If that fails it is read once more, to learn in which field.
fn read<T: DeserializeOwned>(text: &[u8]) -> Result<T, (String, String)> {
    serde_json::from_slice(text).map_err(|error| {
        let deserializer = &mut serde_json::Deserializer::from_slice(text);
        match serde_path_to_error::deserialize::<_, T>(deserializer) {
            Err(located) => {
                let field = located.path().to_string();
                let field = if field == "." { String::new() } else { field };
                (field, message(located.inner()))
            }
            Ok(_) => (String::new(), message(&error)),
        }
    })
}

/// The message without line and column, which say nothing to somebody who does not see the text.
fn message(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&place).unwrap_or(&text).to_owned()
}

fn metadata(object: &Object) -> &Metadata {
    match object {
        Object::Service(object) => &object.metadata,
        Object::EndpointSlice(object) => &object.metadata,
        Object::Node(object) => &object.metadata,
        Object::ServiceCidr(object) => &object.metadata,
    }
}

/// Which object a text is about.
pub(super) fn reference(kind: Kind, text: &[u8]) -> Option<ObjectRef> {
    #[derive(Deserialize)]
    struct Named {
        metadata: Name,
    }
    #[derive(Deserialize)]
    struct Name {
        name: String,
        #[serde(default)]
        namespace: Option<String>,
    }
    let Name { name, namespace } = serde_json::from_slice::<Named>(text).ok()?.metadata;
    let namespace = namespace.unwrap_or_default();
    (!name.is_empty()).then_some(ObjectRef { kind, namespace, name })
}

/// The resource version of an object.
pub(super) fn version(text: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Versioned {
        metadata: Version,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        resource_version: String,
    }
    let version = serde_json::from_slice::<Versioned>(text).ok()?.metadata.resource_version;
    (!version.is_empty()).then_some(version)
}

/// Whether a bookmark says that everything that existed has been told.
pub(super) fn ends_initial_events(text: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Bookmark {
        metadata: Annotated,
    }
    #[derive(Deserialize)]
    struct Annotated {
        #[serde(default)]
        annotations: Option<End>,
    }
    #[derive(Deserialize)]
    struct End {
        #[serde(rename = "k8s.io/initial-events-end", default)]
        end: Option<String>,
    }
    serde_json::from_slice::<Bookmark>(text)
        .ok()
        .and_then(|bookmark| bookmark.metadata.annotations?.end)
        .is_some_and(|end| end == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(kind: Kind, text: &str) -> String {
        decode(kind, text.as_bytes()).unwrap_err().finding.to_string()
    }

    #[test]
    fn what_is_wrong_is_named() {
        let text =
            r#"{"metadata":{"name":"web","namespace":"shop"},"spec":{"ports":[{"port":"x"}]}}"#;
        assert_eq!(
            failure(Kind::Service, text),
            "Service/shop/web: spec.ports[0].port: cannot be read, skipped: invalid type: string \
             \"x\", expected i64"
        );
        assert!(
            failure(Kind::Node, r#"{"metadata":{"name":5}}"#).starts_with("Node: metadata.name")
        );
        assert!(failure(Kind::Node, "{}").contains("metadata.name: cannot be read"));
        assert!(failure(Kind::Service, "null").starts_with("Service: "));
        assert!(failure(Kind::Service, "{nonsense}").starts_with("Service: "));
    }

    #[test]
    fn fields_that_nobody_reads_may_be_anything() {
        let text = r#"{"metadata":{"name":"n","managedFields":7},"status":{"images":"odd"}}"#;
        assert_eq!(decode(Kind::Node, text.as_bytes()).unwrap().reference().to_string(), "Node/n");
    }

    #[test]
    fn versions_and_bookmarks_are_read() {
        let text =
            br#"{"kind":"Service","metadata":{"resourceVersion":"12","creationTimestamp":null,
            "annotations":{"k8s.io/initial-events-end":"true"}},"spec":{}}"#;
        assert_eq!(version(text).as_deref(), Some("12"));
        assert!(ends_initial_events(text));
        assert!(!ends_initial_events(br#"{"metadata":{"resourceVersion":"12"}}"#));
        assert_eq!(version(br#"{"metadata":{"resourceVersion":""}}"#), None);
    }
}
