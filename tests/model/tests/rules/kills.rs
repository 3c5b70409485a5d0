//! What is left after a broker died.

use crate::fixture::{Fixture, SLOW};
use retryrmq_model::{Method, Publish, QueueType, Version};
use std::time::Duration;

const OLD: Duration = Duration::from_secs(2);

fn everywhere(test: impl Fn(Version, QueueType)) {
    for version in Version::ALL {
        for kind in QueueType::ALL {
            test(version, kind);
        }
    }
}

#[test]
fn a_young_quorum_queue_comes_back_empty_and_an_old_one_does_not() {
    everywhere(|version, kind| {
        let mut fixture = Fixture::new(version);
        fixture.declare("old", kind);
        fixture.wait(OLD);
        fixture.declare("young", QueueType::Quorum);
        fixture.publish("old", "kept");
        fixture.publish("young", "lost");
        fixture.broker.restart_killed();
        assert_eq!((fixture.ready("old"), fixture.ready("young")), (1, 0)); // 9
    });
}

#[test]
fn what_was_not_confirmed_may_be_gone_and_what_was_is_not() {
    everywhere(|version, kind| {
        let mut fixture = Fixture::new(version);
        fixture.declare("orders", kind);
        fixture.wait(OLD);
        fixture.publish("orders", "confirmed");
        fixture.send(Method::Publish(Box::new(Publish::to_queue(
            "orders", *b"?",
        ))));
        assert_eq!(fixture.ready("orders"), 2);
        fixture.broker.restart_killed();
        assert_eq!(fixture.ready("orders"), 1);
    });
}

#[test]
fn an_acknowledgement_just_before_a_kill_may_not_have_happened() {
    everywhere(|version, kind| {
        let mut fixture = Fixture::new(version);
        fixture.declare("orders", kind);
        fixture.wait(OLD);
        for body in ["early", "late"] {
            fixture.publish("orders", body);
        }
        fixture.consume("orders", 2);
        let tags: Vec<u64> = fixture.deliveries().iter().map(|one| one.tag).collect();
        for tag in tags {
            fixture.wait(SLOW);
            fixture.send(Method::Ack {
                tag,
                multiple: false,
            });
        }
        fixture.broker.restart_killed();
        fixture.open();
        fixture.consume("orders", 2);
        let back = fixture.deliveries();
        assert_eq!(back.len(), 1);
        assert_eq!(&*back[0].body, b"late");
        assert!(back[0].redelivered);
    });
}

#[test]
fn after_a_kill_a_classic_queue_calls_everything_redelivered_and_a_quorum_queue_what_was_held() {
    everywhere(|version, kind| {
        let mut fixture = Fixture::new(version);
        fixture.declare("orders", kind);
        fixture.wait(OLD);
        for body in ["held", "never handed out"] {
            fixture.publish("orders", body);
        }
        fixture.consume("orders", 1);
        fixture.broker.restart_killed();
        fixture.open();
        fixture.consume("orders", 0);
        let flags: Vec<bool> = (fixture.deliveries().iter())
            .map(|one| one.redelivered)
            .collect();
        assert_eq!(flags, [true, kind == QueueType::Classic]); // 41
    });
}

#[test]
fn after_a_stop_in_good_order_nothing_is_called_redelivered_that_was_not_held() {
    everywhere(|version, kind| {
        let mut fixture = Fixture::new(version);
        fixture.declare("orders", kind);
        fixture.publish("orders", "");
        fixture.broker.stop();
        assert_eq!(fixture.refusal(), Some(320));
        assert_eq!(fixture.broker.connect(), None);
        fixture.broker.start();
        fixture.open();
        fixture.consume("orders", 0);
        assert!(!fixture.deliveries()[0].redelivered);
    });
}

#[test]
fn a_delay_survives_a_kill() {
    everywhere(|version, kind| {
        let mut fixture = Fixture::new(version);
        let wait = retryrmq_model::Declare::durable("wait", kind)
            .with_number("x-message-ttl", 5000)
            .with("x-dead-letter-exchange", "")
            .with("x-dead-letter-routing-key", "work");
        fixture.declare("work", QueueType::Quorum);
        fixture.declare_as(wait);
        fixture.wait(OLD);
        fixture.publish("wait", "");
        fixture.broker.restart_killed();
        fixture.wait(Duration::from_secs(4));
        assert_eq!(fixture.ready("work"), 0);
        fixture.wait(Duration::from_secs(1));
        assert_eq!(fixture.ready("work"), 1); // 10
    });
}
