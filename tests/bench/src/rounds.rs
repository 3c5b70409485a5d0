//! Which cases run beside which, and how often.

use std::{process::Stdio, time::Duration};

use futures_util::StreamExt;
use retryrmq::{Client, Publish, Strategy};
use retryrmq_harness::{Amqp, Broker, QueueType, Version, brokers};
use tokio::{process::Command, time::sleep};

use crate::{
    cases::{self, BODY, Measured},
    report::{self, Row},
};

/// A waiting queue is no safe place before it is older than two seconds, and a consumer does not know how old one is that it finds.
const YOUNG: Duration = Duration::from_secs(3);

/// Rounds of each group; medians and the spread are of these. `RETRYRMQ_BENCH_ROUNDS` changes it.
pub(crate) fn rounds() -> usize {
    number("RETRYRMQ_BENCH_ROUNDS", 5)
}

/// A number above 0 from the environment.
pub(crate) fn number(name: &str, otherwise: usize) -> usize {
    let asked = std::env::var(name).ok();
    asked
        .and_then(|number| number.parse().ok())
        .filter(|number| *number > 0)
        .unwrap_or(otherwise)
}

/// The types of work queue; `RETRYRMQ_BENCH_KINDS` (`classic quorum`) chooses.
fn kinds() -> Vec<QueueType> {
    let asked = std::env::var("RETRYRMQ_BENCH_KINDS").unwrap_or_default();
    QueueType::ALL
        .into_iter()
        .filter(|kind| {
            asked.is_empty() || asked.split_whitespace().any(|one| one == kind.to_string())
        })
        .collect()
}

pub(crate) async fn all() {
    for name in ["consume", "retry", "storm", "outage", "lateness", "memory"] {
        only(name).await;
    }
}

/// One group of figures.
pub(crate) async fn only(name: &str) {
    let broker = brokers().remove(0);
    println!("\n== {name}, RabbitMQ {}", broker.version());
    match name {
        "consume" => consume(&broker).await,
        "retry" => retry(&broker).await,
        "storm" => storm(&broker).await,
        "outage" => outage(&broker).await,
        "lateness" => lateness(&broker).await,
        "memory" => memory(&broker).await,
        // Not one of all: it needs the command, built beside this.
        "http" => crate::http::compare(&broker).await,
        other => eprintln!("there is no group `{other}`"),
    }
}

async fn consume(broker: &Broker) {
    let count = number("RETRYRMQ_BENCH_COUNT", 100_000);
    println!(
        "consume and acknowledge {count} × 256 B, prefetch 200, {} rounds",
        rounds()
    );
    for kind in kinds() {
        let names = ["ack-each", "ack-each-tasks", "ack-multiple", "retryrmq"];
        let mut rows: Vec<Row> = names.iter().map(|name| Row::new(name)).collect();
        for _ in 0..rounds() {
            for (name, row) in names.iter().zip(&mut rows) {
                let vhost = broker.vhost().await;
                fill(vhost.url(), "work", kind, count).await;
                row.rounds
                    .push(case(name, vhost.url(), "work", count).await);
            }
        }
        report::keep("consume and acknowledge", &kind.to_string(), count, &rows);
        println!(
            "\n{kind:?} work queue\n{}",
            report::pace(&rows, &["ack-each", "ack-multiple"])
        );
    }
}

async fn retry(broker: &Broker) {
    println!(
        "{} messages, each fails once and waits 1 s; the two in turn, each with consumer and queues of three seconds",
        cases::retried()
    );
    for outstanding in [64, 200, 1_000] {
        let names = ["retry-by-hand", "retry-retryrmq"];
        let rows = failing_turns(broker, &names, cases::retried(), outstanding).await;
        let name = format!("quorum, {outstanding} outstanding");
        report::keep("fail once", &name, cases::retried(), &rows);
        println!(
            "\n{outstanding} outstanding\n{}",
            report::pace(&rows, &["retry-by-hand"])
        );
    }
}

/// Each case in turn, in which messages fail.
async fn failing_turns(
    broker: &Broker,
    names: &[&str],
    count: usize,
    outstanding: usize,
) -> Vec<Row> {
    let mut rows: Vec<Row> = names.iter().map(|name| Row::new(name)).collect();
    for _ in 0..rounds().min(3) {
        for (name, row) in names.iter().zip(&mut rows) {
            row.rounds
                .push(failing(broker, name, count, outstanding).await);
        }
    }
    rows
}

/// The consumer is there before the messages, and its queues are a safe place: see `docs/benchmarks.md`.
async fn failing(broker: &Broker, name: &str, count: usize, outstanding: usize) -> Measured {
    let vhost = broker.vhost().await;
    match name {
        "storm-retryrmq-native" => {
            cases::make_for_retry(vhost.url(), "work", Strategy::Native).await;
        }
        "storm-delayed-retry" => cases::make_for_delayed_retry(vhost.url(), "work").await,
        _ => cases::make_for_retry(vhost.url(), "work", Strategy::RetryQueues).await,
    }
    let case = start(name, vhost.url(), "work", outstanding);
    let amqp = Amqp::connect(vhost.url()).await;
    while amqp.consumers("work").await != Some(1) {
        sleep(Duration::from_millis(50)).await;
    }
    amqp.close().await;
    sleep(YOUNG).await;
    publish(vhost.url(), "work", count).await;
    case.await
}

/// The cases of a broker: what only 4.3 can do is left out on others.
fn possible(broker: &Broker, names: &[&'static str]) -> Vec<&'static str> {
    let only_4_3 = [
        "storm-delayed-retry",
        "storm-retryrmq-native",
        "outage-delayed-retry",
    ];
    let new = broker.version() >= Version::V4_3;
    let names = names.iter().copied();
    names
        .filter(|name| new || !only_4_3.contains(name))
        .collect()
}

async fn storm(broker: &Broker) {
    let (count, outstanding) = (cases::stormed(), 1_000);
    println!(
        "{count} messages, each fails five times and waits 1 s each time; quorum, {outstanding} outstanding, each with consumer and queues of three seconds"
    );
    let all = [
        "storm-by-hand",
        "storm-requeue",
        "storm-delayed-retry",
        "storm-retryrmq",
        "storm-retryrmq-native",
    ];
    let names = possible(broker, &all);
    let rows = failing_turns(broker, &names, count, outstanding).await;
    report::keep("retry storm", "quorum", count, &rows);
    println!(
        "{}",
        report::pace(&rows, &["storm-by-hand", "storm-delayed-retry"])
    );
}

async fn outage(broker: &Broker) {
    println!("{}", cases::outage_in_words());
    let all = [
        "outage-requeue",
        "outage-by-hand",
        "outage-delayed-retry",
        "outage-retryrmq",
        "outage-retryrmq-pause",
    ];
    let rows = turns(broker, &possible(broker, &all), 1, 200).await;
    report::keep("outage", "quorum", cases::outage_messages(), &rows);
    println!("{}", report::outage(&rows));
}

/// Each case in turn, each in a virtual host of its own.
async fn turns(broker: &Broker, names: &[&str], rounds: usize, size: usize) -> Vec<Row> {
    let mut rows: Vec<Row> = names.iter().map(|name| Row::new(name)).collect();
    for _ in 0..rounds {
        for (name, row) in names.iter().zip(&mut rows) {
            let vhost = broker.vhost().await;
            row.rounds.push(case(name, vhost.url(), "work", size).await);
        }
    }
    rows
}

async fn lateness(broker: &Broker) {
    println!("2000 messages in flight: how much later than its delay a message comes, ms");
    for delay in [1_000, 5_000] {
        let names = ["late-broker", "late-retryrmq"];
        let rows = turns(broker, &names, rounds().min(3), delay).await;
        println!("\ndelay {} s\n{}", delay / 1_000, report::lateness(&rows));
    }
}

async fn memory(broker: &Broker) {
    let count = cases::waiting();
    println!(
        "{count} messages, each fails once and waits for an hour: resident memory of the client"
    );
    let mut rows = turns(broker, &["memory"], rounds().min(3), count).await;
    "retryrmq".clone_into(&mut rows[0].name);
    report::keep("memory", "quorum", count, &rows);
    println!("{}", report::memory(&rows));
}

/// Runs one case in a process of its own.
pub(crate) async fn case(name: &str, url: &str, queue: &str, size: usize) -> Measured {
    start(name, url, queue, size).await
}

/// Starts a case at once; what is returned waits for its figures.
fn start(name: &str, url: &str, queue: &str, size: usize) -> impl Future<Output = Measured> {
    let name = name.to_owned();
    let program = std::env::current_exe().expect("this program");
    let process = Command::new(program)
        .args(["case", &name, url, queue, &size.to_string()])
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process");
    async move {
        let output = process.wait_with_output().await.expect("its output");
        assert!(
            output.status.success(),
            "the case `{name}` failed: {}",
            output.status
        );
        serde_json::from_slice(&output.stdout).expect("figures")
    }
}

pub(crate) async fn fill(url: &str, queue: &str, kind: QueueType, count: usize) {
    let amqp = Amqp::connect(url).await;
    amqp.declare(queue, kind).await;
    amqp.close().await;
    publish(url, queue, count).await;
}

/// Fills a queue with messages whose ids count from 0.
pub(crate) async fn publish(url: &str, queue: &str, count: usize) {
    let rmq = Client::connect(url).await.expect("connected");
    let publishes =
        (0..count).map(|n| rmq.publish(Publish::to_queue(queue, BODY).message_id(&n.to_string())));
    let published = futures_util::stream::iter(publishes).buffer_unordered(1_000);
    published
        .for_each(|result| async { result.expect("published") })
        .await;
    rmq.close().await;
}
