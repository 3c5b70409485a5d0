//! What people are told by running services.

use std::collections::BTreeMap;

use retryrmq_harness::{Policy, QueueType, eventually, on_brokers};

use crate::{
    fixture::{DEAD, DEADLINE, INTAKE_PARKED, NativeConsumer, Replica, declare, id, policy},
    hook::Server,
};

fn told(server: &Server, more: &str) -> String {
    format!(
        r#"
[defaults]
rejected = "park"

[alerts]
tick = "200ms"

[[alerts.rules]]
name = "gold"
where = 'body.tier == "gold"'
severity = "wake"
body = ["customer"]

[[alerts.rules]]
name = "others"
severity = "count"

[alerts.channels.hook.webhook]
url = "{}"
{more}"#,
        server.url
    )
}

async fn leader(replicas: &[Replica]) -> usize {
    eventually(DEADLINE, "one replica speaks", || async {
        let mut speaking = Vec::new();
        for (at, replica) in replicas.iter().enumerate() {
            let (_, text) = replica.page("/metrics").await;
            if text
                .lines()
                .any(|line| line == "retryrmq_serve_alerts_leader 1")
            {
                speaking.push(at);
            }
        }
        match speaking[..] {
            [at] => Ok(at),
            _ => Err(format!("{speaking:?}")),
        }
    })
    .await
}

#[tokio::test]
async fn of_two_replicas_one_tells_and_the_other_goes_on_when_it_is_killed() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let server = Server::start([]).await;
        let file = policy(&told(&server, ""));
        let mut replicas = Vec::new();
        for _ in 0..2 {
            replicas.push(Replica::start(&vhost, Some(file.path())).await);
        }
        for queue in ["orders", "bills"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        let is_leader = leader(&replicas).await;
        let orders = NativeConsumer::start(&vhost, "orders", |_| false).await;
        let bills = NativeConsumer::start(&vhost, "bills", |_| false).await;
        let gold = r#"{"tier": "gold", "customer": 7, "card": "sesame-4711"}"#;
        for number in 0..5 {
            amqp.publish_with("orders", gold, id(&format!("o{number}")))
                .await;
            amqp.publish_with("orders", r#"{"tier": "tin"}"#, id(&format!("t{number}")))
                .await;
        }
        let pages = server.after(1).await;
        let page = pages[0].json();
        assert_eq!(page["kind"], "opened", "{page}");
        let said = page.to_string();
        assert!(
            said.contains("orders") && said.contains("customer"),
            "{said}"
        );
        assert!(
            !said.contains("sesame-4711"),
            "only what was asked for is sent: {said}"
        );
        replicas.remove(is_leader).kill().await;
        leader(&replicas).await;
        amqp.publish_with("bills", gold, id("b")).await;
        // Killed before it knew that the page was taken, a leader's notice is sent again by the next: of the same page.
        let opened = || {
            let mut pages = BTreeMap::new();
            for request in server.requests() {
                let page = request.json();
                pages.insert(page["incident"].to_string(), page);
            }
            let about = |queue: &str| {
                let opened = pages.values().filter(|page| page["kind"] == "opened");
                let opened = opened.filter(|page| page.to_string().contains(queue));
                opened.count()
            };
            (about("orders"), about("bills"))
        };
        eventually(
            DEADLINE,
            "the other is told by the one that is left",
            || async {
                match opened() {
                    (_, 1) => Ok(()),
                    _ => Err(format!("{:?}", server.kinds())),
                }
            },
        )
        .await;
        assert_eq!(
            opened(),
            (1, 1),
            "one bug is one page: {:?}",
            server.kinds()
        );
        drop((orders, bills));
        for replica in replicas {
            assert!(replica.end().await.success());
        }
    })
    .await;
}

#[tokio::test]
async fn a_queue_without_a_consumer_is_told_once_the_file_says_so() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let server = Server::start([]).await;
        let file = policy("");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        amqp.declare("left", QueueType::Quorum).await;
        amqp.publish_with("left", "x", id("x")).await;
        let watched = "\n[orphans]\nevery = \"1s\"\nafter = \"1s\"\nqueues = [\"left\"]\n";
        let sections = format!(
            "[[alerts.rules]]\nname = \"orphans\"\nreason = \"no_consumer\"\nseverity = \"wake\"\n\n[alerts.channels.hook.webhook]\nurl = \"{}\"\n{watched}",
            server.url
        );
        std::fs::write(file.path(), &sections).unwrap();
        let pages = server.after(1).await;
        assert!(pages[0].json().to_string().contains("no_consumer"));
        std::fs::write(file.path(), sections.replace("1s", "0")).unwrap();
        replica.counts("retryrmq_serve_policy_loads_total{result=\"refused\"}", 1).await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn what_the_queues_of_the_alerts_let_go_of_is_not_told_where_a_policy_dead_letters_everything()
 {
    on_brokers(|broker| async move {
        const STATE: &str = "retryrmq.serve.alerts.state";
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let all = Policy::new(".*", serde_json::json!({"dead-letter-exchange": DEAD}));
        vhost.put_policy("all", &all).await.unwrap();
        let server = Server::start([]).await;
        let file = policy(&told(&server, ""));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        let gold = r#"{"tier": "gold", "customer": 7}"#;
        amqp.publish_with("orders", gold, id("one")).await;
        // The page of that is in a new state, and the broker drops the one before.
        let dropped = format!("retryrmq_serve_dropped_total{{queue=\"{STATE}\"");
        replica.counts(&dropped, 1).await;
        assert_eq!(amqp.depth(&format!("{STATE}.parked")).await, None);
        assert_eq!(amqp.depth(INTAKE_PARKED).await, Some(0));
        drop(native);
        assert!(replica.end().await.success());
    })
    .await;
}
