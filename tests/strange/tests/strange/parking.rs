//! Policies for the queue in which messages are parked. Only the management API shows them, so `doctor` says what they delete.

use crate::{By, by_both};
use retryrmq_strange::{Loss, MatrixCell, PARKED, Setting, check};
use serde_json::json;

const QUEUES: &str = r"^orders\.parked$";

by_both!(ttl, expiry, length, bytes, delivery_limit);

fn deletes(setting: Setting) -> Setting {
    setting.surely_loses(Loss::Parked).finds("RQ110", PARKED)
}

fn ttl(by: By, _: MatrixCell) -> Setting {
    deletes(by(QUEUES, json!({ "message-ttl": 100 })))
}

/// It goes with its messages, unless another message is parked, or it is read, in time.
fn expiry(by: By, _: MatrixCell) -> Setting {
    by(QUEUES, json!({ "expires": 1_000 }))
        .loses(Loss::Parked)
        .finds("RQ110", PARKED)
}

fn length(by: By, _: MatrixCell) -> Setting {
    deletes(by(QUEUES, json!({ "max-length": 1 })))
}

fn bytes(by: By, _: MatrixCell) -> Setting {
    deletes(by(QUEUES, json!({ "max-length-bytes": 50 })))
}

/// Each browsing counts. A replay of everything delivers each message once.
fn delivery_limit(by: By, _: MatrixCell) -> Setting {
    by(QUEUES, json!({ "delivery-limit": 1 })).finds("RQ110", PARKED)
}

/// Parked messages neither expire nor are rejected.
#[tokio::test]
async fn dead_letters_back_to_the_work_queue() {
    check(|_| {
        let back = json!({ "dead-letter-exchange": "", "dead-letter-routing-key": "orders" });
        Setting::policy(QUEUES, back)
    })
    .await;
}

#[tokio::test]
async fn a_full_queue_that_refuses_publishers() {
    check(|_| {
        let refuses = json!({ "max-length": 1_000, "overflow": "reject-publish" });
        Setting::policy(QUEUES, refuses).finds("RQ110", PARKED)
    })
    .await;
}
