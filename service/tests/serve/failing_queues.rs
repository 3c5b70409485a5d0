//! Work queues that are gone, and queues that do not take what is to wait there: the others do not notice.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use retryrmq_harness::{
    Broker, Node, Permissions, Policy, QueueType, Version, eventually,
    lapin::{options::BasicRejectOptions, types::FieldTable},
    on_brokers, on_brokers_where,
};
use serde_json::json;

use crate::fixture::{
    DEADLINE, INTAKE, INTAKE_PARKED, NativeConsumer, Replica, declare, id, policy, take, text,
};

const DELAYED: &str = "retryrmq.delayed";
const POLICY: &str = "[defaults]\nretry = \"fixed(1h)\"\n";

#[tokio::test]
async fn what_died_in_a_queue_that_is_gone_is_parked_with_that_reason() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(POLICY);
        declare(&amqp, "orders", QueueType::Classic, false).await;
        // It dies while nobody is there, and its queue goes before somebody comes.
        let first = Replica::start(&vhost, Some(file.path())).await;
        assert!(first.end().await.success());
        amqp.publish_with("orders", "x", id("one")).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        eventually(DEADLINE, "it is in the intake", || async {
            amqp.depth("retryrmq.intake").await == Some(1)
        })
        .await;
        drop(native);
        amqp.delete("orders").await;
        let _replica = Replica::start(&vhost, Some(file.path())).await;
        let parked = take(&amqp, "orders.parked", 1).await.remove(0);
        assert_eq!(
            parked.header_text("x-retry-parked-reason").as_deref(),
            Some("fatal")
        );
        let error = parked.header_text("x-retry-error").unwrap();
        assert!(error.contains("does not exist any more"), "{error}");
        assert_eq!(amqp.depth("orders").await, None, "nobody made it again");
    })
    .await;
}

#[tokio::test]
async fn a_queue_that_takes_nothing_holds_up_nobody_and_loses_nothing() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(POLICY);
        // Next to nothing fits into where messages of this queue wait.
        let full = json!({"max-length": 1, "overflow": "reject-publish"});
        let full = Policy::new("^stuck\\.retry", full);
        vhost.put_policy("full", &full).await.unwrap();
        let replica = Replica::start_at(vhost.url(), Some(file.path()), &["--prefetch", "8"]).await;
        for queue in ["stuck", "orders"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        for number in 0..20 {
            amqp.publish_with("stuck", "x", id(&format!("stuck-{number}")))
                .await;
        }
        let _stuck = NativeConsumer::start(&vhost, "stuck", |_| false).await;
        replica
            .counts("retryrmq_serve_held{queue=\"stuck\"}", 1)
            .await;
        amqp.publish_with("orders", "x", id("one")).await;
        let _orders = NativeConsumer::start(&vhost, "orders", |_| false).await;
        take(&amqp, "orders.retry.3600000", 1).await;
        // Two places of eight for one queue; the others are parked for the intake, with the sentence and the way out.
        replica
            .counts("retryrmq_serve_held{queue=\"stuck\"}", 2)
            .await;
        eventually(DEADLINE, "all but the held are somewhere", || async {
            let waiting = amqp.depth("stuck.retry.3600000").await.unwrap_or(0);
            let parked = amqp.depth(INTAKE_PARKED).await.unwrap_or(0);
            if waiting + parked == 18 {
                Ok(())
            } else {
                Err(format!("{waiting} wait, {parked} parked"))
            }
        })
        .await;
        replica
            .counts("retryrmq_serve_overflowed_total{queue=\"stuck\"}", 1)
            .await;
        let parked = amqp.drain(INTAKE_PARKED).await;
        let error = parked[0].header_text("x-retry-error").unwrap();
        assert!(error.contains("neither waits nor is parked"), "{error}");
        assert!(
            error.contains("parked replay retryrmq.intake MESSAGE --to stuck"),
            "{error}"
        );
        // Once there is room, what was held goes its way.
        let (mut waiting, end) = (Vec::new(), Instant::now() + DEADLINE);
        while waiting.len() + parked.len() < 20 {
            assert!(
                Instant::now() < end,
                "{} wait, {} parked",
                waiting.len(),
                parked.len()
            );
            waiting.extend(amqp.drain("stuck.retry.3600000").await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let mut names: Vec<_> = waiting
            .iter()
            .chain(&parked)
            .filter_map(|one| one.id())
            .collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 20, "{names:?}");
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn a_missing_permission_is_a_sentence_and_what_needs_it_is_kept() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let (management, user) = (broker.management(), format!("serve-{}", vhost.name()));
        management.create_user(&user, "p", "").await.unwrap();
        let narrow = Permissions {
            configure: r"^(retryrmq\..*|orders\..*)$",
            write: r"^(retryrmq\..*|amq\.default)$",
            read: r"^(retryrmq\..*|orders.*)$",
        };
        management
            .set_permissions(vhost.name(), &user, narrow)
            .await
            .unwrap();
        let file = policy(POLICY);
        let replica = Replica::start_at(&vhost.url_as(&user, "p"), Some(file.path()), &[]).await;
        for queue in ["secret", "orders"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        amqp.publish_with("secret", "x", id("kept")).await;
        let _secret = NativeConsumer::start(&vhost, "secret", |_| false).await;
        let said = replica.says("could not be stored").await;
        assert!(
            said["error"]
                .as_str()
                .unwrap()
                .contains("secret.retry.3600000"),
            "{said}"
        );
        amqp.publish_with("orders", "x", id("one")).await;
        let _orders = NativeConsumer::start(&vhost, "orders", |_| false).await;
        take(&amqp, "orders.retry.3600000", 1).await;
        replica
            .counts("retryrmq_serve_held{queue=\"secret\"}", 1)
            .await;
        assert!(replica.end().await.success());
        eventually(DEADLINE, "it is in the intake again", || async {
            amqp.depth("retryrmq.intake").await == Some(1)
        })
        .await;
        management.delete_user(&user).await.unwrap();
    })
    .await;
}

/// Each loss brings it once more, and the first copy is written before the client learns of the alarm.
#[tokio::test]
async fn what_an_alarm_holds_up_is_there_twice_at_most_however_often_its_channel_is_lost() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let amqp = node.connect().await;
        let file = policy(POLICY);
        let replica = Replica::start_at(node.url(), Some(file.path()), &[]).await;
        declare(&amqp, "orders", QueueType::Classic, false).await;
        let other = node.connect().await;
        let mut consumer = other.consume("orders", 20).await;
        amqp.publish_with("orders", "x", id("one")).await;
        let delivery = consumer.next().await.unwrap().unwrap();
        node.raise_memory_alarm().await;
        let no = BasicRejectOptions { requeue: false };
        delivery.acker.reject(no).await.unwrap();
        let mut open = String::new();
        for _ in 0..3 {
            open = consumes_again(&node, INTAKE, &open).await;
            node.management().close_connection(&open).await.unwrap();
        }
        consumes_again(&node, INTAKE, &open).await;
        // What was tried on the channels before is given up.
        tokio::time::sleep(Duration::from_secs(8)).await;
        node.set_memory_watermark(0.6).await;
        until_unsettled(&node, INTAKE, "0").await;
        let copies = amqp.depth("orders.retry.3600000").await.unwrap();
        assert!((1..=2).contains(&copies), "{copies} copies");
        assert!(replica.end().await.success());
    })
    .await;
}

/// Waits until the service consumes on another connection than this, and has the message; returns the name of the connection.
async fn consumes_again(node: &Node, queue: &str, before: &str) -> String {
    let name = eventually(DEADLINE, "it consumes again", || async {
        let open = node.management().connections("/").await.unwrap();
        let mut consuming = open.into_iter().filter(|open| {
            let name = open.client_name.as_deref().unwrap_or_default();
            name.ends_with("(consume)") && open.name != before
        });
        consuming.next().map(|open| open.name)
    })
    .await;
    until_unsettled(node, queue, "1").await;
    name
}

/// Waits until so many messages of a queue are with the service, and none is ready.
async fn until_unsettled(node: &Node, queue: &str, unsettled: &str) {
    let columns = ["name", "messages_ready", "messages_unacknowledged"];
    eventually(DEADLINE, "the queue is so full", || async {
        let listed = node
            .ctl(
                &[
                    &["list_queues", "--quiet", "--no-table-headers"][..],
                    &columns,
                ]
                .concat(),
            )
            .await;
        let line = format!("{queue}\t0\t{unsettled}");
        if listed.lines().any(|listed| listed.trim() == line) {
            Ok(())
        } else {
            Err(listed)
        }
    })
    .await;
}

/// What is to be parked of the messages with a delay is tried as what is to wait is.
#[tokio::test]
async fn what_an_alarm_keeps_from_being_parked_is_parked_twice_at_most() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let amqp = node.connect().await;
        let file = policy("[delayed.orders]\nto = \"shop\"\n");
        let replica = Replica::start_at(node.url(), Some(file.path()), &[]).await;
        replica.says("kept until they are due").await;
        // Nobody can publish in an alarm, but what is rejected is dead-lettered.
        let mut arguments = FieldTable::default();
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(DELAYED));
        amqp.declare_with("orders", QueueType::Classic, arguments)
            .await;
        let other = node.connect().await;
        let mut consumer = other.consume("orders", 20).await;
        amqp.publish_with("orders", "x", id("one")).await;
        let delivery = consumer.next().await.unwrap().unwrap();
        node.raise_memory_alarm().await;
        let no = BasicRejectOptions { requeue: false };
        delivery.acker.reject(no).await.unwrap();
        let mut open = String::new();
        for _ in 0..3 {
            open = consumes_again(&node, DELAYED, &open).await;
            node.management().close_connection(&open).await.unwrap();
        }
        consumes_again(&node, DELAYED, &open).await;
        tokio::time::sleep(Duration::from_secs(8)).await;
        node.set_memory_watermark(0.6).await;
        until_unsettled(&node, DELAYED, "0").await;
        let copies = amqp.depth("retryrmq.delayed.parked").await.unwrap();
        assert!((1..=2).contains(&copies), "{copies} copies");
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn the_end_does_not_wait_for_the_end_of_an_alarm() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let amqp = node.connect().await;
        let file = policy("[delayed.orders]\nto = \"shop\"\n");
        let replica = Replica::start_at(node.url(), Some(file.path()), &[]).await;
        replica.says("kept until they are due").await;
        let mut arguments = FieldTable::default();
        arguments.insert("x-dead-letter-exchange".into(), text(""));
        arguments.insert("x-dead-letter-routing-key".into(), text(DELAYED));
        amqp.declare_with("late", QueueType::Classic, arguments)
            .await;
        declare(&amqp, "orders", QueueType::Classic, false).await;
        let other = node.connect().await;
        let (mut consumers, mut deliveries) = (Vec::new(), Vec::new());
        for queue in ["late", "orders"] {
            let mut consumer = other.consume(queue, 20).await;
            amqp.publish_with(queue, "x", id(queue)).await;
            deliveries.push(consumer.next().await.unwrap().unwrap());
            consumers.push(consumer);
        }
        node.raise_memory_alarm().await;
        for delivery in deliveries {
            let no = BasicRejectOptions { requeue: false };
            delivery.acker.reject(no).await.unwrap();
        }
        until_unsettled(&node, DELAYED, "1").await;
        until_unsettled(&node, INTAKE, "1").await;
        let ended = tokio::time::timeout(DEADLINE, replica.end()).await;
        assert!(ended.expect("it ends").success());
        node.set_memory_watermark(0.6).await;
        // They are given back, or there; never neither.
        for (queue, copy) in [
            (DELAYED, "retryrmq.delayed.parked"),
            (INTAKE, "orders.retry.1000"),
        ] {
            eventually(DEADLINE, "it is somewhere", || async {
                let amqp = node.connect().await;
                let left = amqp.depth(queue).await.unwrap_or(0);
                left + amqp.depth(copy).await.unwrap_or(0) > 0
            })
            .await;
        }
    })
    .await;
}

/// RabbitMQ 4 closes the connection at each question for a missing queue of such a name.
#[tokio::test]
async fn what_died_in_a_queue_that_cannot_be_asked_for_is_parked_for_the_intake() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| async move {
            let vhost = broker.vhost().await;
            let amqp = vhost.connect().await;
            let file = policy("[defaults]\nretry = \"fixed(1h)\"\n");
            let long = "ä".repeat(115);
            for queue in [long.as_str(), "orders"] {
                declare(&amqp, queue, QueueType::Classic, false).await;
            }
            let replica = Replica::start(&vhost, Some(file.path())).await;
            amqp.publish_with(&long, "x", id("long")).await;
            amqp.publish_with("orders", "x", id("short")).await;
            let _long = NativeConsumer::start(&vhost, &long, |_| false).await;
            let _orders = NativeConsumer::start(&vhost, "orders", |_| false).await;
            let parked = take(&amqp, INTAKE_PARKED, 1).await.remove(0);
            assert_eq!(parked.id(), Some("long"));
            let error = parked.header_text("x-retry-error").unwrap();
            assert!(error.contains("use a shorter name"), "{error}");
            take(&amqp, "orders.retry.3600000", 1).await;
            assert_eq!(amqp.depth(INTAKE).await, Some(0));
            assert_eq!(replica.page("/readyz").await.0, 200);
        },
    )
    .await;
}
