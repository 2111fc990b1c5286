//! The table on a kernel with IPVS, which is that of User Mode Linux: what is written is read
//! back, survives, drains, and leaves alone what is not ours.

mod drain;
mod state;
mod support;

use std::process::ExitCode;

use libtest_mimic::Arguments;
use testbed::uml;

fn main() -> anyhow::Result<ExitCode> {
    uml::enter()?;
    let mut tests = state::tests();
    tests.extend(drain::tests());
    Ok(libtest_mimic::run(&Arguments::from_args(), uml::trials(tests)).exit_code())
}
