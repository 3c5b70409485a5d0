//! What a client does not see until it is too late: policies, feature flags, limits, and what no client can be given.

use crate::fixture::Fixture;
use retryrmq_model::{
    Consume, Declare, Frame, Method, Policy, Profile, Publish, QueueType, Version,
};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// A waiting queue whose work queue is missing.
fn waiting(name: &str) -> Declare {
    Declare::durable(name, QueueType::Quorum)
        .with_number("x-message-ttl", 50)
        .with("x-dead-letter-exchange", "")
        .with("x-dead-letter-routing-key", "missing")
        .with("x-dead-letter-strategy", "at-least-once")
        .with("x-overflow", "reject-publish")
}

fn overflow(reject_publish: bool) -> Option<Policy> {
    Some(Policy {
        reject_publish: Some(reject_publish),
        ..Policy::default()
    })
}

/// How many more dead letters a queue holds after another message.
fn holds(fixture: &mut Fixture, queue: &str) -> bool {
    let dead = |fixture: &Fixture| fixture.broker.queue_view(queue).unwrap().dead;
    let before = dead(fixture);
    fixture.publish(queue, "");
    fixture.wait(Duration::from_secs(1));
    dead(fixture) > before
}

#[test]
fn a_policy_is_for_all_names_that_begin_so_and_the_longest_counts() {
    let mut fixture = Fixture::new(Version::V4_0);
    fixture.broker.set_policy("*", overflow(false));
    fixture.declare_as(waiting("orders.retry.50"));
    fixture.declare_as(waiting("bills.retry.50"));
    assert!(!holds(&mut fixture, "orders.retry.50")); // 90
    fixture.broker.set_policy("orders.*", overflow(true));
    assert!(holds(&mut fixture, "orders.retry.50"));
    assert!(!holds(&mut fixture, "bills.retry.50"));
    fixture.broker.set_policy("*", None);
    assert!(holds(&mut fixture, "bills.retry.50"));
}

#[test]
fn an_operators_overflow_wins_and_needs_4_0() {
    for version in Version::ALL {
        let mut fixture = Fixture::new(version);
        fixture.broker.set_policy("wait", overflow(true));
        fixture.declare_as(waiting("wait"));
        let set = fixture.broker.set_operator_policy("wait", overflow(false));
        assert_eq!(set.is_ok(), version >= Version::V4_0); // 90
        assert_eq!(holds(&mut fixture, "wait"), set.is_err());
        let route = Policy {
            dead_letter_exchange: Some(String::new()),
            ..Policy::default()
        };
        let refused = fixture.broker.set_operator_policy("wait", Some(route));
        assert_eq!(refused.unwrap_err().code, 400); // 12
    }
}

#[test]
fn of_a_users_and_an_operators_limit_the_lower_counts() {
    for (user, operator) in [(1, 5), (5, 1)] {
        let limit = |limit| {
            Some(Policy {
                max_length: Some(limit),
                ..Policy::default()
            })
        };
        let mut fixture = Fixture::new(Version::V4_3);
        fixture.broker.set_policy("orders", limit(user));
        let set = fixture
            .broker
            .set_operator_policy("orders", limit(operator));
        set.unwrap();
        fixture.declare("orders", QueueType::Classic);
        (0..5).for_each(|_| fixture.publish("orders", ""));
        assert_eq!(fixture.ready("orders"), 1);
    }
}

#[test]
fn without_its_feature_flag_3_10_dead_letters_at_most_once_until_a_policy_is_set() {
    for version in Version::ALL {
        let mut fixture = Fixture::with(Profile {
            stream_queue: false,
            ..Profile::new(version)
        });
        fixture.declare_as(waiting("wait"));
        let needs_it = version < Version::V4_0;
        assert_eq!(holds(&mut fixture, "wait"), !needs_it); // 91
        fixture.broker.enable_stream_queue();
        fixture.declare_as(waiting("new"));
        assert!(holds(&mut fixture, "new"));
        assert_eq!(
            holds(&mut fixture, "wait"),
            !needs_it,
            "it goes on as before"
        );
        let any = Policy {
            max_length: Some(1_000),
            ..Policy::default()
        };
        fixture.broker.set_policy("wait", Some(any));
        assert!(holds(&mut fixture, "wait"));
    }
}

#[test]
fn a_channel_too_many_costs_the_connection() {
    let mut fixture = Fixture::with(Profile {
        channel_max: Some(2),
        ..Profile::new(Version::V4_0)
    });
    let open = |fixture: &mut Fixture, channel| {
        fixture
            .broker
            .send(fixture.client, channel, Method::OpenChannel);
        fixture.refusal()
    };
    assert_eq!(open(&mut fixture, 2), None);
    assert_eq!(open(&mut fixture, 3), Some(530));
    fixture.open();
    assert_eq!(open(&mut fixture, 2), None, "they are counted anew");

    let mut fixture = Fixture::with(Profile {
        max_channels: Some(2),
        ..Profile::new(Version::V4_0)
    });
    let first = fixture.client;
    fixture.client = fixture.broker.connect().unwrap();
    assert_eq!(open(&mut fixture, 1), None);
    assert_eq!(
        open(&mut fixture, 2),
        Some(530),
        "with those of the other connection"
    );
    fixture.broker.cut(first);
    fixture.open();
    assert_eq!(open(&mut fixture, 2), None);
}

/// Consumes until the broker closes the connection with this code.
fn loses_its_connection(fixture: &mut Fixture) -> Option<u16> {
    fixture.open();
    fixture.consume("orders", 1);
    fixture.refusal()
}

fn unreadable(queue: &str) -> Method {
    Method::Publish(Box::new(Publish::to_queue(queue, *b"odd").unreadable()))
}

#[test]
fn what_cannot_be_delivered_costs_each_connection_and_counts() {
    let mut fixture = Fixture::new(Version::V4_0);
    fixture.declare("orders", QueueType::Quorum);
    fixture.send(unreadable("orders"));
    fixture.publish("orders", "behind it");
    for _ in 0..=20 {
        assert_eq!(loses_its_connection(&mut fixture), Some(541)); // 94
    }
    assert_eq!(loses_its_connection(&mut fixture), None, "it is dropped"); // 5
    assert_eq!(fixture.ready("orders"), 0);

    let mut fixture = Fixture::new(Version::V4_3);
    fixture.declare("orders", QueueType::Classic);
    fixture.send(unreadable("orders"));
    for _ in 0..50 {
        assert_eq!(loses_its_connection(&mut fixture), Some(541));
    }
    assert_eq!(fixture.ready("orders"), 1, "a classic queue counts nothing");

    let mut fixture = Fixture::new(Version::V3_10);
    fixture.declare("orders", QueueType::Quorum);
    fixture.send(unreadable("orders"));
    assert_eq!(
        loses_its_connection(&mut fixture),
        None,
        "it is converted when it comes"
    );
}

#[test]
fn what_cannot_be_delivered_costs_who_gets_it_the_connection_as_well() {
    let mut fixture = Fixture::new(Version::V4_3);
    fixture.declare("orders", QueueType::Quorum);
    fixture.send(unreadable("orders"));
    fixture.wait(MINUTE);
    fixture.frames();
    let (queue, no_ack) = ("orders".into(), false);
    fixture.send(Method::Get { queue, no_ack });
    assert_eq!(fixture.refusal(), Some(541));
}

#[test]
fn a_client_of_amqp_1_0_is_given_everything_and_can_move_it() {
    let mut fixture = Fixture::new(Version::V4_0);
    fixture.declare("orders", QueueType::Quorum);
    fixture.send(unreadable("orders"));
    fixture.wait(MINUTE);
    fixture.client = fixture.broker.connect_amqp10().unwrap();
    fixture.send(Method::OpenChannel);
    fixture.send(Method::Consume(Consume::new("orders", "look")));
    let frames = fixture.frames();
    let Some(Frame::Deliver(delivery)) = frames.last() else {
        panic!("{frames:?}");
    };
    assert!(delivery.unreadable && &*delivery.body == b"odd");
    let (tag, multiple) = (delivery.tag, false);
    fixture.send(Method::Ack { tag, multiple });
    fixture.wait(MINUTE);
    assert_eq!(loses_its_connection(&mut fixture), None);
}
