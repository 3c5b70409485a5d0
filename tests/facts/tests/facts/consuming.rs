//! What a consumer may count on: prefetch, cancellation, and where a message goes that is given back.

use futures_util::StreamExt;
use lapin::message::{BasicGetMessage, Delivery};
use lapin::options::{BasicCancelOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::{Channel, Consumer};
use retryrmq_facts::*;
use retryrmq_harness::{
    Amqp, QueueType, Version, Vhost, eventually, on_every_broker, on_every_queue_type,
};
use tokio::time::timeout;

/// Fact 22. The way to widen a prefetch: what is held stays valid, and does not count for the new consumer.
#[tokio::test]
async fn a_consumer_can_be_replaced_on_its_channel_while_deliveries_are_held() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        send(&amqp, "work", 10).await;
        let channel = amqp.new_channel().await;
        let mut first = consume(&channel, "work", "first", 2).await;
        let held = [next(&mut first).await, next(&mut first).await];
        assert_eq!(settled_depth(&amqp, "work", 8).await, 8);
        channel
            .basic_cancel("first".into(), BasicCancelOptions::default())
            .await
            .unwrap();
        assert!(
            timeout(DEADLINE, first.next()).await.unwrap().is_none(),
            "the cancelled stream ends"
        );

        let mut second = consume(&channel, "work", "second", 5).await;
        for tag in 3..=7 {
            assert_eq!(next(&mut second).await.delivery_tag, tag, "tags go on");
        }
        channel
            .basic_ack(held[0].delivery_tag, Default::default())
            .await
            .unwrap();
        held[1].ack(Default::default()).await.unwrap();
        // Answered after the acks were taken in: the channel is alive, and they have let nothing more through.
        channel
            .basic_qos(5, BasicQosOptions::default())
            .await
            .unwrap();
        assert_eq!(settled_depth(&amqp, "work", 3).await, 3);
        amqp.close().await;
        let amqp = vhost.connect().await;
        settled_depth(&amqp, "work", 8).await; // ten, without the two that were acked
    })
    .await;
}

/// Fact 58. The acknowledgement makes a place free, so the next message is on its way when the consumer is cancelled.
#[tokio::test]
async fn what_is_on_its_way_to_a_cancelled_consumer_of_a_quorum_queue_is_taken_back_and_counted() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Quorum).await;
        send(&amqp, "work", 40).await;
        for tag in (0..20).map(|number| number.to_string()) {
            let channel = amqp.new_channel().await;
            let mut consumer = consume(&channel, "work", &tag, 1).await;
            let held = next(&mut consumer).await;
            let (acked, cancelled) = tokio::join!(
                channel.basic_ack(held.delivery_tag, Default::default()),
                channel.basic_cancel((&*tag).into(), BasicCancelOptions::default())
            );
            acked.unwrap();
            cancelled.unwrap();
            if timeout(DEADLINE, consumer.next()).await.unwrap().is_none() {
                settled_depth(&amqp, "work", 39).await;
                let all = amqp.drain("work").await;
                let again = all.iter().find(|message| message.redelivered);
                let again = again.expect("one was on its way");
                let counted = (broker.version() < Version::V4_3).then_some(1);
                assert_eq!(count(&again.properties, "x-delivery-count"), counted);
                return;
            } // or it had passed the channel before
            channel.close(200, "".into()).await.unwrap();
            amqp.drain("work").await;
            send(&amqp, "work", 40).await;
        }
        panic!("nothing was on its way to any of twenty consumers");
    })
    .await;
}

/// Fact 22.
#[tokio::test]
async fn a_new_prefetch_means_nothing_to_a_consumer_that_runs() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        send(&amqp, "work", 10).await;
        let channel = amqp.new_channel().await;
        let mut consumer = consume(&channel, "work", "only", 2).await;
        let first = next(&mut consumer).await;
        next(&mut consumer).await;
        channel
            .basic_qos(10, BasicQosOptions::default())
            .await
            .unwrap();
        first.ack(Default::default()).await.unwrap();
        next(&mut consumer).await;
        assert_eq!(settled_depth(&amqp, "work", 7).await, 7);
    })
    .await;
}

/// Fact 22. What 4.3 does with `global`: it says yes, and does not do it.
#[tokio::test]
async fn a_prefetch_for_the_whole_channel_is_silently_one_per_consumer_on_4_3() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", QueueType::Classic).await;
        send(&amqp, "work", 10).await;
        let channel = amqp.new_channel().await;
        channel
            .basic_qos(3, BasicQosOptions { global: true })
            .await
            .unwrap();
        for tag in ["first", "second"] {
            let options = BasicConsumeOptions::default();
            channel
                .basic_consume("work".into(), tag.into(), options, table([]))
                .await
                .unwrap();
        }
        let left = if broker.version() < Version::V4_3 {
            7
        } else {
            4
        };
        assert_eq!(settled_depth(&amqp, "work", left).await, left);
    })
    .await;
}

/// Fact 30.
#[tokio::test]
async fn all_that_was_on_its_way_at_a_cancel_is_delivered_before_the_stream_ends() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        send(&amqp, "work", 200).await;
        let channel = amqp.new_channel().await;
        let mut consumer = consume(&channel, "work", "brief", 100).await;
        channel
            .basic_cancel("brief".into(), BasicCancelOptions::default())
            .await
            .unwrap();
        let mut delivered = 0;
        while let Some(delivery) = timeout(DEADLINE, consumer.next()).await.unwrap() {
            delivery.unwrap();
            delivered += 1;
        }
        assert_eq!(
            settled_depth(&amqp, "work", 200 - delivered).await,
            200 - delivered
        );
    })
    .await;
}

/// Fact 31.
#[tokio::test]
async fn a_consumer_is_told_when_its_queue_is_deleted() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("work", queue_type).await;
        let channel = amqp.new_channel().await;
        let mut consumer = consume(&channel, "work", "orphan", 1).await;
        amqp.delete("work").await;
        assert!(timeout(DEADLINE, consumer.next()).await.unwrap().is_none());
        assert!(channel.status().connected(), "the channel lives on");
    })
    .await;
}

/// Fact 32.
#[tokio::test]
async fn what_is_given_back_goes_to_the_head_except_to_unlimited_quorum_queues_before_4_3() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let limits = match queue_type {
            QueueType::Classic => vec![None],
            // -1 loses messages on 3.10, where "no limit" is what leaving it out means.
            QueueType::Quorum if broker.version() < Version::V4_0 => {
                vec![None, Some(1_000_000_000)]
            }
            QueueType::Quorum => vec![None, Some(1_000_000_000), Some(-1)],
        };
        for limit in limits {
            let unlimited = queue_type == QueueType::Quorum
                && match limit {
                    None => broker.version() < Version::V4_0,
                    Some(limit) => limit < 0 && broker.version() < Version::V4_3,
                };
            for nack in [false, true] {
                let expected = if unlimited { "345012" } else { "012345" };
                let order = order_after(&amqp, queue_type, limit, async |message| {
                    give_back(message, nack).await
                })
                .await;
                assert_eq!(order, expected, "limit {limit:?}, nack {nack}");
            }
        }
    })
    .await;
}

/// Fact 32.
#[tokio::test]
async fn what_a_closed_channel_held_goes_to_the_head_everywhere() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        assert_eq!(
            order_after(&amqp, queue_type, None, async |_| {}).await,
            "012345"
        );
    })
    .await;
}

/// Fact 43. A quorum queue takes back consumer by consumer, and the consumers in the order of their tags as texts; each
/// `basic.get` is a consumer of its own, named by its number. A classic queue takes back in the order of the queue.
#[tokio::test]
async fn what_a_closed_connection_had_consumed_keeps_its_order_and_what_it_had_got_does_not() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let observer = vhost.connect().await;
        let quorum = queue_type == QueueType::Quorum;
        let got = order_after_a_walk(&vhost, &observer, queue_type, 25, 0).await;
        assert_eq!(got.is_sorted(), !quorum, "{got:?}");
        if quorum {
            assert_eq!(got[..4], [0, 9, 10, 11], "get 1, get 10, get 11, get 12");
        }
        for consumers in [1, 3, 32] {
            let order = order_after_a_walk(&vhost, &observer, queue_type, 64, consumers).await;
            assert!(order.is_sorted(), "{consumers} consumers: {order:?}");
        }
        let order = order_after_a_walk(&vhost, &observer, queue_type, 80, 40).await;
        let sorts = !quorum || broker.version() >= Version::V4_3;
        assert_eq!(order.is_sorted(), sorts, "40 consumers: {order:?}");
    })
    .await;
}

/// Fact 43. What was given back waits in a line of its own, before what was never handed out.
#[tokio::test]
async fn what_a_quorum_queue_takes_back_goes_behind_what_it_took_back_before() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let observer = vhost.connect().await;
        observer.declare("work", queue_type).await;
        send(&observer, "work", 6).await;
        for count in [4, 2] {
            let holder = vhost.connect().await;
            let mut consumer = consume(holder.channel(), "work", "walk", count).await;
            for _ in 0..count {
                next(&mut consumer).await;
            }
            holder.close().await;
            assert_eq!(settled_depth(&observer, "work", 6).await, 6);
        }
        let order: String = (observer.drain("work").await.iter())
            .map(|message| message.text().to_owned())
            .collect();
        assert_eq!(
            order,
            match queue_type {
                QueueType::Classic => "012345",
                QueueType::Quorum => "230145",
            }
        );
    })
    .await;
}

/// Fact 71. A reader that is killed between its copies and their acknowledgements loses what has no copy.
#[tokio::test]
async fn a_full_quorum_queue_makes_room_for_what_it_takes_back_by_what_it_took_back_before() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let observer = vhost.connect().await;
        let full = table([("x-max-length", int(6))]);
        observer.declare_with("work", QueueType::Quorum, full).await;
        send(&observer, "work", 6).await;
        for (held, copies) in [(6, 0), (2, 2)] {
            let holder = vhost.connect().await;
            let mut consumer = consume(holder.channel(), "work", "walk", held).await;
            for _ in 0..held {
                next(&mut consumer).await;
            }
            for copy in 0..copies {
                observer.publish("work", format!("copy of {copy}")).await;
            }
            holder.close().await;
            assert_eq!(settled_depth(&observer, "work", 6).await, 6);
        }
        let mut left: Vec<_> = (observer.drain("work").await.iter())
            .map(|message| message.text().to_owned())
            .collect();
        left.sort();
        let there = ["0", "1", "4", "5", "copy of 0", "copy of 1"];
        assert_eq!(left, there);
    })
    .await;
}

/// Holds all messages of a queue by so many consumers, one after the other on one channel, or by `basic.get`; closes the
/// connection, and says in which order they are then.
async fn order_after_a_walk(
    vhost: &Vhost,
    observer: &Amqp,
    queue_type: QueueType,
    messages: usize,
    consumers: usize,
) -> Vec<usize> {
    observer.declare("work", queue_type).await;
    send(observer, "work", messages).await;
    let holder = vhost.connect().await;
    let channel = holder.new_channel().await;
    if consumers == 0 {
        for _ in 0..messages {
            hold(&channel, "work").await;
        }
    }
    for number in 0..consumers {
        let (tag, share) = (format!("walk-{number:04}"), messages.div_ceil(consumers));
        let share = share.min(messages - (number * share).min(messages));
        if share == 0 {
            break;
        }
        let prefetch = u16::try_from(share).unwrap();
        let mut consumer = consume(&channel, "work", &tag, prefetch).await;
        for _ in 0..share {
            next(&mut consumer).await;
        }
        channel
            .basic_cancel(tag.as_str().into(), BasicCancelOptions::default())
            .await
            .unwrap();
    }
    holder.close().await;
    let count = u32::try_from(messages).unwrap();
    assert_eq!(settled_depth(observer, "work", count).await, count);
    let all = observer.drain("work").await;
    observer.delete("work").await;
    all.iter()
        .map(|message| message.text().parse().unwrap())
        .collect()
}

/// The order of six messages after the first three were held, treated, and their channel closed.
async fn order_after(
    amqp: &Amqp,
    queue_type: QueueType,
    limit: Option<i64>,
    treat: impl AsyncFn(&BasicGetMessage),
) -> String {
    let arguments = table(limit.map(|limit| ("x-delivery-limit", int(limit))));
    amqp.declare_with("work", queue_type, arguments).await;
    send(amqp, "work", 6).await;
    let channel = amqp.new_channel().await;
    let mut held = Vec::new();
    for _ in 0..3 {
        held.push(hold(&channel, "work").await);
    }
    for message in &held {
        treat(message).await;
    }
    channel.close(200, "".into()).await.unwrap();
    settled_depth(amqp, "work", 6).await;
    let order = amqp
        .drain("work")
        .await
        .iter()
        .map(|message| message.text().to_owned())
        .collect();
    amqp.delete("work").await;
    order
}

async fn give_back(message: &BasicGetMessage, nack: bool) {
    if nack {
        message
            .nack(BasicNackOptions {
                requeue: true,
                ..Default::default()
            })
            .await
            .unwrap();
    } else {
        requeue(message).await;
    }
}

/// Publishes messages whose bodies are their numbers.
async fn send(amqp: &Amqp, queue: &str, messages: usize) {
    amqp.publish_all(
        "",
        (0..messages).map(|number| (queue, number.to_string(), Default::default())),
    )
    .await;
}

async fn consume(channel: &Channel, queue: &str, tag: &str, prefetch: u16) -> Consumer {
    channel
        .basic_qos(prefetch, BasicQosOptions::default())
        .await
        .unwrap();
    channel
        .basic_consume(
            queue.into(),
            tag.into(),
            BasicConsumeOptions::default(),
            table([]),
        )
        .await
        .unwrap()
}

async fn next(consumer: &mut Consumer) -> Delivery {
    timeout(DEADLINE, consumer.next())
        .await
        .expect("a delivery comes")
        .expect("the stream goes on")
        .unwrap()
}

/// The number of ready messages once it is the expected one and has stayed so for a while, so that a broker that hands
/// out more than it should is caught.
async fn settled_depth(amqp: &Amqp, queue: &str, expected: u32) -> u32 {
    eventually(
        DEADLINE,
        &format!("{expected} are ready in {queue}"),
        || async {
            match amqp.depth(queue).await {
                Some(depth) if depth == expected => Ok(()),
                other => Err(format!("{other:?}")),
            }
        },
    )
    .await;
    for _ in 0..10 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        let depth = amqp.depth(queue).await.unwrap();
        if depth != expected {
            return depth;
        }
    }
    expected
}
