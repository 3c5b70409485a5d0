//! What a broker refuses, returns, drops or holds back of what is published.

use lapin::message::BasicReturnMessage;
use lapin::options::BasicPublishOptions;
use lapin::{BasicProperties, Channel, Confirmation, Result};
use retryrmq_facts::*;
use retryrmq_harness::{
    Amqp10, Message10, QueueType, Version, Vhost, eventually, on_every_broker,
    on_every_broker_where, on_every_queue_type,
};

/// What lapin and all three lines agree on, in bytes.
const FRAME: usize = 131_072;

/// Fact 37.
#[tokio::test]
async fn what_cannot_be_routed_comes_back_exactly_as_it_was_sent() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let sent = every_property("guest").with_expiration("60000".into());
        let returned = publish(amqp.channel(), "missing", b"a\0\xff", sent.clone())
            .await
            .unwrap();
        let returned = returned.expect("there is no such queue");
        assert_eq!(
            (returned.reply_code, returned.reply_text.as_str()),
            (312, "NO_ROUTE")
        );
        assert_eq!(
            (returned.exchange.as_str(), returned.routing_key.as_str()),
            ("", "missing")
        );
        assert_eq!(returned.data, b"a\0\xff");
        assert_eq!(returned.properties, sent);
    })
    .await;
}

/// Fact 38. The reason why our copies carry no `CC`.
#[tokio::test]
async fn a_cc_hides_that_the_queue_itself_is_missing() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("other", queue_type).await;
        for name in ["CC", "BCC"] {
            let copied = headers([(name, array([string("other")]))]);
            let returned = publish(amqp.channel(), "missing", b"", copied)
                .await
                .unwrap();
            assert!(
                returned.is_none(),
                "{name}: a queue got it, so it is not returned"
            );
            hold(amqp.channel(), "other")
                .await
                .ack(Default::default())
                .await
                .unwrap();
        }
    })
    .await;
}

/// Fact 38.
#[tokio::test]
async fn a_cc_that_is_no_array_costs_the_channel() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        let refused = publish(
            amqp.channel(),
            "work",
            b"",
            headers([("CC", string("other"))]),
        )
        .await;
        let text =
            "PRECONDITION_FAILED - invalid message: {unacceptable_type_in_header,\"CC\",longstr}";
        assert_eq!(refusal(refused), (406, text.to_owned()));
        closed(amqp.channel()).await;
    })
    .await;
}

/// Fact 24.
#[tokio::test]
async fn a_user_id_that_is_not_ones_own_costs_the_channel() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        let refused = publish(amqp.channel(), "work", b"", BasicProperties::default().with_user_id("bob".into())).await;
        let text = "PRECONDITION_FAILED - user_id property set to 'bob' but authenticated user was 'guest'";
        assert_eq!(refusal(refused), (406, text.to_owned()));
        closed(amqp.channel()).await;
        assert!(amqp.connection().status().connected());
    })
    .await;
}

/// Fact 37.
#[tokio::test]
async fn an_exchange_that_is_missing_costs_the_channel() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let publish = amqp.channel().basic_publish(
            "nowhere".into(),
            "".into(),
            Default::default(),
            b"",
            Default::default(),
        );
        let refused = refusal(publish.await.unwrap().await);
        assert_eq!(
            refused,
            (
                404,
                format!(
                    "NOT_FOUND - no exchange 'nowhere' in vhost '{}'",
                    vhost.name()
                )
            )
        );
        closed(amqp.channel()).await;
    })
    .await;
}

/// Fact 25.
#[tokio::test]
async fn properties_must_fit_in_one_frame_or_the_connection_is_lost() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        // Of a frame, 8 bytes are not content. Of the content, 14 are fixed, 4 are the size of the table, 9 are the
        // name, the type and the size of the one header, and 1 is the delivery mode.
        let most = FRAME - 8 - 14 - 4 - 9 - 1;
        let filled = |bytes| headers([("big", string(&"x".repeat(bytes)))]).with_delivery_mode(2);
        assert!(
            publish(amqp.channel(), "work", b"", filled(most))
                .await
                .unwrap()
                .is_none()
        );
        hold(amqp.channel(), "work").await;
        // The broker itself is 8 bytes more generous than it says.
        let refused = publish(amqp.channel(), "work", b"", filled(most + 9)).await;
        let text = "FRAME_ERROR - type 2, all octets = <<>>: {frame_too_large,131073,131064}";
        assert_eq!(refusal(refused), (501, text.to_owned()));
        eventually(DEADLINE, "the connection is lost", || async {
            !amqp.connection().status().connected()
        })
        .await;
    })
    .await;
}

/// Fact 13.
#[tokio::test]
async fn at_least_once_without_reject_publish_is_at_most_once() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let mut arguments = dead_letters_to("missing");
        arguments.extend([
            ("x-message-ttl", int(50)),
            ("x-dead-letter-strategy", string("at-least-once")),
        ]);
        amqp.declare_with("half", QueueType::Quorum, table(arguments.clone()))
            .await;
        arguments.push(("x-overflow", string("reject-publish")));
        amqp.declare_with("whole", QueueType::Quorum, table(arguments))
            .await;
        for queue in ["half", "whole"] {
            amqp.publish(queue, "").await;
        }
        // It is held until the target exists.
        counts(&vhost, "whole", (Some(1), Some(0), Some(1))).await;
        counts(&vhost, "half", (Some(0), Some(0), Some(0))).await;
    })
    .await;
}

/// Fact 26. That it gets through at last is shown with a broker that has less patience.
#[tokio::test]
async fn what_expires_while_its_work_queue_is_missing_is_held_at_least_once_and_else_dropped() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let mut at_most_once = dead_letters_to("work");
        at_most_once.push(("x-message-ttl", int(50)));
        amqp.declare_with(
            "held",
            QueueType::Quorum,
            wait_queue(QueueType::Quorum, 50, "work"),
        )
        .await;
        amqp.declare_with("quorum", QueueType::Quorum, table(at_most_once.clone()))
            .await;
        amqp.declare_with("classic", QueueType::Classic, table(at_most_once))
            .await;
        for queue in ["held", "quorum", "classic"] {
            amqp.publish(queue, queue).await;
        }
        all_gone(&amqp, &["held", "quorum", "classic"]).await;
        counts(&vhost, "held", (Some(1), Some(0), Some(1))).await;
        amqp.declare("work", QueueType::Classic).await;
        assert!(
            !comes_back(&amqp, "work").await,
            "neither what was dropped nor, soon, what is held"
        );
    })
    .await;
}

/// Fact 26.
#[tokio::test]
async fn a_full_classic_work_queue_drops_what_returns_and_a_quorum_one_lets_it_in() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let full = table([
            ("x-max-length", int(1)),
            ("x-overflow", string("reject-publish")),
        ]);
        amqp.declare_with("work", queue_type, full).await;
        let mut at_most_once = dead_letters_to("work");
        at_most_once.push(("x-message-ttl", int(50)));
        amqp.declare_with("wait", queue_type, table(at_most_once))
            .await;
        amqp.publish("work", "first").await;
        amqp.publish("wait", "returns").await;
        all_gone(&amqp, &["wait"]).await;
        let expected = if queue_type == QueueType::Quorum {
            2
        } else {
            1
        };
        eventually(DEADLINE, "what may come in is there", || async {
            (amqp.depth("work").await == Some(expected)).then_some(())
        })
        .await;
    })
    .await;
}

/// Waits until the broker counts so many in a queue: all, ready, held as dead letters. It counts in its own time, and each of
/// them apart.
async fn counts(vhost: &Vhost, queue: &str, expected: (Option<u64>, Option<u64>, Option<u64>)) {
    let what = format!("{queue} counts (all, ready, dead letters) {expected:?}");
    eventually(DEADLINE, &what, || async {
        let queue = vhost.queue(queue).await.ok_or("there is no such queue")?;
        let seen = (queue.messages(), queue.ready(), queue.dead_lettering());
        (seen == expected)
            .then_some(())
            .ok_or_else(|| format!("{seen:?}"))
    })
    .await;
}

/// Publishes to a queue and gives back what the broker returned.
async fn publish(
    channel: &Channel,
    queue: &str,
    body: &[u8],
    properties: BasicProperties,
) -> Result<Option<BasicReturnMessage>> {
    let options = BasicPublishOptions {
        mandatory: true,
        ..Default::default()
    };
    let confirm = channel
        .basic_publish("".into(), queue.into(), options, body, properties)
        .await?
        .await?;
    match confirm {
        Confirmation::Ack(returned) => Ok(returned),
        other => panic!("not confirmed: {other:?}"),
    }
}

/// Fact 86.
#[tokio::test]
async fn only_who_consumes_direct_replies_may_ask_for_them() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        let asks = |address: &str| BasicProperties::default().with_reply_to(address.into());
        // As the broker itself writes it, once it has a consumer.
        let answered = asks("amq.rabbitmq.reply-to.g1h2AA5yZXBseUAx.abc==");
        let returned = publish(amqp.channel(), "work", b"", answered).await;
        assert!(returned.unwrap().is_none());
        let refused = publish(amqp.channel(), "work", b"", asks("amq.rabbitmq.reply-to")).await;
        let text = "PRECONDITION_FAILED - fast reply consumer does not exist";
        assert_eq!(refusal(refused), (406, text.to_owned()));
        closed(amqp.channel()).await;
    })
    .await;
}

/// Fact 86.
#[tokio::test]
async fn a_publisher_of_amqp_1_0_may_ask_for_direct_replies_without_being_heard() {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            amqp.declare("work", QueueType::Quorum).await;
            let mut other = Amqp10::connect(&vhost).await;
            let direct = "amq.rabbitmq.reply-to";
            let message = Message10::new("x").reply_to(direct);
            other.publish("/queues/work", &message).await;
            let came = amqp.take("work").await.unwrap();
            assert_eq!(came.properties.reply_to(), &Some(direct.into()));
        },
    )
    .await;
}
