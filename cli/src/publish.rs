//! `retryrmq publish`: confirmed, and an error when no queue takes the message.

use std::{
    io::{self, IsTerminal, Read},
    time::Duration,
};

use clap::{ArgGroup, Args};
use futures_util::{StreamExt, TryStreamExt, stream};
use retryrmq::{
    BasicProperties, Client, Publish, parse_duration,
    types::{AMQPValue, FieldArray, FieldTable, ShortString},
};
use retryrmq_operator::plural;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{error::CliError, exit::Exit, global::Global, output::Output};

/// Publish messages, and wait until the broker has stored them
///
/// Messages are persistent, confirmed by the broker, and it is an error when no queue takes one.
#[derive(Clone, Debug, Args)]
#[command(override_usage = "retryrmq publish [OPTIONS] <--queue <QUEUE>|--exchange <EXCHANGE>> [BODY]", after_help = EXAMPLES, group = ArgGroup::new("target").required(true).args(["queue", "exchange"]))]
pub(crate) struct Options {
    /// The queue to publish to, by way of the default exchange
    #[arg(long)]
    queue: Option<String>,

    /// The exchange to publish to
    #[arg(long, conflicts_with = "delay")]
    exchange: Option<String>,

    /// The routing key, for an exchange
    #[arg(
        long,
        value_name = "KEY",
        requires = "exchange",
        conflicts_with = "queue"
    )]
    routing_key: Option<String>,

    /// A header: NAME=TEXT, or NAME:=JSON for a number, a flag, null, a list or an object; may be given several times
    #[arg(long = "header", value_name = "NAME=TEXT")]
    headers: Vec<String>,

    /// The message's id; of several messages it is ID-1, ID-2, …
    #[arg(long, value_name = "ID")]
    message_id: Option<String>,

    /// The body's type, such as application/json
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,

    /// Deliver it later: 30s, 5m, 1h30m
    #[arg(long, value_name = "DURATION")]
    delay: Option<String>,

    /// Publish the body this many times
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "lines")]
    count: Option<u64>,

    /// Publish every line of standard input as a message of its own
    #[arg(long, conflicts_with = "body")]
    lines: bool,

    /// The body; standard input when it is left out
    body: Option<String>,
}

const EXAMPLES: &str = "\
Examples:
  retryrmq publish --queue orders --message-id 7 '{\"id\": 7}'
  retryrmq publish --exchange shop --routing-key eu.orders \\
      --header tenant=acme --header size:=3 < order.bin
  retryrmq publish --queue orders --delay 10m 'not before then'
  seq 1000 | retryrmq publish --queue orders --lines --message-id order";

/// Messages under way at a time.
const OUTSTANDING: usize = 200;
/// Each delayed message looks at its queues first, which takes a connection.
const DELAYED_OUTSTANDING: usize = 4;
/// RabbitMQ takes more, clients and operators rarely do.
const LONGEST_NAME: usize = 255;

pub(crate) async fn run(
    options: Options,
    global: &Global,
    output: &Output,
) -> Result<Exit, CliError> {
    let template = Template::read(&options)?;
    if options.body.is_none() && io::stdin().is_terminal() {
        return Err(CliError::usage(
            "there is no body: give it as an argument, or pipe it into standard input",
        ));
    }
    let bodies = bodies(&options)?;
    let client = global.connect().await?;
    // In order: a message is under way from its first poll on, and tokio's budget for a task would put some polls off.
    let published = tokio::task::unconstrained(publish(&client, &template, bodies, output)).await;
    client.close().await;
    let count = published?;
    if output.is_json() {
        output.json_document(&json!({ "published": count }))?;
    } else {
        let later = options
            .delay
            .map(|delay| format!(", to be delivered in {delay}"))
            .unwrap_or_default();
        output.note(&format!(
            "{} published and confirmed{later}",
            plural::messages(count)
        ));
    }
    Ok(Exit::Ok)
}

async fn publish(
    client: &Client,
    template: &Template,
    bodies: Bodies,
    output: &Output,
) -> Result<u64, CliError> {
    let Bodies { mut bodies, total } = bodies;
    let numbered = total != Some(1);
    let progress = output.progress(total, "published");
    let outstanding = if template.delay.is_some() {
        DELAYED_OUTSTANDING
    } else {
        OUTSTANDING
    };
    let mut number = 0;
    let mut count = 0;
    let bodies = stream::poll_fn(|context| bodies.poll_recv(context));
    let mut confirmed = bodies
        .map(|body| {
            number += 1;
            let id = numbered.then_some(number);
            async move { Ok::<_, CliError>(client.publish(template.message(body?, id)?).await?) }
        })
        .buffered(outstanding);
    loop {
        match confirmed.try_next().await {
            Ok(Some(())) => count += 1,
            Ok(None) => break,
            Err(cli_error) if total == Some(1) => return Err(cli_error),
            Err(cli_error) => {
                let done = format!(
                    "{} before it {} published",
                    plural::messages(count),
                    plural::word(count, "was", "were")
                );
                return Err(cli_error.on_the_way().after(&done));
            }
        }
        progress.set_position(count);
    }
    progress.finish_and_clear();
    Ok(count)
}

/// The bodies to come, and how many if that is known.
struct Bodies {
    bodies: mpsc::Receiver<Result<Vec<u8>, CliError>>,
    total: Option<u64>,
}

/// Reads in the background: lines may trickle in for hours.
fn bodies(options: &Options) -> Result<Bodies, CliError> {
    let (send, bodies) = mpsc::channel(OUTSTANDING);
    let unreadable =
        |why: io::Error| CliError::failed(format!("cannot read standard input: {why}"));
    if options.lines {
        std::thread::spawn(move || {
            for line in io::BufRead::split(io::stdin().lock(), b'\n') {
                let line = line.map_err(unreadable).map(|mut line| {
                    if line.last() == Some(&b'\r') {
                        line.pop();
                    }
                    line
                });
                if send.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        return Ok(Bodies {
            bodies,
            total: None,
        });
    }
    let body = match &options.body {
        Some(body) => body.clone().into_bytes(),
        None => {
            let mut body = Vec::new();
            io::stdin()
                .lock()
                .read_to_end(&mut body)
                .map_err(unreadable)?;
            body
        }
    };
    let count = options.count.unwrap_or(1);
    std::thread::spawn(move || {
        for _ in 0..count {
            if send.blocking_send(Ok(body.clone())).is_err() {
                return;
            }
        }
    });
    Ok(Bodies {
        bodies,
        total: Some(count),
    })
}

/// Everything about the messages but their bodies.
struct Template {
    exchange: String,
    routing_key: String,
    properties: BasicProperties,
    message_id: Option<String>,
    delay: Option<Duration>,
}

impl Template {
    fn read(options: &Options) -> Result<Self, CliError> {
        let mut properties = BasicProperties::default().with_delivery_mode(2);
        if let Some(content_type) = &options.content_type {
            properties = properties.with_content_type(short("--content-type", content_type)?);
        }
        if !options.headers.is_empty() {
            let mut table = FieldTable::default();
            for text in &options.headers {
                let (name, value) = header(text)?;
                table.insert(name, value);
            }
            properties = properties.with_headers(table);
        }
        let delay = options.delay.as_deref().map(parse_duration).transpose();
        let delay = delay.map_err(|why| CliError::usage(format!("--delay: {why}")))?;
        let (exchange, routing_key) = match &options.queue {
            Some(queue) if queue.is_empty() => {
                return Err(CliError::usage("--queue is empty; name a queue"));
            }
            Some(queue) => (String::new(), queue.clone()),
            None => (
                options.exchange.clone().unwrap_or_default(),
                options.routing_key.clone().unwrap_or_default(),
            ),
        };
        Ok(Self {
            exchange,
            routing_key,
            properties,
            message_id: options.message_id.clone(),
            delay,
        })
    }

    fn message(&self, body: Vec<u8>, number: Option<u64>) -> Result<Publish, CliError> {
        let mut properties = self.properties.clone();
        if let Some(id) = &self.message_id {
            let id = number.map_or_else(|| id.clone(), |number| format!("{id}-{number}"));
            properties = properties.with_message_id(short("--message-id", &id)?);
        }
        let message =
            Publish::to_exchange(&self.exchange, &self.routing_key, body).properties(properties);
        Ok(match self.delay {
            Some(delay) => message.delay(delay),
            None => message,
        })
    }
}

fn short(option: &str, text: &str) -> Result<ShortString, CliError> {
    ShortString::try_new(text).map_err(|_| {
        CliError::usage(format!(
            "{option} has {} bytes and AMQP carries {LONGEST_NAME}",
            text.len()
        ))
    })
}

/// `NAME=TEXT` or `NAME:=JSON`.
fn header(text: &str) -> Result<(ShortString, AMQPValue), CliError> {
    let bad = |why: &str| {
        let shown: String = text.chars().take(60).collect();
        CliError::usage(format!(
            "--header `{shown}`: {why}; write it NAME=TEXT or NAME:=JSON"
        ))
    };
    let (name, value) = text.split_once('=').ok_or_else(|| bad("there is no `=`"))?;
    let (name, value) = match name.strip_suffix(':') {
        None => (name, AMQPValue::LongString(value.into())),
        Some(name) => {
            let json: Value = serde_json::from_str(value)
                .map_err(|why| bad(&format!("this is not JSON ({why})")))?;
            (
                name,
                amqp(&json)
                    .ok_or_else(|| bad("this number fits no AMQP type, or a name is too long"))?,
            )
        }
    };
    if name.is_empty() {
        return Err(bad("the name is empty"));
    }
    Ok((short("the name of a --header", name)?, value))
}

/// JSON in the AMQP types that every client understands.
fn amqp(json: &Value) -> Option<AMQPValue> {
    Some(match json {
        Value::Null => AMQPValue::Void,
        Value::Bool(flag) => AMQPValue::Boolean(*flag),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => AMQPValue::LongLongInt(integer),
            None if number.is_u64() => return None,
            None => AMQPValue::Double(number.as_f64()?),
        },
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(items) => AMQPValue::FieldArray(FieldArray::from(
            items.iter().map(amqp).collect::<Option<Vec<_>>>()?,
        )),
        Value::Object(entries) => {
            let mut table = FieldTable::default();
            for (name, value) in entries {
                table.insert(ShortString::try_new(name.as_str()).ok()?, amqp(value)?);
            }
            AMQPValue::FieldTable(table)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_text_or_json() {
        for (text, name, value) in [
            ("a=b", "a", AMQPValue::LongString("b".into())),
            ("a=", "a", AMQPValue::LongString("".into())),
            ("a=b=c", "a", AMQPValue::LongString("b=c".into())),
            ("n:=5", "n", AMQPValue::LongLongInt(5)),
            ("n:=-2.5", "n", AMQPValue::Double(-2.5)),
            ("n:=null", "n", AMQPValue::Void),
            (
                "n:=[true]",
                "n",
                AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::Boolean(true)])),
            ),
        ] {
            let (found, amqp) = header(text).unwrap();
            assert_eq!((found.as_str(), amqp), (name, value), "{text}");
        }
        let long = format!("{}=x", "n".repeat(256));
        for text in [
            "",
            "a",
            "=b",
            ":=1",
            "n:=x",
            "n:=18446744073709551615",
            &long,
        ] {
            assert_eq!(header(text).unwrap_err().exit(), Exit::Usage, "{text}");
        }
    }
}
