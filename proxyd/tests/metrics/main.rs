//! Metrics, the status server and the documents about them; names carry the spec's ids.
#![expect(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod documents;
mod exposition;
mod pages;
mod series;
mod upstream;

use proxy_core::address::IpFamily;
use proxyd::config::{Flags, KubeProxyConfiguration, load};
use proxyd::metrics::Metrics;

/// The configuration of a mode.
pub(crate) fn config(mode: &str) -> KubeProxyConfiguration {
    let flags = Flags::parse([format!("--proxy-mode={mode}")]).unwrap();
    load(&flags, &|_| Ok(String::new())).unwrap().config
}

/// Metrics of a dual-stack node in mode nftables.
pub(crate) fn metrics() -> Metrics {
    Metrics::new(&config("nftables"), &IpFamily::ALL, &[]).unwrap()
}
