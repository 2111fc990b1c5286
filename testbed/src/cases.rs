//! The case files: what they may say, read strictly so that nothing is silently passed over.
//!
//! The format is described in the README of the folder `conformance` of this crate.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Error, Result, bail, ensure};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::target::Target;
use crate::world::{Families, Place};

/// A way in which rules reach the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// iptables.
    Iptables,
    /// ipvs.
    Ipvs,
    /// nftables.
    Nftables,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
            Self::Nftables => "nftables",
        })
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "iptables" => Self::Iptables,
            "ipvs" => Self::Ipvs,
            "nftables" => Self::Nftables,
            _ => bail!("mode {text:?} is none of iptables, ipvs, nftables"),
        })
    }
}

/// A kernel feature that a case cannot do without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// SCTP sockets and connection tracking.
    Sctp,
}

/// One case.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Case {
    /// Unique name.
    pub name: String,
    /// One word to group by.
    pub feature: String,
    /// IP families of the node.
    pub family: Families,
    /// Modes the case applies to.
    #[serde(default = "all_modes")]
    pub modes: Vec<Mode>,
    /// Why the expectations are what they are.
    pub why: Option<String>,
    /// Kernel features it needs.
    #[serde(default)]
    pub needs: Vec<Need>,
    /// Expectations not yet seen on a real machine.
    #[serde(default)]
    pub unsure: bool,
    /// Keys of the proxy's configuration file.
    #[serde(default)]
    pub config: Map<String, Value>,
    /// What is special about the node.
    #[serde(default)]
    pub node: NodePlan,
    /// Kubernetes objects at the start.
    pub objects: Vec<Value>,
    /// Checks at the start.
    pub checks: Vec<Check>,
    /// Later changes.
    #[serde(default)]
    pub steps: Vec<Step>,
}

/// What is special about the node of a case.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodePlan {
    /// Zone label; `null` for none.
    pub zone: Option<String>,
    /// More addresses (`ADDRESS/LENGTH`) on the outside interface, not listed in the Node object.
    pub extra_addresses: Vec<String>,
    /// `spec.podCIDRs` of the Node object.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
}

impl Default for NodePlan {
    fn default() -> Self {
        Self { zone: Some("zone-a".to_owned()), extra_addresses: Vec::new(), pod_cidrs: Vec::new() }
    }
}

/// A change and its checks.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Step {
    /// Objects that are created, or replaced by kind, namespace and name.
    #[serde(default)]
    pub apply: Vec<Value>,
    /// Objects that go, as `Kind/namespace/name`.
    #[serde(default)]
    pub delete: Vec<String>,
    /// What holds afterwards.
    #[serde(default)]
    pub checks: Vec<Check>,
}

/// One thing that must hold.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "CheckText")]
pub enum Check {
    /// A connection.
    Connection(Box<ConnectionCheck>),
    /// A question to the health check port of a Service.
    Health(HealthCheck),
}

/// A connection and what must become of it.
#[derive(Debug, Clone)]
pub struct ConnectionCheck {
    /// Where it starts.
    pub from: Place,
    /// Source address, if not the place's own.
    pub source: Option<IpAddr>,
    /// Source port, which makes the check part of one UDP flow.
    pub source_port: Option<u16>,
    /// Name of a connection that is kept open over several checks.
    pub flow: Option<String>,
    /// How evenly connections are spread.
    pub fair: Option<Fair>,
    /// Where it goes.
    pub to: Target,
    /// What is expected in every mode.
    pub expect: Expectation,
    /// What is expected instead in some modes.
    pub expect_by_mode: BTreeMap<Mode, Expectation>,
}

impl ConnectionCheck {
    /// The expectation that counts in `mode`.
    pub fn expectation(&self, mode: Mode) -> &Expectation {
        self.expect_by_mode.get(&mode).unwrap_or(&self.expect)
    }
}

impl fmt::Display for ConnectionCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "from {:?}", self.from)?;
        if let Some(source) = self.source {
            write!(f, " ({source})")?;
        }
        if let Some(port) = self.source_port {
            write!(f, " (port {port})")?;
        }
        write!(f, " to {}", self.to)
    }
}

/// What must become of a connection.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Expectation {
    /// How it ends; any of several.
    pub result: OneOrMore<Verdict>,
    /// For `connect`: every server that is reached.
    #[serde(default)]
    pub backends: Vec<SocketAddr>,
    /// For `connect`: what source address the servers see.
    #[serde(default)]
    pub source: SeenSource,
    /// The same for single servers.
    #[serde(default)]
    pub source_by_backend: BTreeMap<SocketAddr, SeenSource>,
    /// Every try from one client address reaches one and the same server.
    #[serde(default)]
    pub sticky: bool,
    /// Why it is so.
    pub why: Option<String>,
    /// Not yet seen on a real machine.
    #[serde(default)]
    pub unsure: bool,
}

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Translated to one of the expected servers.
    Connect,
    /// No answer at all.
    Drop,
    /// Not touched: whoever owns the address answers under it.
    Pass,
    /// Refused at once.
    Reject,
}

/// What source address a server sees.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SeenSource {
    /// Either.
    #[default]
    Any,
    /// An address of the node.
    Masqueraded,
    /// The client's own.
    Preserved,
}

/// An even spread over the servers.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fair {
    /// How many connections are made.
    pub tries: usize,
    /// How far each share may be from an equal one, relative to it.
    pub tolerance: f64,
}

/// A question to the health check port of a Service.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HealthCheck {
    /// Port.
    pub port: u16,
    /// Address of the node to ask; its first one if absent.
    pub address: Option<IpAddr>,
    /// What is answered.
    pub status: HealthStatus,
    /// How many endpoints of the node the answer tells.
    pub local_endpoints: Option<u64>,
}

/// Status of a health check port.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum HealthStatus {
    /// An HTTP status.
    Code(u16),
    /// A word: nothing listens.
    Refused(Refused),
}

/// The word that says that nothing listens on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refused {
    /// Nothing listens.
    Refused,
}

/// A value, or a list of which any will do.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore<T> {
    /// The only one.
    One(T),
    /// Any of these.
    More(Vec<T>),
}

impl<T> OneOrMore<T> {
    /// All values.
    pub fn as_slice(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::More(values) => values,
        }
    }
}

/// A check as written, before it is known which of the two kinds it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct CheckText {
    from: Option<Place>,
    source: Option<IpAddr>,
    source_port: Option<u16>,
    flow: Option<String>,
    fair: Option<Fair>,
    to: Option<Target>,
    expect: Option<Expectation>,
    #[serde(default)]
    expect_by_mode: BTreeMap<Mode, Expectation>,
    /// Holds for kube-proxy only; read so that it is checked for form, and not used.
    #[serde(default)]
    kube_proxy_by_mode: BTreeMap<Mode, Expectation>,
    health_check: Option<HealthCheck>,
    #[serde(rename = "why")]
    _why: Option<String>,
}

impl TryFrom<CheckText> for Check {
    type Error = Error;

    fn try_from(text: CheckText) -> Result<Self> {
        if let Some(health) = text.health_check {
            ensure!(text.to.is_none() && text.expect.is_none(), "a health check stands alone");
            return Ok(Self::Health(health));
        }
        let expectations = text.expect.iter().chain(text.expect_by_mode.values());
        for expectation in expectations.chain(text.kube_proxy_by_mode.values()) {
            let connects = expectation.result.as_slice().contains(&Verdict::Connect);
            ensure!(connects != expectation.backends.is_empty(), "backends are for connect alone");
        }
        Ok(Self::Connection(Box::new(ConnectionCheck {
            from: text.from.context("check without from")?,
            source: text.source,
            source_port: text.source_port,
            flow: text.flow,
            fair: text.fair,
            to: text.to.context("check without to")?,
            expect: text.expect.context("check without expect")?,
            expect_by_mode: text.expect_by_mode,
        })))
    }
}

fn all_modes() -> Vec<Mode> {
    vec![Mode::Iptables, Mode::Ipvs, Mode::Nftables]
}

/// The case files of this crate.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance")
}

/// All cases of a folder, in the order of file names and of the files.
pub fn load(folder: &Path) -> Result<Vec<Case>> {
    let listed = fs::read_dir(folder).with_context(|| format!("folder {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in listed {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file)?;
        cases.extend(parse(&text).with_context(|| format!("cases of {}", file.display()))?);
    }
    Ok(cases)
}

/// The cases of one YAML stream.
pub fn parse(text: &str) -> Result<Vec<Case>> {
    Ok(serde_saphyr::from_multiple(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const CASE: &str = "
name: one
feature: clusterip
family: ipv4
objects: []
checks:
  - from: local-pod
    to: 172.30.0.1:80/TCP
    expect: {result: connect, backends: ['10.180.0.1:80'], source: preserved}
    expectByMode: {ipvs: {result: [drop, reject], why: it does so}}
  - {healthCheck: {port: 32221, status: refused}}
";

    #[test]
    fn a_mode_may_differ() {
        let case = parse(CASE).unwrap().remove(0);
        let Check::Connection(check) = &case.checks[0] else { panic!("{case:?}") };
        let expected = |mode| check.expectation(mode).result.as_slice().to_vec();
        assert_eq!(expected(Mode::Nftables), [Verdict::Connect]);
        assert_eq!(expected(Mode::Ipvs), [Verdict::Drop, Verdict::Reject]);
        let Check::Health(health) = &case.checks[1] else { panic!("{case:?}") };
        assert_eq!(health.status, HealthStatus::Refused(Refused::Refused));
    }

    #[test]
    fn a_zone_is_default_none_or_named() {
        let zone = |node: &str| parse(&format!("{CASE}\n{node}")).unwrap().remove(0).node.zone;
        assert_eq!(zone(""), Some("zone-a".to_owned()));
        assert_eq!(zone("node: {podCIDRs: [10.180.0.0/24]}"), Some("zone-a".to_owned()));
        assert_eq!(zone("node: {zone: null}"), None);
        assert_eq!(zone("node: {zone: zone-b}"), Some("zone-b".to_owned()));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for (old, new) in [
            ("feature:", "feeture: x\nfeature:"),
            ("source: preserved", "source: kept"),
            ("source: preserved", "sauce: preserved"),
            ("from: local-pod", "from: local-pod\n    when: now"),
            ("port: 32221", "port: 32221, path: /"),
            (", backends: ['10.180.0.1:80']", ""),
            ("{healthCheck: {", "{from: node, healthCheck: {prt: 1, "),
        ] {
            assert!(CASE.contains(old));
            assert!(parse(&CASE.replacen(old, new, 1)).is_err(), "{new}");
        }
    }

    #[test]
    fn every_case_file_is_understood() {
        let cases = load(&folder()).unwrap();
        let names: BTreeSet<_> = cases.iter().map(|case| &case.name).collect();
        assert_eq!(names.len(), cases.len(), "names are unique");
        assert!(cases.len() > 100);
    }
}
