//! Every conformance case in every mode that is asked for, each a test of its own.
//!
//! `PROXYD_MODES` lists the modes, of which `iptables-nft` and `iptables-legacy` are mode iptables
//! with each kind of iptables (default: all that this kernel has). `PROXYD_BIN` or
//! `PROXYD_COMMAND` choose the program, `PROXYD_CASES` another folder of cases. A case that this
//! machine cannot play is reported as ignored, with the reason; with `CI` set, missing privilege
//! fails instead.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use testbed::cases::{Case, folder, load};
use testbed::conformance::{Flavour, Subject, missing_need, run};
use testbed::netns::missing_privilege;

/// What is tried unless something else is asked for.
const FLAVOURS: &str = "nftables,iptables-nft,iptables-legacy";

/// Worlds at once; most of a case's time is waiting.
const WORLDS: usize = 8;

fn main() -> Result<ExitCode> {
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert_with(|| {
        available_parallelism().map_or(1, |cores| WORLDS.min(4 * cores.get()))
    });
    Ok(libtest_mimic::run(&args, trials()?).exit_code())
}

fn trials() -> Result<Vec<Trial>> {
    let flavours = std::env::var("PROXYD_MODES").unwrap_or_else(|_| FLAVOURS.to_owned());
    let flavours: Vec<Flavour> =
        flavours.split(',').map(|flavour| flavour.trim().parse()).collect::<Result<_>>()?;
    let cases = std::env::var_os("PROXYD_CASES").map_or_else(folder, PathBuf::from);
    let missing = Arc::new(missing_privilege());
    let mut trials = Vec::new();
    for case in load(&cases).context("reading the cases")? {
        let case = Arc::new(case);
        let fits = |flavour: &&Flavour| case.modes.contains(&flavour.mode());
        for flavour in flavours.iter().filter(fits).copied() {
            let (played, missing) = (Arc::clone(&case), Arc::clone(&missing));
            let name = format!("{flavour}::{}::{}", case.feature, case.name);
            trials.push(Trial::ignorable_test(name, move || {
                play(&played, flavour, missing.as_ref().as_ref())
            }));
        }
    }
    Ok(trials)
}

fn play(case: &Case, flavour: Flavour, missing: Option<&String>) -> Result<Completion, Failed> {
    if let Some(reason) = missing {
        let reason = format!("no network namespaces: {reason}");
        let must_run = std::env::var_os("CI").is_some();
        return if must_run { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) };
    }
    if let Some(reason) = missing_need(case) {
        return Ok(Completion::ignored_with(reason));
    }
    let played = Subject::from_env().and_then(|subject| run(case, flavour, &subject));
    played.map(|()| Completion::Completed).map_err(|error| format!("{error:#}").into())
}
