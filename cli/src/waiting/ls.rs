//! `retryrmq waiting ls`: what waits, and when it comes back.

use std::time::{Duration, SystemTime};

use clap::Args;
use retryrmq::{Client, WaitingMessage, WaitingQueue, format_duration, terminal_escape};
use serde_json::{Value, json};

use super::{
    MOST_LOOKS, QueueArgs, check_delivery_count, held, held_in, selection,
    store::{PolicyStore, StoredMessage},
};
use crate::{
    error::CliError,
    exit::Exit,
    global::Global,
    output::{Column, Output, TextStyle},
    shutdown::Shutdown,
    time_format,
};

/// What waits in which waiting queue
///
/// This counts only, which disturbs nothing: a message comes back within the time that its queue is for. --look looks at the
/// messages themselves, and says when each comes back.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq waiting ls [OPTIONS] <QUEUE>", after_help = EXAMPLES)]
pub(crate) struct Options {
    #[command(flatten)]
    queue_args: QueueArgs,

    /// Look at the messages: at most --limit from the head of each waiting queue
    #[arg(long)]
    look: bool,

    /// How many to look at in each waiting queue, and in the store
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=10_000), requires = "look")]
    limit: u32,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq waiting ls orders
  retryrmq waiting ls orders --look
  retryrmq waiting ls orders --retry 'fixed(5s)'
  retryrmq waiting ls orders --store policy.toml   # also what `retryrmq serve` keeps in Redis

A look changes neither order nor time; while it lasts, what is looked at does not come
back. Where waiting queue and QUEUE are quorum queues on RabbitMQ 4.0 to 4.2, it adds 1 to
the count of crashes of each message, as does a look that is killed on 4.3; what was looked
at twice is not looked at again. Elsewhere it leaves no trace.

JSON, one document: queue, waiting (in all), and queues, each with name, delay_ms, waiting
and, with --look, next_at, last_at and messages (id, mark, due_at, retries, error). With
--store also store: file, waiting, next_at, last_at and, with --look, messages.";

/// A waiting queue, and what a look at it has shown.
struct Row {
    waiting_queue: WaitingQueue,
    seen: Option<Vec<Seen>>,
}

/// What is kept of a message that was looked at.
struct Seen {
    name: String,
    mark: String,
    due: Option<SystemTime>,
    retries: u32,
    error: String,
}

impl Seen {
    fn of(waiting_message: &WaitingMessage) -> Self {
        Self {
            name: selection::name(waiting_message),
            mark: waiting_message.mark.clone(),
            due: waiting_message.due,
            retries: waiting_message.message().retries(),
            error: waiting_message.error.clone(),
        }
    }
}

/// What waits in the service's store.
struct Stored {
    store: PolicyStore,
    messages: Vec<StoredMessage>,
}

impl Stored {
    /// When the first and the last come back. They are listed by due time.
    fn dues(&self) -> (Option<SystemTime>, Option<SystemTime>) {
        (
            self.messages.first().and_then(StoredMessage::due),
            self.messages.last().and_then(StoredMessage::due),
        )
    }

    fn as_json(&self, options: &Options) -> Value {
        let at = |due: Option<SystemTime>| due.and_then(time_format::rfc3339);
        let (next, last) = self.dues();
        let mut object = json!({
            "file": self.store.file.display().to_string(),
            "waiting": self.messages.len(),
            "next_at": at(next),
            "last_at": at(last),
        });
        if options.look {
            let shown = self.messages.iter().take(options.limit as usize);
            object["messages"] = shown
                .map(|message| {
                    json!({"id": message.name(), "mark": message.mark(), "due_at": at(message.due()), "retries": message.retries, "error": message.error})
                })
                .collect();
        }
        object
    }
}

pub(super) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    let rows = collect(&options, &shutdown, &client).await;
    let unseen = match &rows {
        Ok((rows, _)) if rows.iter().all(|row| row.waiting_queue.messages == 0) => {
            options.queue_args.unseen(&client).await
        }
        _ => String::new(),
    };
    client.close().await;
    let (rows, others) = rows?;
    let stored = match options.queue_args.policy_store() {
        Some(store) if !shutdown.is_set() => {
            let messages = store.list(global).await?;
            Some(Stored { store, messages })
        }
        _ => None,
    };
    if shutdown.is_set() {
        return Ok(Exit::Interrupted);
    }
    let in_broker: u64 = rows
        .iter()
        .map(|row| u64::from(row.waiting_queue.messages))
        .sum();
    let in_store = stored.as_ref().map_or(0, |stored| stored.messages.len());
    let all = in_broker + in_store as u64;
    if output.is_json() {
        let waiting_queues: Vec<Value> = rows.iter().map(as_json).collect();
        let mut document =
            json!({"queue": options.queue_args.queue, "waiting": all, "queues": waiting_queues});
        if let Some(stored) = &stored {
            document["store"] = stored.as_json(&options);
        }
        output.json_document(&document)?;
        return others.map_or(Ok(Exit::Ok), |others| Err(CliError::held(others)));
    }
    if let Some(others) = others {
        if all > 0 {
            print(&rows, stored.as_ref(), &options, output)?;
        }
        output.note(&others);
        return Ok(Exit::Held);
    }
    if all == 0 {
        let looked = if options.queue_args.retry.is_empty() {
            "; only the queues of the default policy were checked: name other policies with --retry"
        } else {
            ""
        };
        let place = match &stored {
            Some(stored) => format!(" in the broker, and nothing in {}", stored.store.place()),
            None => String::new(),
        };
        output.note(&format!(
            "nothing waits for {}{place}{looked}{unseen}",
            options.queue_args.queue
        ));
        return Ok(Exit::Ok);
    }
    print(&rows, stored.as_ref(), &options, output)?;
    let empty = rows
        .iter()
        .filter(|row| row.waiting_queue.messages == 0)
        .count();
    match empty {
        0 => {}
        1 => output.note("1 more waiting queue is empty"),
        _ => output.note(&format!("{empty} more waiting queues are empty")),
    }
    Ok(Exit::Ok)
}

/// What waits, and what to say where others hold some of it.
async fn collect(
    options: &Options,
    shutdown: &Shutdown,
    client: &Client,
) -> Result<(Vec<Row>, Option<String>), CliError> {
    let waiting_queues = options.queue_args.waiting_queues(client).await?;
    let mut others = held(&waiting_queues);
    let mut rows = Vec::with_capacity(waiting_queues.len());
    for waiting_queue in waiting_queues {
        let seen = if options.look && waiting_queue.messages > 0 && !shutdown.is_set() {
            let (seen, is_held) = read_messages(options, shutdown, client, &waiting_queue).await?;
            others = others.or_else(|| is_held.then(|| held_in(&waiting_queue)));
            Some(seen)
        } else {
            None
        };
        rows.push(Row {
            waiting_queue,
            seen,
        });
    }
    Ok((rows, others))
}

/// Those that are to be seen, and whether others hold some.
async fn read_messages(
    options: &Options,
    shutdown: &Shutdown,
    client: &Client,
    waiting_queue: &WaitingQueue,
) -> Result<(Vec<Seen>, bool), CliError> {
    let mut look = client
        .waiting(&options.queue_args.queue)
        .walk_queue(waiting_queue)
        .await?;
    let mut seen = Vec::new();
    let walked = async {
        while seen.len() < options.limit as usize && !shutdown.is_set() {
            let Some(waiting_message) = look.next().await? else {
                break;
            };
            check_delivery_count(&waiting_message, waiting_queue, MOST_LOOKS)?;
            seen.push(Seen::of(&waiting_message));
        }
        Ok::<_, CliError>(())
    }
    .await;
    let is_held = look.others() > 0;
    let closed = look.close().await;
    walked?;
    closed?;
    Ok((seen, is_held))
}

fn print(
    rows: &[Row],
    stored: Option<&Stored>,
    options: &Options,
    output: &Output,
) -> Result<(), CliError> {
    let columns = [
        Column::right("waits", 9),
        Column::right("waiting", 9),
        Column::left("next", 14),
        Column::left("last", 14),
        Column::left("queue", 0),
    ];
    let shown = rows.iter().filter(|row| row.waiting_queue.messages > 0);
    let lines = shown.map(|row| {
        let within = format!("within {}", format_duration(row.waiting_queue.delay));
        let known = |due: Option<SystemTime>| due.map_or_else(|| within.clone(), coming);
        let dues = || row.seen.iter().flatten().map(|seen| seen.due);
        // Of those that were looked at: with one whose time is not known the last is not known.
        let last = if dues().all(|due| due.is_some()) && row.has_all_messages() {
            dues().flatten().max()
        } else {
            None
        };
        vec![
            TextStyle::Bold.of(format_duration(row.waiting_queue.delay)),
            TextStyle::Plain.of(row.waiting_queue.messages),
            TextStyle::Plain.of(known(dues().flatten().min())),
            TextStyle::Plain.of(known(last)),
            TextStyle::Dim.of(terminal_escape::line(&row.waiting_queue.name)),
        ]
    });
    let mut lines: Vec<_> = lines.collect();
    if let Some(stored) = stored.filter(|stored| !stored.messages.is_empty()) {
        let known = |due: Option<SystemTime>| due.map_or_else(String::new, coming);
        let (next, last) = stored.dues();
        lines.push(vec![
            TextStyle::Bold.of(""),
            TextStyle::Plain.of(stored.messages.len()),
            TextStyle::Plain.of(known(next)),
            TextStyle::Plain.of(known(last)),
            TextStyle::Dim.of(stored.store.place()),
        ]);
    }
    output.table(&columns, lines)?;
    messages(rows, stored, options, output)
}

impl Row {
    fn has_all_messages(&self) -> bool {
        let seen = self.seen.as_ref().map_or(0, Vec::len);
        seen >= self.waiting_queue.messages as usize && seen > 0
    }
}

/// The messages that were looked at, in the order of their queues.
fn messages(
    rows: &[Row],
    stored: Option<&Stored>,
    options: &Options,
    output: &Output,
) -> Result<(), CliError> {
    let columns = [
        Column::left("message", 24),
        Column::left("comes back", 14),
        Column::right("retries", 7),
        Column::left("error", 0),
    ];
    let mut lines: Vec<_> = rows
        .iter()
        .flat_map(|row| row.seen.iter().flatten().map(move |seen| (row, seen)))
        .map(|(row, seen)| {
            let within = || format!("within {}", format_duration(row.waiting_queue.delay));
            vec![
                TextStyle::Bold.of(terminal_escape::line(&seen.name)),
                TextStyle::Plain.of(seen.due.map_or_else(within, coming)),
                TextStyle::Plain.of(seen.retries),
                TextStyle::Plain.of(terminal_escape::line(&seen.error)),
            ]
        })
        .collect();
    if let Some(stored) = stored.filter(|_| options.look) {
        let shown = stored.messages.iter().take(options.limit as usize);
        lines.extend(shown.map(|message| {
            let due = message.due().map_or_else(String::new, coming);
            vec![
                TextStyle::Bold.of(terminal_escape::line(&message.name())),
                TextStyle::Plain.of(due),
                TextStyle::Plain.of(message.retries),
                TextStyle::Plain.of(terminal_escape::line(&message.error)),
            ]
        }));
    }
    if lines.is_empty() {
        return Ok(());
    }
    output.line("")?;
    output.table(&columns, lines)
}

/// In how much time, as people say it.
pub(super) fn coming(due: SystemTime) -> String {
    let left = due.duration_since(SystemTime::now()).unwrap_or_default();
    // Headers tell it to the second.
    let seconds = Duration::from_secs(left.as_secs());
    if seconds.is_zero() {
        "now".to_owned()
    } else {
        format!("in {}", format_long(seconds))
    }
}

/// `59s`, `3m20s`, `2h5m`, `3d4h`.
fn format_long(time: Duration) -> String {
    let seconds = time.as_secs();
    let two = |large: u64, one: &str, small: u64, other: &str| {
        let (whole, rest) = (seconds / large, seconds % large / small);
        if rest == 0 {
            format!("{whole}{one}")
        } else {
            format!("{whole}{one}{rest}{other}")
        }
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3_600 => two(60, "m", 1, "s"),
        3_600..86_400 => two(3_600, "h", 60, "m"),
        _ => two(86_400, "d", 3_600, "h"),
    }
}

fn as_json(row: &Row) -> Value {
    let mut object = json!({
        "name": row.waiting_queue.name,
        "delay_ms": u64::try_from(row.waiting_queue.delay.as_millis()).unwrap_or(u64::MAX),
        "waiting": row.waiting_queue.messages,
    });
    let Some(seen) = &row.seen else {
        return object;
    };
    let at = |due: Option<SystemTime>| due.and_then(time_format::rfc3339);
    let dues = || seen.iter().filter_map(|seen| seen.due);
    object["next_at"] = json!(at(dues().min()));
    object["last_at"] = json!(at(dues().max()));
    object["messages"] = seen
        .iter()
        .map(|seen| {
            json!({"id": seen.name, "mark": seen.mark, "due_at": at(seen.due), "retries": seen.retries, "error": seen.error})
        })
        .collect();
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_come_are_short() {
        for (seconds, shown) in [
            (59, "59s"),
            (60, "1m"),
            (200, "3m20s"),
            (7_500, "2h5m"),
            (273_600, "3d4h"),
        ] {
            assert_eq!(format_long(Duration::from_secs(seconds)), shown);
        }
        assert_eq!(coming(SystemTime::UNIX_EPOCH), "now");
    }
}
