//! `retryrmq parked ls`.

use std::{collections::HashMap, ops::Range, sync::Arc, time::SystemTime};

use clap::Args;
use retryrmq::{Client, ParkReason, Parked, Record};
use serde_json::json;

use super::{
    all_queues,
    decode_args::DecodeArgs,
    filter::{Filter, FilterArgs},
    foreign,
    message_ref::handle,
    notes::{NoteRow, Notes, OnHiddenHold},
    other_consumers::OtherConsumers,
    record,
    sort::SortedWalk,
    target,
};
use crate::{
    doctor,
    error::CliError,
    exit::Exit,
    global::Global,
    management::Management,
    output::{Color, Column, Output, PagedTable, TableCell, TextStyle},
    shutdown::Shutdown,
    time_format,
};
use retryrmq::terminal_escape;

/// List parked messages, oldest first
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq parked ls [OPTIONS] <QUEUE|--all-queues>", after_help = EXAMPLES)]
pub(crate) struct Options {
    /// The queue whose parked messages to list (its own name, not that of the parking queue)
    #[arg(required_unless_present = "all_queues")]
    queue: Option<String>,

    /// Every parking and dead-letter queue of the virtual host, one after the other; asks the management API for their names
    #[arg(long, conflicts_with_all = ["queue", "dlq"])]
    all_queues: bool,

    #[command(flatten)]
    management: Management,

    /// QUEUE is a dead-letter queue itself, whoever fills it: the broker, MassTransit, NServiceBus, Spring, Celery, Dramatiq, Watermill, …
    #[arg(long)]
    dlq: bool,

    /// List this many messages at most; 0 is all of them [default: 1000, and all with --group]
    #[arg(long, value_name = "N")]
    limit: Option<usize>,

    /// One line for each kind of failure, with counts, the most frequent first
    #[arg(long)]
    group: bool,

    /// Those whose failures are alike: the fingerprint, or its beginning, as the table shows it
    #[arg(long, value_name = "HEX", help_heading = "Choosing messages")]
    fingerprint: Option<String>,

    /// Those parked for this reason: exhausted, fatal, requested, delivery-limit, undecodable, expired, too-old,
    /// rejected, overflow or unknown
    #[arg(long, value_name = "REASON", help_heading = "Choosing messages")]
    reason: Option<String>,

    #[command(flatten)]
    filter_args: FilterArgs,

    #[command(flatten)]
    reading: DecodeArgs,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq parked ls orders
  retryrmq parked ls orders --group            which failures, and how often
  retryrmq parked ls orders --since 2h --error timeout
  retryrmq parked ls orders --fingerprint 36567b94
  retryrmq parked ls orders --where 'body.customer.id == 7'
  retryrmq parked ls orders --json | jq -r .message_id
  retryrmq parked ls orders_error --dlq        any dead-letter queue
  retryrmq parked ls --all-queues --group      everything that died here

The first column names a message for the other commands: #1=7c1e09ab.

JSON, one object a line: place, mark, message_id, parked_at, reason, by_broker,
attempts, error, error_type, fingerprint, exchange, routing_key, replays,
body_bytes, home (the queue it is replayed to, null where nobody knows), library
(who left it). With --group: count, fingerprint, reason, error, error_type,
first_parked_at, last_parked_at, example (place, mark, message_id), complete (false
where messages were not seen: --limit left them out, or others hold them), and about (note,
owner, hold, by, at) where `parked tag` wrote it. With --all-queues also
queue.";

impl Options {
    /// How many messages to list. A part of a group looks like all of it.
    fn most(&self) -> usize {
        match self.limit {
            Some(0) => usize::MAX,
            Some(limit) => limit,
            None if self.group => usize::MAX,
            None => 1_000,
        }
    }
}

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let decoding = Arc::new(options.reading.open()?);
    let mut filter = options.filter_args.read(
        options.fingerprint.as_deref(),
        options.reason.as_deref(),
        &options.reading,
        decoding,
    )?;
    let shutdown = Shutdown::listen()?;
    if let Some(queue) = options.queue.clone() {
        if options.management.is_given() {
            let management_client = options.management.open(global)?;
            doctor::warn_of_lost_parking(&queue, &management_client).await;
        }
        let client = global.connect().await?;
        let parked = target::parked(&client, &queue, options.dlq);
        let listed = one(&options, &mut filter, (&client, &parked), shutdown, output).await;
        client.close().await;
        filter.report_unevaluated(output);
        return Ok(listed?.0);
    }
    let names = all_queues::names(&options.management, global).await?;
    let client = global.connect().await?;
    let (mut exit, mut all) = (Exit::Ok, 0);
    let mut failed = None;
    for name in &names {
        if shutdown.is_set() {
            exit = Exit::Interrupted;
            break;
        }
        let parked = target::parked(&client, name, true);
        match one(
            &options,
            &mut filter,
            (&client, &parked),
            shutdown.clone(),
            output,
        )
        .await
        {
            Ok((Exit::Ok, seen)) => all += seen,
            Ok((other, seen)) => (exit, all) = (other, all + seen),
            Err(cli_error) if cli_error.is_closed_pipe() => return Err(cli_error),
            // It has gone meanwhile, or may not be read; the others can be.
            Err(cli_error) => {
                output.note(cli_error.sentence());
                failed.get_or_insert(cli_error);
            }
        }
    }
    client.close().await;
    filter.report_unevaluated(output);
    if let Some(cli_error) = failed {
        return Err(cli_error);
    }
    if exit == Exit::Ok {
        let count = names.len();
        if all == 0 && !filter.is_empty() {
            return Err(CliError::not_found(format!(
                "no dead letter like that; queues that were looked through: {count}"
            )));
        }
        let like = if filter.is_empty() { "" } else { " like that" };
        output.note(&format!(
            "{all} dead letters{like} listed; queues that were looked through: {count}"
        ));
    }
    Ok(exit)
}

/// Lists what is in one queue, and says how many messages it was.
async fn one(
    options: &Options,
    filter: &mut Filter,
    (client, parked): (&Client, &Parked),
    shutdown: Shutdown,
    output: &Output,
) -> Result<(Exit, usize), CliError> {
    let is_dlq = options.dlq || options.all_queues;
    let Some(mut walk) = SortedWalk::open(parked, is_dlq, shutdown.clone()).await? else {
        return Ok((Exit::Interrupted, 0));
    };
    let total = walk.browse.remaining();
    if total > 0 || !options.all_queues {
        warn_of(&walk);
    }
    let listed = match notes_of(options, client, &shutdown).await {
        Ok(Some(notes)) => list(options, (filter, &notes), &mut walk, output).await,
        Ok(None) => Ok(0),
        Err(cli_error) => Err(cli_error),
    };
    let (others, stopped, seen) = (
        OtherConsumers::of(&walk.browse),
        walk.is_stopped(),
        walk.place,
    );
    let listed = walk.close_after(listed).await?;
    if stopped {
        return Ok((Exit::Interrupted, listed));
    }
    let name = parked.name();
    if listed == 0 && !filter.is_empty() && !options.all_queues {
        return Err(others.or_not_found("like that", &name));
    }
    if listed == 0 && filter.is_empty() && !others.hold() && !options.all_queues {
        output.note(&format!(
            "nothing is parked in {}",
            terminal_escape::line(&name)
        ));
    } else if listed == options.most() && seen < total as usize {
        let looked_at = if filter.is_empty() {
            String::new()
        } else {
            format!(" of the first {seen}")
        };
        let cut =
            format!("{listed}{looked_at} of {total} parked messages; --limit 0 lists all of them");
        // A program that reads the lines does not see that they are a part.
        if output.is_json() {
            tracing::warn!("{cut}");
        } else {
            output.note(&cut);
        }
    }
    if others.hold() {
        return Ok((others.report(&name, output)?, listed));
    }
    Ok((Exit::Ok, listed))
}

/// What operators wrote about the groups, of one queue that is listed by group.
async fn notes_of(
    options: &Options,
    client: &Client,
    shutdown: &Shutdown,
) -> Result<Option<Notes>, CliError> {
    match &options.queue {
        Some(queue) if options.group => {
            let work = target::family(queue, options.dlq);
            Notes::unless_cut(shutdown, client, work, OnHiddenHold::IsTold).await
        }
        _ => Ok(Some(Notes::default())),
    }
}

/// Tells what is wrong with the parking queue.
pub(super) fn warn_of(walk: &SortedWalk) {
    if let Some(warning) = walk.browse.warning() {
        tracing::warn!("{}", terminal_escape::line(warning));
    }
}

/// How many were listed.
async fn list(
    options: &Options,
    (filter, notes): (&mut Filter, &Notes),
    walk: &mut SortedWalk,
    output: &Output,
) -> Result<usize, CliError> {
    let limit = options.most();
    let total = walk.browse.remaining();
    let progress = output.progress(Some(total.into()), "looked at");
    let mut groups = Groups::default();
    let mut listing = Listing::default();
    let name = terminal_escape::line(walk.parking()).into_owned();
    let mut listed = 0;
    while listed < limit
        && let Some((place, record)) = walk.next().await?
    {
        progress.set_position(place as u64);
        if !filter.takes(place, &record, walk.parking()) {
            continue;
        }
        listed += 1;
        if options.group {
            groups.add(place, &record);
        } else if output.is_json() {
            let letter = walk.letter(&record);
            let mut line = record::summary(place, &record, letter.as_ref());
            if options.all_queues {
                line["queue"] = json!(walk.parking());
            }
            output.json_line(&line)?;
        } else {
            if listing.rows.len() == PAGE {
                // How many they are is not known yet.
                let title = (options.all_queues && listing.paged_table.is_none()).then_some(&name);
                progress.suspend(|| listing.print(title, output))?;
            }
            listing.rows.push(row(place, &record, output));
        }
    }
    progress.finish_and_clear();
    let is_titled = listing.paged_table.is_some();
    let title = format!("{name}  {listed}");
    let title =
        (listed > 0 && options.all_queues && !output.is_json() && !is_titled).then_some(&title);
    if options.group {
        let queue = options.all_queues.then(|| walk.parking());
        if let Some(title) = title {
            output.line(&output.bold(title))?;
        }
        groups.is_cut = walk.is_stopped()
            || OtherConsumers::of(&walk.browse).hold()
            || listed == limit && walk.place < total as usize;
        groups.print(queue, notes, output)?;
    } else {
        listing.print(title, output)?;
    }
    Ok(listed)
}

/// Rows that are held at a time.
const PAGE: usize = 1_000;

/// A table of messages, page by page.
#[derive(Default)]
struct Listing {
    rows: Vec<Vec<TableCell>>,
    /// What was printed so far, and whether that says where messages came from.
    paged_table: Option<(PagedTable, bool)>,
}

impl Listing {
    fn print(&mut self, title: Option<&String>, output: &Output) -> Result<(), CliError> {
        if let Some(title) = title {
            output.line(&output.bold(title))?;
        }
        let mut rows = std::mem::take(&mut self.rows);
        if rows.is_empty() {
            return Ok(());
        }
        let elsewhere =
            are_from_elsewhere(&rows) || self.paged_table.as_ref().is_some_and(|(_, is)| *is);
        // Another column is another table.
        let paged_table = self.paged_table.take().filter(|(_, is)| *is == elsewhere);
        let (mut paged_table, _) = paged_table
            .unwrap_or_else(|| (PagedTable::new(&columns(elsewhere, output)), elsewhere));
        leave_out(&mut rows, elsewhere, output);
        output.page(&mut paged_table, rows)?;
        self.paged_table = Some((paged_table, elsewhere));
        Ok(())
    }
}

/// Columns of an error in a table; `parked show` and --json have all of it.
const LONGEST_ERROR: usize = 200;

/// Prints the table of `ls`; also what is shown before messages are dropped.
pub(super) fn print(rows: Vec<Vec<TableCell>>, output: &Output) -> Result<(), CliError> {
    let mut listing = Listing {
        rows,
        paged_table: None,
    };
    listing.print(None, output)
}

fn are_from_elsewhere(rows: &[Vec<TableCell>]) -> bool {
    rows.iter()
        .any(|row| row.get(FROM).is_some_and(|from| !from.is_empty()))
}

/// Of another's queue it matters most where each came from; on a narrow terminal that takes the place of what matters less.
fn columns(elsewhere: bool, output: &Output) -> Vec<Column> {
    let width = output.width().map_or(usize::MAX, usize::from);
    let are_cut = elsewhere && !is_wide(output);
    let id = match width {
        _ if are_cut => 12,
        ..100 => 18,
        _ => 32,
    };
    let mut columns = vec![
        Column::left("#", 18),
        Column::left("id", id),
        Column::left("from", if are_cut { 14 } else { 32 }),
        Column::left("parked", 42),
        Column::left("reason", 16),
        Column::right("attempts", 8),
    ];
    columns.drain(left_out(elsewhere, output));
    if is_wide(output) {
        columns.push(Column::left("fingerprint", 16));
    }
    columns.push(error_column(output));
    columns
}

/// On a narrow terminal an error has a line of its own: what is left beside the other columns shows nothing of it.
fn error_column(output: &Output) -> Column {
    match is_wide(output) {
        true => Column::left("error", 0),
        false => Column::below("error"),
    }
}

/// The columns that there is no room or no use for.
fn left_out(elsewhere: bool, output: &Output) -> Range<usize> {
    match (elsewhere, is_wide(output)) {
        (true, false) => FROM + 2..FROM + 4,
        (false, _) => FROM..FROM + 1,
        (true, true) => FROM..FROM,
    }
}

fn leave_out(rows: &mut [Vec<TableCell>], elsewhere: bool, output: &Output) {
    for row in rows {
        row.drain(left_out(elsewhere, output));
    }
}

/// The column that says where a message came from, if that is not the queue whose parked messages these are.
const FROM: usize = 2;

/// Whether there is room for what is only sometimes needed.
fn is_wide(output: &Output) -> bool {
    output.width().is_none_or(|width| width >= 120)
}

/// One row of it.
pub(super) fn row(place: usize, record: &Record, output: &Output) -> Vec<TableCell> {
    let message = record.message();
    let parked = match record.parked_at {
        Some(time) if output.width().is_none() => {
            format!(
                "{} ({})",
                time_format::ago(time),
                time_format::absolute(time)
            )
        }
        Some(time) if is_wide(output) => {
            format!("{}, {}", time_format::ago(time), time_format::short(time))
        }
        Some(time) => time_format::ago(time),
        None => "-".to_owned(),
    };
    let attempts = if record.attempts == 0 {
        "-".to_owned()
    } else {
        record.attempts.to_string()
    };
    let from = match record.home.as_str() {
        "" => "?".into(),
        home if home == message.queue() => "".into(),
        home => terminal_escape::line(home),
    };
    let mut row = vec![
        TextStyle::Dim.of(handle(place, record)),
        message.message_id().map_or_else(
            || TextStyle::Dim.of("-"),
            |id| TextStyle::Bold.of(terminal_escape::line(id)),
        ),
        TextStyle::Plain.of(from),
        TextStyle::Plain.of(parked),
        reason(record.reason),
        TextStyle::Plain.of(attempts),
    ];
    if is_wide(output) {
        row.push(TextStyle::Dim.of(fingerprint(&record.fingerprint, output)));
    }
    // On a terminal the table cuts it to its width; elsewhere a row is to be read as well.
    let error = match foreign::task(record) {
        Some((task, _)) => format!("{}: {}", terminal_escape::line(&task), error(record)),
        None => error(record),
    };
    row.push(TextStyle::Plain.of(console::truncate_str(&error, LONGEST_ERROR, "…")));
    row
}

/// Eight digits of it on a terminal, which is enough to tell failures apart and to choose by.
fn fingerprint(all: &str, output: &Output) -> String {
    let shown = if output.width().is_some() {
        all.get(..8).unwrap_or(all)
    } else {
        all
    };
    terminal_escape::line(shown).into_owned()
}

fn reason(reason: Option<ParkReason>) -> TableCell {
    let Some(reason) = reason else {
        return TextStyle::Dim.of("unknown");
    };
    let color = match reason {
        ParkReason::Exhausted | ParkReason::TooOld | ParkReason::Expired => Color::Yellow,
        ParkReason::Requested => Color::Cyan,
        _ => Color::Red,
    };
    TextStyle::In(color).of(reason)
}

/// The error with its type, unless the text says it already.
pub(super) fn error(record: &Record) -> String {
    let (kind, text) = (
        terminal_escape::line(&record.error_type),
        terminal_escape::line(&record.error),
    );
    if kind.is_empty() || text.contains(&*kind) {
        text.into_owned()
    } else {
        format!("{text} ({kind})")
    }
}

/// Failures that are alike.
#[derive(Default)]
struct Groups {
    all: HashMap<(String, Option<ParkReason>), Group>,
    /// Whether there are messages that were not looked at.
    is_cut: bool,
}

struct Group {
    count: usize,
    error: String,
    error_type: String,
    shown: String,
    first: Option<SystemTime>,
    last: Option<SystemTime>,
    /// The oldest of them.
    example: (usize, String),
    example_id: Option<String>,
}

impl Groups {
    fn add(&mut self, place: usize, record: &Record) {
        let group = self
            .all
            .entry((record.fingerprint.clone(), record.reason))
            .or_insert_with(|| Group {
                count: 0,
                error: record.error.clone(),
                error_type: record.error_type.clone(),
                shown: error(record),
                first: record.parked_at,
                last: record.parked_at,
                example: (place, record.mark.clone()),
                example_id: record.message().message_id().map(str::to_owned),
            });
        group.count += 1;
        group.first = group.first.min(record.parked_at).or(record.parked_at);
        group.last = group.last.max(record.parked_at);
    }

    fn print(self, queue: Option<&str>, notes: &Notes, output: &Output) -> Result<(), CliError> {
        let is_cut = self.is_cut;
        let mut groups: Vec<_> = self.all.into_iter().collect();
        groups.sort_by(|((fingerprint, _), group), ((other, _), more)| {
            more.count.cmp(&group.count).then(fingerprint.cmp(other))
        });
        if output.is_json() {
            return groups
                .iter()
                .try_for_each(|((fingerprint, reason), group)| {
                    let mut line = json!({
                        "count": group.count,
                        "complete": !is_cut,
                        "fingerprint": fingerprint,
                        "reason": reason.map(|reason| reason.as_str()),
                        "error": group.error,
                        "error_type": group.error_type,
                        "first_parked_at": group.first.and_then(time_format::rfc3339),
                        "last_parked_at": group.last.and_then(time_format::rfc3339),
                        "example": {
                            "place": group.example.0,
                            "mark": group.example.1,
                            "message_id": group.example_id,
                        },
                    });
                    if let Some(note) = notes.about(fingerprint) {
                        line["about"] = note.json();
                    }
                    if let Some(queue) = queue {
                        line["queue"] = json!(queue);
                    }
                    output.json_line(&line)
                });
        }
        if groups.is_empty() {
            return Ok(());
        }
        // Where there is little room, the reason goes: the error mostly says it, and `show` does.
        let wide = output.width().is_none_or(|width| width >= 100);
        let age = |time: Option<SystemTime>| time.map_or_else(|| "-".to_owned(), time_format::ago);
        let mut marks: Vec<_> = groups.iter().map(|((mark, _), _)| mark.clone()).collect();
        marks.sort_unstable();
        marks.dedup();
        let rows = groups.into_iter().map(|((mark, why), group)| {
            let (place, example) = &group.example;
            let example = format!("#{place}={}", example.get(..8).unwrap_or(example));
            let at_least = if is_cut { "≥" } else { "" };
            let mut row = vec![TextStyle::Bold.of(format!("{at_least}{}", group.count))];
            if wide {
                row.push(reason(why));
            }
            row.extend([
                TextStyle::Plain.of(age(group.first)),
                TextStyle::Plain.of(age(group.last)),
                TextStyle::Dim.of(fingerprint(&mark, output)),
                TextStyle::Dim.of(example),
                TextStyle::Plain.of(group.shown),
            ]);
            row
        });
        let mut columns = vec![Column::right("count", 8)];
        if wide {
            columns.push(Column::left("reason", 16));
        }
        columns.extend([
            Column::left("first", 13),
            Column::left("last", 13),
            Column::left("fingerprint", 16),
            Column::left("example", 18),
            error_column(output),
        ]);
        output.table(&columns, rows.collect())?;
        notes.print(marks.iter().map(String::as_str), output)
    }
}
