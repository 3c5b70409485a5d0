//! The measured programs: each is a process of its own that prints one line of JSON.

mod consume;
pub(crate) mod delivery;
mod lateness;
mod memory;
mod meter;
mod outage;
mod retry;
mod storm;

pub(crate) use memory::count as waiting;
pub(crate) use outage::{in_words as outage_in_words, messages as outage_messages};
pub(crate) use retry::{count as retried, make as make_for_retry};
pub(crate) use storm::{count as stormed, make_for_delayed_retry};

use std::collections::BTreeMap;

use retry::Load;
use retryrmq::{Pause, Strategy};
use serde::{Deserialize, Serialize};

/// The queue is filled with this before each round.
pub(crate) const BODY: [u8; 256] = [b'x'; 256];

/// What one measurement found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Measured(pub(crate) BTreeMap<String, f64>);

impl Measured {
    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub(crate) fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(f64::NAN)
    }

    fn with(mut self, name: &str, value: f64) -> Self {
        self.0.insert(name.to_owned(), value);
        self
    }
}

/// Runs the case `name` against a queue that holds, or will hold, `size` messages (or allows `size` outstanding).
pub(crate) async fn run(name: &str, url: &str, queue: &str, size: usize) -> Measured {
    match name {
        "ack-each" => consume::ack_each(url, queue, size).await,
        "ack-each-tasks" => consume::ack_each_in_tasks(url, queue, size).await,
        "ack-multiple" => consume::ack_multiple(url, queue, size).await,
        "retryrmq" => consume::retryrmq(url, queue, size).await,
        "retry-by-hand" => retry::by_hand(url, queue, Load::once(size)).await,
        "retry-retryrmq" => {
            retry::retryrmq(url, queue, Load::once(size), Strategy::RetryQueues).await
        }
        "storm-by-hand" => storm::by_hand(url, queue, size).await,
        "storm-requeue" => storm::requeue(url, queue, size).await,
        "storm-delayed-retry" => storm::delayed_retry(url, queue, size).await,
        "storm-retryrmq" => storm::retryrmq(url, queue, size, Strategy::RetryQueues).await,
        "storm-retryrmq-native" => storm::retryrmq(url, queue, size, Strategy::Native).await,
        "outage-by-hand" => outage::by_hand(url, queue, size).await,
        "outage-requeue" => outage::requeue(url, queue, size).await,
        "outage-delayed-retry" => outage::delayed_retry(url, queue, size).await,
        "outage-retryrmq" => outage::retryrmq(url, queue, size, None).await,
        "outage-retryrmq-pause" => outage::retryrmq(url, queue, size, Some(Pause::default())).await,
        "late-broker" => lateness::broker_alone(url, queue, size).await,
        "late-retryrmq" => lateness::retryrmq(url, queue, size).await,
        "memory" => memory::waiting(url, queue, size).await,
        "http-by-hand" => crate::http::by_hand(url, queue, size).await,
        "http-bare" => crate::http::bare(url, size).await,
        other => panic!("there is no case `{other}`"),
    }
}
