//! The command `retryrmq`: retrying consume for programs in any language, and what operators need from the outside.
//!
//! No logic of retrying lives here: this reads options, runs commands and shows what the crate `retryrmq` says.

mod completions;
mod consume;
mod disable;
mod doctor;
mod enable;
mod error;
mod exit;
mod gc;
mod global;
mod json;
mod line_printer;
mod logging;
mod man;
mod management;
mod nonblocking_output;
mod output;
mod parked;
mod prompt;
mod publish;
mod rate;
mod redact;
mod retry_args;
mod serve;
mod setup;
mod shutdown;
mod signals;
mod simulate;
mod time_format;
mod topology;
mod unreadable;
mod waiting;

use std::{io::IsTerminal, process::ExitCode, time::Duration};

use clap::{
    CommandFactory, FromArgMatches, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind as ClapKind},
};

use crate::{error::CliError, exit::Exit, global::Global, output::Output};

/// The AMQP client allocates messages in one thread, and they are freed in another. With musl's allocator both wait for one lock.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Retry messages on RabbitMQ: a failed message waits in the broker and comes back at the tail of its own queue,
/// counted, until it succeeds or is parked with a readable reason.
#[derive(Debug, Parser)]
#[command(
    name = "retryrmq",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
    override_usage = "retryrmq [OPTIONS] <COMMAND>",
    after_help = EXAMPLES
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq consume orders --dlx -- ./handle-order     a program per message
  retryrmq publish --queue orders '{\"id\": 7}'         publish, confirmed
  retryrmq parked ls orders                           what was given up, and why
  retryrmq parked replay orders --all                 send it back to work
  retryrmq consume orders --dlx --http http://h/o     a request per message
  retryrmq topology orders --retry 'fixed(5s)'        the queues it takes
  retryrmq doctor                                     what will lose messages

Durations are written 250ms, 1s, 5m or 1h30m. Exit codes: `retryrmq exit-codes`.";

#[derive(Debug, Subcommand)]
enum Command {
    Consume(Box<consume::Options>),
    Publish(publish::Options),
    #[command(subcommand)]
    Parked(Box<parked::Command>),
    #[command(subcommand)]
    Waiting(waiting::Command),
    #[command(subcommand)]
    Unreadable(unreadable::Command),
    Topology(topology::Options),
    Setup(setup::Options),
    Gc(gc::Options),
    Doctor(doctor::Options),
    Enable(enable::Options),
    Disable(disable::Options),
    Simulate(simulate::Options),
    Serve(serve::Options),
    Completions(completions::Options),
    Man(man::Options),
    /// What the exit codes mean
    #[command(long_about = exit::table())]
    ExitCodes,
    /// Not for people: the process that ends commands when their consumer was killed
    #[command(name = consume::ORPHAN_REAPER, hide = true)]
    OrphanReaper {
        /// In milliseconds
        grace: u64,
    },
}

fn main() -> ExitCode {
    let cli = match Cli::command()
        .try_get_matches()
        .and_then(|matches| Cli::from_arg_matches(&matches))
    {
        Ok(cli) => cli,
        Err(error) => return misused(&error).into(),
    };
    let output = Output::new(&cli.global);
    logging::start(&cli.global, &output);
    let result = runtime().and_then(|runtime| {
        let result = runtime.block_on(run(cli.command, &cli.global, &output));
        // A thread that still waits for standard input must not hold up the end.
        runtime.shutdown_background();
        result
    });
    let exit = match result {
        Ok(exit) => exit,
        Err(cli_error) if cli_error.is_closed_pipe() => Exit::Ok,
        Err(cli_error) => {
            output.cli_error(&cli_error);
            cli_error.exit()
        }
    };
    nonblocking_output::finish();
    exit.into()
}

fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|why| CliError::failed(format!("cannot start threads: {why}")))
}

async fn run(command: Command, global: &Global, output: &Output) -> Result<Exit, CliError> {
    match command {
        Command::Consume(options) => consume::run(*options, global, output).await,
        Command::Publish(options) => publish::run(options, global, output).await,
        Command::Parked(command) => parked::run(*command, global, output).await,
        Command::Topology(options) => topology::run(options, global, output).await,
        Command::Doctor(options) => doctor::run(options, global, output).await,
        Command::Enable(options) => enable::run(options, global, output).await,
        Command::Disable(options) => disable::run(options, global, output).await,
        Command::Completions(options) => completions::run(&options, &Cli::command(), output),
        Command::Man(options) => man::run(&options, Cli::command(), output),
        Command::Setup(options) => setup::run(options, global, output).await,
        Command::Simulate(options) => simulate::run(options, output),
        Command::Unreadable(command) => unreadable::run(command, global, output).await,
        Command::Waiting(command) => waiting::run(command, global, output).await,
        // It takes the place of this process before anything is begun.
        Command::Serve(options) => Err(serve::run(&options, global)),
        Command::Gc(options) => gc::run(options, global, output).await,
        Command::OrphanReaper { grace } => consume::watch(Duration::from_millis(grace)).await,
        Command::ExitCodes => {
            if output.is_json() {
                output.json_document(&exit::as_json())?;
            } else {
                output.line(&exit::table())?;
            }
            Ok(Exit::Ok)
        }
    }
}

/// Options that make no sense, or a wish for help.
fn misused(error: &clap::Error) -> Exit {
    // Help quotes nothing that was typed.
    match error.kind() {
        ClapKind::DisplayHelp | ClapKind::DisplayVersion => {
            let _ = error.print(); // nobody left to tell
            return Exit::Ok;
        }
        // clap shows the help only where no variable of the environment counts as an argument.
        ClapKind::DisplayHelpOnMissingArgumentOrSubcommand | ClapKind::MissingSubcommand => {
            let mut command = Cli::command();
            command.build();
            let parked = std::env::args().any(|word| word == "parked");
            let asked = match command.find_subcommand_mut("parked") {
                Some(subcommand) if parked => subcommand,
                _ => &mut command,
            };
            let help = asked.render_help();
            if std::io::stderr().is_terminal() {
                eprint!("{}", help.ansi());
            } else {
                eprint!("{help}");
            }
            return Exit::Usage;
        }
        _ => {}
    }
    let plain = redact::passwords(&complaint(error));
    if std::env::args_os()
        .take_while(|word| word != "--")
        .any(|word| word == "--json")
    {
        output::cli_error_as_json(&sentence(&plain), "invalid_option", Exit::Usage);
    } else {
        eprint!("{plain}");
    }
    Exit::Usage
}

/// What is wrong with the options, and how it is written.
fn complaint(error: &clap::Error) -> String {
    let text = error.to_string();
    if let Some(text) = with_hint_of_queue(error, &text) {
        return text;
    }
    let unexpected = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(word)) if error.kind() == ClapKind::UnknownArgument => word,
        _ => return text,
    };
    let consumes =
        std::env::args().any(|word| word == "consume") && std::env::args().all(|word| word != "--");
    if !consumes || unexpected.starts_with('-') {
        return text;
    }
    // clap's own tip would pass it as one word.
    let usage = text.find("Usage:").map_or("", |at| &text[at..]);
    format!(
        "error: unexpected argument '{unexpected}' found: put `--` before the command\n\n{usage}"
    )
}

/// `publish orders x`: who forgot --queue gets a hint, because the queue's name was taken for the body.
fn with_hint_of_queue(error: &clap::Error, text: &str) -> Option<String> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let at = words.iter().position(|word| word == "publish")?;
    let targeted = words.iter().any(|word| {
        ["--queue", "--exchange"].iter().any(|option| {
            word == option
                || word
                    .strip_prefix(option)
                    .is_some_and(|rest| rest.starts_with('='))
        })
    });
    let name = words.get(at + 1).filter(|word| !word.starts_with('-'))?;
    let fits = matches!(
        error.kind(),
        ClapKind::UnknownArgument | ClapKind::MissingRequiredArgument
    );
    if targeted || !fits {
        return None;
    }
    let name = retryrmq::terminal_escape::line(name);
    let hint = format!("tip: to publish to the queue {name}, pass --queue {name}");
    let usage = text.find("Usage:").unwrap_or(text.len());
    let (what, usage) = text.split_at(usage);
    // What clap proposes would publish a body of that name.
    let what = what.split("\n  tip:").next().unwrap_or(what).trim_end();
    Some(format!("{what}\n\n  {hint}\n\n{usage}"))
}

/// The complaint in one sentence: what stands before the usage, which may be a list.
fn sentence(complaint: &str) -> String {
    let end = [
        "\nUsage:",
        "\nFor more information",
        "\n  tip: to publish to the queue",
    ]
    .iter()
    .filter_map(|mark| complaint.find(mark))
    .min()
    .unwrap_or(complaint.len());
    let words: Vec<&str> = complaint[..end].split_whitespace().collect();
    let sentence = words.join(" ");
    sentence
        .strip_prefix("error: ")
        .unwrap_or(&sentence)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_complaint_in_one_sentence_names_what_is_missing() {
        let error = Cli::command()
            .try_get_matches_from(["retryrmq", "publish", "x"])
            .unwrap_err();
        let sentence = sentence(&complaint(&error));
        assert!(
            sentence.starts_with("the following required arguments were not provided: <--queue"),
            "{sentence}"
        );
        assert!(!sentence.contains("Usage"), "{sentence}");
    }
}
