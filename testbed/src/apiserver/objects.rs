//! The objects, and what has happened to them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::selector::Selector;

/// Resource, namespace and name.
type Key = (String, String, String);

/// Something that has happened.
#[derive(Clone, Debug)]
struct Change {
    version: u64,
    resource: String,
    /// What was before, if anything.
    before: Option<Value>,
    /// What is from then on; a deletion is what was before with its own version.
    object: Value,
    deleted: bool,
}

/// A page of a list.
#[derive(Clone, Debug, Default)]
pub(super) struct Page {
    pub(super) items: Vec<Value>,
    pub(super) version: u64,
    pub(super) next: Option<String>,
}

/// A version that history does not reach back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Expired;

#[derive(Debug, Default)]
pub(super) struct Objects {
    version: u64,
    /// Watches cannot begin before this version.
    oldest: u64,
    present: BTreeMap<Key, Value>,
    history: Vec<Change>,
    /// Lists that are read page by page, by their mark.
    snapshots: BTreeMap<String, Page>,
}

impl Objects {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn apply(&mut self, mut object: Value) -> u64 {
        self.version += 1;
        let resource = plural(object["kind"].as_str().unwrap_or_default());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let metadata = &object["metadata"];
        let key = (resource.clone(), text(&metadata["namespace"]), text(&metadata["name"]));
        let before = self.present.insert(key, object.clone());
        let version = self.version;
        self.history.push(Change { version, resource, before, object, deleted: false });
        version
    }

    pub(super) fn delete(&mut self, resource: &str, namespace: &str, name: &str) -> bool {
        let key = (resource.to_owned(), namespace.to_owned(), name.to_owned());
        let Some(mut object) = self.present.remove(&key) else { return false };
        self.version += 1;
        let before = Some(object.clone());
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        let change =
            Change { version: self.version, resource: key.0, before, object, deleted: true };
        self.history.push(change);
        true
    }

    pub(super) fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<&Value> {
        self.present.get(&(resource.to_owned(), namespace.to_owned(), name.to_owned()))
    }

    pub(super) fn expire(&mut self) {
        self.version += 1;
        self.oldest = self.version;
        self.history.clear();
        self.snapshots.clear();
    }

    pub(super) fn all(&self, resource: &str) -> Vec<Value> {
        self.present
            .iter()
            .filter(|((other, ..), _)| other == resource)
            .map(|(_, object)| object.clone())
            .collect()
    }

    pub(super) fn selected(&self, resource: &str, selector: &Selector) -> Vec<Value> {
        let mut objects = self.all(resource);
        objects.retain(|object| selector.matches(object));
        objects
    }

    /// The first page of a list; no limit is 0.
    pub(super) fn list(&mut self, resource: &str, selector: &Selector, limit: usize) -> Page {
        let items = self.selected(resource, selector);
        self.cut(Page { items, version: self.version, next: None }, limit)
    }

    /// The page behind a mark.
    pub(super) fn next_page(&mut self, mark: &str, limit: usize) -> Result<Page, Expired> {
        // Marks can be used again, should the answer be lost.
        let rest = self.snapshots.get(mark).cloned().ok_or(Expired)?;
        Ok(self.cut(rest, limit))
    }

    fn cut(&mut self, mut page: Page, limit: usize) -> Page {
        if limit > 0 && page.items.len() > limit {
            let items = page.items.split_off(limit);
            let mark = format!("{}/{}+{}=", page.version, self.snapshots.len(), items.len());
            self.snapshots.insert(mark.clone(), Page { items, version: page.version, next: None });
            page.next = Some(mark);
        }
        page
    }

    /// Whether a watch can begin at this version.
    pub(super) fn reaches_back_to(&self, version: u64) -> bool {
        version >= self.oldest
    }

    /// What a watch with this selector tells of what happened after `version`.
    pub(super) fn changes_since(
        &self,
        version: u64,
        resource: &str,
        selector: &Selector,
    ) -> Vec<Value> {
        let start = self.history.partition_point(|change| change.version <= version);
        self.history[start..]
            .iter()
            .filter(|change| change.resource == resource)
            .filter_map(|change| {
                let was = change.before.as_ref().is_some_and(|before| selector.matches(before));
                let is = !change.deleted && selector.matches(&change.object);
                let name = match (was, is) {
                    (false, false) => return None,
                    (false, true) => "ADDED",
                    (true, true) => "MODIFIED",
                    (true, false) => "DELETED",
                };
                Some(json!({"type": name, "object": change.object}))
            })
            .collect()
    }
}

/// The plural name of a kind, as in URLs.
fn plural(kind: &str) -> String {
    format!("{}s", kind.to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, label: Option<&str>) -> Value {
        let labels = label.map_or_else(|| json!({}), |label| json!({ label: "" }));
        json!({"kind": "Service", "metadata": {"name": name, "namespace": "x", "labels": labels}})
    }

    #[test]
    fn leaving_a_selection_is_a_deletion() {
        let mut objects = Objects::default();
        let selector = Selector::parse("!hidden", "");
        objects.apply(service("a", None));
        objects.apply(service("a", Some("hidden")));
        objects.apply(service("a", Some("hidden")));
        objects.apply(service("a", None));
        objects.apply(service("a", None));
        objects.delete("services", "x", "a");
        let changes = objects.changes_since(0, "services", &selector);
        let types: Vec<_> = changes.iter().map(|change| change["type"].as_str().unwrap()).collect();
        assert_eq!(types, ["ADDED", "DELETED", "ADDED", "MODIFIED", "DELETED"]);
        assert_eq!(changes[4]["object"]["metadata"]["resourceVersion"], "6");
    }

    #[test]
    fn pages_are_of_one_moment() {
        let mut objects = Objects::default();
        for name in ["a", "b", "c"] {
            objects.apply(service(name, None));
        }
        let first = objects.list("services", &Selector::default(), 2);
        objects.delete("services", "x", "c");
        let next = objects.next_page(first.next.as_ref().unwrap(), 2).unwrap();
        assert_eq!((first.items.len(), next.items.len(), next.next), (2, 1, None));
        assert_eq!(next.version, 3);
        objects.expire();
        assert_eq!(objects.next_page("3/0+1=", 2).unwrap_err(), Expired);
        assert!(!objects.reaches_back_to(4) && objects.reaches_back_to(5));
    }
}
