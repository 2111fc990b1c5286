//! `docs/known-failures.md` against the tests that it names.
#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use testbed::cases::{folder, load};

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Names of all test functions in a folder of sources.
fn collect_tests(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect_tests(&path, names);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(tests_in(&fs::read_to_string(path).unwrap()));
        }
    }
}

/// Names of functions that an attribute makes tests of, with other attributes between, and of tests
/// that are listed for the guest's kernel.
fn tests_in(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_test = false;
    for line in source.lines().map(str::trim) {
        if let Some(rest) = line.strip_prefix("test(\"") {
            names.extend(rest.split('"').next().map(str::to_owned));
        } else if line.starts_with("#[") {
            is_test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        } else if let Some((_, rest)) = line.split_once("fn ") {
            let name = rest.split(['(', '<']).next().unwrap_or_default();
            names.extend(std::mem::take(&mut is_test).then(|| name.to_owned()));
        }
    }
    names
}

/// The rows of the table, as cells.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(2);
    rows.map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

#[test]
fn every_named_test_exists_and_every_failure_has_a_row() {
    let text = fs::read_to_string(workspace().join("docs/known-failures.md")).unwrap();
    let mut known: BTreeSet<String> =
        load(&folder()).unwrap().into_iter().map(|it| it.name).collect();
    for member in fs::read_dir(workspace()).unwrap() {
        let member = member.unwrap().path();
        if member.join("Cargo.toml").is_file() {
            for folder in ["src", "tests"].map(|name| member.join(name)) {
                if folder.is_dir() {
                    collect_tests(&folder, &mut known);
                }
            }
        }
    }
    let mut numbers = BTreeSet::new();
    for row in rows(&text) {
        let [number, _, _, shown] = row[..] else { panic!("not four cells: {row:?}") };
        let (first, last) = number.split_once('–').unwrap_or((number, number));
        numbers.extend(first.parse::<u32>().unwrap()..=last.parse().unwrap());
        let named: Vec<&str> = shown.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty() || shown == "open", "{number} names no test: {shown}");
        for name in named {
            assert!(known.contains(name), "{number} names {name}, which is no test");
        }
    }
    assert_eq!(numbers, (1..=72).collect());
}
