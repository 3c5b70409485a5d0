//! Settings of a whole node, in `rabbitmq.conf`.

use retryrmq_strange::{Setting, Version, check};

/// What 3.8 had.
const OLD_FLAGS: &str = "feature_flags = quorum_queue implicit_default_bindings virtual_host_metadata maintenance_mode_status \
                         user_limits drop_unroutable_metric empty_basic_get_metric";

#[tokio::test]
async fn four_channels() {
    check(|_| Setting::node(&["channel_max = 4"])).await;
}

#[tokio::test]
async fn one_consumer_on_a_channel() {
    check(|_| Setting::node(&["consumer_max_per_channel = 1"]).from(Version::V4_0)).await;
}

/// Little more than the two seconds for which an original is kept whose copy went to a young queue.
#[tokio::test]
async fn a_consumer_timeout_of_four_seconds() {
    check(|_| {
        Setting::node(&["consumer_timeout = 4000"])
            .eval("application:set_env(rabbit, channel_tick_interval, 200).")
    })
    .await;
}

/// Bodies are as large as the broker takes, and errors need more than a frame. Larger bodies, and handlers that are slower than the timeout,
/// are tested in `core/tests/broker/limits.rs` and `consumer_timeout.rs`.
#[tokio::test]
async fn a_consumer_timeout_of_ten_seconds_small_frames_and_short_heartbeats() {
    check(|_| {
        Setting::node(&[
            "consumer_timeout = 10000",
            "frame_max = 8192",
            "max_message_size = 64",
        ])
        .sizes(64, 12_000)
        .url("heartbeat=1")
        .eval(
            "application:set_env(rabbit, channel_tick_interval, 500), application:set_env(rabbit, heartbeat, 1).",
        )
    })
    .await;
}

/// All that a user of queues could meet, but for the numbers of the management API, which these tests need.
#[tokio::test]
async fn deprecated_features_denied() {
    check(|_| {
        Setting::node(&[
            "deprecated_features.permit.amqp_address_v1 = false",
            "deprecated_features.permit.classic_queue_mirroring = false",
            "deprecated_features.permit.global_qos = false",
            "deprecated_features.permit.queue_master_locator = false",
            "deprecated_features.permit.ram_node_type = false",
            "deprecated_features.permit.transient_nonexcl_queues = false",
        ])
        .from(Version::V4_0)
    })
    .await;
}

/// As after an upgrade from 3.8.
#[tokio::test]
async fn no_feature_flag_for_streams() {
    check(|_| {
        Setting::node(&[OLD_FLAGS])
            .before(Version::V4_0)
            .refused(&["RQ108", "stream_queue"])
    })
    .await;
}

/// The others are required since.
#[tokio::test]
async fn only_the_feature_flags_that_are_required() {
    check(|_| Setting::node(&[OLD_FLAGS]).from(Version::V4_0)).await;
}
