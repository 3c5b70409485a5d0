//! The command `retryrmq`: retrying consume for programs in any language, and what operators need from the outside.
//!
//! No logic of retrying lives here: this reads options, runs commands and shows what the crate `retryrmq` says.

mod consume;
mod exit;
mod fault;
mod global;
mod json;
mod logging;
mod moment;
mod output;
mod parked;
mod publish;
mod redact;
mod retrying;
mod topology;
mod visible;

use std::{process::ExitCode, time::Duration};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind as ClapKind};

use crate::{exit::Exit, fault::Fault, global::Global, output::Output};

/// Retry messages on RabbitMQ: a failed message waits in the broker and comes back at the tail of its own queue,
/// counted, until it succeeds or is parked with a readable reason.
#[derive(Debug, Parser)]
#[command(
    name = "retryrmq",
    version,
    max_term_width = 100,
    arg_required_else_help = true,
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
  retryrmq topology orders --retry 'fixed(5s)'        the queues it takes

Durations are written 250ms, 1s, 5m or 1h30m. Exit codes: `retryrmq exit-codes`.";

#[derive(Debug, Subcommand)]
enum Command {
    Consume(consume::Options),
    Publish(publish::Options),
    #[command(subcommand)]
    Parked(parked::Command),
    Topology(topology::Options),
    /// What the exit codes mean
    #[command(long_about = exit::TABLE)]
    ExitCodes,
    /// Not for people: the process that ends commands when their consumer was killed
    #[command(name = consume::WARDEN, hide = true)]
    Warden {
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
    match result {
        Ok(exit) => exit.into(),
        Err(fault) if fault.is_closed_pipe() => Exit::Ok.into(),
        Err(fault) => {
            output.fault(&fault);
            fault.exit().into()
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Fault> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(|why| Fault::failed(format!("cannot start threads: {why}")))
}

async fn run(command: Command, global: &Global, output: &Output) -> Result<Exit, Fault> {
    match command {
        Command::Consume(options) => consume::run(options, global, output).await,
        Command::Publish(options) => publish::run(options, global, output).await,
        Command::Parked(command) => parked::run(command, global, output).await,
        Command::Topology(options) => topology::run(options, global, output).await,
        Command::Warden { grace } => consume::watch(Duration::from_millis(grace)).await,
        Command::ExitCodes => {
            output.line(exit::TABLE.trim_end())?;
            Ok(Exit::Ok)
        }
    }
}

/// Options that make no sense, or a wish for help.
fn misused(error: &clap::Error) -> Exit {
    if matches!(
        error.kind(),
        ClapKind::DisplayHelp | ClapKind::DisplayVersion
    ) {
        let _ = error.print(); // nobody left to tell
        return Exit::Ok;
    }
    let plain = redact::passwords(&error.to_string());
    if std::env::args_os()
        .take_while(|word| word != "--")
        .any(|word| word == "--json")
    {
        let sentence = plain.lines().next().unwrap_or_default();
        let sentence = sentence.strip_prefix("error: ").unwrap_or(sentence);
        output::fault_as_json(sentence, "invalid_option", Exit::Usage);
    } else {
        eprint!("{plain}");
    }
    Exit::Usage
}
