//! What a case needs before its first check: world, servers, objects, configuration, canary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Flavour;
use crate::builders::{self, Port, ZONE};
use crate::cases::{Case, Check, ConnectionCheck, Expectation, OneOrMore, SeenSource, Verdict};
use crate::echo::Listen;
use crate::target::{Protocol, Target};
use crate::world::{Families, NODE_NAME, Place, World};

use super::objects::Objects;

/// The world of a case, with servers on every port that the case names.
pub(super) fn world(case: &Case) -> Result<World> {
    let mut world = World::with_extra_addresses(case.family, &case.node.extra_addresses)?;
    let ports = Ports::of(case, &world);
    let everywhere: Vec<_> = ports
        .everywhere
        .iter()
        .map(|&(protocol, port)| Listen { protocol, address: None, port })
        .collect();
    world.serve(&everywhere)?;
    world.serve_on_node(&ports.on_node.into_iter().collect::<Vec<_>>())?;
    Ok(world)
}

/// Ports that need a server.
///
/// On the node these are the dialled node addresses too, whatever is expected: a service that is
/// not refused must not look refused just because nobody listens. Health check ports are the
/// program's own and stay free.
#[derive(Default)]
struct Ports {
    everywhere: BTreeSet<(Protocol, u16)>,
    on_node: BTreeSet<Listen>,
}

impl Ports {
    fn of(case: &Case, world: &World) -> Self {
        let mut ports = Self::default();
        ports.everywhere.insert((Protocol::Tcp, CANARY_PORT.target));
        let stages = case.steps.iter().map(|step| (&step.apply, &step.checks));
        for (objects, checks) in std::iter::once((&case.objects, &case.checks)).chain(stages) {
            for object in objects {
                ports.add_object(object, world);
            }
            for check in checks {
                if let Check::Connection(check) = check {
                    ports.add_check(check, world);
                }
            }
        }
        ports
    }

    fn add(&mut self, protocol: Protocol, address: SocketAddr, world: &World) {
        self.everywhere.insert((protocol, address.port()));
        if world.is_on_node(address.ip()) {
            let (address, port) = (Some(address.ip()), address.port());
            self.on_node.insert(Listen { protocol, address, port });
        }
    }

    fn add_check(&mut self, check: &ConnectionCheck, world: &World) {
        let protocol = check.to.protocol;
        self.add(protocol, check.to.address, world);
        let expectations = std::iter::once(&check.expect).chain(check.expect_by_mode.values());
        for backend in expectations.flat_map(|expectation| &expectation.backends) {
            self.add(protocol, *backend, world);
        }
    }

    /// Every endpoint of a slice, also those that must not be used: a wrong choice has to show.
    fn add_object(&mut self, object: &Value, world: &World) {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        for port in list(&object["ports"]) {
            let number = port["port"].as_u64().and_then(|number| u16::try_from(number).ok());
            let protocol = port["protocol"].as_str().unwrap_or("TCP").parse();
            let (Some(number), Ok(protocol)) = (number, protocol) else { continue };
            self.everywhere.insert((protocol, number));
            for endpoint in list(&object["endpoints"]) {
                let address = endpoint["addresses"][0].as_str().map(str::parse::<IpAddr>);
                if let Some(Ok(address)) = address {
                    self.add(protocol, SocketAddr::new(address, number), world);
                }
            }
        }
    }
}

/// Writes the objects of the cluster: node, service ranges and those of the case.
pub(super) fn cluster(case: &Case, objects: &mut Objects) -> Result<()> {
    let [mut node, ranges] = builders::cluster(case.family);
    if let Some(labels) = node["metadata"]["labels"].as_object_mut() {
        match &case.node.zone {
            Some(zone) => labels.insert(ZONE.to_owned(), zone.as_str().into()),
            None => labels.remove(ZONE),
        };
    }
    if let Some(first) = case.node.pod_cidrs.first() {
        node["spec"] = json!({"podCIDR": first, "podCIDRs": case.node.pod_cidrs});
    }
    [&node, &ranges].into_iter().chain(&case.objects).try_for_each(|object| objects.apply(object))
}

/// Writes the configuration: what every case needs, then the case's own keys.
pub(super) fn config(case: &Case, flavour: Flavour, path: &Path) -> Result<()> {
    let mut keys = builders::configuration(&flavour.mode().to_string(), case.family);
    keys.as_object_mut().context("configuration")?.extend(case.config.clone());
    // JSON is YAML.
    let mut text = serde_json::to_string_pretty(&keys)?;
    if let Flavour::Iptables(variant) = flavour {
        let settings = json!({
            "apiVersion": "proxyd.io/v1alpha1",
            "kind": "ProxydConfiguration",
            "iptables": { "variant": variant },
        });
        text.push_str("\n---\n");
        text.push_str(&settings.to_string());
    }
    Ok(fs::write(path, text)?)
}

/// Port of the canary Service and of its endpoint.
const CANARY_PORT: Port<'_> = Port { name: "canary", protocol: "TCP", port: 1, target: 65000 };

/// A Service that tells when all earlier changes have been read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Canary {
    stage: u8,
}

impl Canary {
    /// The canary of a stage: 0 at the start, then one for each step.
    pub(super) fn of_stage(stage: u8) -> Self {
        Self { stage }
    }

    /// Family name, cluster IP and endpoint for each family.
    fn addresses(self, families: Families) -> Vec<(&'static str, String, &'static str)> {
        let stage = self.stage;
        let v4 = ("v4", format!("172.30.255.{stage}"), "10.180.0.250");
        let v6 = ("v6", format!("fd00:172:30::f:ff{stage:02x}"), "fd00:10:180::250");
        let v4 = families.has_v4().then_some(v4);
        v4.into_iter().chain(families.has_v6().then_some(v6)).collect()
    }

    /// Adds it to the objects; the canaries of earlier stages stay.
    pub(super) fn write(self, families: Families, objects: &mut Objects) -> Result<()> {
        for (family, cluster_ip, endpoint) in self.addresses(families) {
            let name = format!("zz-canary-{family}-{}", self.stage);
            let endpoints = [(endpoint, NODE_NAME)];
            let slice = builders::endpoint_slice(&name, &[CANARY_PORT], &endpoints);
            objects.apply(&slice)?;
            objects.apply(&builders::service(&name, &cluster_ip, &[CANARY_PORT]))?;
        }
        Ok(())
    }

    /// What holds once the objects have been read.
    pub(super) fn checks(self, families: Families) -> Vec<ConnectionCheck> {
        let check = |cluster_ip: &str, endpoint: &str| -> Option<ConnectionCheck> {
            let address = |ip: &str, port| Some(SocketAddr::new(ip.parse().ok()?, port));
            Some(ConnectionCheck {
                from: Place::LocalPod,
                source: None,
                source_port: None,
                flow: None,
                fair: None,
                to: Target::tcp(address(cluster_ip, CANARY_PORT.port)?),
                expect: Expectation {
                    result: OneOrMore::One(Verdict::Connect),
                    backends: vec![address(endpoint, CANARY_PORT.target)?],
                    source: SeenSource::Any,
                    source_by_backend: BTreeMap::new(),
                    sticky: false,
                    why: None,
                    unsure: false,
                },
                expect_by_mode: BTreeMap::new(),
            })
        };
        let addresses = self.addresses(families);
        addresses.iter().filter_map(|(_, service, endpoint)| check(service, endpoint)).collect()
    }
}
