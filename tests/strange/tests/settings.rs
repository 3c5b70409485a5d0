//! Each setting, by name.
#![allow(missing_docs)]

use retryrmq_strange::{Setting, Version, check};
use serde_json::json;

#[tokio::test]
async fn policy_ttl_work() {
    check(|_| Setting::policy("^orders$", json!({"message-ttl": 100}))).await;
}

#[tokio::test]
async fn operator_policy_ttl_work() {
    check(|_| Setting::operator_policy("^orders$", json!({"message-ttl": 100}))).await;
}

#[tokio::test]
async fn policy_ttl_waiting() {
    check(|_| Setting::policy(r"^orders\.retry\.", json!({"message-ttl": 100}))).await;
}

#[tokio::test]
async fn operator_policy_ttl_waiting() {
    check(|_| Setting::operator_policy(r"^orders\.retry\.", json!({"message-ttl": 100}))).await;
}

#[tokio::test]
async fn policy_ttl_parking() {
    check(|_| Setting::policy(r"^orders\.parked$", json!({"message-ttl": 100}))).await;
}

#[tokio::test]
async fn operator_policy_ttl_parking() {
    check(|_| Setting::operator_policy(r"^orders\.parked$", json!({"message-ttl": 100}))).await;
}

#[tokio::test]
async fn policy_expires_work() {
    check(|_| Setting::policy("^orders$", json!({"expires": 1000}))).await;
}

#[tokio::test]
async fn operator_policy_expires_work() {
    check(|_| Setting::operator_policy("^orders$", json!({"expires": 1000}))).await;
}

#[tokio::test]
async fn policy_expires_waiting() {
    check(|_| Setting::policy(r"^orders\.retry\.", json!({"expires": 1000}))).await;
}

#[tokio::test]
async fn operator_policy_expires_waiting() {
    check(|_| Setting::operator_policy(r"^orders\.retry\.", json!({"expires": 1000}))).await;
}

#[tokio::test]
async fn policy_expires_parking() {
    check(|_| Setting::policy(r"^orders\.parked$", json!({"expires": 1000}))).await;
}

#[tokio::test]
async fn operator_policy_expires_parking() {
    check(|_| Setting::operator_policy(r"^orders\.parked$", json!({"expires": 1000}))).await;
}

#[tokio::test]
async fn policy_max_length_work() {
    check(|_| Setting::policy("^orders$", json!({"max-length": 1}))).await;
}

#[tokio::test]
async fn operator_policy_max_length_work() {
    check(|_| Setting::operator_policy("^orders$", json!({"max-length": 1}))).await;
}

#[tokio::test]
async fn policy_max_length_waiting() {
    check(|_| Setting::policy(r"^orders\.retry\.", json!({"max-length": 1}))).await;
}

#[tokio::test]
async fn operator_policy_max_length_waiting() {
    check(|_| Setting::operator_policy(r"^orders\.retry\.", json!({"max-length": 1}))).await;
}

#[tokio::test]
async fn policy_max_length_parking() {
    check(|_| Setting::policy(r"^orders\.parked$", json!({"max-length": 1}))).await;
}

#[tokio::test]
async fn operator_policy_max_length_parking() {
    check(|_| Setting::operator_policy(r"^orders\.parked$", json!({"max-length": 1}))).await;
}

#[tokio::test]
async fn policy_max_length_bytes_work() {
    check(|_| Setting::policy("^orders$", json!({"max-length-bytes": 20}))).await;
}

#[tokio::test]
async fn operator_policy_max_length_bytes_work() {
    check(|_| Setting::operator_policy("^orders$", json!({"max-length-bytes": 20}))).await;
}

#[tokio::test]
async fn policy_max_length_bytes_waiting() {
    check(|_| Setting::policy(r"^orders\.retry\.", json!({"max-length-bytes": 20}))).await;
}

#[tokio::test]
async fn operator_policy_max_length_bytes_waiting() {
    check(|_| Setting::operator_policy(r"^orders\.retry\.", json!({"max-length-bytes": 20}))).await;
}

#[tokio::test]
async fn policy_max_length_bytes_parking() {
    check(|_| Setting::policy(r"^orders\.parked$", json!({"max-length-bytes": 20}))).await;
}

#[tokio::test]
async fn operator_policy_max_length_bytes_parking() {
    check(|_| Setting::operator_policy(r"^orders\.parked$", json!({"max-length-bytes": 20}))).await;
}

#[tokio::test]
async fn policy_delivery_limit_work() {
    check(|_| Setting::policy("^orders$", json!({"delivery-limit": 1}))).await;
}

#[tokio::test]
async fn operator_policy_delivery_limit_work() {
    check(|_| Setting::operator_policy("^orders$", json!({"delivery-limit": 1}))).await;
}

#[tokio::test]
async fn policy_delivery_limit_waiting() {
    check(|_| Setting::policy(r"^orders\.retry\.", json!({"delivery-limit": 1}))).await;
}

#[tokio::test]
async fn operator_policy_delivery_limit_waiting() {
    check(|_| Setting::operator_policy(r"^orders\.retry\.", json!({"delivery-limit": 1}))).await;
}

#[tokio::test]
async fn policy_delivery_limit_parking() {
    check(|_| Setting::policy(r"^orders\.parked$", json!({"delivery-limit": 1}))).await;
}

#[tokio::test]
async fn operator_policy_delivery_limit_parking() {
    check(|_| Setting::operator_policy(r"^orders\.parked$", json!({"delivery-limit": 1}))).await;
}

#[tokio::test]
async fn policy_dead_letter_work() {
    check(|_| Setting::policy("^orders$", json!({"dead-letter-exchange": "", "dead-letter-routing-key": "orders", "dead-letter-strategy": "at-most-once"}))).await;
}

#[tokio::test]
async fn policy_dead_letter_waiting() {
    check(|_| Setting::policy(r"^orders\.retry\.", json!({"dead-letter-exchange": "", "dead-letter-routing-key": "orders", "dead-letter-strategy": "at-most-once"}))).await;
}

#[tokio::test]
async fn policy_dead_letter_parking() {
    check(|_| Setting::policy(r"^orders\.parked$", json!({"dead-letter-exchange": "", "dead-letter-routing-key": "orders", "dead-letter-strategy": "at-most-once"}))).await;
}

#[tokio::test]
async fn drop_head_everything() {
    check(|_| Setting::policy(".*", json!({"overflow": "drop-head"}))).await;
}

#[tokio::test]
async fn drop_head_everything_op() {
    check(|_| Setting::operator_policy(".*", json!({"overflow": "drop-head"})).from(Version::V4_0)).await;
}

#[tokio::test]
async fn default_classic() {
    check(|_| Setting::default_queue_type("classic")).await;
}

#[tokio::test]
async fn default_quorum() {
    check(|_| Setting::default_queue_type("quorum")).await;
}

#[tokio::test]
async fn default_stream() {
    check(|_| Setting::default_queue_type("stream").from(Version::V4_0)).await;
}

#[tokio::test]
async fn max_queues_1() {
    check(|_| Setting::vhost_limit("max-queues", 1)).await;
}

#[tokio::test]
async fn max_queues_2() {
    check(|_| Setting::vhost_limit("max-queues", 2)).await;
}

#[tokio::test]
async fn max_queues_3() {
    check(|_| Setting::vhost_limit("max-queues", 3)).await;
}

#[tokio::test]
async fn max_connections_1() {
    check(|_| Setting::vhost_limit("max-connections", 1)).await;
}

#[tokio::test]
async fn max_connections_2() {
    check(|_| Setting::vhost_limit("max-connections", 2)).await;
}

#[tokio::test]
async fn max_connections_3() {
    check(|_| Setting::vhost_limit("max-connections", 3)).await;
}

#[tokio::test]
async fn max_connections_4() {
    check(|_| Setting::vhost_limit("max-connections", 4)).await;
}

#[tokio::test]
async fn user_connections_1() {
    check(|_| Setting::user_limit("max-connections", 1)).await;
}

#[tokio::test]
async fn user_connections_2() {
    check(|_| Setting::user_limit("max-connections", 2)).await;
}

#[tokio::test]
async fn user_channels_2() {
    check(|_| Setting::user_limit("max-channels", 2)).await;
}

#[tokio::test]
async fn user_channels_4() {
    check(|_| Setting::user_limit("max-channels", 4)).await;
}

#[tokio::test]
async fn user_channels_8() {
    check(|_| Setting::user_limit("max-channels", 8)).await;
}

#[tokio::test]
async fn node_frame_max() {
    check(|_| Setting::node(&["frame_max = 4096"])).await;
}

#[tokio::test]
async fn node_frame_max8() {
    check(|_| Setting::node(&["frame_max = 8192"])).await;
}

#[tokio::test]
async fn node_heartbeat() {
    check(|_| Setting::node(&["heartbeat = 1"])).await;
}

#[tokio::test]
async fn node_consumer_timeout() {
    check(|_| Setting::node(&["consumer_timeout = 10000"])).await;
}

#[tokio::test]
async fn node_max_message_size() {
    check(|_| Setting::node(&["max_message_size = 64"])).await;
}

#[tokio::test]
async fn node_channel_max() {
    check(|_| Setting::node(&["channel_max = 4"])).await;
}

#[tokio::test]
async fn node_channel_max2() {
    check(|_| Setting::node(&["channel_max = 2"])).await;
}

#[tokio::test]
async fn node_channel_max1() {
    check(|_| Setting::node(&["channel_max = 1"])).await;
}

#[tokio::test]
async fn node_consumer_max() {
    check(|_| Setting::node(&["consumer_max_per_channel = 1"])).await;
}

#[tokio::test]
async fn node_denied() {
    check(|_| Setting::node(&["deprecated_features.permit.transient_nonexcl_queues = false", "deprecated_features.permit.global_qos = false", "deprecated_features.permit.classic_queue_mirroring = false", "deprecated_features.permit.ram_node_type = false", "deprecated_features.permit.amqp_address_v1 = false"])).await;
}

#[tokio::test]
async fn node_denied_metrics() {
    check(|_| Setting::node(&["deprecated_features.permit.management_metrics_collection = false"])).await;
}

#[tokio::test]
async fn node_old_flags() {
    check(|_| Setting::node(&["feature_flags = quorum_queue implicit_default_bindings virtual_host_metadata maintenance_mode_status user_limits drop_unroutable_metric empty_basic_get_metric"])).await;
}

