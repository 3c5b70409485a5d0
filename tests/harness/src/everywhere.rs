//! One test body on every broker, side by side, with the broker named in the failure.

use crate::{Broker, QueueType, brokers};
use futures_util::FutureExt;
use futures_util::future::join_all;
use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;
use tokio::time::timeout;

/// A test that takes longer hangs; it would otherwise hold up all others for ever.
const LIMIT: Duration = Duration::from_secs(900);

/// Runs the test against every broker at once.
///
/// # Panics
/// When the test fails on one or more, with their versions; and when there is no broker.
pub async fn on_every_broker<F, Fut>(test: F)
where
    F: Fn(Broker) -> Fut,
    Fut: Future<Output = ()>,
{
    on_every_broker_where(|_| true, test).await;
}

/// Runs the test against those brokers that the condition holds for, and says so when there is none.
///
/// # Panics
/// As [`on_every_broker`].
pub async fn on_every_broker_where<C, F, Fut>(condition: C, test: F)
where
    C: Fn(&Broker) -> bool,
    F: Fn(Broker) -> Fut,
    Fut: Future<Output = ()>,
{
    let chosen: Vec<Broker> = brokers().into_iter().filter(condition).collect();
    if chosen.is_empty() {
        eprintln!("skipped: none of the brokers here is one that this test is about");
    }
    let runs = chosen
        .into_iter()
        .map(|broker| (broker.to_string(), test(broker)));
    run_all(runs).await;
}

/// Runs the test against every broker and both queue types at once.
///
/// # Panics
/// As [`on_every_broker`], with the queue type.
pub async fn on_every_queue_type<F, Fut>(test: F)
where
    F: Fn(Broker, QueueType) -> Fut,
    Fut: Future<Output = ()>,
{
    let all = brokers();
    let runs = all
        .iter()
        .flat_map(|broker| QueueType::ALL.map(|kind| (broker.clone(), kind)));
    run_all(runs.map(|(broker, kind)| (format!("{broker}, {kind}"), test(broker, kind)))).await;
}

async fn run_all<Fut: Future<Output = ()>>(runs: impl Iterator<Item = (String, Fut)>) {
    let outcomes = join_all(runs.map(|(place, run)| async {
        let outcome = AssertUnwindSafe(timeout(LIMIT, run)).catch_unwind().await;
        (place, outcome)
    }));
    let mut failures = Vec::new();
    for (place, outcome) in outcomes.await {
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(_)) => failures.push(format!("{place}: not finished after {LIMIT:?}")),
            Err(panic) => failures.push(format!("{place}: {}", words(&*panic))),
        }
    }
    if !failures.is_empty() {
        // The panic hook has printed each failure where it happened; this adds where they belong.
        let summary = failures.join("\n");
        eprintln!("{summary}");
        resume_unwind(Box::new(summary));
    }
}

/// What a panic said.
pub fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panicked")
}
