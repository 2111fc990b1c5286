//! Log lines by `tracing`.

use tracing_subscriber::filter::EnvFilter;

use crate::config::{LogFormat, Logging};

/// Installs the process's log output: standard error, in the configured form.
///
/// Verbosity follows the field's habit: below 2 changes of state, from 2 on each sync, from 4 on
/// details of the libraries. `RUST_LOG`, where set, decides instead.
pub fn init(logging: &Logging) {
    let directives = match logging.verbosity {
        0 | 1 => "info",
        2 | 3 => "info,proxyd=debug,proxy_core=debug,backend_nftables=debug,source=debug",
        _ => "debug",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(directives));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // A second call in one process (tests, embedding) keeps the first.
    let _already_set = match logging.format {
        LogFormat::Json => builder.json().flatten_event(true).try_init(),
        LogFormat::Text => builder.with_ansi(false).try_init(),
    };
}
