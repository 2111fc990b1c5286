//! Configuration: kube-proxy's file format, its flags, and how the two combine.
//!
//! [`load`] goes through the stages of the specification (C1.4): text → tree with lines →
//! document with defaults → settings of the active mode → flags → late defaults → checked types.
//! Every stage adds to one list of errors, so that an operator sees all problems at once, each
//! with its field, its value and what would be allowed. What kube-proxy lets pass in silence
//! (unknown fields, further documents, flags next to `--config`) becomes a warning. A second document
//! may hold [`Settings`] of ours.
//!
//! ```
//! use proxyd::config::{Flags, Mode, load};
//!
//! let flags = Flags::parse(["--proxy-mode=nftables"]).unwrap();
//! let loaded = load(&flags, &|path| std::fs::read_to_string(path)).unwrap();
//! assert_eq!(loaded.config.mode, Mode::Nftables);
//! ```

mod address;
mod decode;
mod document;
mod error;
mod flags;
mod gates;
mod overlay;
mod scalar;
mod settings;
mod tree;
mod types;
mod validate;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

pub use address::Cidr;
pub use error::{ConfigError, ConfigErrors, Place};
pub use flags::Flags;
pub use gates::FeatureGates;
pub use scalar::{GoDuration, ParseDurationError};
pub use settings::{
    ConfigChange, IptablesVariant, NftablesDriver, SETTINGS_API_VERSION, SETTINGS_KIND, Settings,
};
pub use types::{
    ClientConnection, Conntrack, DetectLocal, DetectLocalMode, Iptables, Ipvs,
    KubeProxyConfiguration, LogFormat, LogOutput, Logging, Mode, Nftables, NodePortAddresses,
    UnknownName, Vmodule,
};

use decode::{Decoder, Value};
use document::{API_VERSION, Document, Draft, KIND};
use settings::SettingsDocument;
use tree::{Node, SyntaxError, Tree};
use validate::Checker;

/// A configuration ready for use.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Loaded {
    /// The effective configuration.
    pub config: KubeProxyConfiguration,
    /// What an operator should know, one line each.
    pub warnings: Vec<String>,
    /// The fields that the file sets, such as `conntrack.min`, be it to their defaults.
    pub given: BTreeSet<String>,
}

/// Combines flags and the configuration file they name (C4).
///
/// `read` gives the text of a file; it is asked for the configuration file, and for the
/// kubeconfig just to see that it is there.
pub fn load(
    flags: &Flags,
    read: &dyn Fn(&Path) -> io::Result<String>,
) -> Result<Loaded, ConfigErrors> {
    let mut checker = Checker::default();
    let mut draft = match &flags.config {
        Some(path) => {
            let text = read(path)
                .map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?;
            from_file(flags, path, &text, &mut checker)?
        }
        None => from_flags(flags, &mut checker),
    };
    for field in overlay::apply_honoured(flags, &mut draft.document) {
        checker.lines.remove(field);
    }
    draft.apply_platform_defaults();
    let cluster_cidr_given = flags.config.is_none() && flags.cluster_cidr.is_some();
    let config = validate::check(draft, cluster_cidr_given, &mut checker);
    if let Some(path) = config.client_connection.kubeconfig.as_ref().filter(|_| needs_api(flags))
        && let Err(source) = read(path)
    {
        checker.errors.push(ConfigError::Unreadable { path: path.clone(), source });
    }
    if checker.errors.is_empty() {
        Ok(Loaded { config, warnings: checker.warnings, given: checker.given })
    } else {
        Err(ConfigErrors(checker.errors))
    }
}

/// The effective configuration as `--write-config-to` writes it (C2.2), with a second document
/// if settings of ours differ from their defaults.
#[must_use]
pub fn write_config(config: &KubeProxyConfiguration) -> String {
    // JSON is YAML too, should the YAML writer ever refuse.
    let yaml = |json: &serde_json::Value| {
        serde_saphyr::to_string(json).unwrap_or_else(|_| json.to_string())
    };
    let mut text = yaml(&config_json(config));
    if config.settings != Settings::default() {
        text.push_str("---\n");
        text.push_str(&yaml(&config.settings.to_json()));
    }
    text
}

/// The effective configuration as `/configz` shows it.
#[must_use]
pub fn config_json(config: &KubeProxyConfiguration) -> serde_json::Value {
    config.document.to_json()
}

/// Whether this run talks to an API server.
fn needs_api(flags: &Flags) -> bool {
    let ends_before = flags.cleanup == Some(true) || flags.init_only == Some(true);
    flags.write_config_to.is_none() && !ends_before && flags.manifests.is_none()
}

fn from_flags(flags: &Flags, checker: &mut Checker) -> Draft {
    let mut draft = Draft::new(Document::default());
    overlay::apply_all(flags, &mut draft, &mut checker.warnings);
    draft
}

fn from_file(
    flags: &Flags,
    path: &Path,
    text: &str,
    checker: &mut Checker,
) -> Result<Draft, ConfigErrors> {
    let mut decoder = Decoder::new(path.display().to_string());
    let (mut document, settings) = decode_file(text, &mut decoder)?;
    if let Some(mode) = &flags.mode {
        // Here already, because the mode decides which section counts.
        document.mode.clone_from(mode);
    }
    checker.errors = decoder.errors;
    checker.warnings = decoder.warnings;
    checker.lines = decoder.lines;
    checker.given = decoder.given;
    checker.warnings.extend(overlay::silenced(flags).into_iter().map(|flag| {
        format!("{flag} is ignored: the file given by --config replaces all settings")
    }));
    checker.file = Some(decoder.file);
    Ok(Draft { settings, ..Draft::new(document) })
}

/// Decodes the first document and our settings, and warns of other documents (C1.1, C9.10).
fn decode_file(text: &str, decoder: &mut Decoder) -> Result<(Document, Settings), ConfigErrors> {
    let mut documents = tree::parse(text).into_iter();
    let empty = Node { line: 1, tree: Tree::Null };
    let root = documents.next().unwrap_or(Ok(empty)).map_err(|error| ConfigError::Syntax {
        place: Place { file: decoder.file.clone(), line: error.line },
        message: error.message,
    })?;
    check_kind(&root, decoder);
    if !decoder.errors.is_empty() {
        return Err(ConfigErrors(std::mem::take(&mut decoder.errors)));
    }
    let document = Document::from_node(&root, "", decoder).unwrap_or_default();
    let mut settings = None;
    for extra in documents {
        match extra {
            Ok(node) if settings.is_none() && SettingsDocument::is_meant(&node) => {
                settings = Some(decode_settings(&node, decoder));
            }
            extra => {
                let warning = warn_of_extra(&extra, decoder);
                decoder.warnings.push(warning);
            }
        }
    }
    Ok((document, settings.unwrap_or_default()))
}

/// Decodes and checks our own settings. Lines of fields are kept apart from the first document's.
fn decode_settings(root: &Node, decoder: &mut Decoder) -> Settings {
    let mut own = Decoder::new(decoder.file.clone());
    let settings = SettingsDocument::read(root, &mut own).check(&mut own);
    decoder.errors.append(&mut own.errors);
    decoder.warnings.append(&mut own.warnings);
    settings
}

/// Refuses a document that is not ours to read; both fields are mandatory (C1.1).
fn check_kind(root: &Node, decoder: &mut Decoder) {
    if !matches!(root.tree, Tree::Map(_)) {
        let allowed = format!("a mapping with apiVersion {API_VERSION} and kind {KIND}");
        decoder.refuse(root, "document", &allowed);
        return;
    }
    for (field, wanted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let missing = Node { line: root.line, tree: Tree::Null };
        let node = root.get(field).unwrap_or(&missing);
        if node.text() != Some(wanted) {
            decoder.refuse(node, field, wanted);
        }
    }
}

/// The warning for a document that nobody reads.
fn warn_of_extra(extra: &Result<Node, SyntaxError>, decoder: &Decoder) -> String {
    let (line, what) = match extra {
        Ok(node) if SettingsDocument::is_meant(node) => {
            (Some(node.line), "there are settings of proxyd before it")
        }
        Ok(node) => (Some(node.line), "only the first document counts, and settings of proxyd"),
        Err(error) => (error.line, "it is broken, and it would not count"),
    };
    let place = Place { file: decoder.file.clone(), line };
    format!("{place}: this document is IGNORED: {what}")
}
