//! A stream is no queue: to consume it is to skip, and what is retried in it goes to every reader.

use std::time::{Duration, Instant, SystemTime};

use futures_util::FutureExt;
use retryrmq::{Client, Consumer, ErrorKind, Publish, Status, StreamFrom, types::FieldTable};
use retryrmq_harness::{
    Amqp, Broker, QueueType, eventually, on_brokers, on_brokers_where, on_queue_types,
};

use crate::{
    connecting::refused,
    fixture::{DEADLINE, Observations, PARKED, QUEUE, connect, id, policy, start, table, text},
};

async fn stream(amqp: &Amqp, name: &str, mut arguments: FieldTable) {
    arguments.insert("x-queue-type".into(), text("stream"));
    let durable = lapin::options::QueueDeclareOptions::durable();
    amqp.new_channel()
        .await
        .queue_declare(name.into(), durable, arguments)
        .await
        .unwrap();
}

/// Every way to consume a queue.
fn consumers(client: &Client) -> [Consumer; 4] {
    let consumer = || client.consumer(QUEUE);
    [
        consumer(),
        consumer().dlx(true),
        consumer().dlx(true).declare(false),
        consumer()
            .dlx(true)
            .strategy(retryrmq::Strategy::DeadLetter)
            .retry(policy("fixed(1s)")),
    ]
}

/// Without one, RabbitMQ refuses to consume a stream, which is how the type shows.
#[tokio::test]
async fn a_stream_is_refused_where_the_node_has_a_default_prefetch() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let set = "application:set_env(rabbit, default_consumer_prefetch, {false, 250}).";
        node.ctl(&["eval", set]).await;
        let vhost = node.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(PARKED, QueueType::Quorum).await;
        stream(&amqp, QUEUE, FieldTable::default()).await;
        for consumer in consumers(&client) {
            let why = refused(consumer.subscribe().await, ErrorKind::Mismatch);
            assert!(why.contains("`orders` is a stream"), "{why}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_is_refused_as_a_work_queue() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let plain = FieldTable::default();
        let bounded = table([("x-max-length-bytes", crate::fixture::int(1_000_000))]);
        // What else it is declared with hides that it is a stream from who only compares.
        for (arguments, others) in [(plain, "orders-1"), (bounded, "orders-2")] {
            amqp.declare(PARKED, QueueType::Quorum).await;
            stream(&amqp, QUEUE, arguments).await;
            amqp.publish(QUEUE, "1").await;
            for consumer in consumers(&client) {
                let plan = consumer.plan().unwrap();
                let why = refused(consumer.subscribe().await, ErrorKind::Mismatch);
                assert!(why.contains("`orders` is a stream"), "{why}");
                assert!(!why.contains("use the strategy"), "{why}");
                let found = client.compare_plan(&plan).await.unwrap();
                let work = found.iter().find(|finding| finding.item.name() == QUEUE);
                assert!(
                    matches!(&work.unwrap().status, Status::Differs(why) if why.contains("is a stream")),
                    "{work:?}"
                );
                refused(client.apply_plan(&plan).await, ErrorKind::Mismatch);
            }
            amqp.delete(QUEUE).await;
            amqp.delete(PARKED).await;
            // Nobody is kept from publishing to one.
            stream(&amqp, others, FieldTable::default()).await;
            client
                .publish(Publish::to_queue(others, "1").delay(crate::fixture::ms(1)))
                .await
                .unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_stream_is_refused_as_a_parking_queue() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        stream(&amqp, PARKED, FieldTable::default()).await;
        let consumer = client.consumer(QUEUE).dlx(true);
        let why = refused(consumer.subscribe().await, ErrorKind::Mismatch);
        assert!(why.contains("`orders.parked` is a stream"), "{why}");
    })
    .await;
}

/// The question leaves no trace on other queues, whoever else consumes them.
#[tokio::test]
async fn queues_are_not_touched_by_the_question() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let one_by_one = table([(
            "x-single-active-consumer",
            retryrmq::types::AMQPValue::Boolean(true),
        )]);
        amqp.declare_with(QUEUE, kind, one_by_one).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        let held = amqp.consume(QUEUE, 10).await;
        let consumer = client.consumer(QUEUE).dlx(true);
        for _ in 0..5 {
            client
                .compare_plan(&consumer.plan().unwrap())
                .await
                .unwrap();
        }
        assert_eq!(amqp.consumers(QUEUE).await, Some(1));
        drop(held);
        amqp.close().await;
        let amqp = vhost.connect().await;
        eventually(DEADLINE, "the message is back", || async {
            amqp.depth(QUEUE).await == Some(1)
        })
        .await;
        let observations = Observations::default();
        let _running = start(consumer, &observations, |_| Ok(())).await;
        assert_eq!(observations.until("a", 1).await[0].message.attempt(), 1);
    })
    .await;
}

#[tokio::test]
async fn no_entry_is_lost_with_a_caller_that_gives_up_waiting() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        client
            .stream("log", Duration::from_secs(3_600), 100_000_000)
            .await
            .unwrap();
        for number in 0..250 {
            let entry = Publish::to_queue("log", number.to_string());
            client.publish(entry).await.unwrap();
        }
        let from = StreamFrom::Time(SystemTime::UNIX_EPOCH);
        let mut reader = client.read_stream("log", from).await.unwrap();
        let end = Instant::now() + DEADLINE;
        let mut read = 0;
        while read < 250 {
            assert!(Instant::now() < end, "{read} came");
            // Each look is given up at once, whatever it was at.
            match reader.next().now_or_never() {
                Some(entry) => {
                    assert_eq!(entry.unwrap().body, read.to_string().into_bytes());
                    read += 1;
                }
                None => tokio::task::yield_now().await,
            }
        }
        client.close().await;
    })
    .await;
}
