//! `retryrmq parked`: what was given up, why, and what to do about it.

mod body;
mod every;
mod filter;
mod foreign;
mod ls;
mod order;
mod others;
mod place;
mod reading;
mod record;
mod selection;
mod settle;
mod show;
mod stop;
mod tally;

use clap::Subcommand;

use crate::{exit::Exit, fault::Fault, global::Global, output::Output};

/// Look at parked messages, replay them or drop them
///
/// What our consumers parked for a queue, or, with --dlq, any dead-letter queue. Looking spends nothing: every message is there afterwards. While one looks, others see the messages being looked at as
/// unacknowledged. Ctrl-C, SIGTERM and SIGHUP end it in good order.
#[derive(Clone, Debug, Subcommand)]
#[command(override_usage = "retryrmq parked [OPTIONS] <COMMAND>")]
pub(crate) enum Command {
    Ls(ls::Options),
    Show(show::Options),
    Replay(settle::Replay),
    Drop(settle::Drop),
}

pub(crate) async fn run(command: Command, global: &Global, output: &Output) -> Result<Exit, Fault> {
    match command {
        Command::Ls(options) => ls::run(options, global, output).await,
        Command::Show(options) => show::run(options, global, output).await,
        Command::Replay(options) => settle::replay(options, global, output).await,
        Command::Drop(options) => settle::drop(options, global, output).await,
    }
}
