//! What is wrong with an object and what was done instead.

use std::fmt;

/// A finding about one object. It never stops other objects from taking effect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnostic {
    /// The object, as `Kind/namespace/name`, or a file.
    pub object: String,
    /// Path of the field, as in `spec.ports[0].port`; empty if the whole object is meant.
    pub field: String,
    /// What is wrong, and what was done instead.
    pub message: String,
}

impl Diagnostic {
    /// A finding about `field` of `object`.
    pub fn new(
        object: impl Into<String>,
        field: impl Into<String>,
        message: impl Into<String>,
    ) -> Self {
        Self { object: object.into(), field: field.into(), message: message.into() }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            write!(f, "{}: {}", self.object, self.message)
        } else {
            write!(f, "{}: {}: {}", self.object, self.field, self.message)
        }
    }
}
