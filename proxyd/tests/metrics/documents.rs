//! `docs/metrics.md` and `docs/flags.md` against the code.
//!
//! With `UPDATE_DOCS=1` the generated tables are written instead of compared.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use proxyd::config::{Flags, Settings, config_json, load};
use proxyd::metrics::catalog::{self, Kind};
use proxyd::status::flag_default;
use serde_json::Value;

/// Compares, or writes, the part of a document between the markers of this name.
fn check_part(document: &str, part: &str, expected: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs").join(document);
    let text = std::fs::read_to_string(&path).unwrap();
    let (begin, end) = (format!("<!-- {part}: generated -->\n"), format!("<!-- {part}: end -->"));
    let missing = || panic!("{document} has no markers for {part}");
    let start = text.find(&begin).unwrap_or_else(missing) + begin.len();
    let stop = text.find(&end).unwrap_or_else(missing);
    if std::env::var_os("UPDATE_DOCS").is_some() {
        let updated = format!("{}{expected}{}", &text[..start], &text[stop..]);
        std::fs::write(&path, updated).unwrap();
    } else {
        let advice = "run the test with UPDATE_DOCS=1 to bring it up to date";
        assert_eq!(&text[start..stop], expected, "{document}, {part}: {advice}");
    }
}

fn lines(lines: &[String]) -> String {
    lines.iter().flat_map(|line| [line, "\n"]).collect()
}

fn code(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!("`{text}`") }
}

#[test]
fn every_metric_is_documented() {
    let mut rows = vec!["| name | type | labels | modes | meaning |".to_owned()];
    rows.push("| --- | --- | --- | --- | --- |".to_owned());
    for metric in catalog::ALL {
        let labels: Vec<String> = metric.labels.iter().map(|label| code(label)).collect();
        let labels = labels.join(", ");
        let modes = if metric.modes.len() == 3 {
            "all".to_owned()
        } else {
            let modes: Vec<&str> = metric.modes.iter().map(|mode| mode.as_str()).collect();
            modes.join(", ")
        };
        let kind = match metric.kind {
            Kind::Histogram(bounds) if bounds == catalog::SYNC_BUCKETS => "histogram (sync)",
            Kind::Histogram(bounds) if bounds == catalog::PROGRAMMING_BUCKETS => {
                "histogram (programming)"
            }
            Kind::Histogram(bounds) if bounds == catalog::SIZE_BUCKETS => "histogram (size)",
            Kind::Histogram(_) => "histogram (request)",
            kind => kind.as_str(),
        };
        rows.push(format!("| `{}` | {kind} | {labels} | {modes} | {} |", metric.name, metric.help));
    }
    check_part("metrics.md", "metrics", &lines(&rows));
    let bounds = |bounds: &[f64]| {
        let bounds: Vec<String> = bounds.iter().map(ToString::to_string).collect();
        bounds.join(" ")
    };
    let buckets = format!(
        "- sync, in seconds: {}\n- programming, in seconds: {}\n- request, in seconds: {}\n\
        - size, in bytes: {}\n",
        bounds(catalog::SYNC_BUCKETS),
        bounds(catalog::PROGRAMMING_BUCKETS),
        bounds(catalog::REQUEST_BUCKETS),
        bounds(catalog::SIZE_BUCKETS),
    );
    check_part("metrics.md", "buckets", &buckets);
}

#[test]
fn every_setting_of_ours_is_documented_with_its_default() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/configuration.md");
    let text = std::fs::read_to_string(path).unwrap();
    let mut rows = text.lines().filter(|line| line.starts_with("| `")).collect::<BTreeSet<_>>();
    let mut fields = BTreeMap::new();
    flatten("", &Settings::default().to_json(), &mut fields);
    for (field, default) in fields {
        if ["apiVersion", "kind"].contains(&field.as_str()) {
            continue;
        }
        let default = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
        let is_row = |row: &&str| {
            let mut cells = row.split('|').map(str::trim).skip(1);
            cells.next() == Some(&code(&field)) && cells.nth(1) == Some(&code(&default))
        };
        let row = rows.iter().copied().find(is_row);
        assert!(row.is_some_and(|row| rows.remove(row)), "{field} with default {default}");
    }
    assert!(rows.is_empty(), "no such fields: {rows:?}");
}

fn flatten(path: &str, value: &Value, out: &mut BTreeMap<String, Value>) {
    let Value::Object(fields) = value else {
        out.insert(path.to_owned(), value.clone());
        return;
    };
    for (name, value) in fields {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        flatten(&path, value, out);
    }
}

#[test]
fn names_follow_prometheus_habits() {
    let mut names = BTreeSet::new();
    for metric in catalog::ALL {
        assert!(names.insert(metric.name), "{} comes twice", metric.name);
        let ours = metric.name.starts_with("proxyd_");
        let is_total = metric.name.ends_with("_total");
        assert!(!ours || is_total == (metric.kind == Kind::Counter), "{}", metric.name);
        let is_sentence = metric.help.ends_with('.') || metric.help.contains(';');
        assert!(is_sentence && !metric.help.contains('\n'), "{}", metric.name);
    }
}

#[test]
fn every_flag_is_documented() {
    let command = Flags::command();
    let mut rows = BTreeMap::new();
    for argument in command.get_arguments() {
        let Some(name) = argument.get_long() else { continue };
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
        assert!(!help.is_empty(), "--{name} says nothing");
        let spelling =
            argument.get_short().map_or_else(String::new, |short| format!("`-{short}`, "));
        rows.insert(
            name.to_owned(),
            format!("| {spelling}`--{name}` | {} | {help} |\n", code(flag_default(name))),
        );
    }
    let rows: String = rows.into_values().collect();
    let table = format!("| flag | default | meaning |\n| --- | --- | --- |\n{rows}");
    check_part("flags.md", "flags", &table);
}

/// Fields that are not shown while they have their defaults.
const HIDDEN_FIELDS: &[(&str, &str)] = &[
    ("featureGates", "{}"),
    ("logging.options.json.splitStream", "false"),
    ("logging.options.text.splitStream", "false"),
    ("logging.vmodule", "null"),
    ("windowsRunAsService", "false"),
];

fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(&path, value, found);
            }
        }
        _ => {
            found.insert(path.to_owned(), value.to_string());
        }
    }
}

#[test]
fn every_field_is_documented() {
    let flags = Flags::parse(["--config=f"]).unwrap();
    let head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
    let read = |fields: &str| {
        let text = format!("{head}{fields}\n");
        load(&flags, &move |_| Ok(text.clone())).unwrap_or_else(|error| panic!("{error}"))
    };
    let mut fields = BTreeMap::new();
    leaves("", &config_json(&read("").config), &mut fields);
    for mode in ["iptables", "ipvs", "nftables"] {
        // Sections of other modes are shown with zeros (C2.2).
        let config = config_json(&read(&format!("mode: {mode}")).config);
        leaves(mode, &config[mode], &mut fields);
    }
    for (field, default) in HIDDEN_FIELDS {
        let known = fields.insert((*field).to_owned(), (*default).to_owned());
        assert_eq!(known, None, "{field} is not hidden");
    }
    for field in fields.keys().filter(|it| !["apiVersion", "kind"].contains(&it.as_str())) {
        let closing = "}".repeat(field.matches('.').count());
        let text = format!("{}: null{closing}", field.replace('.', ": {"));
        assert_eq!(read(&text).warnings, Vec::<String>::new(), "{field}");
    }
    let mut rows = vec!["| field | default |".to_owned(), "| --- | --- |".to_owned()];
    rows.extend(fields.iter().map(|(field, default)| format!("| `{field}` | `{default}` |")));
    check_part("flags.md", "fields", &lines(&rows));
}
