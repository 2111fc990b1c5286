//! Mode iptables.

use std::fmt::Write as _;

use backend_iptables::{IptablesTable, Table, TableConfig, TableCounts, Tool, ToolError, Variant};
use proxy_core::address::IpFamily;
use proxy_core::node::LocalDetector;
use proxy_core::store::Store;
use proxy_core::sync::{Synchronizer, TableSync};

use crate::config::{IptablesVariant, KubeProxyConfiguration, NodePortAddresses};
use crate::metrics::RuleCount;
use crate::render::Output;
use crate::tables::{IptablesFacts, Opened};

const BE_LIBERAL: &str = "net.netfilter.nf_conntrack_tcp_be_liberal";

/// The programs of a family.
pub(super) fn tool(config: &KubeProxyConfiguration, family: IpFamily) -> Result<Tool, ToolError> {
    match config.settings.iptables_variant {
        IptablesVariant::Auto => Tool::detect(family),
        IptablesVariant::Nft => Tool::find(family, Variant::Nft),
        IptablesVariant::Legacy => Tool::find(family, Variant::Legacy),
    }
}

/// The table that these programs write.
pub(super) fn table(
    settings: &KubeProxyConfiguration,
    family: IpFamily,
    detector: Option<LocalDetector>,
    tool: Tool,
) -> anyhow::Result<Opened> {
    let config = config(settings, family, detector);
    let table = IptablesTable::new(&config, tool)?;
    let (variant, counts) = (table.variant().as_str(), table.counts());
    let rules = Box::new(move || {
        let count = |(table, counts): (Table, TableCounts)| {
            let TableCounts { installed, written } = counts;
            RuleCount { table: table.as_str(), installed, written }
        };
        counts.take().into_iter().map(count).collect()
    });
    let iptables = Some(IptablesFacts { variant, rules });
    Ok(Opened { table: Box::new(Synchronizer::new(table)), iptables })
}

/// The tables of all variants that are in use.
pub(super) fn all_tables(
    settings: &KubeProxyConfiguration,
    family: IpFamily,
) -> anyhow::Result<Vec<Box<dyn TableSync>>> {
    let tools = Tool::all(family)?;
    let tables = tools.into_iter().map(|tool| Ok(table(settings, family, None, tool)?.table));
    tables.collect()
}

/// The tables of the variant that is not chosen, if it is in use.
pub(super) fn unused_tables(
    settings: &KubeProxyConfiguration,
    family: IpFamily,
) -> anyhow::Result<Vec<Box<dyn TableSync>>> {
    let chosen = tool(settings, family)?.variant();
    let others = Tool::all(family)?.into_iter().filter(|tool| tool.variant() != chosen);
    others.map(|tool| Ok(table(settings, family, None, tool)?.table)).collect()
}

/// What the rules of a family depend on.
pub(super) fn config(
    config: &KubeProxyConfiguration,
    family: IpFamily,
    detector: Option<LocalDetector>,
) -> TableConfig {
    // Missing where the module is: then nothing is tracked, and nothing invalid.
    let is_liberal = node_sys::sysctl::read(BE_LIBERAL).is_ok_and(|value| value.trim() != "0");
    TableConfig {
        family,
        detector,
        masquerade_bit: config.iptables.masquerade_bit,
        localhost_node_ports: config.iptables.localhost_node_ports,
        routes_localnet: config.iptables.localhost_node_ports && has_loopback(config),
        drops_invalid: !is_liberal,
    }
}

/// Whether 127.0.0.1 is among the addresses on which node ports answer (S9).
fn has_loopback(config: &KubeProxyConfiguration) -> bool {
    let NodePortAddresses::Cidrs(ranges) = &config.node_port_addresses else { return false };
    let loopback = IpFamily::V4.loopback();
    let mut ranges = ranges.iter().filter(|range| range.family() == IpFamily::V4).peekable();
    ranges.peek().is_none() || ranges.any(|range| range.contains(loopback))
}

/// The scripts of all families, each headed by the program it is for.
pub(super) fn render(
    settings: &KubeProxyConfiguration,
    store: &Store,
    families: &[IpFamily],
    output: Output,
) -> anyhow::Result<String> {
    anyhow::ensure!(output == Output::Text, "mode iptables is rendered as text only");
    let mut text = String::new();
    for family in families {
        let config = config(settings, *family, store.detector(*family));
        let services = store.services(*family).map(AsRef::as_ref);
        let rules = backend_iptables::compile(&config, &store.node_facts(*family), services);
        let program = match family {
            IpFamily::V4 => "iptables-restore",
            IpFamily::V6 => "ip6tables-restore",
        };
        writeln!(text, "# {program} --noflush")?;
        text.push_str(&backend_iptables::render(&rules));
    }
    Ok(text)
}
