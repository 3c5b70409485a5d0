//! All scenarios with the command `retryrmq`.

use std::path::Path;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let driver = Path::new(env!("CARGO_BIN_EXE_retryrmq-command-driver"));
    // cargo builds the command for the tests of its own package, not for those of this one
    if std::env::var_os("RETRYRMQ").is_none() && !driver.with_file_name("retryrmq").exists() {
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--package",
            "retryrmq",
            "--bin",
            "retryrmq",
            "--features",
            "cli",
        ]);
        match build.current_dir(env!("CARGO_MANIFEST_DIR")).status() {
            Ok(status) if status.success() => {}
            _ => {
                eprintln!("the command `retryrmq` is not there and cannot be built");
                return ExitCode::FAILURE;
            }
        }
    }
    retryrmq_scenarios::suite::main("command", driver)
}
