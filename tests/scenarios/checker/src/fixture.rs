//! The stage of one run: a virtual host of its own, with the scenario's queues and messages in it.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_util::future::try_join_all;
use lapin::options::{BasicPublishOptions, ExchangeDeclareOptions, QueueBindOptions};
use lapin::types::{FieldTable, ShortString};
use lapin::{BasicProperties, ExchangeKind};
use retryrmq_harness::{Amqp, QueueType, Vhost};

use crate::hostile;
use crate::judge;
use crate::observations::{Observations, RemainingMessage, sha256};
use crate::scenario::{Message, QueueKind, Scenario};
use crate::{field, property, unreadable};

/// Why the checker itself could not go on: nothing that a driver can be blamed for.
pub type CheckerError = Box<dyn std::error::Error + Send + Sync>;

/// The checker's own eyes and hands in the virtual host of a run.
#[derive(Debug)]
pub struct Fixture {
    vhost: Vhost,
    amqp: Amqp,
}

impl Fixture {
    /// Connects and declares what the scenario says stands there beforehand.
    pub async fn set(
        vhost: Vhost,
        scenario: &Scenario,
        kind: QueueKind,
    ) -> Result<Self, CheckerError> {
        let amqp = vhost.connect().await;
        let topology = &scenario.topology;
        for exchange in &topology.exchanges {
            let kind = match exchange.kind.as_str() {
                "direct" => ExchangeKind::Direct,
                "fanout" => ExchangeKind::Fanout,
                "topic" => ExchangeKind::Topic,
                "headers" => ExchangeKind::Headers,
                other => ExchangeKind::Custom(other.into()),
            };
            let durable = ExchangeDeclareOptions {
                durable: true,
                ..ExchangeDeclareOptions::default()
            };
            amqp.channel()
                .exchange_declare(short(&exchange.name)?, kind, durable, FieldTable::default())
                .await?;
        }
        if topology.queue.declare {
            let queue = &topology.queue;
            amqp.try_declare_with(
                &queue.name,
                of_harness(kind),
                field::table(&queue.arguments)?,
            )
            .await?;
        }
        for queue in &topology.queues {
            let kind = of_harness(queue.kind.unwrap_or(kind));
            amqp.try_declare_with(&queue.name, kind, field::table(&queue.arguments)?)
                .await?;
        }
        for binding in &topology.bindings {
            let (queue, exchange, key) = (
                short(&binding.queue)?,
                short(&binding.exchange)?,
                short(&binding.routing_key)?,
            );
            amqp.channel()
                .queue_bind(
                    queue,
                    exchange,
                    key,
                    QueueBindOptions::default(),
                    FieldTable::default(),
                )
                .await?;
        }
        Ok(Self { vhost, amqp })
    }

    /// The address that the driver is given.
    pub fn url(&self) -> &str {
        self.vhost.url()
    }

    /// The user in that address.
    pub fn user(&self) -> String {
        let url = url::Url::parse(self.url()).ok();
        let user = url
            .as_ref()
            .map(|url| percent_encoding::percent_decode_str(url.username()).decode_utf8_lossy());
        user.filter(|user| !user.is_empty())
            .map_or_else(|| "guest".into(), |user| user.into_owned())
    }

    /// Publishes messages in order and waits for every confirm. Returns when each was handed over.
    pub async fn publish(
        &self,
        scenario: &Scenario,
        messages: &[Message],
    ) -> Result<BTreeMap<String, u64>, CheckerError> {
        let mut published = BTreeMap::new();
        let mut confirms = Vec::new();
        for message in messages.iter().flat_map(Message::each) {
            let key = message
                .routing_key
                .clone()
                .unwrap_or_else(|| scenario.topology.queue.name.clone());
            published.insert(message.id.clone(), now_ms());
            if message.unreadable {
                unreadable::publish(&self.vhost, &key, &message).await;
                continue;
            }
            if let Some(hostility) = message.hostile {
                let url = self.url().to_owned();
                tokio::task::spawn_blocking(move || {
                    hostile::publish(&url, &key, &message, hostility)
                })
                .await?;
                continue;
            }
            let headers = field::table(&message.all_headers())?;
            let properties = property::from_notation(&message.all_properties())?;
            let properties: BasicProperties = if headers.inner().is_empty() {
                properties
            } else {
                properties.with_headers(headers)
            };
            let options = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            let (exchange, key) = (short(&message.exchange)?, short(&key)?);
            let confirm = self
                .amqp
                .channel()
                .basic_publish(exchange, key, options, &message.bytes(), properties)
                .await?;
            confirms.push(async move { Ok::<_, lapin::Error>((message.id, confirm.await?)) });
        }
        for (id, confirmation) in try_join_all(confirms).await? {
            if confirmation.take_message().is_some() {
                return Err(format!("no queue took the message '{id}'").into());
            }
        }
        Ok(published)
    }

    /// How many messages are ready in a queue; 0 when it does not exist.
    pub async fn depth(&self, queue: &str) -> u32 {
        self.amqp.depth(queue).await.unwrap_or(0)
    }

    /// Whether somebody consumes a queue.
    pub async fn is_consumed(&self, queue: &str) -> bool {
        self.amqp
            .consumers(queue)
            .await
            .is_some_and(|consumers| consumers > 0)
    }

    /// The names of all queues.
    pub async fn queues(&self) -> Vec<String> {
        self.vhost
            .queues()
            .await
            .into_iter()
            .map(|queue| queue.name().to_owned())
            .collect()
    }

    /// Notes every queue and takes every message out of it.
    pub async fn clear(&self, scenario: &Scenario, seen: &mut Observations) {
        let messages = scenario.messages();
        let is_hostile = messages
            .iter()
            .any(|message| message.hostile.is_some() || message.unreadable);
        let unreadable = scenario.unreadable_queue();
        for queue in self.vhost.queues().await {
            // a hostile message that nobody consumed would do to the checker what it does to any client
            let is_work_queue = queue.name() == scenario.topology.queue.name;
            if is_hostile && (is_work_queue || queue.name() == unreadable) {
                let depth = self.depth(queue.name()).await;
                seen.unread.insert(queue.name().to_owned(), depth);
                if is_work_queue {
                    continue;
                }
            }
            let messages = if queue.name() == unreadable {
                Vec::new()
            } else {
                self.amqp.drain(queue.name()).await
            };
            let left = messages.into_iter().map(|message| RemainingMessage {
                body_bytes: message.body.len() as u64,
                body_sha256: sha256(&message.body),
                properties: message.properties,
                exchange: message.exchange,
                routing_key: message.routing_key,
            });
            seen.left.insert(queue.name().to_owned(), left.collect());
            let description =
                judge::description(queue.kind(), queue.is_durable(), queue.arguments());
            seen.queues.insert(queue.name().to_owned(), description);
        }
    }

    /// Leaves the stage; with `keep`, the virtual host stays as it is.
    pub async fn leave(self, keep: bool) {
        self.amqp.close().await;
        let vhost = self.vhost;
        if keep {
            eprintln!("kept {vhost:?}");
            std::mem::forget(vhost);
        } else {
            // deleting it waits for the management interface
            drop(tokio::task::spawn_blocking(move || drop(vhost)).await);
        }
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn of_harness(kind: QueueKind) -> QueueType {
    match kind {
        QueueKind::Classic => QueueType::Classic,
        QueueKind::Quorum => QueueType::Quorum,
    }
}

fn short(text: &str) -> Result<ShortString, CheckerError> {
    Ok(ShortString::try_new(text)?)
}
