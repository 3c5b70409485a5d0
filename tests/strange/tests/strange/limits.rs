//! Limits of a virtual host, and of a user in it.

use retryrmq_strange::{Setting, check};

/// All but the probe, which goes without.
#[tokio::test]
async fn a_virtual_host_with_room_for_its_four_queues() {
    check(|_| Setting::vhost_limit("max-queues", 4)).await;
}

#[tokio::test]
async fn a_virtual_host_with_a_queue_too_few() {
    check(|_| Setting::vhost_limit("max-queues", 3).refused(&["max-queues", "orders.retry"])).await;
}

#[tokio::test]
async fn a_virtual_host_with_one_queue() {
    check(|_| Setting::vhost_limit("max-queues", 1).refused(&["max-queues"])).await;
}

/// Three for the client, and one for the test.
#[tokio::test]
async fn a_virtual_host_with_as_many_connections_as_are_needed() {
    check(|_| Setting::vhost_limit("max-connections", 4)).await;
}

#[tokio::test]
async fn a_virtual_host_with_a_connection_too_few() {
    check(|_| Setting::vhost_limit("max-connections", 3).refused(&["max-connections"])).await;
}

#[tokio::test]
async fn a_user_with_as_many_connections_as_are_needed() {
    check(|_| Setting::user_limit("max-connections", 3)).await;
}

#[tokio::test]
async fn a_user_with_a_connection_too_few() {
    check(|_| Setting::user_limit("max-connections", 2).refused(&["max-connections"])).await;
}

/// One for the consumer, four for the queues that are published to, two more, and as many to replay what is parked.
#[tokio::test]
async fn a_user_with_as_many_channels_as_are_needed() {
    check(|_| Setting::user_limit("max-channels", 10)).await;
}

#[tokio::test]
async fn a_user_without_any_channel() {
    check(|_| Setting::user_limit("max-channels", 0).refused(&["max-channels"])).await;
}
