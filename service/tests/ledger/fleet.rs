//! Five queues, their publisher, and consumers that have nothing but their native client: they reject at random.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{StreamExt, future::join_all};
use retryrmq_harness::{
    Ledger, Message, QueueType, Vhost,
    lapin::{
        self, Connection, ConnectionProperties,
        options::{
            BasicAckOptions, BasicConsumeOptions, BasicGetOptions, BasicPublishOptions,
            BasicQosOptions, BasicRejectOptions, ConfirmSelectOptions,
        },
        types::{FieldTable, ShortString},
    },
};
use tokio::{
    task::{AbortHandle, JoinHandle},
    time::{Instant, sleep, timeout},
};

use crate::fixture::{INTAKE_PARKED, Seen, declare, id};

const QUEUES: [&str; 5] = ["orders", "billing", "mail", "stock.eu", "stock.us"];
/// How many publishes wait for their confirms at once, and how long the publisher rests after them: whoever is killed has
/// something on its way then.
const WAVE: usize = 50;
const REST: Duration = Duration::from_millis(200);
/// How long nothing new may happen before what is missing is called lost.
const QUIET: Duration = Duration::from_secs(90);
/// What a node that dies owes nobody an answer for.
const ANSWER: Duration = Duration::from_secs(20);

/// How many attempts a message takes, 1 to 4, of which the last are too many for the policy.
fn attempts_of(name: &str) -> usize {
    let sum: usize = name.bytes().map(usize::from).sum();
    sum % 4 + 1
}

pub(crate) struct Fleet {
    urls: Arc<Vec<String>>,
    ledger: Ledger,
    /// What came to a queue that it was not published to.
    astray: Arc<Mutex<Vec<String>>>,
    consumers: Vec<AbortHandle>,
}

impl Fleet {
    pub(crate) async fn start(vhost: &Vhost, urls: Vec<String>) -> Self {
        let amqp = vhost.connect().await;
        let urls = Arc::new(urls);
        let ledger = Ledger::new();
        let astray = Arc::<Mutex<Vec<String>>>::default();
        let mut consumers = Vec::new();
        for queue in QUEUES {
            declare(&amqp, queue, QueueType::Quorum, true).await;
            let (ledger, astray) = (ledger.clone(), Arc::clone(&astray));
            let accepts = move |message: &Seen| {
                if message.body != queue.as_bytes() {
                    astray.lock().unwrap().push(message.id.clone());
                }
                // By its count and not by what was seen, so that a copy that came twice ends as the other.
                let accepted = message.attempt() >= attempts_of(&message.id);
                if accepted {
                    ledger.handled(&message.id);
                }
                accepted
            };
            let consuming = consume_for_ever(Arc::clone(&urls), queue, accepts);
            consumers.push(tokio::spawn(consuming).abort_handle());
        }
        Self {
            urls,
            ledger,
            astray,
            consumers,
        }
    }

    /// Publishes so many messages, again where no confirm came.
    pub(crate) fn publish(&self, count: usize) -> JoinHandle<()> {
        let (urls, ledger) = (Arc::clone(&self.urls), self.ledger.clone());
        tokio::spawn(async move {
            let mut open: Vec<usize> = (0..count).collect();
            for turn in 0.. {
                let url = &urls[turn % urls.len()];
                if let Ok(Ok(channel)) = timeout(ANSWER, confirming(url)).await {
                    publish_waves(&channel.1, &mut open, &ledger).await;
                }
                if open.is_empty() {
                    return;
                }
                sleep(Duration::from_millis(200)).await;
            }
        })
    }

    /// Whether all that can succeed has done so; the rest is parked or on its way there.
    pub(crate) fn is_nearly_done(&self) -> bool {
        let open = self.ledger.unsettled();
        open.iter().all(|name| attempts_of(name) > 3)
    }

    /// Waits until every message is handled or was found parked, or until nothing happens any more.
    pub(crate) async fn settle(&self) {
        let mut open = usize::MAX;
        let mut since = Instant::now();
        while !self.ledger.is_settled() && since.elapsed() < QUIET {
            for url in self.urls.iter() {
                if let Ok(Ok((connection, _channel))) = timeout(ANSWER, channel(url)).await {
                    self.collect(&connection).await;
                    let closing = connection.close(200, ShortString::default());
                    let _ = timeout(ANSWER, closing).await;
                    break;
                }
            }
            let now_open = self.ledger.unsettled().len();
            if now_open < open {
                (open, since) = (now_open, Instant::now());
            }
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Takes what is parked. What fails is done in the next turn: a queue without a leader refuses, and some do not exist yet.
    async fn collect(&self, connection: &Connection) {
        for queue in QUEUES {
            let is_parked = |message: Message| {
                assert_eq!(message.text(), queue);
                let name = message.id().expect("an id");
                assert!(attempts_of(name) > 3, "{name} is parked too early");
                self.ledger.parked(name);
            };
            let _ = take_all(connection, &format!("{queue}.parked"), is_parked).await;
        }
        let was_not_retried = |message: Message| {
            let said = |name| message.header_text(name).unwrap_or_default();
            panic!(
                "{:?} was not retried: {}: {}",
                message.id(),
                said("x-retry-parked-reason"),
                said("x-retry-error")
            );
        };
        let _ = take_all(connection, INTAKE_PARKED, was_not_retried).await;
    }

    pub(crate) fn balance(&self, what: &str) {
        let report = self.ledger.assert_nothing_lost(what);
        assert_eq!(report.unrecorded, 0);
        assert_eq!(*self.astray.lock().unwrap(), Vec::<String>::new());
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.consumers.iter().for_each(AbortHandle::abort);
    }
}

async fn channel(url: &str) -> lapin::Result<(Connection, lapin::Channel)> {
    let connection = Connection::connect(url, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    Ok((connection, channel))
}

/// Takes the messages of a queue. It acknowledges each one when it is in the ledger: an answer that a dying node owes would take
/// a message with it otherwise.
async fn take_all(
    connection: &Connection,
    queue: &str,
    book: impl Fn(Message),
) -> lapin::Result<()> {
    let taken = async {
        let channel = connection.create_channel().await?;
        let get = || channel.basic_get(ShortString::from(queue), BasicGetOptions::default());
        while let Some(got) = get().await? {
            book(Message::from(&got.delivery));
            got.delivery.acker.ack(BasicAckOptions::default()).await?;
        }
        channel.close(200, ShortString::default()).await
    };
    timeout(ANSWER, taken).await.unwrap_or(Ok(()))
}

async fn confirming(url: &str) -> lapin::Result<(Connection, lapin::Channel)> {
    let (connection, channel) = channel(url).await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    Ok((connection, channel))
}

/// Publishes until the channel fails. A message whose confirm was lost may be there, and is published again.
async fn publish_waves(channel: &lapin::Channel, open: &mut Vec<usize>, ledger: &Ledger) {
    while !open.is_empty() {
        let wave: Vec<usize> = open.iter().rev().take(WAVE).copied().collect();
        let published = join_all(wave.iter().map(|number| async move {
            let queue = QUEUES[number % QUEUES.len()];
            let name = format!("{queue}-{number}");
            let mandatory = BasicPublishOptions {
                mandatory: true,
                ..BasicPublishOptions::default()
            };
            let properties = id(&name).with_delivery_mode(2);
            let publish = channel.basic_publish(
                ShortString::default(),
                ShortString::from(queue),
                mandatory,
                queue.as_bytes(),
                properties,
            );
            let confirmed = timeout(ANSWER, async { publish.await?.await }).await;
            let taken = matches!(&confirmed, Ok(Ok(confirmed)) if confirmed.is_ack());
            taken.then_some((*number, name))
        }))
        .await;
        let taken: Vec<_> = published.into_iter().flatten().collect();
        let all = taken.len() == wave.len();
        for (number, name) in taken {
            ledger.published(name);
            open.retain(|open| *open != number);
        }
        if !all {
            return;
        }
        sleep(REST).await;
    }
}

/// How long a consumer may get nothing before it connects anew. The client can wait for ever for a node that was killed.
const IDLE: Duration = Duration::from_secs(30);

/// Consumes from whichever node is there.
async fn consume_for_ever(
    urls: Arc<Vec<String>>,
    queue: &'static str,
    accepts: impl Fn(&Seen) -> bool + Send + 'static,
) {
    for turn in 0.. {
        let url = &urls[turn % urls.len()];
        // What it failed of is a node that was killed.
        let _ = consume(url, queue, &accepts).await;
        sleep(Duration::from_millis(200)).await;
    }
}

async fn consume(
    url: &str,
    queue: &'static str,
    accepts: &(impl Fn(&Seen) -> bool + Send + 'static),
) -> lapin::Result<()> {
    let Ok(connected) = timeout(ANSWER, channel(url)).await else {
        return Ok(());
    };
    let (_connection, channel) = connected?;
    let subscribed = async {
        channel.basic_qos(50, BasicQosOptions::default()).await?;
        let consuming = channel.basic_consume(
            ShortString::from(queue),
            ShortString::default(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        );
        consuming.await
    };
    let Ok(deliveries) = timeout(ANSWER, subscribed).await else {
        return Ok(());
    };
    let mut deliveries = deliveries?;
    while let Ok(Some(delivery)) = timeout(IDLE, deliveries.next()).await {
        let delivery = delivery?;
        let settled = async {
            if accepts(&Seen::of(queue, &delivery)) {
                delivery.acker.ack(BasicAckOptions::default()).await
            } else {
                let no = BasicRejectOptions { requeue: false };
                delivery.acker.reject(no).await
            }
        };
        let Ok(settled) = timeout(ANSWER, settled).await else {
            return Ok(());
        };
        settled?;
    }
    Ok(())
}
