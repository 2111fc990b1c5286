//! What is wrong with one object, gathered while it is read.

use std::fmt;

use crate::diagnostic::Diagnostic;

/// An object can hold any number of faults of one kind; past this many they are only counted, so
/// that a broken object costs no more than a sound one.
const MOST: usize = 16;

/// The faults of one object. Nearly all objects have none, which costs one pointer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings(Option<Box<List>>);

#[derive(Debug, Default, PartialEq, Eq)]
struct List {
    findings: Vec<(String, String)>,
    left_out: usize,
}

impl Findings {
    /// Adds a fault of a field.
    pub(crate) fn add(&mut self, field: impl fmt::Display, message: impl fmt::Display) {
        let list = self.0.get_or_insert_default();
        if list.findings.len() < MOST {
            list.findings.push((field.to_string(), message.to_string()));
        } else {
            list.left_out += 1;
        }
    }

    /// The value, or `None` after noting why there is none.
    pub(crate) fn ok<T, E: fmt::Display>(
        &mut self,
        field: impl fmt::Display,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|error| self.add(field, format_args!("{error}; left out"))).ok()
    }

    /// The faults as findings about the object of this name.
    pub(crate) fn diagnostics(&self, object: impl FnOnce() -> String) -> Vec<Diagnostic> {
        let Some(list) = self.0.as_deref() else { return Vec::new() };
        let object = object();
        let each = list.findings.iter();
        let mut diagnostics: Vec<Diagnostic> = each
            .map(|(field, message)| Diagnostic::new(&*object, field.as_str(), message.as_str()))
            .collect();
        if list.left_out > 0 {
            let message = format!("{} more findings like these", list.left_out);
            diagnostics.push(Diagnostic::new(object, "", message));
        }
        diagnostics
    }
}
