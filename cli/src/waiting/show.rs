//! `retryrmq waiting show`: one message that waits, whole.

use std::time::Duration;

use clap::Args;
use retryrmq::{Client, WaitingMessage, WaitingQueue, format_duration, terminal_escape};
use serde_json::{Value, json};

use super::{
    MOST_LOOKS, QueueArgs, check_delivery_count, held, held_in,
    ls::coming,
    selection,
    store::{PolicyStore, StoredMessage},
};
use crate::{
    error::CliError, exit::Exit, global::Global, output::Output, shutdown::Shutdown, time_format,
};

/// The most bytes of a body that are shown.
const BODY: usize = 4_096;

/// One message that waits: when it comes back, why it waits, and its body
///
/// It takes a look, see `retryrmq waiting ls --help`.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq waiting show [OPTIONS] <QUEUE> <ID>", after_help = JSON)]
pub(crate) struct Options {
    #[command(flatten)]
    queue_args: QueueArgs,

    /// Its message id, or # and its mark, as `ls --look` prints it
    id: String,
}

const JSON: &str = "\
JSON: id, mark, queue (where it waits), delay_ms, due_at, retries, exchange, routing_key,
error, error_type, history, body (null if it is no text) and bytes. Of a message in the
service's store (--store): no history, queue is null, store (the policy file) and store_id
(the id that `retryrmq serve` takes) name it, and body_base64 has a body that is no text.";

pub(super) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let shutdown = Shutdown::listen()?;
    let client = global.connect().await?;
    let found = find(&options, &shutdown, &client).await;
    client.close().await;
    let in_store = match (&found, options.queue_args.policy_store()) {
        (Ok(None) | Err(_), Some(store)) if !shutdown.is_set() => {
            let stored = find_in_store(&store, &options.id, global).await?;
            stored.map(|stored| (store, stored))
        }
        _ => None,
    };
    if let Some((store, stored)) = in_store {
        if output.is_json() {
            output.json_document(&stored_as_json(&store, &stored))?;
        } else {
            print_stored(&store.place(), &stored, output)?;
        }
        return Ok(Exit::Ok);
    }
    let Some((waiting_queue, waiting_message)) = found? else {
        if shutdown.is_set() {
            return Ok(Exit::Interrupted);
        }
        return Err(CliError::not_found(format!(
            "no message `{}` waits for {}: it may be back, or parked (`retryrmq parked show`)",
            terminal_escape::line(&options.id),
            options.queue_args.queue
        )));
    };
    if output.is_json() {
        output.json_document(&as_json(&waiting_queue, &waiting_message))?;
        return Ok(Exit::Ok);
    }
    print(&waiting_queue, &waiting_message, output)?;
    Ok(Exit::Ok)
}

async fn find(
    options: &Options,
    shutdown: &Shutdown,
    client: &Client,
) -> Result<Option<(WaitingQueue, WaitingMessage)>, CliError> {
    let waiting_queues = options.queue_args.waiting_queues(client).await?;
    let mut others = held(&waiting_queues);
    for waiting_queue in waiting_queues {
        if waiting_queue.messages == 0 || shutdown.is_set() {
            continue;
        }
        let mut walk = client
            .waiting(&options.queue_args.queue)
            .walk_queue(&waiting_queue)
            .await?;
        let found = loop {
            if shutdown.is_set() {
                break Ok(None);
            }
            match walk.next().await {
                Ok(Some(waiting_message)) if selection::is(&waiting_message, &options.id) => {
                    break Ok(Some(waiting_message));
                }
                Ok(Some(waiting_message)) => {
                    match check_delivery_count(&waiting_message, &waiting_queue, MOST_LOOKS) {
                        Ok(()) => {}
                        Err(cli_error) => break Err(cli_error),
                    }
                }
                Ok(None) => break Ok(None),
                Err(error) => break Err(error.into()),
            }
        };
        others = others.or_else(|| (walk.others() > 0).then(|| held_in(&waiting_queue)));
        let closed = walk.close().await;
        if let Some(waiting_message) = found? {
            closed?;
            return Ok(Some((waiting_queue, waiting_message)));
        }
        closed?;
    }
    match others {
        Some(others) if !shutdown.is_set() => Err(CliError::held(format!(
            "no message `{}` among the visible ones; {others}",
            terminal_escape::line(&options.id)
        ))),
        _ => Ok(None),
    }
}

/// The message in the store that goes by this name.
async fn find_in_store(
    store: &PolicyStore,
    id: &str,
    global: &Global,
) -> Result<Option<StoredMessage>, CliError> {
    let listed = store.list(global).await?;
    let Some(listed) = listed.iter().find(|listed| listed.is(id)) else {
        return Ok(None);
    };
    let shown = store.show(&listed.id, global).await?;
    Ok(shown.into_iter().next())
}

fn print_stored(place: &str, stored: &StoredMessage, output: &Output) -> Result<(), CliError> {
    let line = |label: &str, value: &str| line(label, value, output);
    output.line(&output.bold(terminal_escape::line(&stored.name())))?;
    let due = stored.due().map_or_else(String::new, |due| {
        format!("{} ({})", coming(due), time_format::absolute(due))
    });
    line("comes back", &due)?;
    line("waits in", place)?;
    line(
        "for",
        &format_duration(Duration::from_millis(stored.delay_ms)),
    )?;
    line("retries", &stored.retries.to_string())?;
    let exchange = stored.delayed_from.as_ref().or(stored.exchange.as_ref());
    line(
        "exchange",
        exchange.map_or("the default exchange", String::as_str),
    )?;
    line("routing key", &stored.routing_key)?;
    line("mark", &format!("#{}", stored.mark()))?;
    if !stored.error.is_empty() {
        line("error", &stored.error)?;
    }
    if !stored.error_type.is_empty() {
        line("type", &stored.error_type)?;
    }
    output.line("")?;
    match &stored.body {
        Some(text) => body(text.as_bytes(), output),
        None => output.line(&output.dim(format!("{} bytes that are no text", stored.bytes))),
    }
}

fn line(label: &str, value: &str, output: &Output) -> Result<(), CliError> {
    output.line(&format!(
        "{} {}",
        output.dim(format!("{label:<13}")),
        terminal_escape::line(value)
    ))
}

fn print(
    waiting_queue: &WaitingQueue,
    waiting_message: &WaitingMessage,
    output: &Output,
) -> Result<(), CliError> {
    let message = waiting_message.message();
    let line = |label: &str, value: &str| line(label, value, output);
    output.line(&output.bold(terminal_escape::line(&selection::name(waiting_message))))?;
    line(
        "comes back",
        &waiting_message.due.map_or_else(
            || format!("within {}", format_duration(waiting_message.delay)),
            |due| format!("{} ({})", coming(due), time_format::absolute(due)),
        ),
    )?;
    line("waits in", &waiting_queue.name)?;
    line("for", &format_duration(waiting_message.delay))?;
    line("retries", &message.retries().to_string())?;
    let exchange = match message.exchange() {
        "" => "the default exchange",
        exchange => exchange,
    };
    line("exchange", exchange)?;
    line("routing key", message.routing_key())?;
    line("mark", &format!("#{}", waiting_message.mark))?;
    if !waiting_message.error.is_empty() {
        line("error", &waiting_message.error)?;
    }
    if !waiting_message.error_type.is_empty() {
        line("type", &waiting_message.error_type)?;
    }
    for entry in &waiting_message.history {
        let at = time_format::rfc3339_of_seconds(entry.at).unwrap_or_default();
        line(
            &format!("attempt {}", entry.attempt),
            &format!("{at}  {}", entry.error),
        )?;
    }
    output.line("")?;
    body(message.body(), output)
}

fn body(body: &[u8], output: &Output) -> Result<(), CliError> {
    let shown = &body[..body.len().min(BODY)];
    match std::str::from_utf8(shown).or_else(|why| std::str::from_utf8(&shown[..why.valid_up_to()]))
    {
        Ok(text) if !text.is_empty() || body.is_empty() => {
            for line in text.lines() {
                output.line(&terminal_escape::line(line))?;
            }
        }
        _ => output.line(&output.dim(format!("{} bytes that are no text", body.len())))?,
    }
    if body.len() > BODY {
        output.line(&output.dim(format!("… {} bytes in all", body.len())))?;
    }
    Ok(())
}

/// As one that waits in the broker, where the store knows it.
fn stored_as_json(store: &PolicyStore, stored: &StoredMessage) -> Value {
    let exchange = stored.delayed_from.as_ref().or(stored.exchange.as_ref());
    let mut object = json!({
        "id": stored.name(),
        "mark": stored.mark(),
        "store": store.file.display().to_string(),
        "store_id": stored.id,
        "queue": null,
        "delay_ms": stored.delay_ms,
        "due_at": stored.due().and_then(time_format::rfc3339),
        "retries": stored.retries,
        "exchange": exchange.map_or("", String::as_str),
        "routing_key": stored.routing_key,
        "error": stored.error,
        "error_type": stored.error_type,
        "body": stored.body,
        "bytes": stored.bytes,
    });
    if let Some(body) = &stored.body_base64 {
        object["body_base64"] = json!(body);
    }
    object
}

fn as_json(waiting_queue: &WaitingQueue, waiting_message: &WaitingMessage) -> serde_json::Value {
    let message = waiting_message.message();
    let history: Vec<_> = waiting_message.history.iter().map(|entry| json!({
        "attempt": entry.attempt, "at": time_format::rfc3339_of_seconds(entry.at), "error": entry.error, "host": entry.host,
    })).collect();
    json!({
        "id": selection::name(waiting_message),
        "mark": waiting_message.mark,
        "queue": waiting_queue.name,
        "delay_ms": u64::try_from(waiting_message.delay.as_millis()).unwrap_or(u64::MAX),
        "due_at": waiting_message.due.and_then(time_format::rfc3339),
        "retries": message.retries(),
        "exchange": message.exchange(),
        "routing_key": message.routing_key(),
        "error": waiting_message.error,
        "error_type": waiting_message.error_type,
        "history": history,
        "body": std::str::from_utf8(message.body()).ok(),
        "bytes": message.body().len(),
    })
}
