//! `retryrmq waiting flush` and `cancel`: back to the queue now, or out into the parking queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use clap::Args;
use retryrmq::{
    Client, WaitingMessage, WaitingQueue, WaitingWalk, format_duration, parking_queue,
    terminal_escape,
};
use retryrmq_operator::plural;
use serde_json::json;

use super::{
    MOST_PASSES, MoveAction, QueueArgs, check_delivery_count, held, held_in,
    selection::{self, WaitingSelection},
    store::{PolicyStore, StoredMessage},
};
use crate::{
    error::CliError, exit::Exit, global::Global, line_printer::LinePrinter, output::Output, prompt,
    shutdown::Shutdown,
};

/// How many messages a batch moves.
const AT_A_TIME: usize = 64;

/// Bring messages back now, to the tail of their queue
///
/// Each is published as a copy; once that is confirmed, the waiting one is removed. Count, history and headers stay as they are.
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "retryrmq waiting flush [OPTIONS] <QUEUE> <--all|--id <ID>...|--waits <DURATION>>",
    after_help = EXAMPLES
)]
pub(crate) struct Flush {
    #[command(flatten)]
    queue_args: QueueArgs,

    /// All of them
    #[arg(long, conflicts_with_all = ["ids", "waits"])]
    all: bool,

    /// This one: its message id, or # and its mark; may be given several times
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,

    /// What waits for this long in all
    #[arg(long, value_name = "DURATION", conflicts_with = "ids")]
    waits: Option<String>,

    #[command(flatten)]
    args: MoveArgs,
}

/// Take messages out: they are parked as `requested`, with their record
///
/// Nothing is destroyed: `retryrmq parked replay` brings them back, `retryrmq parked drop` ends them.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq waiting cancel [OPTIONS] <QUEUE> --id <ID>...", after_help = EXAMPLES)]
pub(crate) struct Cancel {
    #[command(flatten)]
    queue_args: QueueArgs,

    /// This one: its message id, or # and its mark; may be given several times
    #[arg(long = "id", value_name = "ID", required = true)]
    ids: Vec<String>,

    #[command(flatten)]
    args: MoveArgs,
}

#[derive(Clone, Debug, Args)]
struct MoveArgs {
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq waiting flush orders --all
  retryrmq waiting flush orders --waits 5m --yes
  retryrmq waiting cancel orders --id 4711

Messages that are held here do not come back by themselves. If this is killed, nothing is
lost: what was being moved in that moment is in both places, and comes twice. To find one
message by its id, the others are looked at, see `retryrmq waiting ls --help`. A message
that came back before it was found is not found.

With --store, what `retryrmq serve` keeps in Redis is meant, too. `flush` makes it due now,
and a running service brings it back. `cancel` parks it, as what waits in the broker. If it
cannot rule out that a parked message comes back as well, the exit code is 1.

JSON: a line for each message with id, mark, outcome (flushed, cancelled, failed) and error.";

pub(super) async fn flush(
    options: Flush,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let waiting_selection = match (options.all || options.waits.is_some(), options.ids) {
        (true, _) => WaitingSelection::All,
        (false, ids) if !ids.is_empty() => WaitingSelection::Ids(ids),
        _ => {
            return Err(CliError::usage(
                "which messages are to come back? Pass --all, --id ID or --waits DURATION",
            ));
        }
    };
    let waits = options
        .waits
        .as_deref()
        .map(retryrmq::parse_duration)
        .transpose()?;
    let only = |delay: Duration| waits.is_none_or(|waits| delay == waits);
    act(
        &options.queue_args,
        &waiting_selection,
        only,
        MoveAction::Flush,
        options.args.yes,
        global,
        output,
    )
    .await
}

pub(super) async fn cancel(
    options: Cancel,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let waiting_selection = WaitingSelection::Ids(options.ids);
    act(
        &options.queue_args,
        &waiting_selection,
        |_| true,
        MoveAction::Cancel,
        options.args.yes,
        global,
        output,
    )
    .await
}

async fn act(
    queue_args: &QueueArgs,
    waiting_selection: &WaitingSelection,
    only: impl Fn(Duration) -> bool,
    action: MoveAction,
    sure: bool,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let client = global.connect().await?;
    let mut is_cut = false;
    let work = async {
        let mut waiting_queues = queue_args.waiting_queues(&client).await?;
        waiting_queues.retain(|waiting_queue| only(waiting_queue.delay));
        let stored = match queue_args.policy_store() {
            Some(store) => {
                let mut messages = store.list(global).await?;
                messages.retain(|message| {
                    let delay = Duration::from_millis(message.delay_ms);
                    only(delay) && waiting_selection.takes_stored(message)
                });
                Some((store, messages))
            }
            None => None,
        };
        let others = held(&waiting_queues);
        waiting_queues.retain(|waiting_queue| waiting_queue.messages > 0);
        let in_broker: u64 = waiting_queues
            .iter()
            .map(|waiting_queue| u64::from(waiting_queue.messages))
            .sum();
        let in_store = stored.as_ref().map_or(0, |(_, messages)| messages.len());
        let all = in_broker + in_store as u64;
        if all == 0 {
            if let Some(others) = others {
                return Err(CliError::held(others));
            }
            return Err(CliError::not_found(format!(
                "nothing waits for {} that was asked for{}",
                queue_args.queue,
                queue_args.unseen(&client).await
            )));
        }
        if !sure
            && !prompt::agreed(&action.question(
                waiting_selection,
                (in_broker, in_store),
                &waiting_queues,
                &queue_args.queue,
            ))
            .await?
        {
            output.note("nothing was done");
            return Ok(Exit::Ok);
        }
        let mut moving = MoveRun::of(queue_args, waiting_selection, action, (all, others), output)?;
        let mut moved = moving.through(&client, &waiting_queues).await;
        if let Some((store, messages)) = &stored
            && moved.is_ok()
            && !moving.is_over()
        {
            moved = moving.through_store(store, messages, global).await;
        }
        is_cut = moving.is_cut;
        moving.end(moved, output)
    };
    let done = work.await;
    if !is_cut {
        client.close().await; // which would wait for what was cut short
    }
    done
}

impl MoveAction {
    fn question(
        self,
        waiting_selection: &WaitingSelection,
        (in_broker, in_store): (u64, usize),
        waiting_queues: &[WaitingQueue],
        queue: &str,
    ) -> String {
        let queue = terminal_escape::line(queue);
        let which = match waiting_selection {
            WaitingSelection::All => {
                let all = in_broker + in_store as u64;
                let stored = (in_store > 0).then(|| format!("{in_store} in the store"));
                let mut places = delays(waiting_queues);
                places.extend(stored);
                let wait = plural::word(all, "waits", "wait");
                format!(
                    "{} that {wait} ({})",
                    plural::messages(all),
                    places.join(", ")
                )
            }
            WaitingSelection::Ids(ids) => {
                format!("what is named {}", terminal_escape::line(&ids.join(", ")))
            }
        };
        match self {
            Self::Flush => format!("Bring back now to {queue}: {which}?"),
            Self::Cancel => format!(
                "Park in {} instead of bringing back: {which}?",
                terminal_escape::line(&parking_queue(&queue))
            ),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Flush => "flushed",
            Self::Cancel => "cancelled",
        }
    }
}

fn delays(waiting_queues: &[WaitingQueue]) -> Vec<String> {
    waiting_queues
        .iter()
        .map(|waiting_queue| format_duration(waiting_queue.delay))
        .collect()
}

/// What is being done, and how far it is.
struct MoveRun<'a> {
    queue: &'a str,
    waiting_selection: &'a WaitingSelection,
    action: MoveAction,
    output: &'a Output,
    printer: LinePrinter,
    bar: indicatif::ProgressBar,
    shutdown: Shutdown,
    /// Copies were on their way when we ended, and a broker with an alarm did not answer.
    is_cut: bool,
    /// What to say of others who look, and hold messages that are not to be seen.
    others: Option<String>,
    /// The ids that were found.
    found: BTreeSet<String>,
    moved: u64,
    /// How many messages of the store are due now. A service brings them back.
    hastened: u64,
    failed: u64,
    /// Why the first one of the store was not moved.
    store_refusal: Option<String>,
    /// How many messages of the store are parked, and may come back as well.
    twice: u64,
    skipped: u64,
    /// Nothing more can be moved.
    halted: bool,
    /// The first failure decides how the command ends.
    why: Option<retryrmq::Error>,
}

impl<'a> MoveRun<'a> {
    fn of(
        queue_args: &'a QueueArgs,
        waiting_selection: &'a WaitingSelection,
        action: MoveAction,
        (all, others): (u64, Option<String>),
        output: &'a Output,
    ) -> Result<Self, CliError> {
        Ok(Self {
            queue: &queue_args.queue,
            waiting_selection,
            action,
            output,
            printer: LinePrinter::default(),
            bar: output.progress(Some(all), "messages"),
            shutdown: Shutdown::listen()?,
            is_cut: false,
            others,
            found: BTreeSet::new(),
            moved: 0,
            hastened: 0,
            failed: 0,
            store_refusal: None,
            twice: 0,
            skipped: 0,
            halted: false,
            why: None,
        })
    }

    async fn through(
        &mut self,
        client: &Client,
        waiting_queues: &[WaitingQueue],
    ) -> Result<(), CliError> {
        for waiting_queue in waiting_queues {
            if self.is_over() {
                break;
            }
            let mut walk = client.waiting(self.queue).walk_queue(waiting_queue).await?;
            let walked = self.walk(&mut walk, waiting_queue).await;
            self.skipped += u64::from(walk.skipped());
            if walk.others() > 0 {
                self.others.get_or_insert_with(|| held_in(waiting_queue));
            }
            let closed = walk.close().await;
            walked?;
            closed?;
        }
        Ok(())
    }

    /// The same with what waits in the service's store: its program does it.
    async fn through_store(
        &mut self,
        store: &PolicyStore,
        stored: &[StoredMessage],
        global: &Global,
    ) -> Result<(), CliError> {
        let by_id: BTreeMap<_, _> = stored
            .iter()
            .map(|message| (message.id.as_str(), message))
            .collect();
        let ids: Vec<_> = stored.iter().map(|message| message.id.as_str()).collect();
        if ids.is_empty() {
            return Ok(());
        }
        let asked = store
            .move_messages(self.action, &ids, &self.shutdown, global)
            .await?;
        self.is_cut |= asked.is_cut;
        for answer in asked.answers {
            let Some(message) = by_id.get(answer.id.as_str()) else {
                continue;
            };
            self.bar.inc(1);
            let is_gone = answer.outcome == "gone";
            let is_done = ["flushed", "parked"].contains(&answer.outcome.as_str());
            if self.output.is_json() && !is_gone {
                let outcome = if is_done {
                    self.action.word()
                } else {
                    "failed"
                };
                let line = json!({"id": message.name(), "mark": message.mark(), "outcome": outcome, "error": answer.error});
                self.printer.hears(|| self.output.json_line(&line));
            }
            if is_gone {
                continue;
            }
            self.found
                .extend(self.waiting_selection.names_stored(message));
            match (is_done, self.action) {
                (true, action) => {
                    match action {
                        MoveAction::Flush => self.hastened += 1,
                        MoveAction::Cancel => self.moved += 1,
                    }
                    if let Some(but) = answer.error {
                        self.output.note(&format!("{}: {but}", message.name()));
                        self.twice += 1;
                    }
                }
                (false, _) => {
                    self.failed += 1;
                    let why = answer.error.unwrap_or_default();
                    self.store_refusal.get_or_insert(why);
                }
            }
        }
        asked.failure.map_or(Ok(()), Err)
    }

    fn is_over(&self) -> bool {
        self.shutdown.is_set() || self.halted
    }

    async fn walk(
        &mut self,
        walk: &mut WaitingWalk,
        waiting_queue: &WaitingQueue,
    ) -> Result<(), CliError> {
        let mut batch = Vec::with_capacity(AT_A_TIME);
        while !self.is_over() {
            let next = walk.next().await;
            let is_end = !matches!(next, Ok(Some(_)));
            if let Ok(Some(waiting_message)) = &next {
                self.bar.inc(1);
                if self.waiting_selection.takes(waiting_message) {
                    self.found
                        .extend(self.waiting_selection.names(waiting_message));
                    batch.push(waiting_message.clone());
                } else {
                    check_delivery_count(waiting_message, waiting_queue, MOST_PASSES)?;
                }
            }
            if is_end || batch.len() == AT_A_TIME {
                self.send(walk, &batch).await?;
                batch.clear();
            }
            if next?.is_none() {
                break;
            }
        }
        Ok(())
    }

    async fn send(
        &mut self,
        walk: &mut WaitingWalk,
        batch: &[WaitingMessage],
    ) -> Result<(), CliError> {
        let sent = async {
            match self.action {
                MoveAction::Flush => walk.flush(batch).await,
                MoveAction::Cancel => walk.cancel(batch).await,
            }
        };
        let Some(results) = self.shutdown.unless_cut(sent).await else {
            self.is_cut = true;
            return Ok(());
        };
        for (waiting_message, result) in batch.iter().zip(results) {
            let why = result.as_ref().err().map(ToString::to_string);
            if self.output.is_json() {
                let outcome = if why.is_none() {
                    self.action.word()
                } else {
                    "failed"
                };
                let line = json!({
                    "id": selection::name(waiting_message), "mark": waiting_message.mark, "outcome": outcome, "error": why,
                });
                self.printer.hears(|| self.output.json_line(&line));
            }
            match result {
                Ok(()) => self.moved += 1,
                Err(error) => {
                    self.failed += 1;
                    // What cannot be moved at all must not hold up the others.
                    self.halted |= !error.is_permanent();
                    self.why.get_or_insert(error);
                }
            }
        }
        Ok(())
    }

    fn end(self, walked: Result<(), CliError>, output: &Output) -> Result<Exit, CliError> {
        self.bar.finish_and_clear();
        let queue_args = match self.action {
            MoveAction::Flush => format!("back in {}", self.queue),
            MoveAction::Cancel => format!("taken out into {}", parking_queue(self.queue)),
        };
        let moved = format!("{} {queue_args}", plural::messages(self.moved));
        let hastened = format!(
            "{} of the store due now, which `retryrmq serve` brings back",
            plural::messages(self.hastened)
        );
        let summary = match (self.moved, self.hastened) {
            (_, 0) => moved,
            (0, _) => hastened,
            _ => format!("{moved}, {hastened}"),
        };
        match self.skipped {
            0 => {}
            1 => output.note(
                "1 message was passed over: it has names that are not UTF-8, no whole copy can be made of it, and it comes back by itself",
            ),
            skipped => output.note(&format!(
                "{skipped} messages were passed over: they have names that are not UTF-8, no whole copy can be made of them, and they come back by \
                 themselves"
            )),
        }
        let why = self.why.map(|error| CliError::from(error).on_the_way());
        let refusal = self.store_refusal.map(CliError::failed);
        let twice = (self.twice > 0).then(|| {
            let are = plural::word(self.twice, "is", "are");
            let messages = plural::messages(self.twice);
            CliError::failed(format!(
                "{messages} of the store {are} parked, and may come back as well"
            ))
        });
        let failure = walked.err().or(why).or(refusal).or(twice);
        if let Some(cli_error) = failure {
            let still = if self.failed > 0 {
                format!(", {} could not be moved and wait as before", self.failed)
            } else {
                String::new()
            };
            return Err(cli_error.after(&format!("{summary}{still}")));
        }
        if self.shutdown.is_set() {
            let perhaps = match self.is_cut {
                true => ", and perhaps some more",
                false => "",
            };
            output.note(&format!(
                "interrupted: {summary}{perhaps}, the others wait as before"
            ));
            return Ok(Exit::Interrupted);
        }
        self.printer.end(
            (self.action.word(), self.moved + self.hastened),
            false,
            &summary,
            output,
        )?;
        let missing = self.waiting_selection.missing(&self.found);
        match (missing, self.others) {
            (Some(missing), Some(others)) => Err(CliError::held(format!(
                "no message {missing} among those that are to be seen; {others}; {summary}"
            ))),
            (Some(missing), None) => Err(CliError::not_found(format!(
                "no message {missing} waits for {}: it may be back, or parked; {summary}",
                self.queue
            ))),
            (None, Some(others)) if matches!(self.waiting_selection, WaitingSelection::All) => {
                output.note(&summary);
                if output.is_json() {
                    return Err(CliError::held(others));
                }
                output.note(&others);
                Ok(Exit::Held)
            }
            (None, _) if self.moved + self.hastened == 0 => Err(CliError::not_found(format!(
                "nothing that was asked for waits for {} any more: it may be back, or parked",
                self.queue
            ))),
            (None, _) => {
                output.note(&summary);
                Ok(Exit::Ok)
            }
        }
    }
}
