//! `retryrmq completions`: what a shell needs to complete the command's words.

use clap::{Args, Command, ValueEnum};
use clap_complete::{
    generate,
    shells::{Bash, Fish, Zsh},
};

use crate::{error::CliError, exit::Exit, output::Output};

/// Print the script that lets a shell complete subcommands and options
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The shell
    shell: Shell,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq completions bash > ~/.local/share/bash-completion/completions/retryrmq
  retryrmq completions zsh > \"${fpath[1]}/_retryrmq\"
  retryrmq completions fish > ~/.config/fish/completions/retryrmq.fish
  source <(retryrmq completions bash)                 for this shell alone";

/// Prints the script for `command`.
pub(crate) fn run(options: &Options, command: &Command, output: &Output) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    let name = command.get_name().to_owned();
    let mut command = for_people(command);
    match options.shell {
        Shell::Bash => generate(Bash, &mut command, name, &mut script),
        Shell::Zsh => generate(Zsh, &mut command, name, &mut script),
        Shell::Fish => generate(Fish, &mut command, name, &mut script),
    }
    output.raw(&script)?;
    Ok(Exit::Ok)
}

/// The same without what is not for people.
fn for_people(command: &Command) -> Command {
    let subcommands = command.get_subcommands();
    Command::new("retryrmq")
        .version(env!("CARGO_PKG_VERSION"))
        .args(command.get_arguments().cloned())
        .subcommands(subcommands.filter(|below| !below.is_hide_set()).cloned())
}
