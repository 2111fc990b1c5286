//! `proxyd render`: what would be programmed, with nothing touched.

use std::io::Write as _;

use crate::config::{Flags, Loaded};
use crate::objects::ObjectSource;
use crate::{snapshot, tables};

/// How a command shows its result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people, and for the program that loads rules of the mode.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// Flags of `proxyd render`.
#[derive(Debug, clap::Args)]
pub struct RenderArgs {
    /// How to show the rules.
    #[arg(long, value_enum, default_value_t, value_name = "FORM")]
    pub output: Output,
    /// What the rules depend on.
    #[command(flatten)]
    pub flags: Flags,
}

/// Writes what would be programmed on this node to standard output. Findings about objects go to
/// the log.
pub fn render(loaded: &Loaded, arguments: &RenderArgs) -> anyhow::Result<()> {
    let config = &loaded.config;
    let options = tables::options(config)?;
    let source = ObjectSource::open(config, &arguments.flags, &options.node_name)?;
    let mut store = snapshot::take(source, options)?;
    let families = tables::families();
    for family in &families {
        // Resolves everything.
        let _everything = store.take_changes(*family);
    }
    for finding in store.diagnostics() {
        tracing::warn!(%finding, "object not as it should be");
    }
    let rules = tables::render(config, &store, &families, arguments.output)?;
    print(&rules)
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        // The reader has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}
