//! All scenarios with the crate `retryrmq` and the strategy `delayed-exchange`, where its plugin is.

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    retryrmq_scenarios::suite::with_delayed_exchange(
        "rust",
        Path::new(env!("CARGO_BIN_EXE_retryrmq-scenario-driver")),
    )
}
