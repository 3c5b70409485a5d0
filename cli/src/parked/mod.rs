//! `retryrmq parked`: what was given up, why, and what to do about it.

mod action;
mod all_queues;
mod amqp_json;
mod apply;
mod audit;
mod body;
mod canary;
mod compact;
mod decode_args;
mod edit;
mod export;
mod export_format;
mod filter;
mod foreign;
mod forget;
mod import;
mod ls;
mod message_ref;
mod notes;
mod other_consumers;
mod rate_limit;
mod record;
mod replay_drop;
mod selection;
mod show;
mod sort;
mod summary;
mod tag;
mod target;

use clap::Subcommand;

use crate::{error::CliError, exit::Exit, global::Global, output::Output};

/// Look at parked messages, replay, drop, keep or forget them
///
/// What consumers parked for a queue, or, with --dlq, any dead-letter queue. Looking loses no message (exceptions:
/// docs/reference/limits.md). While it runs, other tools see these messages as unacknowledged. Ctrl-C, SIGTERM and SIGHUP end it
/// cleanly.
#[derive(Clone, Debug, Subcommand)]
#[command(override_usage = "retryrmq parked [OPTIONS] <COMMAND>")]
pub(crate) enum Command {
    Ls(ls::Options),
    Show(show::Options),
    Replay(replay_drop::Replay),
    Drop(replay_drop::Drop),
    Restore(replay_drop::Restore),
    Export(export::Options),
    Import(import::Options),
    Compact(compact::Options),
    Forget(forget::Options),
    Tag(tag::Tag),
    Hold(tag::HoldArgs),
}

pub(crate) async fn run(
    command: Command,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    match command {
        Command::Ls(options) => ls::run(options, global, output).await,
        Command::Show(options) => show::run(options, global, output).await,
        Command::Replay(options) => replay_drop::replay(options, global, output).await,
        Command::Drop(options) => replay_drop::drop(options, global, output).await,
        Command::Restore(options) => replay_drop::restore(options, global, output).await,
        Command::Export(options) => export::run(options, global, output).await,
        Command::Import(options) => import::run(options, global, output).await,
        Command::Compact(options) => compact::run(options, global, output).await,
        Command::Forget(options) => forget::run(options, global, output).await,
        Command::Tag(options) => tag::tag(options, global, output).await,
        Command::Hold(options) => tag::hold(options, global, output).await,
    }
}
