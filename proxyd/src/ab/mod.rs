//! `proxyd ab`: the modes side by side, on this machine.
//!
//! Each mode has a process of its own, in network namespaces of its own, and programs the same
//! objects. Then all take turns in slices of time: one after the other sees the same changes and
//! carries the same kinds of traffic, so that whatever else the machine does meets them all. The
//! namespaces have no names and end with their processes: there is nothing to clean up.

mod cluster;
mod contender;
mod contest;
mod figures;
mod html;
mod progress;
mod protocol;
mod recommend;
mod report;
mod text;
mod traffic;
mod worker;
mod world;

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, ensure};

pub use contender::Contender;
pub use figures::{Figure, Metric, ModeResult};
pub use html::render as render_html;
pub use recommend::{Recommendation, recommend};
pub use report::{LIMITS, NotMeasured, Report, Setup};
pub use text::render as render_text;
pub use worker::{WorkerArgs, work};

use crate::config::GoDuration;
use crate::render::Output;

/// Name of the hidden command that a worker runs.
pub const WORKER_COMMAND: &str = "ab-worker";

/// Flags of `proxyd ab`.
#[derive(Debug, clap::Args)]
pub struct AbArgs {
    /// Modes to compare, separated by commas: nftables, ipvs, iptables (both variants),
    /// iptables-nft, iptables-legacy. Default: all that this build and this kernel have.
    #[arg(long, value_delimiter = ',', value_name = "MODES")]
    pub modes: Vec<String>,
    /// Number of Services.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    pub services: usize,
    /// Endpoints of each Service.
    #[arg(long, default_value_t = 10, value_name = "M")]
    pub endpoints: usize,
    /// How long to measure, all modes together, after everything is programmed.
    #[arg(long, default_value = "30s", value_name = "D")]
    pub duration: GoDuration,
    /// How to show the result.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    pub output: Output,
    /// Write the result to this file too, as a page with charts.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl AbArgs {
    /// Refuses what cannot be measured.
    fn check(&self) -> anyhow::Result<()> {
        let (services, endpoints) = (cluster::MAX_SERVICES, cluster::MAX_ENDPOINTS);
        ensure!(
            (1..=services).contains(&self.services),
            "--services: {} is not from 1 to {services}",
            self.services
        );
        let all = (self.services + 1).checked_mul(self.endpoints).filter(|all| *all <= endpoints);
        ensure!(
            self.endpoints > 0 && all.is_some(),
            "--endpoints: {} for each Service are not from 1 to {endpoints} in all",
            self.endpoints
        );
        let (least, most) = (Duration::from_secs(1), Duration::from_secs(24 * 3600));
        ensure!(
            (least..=most).contains(&self.duration.to_std()),
            "--duration: {} is not from 1s to 24h",
            self.duration
        );
        Ok(())
    }
}

/// Compares modes and writes the report.
pub fn run(arguments: &AbArgs) -> anyhow::Result<()> {
    arguments.check()?;
    let contenders = Contender::choose(&arguments.modes)?;
    let report = contest::hold(arguments, &contenders)?;
    let text = match arguments.output {
        Output::Text => render_text(&report),
        Output::Json => format!("{}\n", serde_json::to_string_pretty(&report)?),
    };
    std::io::stdout().write_all(text.as_bytes()).context("failed to write the report")?;
    if let Some(file) = &arguments.html {
        fs::write(file, render_html(&report))
            .with_context(|| format!("failed to write {}", file.display()))?;
    }
    ensure!(!report.modes.is_empty(), "no mode could be measured");
    Ok(())
}
