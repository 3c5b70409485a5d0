//! `retryrmq waiting`: what waits for its retry, brought back now or taken out.

mod flush_cancel;
mod ls;
mod selection;
mod show;
mod store;

use std::path::PathBuf;

use clap::{Args, Subcommand};
use retryrmq::{
    Client, HANDOVER_QUEUE, INTAKE_QUEUE, Policy, WaitingMessage, WaitingQueue, terminal_escape,
};

use store::PolicyStore;

use crate::{error::CliError, exit::Exit, global::Global, output::Output, retry_args};

/// Look at messages that wait for their retry, bring them back now, or take them out
///
/// It finds the waiting queues of the default policy, of the policies that --retry names, and of delays that handlers choose, and with
/// --store what waits in the store of the service. What the delayed-message plugin holds, and what a queue with the strategy `native` delays in itself, no client can see.
#[derive(Clone, Debug, Subcommand)]
#[command(override_usage = "retryrmq waiting [OPTIONS] <COMMAND>")]
pub(crate) enum Command {
    Ls(ls::Options),
    Show(show::Options),
    Flush(flush_cancel::Flush),
    Cancel(flush_cancel::Cancel),
}

pub(crate) async fn run(
    command: Command,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    match command {
        Command::Ls(options) => ls::run(options, global, output).await,
        Command::Show(options) => show::run(options, global, output).await,
        Command::Flush(options) => flush_cancel::flush(options, global, output).await,
        Command::Cancel(options) => flush_cancel::cancel(options, global, output).await,
    }
}

/// Where messages that wait are moved: back to their queue, or to the parking queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MoveAction {
    Flush,
    Cancel,
}

/// Whose messages.
#[derive(Clone, Debug, Args)]
struct QueueArgs {
    /// The queue that they come back to (its own name)
    queue: String,

    /// The policy of its consumers, where it is not the default; may be given several times
    #[arg(long, value_name = "POLICY")]
    retry: Vec<String>,

    /// The policy file of `retryrmq serve`, whose [store.redis] is also looked at
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
}

impl QueueArgs {
    fn policies(&self) -> Result<Vec<Policy>, CliError> {
        retry_args::policies(&self.retry)
    }

    /// The service's store, if it is named.
    fn policy_store(&self) -> Option<PolicyStore> {
        let file = self.store.clone()?;
        let queue = self.queue.clone();
        Some(PolicyStore { file, queue })
    }

    /// The waiting queues that exist. With a store there may be none.
    async fn waiting_queues(&self, client: &Client) -> Result<Vec<WaitingQueue>, CliError> {
        if let Some(work) = retryrmq::work_queue_of(&self.queue) {
            return Err(CliError::usage(format!(
                "{} is itself a queue in which messages of {work} wait or are parked: name {work}",
                self.queue
            )));
        }
        let waiting_queues = client.waiting(&self.queue).queues(self.policies()?).await?;
        if waiting_queues.is_empty() && self.store.is_none() {
            let unseen = unseen(client).await;
            return Err(CliError::not_found(format!(
                "there is no waiting queue of `{}` in the broker: check its name and the virtual host, or name the policy of its consumers with \
                 --retry{unseen}",
                self.queue
            )));
        }
        Ok(waiting_queues)
    }

    /// What to add to a sentence that says that nothing waits.
    async fn unseen(&self, client: &Client) -> String {
        match &self.store {
            Some(_) => String::new(),
            None => unseen(client).await,
        }
    }
}

/// Where messages may wait that were not looked for, because nobody named a store.
async fn unseen(client: &Client) -> String {
    let totals = client.queue_totals([INTAKE_QUEUE, HANDOVER_QUEUE]).await;
    let runs = totals.is_ok_and(|totals| {
        let mut known = totals.iter().filter_map(|total| total.as_ref().ok());
        known.any(|total| total.as_ref().is_some_and(|total| total.consumers > 0))
    });
    match runs {
        true => "; `retryrmq serve` runs here, and what it keeps in Redis was not looked for: name its policy file with --store".to_owned(),
        false => "; only the broker was asked, and what `retryrmq serve` keeps in Redis is seen with --store".to_owned(),
    }
}

/// What to say where somebody else looks at one of these waiting queues, and holds messages that are not to be seen.
fn held(waiting_queues: &[WaitingQueue]) -> Option<String> {
    let looked_at = waiting_queues
        .iter()
        .find(|waiting_queue| waiting_queue.consumers > 0);
    looked_at.map(held_in)
}

/// What to say where somebody else looks at this one.
fn held_in(waiting_queue: &WaitingQueue) -> String {
    format!(
        "somebody else looks at {}: what they hold is not seen here, try again when they are done",
        terminal_escape::line(&waiting_queue.name)
    )
}

/// As often may be looked at a message for nothing but to see it: at the third time it is a suspect, which runs alone.
const MOST_LOOKS: u32 = 2;
/// The most passes over a message while searching for another one: ten crashes would park it.
const MOST_PASSES: u32 = 7;

/// Refuses a further look at what was looked at so often: the broker's count makes it one that crashes its consumer.
fn check_delivery_count(
    waiting_message: &WaitingMessage,
    waiting_queue: &WaitingQueue,
    most: u32,
) -> Result<(), CliError> {
    if waiting_message.looks < most {
        return Ok(());
    }
    Err(CliError::failed(format!(
        "{} in {} has been read {} times while it waits, and this broker counts each read as a crash of its consumer: read it again when it has \
         come back, or `waiting flush --all`",
        selection::name(waiting_message),
        waiting_queue.name,
        waiting_message.looks
    )))
}
