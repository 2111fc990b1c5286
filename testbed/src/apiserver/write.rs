//! Objects that clients create or change: those of `events.k8s.io/v1`, checked as the real server
//! does (`pkg/apis/core/validation/events.go` of Kubernetes).

use serde_json::Value;

use super::Logged;
use super::objects::Objects;

/// Code, reason and message of a refusal.
type Refusal = (u16, &'static str, String);

/// Creates or changes an object. Returns the code of the answer and the object.
pub(super) fn write(objects: &mut Objects, request: &Logged) -> Result<(u16, Value), Refusal> {
    let Some((namespace, "events", name)) = request.object() else {
        return Err((405, "MethodNotAllowed", format!("{} {}", request.method, request.path)));
    };
    let body: Value = serde_json::from_slice(&request.body)
        .map_err(|error| (400, "BadRequest", error.to_string()))?;
    let content = request.headers.get("content-type").map(String::as_str).unwrap_or_default();
    match (&*request.method, content) {
        ("POST", "application/json") if name.is_empty() => {
            let name = body["metadata"]["name"].as_str().unwrap_or_default();
            if objects.get("events", namespace, name).is_some() {
                return Err((409, "AlreadyExists", format!("events {name:?} already exists")));
            }
            check(&body, namespace)?;
            objects.apply(body.clone());
            Ok((201, body))
        }
        ("PATCH", "application/merge-patch+json") => {
            let Some(old) = objects.get("events", namespace, name) else {
                return Err((404, "NotFound", format!("events {name:?} not found")));
            };
            let mut new = old.clone();
            merge(&mut new, &body);
            let fields = |event: &Value| {
                let mut event = event.clone();
                event["series"] = Value::Null;
                event
            };
            if fields(old) != fields(&new) {
                return Err((422, "Invalid", "field is immutable".to_owned()));
            }
            check(&new, namespace)?;
            objects.apply(new.clone());
            Ok((200, new))
        }
        _ => Err((415, "UnsupportedMediaType", content.to_owned())),
    }
}

/// RFC 7396.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    for (name, value) in patch {
        merge(&mut target[name.as_str()], value);
    }
}

fn check(event: &Value, namespace: &str) -> Result<(), Refusal> {
    let length = |field: &str| event[field].as_str().map_or(0, str::len);
    let place = event["regarding"]["namespace"].as_str().unwrap_or("default");
    let series = &event["series"];
    let is_time = |value: &Value| {
        // 2006-01-02T15:04:05.000000Z
        value.as_str().is_some_and(|time| time.len() == 27 && time.ends_with('Z'))
    };
    let checks = [
        ("kind", event["kind"] == "Event" && event["apiVersion"] == "events.k8s.io/v1"),
        ("metadata.namespace", event["metadata"]["namespace"] == namespace && place == namespace),
        (
            "metadata.name",
            (1..=253).contains(&event["metadata"]["name"].as_str().map_or(0, str::len)),
        ),
        ("eventTime", is_time(&event["eventTime"])),
        ("reportingController", length("reportingController") > 0),
        ("reportingInstance", (1..=128).contains(&length("reportingInstance"))),
        ("action", (1..=128).contains(&length("action"))),
        ("reason", (1..=128).contains(&length("reason"))),
        ("note", length("note") <= 1024),
        ("type", event["type"] == "Normal" || event["type"] == "Warning"),
        (
            "series",
            series.is_null()
                || series["count"].as_i64() >= Some(2) && is_time(&series["lastObservedTime"]),
        ),
    ];
    match checks.iter().find(|(_, is_good)| !is_good) {
        Some((field, _)) => Err((422, "Invalid", format!("{field}: Invalid value in {event}"))),
        None => Ok(()),
    }
}
