//! Mode ipvs: from configuration to its tables and kernel settings.

use std::time::Duration;

use anyhow::{Context as _, bail};
use backend_iptables::{Tool, ToolError, Variant};
use backend_ipvs::{IpvsConfig, IpvsTable, Settings, TableConfig, Timeouts};
use proxy_core::address::IpFamily;
use proxy_core::node::LocalDetector;
use proxy_core::scheduler::Scheduler;
use proxy_core::store::Store;
use proxy_core::sync::{Synchronizer, TableSync};
use proxy_core::table::TableError;

use crate::config::{IptablesVariant, KubeProxyConfiguration};
use crate::render::Output;

/// Refuses what this kernel lacks, before anything is touched.
pub(super) fn check(config: &KubeProxyConfiguration, families: &[IpFamily]) -> anyhow::Result<()> {
    for family in families {
        let table = table_config(config, *family, None)?;
        backend_ipvs::detect(&table, &tool(config, *family)?)?;
    }
    Ok(())
}

/// Writes the settings of the kernel that the mode needs.
pub(super) fn prepare(config: &KubeProxyConfiguration) -> anyhow::Result<()> {
    let ipvs = &config.ipvs;
    let timeouts = Timeouts {
        tcp: whole_seconds(ipvs.tcp_timeout),
        tcp_fin: whole_seconds(ipvs.tcp_fin_timeout),
        udp: whole_seconds(ipvs.udp_timeout),
    };
    // What could not be set was logged.
    let _failed = backend_ipvs::apply(&Settings { timeouts, strict_arp: ipvs.strict_arp })?;
    Ok(())
}

/// The table of one family.
pub(super) fn table(
    config: &KubeProxyConfiguration,
    family: IpFamily,
    detector: Option<LocalDetector>,
) -> anyhow::Result<Box<dyn TableSync>> {
    let tool = tool(config, family)?;
    tracing::info!(%family, iptables = %tool.variant(), "fixed rules");
    let config = IpvsConfig {
        table: table_config(config, family, detector)?,
        exclude: config.ipvs.exclude_cidrs.clone(),
        drain_limit: IpvsConfig::DRAIN_LIMIT,
    };
    Ok(Box::new(Synchronizer::new(IpvsTable::open(&config, tool)?)))
}

/// The tables in which there may be rules: none where the kernel lacks IPVS.
pub(super) fn all_tables(
    config: &KubeProxyConfiguration,
    family: IpFamily,
) -> anyhow::Result<Vec<Box<dyn TableSync>>> {
    match backend_ipvs::check_kernel() {
        Ok(()) => Ok(vec![table(config, family, None)?]),
        Err(error) => {
            let error = error.chain();
            tracing::debug!(error, "nothing to look for");
            Ok(Vec::new())
        }
    }
}

/// What is wanted in the kernel, as the programs ipset, iptables-restore, ipvsadm and ip take it.
pub(super) fn render(
    config: &KubeProxyConfiguration,
    store: &Store,
    families: &[IpFamily],
    output: Output,
) -> anyhow::Result<String> {
    if output == Output::Json {
        bail!("mode ipvs is shown as text only");
    }
    let mut text = String::new();
    for family in families {
        let table = table_config(config, *family, store.detector(*family))?;
        let services = store.services(*family).map(AsRef::as_ref);
        let rules = backend_ipvs::compile(&table, &store.node_facts(*family), services);
        text.push_str(&backend_ipvs::render_text(&rules, *family));
    }
    Ok(text)
}

/// The programs for the fixed rules.
fn tool(config: &KubeProxyConfiguration, family: IpFamily) -> Result<Tool, TableError> {
    // First, since nothing else matters without it.
    backend_ipvs::check_kernel()?;
    let variant = match config.settings.iptables_variant {
        IptablesVariant::Auto => return backend_ipvs::find_tool(family),
        IptablesVariant::Nft => Variant::Nft,
        IptablesVariant::Legacy => Variant::Legacy,
    };
    let failed = |error: ToolError| error.into_table_error("find the programs of iptables");
    Tool::find(family, variant).map_err(failed)
}

fn table_config(
    config: &KubeProxyConfiguration,
    family: IpFamily,
    detector: Option<LocalDetector>,
) -> anyhow::Result<TableConfig> {
    let scheduler = match &config.ipvs.scheduler {
        Some(name) => name.parse().context("ipvs.scheduler")?,
        None => Scheduler::default(),
    };
    let masquerade_bit = config.iptables.masquerade_bit;
    Ok(TableConfig { family, detector, masquerade_bit, scheduler })
}

/// Rounded up, so that what is not zero does not become zero.
fn whole_seconds(time: Duration) -> u32 {
    let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    u32::try_from(seconds).unwrap_or(u32::MAX)
}
