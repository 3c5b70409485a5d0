//! The delayed retry that quorum queues have of their own since 4.3.

use lapin::options::{BasicNackOptions, BasicRejectOptions};
use lapin::types::AMQPValue;
use retryrmq_facts::*;
use retryrmq_harness::{
    Amqp, Policy, QueueType, Version, Vhost, eventually, on_every_broker, on_every_broker_where,
};
use serde_json::json;
use std::time::Duration;
use tokio::time::Instant;

const TYPE: &str = "x-delayed-retry-type";
const MIN: &str = "x-delayed-retry-min";
const MAX: &str = "x-delayed-retry-max";
/// So long that no test waits for it.
const HOUR: i64 = 3_600_000;

/// Fact 17.
#[tokio::test]
async fn older_brokers_take_the_arguments_and_ignore_them() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        declare(&amqp, "failed", HOUR, HOUR).await;
        amqp.publish("work", "").await;
        requeue(&hold(amqp.channel(), "work").await).await;
        assert_eq!(
            comes_back(&amqp, "work").await,
            broker.version() < Version::V4_3
        );
    })
    .await;
}

/// Fact 17.
#[tokio::test]
async fn classic_queues_refuse_the_arguments_on_4_3_and_ignore_them_before() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let declared = amqp
            .try_declare_with("work", QueueType::Classic, table([(MIN, int(1))]))
            .await;
        if broker.version() < Version::V4_3 {
            declared.unwrap();
        } else {
            let place = format!("for queue 'work' in vhost '{}'", vhost.name());
            let text = format!("invalid arg '{MIN}' {place} of queue type rabbit_classic_queue");
            assert_eq!(
                refusal(declared),
                (406, format!("PRECONDITION_FAILED - {text}"))
            );
        }
    })
    .await;
}

/// Fact 17. Every odd value is accepted, and then there is no delay, or another one.
#[tokio::test]
async fn values_that_mean_nothing_are_accepted_and_give_a_hot_loop() {
    on_4_3(|vhost| async move {
        let amqp = vhost.connect().await;
        for (odd, arguments) in [
            (
                "unknown type",
                vec![(TYPE, string("bogus")), (MIN, int(HOUR))],
            ),
            (
                "type that is no text",
                vec![(TYPE, int(1)), (MIN, int(HOUR))],
            ),
            ("no type", vec![(MIN, int(HOUR)), (MAX, int(HOUR))]),
            ("no minimum", vec![(TYPE, string("failed"))]),
            (
                "nothing but a maximum",
                vec![(TYPE, string("failed")), (MAX, int(HOUR))],
            ),
            (
                "minimum zero",
                vec![(TYPE, string("failed")), (MIN, int(0)), (MAX, int(HOUR))],
            ),
            (
                "minimum as text",
                vec![(TYPE, string("failed")), (MIN, string("3600000"))],
            ),
        ] {
            amqp.declare_with(odd, QueueType::Quorum, table(arguments))
                .await;
            amqp.publish(odd, "").await;
            requeue(&hold(amqp.channel(), odd).await).await;
            assert!(comes_back(&amqp, odd).await, "{odd}");
        }
    })
    .await;
}

/// Fact 17. Which types delay which way of giving a message back. Only reject and crashes are both counted and delayed.
#[tokio::test]
async fn failed_delays_rejects_and_crashes_and_returned_delays_nacks() {
    on_4_3(|vhost| async move {
        let amqp = vhost.connect().await;
        for (delayed_type, reject, nack) in [
            ("failed", true, false),
            ("returned", false, true),
            ("all", true, true),
        ] {
            declare(&amqp, delayed_type, HOUR, HOUR).await;
            for (way, delayed) in [("reject", reject), ("close", reject), ("nack", nack)] {
                amqp.publish("work", "").await;
                let channel = amqp.new_channel().await;
                let message = hold(&channel, "work").await;
                match way {
                    "reject" => requeue(&message).await,
                    "nack" => {
                        message
                            .nack(BasicNackOptions {
                                requeue: true,
                                ..Default::default()
                            })
                            .await
                            .unwrap();
                    }
                    _ => channel.close(200, "".into()).await.unwrap(),
                }
                assert_eq!(
                    !comes_back(&amqp, "work").await,
                    delayed,
                    "{delayed_type}: {way}"
                );
                amqp.drain("work").await;
            }
            amqp.delete("work").await;
        }
    })
    .await;
}

/// Fact 17. No delay is shorter than it should be; that it is not longer is shown against messages that wait in an
/// ordinary way beside it.
#[tokio::test]
async fn the_delay_grows_with_the_delivery_count_up_to_the_maximum() {
    on_4_3(|vhost| async move {
        let amqp = vhost.connect().await;
        declare(&amqp, "failed", 2_000, 4_000).await;
        // Without a maximum the fourth delay would be eight seconds.
        amqp.declare_with(
            "beside",
            QueueType::Quorum,
            wait_queue(QueueType::Quorum, 7_000, "work"),
        )
        .await;
        amqp.publish("work", "").await;
        let mut message = hold(amqp.channel(), "work").await;
        for (attempt, least) in [(1, 2_000), (2, 4_000), (3, 4_000), (4, 4_000)] {
            let given_back = Instant::now();
            requeue(&message).await;
            if attempt == 4 {
                amqp.publish("beside", "beside").await;
            }
            message = hold(amqp.channel(), "work").await;
            assert!(
                given_back.elapsed() >= Duration::from_millis(least),
                "attempt {attempt} comes back too early"
            );
            assert_eq!(message.data, b"", "what waits beside it is later");
            assert_eq!(
                count(&message.properties, "x-delivery-count"),
                Some(attempt)
            );
        }
    })
    .await;
}

/// Fact 17. A message that was delayed passes those that were published meanwhile.
#[tokio::test]
async fn what_is_due_comes_back_at_the_head() {
    on_4_3(|vhost| async move {
        let amqp = vhost.connect().await;
        declare(&amqp, "failed", 500, 500).await;
        amqp.publish("work", "delayed").await;
        requeue(&hold(amqp.channel(), "work").await).await;
        amqp.publish("work", "younger").await;
        amqp.publish("work", "youngest").await;
        eventually(DEADLINE, "it is due", || async {
            amqp.depth("work").await == Some(3)
        })
        .await;
        let order: Vec<_> = amqp
            .drain("work")
            .await
            .iter()
            .map(|message| message.text().to_owned())
            .collect();
        assert_eq!(order, ["delayed", "younger", "youngest"]);
    })
    .await;
}

/// Fact 17. Past the limit there is no further delay.
#[tokio::test]
async fn past_the_delivery_limit_it_is_dead_lettered_at_once() {
    on_4_3(|vhost| async move {
        let amqp = vhost.connect().await;
        amqp.declare("parked", QueueType::Quorum).await;
        let mut arguments = delayed("failed", 1, HOUR);
        arguments.extend(dead_letters_to("parked"));
        arguments.push(("x-delivery-limit", int(3)));
        amqp.declare_with("work", QueueType::Quorum, table(arguments))
            .await;
        amqp.publish("work", "").await;
        for _ in 0..4 {
            requeue(&hold(amqp.channel(), "work").await).await;
        }
        let message = hold(amqp.channel(), "parked").await;
        assert_eq!(
            deaths(&message.properties)[0].brief(),
            ("work", "delivery_limit", 1)
        );
        assert_eq!(count(&message.properties, "x-delivery-count"), Some(4));
        assert_eq!(amqp.depth("work").await, Some(0));
    })
    .await;
}

/// Fact 17. A message whose own time is over while it is delayed lives until the delay is.
#[tokio::test]
async fn a_delay_outlives_the_time_of_the_message() {
    on_4_3(|vhost| async move {
        let amqp = vhost.connect().await;
        amqp.declare("parked", QueueType::Quorum).await;
        let mut arguments = delayed("failed", 13_000, 13_000);
        arguments.extend(dead_letters_to("parked"));
        amqp.declare_with("work", QueueType::Quorum, table(arguments))
            .await;
        // Shorter than the delay, and longer than this test takes to give it back.
        let short = lapin::BasicProperties::default().with_expiration("10000".into());
        amqp.publish_with("work", "", short).await;
        let given_back = Instant::now();
        hold(amqp.channel(), "work")
            .await
            .reject(BasicRejectOptions { requeue: true })
            .await
            .unwrap();
        let message = hold(amqp.channel(), "parked").await;
        assert!(
            given_back.elapsed() >= Duration::from_secs(13),
            "it expired while it was delayed"
        );
        assert_eq!(
            deaths(&message.properties)[0].brief(),
            ("work", "expired", 1)
        );
    })
    .await;
}

fn delayed(delayed_type: &str, min: i64, max: i64) -> Vec<(&'static str, AMQPValue)> {
    vec![
        (TYPE, string(delayed_type)),
        (MIN, int(min)),
        (MAX, int(max)),
    ]
}

async fn declare(amqp: &Amqp, delayed_type: &str, min: i64, max: i64) {
    amqp.declare_with(
        "work",
        QueueType::Quorum,
        table(delayed(delayed_type, min, max)),
    )
    .await;
}

async fn on_4_3<F: Future<Output = ()>>(fact: impl Fn(Vhost) -> F) {
    let fact = &fact;
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_3,
        |broker| async move { fact(broker.vhost().await).await },
    )
    .await;
}

/// Fact 93. A policy for a whole broker takes the delay of a queue away.
#[tokio::test]
async fn a_policys_type_wins_and_of_two_times_the_lower_counts() {
    on_4_3(|vhost| async move {
        let amqp = vhost.connect().await;
        declare(&amqp, "failed", HOUR, HOUR).await;
        for (name, definition, delayed) in [
            (
                "other",
                json!({ "delayed-retry-type": "returned", "delayed-retry-min": 2 * HOUR }),
                false,
            ),
            ("off", json!({ "delayed-retry-type": "disabled" }), false),
            (
                "short",
                json!({ "delayed-retry-min": 1, "delayed-retry-max": 1 }),
                false,
            ),
            ("least", json!({ "delayed-retry-min": 1 }), false),
            ("most", json!({ "delayed-retry-max": 1 }), false),
            (
                "long",
                json!({ "delayed-retry-type": "all", "delayed-retry-min": 2 * HOUR, "delayed-retry-max": 2 * HOUR }),
                true,
            ),
        ] {
            vhost
                .put_policy("policy", &Policy::new(".*", definition))
                .await
                .unwrap();
            eventually(DEADLINE, "the policy applies", || async {
                let queue = vhost.queue("work").await.ok_or("no queue")?;
                let applies = queue.policy() == Some("policy");
                applies.then_some(()).ok_or("not yet")
            })
            .await;
            amqp.publish("work", "").await;
            requeue(&hold(amqp.channel(), "work").await).await;
            let came = comes_back(&amqp, "work").await;
            assert_eq!(!came, delayed, "{name}");
            amqp.delete("work").await;
            declare(&amqp, "failed", HOUR, HOUR).await;
        }
    })
    .await;
}
