//! What is compared: modes, and of mode iptables both variants.

use anyhow::{Context as _, bail};

use crate::config::{self, Flags, IptablesVariant, KubeProxyConfiguration, Mode};
use crate::tables;

use super::cluster;

/// One side of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Its name in flags and reports.
    pub name: &'static str,
    mode: Mode,
    variant: IptablesVariant,
}

impl Contender {
    /// All that there are, whether or not this build and this kernel have them.
    pub const ALL: [Self; 4] = [
        Self { name: "nftables", mode: Mode::Nftables, variant: IptablesVariant::Auto },
        Self { name: "ipvs", mode: Mode::Ipvs, variant: IptablesVariant::Auto },
        Self { name: "iptables-nft", mode: Mode::Iptables, variant: IptablesVariant::Nft },
        Self { name: "iptables-legacy", mode: Mode::Iptables, variant: IptablesVariant::Legacy },
    ];

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|contender| contender.name == name)
    }

    /// Those that are meant by `names`, each once and in that order: names of contenders or of
    /// modes. No names mean all.
    pub fn choose(names: &[String]) -> anyhow::Result<Vec<Self>> {
        if names.is_empty() {
            return Ok(Self::ALL.to_vec());
        }
        let mut chosen = Vec::new();
        for name in names {
            let is_meant = |it: &&Self| it.name == name || it.mode.as_str() == name;
            let mut meant = Self::ALL.iter().filter(is_meant).peekable();
            if meant.peek().is_none() {
                let known: Vec<_> = Self::ALL.iter().map(|it| it.name).collect();
                bail!("--modes: {name:?} is none of iptables, {}", known.join(", "));
            }
            for contender in meant {
                if !chosen.contains(contender) {
                    chosen.push(*contender);
                }
            }
        }
        Ok(chosen)
    }

    /// Whether this build has its mode.
    pub fn is_built(&self) -> bool {
        tables::MODES.contains(&self.mode)
    }

    /// The configuration of a node in the generated cluster.
    pub(super) fn config(&self) -> anyhow::Result<KubeProxyConfiguration> {
        let flags = Flags::parse([
            format!("--proxy-mode={}", self.mode),
            format!("--hostname-override={}", cluster::NODE),
            format!("--cluster-cidr={}", cluster::POD_RANGE),
            "--manifests=/".to_owned(),
        ])?;
        let loaded = config::load(&flags, &|path| std::fs::read_to_string(path))
            .context("failed to make a configuration")?;
        let mut config = loaded.config;
        config.settings.iptables_variant = self.variant;
        Ok(config)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str], expected: &[&str]) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let chosen = Contender::choose(&names).unwrap();
        assert_eq!(chosen.iter().map(|it| it.name).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn names_choose_contenders() {
        check(&[], &["nftables", "ipvs", "iptables-nft", "iptables-legacy"]);
        check(&["iptables"], &["iptables-nft", "iptables-legacy"]);
        check(&["iptables-legacy", "nftables"], &["iptables-legacy", "nftables"]);
        check(&["iptables-legacy", "iptables"], &["iptables-legacy", "iptables-nft"]);
    }

    #[test]
    fn unknown_names_are_refused() {
        let error = Contender::choose(&["userspace".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("\"userspace\"") && error.contains("iptables-nft"), "{error}");
    }

    #[test]
    fn each_has_its_configuration() {
        for contender in Contender::ALL {
            let config = contender.config().unwrap();
            assert_eq!(config.mode, contender.mode);
            assert_eq!(config.settings.iptables_variant, contender.variant);
        }
    }
}
