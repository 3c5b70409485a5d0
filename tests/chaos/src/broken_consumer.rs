//! A consumer as many are written, with plain lapin: it acknowledges a failed message, and then publishes a copy that nobody
//! confirms. The ledger must find what it loses.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions, QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable, ShortString};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties};
use retryrmq_faults::worker::tell;
use tokio::signal::unix::{SignalKind, signal};

use crate::handler_script::{ATTEMPTS, AttemptEnd, HandlerScript};
use crate::worker::{WorkerOptions, act, number};

/// Between the acknowledgement and the copy: what is a moment in others is a while here, so that a kill falls into it.
const HASTE: Duration = Duration::from_millis(300);
const ATTEMPT: &str = "attempt";

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

pub(crate) async fn consume(orders: WorkerOptions) -> Outcome {
    let mut end = signal(SignalKind::terminate())?;
    let connection = Connection::connect(&orders.url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let parked = ShortString::from(format!("{}.parked", orders.queue));
    let parking = channel.queue_declare(parked, QueueDeclareOptions::durable(), quorum());
    parking.await?;
    channel
        .basic_qos(orders.prefetch, BasicQosOptions::default())
        .await?;
    let mut deliveries = channel
        .basic_consume(
            orders.queue.as_str().into(),
            "".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    tell(format_args!("ready"));
    loop {
        let delivery = tokio::select! {
            delivery = deliveries.next() => delivery.ok_or("the queue is gone")??,
            _ = end.recv() => return Ok(()),
        };
        let (channel, orders) = (channel.clone(), orders.clone());
        tokio::spawn(async move {
            // What goes wrong here is what this consumer is here for.
            let _ = settle(&channel, &delivery, &orders).await;
        });
    }
}

async fn settle(channel: &Channel, delivery: &Delivery, orders: &WorkerOptions) -> Outcome {
    let headers = delivery.properties.headers().clone().unwrap_or_default();
    let number = number(&headers).ok_or("no number")?;
    let kind: HandlerScript = std::str::from_utf8(&delivery.data)?.parse()?;
    let attempt = match headers.inner().get(ATTEMPT) {
        Some(AMQPValue::LongUInt(attempt)) => *attempt,
        _ => 1,
    };
    let attempt_end = act(number, kind, attempt, attempt - 1, &orders.scratch).await;
    channel
        .basic_ack(delivery.delivery_tag, BasicAckOptions::default())
        .await?;
    let (queue, reason) = match attempt_end {
        AttemptEnd::Succeed => return Ok(()),
        AttemptEnd::Park => (format!("{}.parked", orders.queue), "requested"),
        _ if attempt == ATTEMPTS => (format!("{}.parked", orders.queue), "exhausted"),
        _ => (orders.queue.clone(), ""),
    };
    tokio::time::sleep(HASTE).await;
    let mut copy: BTreeMap<_, _> = headers.inner().clone();
    copy.insert(ATTEMPT.into(), AMQPValue::LongUInt(attempt + 1));
    if !reason.is_empty() {
        let reason = AMQPValue::LongString(reason.into());
        copy.insert("x-retry-parked-reason".into(), reason);
    }
    let properties = BasicProperties::default().with_headers(copy.into());
    let options = BasicPublishOptions::default();
    channel
        .basic_publish("".into(), queue.into(), options, &delivery.data, properties)
        .await?;
    Ok(())
}

fn quorum() -> FieldTable {
    let mut arguments = FieldTable::default();
    let kind = AMQPValue::LongString("quorum".into());
    arguments.insert("x-queue-type".into(), kind);
    arguments
}
