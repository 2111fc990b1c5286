//! Every conformance case in every mode that is asked for, each a test of its own.
//!
//! `PROXYD_MODES` lists the modes (default `nftables`), `PROXYD_BIN` or `PROXYD_COMMAND` choose the
//! program, `PROXYD_CASES` another folder of cases. A case that this machine cannot play is
//! reported as ignored, with the reason; with `CI` set, missing privilege fails instead.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Result};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use testbed::cases::{Case, Mode, folder, load};
use testbed::conformance::{Subject, missing_need, run};
use testbed::netns::missing_privilege;

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
    let modes = std::env::var("PROXYD_MODES").unwrap_or_else(|_| "nftables".to_owned());
    let modes: Vec<Mode> =
        modes.split(',').map(|mode| mode.trim().parse()).collect::<Result<_>>()?;
    let cases = std::env::var_os("PROXYD_CASES").map_or_else(folder, PathBuf::from);
    let missing = Arc::new(missing_privilege());
    let mut trials = Vec::new();
    for case in load(&cases).context("reading the cases")? {
        let case = Arc::new(case);
        for mode in modes.iter().copied().filter(|mode| case.modes.contains(mode)) {
            let (played, missing) = (Arc::clone(&case), Arc::clone(&missing));
            let name = format!("{mode}::{}::{}", case.feature, case.name);
            trials.push(Trial::ignorable_test(name, move || {
                play(&played, mode, missing.as_ref().as_ref())
            }));
        }
    }
    Ok(trials)
}

fn play(case: &Case, mode: Mode, missing: Option<&String>) -> Result<Completion, Failed> {
    if let Some(reason) = missing {
        let reason = format!("no network namespaces: {reason}");
        let must_run = std::env::var_os("CI").is_some();
        return if must_run { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) };
    }
    if let Some(reason) = missing_need(case) {
        return Ok(Completion::ignored_with(reason));
    }
    let played = Subject::from_env().and_then(|subject| run(case, mode, &subject));
    played.map(|()| Completion::Completed).map_err(|error| format!("{error:#}").into())
}
