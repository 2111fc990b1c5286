//! The `proxyd` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    proxyd::cli::main()
}
