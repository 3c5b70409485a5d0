//! `retryrmq parked forget`.

use std::collections::BTreeMap;

use clap::{ArgGroup, Args};
use retryrmq::{Client, ErrorKind, Parked, Record, parse_duration, waiting_queue};
use retryrmq_operator::plural;
use serde_json::{Value, json};

use super::{
    audit::{Audit, AuditLog},
    canary,
    decode_args::DecodeArgs,
    filter::FilterArgs,
    foreign,
    notes::{Notes, OnHiddenHold},
    other_consumers::OtherConsumers,
    record,
    selection::{Selection, SelectionArgs},
    sort::SortedWalk,
    target,
};
use crate::{
    error::CliError, exit::Exit, global::Global, line_printer::LinePrinter, output::Output, prompt,
    shutdown::Shutdown,
};
use retryrmq::terminal_escape;

/// Erase messages for good, parked and waiting for a retry: what a person may ask for
///
/// Looks through the parking queue, what was dropped from it, and all waiting queues; with --dlq through that dead-letter queue, and
/// what was dropped from it. What is ready in the work
/// queue itself, or with a consumer, is not touched: look there as well, or run this again when those are done. Nor is what a service
/// keeps in Redis: `retryrmq serve --waiting` lists that, and `--cancel` erases it.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq parked forget [OPTIONS] <QUEUE> <--id <ID>|--fingerprint <HEX>|--where <CONDITION>|…>", after_help = EXAMPLES)]
#[command(group = ArgGroup::new("what").required(true).multiple(true).args([
    "ids", "fingerprint", "since", "error", "error_type", "routing_key", "header", "condition",
]))]
pub(crate) struct Options {
    /// The queue (its own name, not that of the parking queue)
    queue: String,

    /// QUEUE is a dead-letter queue itself, whoever fills it: the broker, MassTransit, NServiceBus, Spring, Celery, Dramatiq, Watermill, …
    #[arg(long)]
    dlq: bool,

    /// Messages with this id, all of them; may be given several times
    #[arg(long = "id", value_name = "ID")]
    ids: Vec<String>,

    /// Those whose failures are alike: the whole fingerprint
    #[arg(long, value_name = "HEX")]
    fingerprint: Option<String>,

    #[command(flatten)]
    filter_args: FilterArgs,

    #[command(flatten)]
    reading: DecodeArgs,

    /// Look also through the waiting queue of this delay, of a policy of your own; may be given several times
    #[arg(long = "delay", value_name = "DURATION")]
    delays: Vec<String>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,

    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    log: AuditLog,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked forget orders --id order-17 --dry-run
  retryrmq parked forget orders --id order-17 --yes --audit forgotten.jsonl
  retryrmq parked forget orders --where 'body.customer.id == 7'
  retryrmq parked forget orders_error --dlq --where 'body.customer.id == 7'

To reach one message that waits, all messages in its waiting queue are looked at for
a moment. They keep their order and their time. Where the broker would count one more
look as a crash, it looks no further, and says so, with what was erased by then.
Waiting queues are found by their names: those of the default policy and of common
delays; name others with --delay. It says which it looked through.

JSON: a line for each message, with what `parked ls` tells of it, from (the queue) and
forgotten (false in a dry run). Never its body: that is what is to be erased. What was
written of a failure (error) is told, and may quote the message.";

/// The marks of messages, and how many have each: equal ones share it.
type Marks = BTreeMap<String, u32>;

/// How often a message may have been given back: three are a suspected crash. A question takes a look of its own.
const MOST: u32 = 2;

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    if !(options.yes || options.dry_run || prompt::can_ask()) {
        return Err(CliError::usage(
            "forgotten messages are gone for good: pass --yes, or look first with --dry-run",
        ));
    }
    if options
        .fingerprint
        .as_ref()
        .is_some_and(|all| all.len() != 16)
    {
        return Err(CliError::usage(
            "--fingerprint is the whole of it here, 16 hexadecimal digits, as `parked show` tells it",
        ));
    }
    // Nobody knows which queues are waiting queues of a dead-letter queue that is not ours.
    let work = target::family(&options.queue, options.dlq);
    if work.is_none() && !options.delays.is_empty() {
        return Err(CliError::usage(
            "--delay names a waiting queue of a work queue, and with --dlq the dead-letter queue alone is looked through: pass --delay with the name of the work queue, without --dlq",
        ));
    }
    if work.is_some() && options.filter_args.goes_by_parking() {
        return Err(CliError::usage(
            "--since goes by when a message was parked, and what waits was not: pass --where with something of the message itself",
        ));
    }
    let alike = options.fingerprint.is_some() || !options.filter_args.is_empty();
    if alike && !options.ids.is_empty() {
        return Err(CliError::usage(
            "--id names messages one by one: say either that, or what they have in common",
        ));
    }
    let words = if alike {
        SelectionArgs::every(
            options.fingerprint.clone(),
            None,
            options.filter_args.clone(),
            options.reading.clone(),
        )
    } else {
        SelectionArgs::ids(&options.ids)
    };
    let mut selection = words.read()?;
    if options.yes && !options.dry_run {
        selection.refuse_guesses()?;
    }
    let own = options.delays.iter().map(|text| {
        let delay = parse_duration(text);
        let delay = delay.map_err(|why| CliError::usage(format!("--delay: {why}")))?;
        Ok(waiting_queue(work.unwrap_or_default(), delay))
    });
    let own = own.collect::<Result<Vec<_>, CliError>>()?;
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    let notes = if alike && !selection.wants_a_fingerprint() {
        let unseen = match options.dry_run {
            true => OnHiddenHold::IsTold,
            false => OnHiddenHold::Refuses,
        };
        Notes::unless_cut(&shutdown, &client, work, unseen).await?
    } else {
        Some(Notes::default())
    };
    let Some(notes) = notes else {
        return Ok(Exit::Interrupted);
    };
    let parked = target::parked(&client, &options.queue, options.dlq);
    let mut waiting_queues = match work {
        Some(work) => canary::family(&client, work).await?.split_off(1), // without the work queue
        None => Vec::new(),
    };
    waiting_queues.extend(own);
    waiting_queues.sort_unstable();
    waiting_queues.dedup();
    let mut forget = Forget {
        client: &client,
        parked: &parked,
        waiting_queues: &waiting_queues,
        notes,
        audit: None,
        output,
        printer: LinePrinter::default(),
        found: false,
        forgotten: (0, 0),
        agreed: 0,
    };
    // Also what was dropped, and is kept for a while.
    let dropped = parked.dropped();
    let depths = client.depths(&[parked.name(), dropped.name()]).await;
    let depths = match depths {
        // The name with `.dropped` is longer than a name can be, so that there is no such queue.
        Err(error) if error.kind() == ErrorKind::TooLarge => {
            client.depths(&[parked.name()]).await?
        }
        depths => depths?,
    };
    if work.is_none() && depths.first() == Some(&None) {
        client.close().await;
        return Err(CliError::not_found(format!(
            "there is no queue `{}`",
            terminal_escape::line(&parked.name())
        )));
    }
    let mut walks = Vec::new();
    for (parked, depth) in [&parked, &dropped].into_iter().zip(depths) {
        if depth.is_none() {
            continue; // nothing was ever parked, or dropped
        }
        match SortedWalk::open(parked, true, shutdown.clone()).await? {
            Some(walk) => walks.push(walk),
            None => return Ok(Exit::Interrupted),
        }
    }
    let queues = walks.iter().map(|walk| walk.name().to_owned());
    let mut queues: Vec<_> = queues.collect();
    if queues.is_empty() {
        queues.push(parked.name());
    }
    let done = forget.all(&options, walks, &mut selection, &shutdown).await;
    client.close().await;
    let (found, (from_parking, from_waiting)) = (forget.found, forget.forgotten);
    let (agreed, printer) = (forget.agreed, forget.printer);
    let would = if options.dry_run { "would be " } else { "" };
    let count = from_parking + from_waiting;
    let summary = format!(
        "{} {would}forgotten: {from_parking} parked, {from_waiting} waiting",
        plural::messages(count)
    );
    let names = |queues: &[String]| {
        let names: Vec<_> = queues
            .iter()
            .map(|name| terminal_escape::line(name))
            .collect();
        names.join(", ")
    };
    let looked = format!(
        "looked through {} and {} waiting {}{}{}",
        names(&queues),
        waiting_queues.len(),
        plural::word(waiting_queues.len() as u64, "queue", "queues"),
        if waiting_queues.is_empty() { "" } else { ": " },
        names(&waiting_queues)
    );
    done.map_err(|cli_error| cli_error.after(&summary))?;
    selection.report_unevaluated(output);
    output.note(&looked);
    if shutdown.is_set() {
        output.note(&summary);
        return Ok(Exit::Interrupted);
    }
    printer.end(("forgotten", count), options.dry_run, &summary, output)?;
    if from_waiting < agreed {
        return Err(CliError::not_found(format!(
            "{} that waited when you were asked {} come back to {} queue since: run this again; {summary}",
            plural::messages(agreed - from_waiting),
            plural::word(agreed - from_waiting, "has", "have"),
            plural::word(agreed - from_waiting, "its", "their")
        )));
    }
    // A filter that finds nothing was not meant so.
    let described = selection.described().to_owned();
    let unmatched = (!found && selection.is_a_filter()).then_some(described);
    if let Some(missing) = selection.missing().or(unmatched) {
        let place = match work {
            Some(work) => format!("is parked or waits for {}", terminal_escape::line(work)),
            None => format!("is in {}", terminal_escape::line(&options.queue)),
        };
        return Err(CliError::not_found(format!(
            "no message {missing} {place}; {summary}"
        )));
    }
    output.note(&summary);
    Ok(Exit::Ok)
}

struct Forget<'a> {
    client: &'a Client,
    parked: &'a Parked,
    waiting_queues: &'a [String],
    /// What is on hold, unless the messages are named.
    notes: Notes,
    audit: Option<Audit>,
    output: &'a Output,
    printer: LinePrinter,
    /// Any was chosen, whatever became of it.
    found: bool,
    /// From the parking queue, and from waiting queues.
    forgotten: (u64, u64),
    /// How many of those that wait somebody agreed to.
    agreed: u64,
}

impl Forget<'_> {
    async fn all(
        &mut self,
        options: &Options,
        mut walks: Vec<SortedWalk>,
        selection: &mut Selection,
        shutdown: &Shutdown,
    ) -> Result<(), CliError> {
        let work = async {
            let mut chosen = Vec::new();
            for (number, walk) in walks.iter_mut().enumerate() {
                let of_it = self.chosen(walk, selection).await?;
                chosen.extend(
                    of_it
                        .into_iter()
                        .map(|(record, line)| (number, record, line)),
                );
            }
            self.found = !chosen.is_empty();
            let asks = !(options.yes || options.dry_run);
            let marks = if asks || options.dry_run || self.notes.hold_any() {
                // A look for the question, or for what is on hold, and one for the real action.
                let most = if options.dry_run { MOST } else { MOST - 1 };
                let (waiting, marks) = self.waiting(selection, None, most, shutdown).await?;
                let count = chosen.len() + waiting;
                if options.dry_run {
                    self.forgotten = (chosen.len() as u64, waiting as u64);
                    for (.., line) in chosen {
                        self.print(line, false);
                    }
                    return Ok(());
                }
                if asks {
                    if count == 0
                        || !agreed(&options.queue, chosen.len(), waiting, shutdown).await?
                    {
                        return Ok(());
                    }
                    self.agreed = waiting as u64;
                }
                asks.then_some(marks)
            } else {
                None
            };
            let log = Some(&options.log);
            self.audit =
                Audit::open(log, (self.client, shutdown), "forget", &options.queue).await?;
            // First where it may be refused. Exactly those that the question named.
            self.waiting(selection, Some(marks), MOST, shutdown).await?;
            for (number, record, line) in chosen {
                if shutdown.is_set() {
                    break;
                }
                let walk = &mut walks[number];
                let name = walk.name().to_owned();
                self.write_down(&record, &name).await?;
                if walk.drop(&record).await? {
                    self.forgotten.0 += 1;
                    self.print(line, true);
                }
            }
            Ok::<_, CliError>(())
        };
        let mut done = work.await;
        for walk in walks {
            done = walk.close_after(done).await;
        }
        done
    }

    /// Those in the queue of a walk, which holds them, and the line that tells of each. No body is kept: it is what is to be
    /// erased, and there may be very many.
    async fn chosen(
        &self,
        walk: &mut SortedWalk,
        selection: &mut Selection,
    ) -> Result<Vec<(Record, Option<Value>)>, CliError> {
        let mut chosen = Vec::new();
        while let Some((place, record)) = walk.next().await? {
            if selection.takes(place, &record, walk.parking()) {
                let line = self.line(place, &record, walk.name());
                chosen.push((record.without_body(), line));
            }
        }
        let held = |(record, _): &&(Record, Option<Value>)| self.notes.holds(&record.fingerprint);
        let on_hold = chosen.iter().filter(held).count();
        if on_hold > 0 && !walk.is_stopped() {
            let are = plural::word(on_hold as u64, "is", "are");
            return Err(on_hold_are(&format!("{on_hold} of these messages {are}")));
        }
        let others = OtherConsumers::of(&walk.browse);
        if others.hold() && !walk.is_stopped() {
            return Err(CliError::held(format!(
                "nothing was forgotten, because a message that is not to be seen may be meant: {}",
                others.sentence(walk.name())
            )));
        }
        Ok(chosen)
    }

    /// Goes through the waiting queues: only looks, and returns how many and the marks of those that are meant; or erases them, of these only.
    async fn waiting(
        &mut self,
        selection: &mut Selection,
        mut erase: Option<Option<Marks>>,
        most: u32,
        shutdown: &Shutdown,
    ) -> Result<(usize, Marks), CliError> {
        let (mut count, mut marks) = (0, Marks::new());
        for waiting_queue in self.waiting_queues {
            if shutdown.is_set() {
                break;
            }
            let Some(mut walk) = self.parked.erase_walk(waiting_queue, most).await? else {
                continue;
            };
            if walk.others() > 0 {
                walk.close().await?;
                return Err(held_in(waiting_queue));
            }
            let work = async {
                while !shutdown.is_set()
                    && let Some(record) = walk.next().await?
                {
                    if !selection.takes(usize::MAX, &record, waiting_queue) {
                        continue;
                    }
                    self.found = true;
                    let is_on_hold = self.notes.holds(&record.fingerprint);
                    // What is on hold has come since the look, or is in another group by now.
                    let is_meant = !is_on_hold
                        && match &mut erase {
                            Some(Some(only)) => take_one(only, &record.mark),
                            _ => true,
                        };
                    match &erase {
                        None if is_on_hold => return Err(on_hold_are("one that waits is")),
                        None => {
                            count += 1;
                            *marks.entry(record.mark.clone()).or_default() += 1;
                        }
                        Some(_) if !is_meant => {}
                        Some(_) => {
                            self.write_down(&record, waiting_queue).await?;
                            walk.erase(&record).await?;
                            self.forgotten.1 += 1;
                            let line = self.line(0, &record, waiting_queue);
                            self.print(line, true);
                        }
                    }
                }
                Ok::<_, CliError>(())
            };
            let done = work.await;
            let others = walk.others();
            let closed = walk.close().await;
            done?;
            closed?;
            if others > 0 && !shutdown.is_set() {
                return Err(held_in(waiting_queue));
            }
        }
        Ok((count, marks))
    }

    async fn write_down(&mut self, record: &Record, from: &str) -> Result<(), CliError> {
        let Some(audit) = &mut self.audit else {
            return Ok(());
        };
        let mut line = audit.of("forgotten", record, None);
        line["from"] = json!(from);
        let done = "what it does not name was not forgotten";
        audit.append(&[line], done).await
    }

    /// What tells of a message, for programs: what `parked ls` tells of it, and so never its body. Without a place it waits.
    fn line(&self, place: usize, record: &Record, from: &str) -> Option<Value> {
        if !self.output.is_json() {
            return None;
        }
        let letter = foreign::of(record, from);
        let mut line = record::summary(place, record, letter.as_ref());
        if place == 0 {
            line["place"] = Value::Null;
        }
        line["from"] = json!(from);
        Some(line)
    }

    fn print(&mut self, line: Option<Value>, done: bool) {
        let Some(mut line) = line else { return };
        line["forgotten"] = json!(done);
        self.printer.hears(|| self.output.json_line(&line));
    }
}

/// Why nothing is forgotten of a group that is to be left alone.
fn on_hold_are(which: &str) -> CliError {
    CliError::usage(format!(
        "nothing was forgotten, because {which} on hold (`parked ls --group` says why): end that with `parked hold --release`, or name \
         what is meant by --id or --fingerprint"
    ))
}

/// Why nothing is forgotten while somebody looks at a waiting queue.
fn held_in(waiting_queue: &str) -> CliError {
    CliError::held(format!(
        "nothing more was forgotten, because a message that is not to be seen may be meant: somebody looks at {}; try again when they are done",
        terminal_escape::line(waiting_queue)
    ))
}

/// Whether one with this mark is left.
fn take_one(marks: &mut Marks, mark: &str) -> bool {
    let left = marks.get_mut(mark).filter(|left| **left > 0);
    left.map(|left| *left -= 1).is_some()
}

async fn agreed(
    queue: &str,
    parked: usize,
    waiting: usize,
    shutdown: &Shutdown,
) -> Result<bool, CliError> {
    let question = format!(
        "Forget {} of {} for good, {parked} parked and {waiting} waiting?",
        plural::messages((parked + waiting) as u64),
        terminal_escape::line(queue)
    );
    let mut shutdown = shutdown.clone();
    tokio::select! {
        agreed = prompt::agrees(&question) => agreed,
        () = shutdown.wait() => Ok(false),
    }
}
