//! From configuration to tables: one for each family that the node has.

#[cfg(feature = "iptables")]
mod iptables;
#[cfg(feature = "ipvs")]
mod ipvs;

use anyhow::Context as _;
use proxy_core::address::IpFamily;
use proxy_core::node::LocalDetector;
use proxy_core::options::{DetectLocal, NodePortSelection, Options};
use proxy_core::store::Store;
#[cfg(feature = "nftables")]
use proxy_core::sync::Synchronizer;
use proxy_core::sync::TableSync;
use proxy_core::table::error_chain;

#[cfg(feature = "nftables")]
use crate::config::NftablesDriver;
use crate::config::{self, KubeProxyConfiguration, Mode};
use crate::metrics::RuleCounter;
use crate::render::Output;

/// The modes that this build has.
pub const MODES: &[Mode] = &[
    #[cfg(feature = "iptables")]
    Mode::Iptables,
    #[cfg(feature = "ipvs")]
    Mode::Ipvs,
    #[cfg(feature = "nftables")]
    Mode::Nftables,
];

/// The program of the second nftables driver, found on the path.
#[cfg(feature = "nftables")]
const NFT: &str = "nft";

fn modes() -> String {
    let modes: Vec<String> = MODES.iter().map(ToString::to_string).collect();
    modes.join(", ")
}

/// What the objects mean on this node.
pub fn options(config: &KubeProxyConfiguration) -> anyhow::Result<Options> {
    let node_name = match &config.hostname_override {
        Some(name) => name.clone(),
        None => node_sys::host::hostname()
            .context("failed to read the host's name; set --hostname-override")?
            .to_lowercase(),
    };
    let mut options = Options::new(node_name);
    options.detect_local = match &config.detect_local {
        config::DetectLocal::ClusterCidr(ranges) => DetectLocal::ClusterCidr(ranges.clone()),
        config::DetectLocal::NodeCidr => DetectLocal::NodeCidr,
        config::DetectLocal::BridgeInterface(name) => DetectLocal::Bridge(name.clone()),
        config::DetectLocal::InterfaceNamePrefix(prefix) => {
            DetectLocal::InterfacePrefix(prefix.clone())
        }
    };
    options.masquerade_all = config.masquerade_all;
    options.node_port_addresses = match &config.node_port_addresses {
        config::NodePortAddresses::Primary => NodePortSelection::Primary,
        config::NodePortAddresses::Cidrs(ranges) => NodePortSelection::Ranges(ranges.clone()),
    };
    options.bind_address = Some(config.bind_address).filter(|address| !address.is_unspecified());
    options.loopback_node_ports =
        config.mode == Mode::Iptables && config.iptables.localhost_node_ports;
    options.allow_external_ips = config.feature_gates.allow_service_external_ips();
    options.external_ip_ranges = config.settings.external_ip_ranges.clone().into();
    Ok(options)
}

/// The families that the node has (S7.5).
pub fn families() -> Vec<IpFamily> {
    let usable = |family: &IpFamily| match family {
        IpFamily::V4 => true,
        IpFamily::V6 => node_sys::host::has_ipv6(),
    };
    IpFamily::ALL.into_iter().filter(usable).collect()
}

/// Refuses a mode that this build or this machine lacks, before anything is touched.
pub fn check(config: &KubeProxyConfiguration, families: &[IpFamily]) -> anyhow::Result<()> {
    let mode = config.mode;
    match mode {
        #[cfg(feature = "nftables")]
        Mode::Nftables => {
            if config.settings.nftables_driver == NftablesDriver::Nft {
                backend_nftables::NftTool::check(NFT).with_context(|| unavailable(mode))?;
            }
            for family in families {
                let config = backend_nftables::TableConfig {
                    family: *family,
                    detector: None,
                    masquerade_bit: 14,
                };
                backend_nftables::detect(&config).with_context(|| unavailable(mode))?;
            }
            Ok(())
        }
        #[cfg(feature = "iptables")]
        Mode::Iptables => {
            for family in families {
                let tool = iptables::tool(config, *family).with_context(|| unavailable(mode))?;
                tool.check().with_context(|| unavailable(mode))?;
            }
            Ok(())
        }
        #[cfg(feature = "ipvs")]
        Mode::Ipvs => ipvs::check(config, families).with_context(|| unavailable(mode)),
        #[cfg(not(all(feature = "iptables", feature = "ipvs", feature = "nftables")))]
        mode => anyhow::bail!("mode {mode} is not in this build; available: {}", modes()),
    }
}

fn unavailable(mode: Mode) -> String {
    format!("mode {mode} is not available on this machine (modes in this build: {})", modes())
}

/// A table, and what there is to show of it.
pub struct Opened {
    /// The table.
    pub table: Box<dyn TableSync>,
    /// What is known of a table of iptables only.
    pub iptables: Option<IptablesFacts>,
}

/// What is shown of a table of iptables.
pub struct IptablesFacts {
    /// Which kind of iptables holds the rules.
    pub variant: &'static str,
    /// Counts them.
    pub rules: RuleCounter,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("family", &self.table.family()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for IptablesFacts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IptablesFacts").field("variant", &self.variant).finish_non_exhaustive()
    }
}

impl From<Box<dyn TableSync>> for Opened {
    fn from(table: Box<dyn TableSync>) -> Self {
        Self { table, iptables: None }
    }
}

/// The table of one family, in the configured mode.
pub fn table(
    config: &KubeProxyConfiguration,
    family: IpFamily,
    detector: Option<LocalDetector>,
) -> anyhow::Result<Opened> {
    match config.mode {
        #[cfg(feature = "nftables")]
        Mode::Nftables => {
            let driver = config.settings.nftables_driver;
            let config = nftables_config(config, family, detector);
            let table: Box<dyn TableSync> = match driver {
                NftablesDriver::Netlink => {
                    let table = backend_nftables::NftablesTable::open(&config)?;
                    Box::new(Synchronizer::new(table))
                }
                NftablesDriver::Nft => {
                    let table = backend_nftables::NftToolTable::open(&config, NFT)?;
                    Box::new(Synchronizer::new(table))
                }
            };
            Ok(table.into())
        }
        #[cfg(feature = "iptables")]
        Mode::Iptables => {
            let tool = iptables::tool(config, family)?;
            tracing::info!(%family, variant = %tool.variant(), "iptables");
            iptables::table(config, family, detector, tool)
        }
        #[cfg(feature = "ipvs")]
        Mode::Ipvs => Ok(ipvs::table(config, family, detector)?.into()),
        #[cfg(not(all(feature = "iptables", feature = "ipvs", feature = "nftables")))]
        mode => anyhow::bail!("mode {mode} is not in this build; available: {}", modes()),
    }
}

/// Every table of one family in which the configured mode may have rules.
pub fn all_tables(
    config: &KubeProxyConfiguration,
    family: IpFamily,
) -> anyhow::Result<Vec<Box<dyn TableSync>>> {
    match config.mode {
        #[cfg(feature = "iptables")]
        Mode::Iptables => iptables::all_tables(config, family),
        #[cfg(feature = "ipvs")]
        Mode::Ipvs => ipvs::all_tables(config, family),
        _ => Ok(vec![table(config, family, None)?.table]),
    }
}

/// Removes what a mode has programmed on this node. What the machine does not have is passed over.
pub fn clear(mode: Mode, config: &KubeProxyConfiguration) -> anyhow::Result<()> {
    let mut config = config.clone();
    config.mode = mode;
    clear_each(&config, all_tables)
}

/// Removes what other modes have programmed on this node (S18.4, known failure 72), or this one in
/// the other variant of iptables: what an earlier run of this program left, and kube-proxy's chains.
/// To be called once the configured mode serves everything, so that no connection fails in between.
pub fn clear_other_modes(config: &KubeProxyConfiguration) {
    for mode in MODES {
        let cleared = match *mode {
            #[cfg(feature = "iptables")]
            Mode::Iptables if config.mode == Mode::Iptables => {
                clear_each(config, iptables::unused_tables)
            }
            mode if mode == config.mode => Ok(()),
            mode => clear(mode, config),
        };
        if let Err(error) = cleared {
            let error = format!("{error:#}");
            tracing::warn!(%mode, error, "failed to remove what another mode left");
        }
    }
}

fn clear_each(
    config: &KubeProxyConfiguration,
    tables: impl Fn(&KubeProxyConfiguration, IpFamily) -> anyhow::Result<Vec<Box<dyn TableSync>>>,
) -> anyhow::Result<()> {
    let runtime = crate::run::runtime()?;
    let mut failures = Vec::new();
    for family in families() {
        let cleared = tables(config, family).and_then(|tables| {
            for mut table in tables {
                runtime.block_on(table.clear())?;
            }
            Ok(())
        });
        if let Err(error) = cleared {
            failures.push(format!("{}, {family}: {}", config.mode, error_chain(error.as_ref())));
        }
    }
    if failures.is_empty() { Ok(()) } else { anyhow::bail!("{}", failures.join("; ")) }
}

/// Writes the settings of the kernel that only this mode needs.
pub fn prepare(config: &KubeProxyConfiguration) -> anyhow::Result<()> {
    match config.mode {
        #[cfg(feature = "ipvs")]
        Mode::Ipvs => ipvs::prepare(config),
        _ => Ok(()),
    }
}

/// What is wanted in the kernel, in the form of the mode's own program. The store's changes have
/// been taken for each family.
pub fn render(
    config: &KubeProxyConfiguration,
    store: &Store,
    families: &[IpFamily],
    output: Output,
) -> anyhow::Result<String> {
    match config.mode {
        #[cfg(feature = "nftables")]
        Mode::Nftables => Ok(render_nftables(config, store, families, output)),
        #[cfg(feature = "iptables")]
        Mode::Iptables => iptables::render(config, store, families, output),
        #[cfg(feature = "ipvs")]
        Mode::Ipvs => ipvs::render(config, store, families, output),
        #[cfg(not(all(feature = "iptables", feature = "ipvs", feature = "nftables")))]
        mode => anyhow::bail!("mode {mode} is not in this build; available: {}", modes()),
    }
}

#[cfg(feature = "nftables")]
fn render_nftables(
    config: &KubeProxyConfiguration,
    store: &Store,
    families: &[IpFamily],
    output: Output,
) -> String {
    let tables = families.iter().map(|family| {
        let config = nftables_config(config, *family, store.detector(*family));
        let services = store.services(*family).map(AsRef::as_ref);
        (*family, backend_nftables::compile(&config, &store.node_facts(*family), services))
    });
    let tables: Vec<_> = tables.collect();
    let tables = tables.iter().map(|(family, rules)| (*family, rules));
    match output {
        Output::Text => {
            tables.map(|(family, rules)| backend_nftables::render_text(rules, family)).collect()
        }
        Output::Json => format!("{:#}\n", backend_nftables::render_json(tables)),
    }
}

/// What the nftables rules of a family depend on.
#[cfg(feature = "nftables")]
pub fn nftables_config(
    config: &KubeProxyConfiguration,
    family: IpFamily,
    detector: Option<LocalDetector>,
) -> backend_nftables::TableConfig {
    backend_nftables::TableConfig {
        family,
        detector,
        masquerade_bit: config.nftables.masquerade_bit,
    }
}
