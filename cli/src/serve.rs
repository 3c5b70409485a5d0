//! `retryrmq serve`: becomes the program of the service, which is a package of its own so that the command stays small.

use std::{
    env,
    ffi::{OsStr, OsString},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::Command,
};

use clap::Args;

use crate::{error::CliError, global::Global};

const PROGRAM: &str = "retryrmq-serve";

/// Retry what the consumers of a whole fleet reject: one small service for any number of queues
///
/// Runs the program `retryrmq-serve` (the package of that name), which is looked for beside this command, then in PATH. All that follows
/// `serve` goes to it: `retryrmq serve --help` shows what it takes.
#[derive(Clone, Debug, Args)]
#[command(
    disable_help_flag = true,
    override_usage = "retryrmq [OPTIONS] serve [SERVICE OPTIONS]"
)]
pub(crate) struct Options {
    /// What the service takes
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "SERVICE OPTIONS"
    )]
    arguments: Vec<OsString>,
}

/// Becomes the service. Returns only where that is impossible.
pub(crate) fn run(options: &Options, global: &Global) -> CliError {
    let program = match program() {
        Ok(program) => program,
        Err(cli_error) => return cli_error,
    };
    let why = Command::new(&program)
        // Not as an argument: other users of the machine can see those.
        .env("RETRYRMQ_URL", global.broker_url())
        .args(global.as_arguments())
        .args(&options.arguments)
        .exec();
    CliError::failed(format!("cannot run {}: {why}", program.display()))
}

/// The program of the service.
///
/// # Errors
/// It is not installed.
pub(crate) fn program() -> Result<PathBuf, CliError> {
    find(env::current_exe().ok(), env::var_os("PATH").as_deref()).ok_or_else(|| {
        CliError::not_found(format!(
            "the program `{PROGRAM}` is neither beside this command nor in PATH: install it with `cargo install {PROGRAM}`, or from \
             where you have this command"
        ))
    })
}

/// Where the program is: beside this command, then in `path`.
fn find(command: Option<PathBuf>, path: Option<&OsStr>) -> Option<PathBuf> {
    let beside = command.and_then(|command| Some(command.parent()?.join(PROGRAM)));
    let in_path = || which::which_in_global(PROGRAM, path).ok()?.next();
    beside.filter(|file| file.is_file()).or_else(in_path)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;

    #[test]
    fn the_program_beside_comes_before_one_in_the_path() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let command = || Some(here.path().join("retryrmq"));
        let path = there.path().as_os_str();
        assert_eq!(find(command(), Some(path)), None);
        assert_eq!(find(None, None), None);
        let put = |folder: &std::path::Path| {
            let file = folder.join(PROGRAM);
            fs::write(&file, "").unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
            file
        };
        let elsewhere = put(there.path());
        assert_eq!(find(command(), Some(path)), Some(elsewhere));
        let beside = put(here.path());
        assert_eq!(find(command(), Some(path)), Some(beside));
    }
}
