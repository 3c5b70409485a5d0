//! Queues that do not answer: they hold up neither other messages with a delay nor the end of the service.

use std::time::Duration;

use retryrmq_harness::{
    Amqp, Broker, QueueType, Vhost, eventually,
    lapin::{options::BasicPublishOptions, types::AMQPValue},
    on_brokers_where,
};

use crate::{
    delayed::{DELAYED, delayed, send, shop},
    fixture::{DEADLINE, Replica, id, policy},
};

/// Suspends or resumes the servers of these quorum queues.
async fn told(broker: &Broker, vhost: &Vhost, verb: &str, queues: &[&str]) {
    for queue in queues {
        let code = format!("sys:{verb}({{'{}_{queue}', node()}}).", vhost.name());
        broker.ctl(&["eval", &code]).await;
    }
}

/// Publishes a message that is due at once, without waiting for its confirm.
async fn soon(amqp: &Amqp, exchange: &str, key: &str) {
    let options = BasicPublishOptions::default();
    let properties = delayed(key, AMQPValue::LongInt(10));
    let channel = amqp.channel();
    let sent = channel.basic_publish(exchange.into(), key.into(), options, b"x", properties);
    sent.await.unwrap();
}

/// A quorum queue without a leader confirms nothing: as its server that stands still.
#[tokio::test]
async fn exchanges_behind_which_nothing_answers_hold_up_no_other() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        for queue in ["stuck", "still", "fine"] {
            amqp.declare(queue, QueueType::Quorum).await;
        }
        let file = policy("[delayed.one]\nto = \"\"\n[delayed.other]\nto = \"\"\n");
        let few = ["--prefetch", "10"];
        let replica = Replica::start_at(vhost.url(), Some(file.path()), &few).await;
        replica.says("kept until they are due").await;
        let servers = async |verb: &str| told(&broker, &vhost, verb, &["stuck", "still"]).await;
        servers("suspend").await;
        for _ in 0..100 {
            soon(&amqp, "one", "stuck").await;
            soon(&amqp, "one", "still").await;
        }
        soon(&amqp, "other", "fine").await;
        eventually(DEADLINE, "the other one comes", || async {
            let depth = amqp.depth("fine").await;
            (depth == Some(1)).then_some(()).ok_or(format!("{depth:?}"))
        })
        .await;
        servers("resume").await;
        assert!(replica.end().await.success());
    })
    .await;
}

/// One of the two may have the name of the other.
#[tokio::test]
async fn a_queue_that_does_not_answer_holds_up_no_exchange_of_its_name() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("orders", QueueType::Quorum).await;
        shop(&amqp, "orders").await;
        let file = policy("[delayed.one]\nto = \"\"\n[delayed.other]\nto = \"orders\"\n");
        let few = ["--prefetch", "10"];
        let replica = Replica::start_at(vhost.url(), Some(file.path()), &few).await;
        replica.says("kept until they are due").await;
        let servers = async |verb: &str| told(&broker, &vhost, verb, &["orders"]).await;
        servers("suspend").await;
        for _ in 0..30 {
            soon(&amqp, "one", "orders").await;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        soon(&amqp, "other", "order.a").await;
        eventually(DEADLINE, "it comes", || async {
            let depth = amqp.depth("due").await;
            (depth == Some(1)).then_some(()).ok_or(format!("{depth:?}"))
        })
        .await;
        assert_eq!(
            replica.said("could not be passed on"),
            0,
            "it waits for no answer of the queue"
        );
        servers("resume").await;
        assert!(replica.end().await.success());
    })
    .await;
}

/// Each try waits twice as long as the one before.
#[tokio::test]
async fn the_end_waits_for_no_queue_that_does_not_answer() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("stuck", QueueType::Quorum).await;
        let waiting = "retryrmq.delayed.retry.3200000";
        let file = policy("[delayed.orders]\nto = \"\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        replica.says("kept until they are due").await;
        let hour = || delayed("early", AMQPValue::LongInt(3_600_000));
        send(&amqp, "stuck", hour()).await;
        replica
            .counts(r#"retryrmq_serve_delayed_total{result="waits"}"#, 1)
            .await;
        let servers = async |verb: &str| told(&broker, &vhost, verb, &["stuck", waiting]).await;
        servers("suspend").await;
        send(&amqp, "stuck", hour()).await;
        send(&amqp, "stuck", id("due")).await;
        eventually(DEADLINE, "the second try of both is over", || async {
            replica.said("could not be passed on") == 4
        })
        .await;
        // That the third one has begun shows nowhere. It waits for 80 s.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let ended = tokio::time::timeout(Duration::from_secs(60), replica.end()).await;
        servers("resume").await;
        assert!(ended.expect("it ends in time").success());
        eventually(DEADLINE, "all are somewhere", || async {
            let mut there = 0;
            for queue in [DELAYED, "stuck", waiting] {
                there += amqp.depth(queue).await.unwrap_or(0);
            }
            (there >= 3).then_some(()).ok_or(there.to_string())
        })
        .await;
    })
    .await;
}
