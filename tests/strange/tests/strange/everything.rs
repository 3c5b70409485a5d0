//! Policies whose pattern matches every queue.

use retryrmq_strange::{PARKED, Setting, Version, check};
use serde_json::json;

#[tokio::test]
async fn a_policy_that_drops_the_head() {
    check(|_| {
        Setting::policy(".*", json!({ "overflow": "drop-head" })).refused(&["overflow", "RQ108"])
    })
    .await;
}

/// Operators may set it since RabbitMQ 3.13.
#[tokio::test]
async fn an_operator_policy_that_drops_the_head() {
    check(|_| {
        Setting::operator_policy(".*", json!({ "overflow": "drop-head" }))
            .from(Version::V4_0)
            .refused(&["overflow", "RQ108"])
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_refuses_and_dead_letters() {
    check(|_| {
        Setting::policy(".*", json!({ "overflow": "reject-publish-dlx" }))
            .refused(&["overflow", "RQ108"])
    })
    .await;
}

#[tokio::test]
async fn a_policy_that_refuses() {
    check(|_| Setting::policy(".*", json!({ "overflow": "reject-publish" }))).await;
}

/// Longer than the waiting queues' own, and than any test.
#[tokio::test]
async fn a_policy_with_a_long_ttl() {
    check(|_| Setting::policy(".*", json!({ "message-ttl": 3_600_000 })).finds("RQ110", PARKED))
        .await;
}
