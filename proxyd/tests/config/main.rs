//! The configuration against its specification; names and comments carry the spec's ids.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod file;
mod flags;
mod properties;
mod settings;
mod table;

use std::path::Path;

use proxyd::config::{ConfigErrors, Flags, Loaded, config_json, load};
use serde_json::Value;

pub(crate) const HEAD: &str =
    "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n";
pub(crate) const KUBEADM: &str = include_str!("../data/config/kubeadm.yaml");

/// Loads `text` as the file of `--config`, with more flags.
pub(crate) fn load_with(text: &str, more: &[&str]) -> Result<Loaded, ConfigErrors> {
    let flags = Flags::parse([&["--config=f.yaml"], more].concat()).unwrap();
    let read =
        |path: &Path| Ok(if path == Path::new("f.yaml") { text.to_owned() } else { String::new() });
    load(&flags, &read)
}

/// Loads a file of these fields.
pub(crate) fn file(fields: &str) -> Result<Loaded, ConfigErrors> {
    load_with(&format!("{HEAD}{fields}\n"), &[])
}

/// Loads flags without a file.
pub(crate) fn flags(arguments: &[&str]) -> Result<Loaded, ConfigErrors> {
    let flags = Flags::parse(arguments).unwrap_or_else(|error| panic!("{error}"));
    load(&flags, &|_| Ok(String::new()))
}

pub(crate) fn errors(result: Result<Loaded, ConfigErrors>) -> Vec<String> {
    result.unwrap_err().iter().map(ToString::to_string).collect()
}

/// The value at a path like `conntrack.min` as written back.
pub(crate) fn shown(loaded: &Loaded, path: &str) -> Value {
    let pointer = format!("/{}", path.replace('.', "/"));
    config_json(&loaded.config).pointer(&pointer).cloned().unwrap_or(Value::Null)
}

/// `a.b.c` and `v` as `a: {b: {c: v}}`.
pub(crate) fn nested(path: &str, value: &str) -> String {
    let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
    match rest {
        Some(rest) => format!("{first}: {{{}}}", nested(rest, value)),
        None => format!("{first}: {value}"),
    }
}
