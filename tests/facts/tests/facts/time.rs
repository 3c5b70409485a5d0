//! When a message expires, and when a queue does.

use lapin::{BasicProperties, options::QueuePurgeOptions};
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, eventually, on_every_broker, on_every_queue_type};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Ten years of 365 days.
const LONGEST: i64 = 315_360_000_000;
const HOUR: i64 = 3_600_000;

/// Fact 14. The reason for one queue per delay.
#[tokio::test]
async fn a_message_that_waits_long_blocks_those_behind_it() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        amqp.declare_with("wait", queue_type, wait_queue(queue_type, HOUR, "work"))
            .await;
        for milliseconds in ["1500", "100", "600"] {
            amqp.publish_with("wait", milliseconds, expiring(milliseconds))
                .await;
        }
        for milliseconds in ["1500", "100", "600"] {
            assert_eq!(
                hold(amqp.channel(), "work").await.data,
                milliseconds.as_bytes()
            );
        }
    })
    .await;
}

/// Fact 14.
#[tokio::test]
async fn of_a_queues_and_a_messages_own_time_the_shorter_counts() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        amqp.declare_with("long", queue_type, wait_queue(queue_type, HOUR, "work"))
            .await;
        amqp.declare_with("short", queue_type, wait_queue(queue_type, 50, "work"))
            .await;
        amqp.publish_with("long", "own", expiring("50")).await;
        assert_eq!(hold(amqp.channel(), "work").await.data, b"own");
        amqp.publish_with("short", "queue", expiring(&HOUR.to_string()))
            .await;
        assert_eq!(hold(amqp.channel(), "work").await.data, b"queue");
    })
    .await;
}

/// Fact 95. A clock that the broker keeps.
#[tokio::test]
async fn a_queue_expires_although_it_is_purged_again_and_again() {
    const EXPIRES: Duration = Duration::from_secs(2);
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let expires = || table([("x-expires", int(2_000))]);
        let declare = || amqp.declare_with("clock", QueueType::Classic, expires());
        let declared = Instant::now(); // before the broker's clock starts
        declare().await;
        let gone = || async {
            let channel = amqp.new_channel().await;
            let purged = channel.queue_purge("clock".into(), QueuePurgeOptions::default());
            let purged = purged.await;
            let _ = channel.close(200, "".into()).await;
            match purged {
                Ok(_) => Err("it is there"),
                Err(why) => Ok(refusal::<()>(Err(why))),
            }
        };
        let (code, text) = eventually(DEADLINE, "it expires", gone).await;
        assert!(declared.elapsed() >= EXPIRES, "{broker}");
        let name = vhost.name();
        let missing = format!("NOT_FOUND - no queue 'clock' in vhost '{name}'");
        assert_eq!((code, text), (404, missing));
    })
    .await;
}

/// Fact 95. The core takes a queue for old when the marker of such a queue is not bound any more.
#[tokio::test]
async fn a_queue_expires_although_its_marker_is_asked_for_again_and_again() {
    const EXPIRES: Duration = Duration::from_secs(2);
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let expires = table([("x-expires", int(2_000))]);
        let declared = Instant::now(); // before the broker's clock starts
        amqp.declare_with("clock", QueueType::Classic, expires)
            .await;
        mark(&amqp, "clock").await;
        eventually(DEADLINE, "its binding goes with it", || async {
            declare_marker(&amqp, "clock").await.unwrap();
            let deleted = delete_unbound_marker(&amqp, "clock").await;
            deleted.map_err(|why| why.to_string())
        })
        .await;
        assert!(declared.elapsed() >= EXPIRES, "{broker}");
        assert_eq!(amqp.depth("clock").await, None, "{broker}");
    })
    .await;
}

/// Fact 15.
#[tokio::test]
async fn a_queues_time_may_be_zero_to_ten_years() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let declare = |milliseconds| {
            let arguments = table([("x-message-ttl", int(milliseconds))]);
            amqp.try_declare_with(if milliseconds == 0 { "zero" } else { "queue" }, queue_type, arguments)
        };
        declare(0).await.unwrap();
        declare(LONGEST).await.unwrap();
        amqp.delete("queue").await;
        for (milliseconds, reason) in [(-1, "{value_negative,-1}"), (LONGEST + 1, "{value_too_large,315360000001}")] {
            let (code, text) = refusal(declare(milliseconds).await);
            assert_eq!(code, 406);
            let vhost = vhost.name();
            let expected = format!("PRECONDITION_FAILED - invalid arg 'x-message-ttl' for queue 'queue' in vhost '{vhost}': {reason}");
            assert_eq!(text, expected);
        }
    })
    .await;
}

/// Fact 15.
#[tokio::test]
async fn a_messages_time_may_be_zero_to_ten_years_and_else_costs_the_channel() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        for good in ["0", "1", "005", &LONGEST.to_string()] {
            amqp.publish_with("work", "", expiring(good)).await;
        }
        for (bad, reason) in [
            ("-1", "'-1': {value_negative,-1}"),
            (
                "315360000001",
                "'315360000001': {value_too_large,315360000001}",
            ),
            ("1.5", "'1.5': {leftover_string,\".5\"}"),
            ("soon", "'soon': no_integer"),
            ("", "'': no_integer"),
            (" 5", "' 5': no_integer"),
        ] {
            let channel = amqp.new_channel().await;
            channel.confirm_select(Default::default()).await.unwrap();
            let publish = channel.basic_publish(
                "".into(),
                "work".into(),
                Default::default(),
                b"",
                expiring(bad),
            );
            let (code, text) = refusal(publish.await.unwrap().await);
            assert_eq!(
                (code, text),
                (
                    406,
                    format!("PRECONDITION_FAILED - invalid expiration {reason}")
                )
            );
            closed(&channel).await;
        }
    })
    .await;
}

/// Fact 11. The messages go with the queue, and not to its dead-letter queue.
#[tokio::test]
async fn a_lease_on_a_quorum_queue_is_renewed_neither_by_declaring_nor_by_publishing() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let mut amqp = vhost.connect().await;
        amqp.declare("dead", QueueType::Quorum).await;
        let mut arguments = dead_letters_to("dead");
        arguments.push(("x-expires", int(4_000)));
        amqp.declare_with("leased", QueueType::Quorum, table(arguments.clone()))
            .await;
        amqp.publish("leased", "").await;
        let end = Instant::now() + DEADLINE;
        // Each round renews the lease, if anything does, and would be early enough. A depth of zero means that the queue
        // was gone, and that the one just declared is a new one.
        while amqp.depth("leased").await != Some(0) {
            assert!(Instant::now() < end, "the lease is renewed");
            let publish = amqp.channel().basic_publish(
                "".into(),
                "leased".into(),
                Default::default(),
                b"",
                durable(),
            );
            let stored = async { publish.await?.await };
            if stored.await.is_err() {
                // The queue went in this very moment: 3.10 ends the connection then (541).
                amqp = vhost.connect().await;
            }
            sleep(Duration::from_millis(50)).await;
            amqp.declare_with("leased", QueueType::Quorum, table(arguments.clone()))
                .await;
        }
        assert!(
            !comes_back(&amqp, "dead").await,
            "expiry of a queue dead-letters"
        );
    })
    .await;
}

/// Fact 11.
#[tokio::test]
async fn a_lease_on_a_classic_queue_is_renewed_by_declaring_it() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let arguments = table([("x-expires", int(3_000))]);
        let lease = Duration::from_secs(3);
        let end = Instant::now() + DEADLINE;
        let (mut renewed, mut since) = (Instant::now(), None);
        while since.is_none_or(|since: Instant| since.elapsed() < lease * 2) {
            assert!(Instant::now() < end, "no lease was renewed in time");
            let declaring = Instant::now();
            amqp.declare_with("leased", QueueType::Classic, arguments.clone())
                .await;
            let depth = amqp.depth("leased").await;
            // On a busy machine a round may come too late, and proves nothing.
            if since.is_none() || renewed.elapsed() >= lease {
                amqp.publish("leased", "").await;
                since = Some(declaring);
            } else {
                assert!(depth > Some(0), "it is another queue: {depth:?}");
            }
            renewed = declaring;
            sleep(Duration::from_millis(50)).await;
        }
    })
    .await;
}

fn expiring(milliseconds: &str) -> BasicProperties {
    BasicProperties::default().with_expiration(milliseconds.into())
}

fn durable() -> BasicProperties {
    BasicProperties::default().with_delivery_mode(2)
}
