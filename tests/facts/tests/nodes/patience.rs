//! What a broker does after minutes of waiting, or with a message of megabytes: seen with one that waits seconds and
//! takes kilobytes.

use futures_util::StreamExt;
use lapin::message::Delivery;
use lapin::{Channel, Consumer};
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, Broker, Node, QueueType, Version, eventually, on_brokers_where};
use tokio::time::timeout;

const LARGEST: usize = 1_000;

/// Facts 22, 26, 42 and 83, in one life of a node because its start is what takes time.
#[tokio::test]
async fn what_a_broker_does_when_it_has_waited_long_enough() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker
            .own_node(&[&format!("max_message_size = {LARGEST}")])
            .await;
        lose_patience(&node).await;
        let vhost = node.vhost().await;
        let amqp = vhost.connect().await;
        bodies_have_a_largest_size(&amqp).await;
        held_dead_letters_get_through(&amqp).await;
        for queue_type in QueueType::ALL {
            let consumer = vhost.connect().await;
            slow_consumers_are_cut_off(&amqp, &consumer, queue_type, broker.version()).await;
        }
        let consumer = vhost.connect().await;
        cancelled_consumers_cost_the_channel(&amqp, &consumer, broker.version()).await;
    })
    .await;
}

/// Fact 42. Bytes of the body alone.
async fn bodies_have_a_largest_size(amqp: &Amqp) {
    amqp.declare("work", QueueType::Classic).await;
    let large = headers([("large", string(&"x".repeat(2 * LARGEST)))]);
    amqp.publish_with("work", vec![0; LARGEST], large).await;
    let channel = amqp.new_channel().await;
    channel.confirm_select(Default::default()).await.unwrap();
    let body = vec![0; LARGEST + 1];
    let publish = channel.basic_publish(
        "".into(),
        "work".into(),
        Default::default(),
        &body,
        Default::default(),
    );
    let text = format!(
        "PRECONDITION_FAILED - message size {} is larger than configured max size {LARGEST}",
        LARGEST + 1
    );
    assert_eq!(refusal(publish.await.unwrap().await), (406, text));
    closed(&channel).await;
}

/// Fact 26: three minutes. Fact 22: half an hour.
async fn lose_patience(node: &Node) {
    for (setting, default, short) in [
        (
            "dead_letter_worker_publisher_confirm_timeout",
            "180000",
            "2000",
        ),
        // Longer than this test takes for what it does before: it cancels a consumer, for example.
        ("consumer_timeout", "1800000", "20000"),
        ("channel_tick_interval", "60000", "500"),
    ] {
        let current = node
            .ctl(&["eval", &format!("application:get_env(rabbit, {setting}).")])
            .await;
        assert_eq!(current.trim(), format!("{{ok,{default}}}"), "{setting}");
        node.ctl(&[
            "eval",
            &format!("application:set_env(rabbit, {setting}, {short})."),
        ])
        .await;
    }
}

/// Fact 26. Dead letters that had nowhere to go are tried again after a while, and are not lost.
async fn held_dead_letters_get_through(amqp: &Amqp) {
    amqp.declare_with(
        "wait",
        QueueType::Quorum,
        wait_queue(QueueType::Quorum, 50, "late"),
    )
    .await;
    amqp.publish("wait", "held").await;
    all_gone(amqp, &["wait"]).await;
    amqp.declare("late", QueueType::Classic).await;
    let arrived = eventually(DEADLINE, "it gets through", || amqp.take("late")).await;
    assert_eq!(arrived.text(), "held");
}

/// Fact 22. Before 4.3 the channel is closed; on 4.3 a classic queue waits for ever, and a quorum queue cancels the
/// consumer, takes the message back uncounted, and takes an ack that comes later without an error and without effect.
async fn slow_consumers_are_cut_off(
    amqp: &Amqp,
    slow: &Amqp,
    queue_type: QueueType,
    version: Version,
) {
    let queue = format!("slow-{queue_type}");
    amqp.declare(&queue, queue_type).await;
    amqp.publish(&queue, "").await;
    let channel = slow.new_channel().await;
    let (mut consumer, delivery) = consume(&channel, &queue).await;
    if version < Version::V4_3 {
        let end = timeout(DEADLINE, consumer.next())
            .await
            .unwrap()
            .expect("an error comes before the end");
        let (code, text) = refusal(end);
        assert_eq!(code, 406);
        let start = "PRECONDITION_FAILED - delivery acknowledgement on channel ";
        assert!(
            text.starts_with(start) && text.contains(" timed out. Timeout value used: 20000 ms."),
            "{text}"
        );
        closed(&channel).await;
        let returned = eventually(DEADLINE, "the message is back", || amqp.take(&queue)).await;
        assert!(returned.redelivered);
    } else if queue_type == QueueType::Classic {
        // A quorum consumer beside it is cut off, which tells that the time is over.
        amqp.declare("beside", QueueType::Quorum).await;
        amqp.publish("beside", "").await;
        let (mut beside, _held) = consume(&slow.new_channel().await, "beside").await;
        assert!(timeout(DEADLINE, beside.next()).await.unwrap().is_none());
        assert!(channel.status().connected());
        assert_eq!(
            amqp.depth(&queue).await,
            Some(0),
            "it still has its message"
        );
    } else {
        assert!(
            timeout(DEADLINE, consumer.next()).await.unwrap().is_none(),
            "cancelled without an error"
        );
        assert!(channel.status().connected());
        let returned = || async { amqp.depth(&queue).await == Some(1) };
        eventually(DEADLINE, "the message is back in the queue", returned).await;
        let message = hold(amqp.channel(), &queue).await;
        assert!(message.redelivered);
        assert_eq!(
            count(&message.properties, "x-delivery-count"),
            None,
            "it is not counted"
        );
        requeue(&message).await;
        eventually(DEADLINE, "the message is back again", returned).await;
        delivery.ack(Default::default()).await.unwrap();
        channel.close(200, "".into()).await.unwrap();
        eventually(DEADLINE, "the late ack has removed nothing", returned).await;
    }
}

/// Fact 83. A consumer that was cancelled has nothing left that the broker could cancel.
async fn cancelled_consumers_cost_the_channel(amqp: &Amqp, slow: &Amqp, version: Version) {
    for queue in ["left", "newer"] {
        amqp.declare(queue, QueueType::Quorum).await;
    }
    amqp.publish("left", "").await;
    let channel = slow.new_channel().await;
    let (mut consumer, _held) = consume(&channel, "left").await;
    let cancel = channel.basic_cancel(consumer.tag(), Default::default());
    cancel.await.unwrap();
    assert!(timeout(DEADLINE, consumer.next()).await.unwrap().is_none());
    let newer = channel.basic_consume("newer".into(), "".into(), Default::default(), table([]));
    let mut newer = newer.await.unwrap();
    let end = timeout(DEADLINE, newer.next()).await.unwrap();
    let (code, text) = refusal(end.expect("an error comes before the end"));
    println!("{version}: {text}");
    assert_eq!(code, 406);
    closed(&channel).await;
    let returned = eventually(DEADLINE, "the message is back", || amqp.take("left")).await;
    assert!(returned.redelivered);
}

async fn consume(channel: &Channel, queue: &str) -> (Consumer, Delivery) {
    let consume = channel.basic_consume(queue.into(), "".into(), Default::default(), table([]));
    let mut consumer = consume.await.unwrap();
    let delivery = timeout(DEADLINE, consumer.next())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    (consumer, delivery)
}
