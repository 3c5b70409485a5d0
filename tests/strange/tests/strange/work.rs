//! Policies for the work queue. They mean what their owner meant; retryrmq may lose nothing more.

use crate::{By, by_both};
use retryrmq_strange::{Loss, MatrixCell, QUEUE, QueueType, Setting, check};
use serde_json::json;

const QUEUES: &str = "^orders$";

by_both!(ttl, expiry, length, bytes, delivery_limit);

/// A queue that a consumer made dead-letters what expires to the parking queue; a plain one drops it.
fn ttl(by: By, cell: MatrixCell) -> Setting {
    let setting = by(QUEUES, json!({ "message-ttl": 100 }));
    match cell.kind {
        QueueType::Quorum => setting.parks_others(),
        QueueType::Classic => setting.loses(Loss::Ready).finds("RQ101", QUEUE),
    }
}

/// Longer than a restart takes. A shorter one deletes the queue with its messages while nobody consumes it, as its owner wants.
fn expiry(by: By, cell: MatrixCell) -> Setting {
    let setting = by(QUEUES, json!({ "expires": 60_000 }));
    match cell.kind {
        QueueType::Quorum => setting,
        QueueType::Classic => setting.finds("RQ101", QUEUE),
    }
}

/// A queue that a consumer made refuses publishers, and what comes back to it waits on; a plain one drops its oldest messages.
fn full(setting: Setting, cell: MatrixCell) -> Setting {
    match cell.kind {
        QueueType::Quorum => setting.alone(),
        QueueType::Classic => setting.surely_loses(Loss::Ready).finds("RQ101", QUEUE),
    }
}

fn length(by: By, cell: MatrixCell) -> Setting {
    full(by(QUEUES, json!({ "max-length": 1 })), cell)
}

fn bytes(by: By, cell: MatrixCell) -> Setting {
    full(by(QUEUES, json!({ "max-length-bytes": 50 })), cell)
}

fn delivery_limit(by: By, cell: MatrixCell) -> Setting {
    let setting = by(QUEUES, json!({ "delivery-limit": 1 }));
    match cell.kind {
        QueueType::Quorum => setting.parks_others(),
        QueueType::Classic => setting.finds("RQ101", QUEUE),
    }
}

/// On the queue that a consumer made, the arguments win. On a plain one nothing is dead-lettered: failed messages are copied.
#[tokio::test]
async fn dead_letters_to_an_exchange_that_is_missing() {
    check(|cell| {
        let setting = Setting::policy(QUEUES, json!({ "dead-letter-exchange": "nowhere" }));
        match cell.kind {
            QueueType::Quorum => setting,
            QueueType::Classic => setting.finds("RQ102", QUEUE),
        }
    })
    .await;
}
