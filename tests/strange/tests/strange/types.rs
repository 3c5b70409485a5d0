//! The type of queues that are declared without one, where publishers declare the work queue like that.

use retryrmq_strange::{QUEUE, Setting, Version, check};

#[tokio::test]
async fn classic_by_default() {
    check(|_| {
        Setting::default_queue_type("classic")
            .untyped()
            .finds("RQ101", QUEUE)
    })
    .await;
}

#[tokio::test]
async fn quorum_by_default() {
    check(|cell| {
        let setting = Setting::default_queue_type("quorum").untyped();
        // It drops what passes the default limit.
        let code = if cell.version >= Version::V4_0 {
            "RQ107"
        } else {
            "RQ101"
        };
        setting.finds(code, QUEUE)
    })
    .await;
}

#[tokio::test]
async fn streams_by_default() {
    check(|_| {
        Setting::default_queue_type("stream")
            .from(Version::V4_0)
            .untyped()
            .refused(&["stream"])
    })
    .await;
}

/// The consumer names the types of its own queues.
#[tokio::test]
async fn streams_by_default_where_the_consumer_makes_the_queues() {
    check(|_| Setting::default_queue_type("stream").from(Version::V4_0)).await;
}
