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
fn holds(stage: &mut Fixture, queue: &str) -> bool {
    let dead = |stage: &Fixture| stage.broker.queue_view(queue).unwrap().dead;
    let before = dead(stage);
    stage.publish(queue, "");
    stage.wait(Duration::from_secs(1));
    dead(stage) > before
}

#[test]
fn a_policy_is_for_all_names_that_begin_so_and_the_longest_counts() {
    let mut stage = Fixture::new(Version::V4_0);
    stage.broker.set_policy("*", overflow(false));
    stage.declare_as(waiting("orders.retry.50"));
    stage.declare_as(waiting("bills.retry.50"));
    assert!(!holds(&mut stage, "orders.retry.50")); // 90
    stage.broker.set_policy("orders.*", overflow(true));
    assert!(holds(&mut stage, "orders.retry.50"));
    assert!(!holds(&mut stage, "bills.retry.50"));
    stage.broker.set_policy("*", None);
    assert!(holds(&mut stage, "bills.retry.50"));
}

#[test]
fn an_operators_overflow_wins_and_needs_4_0() {
    for version in Version::ALL {
        let mut stage = Fixture::new(version);
        stage.broker.set_policy("wait", overflow(true));
        stage.declare_as(waiting("wait"));
        let set = stage.broker.set_operator_policy("wait", overflow(false));
        assert_eq!(set.is_ok(), version >= Version::V4_0); // 90
        assert_eq!(holds(&mut stage, "wait"), set.is_err());
        let route = Policy {
            dead_letter_exchange: Some(String::new()),
            ..Policy::default()
        };
        let refused = stage.broker.set_operator_policy("wait", Some(route));
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
        let mut stage = Fixture::new(Version::V4_3);
        stage.broker.set_policy("orders", limit(user));
        let set = stage.broker.set_operator_policy("orders", limit(operator));
        set.unwrap();
        stage.declare("orders", QueueType::Classic);
        (0..5).for_each(|_| stage.publish("orders", ""));
        assert_eq!(stage.ready("orders"), 1);
    }
}

#[test]
fn without_its_feature_flag_3_10_dead_letters_at_most_once_until_a_policy_is_set() {
    for version in Version::ALL {
        let mut stage = Fixture::with(Profile {
            stream_queue: false,
            ..Profile::new(version)
        });
        stage.declare_as(waiting("wait"));
        let needs_it = version < Version::V4_0;
        assert_eq!(holds(&mut stage, "wait"), !needs_it); // 91
        stage.broker.enable_stream_queue();
        stage.declare_as(waiting("new"));
        assert!(holds(&mut stage, "new"));
        assert_eq!(holds(&mut stage, "wait"), !needs_it, "it goes on as before");
        let any = Policy {
            max_length: Some(1_000),
            ..Policy::default()
        };
        stage.broker.set_policy("wait", Some(any));
        assert!(holds(&mut stage, "wait"));
    }
}

#[test]
fn a_channel_too_many_costs_the_connection() {
    let mut stage = Fixture::with(Profile {
        channel_max: Some(2),
        ..Profile::new(Version::V4_0)
    });
    let open = |stage: &mut Fixture, channel| {
        stage
            .broker
            .send(stage.client, channel, Method::OpenChannel);
        stage.refusal()
    };
    assert_eq!(open(&mut stage, 2), None);
    assert_eq!(open(&mut stage, 3), Some(530));
    stage.open();
    assert_eq!(open(&mut stage, 2), None, "they are counted anew");

    let mut stage = Fixture::with(Profile {
        max_channels: Some(2),
        ..Profile::new(Version::V4_0)
    });
    let first = stage.client;
    stage.client = stage.broker.connect().unwrap();
    assert_eq!(open(&mut stage, 1), None);
    assert_eq!(
        open(&mut stage, 2),
        Some(530),
        "with those of the other connection"
    );
    stage.broker.cut(first);
    stage.open();
    assert_eq!(open(&mut stage, 2), None);
}

/// Consumes until the broker closes the connection with this code.
fn loses_its_connection(stage: &mut Fixture) -> Option<u16> {
    stage.open();
    stage.consume("orders", 1);
    stage.refusal()
}

fn unreadable(queue: &str) -> Method {
    Method::Publish(Box::new(Publish::to_queue(queue, *b"odd").unreadable()))
}

#[test]
fn what_cannot_be_delivered_costs_each_connection_and_counts() {
    let mut stage = Fixture::new(Version::V4_0);
    stage.declare("orders", QueueType::Quorum);
    stage.send(unreadable("orders"));
    stage.publish("orders", "behind it");
    for _ in 0..=20 {
        assert_eq!(loses_its_connection(&mut stage), Some(541)); // 94
    }
    assert_eq!(loses_its_connection(&mut stage), None, "it is dropped"); // 5
    assert_eq!(stage.ready("orders"), 0);

    let mut stage = Fixture::new(Version::V4_3);
    stage.declare("orders", QueueType::Classic);
    stage.send(unreadable("orders"));
    for _ in 0..50 {
        assert_eq!(loses_its_connection(&mut stage), Some(541));
    }
    assert_eq!(stage.ready("orders"), 1, "a classic queue counts nothing");

    let mut stage = Fixture::new(Version::V3_10);
    stage.declare("orders", QueueType::Quorum);
    stage.send(unreadable("orders"));
    assert_eq!(
        loses_its_connection(&mut stage),
        None,
        "it is converted when it comes"
    );
}

#[test]
fn what_cannot_be_delivered_costs_who_gets_it_the_connection_as_well() {
    let mut stage = Fixture::new(Version::V4_3);
    stage.declare("orders", QueueType::Quorum);
    stage.send(unreadable("orders"));
    stage.wait(MINUTE);
    stage.frames();
    let (queue, no_ack) = ("orders".into(), false);
    stage.send(Method::Get { queue, no_ack });
    assert_eq!(stage.refusal(), Some(541));
}

#[test]
fn a_client_of_amqp_1_0_is_given_everything_and_can_move_it() {
    let mut stage = Fixture::new(Version::V4_0);
    stage.declare("orders", QueueType::Quorum);
    stage.send(unreadable("orders"));
    stage.wait(MINUTE);
    stage.client = stage.broker.connect_amqp10().unwrap();
    stage.send(Method::OpenChannel);
    stage.send(Method::Consume(Consume::new("orders", "look")));
    let frames = stage.frames();
    let Some(Frame::Deliver(delivery)) = frames.last() else {
        panic!("{frames:?}");
    };
    assert!(delivery.unreadable && &*delivery.body == b"odd");
    let (tag, multiple) = (delivery.tag, false);
    stage.send(Method::Ack { tag, multiple });
    stage.wait(MINUTE);
    assert_eq!(loses_its_connection(&mut stage), None);
}
