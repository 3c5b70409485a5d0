//! All scenarios with the command `retryrmq`, and programs as its handlers.

mod support;

use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let driver = Path::new(env!("CARGO_BIN_EXE_retryrmq-command-driver"));
    if !support::is_built(driver) {
        return ExitCode::FAILURE;
    }
    retryrmq_scenarios::suite::main("command", driver)
}
