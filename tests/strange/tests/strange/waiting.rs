//! Policies for the queues in which failed messages wait.

use crate::{By, by_both};
use retryrmq_strange::{Loss, MatrixCell, Setting, WAITING, check};
use serde_json::json;

const QUEUES: &str = r"^orders\.retry\.";

by_both!(ttl, expiry, length, bytes, delivery_limit);

/// They come back early.
fn ttl(by: By, _: MatrixCell) -> Setting {
    by(QUEUES, json!({ "message-ttl": 100 })).finds("RQ111", WAITING[0])
}

/// A quorum queue that is published to, and not consumed, counts as unused: it goes with what waits in it.
fn expiry(by: By, _: MatrixCell) -> Setting {
    by(QUEUES, json!({ "expires": 1_000 }))
        .loses(Loss::Waiting)
        .finds("RQ109", WAITING[0])
}

/// Copies are refused until there is room; the originals are kept.
fn length(by: By, _: MatrixCell) -> Setting {
    by(QUEUES, json!({ "max-length": 1 })).finds("RQ111", WAITING[0])
}

fn bytes(by: By, _: MatrixCell) -> Setting {
    by(QUEUES, json!({ "max-length-bytes": 50 })).finds("RQ111", WAITING[0])
}

/// Nobody consumes them.
fn delivery_limit(by: By, _: MatrixCell) -> Setting {
    by(QUEUES, json!({ "delivery-limit": 0 }))
}

/// The arguments win.
#[tokio::test]
async fn dead_letters_to_another_queue_at_most_once() {
    check(|_| {
        let elsewhere = json!({
            "dead-letter-exchange": "nowhere",
            "dead-letter-routing-key": "elsewhere",
            "dead-letter-strategy": "at-most-once",
        });
        Setting::policy(QUEUES, elsewhere)
    })
    .await;
}

/// As an owner may who wants copies to be refused sooner.
#[tokio::test]
async fn a_full_queue_that_refuses_publishers() {
    check(|_| {
        let refuses = json!({ "max-length": 2, "overflow": "reject-publish" });
        Setting::policy(QUEUES, refuses).finds("RQ111", WAITING[0])
    })
    .await;
}
