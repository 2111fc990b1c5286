//! The command line.

use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::ab::{self, AbArgs, WorkerArgs};
use crate::config::{self, Flags, Loaded};
use crate::render::{self, RenderArgs};
use crate::{logging, run};

/// A service proxy for Kubernetes nodes: kube-proxy's place, several kernel backends.
#[derive(Debug, Parser)]
#[command(name = "proxyd", args_override_self = true, disable_version_flag = true)]
#[command(args_conflicts_with_subcommands = true, subcommand_precedence_over_arg = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Without a command, `run` is meant, as kube-proxy's manifests start it.
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Keep the node in step with the objects.
    #[command(args_override_self = true)]
    Run(Box<Flags>),
    /// Show what would be programmed on this node, with nothing touched.
    #[command(args_override_self = true)]
    Render(Box<RenderArgs>),
    /// Compare the modes on this machine, in namespaces of their own, with nothing touched.
    Ab(AbArgs),
    /// One side of `ab`.
    #[command(name = ab::WORKER_COMMAND, hide = true)]
    AbWorker(WorkerArgs),
    /// Remove everything that proxyd has programmed on this node.
    #[command(args_override_self = true)]
    Cleanup(Box<Flags>),
}

/// Runs the program with the process's arguments.
pub fn main() -> ExitCode {
    end_on_panic();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            // Nothing can be done if the terminal is gone.
            let _ignored = error.print();
            return code;
        }
    };
    match dispatch(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ignored = writeln!(std::io::stderr(), "proxyd: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Lets a panic of any thread or task end the process, once its message is out: whoever starts it
/// anew gets one that knows its state, in place of one that lives on without some part of it.
fn end_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

fn dispatch(cli: Cli) -> anyhow::Result<()> {
    match cli.command.unwrap_or_else(|| Command::Run(Box::new(cli.flags))) {
        Command::Run(flags) => start(&flags),
        Command::Render(arguments) => {
            let loaded = load_and_log(&arguments.flags)?;
            render::render(&loaded, &arguments)
        }
        Command::Ab(arguments) => ab::run(&arguments),
        Command::AbWorker(arguments) => ab::work(&arguments),
        Command::Cleanup(flags) => run::cleanup(&load(&flags)?.config),
    }
}

fn load(flags: &Flags) -> anyhow::Result<Loaded> {
    Ok(config::load(flags, &|path: &Path| std::fs::read_to_string(path))?)
}

/// Loads the configuration and begins to log.
fn load_and_log(flags: &Flags) -> anyhow::Result<Loaded> {
    let loaded = load(flags)?;
    logging::init(&loaded.config.logging);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    Ok(loaded)
}

/// `run` and those of kube-proxy's flags that make it do something else and end (C3).
fn start(flags: &Flags) -> anyhow::Result<()> {
    if let Some(form) = &flags.version {
        let version = form.strip_prefix('v').map_or(env!("CARGO_PKG_VERSION"), |version| version);
        writeln!(std::io::stdout(), "proxyd v{version}")?;
        return Ok(());
    }
    let loaded = load_and_log(flags)?;
    if let Some(path) = &flags.write_config_to {
        std::fs::write(path, config::write_config(&loaded.config))?;
        return Ok(());
    }
    if flags.cleanup == Some(true) {
        return run::cleanup(&loaded.config);
    }
    run::run(&loaded, flags)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    /// Tells the test's process from the one that it starts.
    const INSIDE: &str = "PROXYD_TEST_PANIC";

    fn panic_in(place: &str) {
        end_on_panic();
        match place {
            "thread" => drop(std::thread::spawn(|| panic!("in a thread")).join()),
            // The runtime catches panics of tasks.
            _ => run::runtime().unwrap().block_on(async {
                drop(tokio::spawn(async { panic!("in a task") }).await);
            }),
        }
    }

    #[test]
    fn known_failure_15_a_panic_anywhere_ends_the_process() {
        const NAME: &str = "cli::tests::known_failure_15_a_panic_anywhere_ends_the_process";
        if let Ok(place) = std::env::var(INSIDE) {
            return panic_in(&place);
        }
        for place in ["thread", "task"] {
            let mut command = std::process::Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", NAME, "--nocapture"]).env(INSIDE, place);
            let output = command.output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.signal(), Some(6), "{place}: {:?} {said}", output.status);
            assert!(said.contains(&format!("in a {place}")), "{said}");
        }
    }
}
