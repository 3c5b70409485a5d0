//! Orphans on real brokers, by each source.

use std::sync::{Arc, Mutex};

use retryrmq::Client;
use retryrmq_harness::{QueueType, Vhost, eventually, free_port, on_brokers};
use retryrmq_operator::management::{Address, Management};
use retryrmq_serve::{
    QueueProblemReport, QueueProblemState,
    queue_watch::{Configuration, ManagementFactory, Watch},
};

use crate::DEADLINE;

#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<QueueProblemReport>>>);

impl Told {
    fn tell(&self) -> impl Fn(QueueProblemReport) -> bool + Send + Sync + 'static {
        let told = self.clone();
        move |trouble| {
            told.0.lock().unwrap().push(trouble);
            true
        }
    }

    /// `+queue:kind` for each that was raised, `-queue:kind` for each of them that is over.
    fn story(&self) -> Vec<String> {
        let mut raised = std::collections::BTreeSet::new();
        let mut story = Vec::new();
        for trouble in self.0.lock().unwrap().iter() {
            let name = format!("{}:{}", trouble.queue, trouble.kind);
            match trouble.state {
                QueueProblemState::Lasting => {}
                QueueProblemState::Begun => {
                    raised.insert(name.clone());
                    story.push(format!("+{name}"));
                }
                QueueProblemState::Over if raised.contains(&name) => story.push(format!("-{name}")),
                QueueProblemState::Over => {}
            }
        }
        story
    }

    async fn after(&self, expected: &[&str]) {
        eventually(DEADLINE, "the troubles are told", || async {
            let story = self.story();
            match story == expected {
                true => Ok(()),
                false => Err(format!("{story:?}")),
            }
        })
        .await;
    }
}

fn configuration(more: &str) -> Configuration {
    let text = format!(
        "every = \"1s\"\nafter = \"3s\"\nparked_growth = 3\nparked_within = \"1h\"\n{more}"
    );
    toml::from_str(&text).unwrap()
}

/// Its password comes out of a file, and is the right one from the second look on.
fn management(vhost: &Vhost) -> ManagementFactory {
    let management = vhost.broker().management().url().to_owned();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "of before").unwrap();
    let url = format!("{}?passwordfile={}", vhost.url(), file.path().display());
    Box::new(move || {
        let address = Address::new(&url, Some(&management), None);
        std::fs::write(file.path(), "guest").unwrap();
        Ok(Management::new(address.unwrap()).unwrap())
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_is_told_once_and_is_over_when_somebody_comes() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        for queue in ["orders", "served", "orders.parked", "quiet"] {
            amqp.declare(queue, QueueType::Quorum).await;
        }
        amqp.publish("orders", "1").await;
        // First: the management API tells what was a few seconds ago, and a message without a consumer would be an orphan.
        let _served = amqp.consume("served", 1).await;
        amqp.publish("served", "1").await;
        let client = Client::connect(vhost.url()).await.unwrap();
        // By name, and by the management API.
        let (named, listed) = (Told::default(), Told::default());
        let names = configuration(
            "queues = [\"orders\", \"served\", \"orders.parked\", \"quiet\", \"nowhere\"]",
        );
        let by_name = Watch::start(
            client.clone(),
            vhost.name(),
            None,
            Vec::new(),
            &names,
            named.tell(),
        )
        .unwrap();
        let list = Watch::start(
            client.clone(),
            vhost.name(),
            Some(management(&vhost)),
            Vec::new(),
            &configuration(""),
            listed.tell(),
        )
        .unwrap();
        for told in [&named, &listed] {
            told.after(&["+orders:no_consumer"]).await;
        }
        let consumer = amqp.consume("orders", 1).await;
        for told in [&named, &listed] {
            told.after(&["+orders:no_consumer", "-orders:no_consumer"])
                .await;
        }
        // The growth of a queue is measured from the first depth that is told, and the management API tells that of a new queue late.
        eventually(
            DEADLINE,
            "the parking queue is known to be empty",
            || async {
                let management = vhost.broker().management();
                match management.queue(vhost.name(), "orders.parked").await {
                    Ok(Some(queue)) if queue.raw["messages"] == 0 => Ok(()),
                    told => Err(format!("{told:?}")),
                }
            },
        )
        .await;
        let before = list.counts().looks;
        eventually(DEADLINE, "it was looked at since", || async {
            let looks = list.counts().looks;
            (looks > before + 1).then_some(()).ok_or(looks)
        })
        .await;
        // Growth that falls into a gap between two looks is seen by nobody. Then there is more.
        eventually(DEADLINE, "the growth is told", || async {
            for number in 0..3 {
                amqp.publish("orders.parked", number.to_string()).await;
            }
            let stories = [named.story(), listed.story()];
            let expected = [
                "+orders:no_consumer",
                "-orders:no_consumer",
                "+orders.parked:parking_grows",
            ];
            match stories.iter().all(|story| *story == expected) {
                true => Ok(()),
                false => Err(format!("{stories:?}")),
            }
        })
        .await;
        assert!(by_name.counts().looks > 3 && list.counts().queues >= 4);
        assert!(list.counts().failed >= 1, "with the password of before");
        drop(consumer);
        client.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_raises_nothing() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        amqp.declare("orders", QueueType::Classic).await;
        amqp.publish("orders", "1").await;
        let client = Client::connect(vhost.url()).await.unwrap();
        let told = Told::default();
        // Nobody listens there.
        let nobody = configuration("prometheus = [\"http://127.0.0.1:1\"]\nqueues = [\"orders\"]");
        let watch = Watch::start(
            client.clone(),
            vhost.name(),
            None,
            Vec::new(),
            &nobody,
            told.tell(),
        )
        .unwrap();
        eventually(DEADLINE, "it has failed for long", || async {
            watch.counts().failed > 8
        })
        .await;
        assert!(told.0.lock().unwrap().is_empty());
        client.close().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_acknowledges_nothing_is_seen_by_prometheus() {
    on_brokers(|broker| async move {
        let port = free_port();
        let node = broker
            .own_node(&[
                "plugins = rabbitmq_management rabbitmq_prometheus",
                &format!("prometheus.tcp.port = {port}"),
                "prometheus.tcp.ip = 127.0.0.1",
                "collect_statistics_interval = 500",
            ])
            .await;
        let vhost = node.vhost().await;
        let amqp = vhost.connect().await;
        for queue in ["stuck", "busy", "orphan"] {
            amqp.declare(queue, QueueType::Quorum).await;
            for number in 0..20 {
                amqp.publish(queue, number.to_string()).await;
            }
        }
        let _stuck = amqp.consume("stuck", 5).await;
        let client = Client::connect(vhost.url()).await.unwrap();
        let busy = tokio::spawn({
            let client = client.clone();
            async move {
                let mut messages = client
                    .consumer("busy")
                    .prefetch(5)
                    .messages()
                    .await
                    .unwrap();
                while let Some(attempt) = messages.next().await {
                    attempt.ack();
                    client
                        .publish(retryrmq::Publish::to_queue("busy", "again"))
                        .await
                        .unwrap();
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            }
        });
        // Or they would be told as well.
        for queue in ["stuck", "busy"] {
            eventually(DEADLINE, "its consumer is known", || async {
                let path = format!("queues/{}/{queue}", vhost.name());
                let seen = node.management().get(path).await;
                seen.is_ok_and(|seen| seen["consumers"] == 1)
            })
            .await;
        }
        let told = Told::default();
        let configuration = configuration(&format!(
            "stuck_after = \"20s\"\nprometheus = [\"http://127.0.0.1:{port}\"]"
        ));
        let _watch = Watch::start(
            client.clone(),
            vhost.name(),
            None,
            Vec::new(),
            &configuration,
            told.tell(),
        )
        .unwrap();
        eventually(DEADLINE, "both are told", || async {
            let mut story = told.story();
            story.sort_unstable();
            match story == ["+orphan:no_consumer", "+stuck:unacknowledged"] {
                true => Ok(()),
                false => Err(format!("{story:?}")),
            }
        })
        .await;
        busy.abort();
        client.close().await;
    })
    .await;
}
