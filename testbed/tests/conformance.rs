//! Every conformance case in every mode that is asked for, each a test of its own.
//!
//! `PROXYD_MODES` lists the modes, of which `iptables-nft` and `iptables-legacy` are mode iptables
//! with each kind of iptables (default: all but `ipvs`). `PROXYD_ORIGINS` lists where objects come
//! from (default: `manifests`, and for mode nftables `cluster` too, since what comes after the
//! source is the same). `PROXYD_BIN` or `PROXYD_COMMAND` choose the program, `PROXYD_CASES` another
//! folder of cases. Mode ipvs runs in User Mode Linux, as the host's kernel may lack IPVS. A case
//! that this machine cannot play is reported as ignored, with the reason; with `CI` set, missing
//! privilege fails instead.

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Error, Result};
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use testbed::cases::{Case, Mode, folder, load};
use testbed::conformance::{Flavour, Origin, Subject, missing_need, run};
use testbed::netns::missing_privilege;
use testbed::uml::{self, GuestTest};

/// What is tried unless something else is asked for. Mode ipvs takes a quarter of an hour in the guest,
/// whose first cases do not come up reliably.
const FLAVOURS: &str = "nftables,iptables-nft,iptables-legacy";

/// Worlds at once; most of a case's time is waiting.
const WORLDS: usize = 8;
/// The guest has one processor, and a system call takes it long.
const WORLDS_IN_GUEST: usize = 3;

fn main() -> Result<ExitCode> {
    uml::enter()?;
    let mut args = Arguments::from_args();
    args.test_threads.get_or_insert_with(|| {
        let worlds = if uml::is_guest() { WORLDS_IN_GUEST } else { WORLDS };
        available_parallelism().map_or(1, |cores| worlds.min(4 * cores.get()))
    });
    Ok(libtest_mimic::run(&args, trials()?).exit_code())
}

fn trials() -> Result<Vec<Trial>> {
    let flavours: Vec<Flavour> = list("PROXYD_MODES", FLAVOURS)?;
    let subjects = subjects()?;
    let cases = std::env::var_os("PROXYD_CASES").map_or_else(folder, PathBuf::from);
    let missing = Arc::new(missing_privilege());
    let plays = |flavour: Flavour, subject: &Subject| {
        flavour.mode() == Mode::Nftables
            || subject.origin() == Origin::Manifests
            || std::env::var_os("PROXYD_ORIGINS").is_some()
    };
    let (mut here, mut in_guest) = (Vec::new(), Vec::new());
    for case in load(&cases).context("reading the cases")? {
        let case = Arc::new(case);
        let fits = |flavour: &&Flavour| case.modes.contains(&flavour.mode());
        for flavour in flavours.iter().filter(fits).copied() {
            for subject in subjects.iter().filter(|it| plays(flavour, it)) {
                let (played, missing) = (Arc::clone(&case), Arc::clone(&missing));
                let subject = subject.clone();
                let origin = subject.origin();
                let name = format!("{flavour}::{origin}::{}::{}", case.feature, case.name);
                let play = move || play(&played, flavour, &subject, missing.as_ref().as_ref());
                if wants_guest(flavour) {
                    in_guest.push(GuestTest::new(name, play));
                } else if !uml::is_guest() {
                    here.push(Trial::ignorable_test(name, play));
                }
            }
        }
    }
    here.extend(uml::trials(in_guest));
    Ok(here)
}

/// Whether only the guest's kernel has what the mode needs.
fn wants_guest(flavour: Flavour) -> bool {
    flavour.mode() == Mode::Ipvs
}

/// The program, once for each origin of objects that is asked for.
fn subjects() -> Result<Vec<Subject>> {
    if let Ok(command) = std::env::var("PROXYD_COMMAND") {
        return Ok(vec![Subject::new(&command)]);
    }
    let origins: Vec<Origin> = list("PROXYD_ORIGINS", "manifests,cluster")?;
    origins.into_iter().map(Subject::proxyd).collect()
}

/// The words of a variable, which are separated by commas.
fn list<T: FromStr<Err = Error>>(variable: &str, default: &str) -> Result<Vec<T>> {
    let text = std::env::var(variable).unwrap_or_else(|_| default.to_owned());
    text.split(',').map(|word| word.trim().parse()).collect()
}

fn play(
    case: &Case,
    flavour: Flavour,
    subject: &Subject,
    missing: Option<&String>,
) -> Result<Completion, Failed> {
    if let Some(reason) = missing {
        let reason = format!("no network namespaces: {reason}");
        let must_run = std::env::var_os("CI").is_some();
        return if must_run { Err(reason.into()) } else { Ok(Completion::ignored_with(reason)) };
    }
    if let Some(reason) = missing_need(case) {
        return Ok(Completion::ignored_with(reason));
    }
    let played = run(case, flavour, subject);
    played.map(|()| Completion::Completed).map_err(|error| format!("{error:#}").into())
}
