//! Label and field selectors.

use serde_json::Value;

/// One condition of a selector.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    Absent(String),
    Equals(String, String),
    Exists(String),
    Differs(String, String),
}

/// Conditions on labels and fields; objects have to meet them all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Selector {
    labels: Vec<Condition>,
    fields: Vec<Condition>,
}

impl Selector {
    pub(super) fn parse(labels: &str, fields: &str) -> Self {
        Self { labels: conditions(labels), fields: conditions(fields) }
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"].get(key);
        let field = |path: &str| path.split('.').try_fold(object, |value, part| value.get(part));
        self.labels.iter().all(|condition| holds(condition, label))
            && self.fields.iter().all(|condition| holds(condition, field))
    }
}

fn conditions(text: &str) -> Vec<Condition> {
    let pair = |key: &str, value: &str| (key.trim().to_owned(), value.trim().to_owned());
    text.split(',')
        .filter(|part| !part.trim().is_empty())
        .map(|part| {
            if let Some(key) = part.strip_prefix('!') {
                Condition::Absent(key.trim().to_owned())
            } else if let Some((key, value)) = part.split_once("!=") {
                let (key, value) = pair(key, value);
                Condition::Differs(key, value)
            } else if let Some((key, value)) = part.split_once('=') {
                let (key, value) = pair(key, value.trim_start_matches('='));
                Condition::Equals(key, value)
            } else {
                Condition::Exists(part.trim().to_owned())
            }
        })
        .collect()
}

fn holds<'v>(condition: &Condition, value: impl Fn(&str) -> Option<&'v Value>) -> bool {
    let text = |key: &str| value(key).and_then(Value::as_str).unwrap_or_default();
    match condition {
        Condition::Absent(key) => value(key).is_none(),
        Condition::Equals(key, wanted) => text(key) == wanted,
        Condition::Exists(key) => value(key).is_some(),
        Condition::Differs(key, unwanted) => text(key) != unwanted,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors_choose() {
        let object = json!({
            "metadata": {"name": "web", "labels": {"app": "web", "empty": ""}},
            "spec": {"clusterIP": "None"}
        });
        let cases = [
            ("", "", true),
            ("!app", "", false),
            ("!empty", "", false),
            ("!other", "", true),
            ("app=web,empty", "", true),
            ("app!=web", "", false),
            ("", "metadata.name=web", true),
            ("", "metadata.name=other", false),
            ("", "spec.clusterIP!=None", false),
        ];
        for (labels, fields, matches) in cases {
            let selector = Selector::parse(labels, fields);
            assert_eq!(selector.matches(&object), matches, "{labels} {fields}");
        }
    }
}
