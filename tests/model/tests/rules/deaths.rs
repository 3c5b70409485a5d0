//! Long loops, which random programs are too short for.

use crate::fixture::Fixture;
use retryrmq_model::lapin::types::AMQPValue;
use retryrmq_model::{Declare, Delivery, Method, QueueType, Version};
use std::time::Duration;

fn count(delivery: &Delivery, name: &str) -> Option<i64> {
    match delivery.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongLongInt(count) => Some(*count),
        other => panic!("{other:?}"),
    }
}

/// A work queue whose dead letters wait and return.
fn loop_of(version: Version) -> Fixture {
    let mut fixture = Fixture::new(version);
    let to = |from, to| {
        Declare::durable(from, QueueType::Quorum)
            .with("x-dead-letter-exchange", "")
            .with("x-dead-letter-routing-key", to)
    };
    fixture.declare_as(to("work", "wait"));
    fixture.declare_as(to("wait", "work").with_number("x-message-ttl", 50));
    fixture.publish("work", "");
    fixture.consume("work", 1);
    fixture
}

#[test]
fn rejects_are_carried_through_dead_lettering_on_4_3_until_a_message_is_lost() {
    for version in [Version::V4_0, Version::V4_3] {
        let mut fixture = loop_of(version);
        for tag in 1..=25 {
            assert_eq!(fixture.deliveries().len(), 1);
            fixture.send(Method::Reject {
                tag,
                requeue: false,
            });
            fixture.wait(Duration::from_millis(50));
        }
        let delivery = fixture.deliveries().remove(0);
        assert_eq!(count(&delivery, "x-delivery-count"), Some(25)); // 6
        fixture.send(Method::Reject {
            tag: 26,
            requeue: true,
        });
        fixture.wait(Duration::from_millis(50));
        let next = fixture.deliveries().pop();
        let next = next.map(|delivery| count(&delivery, "x-delivery-count"));
        let expected = (version == Version::V4_0).then_some(Some(1));
        assert_eq!(next, expected);
    }
}

#[test]
fn the_default_limit_is_the_21st_delivery_since_4_0_and_none_before() {
    for version in Version::ALL {
        let mut fixture = Fixture::new(version);
        fixture.declare("work", QueueType::Quorum);
        fixture.publish("work", "");
        fixture.consume("work", 1);
        let mut delivered = 0;
        for tag in 1..=30 {
            delivered += fixture.deliveries().len();
            if delivered < tag as usize {
                break;
            }
            fixture.send(Method::Reject { tag, requeue: true });
        }
        let expected = if version == Version::V3_10 { 30 } else { 21 };
        assert_eq!(delivered, expected); // 5
    }
}

#[test]
fn what_one_seed_brings_it_brings_again() {
    let run = || {
        let nondeterminism = retryrmq_model::Seeded::new(7, Duration::from_millis(30));
        let profile = retryrmq_model::Profile::new(Version::V4_3);
        let mut fixture = Fixture {
            broker: retryrmq_model::Broker::new(profile, nondeterminism),
            client: retryrmq_model::ConnectionId(0),
        };
        fixture.open();
        fixture.declare("work", QueueType::Quorum);
        for number in 0..20 {
            fixture.publish("work", &number.to_string());
        }
        fixture.broker.restart_killed();
        fixture.open();
        fixture.consume("work", 0);
        format!("{:?}", fixture.frames())
    };
    assert_eq!(run(), run());
}
