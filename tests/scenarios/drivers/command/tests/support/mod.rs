//! The command that both drivers run.

use std::{path::Path, process::Command};

/// Makes sure that `retryrmq` is there; says so when it cannot be.
pub(crate) fn is_built(driver: &Path) -> bool {
    // cargo builds the command for the tests of its own package, not for those of this one
    if std::env::var_os("RETRYRMQ").is_some() || driver.with_file_name("retryrmq").exists() {
        return true;
    }
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--package", "retryrmq-cli", "--bin", "retryrmq"]);
    let is_built = build
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .is_ok_and(|status| status.success());
    if !is_built {
        eprintln!("the command `retryrmq` is not there and cannot be built");
    }
    is_built
}
