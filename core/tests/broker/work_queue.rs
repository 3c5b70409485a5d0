//! What a work queue is made with when it is missing.

use retryrmq::{Argument, ErrorKind, QueueType, Strategy, WorkQueue, types::FieldTable};
use retryrmq_harness::{
    Version, Vhost, eventually, lapin::options::QueueDeclareOptions, on_brokers, on_every_broker,
    on_every_broker_where,
};

use crate::fixture::{
    DEADLINE, Observations, PARKED, QUEUE, connect, id, int, parked, policy, start, table,
};

fn durable() -> QueueDeclareOptions {
    QueueDeclareOptions {
        durable: true,
        ..QueueDeclareOptions::default()
    }
}

/// As any publisher declares it: whether the broker takes that for the same queue.
async fn declares(amqp: &retryrmq_harness::Amqp, arguments: FieldTable) -> bool {
    let channel = amqp.new_channel().await;
    channel
        .queue_declare(QUEUE.into(), durable(), arguments)
        .await
        .is_ok()
}

#[tokio::test]
async fn it_is_made_with_exactly_these_arguments() {
    on_brokers(|broker| async move {
        for (said, arguments, others) in [
            ("{}", table([]), table([("x-max-priority", int(10))])),
            (
                r#"{"x-max-priority": 10, "x-single-active-consumer": true}"#,
                table([
                    ("x-max-priority", int(10)),
                    (
                        "x-single-active-consumer",
                        retryrmq::types::AMQPValue::Boolean(true),
                    ),
                ]),
                table([]),
            ),
        ] {
            let vhost = broker.vhost().await;
            let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
            let observations = Observations::default();
            let consumer = client
                .consumer(QUEUE)
                .dlx(true)
                .retry(policy("fixed(50ms, retries=1)"))
                .work_queue(said.parse().unwrap());
            let running = start(consumer, &observations, |_| Err("no".into())).await;
            assert!(
                declares(&amqp, arguments).await,
                "{said}: a publisher that declares the same meets no 406"
            );
            assert!(!declares(&amqp, others).await, "{said}: exactly these");
            amqp.publish_with(QUEUE, "x", id("a")).await;
            observations.until("a", 2).await;
            parked(&amqp).await;
            running.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn of_a_type_it_keeps_what_the_broker_gives_up_on() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .work_queue(WorkQueue::Type(QueueType::Classic));
        let _subscription = consumer.subscribe().await.unwrap();
        let work = vhost.queue(QUEUE).await.unwrap();
        assert_eq!((work.kind(), work.is_durable()), ("classic", true));
        assert_eq!(work.arguments()["x-dead-letter-routing-key"], PARKED);
    })
    .await;
}

#[tokio::test]
async fn one_that_is_said_to_exist_is_never_made_and_nothing_for_it() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        for dlx in [true, false] {
            let consumer = client
                .consumer(QUEUE)
                .dlx(dlx)
                .work_queue(WorkQueue::Existing);
            let error = consumer.clone().subscribe().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::QueueNotFound, "{error}");
            assert!(!dlx || error.to_string().contains("`existing`"), "{error}");
            assert!(vhost.queues().await.is_empty(), "nothing was made");
        }
        amqp.declare(QUEUE, retryrmq_harness::QueueType::Classic)
            .await;
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .work_queue(WorkQueue::Existing);
        let subscription = consumer.subscribe().await.unwrap();
        subscription.close();
        subscription.wait_closed().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn one_that_was_there_and_is_deleted_is_made_again_where_it_was_said_with_what() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, retryrmq_harness::QueueType::Classic)
            .await;
        let observations = Observations::default();
        let consumer = client
            .consumer(QUEUE)
            .dlx(true)
            .work_queue("classic".parse().unwrap());
        let running = start(consumer, &observations, |_| Ok(())).await;
        amqp.delete(QUEUE).await;
        observations.event("reconnected").await;
        amqp.publish_with(QUEUE, "x", id("a")).await;
        observations.until("a", 1).await;
        let again = vhost.queue(QUEUE).await.unwrap();
        assert_eq!(again.arguments()["x-dead-letter-routing-key"], PARKED);
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn what_a_strategy_needs_of_it_stays() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = connect(&vhost).await;
        let consumer = |argument: &str| {
            client
                .consumer(QUEUE)
                .dlx(true)
                .retry(policy("fixed(1s, retries=2)"))
                .strategy(Strategy::DeadLetter)
                .work_queue(WorkQueue::Arguments(vec![(
                    argument.to_owned(),
                    Argument::Number(7_200_000),
                )]))
        };
        let error = consumer("x-message-ttl").subscribe().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StrategyRefused, "{error}");
        assert!(vhost.queues().await.is_empty(), "nothing was made");
        let _subscription = consumer("x-expires").subscribe().await.unwrap();
        let arguments = vhost.queue(QUEUE).await.unwrap().arguments().clone();
        assert_eq!(arguments["x-expires"], 7_200_000);
        assert_eq!(arguments["x-dead-letter-routing-key"], "orders.retry.1000");
    })
    .await;
}

#[tokio::test]
async fn one_that_stays_away_is_told_of_once_and_not_at_every_try() {
    crate::log_capture::start();
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let queue = format!("{}-orders", vhost.name());
        amqp.declare(&queue, retryrmq_harness::QueueType::Quorum)
            .await;
        let running = start(
            client.consumer(&queue).dlx(true),
            &Observations::default(),
            |_| Ok(()),
        )
        .await;
        amqp.delete(&queue).await;
        let told = |level: &str| {
            let lines = crate::log_capture::lines();
            let of_it = |line: &&String| {
                line.contains("cannot consume")
                    && line.contains(&queue)
                    && line.trim_start().contains(level)
            };
            lines.iter().filter(of_it).count()
        };
        eventually(DEADLINE, "it was tried again and again", || async {
            (told("DEBUG") >= 2).then_some(())
        })
        .await;
        assert_eq!(told("ERROR"), 1);
        running.close().await;
    })
    .await;
}

/// What `work_queue` says, counts for a missing queue alone, except where the strategy needs arguments on it.
#[tokio::test]
async fn an_existing_one_is_compared_only_where_the_strategy_needs_arguments() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let quorum = retryrmq_harness::QueueType::Quorum;
        amqp.declare(QUEUE, quorum).await;
        amqp.declare("retryrmq.handover", quorum).await;
        let consumer = |strategy, said: &str| {
            let consumer = client.consumer(QUEUE).dlx(true).strategy(strategy);
            let consumer = consumer.work_queue(said.parse().unwrap());
            match strategy {
                Strategy::Service => consumer,
                _ => consumer.retry(policy("fixed(1s, retries=2)")),
            }
        };
        let mut strict = vec![Strategy::DeadLetter];
        if broker.version() >= Version::V4_3 {
            strict.push(Strategy::Native);
        }
        for said in ["classic", "existing", r#"{"x-max-length": 5}"#] {
            for strategy in [Strategy::RetryQueues, Strategy::Service] {
                let subscription = consumer(strategy, said).subscribe().await.unwrap();
                subscription.close();
                subscription.wait_closed().await.unwrap();
            }
        }
        let arguments = vhost.queue(QUEUE).await.unwrap().arguments().clone();
        assert_eq!(arguments.len(), 1, "nothing changes it: {arguments:?}");
        for strategy in strict {
            for said in ["existing", r#"{"x-max-priority": 5}"#] {
                let error = consumer(strategy, said).subscribe().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{said}: {error}");
                assert!(error.to_string().contains("retry-queues"), "{error}");
            }
            amqp.delete(QUEUE).await;
            drop(consumer(strategy, "quorum").subscribe().await.unwrap());
            // What it was made with, but for an argument that it lacks.
            let error = consumer(strategy, r#"{"x-expires": 7200000}"#)
                .subscribe()
                .await;
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            assert!(error.to_string().contains("x-expires"), "{error}");
            consumer(strategy, "existing").subscribe().await.unwrap();
        }
    })
    .await;
}

/// Without a type in its arguments it has the virtual host's default type, which may be one that cannot be a work queue.
#[tokio::test]
async fn without_a_type_it_is_of_the_default_type_and_never_a_stream() {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            for kind in retryrmq_harness::QueueType::ALL {
                let vhost = Vhost::with_default_queue_type(&broker, kind).await;
                let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
                let consumer = client
                    .consumer(QUEUE)
                    .dlx(true)
                    .retry(policy("fixed(1s)"))
                    .work_queue("{}".parse().unwrap());
                let subscription = consumer.subscribe().await.unwrap();
                for queue in vhost.queues().await {
                    let expected = if queue.name() == QUEUE {
                        kind.as_str()
                    } else {
                        "quorum"
                    };
                    assert_eq!(queue.kind(), expected, "{}", queue.name());
                }
                assert!(
                    declares(&amqp, table([])).await,
                    "as a publisher declares it"
                );
                subscription.close();
                subscription.wait_closed().await.unwrap();
            }
            let vhost = Vhost::with_default_stream(&broker).await;
            let client = connect(&vhost).await;
            let consumer = |said: &str| {
                client
                    .consumer(QUEUE)
                    .dlx(true)
                    .retry(policy("fixed(1s)"))
                    .work_queue(said.parse().unwrap())
            };
            let error = consumer("{}").subscribe().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
            let words = error.to_string();
            assert!(words.contains("default queue type is stream"), "{words}");
            assert!(words.contains("x-queue-type"), "{words}");
            assert!(vhost.queue(QUEUE).await.is_none(), "it was not created");
            let named = r#"{"x-queue-type": "classic"}"#;
            let subscription = consumer(named).subscribe().await.unwrap();
            for queue in vhost.queues().await {
                let expected = if queue.name() == QUEUE {
                    "classic"
                } else {
                    "quorum"
                };
                assert_eq!(queue.kind(), expected, "{}", queue.name());
            }
            subscription.close();
            subscription.wait_closed().await.unwrap();
        },
    )
    .await;
}

#[tokio::test]
async fn nothing_is_made_for_one_that_cannot_be_used() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        let exclusive = QueueDeclareOptions {
            exclusive: true,
            ..QueueDeclareOptions::default()
        };
        let kind = |kind: &str| table([("x-queue-type", crate::fixture::text(kind))]);
        for (queue, options, kind, expected) in [
            ("own", exclusive, kind("classic"), ErrorKind::AccessRefused),
            ("log", durable(), kind("stream"), ErrorKind::Mismatch),
        ] {
            let declared = amqp.channel().queue_declare(queue.into(), options, kind);
            declared.await.unwrap();
            let consumer = client.consumer(queue).dlx(true).retry(policy("fixed(1s)"));
            let error = consumer.subscribe().await.unwrap_err();
            assert_eq!(error.kind(), expected, "{error}");
            let made: Vec<_> = vhost.queues().await;
            let made = made.iter().map(retryrmq_harness::QueueInfo::name);
            let made: Vec<_> = made.filter(|name| !["own", "log"].contains(name)).collect();
            assert!(made.is_empty(), "{made:?}");
        }
    })
    .await;
}

/// RabbitMQ 4 closes the connection where it would have to say so.
#[tokio::test]
async fn a_name_that_the_broker_cannot_say_is_refused_with_the_reason() {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let vhost = broker.vhost().await;
            let client = connect(&vhost).await;
            let long = "ä".repeat(115);
            let consumer = client.consumer(&long).dlx(true).retry(policy("fixed(1s)"));
            let error = consumer.subscribe().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
            assert!(error.to_string().contains("use a shorter name"), "{error}");
            let error = client.parked(&long).browse().await.err().unwrap();
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
            let error = client.retrier(&long).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::TooLarge, "{error}");
            assert!(vhost.queues().await.is_empty(), "nothing was made");
        },
    )
    .await;
}
