//! All scenarios with the crate `retryrmq`.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    retryrmq_scenarios::suite::main(
        "rust",
        Path::new(env!("CARGO_BIN_EXE_retryrmq-scenario-driver")),
    )
}
