//! A dependency is away for some time while messages go on coming: how often it is called in vain, what is given up, and how long
//! after its return everything is done. The policy is the same for all: five retries after 1, 2, 4, 8 and 16 seconds.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::StreamExt;
use lapin::{
    Consumer,
    message::Delivery,
    types::{AMQPValue, FieldTable},
};
use retryrmq::{Backoff, Client, Pause, Policy, Publish, SECOND, parking_queue, waiting_queue};
use retryrmq_harness::{Amqp, QueueType};
use tokio::time::{Instant, interval, sleep};

use super::{BODY, Measured, delivery};
use crate::{process, rounds::number};

const RETRIES: u32 = 5;
/// Messages a second.
const RATE: usize = 100;

/// How long it is away; `RETRYRMQ_BENCH_OUTAGE` changes it.
fn seconds() -> usize {
    number("RETRYRMQ_BENCH_OUTAGE", 120)
}

pub(crate) fn messages() -> usize {
    seconds() * RATE
}

pub(crate) fn in_words() -> String {
    format!(
        "{} messages, {RATE} a second for {} s, in which every attempt fails; five retries after 1 to 16 s; quorum, one round",
        messages(),
        seconds()
    )
}

fn policy() -> Policy {
    Backoff::exponential(SECOND).factor(2.0).retries(RETRIES)
}

/// What came of the messages so far, and when the dependency is back.
struct OutageCounts {
    back: Instant,
    cpu: Duration,
    attempts: AtomicUsize,
    handled: AtomicUsize,
    parked: AtomicUsize,
}

impl OutageCounts {
    /// The outage begins.
    fn new() -> Arc<Self> {
        Arc::new(Self {
            back: Instant::now() + Duration::from_secs(seconds() as u64),
            cpu: process::cpu(),
            attempts: AtomicUsize::new(0),
            handled: AtomicUsize::new(0),
            parked: AtomicUsize::new(0),
        })
    }

    /// Calls the dependency.
    fn attempt(&self) -> Result<(), &'static str> {
        if Instant::now() < self.back {
            self.attempts.fetch_add(1, Ordering::Relaxed);
            Err("it is away")
        } else {
            self.handled.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    /// Publishes at the rate until the dependency is back, and waits for the end of every message. `parked` says how many were
    /// given up.
    async fn over(&self, url: &str, queue: &str, parked: impl AsyncFn() -> usize) -> Measured {
        let rmq = Client::connect(url).await.expect("connected");
        let mut pace = interval(SECOND / RATE as u32);
        for _ in 0..messages() {
            pace.tick().await;
            let message = Publish::to_queue(queue, BODY);
            rmq.publish(message).await.expect("published");
        }
        rmq.close().await;
        while self.handled.load(Ordering::Relaxed) + parked().await < messages() {
            sleep(Duration::from_millis(100)).await;
        }
        let after = self.back.elapsed();
        let cpu = process::cpu().saturating_sub(self.cpu);
        Measured::default()
            .with("attempts", self.attempts.load(Ordering::Relaxed) as f64)
            .with("parked", parked().await as f64)
            .with("after_s", after.as_secs_f64())
            .with("cpu_us", cpu.as_secs_f64() * 1e6 / messages() as f64)
    }
}

pub(super) async fn retryrmq(
    url: &str,
    queue: &str,
    outstanding: usize,
    pause: Option<Pause>,
) -> Measured {
    let rmq = Client::connect(url).await.expect("connected");
    let counts = OutageCounts::new();
    let asked = Arc::clone(&counts);
    let mut consumer = rmq
        .consumer(queue)
        .dlx(true)
        .retry(policy())
        .prefetch(u16::try_from(outstanding).expect("a prefetch"));
    if let Some(pause) = pause {
        consumer = consumer.pause(pause);
    }
    let running = consumer
        .start(move |_| std::future::ready(asked.attempt()))
        .await
        .expect("consuming");
    let parked = async || usize::try_from(running.stats().parked).expect("few");
    let measured = counts.over(url, queue, parked).await;
    running.close().await;
    measured
}

/// The loop that people write: a copy to the queue of the next delay, or to the queue of the dead, then the acknowledgement.
pub(super) async fn by_hand(url: &str, queue: &str, outstanding: usize) -> Measured {
    let rmq = Client::connect(url).await.expect("connected");
    let consumer = rmq.consumer(queue).dlx(true).retry(policy());
    let plan = consumer.plan().expect("a plan");
    rmq.apply_plan(&plan).await.expect("queues");
    let amqp = Amqp::connect(url).await;
    let consumer = consume(&amqp, queue, outstanding).await;
    let (counts, publishing) = (OutageCounts::new(), amqp.channel().clone());
    let (asked, from) = (Arc::clone(&counts), queue.to_owned());
    let loop_ = each(consumer, move |delivery| {
        let (counts, publishing, from) = (Arc::clone(&asked), publishing.clone(), from.clone());
        async move {
            if counts.attempt().is_err() {
                let to = next_place(&from, delivery::failed(&delivery), &counts);
                delivery::copy(&publishing, &to, &delivery).await;
            }
            delivery::acknowledge(&delivery).await;
        }
    });
    let parked = async || counts.parked.load(Ordering::Relaxed);
    let measured = counts.over(url, queue, parked).await;
    loop_.abort();
    measured
}

/// Where the loop by hand sends what has failed so often.
fn next_place(queue: &str, failed: u32, counts: &OutageCounts) -> String {
    if failed < RETRIES {
        waiting_queue(queue, SECOND * 2_u32.pow(failed))
    } else {
        counts.parked.fetch_add(1, Ordering::Relaxed);
        parking_queue(queue)
    }
}

/// Given back at once, without a count.
pub(super) async fn requeue(url: &str, queue: &str, outstanding: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    amqp.declare(queue, QueueType::Quorum).await;
    let consumer = consume(&amqp, queue, outstanding).await;
    without_copies(consumer, url, queue, delivery::requeue, async || 0).await
}

/// A task for each delivery gives back what fails, and acknowledges what does not.
async fn without_copies<F: Future<Output = ()> + Send + 'static>(
    consumer: Consumer,
    url: &str,
    queue: &str,
    give_back: fn(Delivery) -> F,
    parked: impl AsyncFn() -> usize,
) -> Measured {
    let counts = OutageCounts::new();
    let asked = Arc::clone(&counts);
    let loop_ = each(consumer, move |delivery| {
        let counts = Arc::clone(&asked);
        async move {
            match counts.attempt() {
                Ok(()) => delivery::acknowledge(&delivery).await,
                Err(_) => give_back(delivery).await,
            }
        }
    });
    let measured = counts.over(url, queue, parked).await;
    loop_.abort();
    measured
}

/// The queue's own delayed retry: the delay grows by its minimum each time, and past the limit a message is dead-lettered.
pub(super) async fn delayed_retry(url: &str, queue: &str, outstanding: usize) -> Measured {
    let amqp = Amqp::connect(url).await;
    let dead = format!("{queue}.dead");
    amqp.declare(&dead, QueueType::Quorum).await;
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = FieldTable::default();
    for (name, value) in [
        ("x-delayed-retry-type", text("failed")),
        ("x-delayed-retry-min", AMQPValue::LongInt(1_000)),
        ("x-delayed-retry-max", AMQPValue::LongInt(16_000)),
        ("x-delivery-limit", AMQPValue::LongInt(RETRIES as i32)),
        ("x-dead-letter-exchange", text("")),
        ("x-dead-letter-routing-key", text(&dead)),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
    ] {
        arguments.insert(name.into(), value);
    }
    amqp.declare_with(queue, QueueType::Quorum, arguments).await;
    let consumer = consume(&amqp, queue, outstanding).await;
    let parked = async || amqp.depth(&dead).await.unwrap_or_default() as usize;
    without_copies(consumer, url, queue, delivery::reject, parked).await
}

async fn consume(amqp: &Amqp, queue: &str, outstanding: usize) -> Consumer {
    let prefetch = u16::try_from(outstanding).expect("a prefetch");
    amqp.consume(queue, prefetch).await
}

/// A task for each delivery, until it is aborted.
fn each<F: Future<Output = ()> + Send + 'static>(
    mut consumer: Consumer,
    handle: impl Fn(Delivery) -> F + Send + 'static,
) -> tokio::task::JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(Ok(delivery)) = consumer.next().await {
            tokio::spawn(handle(delivery));
        }
    })
}
