//! A naive retrying consumer that obeys the driver contract, one message at a time, with flaws to switch on.
//!
//! It exists for the checker's own tests: without a flaw it passes, and every flaw must be found.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use retryrmq_scenarios::{field, observations};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

/// What a careless implementation gets wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    None,
    /// Waits half as long.
    Early,
    /// Acks a failed message and publishes nothing.
    Loses,
    /// Publishes the copy and forgets to ack.
    Doubles,
    /// Drops the publisher's headers.
    Strips,
    /// Parks without saying why.
    Mute,
    /// Retries once more than the policy says.
    Stubborn,
    /// Keeps running after SIGTERM.
    Deaf,
    /// Dies for no reason.
    Dies,
    /// Prints something else.
    Chatty,
    /// Tells the wrong attempt.
    Miscounts,
}

impl Flaw {
    fn named(name: &str) -> Option<Self> {
        let all = [
            Self::None,
            Self::Early,
            Self::Loses,
            Self::Doubles,
            Self::Strips,
            Self::Mute,
            Self::Stubborn,
            Self::Deaf,
            Self::Dies,
            Self::Chatty,
            Self::Miscounts,
        ];
        all.into_iter()
            .find(|flaw| format!("{flaw:?}").eq_ignore_ascii_case(name))
    }
}

type Failed = Box<dyn std::error::Error>;

struct Toy {
    channel: Channel,
    queue: String,
    delay_ms: u64,
    retries: i64,
    handler: BTreeMap<String, Vec<Value>>,
    runs: BTreeMap<String, usize>,
    flaw: Flaw,
}

#[tokio::main]
async fn main() -> Result<(), Failed> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "none".into());
    let flaw = Flaw::named(&name).ok_or_else(|| format!("'{name}' is no flaw"))?;
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let order: Value = serde_json::from_str(&text)?;
    if order["task"] == "describe" {
        say(&json!({"line": "driver", "name": "toy", "can": ["error", "exit"]}));
        return Ok(());
    }
    let url = order["url"].as_str().ok_or("no url")?;
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let (delay_ms, retries) =
        fixed(order["consume"]["retry"].as_str().unwrap_or_default()).ok_or("only fixed(…)")?;
    let mut toy = Toy {
        channel,
        queue: order["queue"].as_str().ok_or("no queue")?.into(),
        delay_ms: if flaw == Flaw::Early {
            delay_ms / 20
        } else {
            delay_ms
        },
        retries: if flaw == Flaw::Stubborn {
            retries + 1
        } else {
            retries
        },
        handler: serde_json::from_value(order["handler"].clone())?,
        runs: serde_json::from_value(order["runs"].clone())?,
        flaw,
    };
    toy.declare().await?;
    toy.consume().await?;
    connection.close(200, "done".into()).await?;
    say(&json!({"line": "done"}));
    Ok(())
}

/// Reads `fixed(300ms, retries=3)`.
fn fixed(policy: &str) -> Option<(u64, i64)> {
    let (delay, retries) = policy
        .strip_prefix("fixed(")?
        .strip_suffix(')')?
        .split_once("ms, retries=")?;
    Some((delay.parse().ok()?, retries.parse().ok()?))
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    drop(writeln!(out, "{line}"));
    drop(out.flush());
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |time| time.as_millis() as u64)
}

impl Toy {
    fn waiting_queue(&self) -> String {
        format!("{}.retry.{}", self.queue, self.delay_ms)
    }

    fn parking(&self) -> String {
        format!("{}.parked", self.queue)
    }

    async fn declare(&self) -> Result<(), Failed> {
        let mut arguments = FieldTable::default();
        arguments.insert(
            "x-queue-type".into(),
            AMQPValue::LongString("classic".into()),
        );
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        self.channel
            .queue_declare(self.parking().into(), durable, arguments.clone())
            .await?;
        arguments.insert(
            "x-message-ttl".into(),
            AMQPValue::LongLongInt(self.delay_ms as i64),
        );
        arguments.insert(
            "x-dead-letter-exchange".into(),
            AMQPValue::LongString("".into()),
        );
        arguments.insert(
            "x-dead-letter-routing-key".into(),
            AMQPValue::LongString(self.queue.as_str().into()),
        );
        self.channel
            .queue_declare(self.waiting_queue().into(), durable, arguments)
            .await?;
        Ok(())
    }

    async fn consume(&mut self) -> Result<(), Failed> {
        let mut stop = signal(SignalKind::terminate())?;
        self.channel
            .basic_qos(10, BasicQosOptions::default())
            .await?;
        let options = BasicConsumeOptions::default();
        let mut deliveries = self
            .channel
            .basic_consume(
                self.queue.as_str().into(),
                "toy".into(),
                options,
                FieldTable::default(),
            )
            .await?;
        say(&json!({"line": "ready"}));
        loop {
            tokio::select! {
                _ = stop.recv(), if self.flaw != Flaw::Deaf => return Ok(()),
                delivery = deliveries.next() => match delivery {
                    Some(delivery) => self.handle(delivery?).await?,
                    None => return Ok(()),
                },
            }
        }
    }

    async fn handle(&mut self, delivery: Delivery) -> Result<(), Failed> {
        let headers = delivery.properties.headers().clone().unwrap_or_default();
        let number = |name: &str| match headers.inner().get(name) {
            Some(AMQPValue::LongLongInt(number)) => *number,
            _ => 0,
        };
        let text = |name: &str| match headers.inner().get(name) {
            Some(AMQPValue::LongString(text)) => Some(text.to_string()),
            _ => None,
        };
        let id = text("scenario-id").ok_or("a message without an id")?;
        let retries = number("x-retry-count");
        let exchange = text("x-retry-exchange").unwrap_or_else(|| delivery.exchange.to_string());
        let routing_key =
            text("x-retry-routing-key").unwrap_or_else(|| delivery.routing_key.to_string());
        let run = self.runs.entry(id.clone()).or_default();
        *run += 1;
        let (run, told) = (
            *run,
            if self.flaw == Flaw::Miscounts {
                retries
            } else {
                retries + 1
            },
        );
        say(&json!({
            "line": "attempt", "id": id, "run": run, "at_ms": now_ms(), "attempt": told, "retries": told - 1,
            "exchange": exchange, "routing_key": routing_key, "headers": field::headers_plain(&headers),
            "body_bytes": delivery.data.len(), "body_sha256": observations::sha256(&delivery.data),
        }));
        let ok = json!({"do": "ok"});
        let steps = self.handler.get(&id);
        let step = steps
            .and_then(|steps| steps.get(run - 1).or(steps.last()))
            .unwrap_or(&ok);
        tokio::time::sleep(Duration::from_millis(
            step["sleep_ms"].as_u64().unwrap_or(0),
        ))
        .await;
        match self.flaw {
            Flaw::Dies => std::process::exit(3),
            Flaw::Chatty => println!("handling {id}"),
            _ => {}
        }
        if step["do"] == "exit" {
            std::process::abort();
        }
        say(&json!({"line": "settled", "id": id, "run": run, "at_ms": now_ms()}));
        if step["do"] == "error" && self.flaw != Flaw::Loses {
            let parked = retries >= self.retries;
            let mut headers = if self.flaw == Flaw::Strips {
                FieldTable::default()
            } else {
                headers
            };
            headers.insert("scenario-id".into(), AMQPValue::LongString(id.into()));
            headers.insert(
                "x-retry-count".into(),
                AMQPValue::LongLongInt(retries + i64::from(!parked)),
            );
            headers.insert(
                "x-retry-exchange".into(),
                AMQPValue::LongString(exchange.into()),
            );
            headers.insert(
                "x-retry-routing-key".into(),
                AMQPValue::LongString(routing_key.into()),
            );
            if parked && self.flaw != Flaw::Mute {
                headers.insert(
                    "x-retry-parked-reason".into(),
                    AMQPValue::LongString("exhausted".into()),
                );
                headers.insert(
                    "x-retry-parked-at".into(),
                    AMQPValue::Timestamp(now_ms() / 1000),
                );
                headers.insert("x-retry-protocol".into(), AMQPValue::LongLongInt(1));
                headers.insert(
                    "x-retry-fingerprint".into(),
                    AMQPValue::LongString("toy".into()),
                );
            }
            let target = if parked {
                self.parking()
            } else {
                self.waiting_queue()
            };
            let properties: BasicProperties = delivery.properties.clone().with_headers(headers);
            let options = BasicPublishOptions::default();
            self.channel
                .basic_publish(
                    "".into(),
                    target.into(),
                    options,
                    &delivery.data,
                    properties,
                )
                .await?;
            if self.flaw == Flaw::Doubles {
                return Ok(());
            }
        }
        delivery.ack(BasicAckOptions::default()).await?;
        Ok(())
    }
}
