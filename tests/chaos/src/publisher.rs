//! Publishes what a plan says, each message until it is confirmed.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq::{Client, ClientOptions, Publish};
use retryrmq_harness::eventually;
use tokio::time::sleep;

use crate::handler_script::HandlerScript;
use crate::ledger::SideLedger;
use crate::plan::{Id, PlannedMessage};
use crate::worker::NUMBER;

/// How long a message may go without being confirmed. A node that is killed is away for a while, and a confirm that does not come
/// is waited for.
const DEADLINE: Duration = Duration::from_secs(300);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(500);

/// Publishes letters to a queue for as long as it goes on, and returns when all are confirmed.
///
/// # Panics
/// When the broker cannot be reached at all.
pub async fn publish(
    url: &str,
    queue: &str,
    options: &ClientOptions,
    planned_messages: impl Iterator<Item = (u32, PlannedMessage)>,
    goes_on: impl Fn(u32) -> bool,
    ledger: &SideLedger,
) {
    let client = eventually(DEADLINE, "the publisher connects", || {
        Client::connect_with(url, options.clone())
    })
    .await;
    let mut outstanding = FuturesUnordered::new();
    for (number, planned_message) in planned_messages.take_while(|(number, _)| goes_on(*number)) {
        let pause = sleep(planned_message.after);
        tokio::pin!(pause);
        loop {
            tokio::select! {
                () = &mut pause => break,
                Some(()) = outstanding.next() => {}
            }
        }
        outstanding.push(deliver(&client, queue, number, planned_message, ledger));
    }
    while outstanding.next().await.is_some() {}
    client.close().await;
}

async fn deliver(
    client: &Client,
    queue: &str,
    number: u32,
    planned_message: PlannedMessage,
    ledger: &SideLedger,
) {
    ledger.publishing(number, planned_message.kind);
    let began = Instant::now();
    loop {
        match client
            .publish(message(queue, number, &planned_message))
            .await
        {
            Ok(()) => return ledger.published(number),
            Err(error) if began.elapsed() < DEADLINE => ledger.doubtful(number, &error.to_string()),
            Err(error) => {
                return ledger.problem(format!(
                    "message {number} was not confirmed within {DEADLINE:?}: {error}"
                ));
            }
        }
        sleep(PAUSE).await;
    }
}

fn message(queue: &str, number: u32, planned_message: &PlannedMessage) -> Publish {
    let mut headers = FieldTable::default();
    headers.insert(NUMBER.into(), AMQPValue::LongLongInt(number.into()));
    if let HandlerScript::Forged(crashes) = planned_message.kind {
        headers.insert(
            "x-retry-crashes".into(),
            AMQPValue::LongLongInt(crashes.into()),
        );
    }
    let message = Publish::to_queue(queue, planned_message.kind.to_string()).headers(headers);
    let message = match planned_message.id {
        Id::None => message,
        Id::Own => message.message_id(&number.to_string()),
        Id::Shared => message.message_id("the same"),
    };
    match planned_message.delay {
        Some(delay) => message.delay(delay),
        None => message,
    }
}
