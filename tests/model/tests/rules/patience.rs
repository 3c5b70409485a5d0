//! What a broker does when it has waited long enough.

use crate::fixture::Fixture;
use retryrmq_model::{Declare, Frame, Method, Policy, Publish, QueueType, Version};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn holding(version: Version, kind: QueueType) -> Fixture {
    let mut stage = Fixture::new(version);
    stage.broker.set_consumer_timeout(Some(MINUTE));
    stage.declare("orders", kind);
    stage.publish("orders", "slow");
    stage.consume("orders", 1);
    assert_eq!(stage.deliveries().len(), 1);
    stage.wait(MINUTE - Duration::from_secs(1));
    assert_eq!(stage.frames().len(), 0);
    stage.wait(Duration::from_secs(1));
    stage
}

#[test]
fn a_late_settlement_costs_the_channel_before_4_3() {
    for version in [Version::V3_10, Version::V4_0] {
        for kind in QueueType::ALL {
            let mut stage = holding(version, kind);
            assert_eq!(stage.refusal(), Some(406)); // 22
            assert_eq!(stage.ready("orders"), 1);
        }
    }
}

#[test]
fn on_4_3_a_classic_queue_waits_for_ever_and_a_quorum_queue_ends_the_consumer_without_counting() {
    let mut stage = holding(Version::V4_3, QueueType::Classic);
    assert_eq!(stage.frames().len(), 0);
    let mut stage = holding(Version::V4_3, QueueType::Quorum);
    let frames = stage.frames();
    assert!(matches!(frames[..], [Frame::Cancel { .. }]), "{frames:?}");
    assert_eq!(stage.ready("orders"), 1);
    stage.send(Method::Ack {
        tag: 1,
        multiple: false,
    });
    assert_eq!(stage.refusal(), None, "a late ack is accepted");
    assert_eq!(stage.ready("orders"), 1, "and means nothing");
    stage.consume("orders", 1);
    let again = stage.deliveries().remove(0);
    let headers = again.properties.headers().clone().unwrap_or_default();
    assert!(!headers.contains_key("x-delivery-count"), "{headers:?}");
    assert!(headers.contains_key("x-acquired-count"));
}

#[test]
fn what_finds_no_queue_is_held_at_least_once_and_tried_again_after_three_minutes() {
    for version in Version::ALL {
        let mut stage = Fixture::new(version);
        let wait = |queue| {
            Declare::durable(queue, QueueType::Quorum)
                .with_number("x-message-ttl", 50)
                .with("x-dead-letter-exchange", "")
                .with("x-dead-letter-routing-key", "work")
        };
        stage.declare_as(
            wait("held")
                .with("x-dead-letter-strategy", "at-least-once")
                .with("x-overflow", "reject-publish"),
        );
        stage.declare_as(wait("dropped").with("x-dead-letter-strategy", "at-least-once")); // 13
        for queue in ["held", "dropped"] {
            stage.publish(queue, queue);
        }
        stage.wait(MINUTE);
        let dead = |stage: &Fixture, queue: &str| stage.broker.queue_view(queue).unwrap().dead;
        assert_eq!((dead(&stage, "held"), dead(&stage, "dropped")), (1, 0)); // 26
        stage.declare("work", QueueType::Classic);
        stage.wait(MINUTE);
        assert_eq!(stage.ready("work"), 0);
        stage.wait(2 * MINUTE);
        assert_eq!(stage.ready("work"), 1);
        assert_eq!(dead(&stage, "held"), 0);
    }
}

#[test]
fn a_lease_is_renewed_by_declaring_a_classic_queue_and_not_a_quorum_one() {
    for version in Version::ALL {
        for kind in QueueType::ALL {
            let mut stage = Fixture::new(version);
            let leased = || Declare::durable("leased", kind).with_number("x-expires", 60_000);
            stage.declare_as(leased());
            stage.publish("leased", "goes with it");
            stage.wait(MINUTE / 2);
            stage.declare_as(leased());
            stage.wait(MINUTE / 2);
            let lives = stage.broker.queue_view("leased").is_some();
            assert_eq!(lives, kind == QueueType::Classic); // 11
        }
    }
}

#[test]
fn during_an_alarm_nothing_is_read_from_a_connection_that_publishes() {
    let mut stage = Fixture::new(Version::V4_3);
    stage.declare("orders", QueueType::Classic);
    stage.publish("orders", "1");
    stage.consume("orders", 1);
    stage.frames();
    stage.broker.set_alarm(true);
    let publish = || Method::Publish(Box::new(Publish::to_queue("orders", *b"2")));
    stage.send(publish());
    assert!(matches!(stage.frames()[..], [Frame::Blocked]));
    stage.send(Method::Ack {
        tag: 1,
        multiple: false,
    });
    assert_eq!(stage.deliveries().len(), 0, "the ack is not read");
    stage.broker.set_alarm(false);
    assert_eq!(stage.deliveries().len(), 1);
}

#[test]
fn a_policy_counts_at_once_and_the_lower_limit_wins() {
    let mut stage = Fixture::new(Version::V4_0);
    stage.declare("orders", QueueType::Quorum);
    stage.publish("orders", "");
    stage.broker.set_policy(
        "orders",
        Some(Policy {
            delivery_limit: Some(1),
            ..Policy::default()
        }),
    );
    stage.consume("orders", 1);
    for tag in 1..=2 {
        assert_eq!(stage.deliveries().len(), 1);
        stage.send(Method::Reject { tag, requeue: true });
    }
    assert_eq!(stage.deliveries().len(), 0);
    assert_eq!(stage.ready("orders"), 0, "dropped");
}

#[test]
fn a_policys_overflow_wins_on_a_quorum_queue_which_then_dead_letters_at_most_once() {
    for version in Version::ALL {
        let mut stage = Fixture::new(version);
        let wait = Declare::durable("wait", QueueType::Quorum)
            .with_number("x-message-ttl", 50)
            .with("x-dead-letter-exchange", "")
            .with("x-dead-letter-routing-key", "missing")
            .with("x-dead-letter-strategy", "at-least-once")
            .with("x-overflow", "reject-publish");
        stage.declare_as(wait);
        let held = |stage: &mut Fixture, reject_publish| {
            let policy = Policy {
                reject_publish,
                ..Policy::default()
            };
            stage.broker.set_policy("wait", Some(policy));
            stage.publish("wait", "");
            stage.wait(MINUTE);
            stage.broker.queue_view("wait").unwrap().dead
        };
        assert_eq!(held(&mut stage, Some(false)), 0); // 90
        assert_eq!(held(&mut stage, Some(true)), 1);
    }
}

#[test]
fn a_policy_takes_the_delay_of_4_3_away() {
    let (hour, none) = (60 * MINUTE, Policy::default());
    for (policy, delayed) in [
        (none.clone(), true),
        (
            Policy {
                delayed_retry_type: Some("disabled".to_owned()),
                ..none.clone()
            },
            false,
        ),
        (
            Policy {
                delayed_retry_min: Some(Duration::from_millis(1)),
                delayed_retry_max: Some(Duration::from_millis(1)),
                ..none.clone()
            },
            false,
        ),
        (
            Policy {
                delayed_retry_type: Some("all".to_owned()),
                delayed_retry_min: Some(2 * hour),
                ..none
            },
            true,
        ),
    ] {
        let mut stage = Fixture::new(Version::V4_3);
        let work = Declare::durable("work", QueueType::Quorum)
            .with("x-delayed-retry-type", "failed")
            .with_number("x-delayed-retry-min", 3_600_000)
            .with_number("x-delayed-retry-max", 3_600_000);
        stage.declare_as(work);
        stage.broker.set_policy("work", Some(policy.clone()));
        stage.publish("work", "");
        stage.consume("work", 1);
        assert_eq!(stage.deliveries().len(), 1);
        stage.send(Method::Reject {
            tag: 1,
            requeue: true,
        });
        stage.wait(MINUTE);
        let again = stage.deliveries().len(); // 93
        assert_eq!(again == 0, delayed, "{policy:?}");
    }
}
