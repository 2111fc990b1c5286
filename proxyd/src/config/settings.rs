//! Our own settings, for which kube-proxy's file has no place.
//!
//! They are a second document of the file, which kube-proxy reads past (C1.1), so that one file
//! serves both.

use super::address::{Cidr, parse_cidr};
use super::decode::{Decoder, Value as _, section};
use super::error::ConfigError;
use super::tree::Node;
use super::types::spelled;

/// The `apiVersion` of the document.
pub const SETTINGS_API_VERSION: &str = "proxyd.io/v1alpha1";
/// The `kind` of the document.
pub const SETTINGS_KIND: &str = "ProxydConfiguration";

/// What kube-proxy has no field for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// What to do when the configuration file changes.
    pub config_change: ConfigChange,
    /// How nftables rules are written.
    pub nftables_driver: NftablesDriver,
    /// Which kind of iptables holds the rules of mode iptables.
    pub iptables_variant: IptablesVariant,
    /// Whether Events are written to the cluster.
    pub events_enabled: bool,
    /// The ranges that served external IPs must be in; none means any address.
    pub external_ip_ranges: Vec<Cidr>,
}

spelled! {
    /// What to do when the configuration file has changed to another valid configuration (C5.3).
    ///
    /// The file's new content decides. What is not valid is only reported, whatever it says.
    ConfigChange {
        /// Say so in log and metrics; the next start takes it in.
        Report = "Report",
        /// Start anew at once, in the same process and with the rules in place.
        Restart = "Restart",
        /// End with exit code 1, for a supervisor to start the program again.
        Exit = "Exit",
    }
}

spelled! {
    /// How nftables rules are written.
    NftablesDriver {
        /// By netlink.
        Netlink = "netlink",
        /// By the program nft.
        Nft = "nft",
    }
}

spelled! {
    /// Which kind of iptables holds the rules.
    IptablesVariant {
        /// The one that the rest of the node uses.
        Auto = "auto",
        /// That of nf_tables.
        Nft = "nft",
        /// That of ip_tables.
        Legacy = "legacy",
    }
}

section! {
    /// The document.
    SettingsDocument {
        api_version: String = SETTINGS_API_VERSION.to_owned(), "apiVersion";
        kind: String = SETTINGS_KIND.to_owned(), "kind";
        config_change: String = ConfigChange::Report.to_string(), "configChange";
        nftables: NftablesSettings = NftablesSettings::default(), "nftables";
        iptables: IptablesSettings = IptablesSettings::default(), "iptables";
        events: EventsSettings = EventsSettings::default(), "events";
        external_ips: ExternalIpsSettings = ExternalIpsSettings::default(), "externalIPs";
    }
}

section! {
    /// Mode iptables.
    IptablesSettings {
        variant: String = IptablesVariant::Auto.to_string(), "variant";
    }
}

section! {
    /// Events in the cluster.
    EventsSettings {
        enabled: bool = true, "enabled", keep_zero;
    }
}

section! {
    /// External IPs of Services.
    ExternalIpsSettings {
        allowed_cidrs: Vec<String> = Vec::new(), "allowedCIDRs";
    }
}

section! {
    /// Mode nftables.
    NftablesSettings {
        driver: String = NftablesDriver::Netlink.to_string(), "driver";
    }
}

impl SettingsDocument {
    /// Whether a document is this one.
    pub(super) fn is_meant(root: &Node) -> bool {
        root.get("apiVersion").and_then(Node::text) == Some(SETTINGS_API_VERSION)
    }

    /// Reads the document; problems go to the decoder.
    pub(super) fn read(root: &Node, decoder: &mut Decoder) -> Self {
        let kind = root.get("kind");
        if kind.and_then(Node::text) != Some(SETTINGS_KIND) {
            decoder.refuse(kind.unwrap_or(root), "kind", SETTINGS_KIND);
        }
        Self::from_node(root, "", decoder).unwrap_or_default()
    }

    /// Types the values; those that are not allowed go to the decoder's errors.
    pub(super) fn check(&self, decoder: &mut Decoder) -> Settings {
        let change = "Report, Restart or Exit";
        let driver = "netlink or nft";
        let variant = "auto, nft or legacy";
        Settings {
            config_change: typed(decoder, "configChange", &self.config_change, change)
                .unwrap_or(ConfigChange::Report),
            nftables_driver: typed(decoder, "nftables.driver", &self.nftables.driver, driver)
                .unwrap_or(NftablesDriver::Netlink),
            iptables_variant: typed(decoder, "iptables.variant", &self.iptables.variant, variant)
                .unwrap_or(IptablesVariant::Auto),
            events_enabled: self.events.enabled,
            external_ip_ranges: cidrs(
                decoder,
                "externalIPs.allowedCIDRs",
                &self.external_ips.allowed_cidrs,
            ),
        }
    }
}

fn cidrs(decoder: &mut Decoder, field: &str, texts: &[String]) -> Vec<Cidr> {
    let allowed = "a CIDR like \"192.168.0.0/16\" or \"fd00::/48\"";
    let texts = texts.iter().enumerate();
    texts
        .filter_map(|(index, text)| {
            checked(decoder, &format!("{field}[{index}]"), text, parse_cidr(text), allowed)
        })
        .collect()
}

fn typed<T: std::str::FromStr>(
    decoder: &mut Decoder,
    field: &str,
    text: &str,
    allowed: &str,
) -> Option<T> {
    checked(decoder, field, text, text.parse().ok(), allowed)
}

/// Hands the value on; says so if there is none because the text is not allowed.
fn checked<T>(
    decoder: &mut Decoder,
    field: &str,
    text: &str,
    value: Option<T>,
    allowed: &str,
) -> Option<T> {
    if value.is_none() {
        let place = decoder.lines.get(field).map(|line| decoder.place(*line));
        decoder.errors.push(ConfigError::Field {
            place,
            field: field.to_owned(),
            value: format!("{text:?}"),
            allowed: allowed.to_owned(),
        });
    }
    value
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            config_change: ConfigChange::Report,
            nftables_driver: NftablesDriver::Netlink,
            iptables_variant: IptablesVariant::Auto,
            events_enabled: true,
            external_ip_ranges: Vec::new(),
        }
    }
}

impl Settings {
    /// The document that says this.
    #[must_use]
    pub fn to_json(&self) -> serde_json::Value {
        SettingsDocument {
            config_change: self.config_change.to_string(),
            nftables: NftablesSettings { driver: self.nftables_driver.to_string() },
            iptables: IptablesSettings { variant: self.iptables_variant.to_string() },
            events: EventsSettings { enabled: self.events_enabled },
            external_ips: ExternalIpsSettings {
                allowed_cidrs: self.external_ip_ranges.iter().map(ToString::to_string).collect(),
            },
            ..SettingsDocument::default()
        }
        .to_json()
    }
}
