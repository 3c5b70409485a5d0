//! What a broker does when it has waited long enough.

use crate::fixture::Fixture;
use retryrmq_model::{Declare, Frame, Method, Policy, Publish, QueueType, Version};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

fn holding(version: Version, kind: QueueType) -> Fixture {
    let mut fixture = Fixture::new(version);
    fixture.broker.set_consumer_timeout(Some(MINUTE));
    fixture.declare("orders", kind);
    fixture.publish("orders", "slow");
    fixture.consume("orders", 1);
    assert_eq!(fixture.deliveries().len(), 1);
    fixture.wait(MINUTE - Duration::from_secs(1));
    assert_eq!(fixture.frames().len(), 0);
    fixture.wait(Duration::from_secs(1));
    fixture
}

#[test]
fn a_late_settlement_costs_the_channel_before_4_3() {
    for version in [Version::V3_10, Version::V4_0] {
        for kind in QueueType::ALL {
            let mut fixture = holding(version, kind);
            assert_eq!(fixture.refusal(), Some(406)); // 22
            assert_eq!(fixture.ready("orders"), 1);
        }
    }
}

#[test]
fn on_4_3_a_classic_queue_waits_for_ever_and_a_quorum_queue_ends_the_consumer_without_counting() {
    let mut fixture = holding(Version::V4_3, QueueType::Classic);
    assert_eq!(fixture.frames().len(), 0);
    let mut fixture = holding(Version::V4_3, QueueType::Quorum);
    let frames = fixture.frames();
    assert!(matches!(frames[..], [Frame::Cancel { .. }]), "{frames:?}");
    assert_eq!(fixture.ready("orders"), 1);
    fixture.send(Method::Ack {
        tag: 1,
        multiple: false,
    });
    assert_eq!(fixture.refusal(), None, "a late ack is accepted");
    assert_eq!(fixture.ready("orders"), 1, "and means nothing");
    fixture.consume("orders", 1);
    let again = fixture.deliveries().remove(0);
    let headers = again.properties.headers().clone().unwrap_or_default();
    assert!(!headers.contains_key("x-delivery-count"), "{headers:?}");
    assert!(headers.contains_key("x-acquired-count"));
}

#[test]
fn what_finds_no_queue_is_held_at_least_once_and_tried_again_after_three_minutes() {
    for version in Version::ALL {
        let mut fixture = Fixture::new(version);
        let wait = |queue| {
            Declare::durable(queue, QueueType::Quorum)
                .with_number("x-message-ttl", 50)
                .with("x-dead-letter-exchange", "")
                .with("x-dead-letter-routing-key", "work")
        };
        fixture.declare_as(
            wait("held")
                .with("x-dead-letter-strategy", "at-least-once")
                .with("x-overflow", "reject-publish"),
        );
        fixture.declare_as(wait("dropped").with("x-dead-letter-strategy", "at-least-once")); // 13
        for queue in ["held", "dropped"] {
            fixture.publish(queue, queue);
        }
        fixture.wait(MINUTE);
        let dead = |fixture: &Fixture, queue: &str| fixture.broker.queue_view(queue).unwrap().dead;
        assert_eq!((dead(&fixture, "held"), dead(&fixture, "dropped")), (1, 0)); // 26
        fixture.declare("work", QueueType::Classic);
        fixture.wait(MINUTE);
        assert_eq!(fixture.ready("work"), 0);
        fixture.wait(2 * MINUTE);
        assert_eq!(fixture.ready("work"), 1);
        assert_eq!(dead(&fixture, "held"), 0);
    }
}

#[test]
fn a_lease_is_renewed_by_declaring_a_classic_queue_and_not_a_quorum_one() {
    for version in Version::ALL {
        for kind in QueueType::ALL {
            let mut fixture = Fixture::new(version);
            let leased = || Declare::durable("leased", kind).with_number("x-expires", 60_000);
            fixture.declare_as(leased());
            fixture.publish("leased", "goes with it");
            fixture.wait(MINUTE / 2);
            fixture.declare_as(leased());
            fixture.wait(MINUTE / 2);
            let lives = fixture.broker.queue_view("leased").is_some();
            assert_eq!(lives, kind == QueueType::Classic); // 11
        }
    }
}

#[test]
fn during_an_alarm_nothing_is_read_from_a_connection_that_publishes() {
    let mut fixture = Fixture::new(Version::V4_3);
    fixture.declare("orders", QueueType::Classic);
    fixture.publish("orders", "1");
    fixture.consume("orders", 1);
    fixture.frames();
    fixture.broker.set_alarm(true);
    let publish = || Method::Publish(Box::new(Publish::to_queue("orders", *b"2")));
    fixture.send(publish());
    assert!(matches!(fixture.frames()[..], [Frame::Blocked]));
    fixture.send(Method::Ack {
        tag: 1,
        multiple: false,
    });
    assert_eq!(fixture.deliveries().len(), 0, "the ack is not read");
    fixture.broker.set_alarm(false);
    assert_eq!(fixture.deliveries().len(), 1);
}

#[test]
fn a_policy_counts_at_once_and_the_lower_limit_wins() {
    let mut fixture = Fixture::new(Version::V4_0);
    fixture.declare("orders", QueueType::Quorum);
    fixture.publish("orders", "");
    fixture.broker.set_policy(
        "orders",
        Some(Policy {
            delivery_limit: Some(1),
            ..Policy::default()
        }),
    );
    fixture.consume("orders", 1);
    for tag in 1..=2 {
        assert_eq!(fixture.deliveries().len(), 1);
        fixture.send(Method::Reject { tag, requeue: true });
    }
    assert_eq!(fixture.deliveries().len(), 0);
    assert_eq!(fixture.ready("orders"), 0, "dropped");
}

#[test]
fn a_policys_overflow_wins_on_a_quorum_queue_which_then_dead_letters_at_most_once() {
    for version in Version::ALL {
        let mut fixture = Fixture::new(version);
        let wait = Declare::durable("wait", QueueType::Quorum)
            .with_number("x-message-ttl", 50)
            .with("x-dead-letter-exchange", "")
            .with("x-dead-letter-routing-key", "missing")
            .with("x-dead-letter-strategy", "at-least-once")
            .with("x-overflow", "reject-publish");
        fixture.declare_as(wait);
        let held = |fixture: &mut Fixture, reject_publish| {
            let policy = Policy {
                reject_publish,
                ..Policy::default()
            };
            fixture.broker.set_policy("wait", Some(policy));
            fixture.publish("wait", "");
            fixture.wait(MINUTE);
            fixture.broker.queue_view("wait").unwrap().dead
        };
        assert_eq!(held(&mut fixture, Some(false)), 0); // 90
        assert_eq!(held(&mut fixture, Some(true)), 1);
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
        let mut fixture = Fixture::new(Version::V4_3);
        let work = Declare::durable("work", QueueType::Quorum)
            .with("x-delayed-retry-type", "failed")
            .with_number("x-delayed-retry-min", 3_600_000)
            .with_number("x-delayed-retry-max", 3_600_000);
        fixture.declare_as(work);
        fixture.broker.set_policy("work", Some(policy.clone()));
        fixture.publish("work", "");
        fixture.consume("work", 1);
        assert_eq!(fixture.deliveries().len(), 1);
        fixture.send(Method::Reject {
            tag: 1,
            requeue: true,
        });
        fixture.wait(MINUTE);
        let again = fixture.deliveries().len(); // 93
        assert_eq!(again == 0, delayed, "{policy:?}");
    }
}
