//! What nearly every test needs: a client, handlers that record what they saw, and a look at what is parked.

use std::{
    error::Error,
    future::{Ready, ready},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use retryrmq::{
    BasicProperties, Client, ClientOptions, Consumer, Event, Message, Policy, QueueType,
    RunningConsumer, Stats,
    types::{AMQPValue, FieldArray, FieldTable, ShortString},
};
use retryrmq_harness::{self as harness, Amqp, Broker, Node, Vhost, eventually};

/// How long anything may take on a busy machine before a test gives up.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// Brokers count in whole milliseconds, from the start of the one in which a message came.
pub(crate) const CLOCK: Duration = Duration::from_millis(5);

pub(crate) const QUEUE: &str = "orders";
pub(crate) const PARKED: &str = "orders.parked";

/// What a handler of a test answers with.
pub(crate) type Answer = Result<(), Box<dyn Error + Send + Sync>>;

pub(crate) fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

pub(crate) fn policy(text: &str) -> Policy {
    text.parse().expect("the policy of a test can be read")
}

/// A node that takes back what is not settled for so long.
pub(crate) async fn node_with_consumer_timeout(broker: &Broker, timeout: Duration) -> Node {
    let timeout = format!("consumer_timeout = {}", timeout.as_millis());
    let node = broker.own_node(&[&timeout]).await;
    // How often it looks.
    let set = "application:set_env(rabbit, channel_tick_interval, 500).";
    node.ctl(&["eval", set]).await;
    node
}

/// A client in the vhost.
pub(crate) async fn connect(vhost: &Vhost) -> Client {
    let connect = || Client::connect(vhost.url());
    eventually(DEADLINE, "the broker lets us in", connect).await
}

/// A client whose waiting and parking queues are of the same type as the work queue.
pub(crate) async fn connect_with(vhost: &Vhost, kind: harness::QueueType) -> Client {
    let options = ClientOptions::new()
        .app_version("7.1")
        .queue_type(same(kind));
    let connect = || Client::connect_with(vhost.url(), options.clone());
    eventually(DEADLINE, "the broker lets us in", connect).await
}

pub(crate) fn same(kind: harness::QueueType) -> QueueType {
    match kind {
        harness::QueueType::Classic => QueueType::Classic,
        harness::QueueType::Quorum => QueueType::Quorum,
    }
}

/// Starts a consumer whose handler answers at once, and notes what it saw.
pub(crate) async fn start(
    consumer: Consumer,
    observations: &Observations,
    answer: impl Fn(&Message) -> Answer + Send + Sync + 'static,
) -> RunningConsumer {
    consumer
        .on_event(observations.listener())
        .start(observations.handler(answer))
        .await
        .expect("the consumer starts")
}

/// One attempt, as the handler saw it.
#[derive(Clone)]
pub(crate) struct Attempt {
    pub(crate) message: Message,
    pub(crate) at: Instant,
}

/// What handlers and listeners saw.
#[derive(Clone, Default)]
pub(crate) struct Observations {
    attempts: Arc<Mutex<Vec<Attempt>>>,
    events: Arc<Mutex<Vec<Event>>>,
}

impl Observations {
    pub(crate) fn note(&self, message: &Message) {
        self.attempts.lock().unwrap().push(Attempt {
            message: message.clone(),
            at: Instant::now(),
        });
    }

    pub(crate) fn handler(
        &self,
        answer: impl Fn(&Message) -> Answer + Send + Sync + 'static,
    ) -> impl Fn(Message) -> Ready<Answer> + Send + Sync + 'static {
        let observations = self.clone();
        move |message| {
            observations.note(&message);
            ready(answer(&message))
        }
    }

    pub(crate) fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let events = Arc::clone(&self.events);
        move |event| events.lock().unwrap().push(event.clone())
    }

    /// All attempts, in order.
    pub(crate) fn all(&self) -> Vec<Attempt> {
        self.attempts.lock().unwrap().clone()
    }

    /// The attempts on one message.
    pub(crate) fn of(&self, id: &str) -> Vec<Attempt> {
        let mut all = self.all();
        all.retain(|attempt| attempt.message.message_id() == Some(id));
        all
    }

    /// Waits until a message was attempted so often, and returns the attempts.
    pub(crate) async fn until(&self, id: &str, attempts: usize) -> Vec<Attempt> {
        eventually(
            DEADLINE,
            &format!("`{id}` is attempted {attempts} times"),
            || async {
                let seen = self.of(id);
                if seen.len() >= attempts {
                    Ok(seen)
                } else {
                    Err(format!("{} attempts", seen.len()))
                }
            },
        )
        .await
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// The names of the events so far.
    pub(crate) fn event_names(&self) -> Vec<&'static str> {
        self.events().iter().map(Event::name).collect()
    }

    /// Waits for an event of this name, and returns it.
    pub(crate) async fn event(&self, name: &str) -> Event {
        eventually(DEADLINE, &format!("the event {name}"), || async {
            let all = self.events();
            all.into_iter().find(|event| event.name() == name)
        })
        .await
    }
}

/// Waits until the numbers of a consumer are as they should be.
pub(crate) async fn stats(
    running: &RunningConsumer,
    what: &str,
    holds: impl Fn(&Stats) -> bool,
) -> Stats {
    eventually(DEADLINE, what, || async {
        let stats = running.stats();
        if holds(&stats) {
            Ok(stats)
        } else {
            Err(format!("{stats:?}"))
        }
    })
    .await
}

/// Properties with a message id.
pub(crate) fn id(id: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(ShortString::from(id))
}

/// Properties with a message id and headers.
pub(crate) fn with_headers(name: &str, headers: FieldTable) -> BasicProperties {
    id(name).with_headers(headers)
}

pub(crate) fn table<'a>(entries: impl IntoIterator<Item = (&'a str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}

pub(crate) fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

pub(crate) fn int(number: i64) -> AMQPValue {
    AMQPValue::LongLongInt(number)
}

pub(crate) fn array(items: Vec<AMQPValue>) -> AMQPValue {
    AMQPValue::FieldArray(FieldArray::from(items))
}

/// Waits until a queue holds so many messages, and takes them all.
pub(crate) async fn take(amqp: &Amqp, queue: &str, count: usize) -> Vec<harness::Message> {
    let what = format!("{queue} holds {count}");
    eventually(DEADLINE, &what, || async {
        match amqp.depth(queue).await {
            Some(depth) if depth as usize >= count => Ok(()),
            depth => Err(format!("{depth:?}")),
        }
    })
    .await;
    let all = amqp.drain(queue).await;
    assert_eq!(all.len(), count, "{queue} holds more than {count}");
    all
}

/// Waits until one message is parked, and takes it.
pub(crate) async fn parked(amqp: &Amqp) -> harness::Message {
    take(amqp, PARKED, 1).await.remove(0)
}

/// Waits until the queue is empty and nothing of it is with a consumer any more.
pub(crate) async fn settled(vhost: &Vhost, amqp: &Amqp, running: &RunningConsumer, queue: &str) {
    settled_at(amqp, running, &format!("{queue} of {vhost:?}"), queue).await;
}

/// As [`settled`], wherever the queue is.
pub(crate) async fn settled_at(amqp: &Amqp, running: &RunningConsumer, what: &str, queue: &str) {
    stats(running, "nothing is outstanding", |stats| {
        stats.outstanding == 0
    })
    .await;
    assert_eq!(amqp.depth(queue).await, Some(0), "{what} is empty");
}
