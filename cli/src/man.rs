//! `retryrmq man`: the manual pages, made from the options themselves.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use retryrmq::terminal_escape;
use serde_json::json;

use crate::{error::CliError, exit::Exit, output::Output};

/// Print the manual page, or write one per subcommand into a folder
#[derive(Clone, Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The folder for `retryrmq.1`, `retryrmq-consume.1` and so on; it is made if it is missing
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq man | man -l -                             read it
  retryrmq man ~/.local/share/man/man1                then: man retryrmq-consume";

/// Prints the page of `command`, or writes all.
pub(crate) fn run(
    options: &Options,
    mut command: Command,
    output: &Output,
) -> Result<Exit, CliError> {
    command.build();
    let Some(folder) = &options.dir else {
        output.raw(&page(&command)?)?;
        return Ok(Exit::Ok);
    };
    let bad = |path: &Path, why: std::io::Error| {
        CliError::failed(format!(
            "cannot write {}: {why}; name a folder that you may write to",
            terminal_escape::line(&path.display().to_string())
        ))
    };
    std::fs::create_dir_all(folder).map_err(|why| bad(folder, why))?;
    let mut written = Vec::new();
    for (name, page) in pages(&command)? {
        let path = folder.join(name);
        std::fs::write(&path, page).map_err(|why| bad(&path, why))?;
        written.push(path.display().to_string());
    }
    if output.is_json() {
        output.json_document(&json!({ "written": written }))?;
    } else {
        for path in &written {
            output.line(&terminal_escape::line(path))?;
        }
    }
    Ok(Exit::Ok)
}

/// The file names and contents of the pages of `command` and all below it that are meant for people.
fn pages(command: &Command) -> Result<Vec<(String, Vec<u8>)>, CliError> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let mut all = vec![(format!("{name}.1"), page(command)?)];
    let below = command.get_subcommands();
    for subcommand in below.filter(|below| !below.is_hide_set() && below.get_name() != "help") {
        all.extend(pages(subcommand)?);
    }
    Ok(all)
}

fn page(command: &Command) -> Result<Vec<u8>, CliError> {
    let mut page = Vec::new();
    let name = command.get_display_name().unwrap_or(command.get_name());
    Man::new(command.clone())
        .title(name)
        .manual("retryrmq")
        .render(&mut page)?;
    Ok(as_written(&String::from_utf8_lossy(&page)).into_bytes())
}

/// What stands behind the options is laid out in lines of 80 columns, and not to be filled.
fn as_written(page: &str) -> String {
    let mut all = String::with_capacity(page.len() + 16);
    for line in page.lines() {
        if line.starts_with(".SH") {
            all.push_str(if line == ".SH EXTRA" {
                ".SH NOTES\n.nf\n"
            } else {
                ".fi\n"
            });
        }
        if line != ".SH EXTRA" {
            all.push_str(line);
            all.push('\n');
        }
    }
    all
}
