//! A strict reader of the text format, version 0.0.4.

use std::collections::BTreeMap;

/// One metric as it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Family {
    pub(crate) kind: String,
    pub(crate) help: String,
    pub(crate) samples: Vec<Sample>,
}

/// One line with a value.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// The name, with `_bucket`, `_sum` or `_count` for histograms.
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

/// Reads a whole page.
pub(crate) fn parse(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    assert!(text.is_empty() || text.ends_with('\n'), "the last line must end");
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(!families.contains_key(name), "{name} comes twice");
            name.clone_into(&mut current);
            let help = help.to_owned();
            families.insert(current.clone(), Family { help, ..Family::default() });
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert_eq!(name, current);
            kind.clone_into(&mut families.get_mut(name).unwrap().kind);
        } else {
            let sample = sample(line);
            let base = sample.name.strip_prefix(&current).unwrap_or_else(|| panic!("{line}"));
            assert!(["", "_bucket", "_sum", "_count"].contains(&base), "{line}");
            families.get_mut(&current).unwrap().samples.push(sample);
        }
    }
    families
}

fn sample(line: &str) -> Sample {
    let (head, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?}"));
    let value = match value {
        "+Inf" => f64::INFINITY,
        value => value.parse().unwrap_or_else(|_| panic!("{line:?}")),
    };
    let (name, labels) = head.split_once('{').unwrap_or((head, "}"));
    let valid = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    assert!(name.chars().all(valid), "{line:?}");
    Sample { name: name.to_owned(), labels: labels_of(labels), value }
}

/// Reads `a="x",b="y"}`.
fn labels_of(text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    let mut rest = text;
    while let Some((name, tail)) = rest.split_once("=\"") {
        let mut value = String::new();
        let mut letters = tail.char_indices();
        loop {
            let (at, letter) = letters.next().unwrap();
            match letter {
                '\\' => value.push(match letters.next().unwrap().1 {
                    'n' => '\n',
                    other => other,
                }),
                '"' => {
                    rest = tail[at + 1..].trim_start_matches(',');
                    break;
                }
                _ => value.push(letter),
            }
        }
        labels.insert(name.to_owned(), value);
    }
    assert_eq!(rest, "}", "{text:?}");
    labels
}

/// The value of the sample with these labels.
pub(crate) fn value(text: &str, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
    let families = parse(text);
    let labels: BTreeMap<String, String> =
        labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let samples = families.values().flat_map(|family| &family.samples);
    let mut found = samples.filter(|sample| sample.name == name && sample.labels == labels);
    found.next().map(|sample| sample.value)
}
