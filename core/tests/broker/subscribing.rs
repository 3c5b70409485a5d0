//! What a consumer finds, makes, and refuses before its first message.

use std::time::Duration;

use retryrmq::{Client, ClientOptions, ErrorKind, QueueType, Status, Strategy};
use retryrmq_harness::{
    self as harness, Amqp, Broker, eventually, lapin, on_brokers, on_brokers_where, on_queue_types,
};
use tokio::time::timeout;

use crate::{
    connecting::refused,
    fixture::{
        DEADLINE, Observations, PARKED, QUEUE, connect, connect_with, id, int, parked, policy,
        start, table, text,
    },
};

#[tokio::test]
async fn a_queue_that_does_not_exist_is_made_durable_and_safe() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("list(1s, 10s)"));
        let plan = consumer.plan().unwrap();
        let missing = client.compare_plan(&plan).await.unwrap();
        assert!(
            missing
                .iter()
                .all(|finding| finding.status == Status::Missing)
        );
        let _running = consumer.subscribe().await.unwrap();
        let found = client.compare_plan(&plan).await.unwrap();
        assert!(
            found
                .iter()
                .all(|finding| finding.status == Status::Present),
            "{found:?}"
        );

        let mut names: Vec<_> = vhost
            .queues()
            .await
            .iter()
            .map(|queue| queue.name().to_owned())
            .collect();
        names.sort();
        assert_eq!(
            names,
            [
                "orders",
                "orders.parked",
                "orders.retry.1000",
                "orders.retry.10000"
            ]
        );
        let work = vhost.queue(QUEUE).await.unwrap();
        assert_eq!((work.kind(), work.is_durable()), ("quorum", true));
        let arguments = work.arguments();
        assert_eq!(arguments["x-dead-letter-exchange"], "");
        assert_eq!(arguments["x-dead-letter-routing-key"], PARKED);
        let waiting = vhost.queue("orders.retry.1000").await.unwrap();
        assert_eq!((waiting.kind(), waiting.is_durable()), ("quorum", true));
        let arguments = waiting.arguments();
        assert_eq!(arguments["x-message-ttl"], 1000);
        assert_eq!(arguments["x-dead-letter-exchange"], "");
        assert_eq!(arguments["x-dead-letter-routing-key"], QUEUE);
        assert_eq!(arguments["x-dead-letter-strategy"], "at-least-once");
        assert_eq!(arguments["x-overflow"], "reject-publish");
        assert!(
            !arguments.contains_key("x-expires"),
            "it would take its messages with it"
        );
        let parking = vhost.queue(PARKED).await.unwrap();
        assert_eq!((parking.kind(), parking.is_durable()), ("quorum", true));
        assert_eq!(parking.arguments()["x-delivery-limit"], 1_000_000_000);
    })
    .await;
}

#[tokio::test]
async fn what_another_consumer_rejects_is_parked_by_the_queue_that_was_made() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        client
            .apply_plan(&client.consumer(QUEUE).dlx(true).plan().unwrap())
            .await
            .unwrap();
        amqp.publish_with(QUEUE, "1", id("a")).await;
        let observations = Observations::default();
        let _plain = start(client.consumer(QUEUE), &observations, |_| Err("no".into())).await;
        let message = parked(&amqp).await;
        assert!(message.header("x-death").is_some(), "{message:?}");
    })
    .await;
}

#[tokio::test]
async fn a_queue_that_exists_is_taken_as_it_is() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let arguments = table([
            ("x-max-length", int(1000)),
            ("x-dead-letter-exchange", text("amq.topic")),
            ("x-message-ttl", int(600_000)),
        ]);
        amqp.declare_with(QUEUE, kind, arguments.clone()).await;
        amqp.publish_with(QUEUE, "1", id("a")).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(100ms, retries=3)"));
        let _running = start(consumer, &observations, |message| match message.attempt() {
            1 => Err("no".into()),
            _ => Ok(()),
        })
        .await;
        observations.until("a", 2).await;
        // It is unchanged: declaring it again as it was is not refused.
        amqp.declare_with(QUEUE, kind, arguments).await;
    })
    .await;
}

#[tokio::test]
async fn without_dlx_or_without_declare_nothing_is_made() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        let why = refused(
            client.consumer(QUEUE).subscribe().await,
            ErrorKind::QueueNotFound,
        );
        assert!(why.contains("`orders`") && why.contains("dlx"), "{why}");
        let undeclared = client.consumer(QUEUE).dlx(true).declare(false);
        let why = refused(
            undeclared.clone().subscribe().await,
            ErrorKind::QueueNotFound,
        );
        assert!(why.contains("`declare`"), "{why}");
        let (first, others) = why.split_once("; these are missing, too: ").unwrap();
        assert!(first.contains("the queue `orders` does not exist"), "{why}");
        assert!(
            others.starts_with("`orders.parked`, `orders.retry.1000`"),
            "{why}"
        );
        assert!(vhost.queues().await.is_empty());

        // With everything but one waiting queue, the missing one is named.
        let mut plan = undeclared.plan().unwrap();
        let left_out = plan.items.pop().unwrap();
        client.apply_plan(&plan).await.unwrap();
        let why = refused(
            undeclared.clone().subscribe().await,
            ErrorKind::QueueNotFound,
        );
        assert!(why.contains(&format!("`{}`", left_out.name())), "{why}");
        client
            .apply_plan(&undeclared.plan().unwrap())
            .await
            .unwrap();
        undeclared.subscribe().await.unwrap();
    })
    .await;
}

/// Another thing helps for each.
#[tokio::test]
async fn a_missing_service_is_told_besides_a_missing_work_queue() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        let consumer = client.consumer(QUEUE).dlx(true).declare(false);
        let why = refused(
            consumer.strategy(Strategy::Service).subscribe().await,
            ErrorKind::QueueNotFound,
        );
        assert!(
            why.starts_with("the queue `orders` does not exist; declare it"),
            "{why}"
        );
        assert!(
            why.contains("`retryrmq.handover` does not exist") && why.contains("start the service"),
            "{why}"
        );
    })
    .await;
}

#[tokio::test]
async fn what_ends_the_search_does_not_hide_what_is_missing() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let consumer = client.consumer(QUEUE).dlx(true).declare(false);
        let plan = consumer.plan().unwrap();
        let (held, missing) = plan.items.split_last().unwrap();
        let _alone = held_alone(&amqp, held.name()).await;
        let why = refused(consumer.subscribe().await, ErrorKind::QueueNotFound);
        for item in missing {
            assert!(why.contains(&format!("`{}`", item.name())), "{why}");
        }
        let (_, end) = why.split_once("the search for the others ended: ").unwrap();
        assert!(end.contains(&format!("`{}`", held.name())), "{why}");
    })
    .await;
}

#[tokio::test]
async fn all_that_is_missing_is_named_on_a_broker_with_few_channels() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&["channel_max = 16"]).await;
        let client = Client::connect(node.url()).await.unwrap();
        let consumer = client.consumer(QUEUE).dlx(true).declare(false);
        let plan = consumer.plan().unwrap();
        let why = refused(consumer.subscribe().await, ErrorKind::QueueNotFound);
        assert!(why.starts_with("the queue `orders` does not"), "{why}");
        for item in plan.items {
            assert!(why.contains(&format!("`{}`", item.name())), "{why}");
        }
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_waiting_queue_with_other_arguments_is_named() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        // Without a dead-letter route, what waits in it would be lost.
        let arguments = table([("x-message-ttl", int(1000))]);
        amqp.declare_with("orders.retry.1000", kind, arguments)
            .await;
        let consumer = client.consumer(QUEUE).dlx(true).retry(policy("fixed(1s)"));
        let found = client
            .compare_plan(&consumer.plan().unwrap())
            .await
            .unwrap();
        let differs = found
            .iter()
            .find(|finding| matches!(finding.status, Status::Differs(_)));
        assert_eq!(differs.unwrap().item.name(), "orders.retry.1000");
        let why = refused(consumer.subscribe().await, ErrorKind::Mismatch);
        assert!(why.contains("`orders.retry.1000`"), "{why}");
        assert!(why.contains("x-dead-letter-exchange"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn waiting_queues_of_another_type_are_named() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let consumer =
            |client: &Client| client.consumer(QUEUE).dlx(true).retry(policy("fixed(1s)"));
        let classic = connect_with(&vhost, harness::QueueType::Classic).await;
        consumer(&classic).subscribe().await.unwrap();
        let quorum = connect(&vhost).await;
        let why = refused(consumer(&quorum).subscribe().await, ErrorKind::Mismatch);
        // Which of the arguments that come with the type the broker complains of first, is its choice.
        assert!(why.contains("`orders.retry.1000`"), "{why}");
    })
    .await;
}

/// Makes a queue that only this connection may use.
async fn held_alone(amqp: &Amqp, queue: &str) -> lapin::Channel {
    let alone = lapin::options::QueueDeclareOptions {
        exclusive: true,
        ..Default::default()
    };
    let channel = amqp.new_channel().await;
    channel
        .queue_declare(queue.into(), alone, lapin::types::FieldTable::default())
        .await
        .unwrap();
    channel
}

#[tokio::test]
async fn a_queue_that_somebody_else_holds_alone_is_told_as_such() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let _alone = held_alone(&amqp, QUEUE).await;
        for dlx in [false, true] {
            let consumer = client.consumer(QUEUE).dlx(dlx);
            let why = refused(consumer.subscribe().await, ErrorKind::AccessRefused);
            assert!(
                why.contains("`orders`") && !why.contains("permission"),
                "{why}"
            );
        }
        let why = refused(
            client.consumer("amq.mine").dlx(true).subscribe().await,
            ErrorKind::AccessRefused,
        );
        assert!(why.contains("amq.") && !why.contains("permission"), "{why}");
    })
    .await;
}

#[tokio::test]
async fn a_vhosts_default_queue_type_changes_nothing() {
    on_queue_types(|broker, kind| async move {
        let vhost = harness::Vhost::with_default_queue_type(&broker, kind).await;
        for queue_type in [QueueType::Quorum, QueueType::Classic] {
            let options = ClientOptions::new().queue_type(queue_type);
            let client = Client::connect_with(vhost.url(), options).await.unwrap();
            let queue = format!("orders-{}", queue_type.as_str());
            client
                .consumer(&queue)
                .dlx(true)
                .retry(policy("fixed(1s)"))
                .subscribe()
                .await
                .unwrap();
            for name in [format!("{queue}.retry.1000"), format!("{queue}.parked")] {
                assert_eq!(
                    vhost.queue(&name).await.unwrap().kind(),
                    queue_type.as_str(),
                    "{name}"
                );
            }
            // And once more, now that everything is there.
            client
                .consumer(&queue)
                .dlx(true)
                .retry(policy("fixed(1s)"))
                .subscribe()
                .await
                .unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn who_gives_up_subscribing_leaves_no_consumer_behind() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        drop(client.consumer(QUEUE).dlx(true).subscribe().await.unwrap());
        let mut given_up = 0;
        for moment in 0..150 {
            let subscribing = client.consumer(QUEUE).dlx(true).subscribe();
            let patience = Duration::from_micros(moment * 100);
            given_up += u32::from(timeout(patience, subscribing).await.is_err());
        }
        assert!(given_up > 10, "{given_up} were given up");
        let amqp = vhost.connect().await;
        eventually(DEADLINE, "no consumer is left", || async {
            match amqp.consumers(QUEUE).await {
                Some(0) => Ok(()),
                some => Err(format!("{some:?} consumers")),
            }
        })
        .await;
    })
    .await;
}
