//! What is left after a broker died.

use crate::fixture::{SLOW, Fixture};
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
        let mut stage = Fixture::new(version);
        stage.declare("old", kind);
        stage.wait(OLD);
        stage.declare("young", QueueType::Quorum);
        stage.publish("old", "kept");
        stage.publish("young", "lost");
        stage.broker.restart_killed();
        assert_eq!((stage.ready("old"), stage.ready("young")), (1, 0)); // 9
    });
}

#[test]
fn what_was_not_confirmed_may_be_gone_and_what_was_is_not() {
    everywhere(|version, kind| {
        let mut stage = Fixture::new(version);
        stage.declare("orders", kind);
        stage.wait(OLD);
        stage.publish("orders", "confirmed");
        stage.send(Method::Publish(Box::new(Publish::to_queue(
            "orders", *b"?",
        ))));
        assert_eq!(stage.ready("orders"), 2);
        stage.broker.restart_killed();
        assert_eq!(stage.ready("orders"), 1);
    });
}

#[test]
fn an_acknowledgement_just_before_a_kill_may_not_have_happened() {
    everywhere(|version, kind| {
        let mut stage = Fixture::new(version);
        stage.declare("orders", kind);
        stage.wait(OLD);
        for body in ["early", "late"] {
            stage.publish("orders", body);
        }
        stage.consume("orders", 2);
        let tags: Vec<u64> = stage.deliveries().iter().map(|one| one.tag).collect();
        for tag in tags {
            stage.wait(SLOW);
            stage.send(Method::Ack {
                tag,
                multiple: false,
            });
        }
        stage.broker.restart_killed();
        stage.open();
        stage.consume("orders", 2);
        let back = stage.deliveries();
        assert_eq!(back.len(), 1);
        assert_eq!(&*back[0].body, b"late");
        assert!(back[0].redelivered);
    });
}

#[test]
fn after_a_kill_a_classic_queue_calls_everything_redelivered_and_a_quorum_queue_what_was_held() {
    everywhere(|version, kind| {
        let mut stage = Fixture::new(version);
        stage.declare("orders", kind);
        stage.wait(OLD);
        for body in ["held", "never handed out"] {
            stage.publish("orders", body);
        }
        stage.consume("orders", 1);
        stage.broker.restart_killed();
        stage.open();
        stage.consume("orders", 0);
        let flags: Vec<bool> = (stage.deliveries().iter())
            .map(|one| one.redelivered)
            .collect();
        assert_eq!(flags, [true, kind == QueueType::Classic]); // 41
    });
}

#[test]
fn after_a_stop_in_good_order_nothing_is_called_redelivered_that_was_not_held() {
    everywhere(|version, kind| {
        let mut stage = Fixture::new(version);
        stage.declare("orders", kind);
        stage.publish("orders", "");
        stage.broker.stop();
        assert_eq!(stage.refusal(), Some(320));
        assert_eq!(stage.broker.connect(), None);
        stage.broker.start();
        stage.open();
        stage.consume("orders", 0);
        assert!(!stage.deliveries()[0].redelivered);
    });
}

#[test]
fn a_delay_survives_a_kill() {
    everywhere(|version, kind| {
        let mut stage = Fixture::new(version);
        let wait = retryrmq_model::Declare::durable("wait", kind)
            .with_number("x-message-ttl", 5000)
            .with("x-dead-letter-exchange", "")
            .with("x-dead-letter-routing-key", "work");
        stage.declare("work", QueueType::Quorum);
        stage.declare_as(wait);
        stage.wait(OLD);
        stage.publish("wait", "");
        stage.broker.restart_killed();
        stage.wait(Duration::from_secs(4));
        assert_eq!(stage.ready("work"), 0);
        stage.wait(Duration::from_secs(1));
        assert_eq!(stage.ready("work"), 1); // 10
    });
}
