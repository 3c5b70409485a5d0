//! `retryrmq unreadable`: messages that RabbitMQ cannot deliver over AMQP 0-9-1.

use std::time::{Duration, SystemTime};

use clap::{Args, Subcommand};
use retryrmq::{UnreadableMessage, terminal_escape};
use retryrmq_operator::plural;
use serde_json::{Value, json};

use crate::{
    error::CliError,
    exit::Exit,
    global::Global,
    json::{base64, harmless},
    output::{Column, Output, TextStyle},
    prompt, time_format,
};

/// Look at messages that RabbitMQ cannot deliver over AMQP 0-9-1, take them out of a queue, or drop them
///
/// A publisher that speaks AMQP 1.0 can send what AMQP 0-9-1 has no type for, such as a UUID as a property. RabbitMQ 4 closes the connection
/// of each consumer that it should deliver such a message to. Consumers of retryrmq move it to <QUEUE>.unreadable. These commands speak AMQP 1.0.
#[derive(Clone, Debug, Subcommand)]
#[command(override_usage = "retryrmq unreadable [OPTIONS] <COMMAND>")]
pub(crate) enum Command {
    Ls(Ls),
    Take(Take),
    Drop(Drop),
}

pub(crate) async fn run(
    command: Command,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    match command {
        Command::Ls(options) => ls(options, global, output).await,
        Command::Take(options) => take(options, global, output).await,
        Command::Drop(options) => drop(options, global, output).await,
    }
}

/// List the messages in <QUEUE>.unreadable, with why they cannot be delivered
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq unreadable ls [OPTIONS] <QUEUE>", after_help = LS)]
pub(crate) struct Ls {
    /// The work queue (its own name)
    queue: String,

    /// At most so many, the oldest first
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    limit: u32,
}

const LS: &str = "\
Examples:
  retryrmq unreadable ls orders
  retryrmq --json unreadable ls orders | jq -r '.messages[].cause'

JSON: queue, name (of the queue with the messages) and messages; each with id, found_in
(a queue), moved_at, cause, exchange, routing_key, message_id, content_type, properties
(as text) and body_base64.";

async fn ls(options: Ls, global: &Global, output: &Output) -> Result<Exit, CliError> {
    let client = global.connect().await?;
    let unreadable = client.unreadable(&options.queue);
    let listed = unreadable.list(options.limit).await;
    client.close().await;
    let all = match listed {
        Ok(all) => all,
        Err(error) if error.kind() == retryrmq::ErrorKind::QueueNotFound => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    if output.is_json() {
        let messages: Vec<Value> = all.iter().map(as_json).collect();
        output.json_document(&json!({
            "queue": options.queue,
            "name": unreadable.name(),
            "messages": messages,
        }))?;
        return Ok(Exit::Ok);
    }
    if all.is_empty() {
        let nothing = format!(
            "nothing is in {}",
            terminal_escape::line(&unreadable.name())
        );
        output.note(&nothing);
        return Ok(Exit::Ok);
    }
    let columns = [
        Column::left("id", 18),
        Column::left("moved", 14),
        Column::left("from", 24),
        Column::left("message id", 24),
        Column::left("cause", 0),
    ];
    let row = |message: &UnreadableMessage| {
        let text = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
        let moved = message
            .moved_at
            .map(at)
            .map_or_else(|| "-".to_owned(), time_format::short);
        let cells = [
            message.id.clone(),
            moved,
            text(&message.found_in),
            text(&message.message_id),
            text(&message.cause),
        ];
        let shown = cells.map(|cell| TextStyle::Plain.of(terminal_escape::line(&cell)));
        shown.into()
    };
    output.table(&columns, all.iter().map(row).collect())?;
    Ok(Exit::Ok)
}

fn at(milliseconds: i64) -> SystemTime {
    let since = Duration::from_millis(u64::try_from(milliseconds).unwrap_or_default());
    SystemTime::UNIX_EPOCH + since
}

fn as_json(message: &UnreadableMessage) -> Value {
    let properties: serde_json::Map<String, Value> = message
        .properties
        .iter()
        .map(|(name, value)| (harmless(name.clone()), harmless(value.clone()).into()))
        .collect();
    let text = |text: &Option<String>| text.clone().map(harmless);
    json!({
        "id": message.id,
        "found_in": text(&message.found_in),
        "moved_at": message.moved_at.map(at).and_then(time_format::rfc3339),
        "cause": text(&message.cause),
        "exchange": text(&message.exchange),
        "routing_key": text(&message.routing_key),
        "message_id": text(&message.message_id),
        "content_type": text(&message.content_type),
        "properties": properties,
        "body_base64": base64(&message.body),
    })
}

/// Move the messages of a queue that cannot be delivered to <QUEUE>.unreadable
///
/// Consumers do this by themselves. It is for queues that no consumer of retryrmq reads, and for consumers that may not create the queue.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq unreadable take [OPTIONS] <QUEUE>", after_help = TAKE)]
pub(crate) struct Take {
    /// The work queue (its own name)
    queue: String,

    /// The queue to look through, such as the queue itself (the default) or its parking queue
    #[arg(long, value_name = "QUEUE")]
    from: Option<String>,

    /// Look at so many messages; each look counts as a delivery before RabbitMQ 4.3
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    limit: u32,

    /// Ask for messages one by one over AMQP 0-9-1, and move those for which RabbitMQ closes the connection. For a consumer that stopped
    /// although nothing was found
    #[arg(long)]
    try_each: bool,
}

const TAKE: &str = "\
Examples:
  retryrmq unreadable take orders
  retryrmq unreadable take orders --from orders.parked --limit 100000
  retryrmq unreadable take orders --try-each

Each message is removed when its copy is confirmed. All others stay in their places,
but for those that --try-each has asked for: 1,000 in the parking queue and on RabbitMQ
4.3, elsewhere eight, with three deliveries more. Those for which connections ended most
often come first. If not all could be asked for, the command fails and says why.
JSON: queue, from, to, moved (a number) and causes.";

async fn take(options: Take, global: &Global, output: &Output) -> Result<Exit, CliError> {
    let client = global.connect().await?;
    let unreadable = client.unreadable(&options.queue);
    let from = options.from.as_ref().unwrap_or(&options.queue);
    let taken = if options.try_each {
        unreadable.try_each_from(from, options.limit).await
    } else {
        unreadable.take_from(from, options.limit).await
    };
    client.close().await;
    let causes = taken?;
    if output.is_json() {
        output.json_document(&json!({
            "queue": options.queue,
            "from": from,
            "to": unreadable.name(),
            "moved": causes.len(),
            "causes": causes,
        }))?;
    } else {
        output.line(&format!(
            "{} moved from {} to {}",
            plural::messages(causes.len() as u64),
            terminal_escape::line(from),
            terminal_escape::line(&unreadable.name())
        ))?;
    }
    Ok(Exit::Ok)
}

/// Drop messages of <QUEUE>.unreadable for good
#[derive(Clone, Debug, Args)]
#[command(
    override_usage = "retryrmq unreadable drop [OPTIONS] <QUEUE> --id <ID>",
    after_help = DROP
)]
pub(crate) struct Drop {
    /// The work queue (its own name)
    queue: String,

    /// The message with this id, as `unreadable ls` shows it; may be given several times
    #[arg(long = "id", value_name = "ID", required = true)]
    ids: Vec<String>,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

const DROP: &str = "\
Examples:
  retryrmq unreadable drop orders --id 3f0c6e9d4a2b1708 --yes

JSON: queue, name and dropped (a number). Exits with 3 if there is none with such an id.";

async fn drop(options: Drop, global: &Global, output: &Output) -> Result<Exit, CliError> {
    let question = format!(
        "Drop {} of {} for good?",
        plural::messages(options.ids.len() as u64),
        options.queue
    );
    if !options.yes && !prompt::agreed(&question).await? {
        output.note("nothing was changed");
        return Ok(Exit::Ok);
    }
    let client = global.connect().await?;
    let unreadable = client.unreadable(&options.queue);
    let dropped = unreadable.remove(&options.ids).await;
    client.close().await;
    let dropped = dropped?;
    if output.is_json() {
        output.json_document(&json!({
            "queue": options.queue,
            "name": unreadable.name(),
            "dropped": dropped,
        }))?;
    } else {
        output.line(&format!(
            "{} dropped from {}",
            plural::messages(dropped as u64),
            terminal_escape::line(&unreadable.name())
        ))?;
    }
    Ok(if dropped == 0 {
        Exit::NotFound
    } else {
        Exit::Ok
    })
}
