//! The tables of one family, as a [`ServiceTable`].

use async_trait::async_trait;
use proxy_core::address::IpFamily;
use proxy_core::node::{LocalDetector, NodeFacts};
use proxy_core::resolved::ResolvedService;
use proxy_core::rules::{Change, RuleDelta};
use proxy_core::table::{DriftSignal, ServiceTable, TableError, TableErrorKind, error_chain};

use crate::compile::{self, TableConfig};
use crate::counts::RuleCounts;
use crate::drift::{legacy, nft};
use crate::layout;
use crate::model::{Key, Rule, Rules, Table, Text};
use crate::saved;
use crate::script::script;
use crate::text;
use crate::tool::{Tool, Variant};

/// How many objects iptables-nft takes at a time: its time grows with the square of the chains in
/// one run, and each run costs as much as it takes to read the chains that are there.
const NFT_COMMIT_OBJECTS: usize = 3000;

/// Service rules of one family in the tables `filter` and `nat`.
#[derive(Debug)]
pub struct IptablesTable {
    config: TableConfig,
    tool: Tool,
    localnet_rule: Option<String>,
    /// Whether the kernel has been told to route 127.0.0.0/8.
    routes_localnet: bool,
    /// Whom to tell what we write, if somebody looks for changes of others.
    writer: Option<legacy::Writer>,
    counts: RuleCounts,
}

/// Lets packets that were translated leave from 127.0.0.1.
const ROUTE_LOCALNET: &str = "net.ipv4.conf.all.route_localnet";

impl IptablesTable {
    /// The table that these programs read and write.
    pub fn new(config: &TableConfig, tool: Tool) -> Result<Self, TableError> {
        if let Some(LocalDetector::Interface(name) | LocalDetector::InterfacePrefix(name)) =
            &config.detector
            && !is_interface_name(name)
        {
            let operation = format!("use {name:?} as the name of an interface");
            return Err(TableError::new(TableErrorKind::Unsupported, operation));
        }
        let localnet_rule = config.guards_loopback().then(compile::localnet_rule);
        let config = config.clone();
        Ok(Self {
            config,
            tool,
            localnet_rule,
            routes_localnet: false,
            writer: None,
            counts: RuleCounts::default(),
        })
    }

    /// The variant of iptables that is used.
    pub fn variant(&self) -> Variant {
        self.tool.variant()
    }

    /// Counts of the rules that are read and written.
    pub fn counts(&self) -> RuleCounts {
        self.counts.clone()
    }

    /// Opens 127.0.0.0/8 to node ports, once the rule that keeps neighbours out is in `rules`.
    fn route_localnet<'a>(&mut self, mut rules: impl Iterator<Item = &'a Key>) {
        let wants = self.config.routes_localnet && self.config.guards_loopback();
        let is_guard = |key: &Key| matches!(key, Key::Entry { chain, .. } if &**chain == layout::LOCALNET_FIREWALL);
        if self.routes_localnet || !wants || !rules.any(is_guard) {
            return;
        }
        self.routes_localnet = true;
        let is_on = node_sys::sysctl::read(ROUTE_LOCALNET).is_ok_and(|value| value.trim() == "1");
        if !is_on && let Err(error) = node_sys::sysctl::write(ROUTE_LOCALNET, "1") {
            let error = error_chain(&error);
            tracing::warn!(error, "node ports will not answer on 127.0.0.1");
        }
    }

    fn read(&self) -> Result<Rules, TableError> {
        let mut rules = Rules::new();
        for table in Table::ALL {
            let saved = self.tool.save(table).map_err(|error| {
                error.into_table_error(format!("read the table {}", table.as_str()))
            })?;
            saved::parse(table, &saved, self.localnet_rule.as_deref(), &mut rules);
        }
        Ok(rules)
    }

    fn write(&self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        if delta.is_empty() {
            return Ok(());
        }
        let operation = || format!("write {} chains and rules", delta.len());
        let restore = || self.tool.restore(&script(delta));
        let written = match &self.writer {
            Some(writer) => writer.write(delta, restore),
            None => restore(),
        };
        written.map_err(|error| error.into_table_error(operation()))?;
        self.counts.written(delta);
        Ok(())
    }
}

/// What the kernel and the tools take for an interface, and nothing that they take for more.
fn is_interface_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_graphic() && !"\"'\\/!+".contains(c);
    (1..16).contains(&name.len()) && name.chars().all(is_plain)
}

#[async_trait]
impl ServiceTable for IptablesTable {
    type Key = Key;
    type Rule = Rule;

    fn family(&self) -> IpFamily {
        self.config.family
    }

    fn compile_node(&self, node: &NodeFacts, out: &mut Rules) {
        self.config.node(node, out);
    }

    fn compile_service(&self, service: &ResolvedService, out: &mut Rules) {
        self.config.service(service, out);
    }

    fn is_shared(key: &Key) -> bool {
        match key {
            Key::Chain(_, _, name) => layout::is_branch(name),
            Key::Entry { chain, rule, .. } => layout::is_branching(chain, rule),
            Key::Jumps(..) => false,
        }
    }

    fn commit_objects(&self) -> usize {
        match self.tool.variant() {
            Variant::Nft => NFT_COMMIT_OBJECTS,
            // Each commit replaces whole tables.
            Variant::Legacy => usize::MAX,
        }
    }

    async fn observe(&mut self) -> Result<Rules, TableError> {
        let rules = self.read()?;
        self.counts.observed(&rules);
        self.route_localnet(rules.iter().map(|(key, _)| key));
        Ok(rules)
    }

    async fn commit(&mut self, delta: &RuleDelta<Key, Rule>) -> Result<(), TableError> {
        self.write(delta)?;
        self.route_localnet(delta.changes.iter().map(Change::key));
        Ok(())
    }

    fn drift_signal(&mut self) -> Result<Option<Box<dyn DriftSignal>>, TableError> {
        let family = self.config.family;
        Ok(Some(match self.tool.variant() {
            Variant::Nft => Box::new(nft::Monitor::open(family, self.config.guards_loopback())?),
            Variant::Legacy => {
                let (poll, writer) = legacy::open(family)?;
                self.writer = Some(writer);
                Box::new(poll)
            }
        }))
    }

    async fn clear(&mut self) -> Result<(), TableError> {
        let mut changes = Vec::new();
        for (key, rule) in self.read()? {
            match (key, rule) {
                // The kubelet's as well.
                (Key::Chain(_, _, name) | Key::Entry { chain: name, .. }, _)
                    if &*name == layout::LOCALNET_FIREWALL => {}
                (key @ Key::Jumps(..), Rule::Jumps(texts)) => {
                    let ours = |it: &&Text| text::target(it) != layout::LOCALNET_FIREWALL;
                    let rule = Rule::Jumps(texts.iter().filter(ours).cloned().collect());
                    changes.push(Change::Remove { key, rule });
                }
                (key, rule) => changes.push(Change::Remove { key, rule }),
            }
        }
        // What leads to a chain goes first.
        changes.reverse();
        self.write(&RuleDelta { changes })
    }
}
