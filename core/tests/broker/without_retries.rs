//! Consumers with less: without retries, or without parking.

use retryrmq::{Client, Event, Limits, defer};
use retryrmq_harness::{self as harness, Permissions, Policy, on_queue_types};
use serde_json::json;

use crate::{
    fixture::{
        Observations, QUEUE, connect, connect_with, id, ms, policy, settled, start, stats, table,
        take, text,
    },
    log_capture,
};

#[tokio::test]
async fn without_dlx_a_failure_is_rejected_and_the_queue_decides() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare("dead", kind).await;
        let route = table([
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text("dead")),
        ]);
        amqp.declare_with(QUEUE, kind, route).await;
        let names = ["fine", "failed", "panics", "late"];
        let observations = Observations::default();
        let running = start(
            client.consumer(QUEUE),
            &observations,
            |message| match message.message_id().unwrap() {
                "fine" => Ok(()),
                "panics" => panic!("on purpose"),
                _ => Err("no".into()),
            },
        )
        .await;
        amqp.publish_all("", names.map(|name| (QUEUE, name, id(name))))
            .await;
        let dead = take(&amqp, "dead", 3).await;
        assert!(
            dead.iter()
                .all(|message| message.header("x-death").is_some())
        );
        assert!(
            dead.iter()
                .all(|message| message.header("x-retry-count").is_none())
        );
        let stats = stats(&running, "all is settled", |stats| {
            stats.acked == 1 && stats.outstanding == 0
        })
        .await;
        assert_eq!(
            (stats.failed, stats.rejected, stats.retried, stats.parked),
            (3, 3, 0, 0)
        );
        let mut rejected: Vec<_> = observations
            .events()
            .into_iter()
            .map(|event| match event {
                Event::Rejected { message_id, .. } => message_id.unwrap(),
                other => panic!("{other:?}"),
            })
            .collect();
        rejected.sort();
        assert_eq!(rejected, ["failed", "late", "panics"]);
        assert_eq!(vhost.queues().await.len(), 2, "nothing was made");
    })
    .await;
}

#[tokio::test]
async fn without_dlx_a_deferred_message_comes_back_however_often() {
    // RabbitMQ 4 drops a message that was given back 21 times.
    const TIMES: u32 = 25;
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await; // without a dead-letter route: what is rejected is gone
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE), &observations, |message| {
            if message.state().deferrals == TIMES {
                Ok(())
            } else {
                Err(defer(ms(20)).into())
            }
        })
        .await;
        amqp.publish_all("", [(QUEUE, "later", id("later"))]).await;
        let attempts = observations.until("later", TIMES as usize + 1).await;
        assert!(attempts[1].at - attempts[0].at >= ms(20));
        assert!(attempts.iter().all(|seen| seen.message.attempt() == 1));
        settled(&vhost, &amqp, &running, QUEUE).await;
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn without_dlx_a_deferral_that_cannot_be_stored_is_stored_later_and_its_handler_waits_for_that()
 {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare(QUEUE, kind).await;
        let (management, user) = (broker.management(), format!("{}-bob", vhost.name()));
        management.create_user(&user, "pw", "").await.unwrap();
        let may_write = |write| {
            let may = Permissions {
                write,
                ..Permissions::ALL
            };
            management.set_permissions(vhost.name(), &user, may)
        };
        may_write("^$").await.unwrap();
        let client = Client::connect(&vhost.url_as(&user, "pw")).await.unwrap();
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE), &observations, |message| {
            if message.state().deferrals == 0 {
                return Err(defer(ms(1)).into());
            }
            Ok(())
        })
        .await;
        amqp.publish_with(QUEUE, "x", id("a")).await;
        observations.event("publish_failed").await;
        may_write(".*").await.unwrap();
        observations.until("a", 2).await;
        settled(&vhost, &amqp, &running, QUEUE).await;
        let seen = observations.of("a");
        assert_eq!(seen.len(), 2, "it did not run again for that");
        assert_eq!(seen[1].message.state().deferrals, 1);
        running.close().await;
        management.delete_user(&user).await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn without_dlx_deferrals_come_to_an_end_as_failures_do() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare("dead", kind).await;
        let route = table([
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text("dead")),
        ]);
        amqp.declare_with(QUEUE, kind, route).await;
        let limits = Limits::default().deferrals(2);
        let observations = Observations::default();
        let consumer = client.consumer(QUEUE).limits(limits);
        let running = start(consumer, &observations, |_| Err(defer(ms(1)).into())).await;
        amqp.publish_all("", [(QUEUE, "never", id("never"))]).await;
        let dead = take(&amqp, "dead", 1).await;
        assert_eq!(dead[0].text(), "never");
        assert_eq!(observations.of("never").len(), 3);
        observations.event("rejected").await; // it may come after the broker's move
        assert_eq!(
            observations.event_names(),
            ["deferred", "deferred", "rejected"]
        );
        running.close().await;
    })
    .await;
}

#[tokio::test]
async fn the_first_failure_without_dlx_warns_and_only_that() {
    log_capture::start();
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        // Logs of all tests are in one place.
        let queue = format!("warned-{}-{kind}", vhost.name());
        amqp.declare(&queue, kind).await;
        for number in 0..3 {
            amqp.publish_with(&queue, "x", id(&number.to_string()))
                .await;
        }
        let observations = Observations::default();
        let running = start(client.consumer(&queue), &observations, |_| Err("no".into())).await;
        stats(&running, "all are rejected", |stats| stats.rejected == 3).await;
        let lines = log_capture::lines();
        let warnings: Vec<_> = lines
            .iter()
            .filter(|line| line.contains(&queue) && line.contains("WARN"))
            .collect();
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("dlx"), "{warnings:?}");
    })
    .await;
}

#[tokio::test]
async fn a_policy_of_the_broker_decides_as_well() {
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect(&vhost).await, vhost.connect().await);
        amqp.declare(QUEUE, kind).await;
        amqp.declare("dead", kind).await;
        let route = json!({ "dead-letter-exchange": "", "dead-letter-routing-key": "dead" });
        vhost
            .put_policy("dlx", &Policy::new("^orders$", route))
            .await
            .unwrap();
        harness::eventually(crate::fixture::DEADLINE, "the policy applies", || async {
            vhost
                .queue(QUEUE)
                .await
                .is_some_and(|queue| queue.policy() == Some("dlx"))
        })
        .await;
        amqp.publish_with(QUEUE, "x", id("a")).await;
        let observations = Observations::default();
        let _running = start(client.consumer(QUEUE), &observations, |_| Err("no".into())).await;
        assert_eq!(take(&amqp, "dead", 1).await[0].id(), Some("a"));
    })
    .await;
}

#[tokio::test]
async fn without_parking_what_is_given_up_is_gone_and_said_so() {
    log_capture::start();
    on_queue_types(|broker, kind| async move {
        let vhost = broker.vhost().await;
        let (client, amqp) = (connect_with(&vhost, kind).await, vhost.connect().await);
        let queue = format!("dropped-{}-{kind}", vhost.name());
        amqp.declare(&queue, kind).await;
        amqp.publish_with(&queue, "x", id("a")).await;
        let observations = Observations::default();
        let consumer = client
            .consumer(&queue)
            .dlx(true)
            .park(false)
            .retry(policy("fixed(50ms, retries=1)"));
        let running = start(consumer, &observations, |_| Err("no".into())).await;
        observations.event("parked").await;
        settled(&vhost, &amqp, &running, &queue).await;
        assert_eq!(observations.of("a").len(), 2);
        assert_eq!(amqp.depth(&format!("{queue}.parked")).await.unwrap_or(0), 0);
        let lines = log_capture::lines();
        let told = lines.iter().any(|line| {
            line.contains(&queue) && line.contains("WARN") && line.contains("`park` is off")
        });
        assert!(told, "no warning about {queue}");
    })
    .await;
}
