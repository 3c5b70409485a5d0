//! Several replicas on a real broker: one speaks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, atomic::Ordering},
};

use retryrmq::Client;
use retryrmq_harness::{
    Amqp, Policy, QueueType, Vhost, eventually,
    lapin::{
        BasicProperties,
        options::{BasicGetOptions, BasicPublishOptions, QueuePurgeOptions},
    },
    on_brokers,
};
use retryrmq_serve::alerts::{Alerting, BrokerStateStore, Handle, NotifierMode, StateStore};
use serde_json::{Value, json};

use crate::{
    DEADLINE, FailingStateStore, WAKE, configuration, parked, parked_in,
    server::{Answer, Server},
};

const REPORTS: &str = "retryrmq.serve.alerts";
const STATE: &str = "retryrmq.serve.alerts.state";

struct Replica {
    client: Client,
    alerting: Handle,
}

impl Replica {
    async fn start(vhost: &Vhost, text: &str) -> Self {
        Self::with(vhost, text, true).await.0
    }

    /// With a memory that works or fails.
    async fn with(
        vhost: &Vhost,
        text: &str,
        works: bool,
    ) -> (Self, Arc<FailingStateStore<BrokerStateStore>>) {
        let client = Client::connect(vhost.url()).await.unwrap();
        let fragile = FailingStateStore::new(BrokerStateStore::new(client.clone(), STATE), works);
        let memory = Arc::clone(&fragile) as Arc<dyn StateStore>;
        let mode = NotifierMode::Elected {
            client: client.clone(),
            queue: REPORTS.to_owned(),
        };
        let alerting = Alerting::start(&configuration(text), memory, mode)
            .await
            .unwrap();
        (Self { client, alerting }, fragile)
    }

    /// In good order.
    async fn leave(self) {
        self.alerting.stop().await;
        self.client.close().await;
    }

    /// Without a farewell, as by SIGKILL: nothing is saved, and its connections are gone.
    async fn die(self) {
        drop(self.alerting);
        self.client.close().await;
    }

    fn is_leader(&self) -> bool {
        self.alerting.counts().is_leader
    }
}

async fn one_leader(replicas: &[&Replica]) -> usize {
    eventually(DEADLINE, "one replica is the leader", || async {
        let leaders: Vec<_> = (0..replicas.len())
            .filter(|n| replicas[*n].is_leader())
            .collect();
        match leaders[..] {
            [leader] => Ok(leader),
            _ => Err(format!("{leaders:?}")),
        }
    })
    .await
}

/// The ids and pages of both groups, once they are shown.
async fn two_groups(replica: &Replica) -> BTreeMap<String, Option<String>> {
    eventually(DEADLINE, "both groups are shown", || async {
        let groups = replica.alerting.groups().into_iter();
        let groups: BTreeMap<_, _> = groups.map(|group| (group.id, group.incident)).collect();
        (groups.len() == 2).then_some(groups)
    })
    .await
}

fn kinds(notices: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = notices
        .iter()
        .filter_map(|one| one["kind"].as_str())
        .collect();
    kinds.sort_unstable();
    kinds
}

#[tokio::test(flavor = "multi_thread")]
async fn two_replicas_are_one_page_and_the_other_goes_on_when_the_leader_dies() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        // The first page is taken; the second waits for a server that asks for an hour.
        let server = Server::start([Answer::Status(202), Answer::RetryAfter(503, 3_000)]).await;
        let text = format!(
            "quiet = \"45s\"\n{WAKE}[channels.hook.webhook]\nurl = \"{}\"\n",
            server.url
        );
        let one = Replica::start(&vhost, &text).await;
        let two = Replica::start(&vhost, &text).await;
        for replica in [&one, &two, &one, &two] {
            replica.alerting.send(parked("f1"));
        }
        let leader = one_leader(&[&one, &two]).await;
        let (leader, other) = match leader {
            0 => (one, two),
            _ => (two, one),
        };
        eventually(DEADLINE, "all four are counted", || async {
            leader.alerting.counts().failures.get("wake") == Some(&4)
        })
        .await;
        assert_eq!(kinds(&server.notices(1).await), ["opened"]);
        // What the other one saw is told by the leader.
        other.alerting.send(parked("f2"));
        let second = server.notices(2).await.remove(1);
        let groups = two_groups(&leader).await;
        leader.die().await;

        // The state goes on with the other one: no page anew, what was not delivered is, and both are over in the end.
        eventually(DEADLINE, "the other one speaks", || async {
            other.is_leader()
        })
        .await;
        eventually(DEADLINE, "what was not delivered is told again", || async {
            let told = server.requests().into_iter().map(|request| request.json());
            told.filter(|notice| *notice == second).count() > 1
        })
        .await;
        assert_eq!(two_groups(&other).await, groups);
        other.alerting.send(parked("f1"));
        let told = server.notices(4).await;
        assert_eq!(kinds(&told), ["opened", "opened", "resolved", "resolved"]);
        let pages: BTreeSet<&str> = told
            .iter()
            .filter_map(|one| one["incident"].as_str())
            .collect();
        assert_eq!(pages.len(), 2);

        // Garbage in the queue of reports is dropped, and one that leaves in good order hands over.
        let amqp = vhost.connect().await;
        for body in ["{", "\u{0}", "[]"] {
            amqp.channel()
                .basic_publish(
                    "".into(),
                    REPORTS.into(),
                    BasicPublishOptions::default(),
                    body.as_bytes(),
                    BasicProperties::default(),
                )
                .await
                .unwrap();
        }
        let three = Replica::start(&vhost, &text).await;
        other.leave().await;
        eventually(DEADLINE, "the third one speaks", || async {
            three.is_leader()
        })
        .await;
        three.alerting.send(parked("f1"));
        assert_eq!(server.notices(5).await[4]["trigger"], "again");
        three.alerting.stop().await;
    })
    .await;
}

async fn purge(amqp: &Amqp, queue: &str) {
    let purged = amqp
        .channel()
        .queue_purge(queue.into(), QueuePurgeOptions::default());
    purged.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_incident_is_over_when_nothing_is_parked_any_more_or_a_person_closes_it() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        for queue in ["orders.parked", "bills.parked", "empty.parked"] {
            amqp.declare(queue, QueueType::Quorum).await;
            amqp.publish_with(queue, "a body", BasicProperties::default())
                .await;
        }
        purge(&amqp, "empty.parked").await;
        let server = Server::start([]).await;
        let text = format!(
            "quiet = \"1s\"\n{WAKE}[channels.a.webhook]\nurl = \"{}\"\n",
            server.url
        );
        let replica = Replica::start(&vhost, &text).await;
        for queue in ["orders", "bills", "empty", "missing"] {
            replica.alerting.send(parked_in(queue, "f1"));
        }
        let over = |count| {
            let server = &server;
            async move {
                let told = server.notices(4 + count).await;
                let over = told.iter().filter(|notice| notice["kind"] == "resolved");
                let over: BTreeSet<_> = over
                    .filter_map(|notice| notice["queue"].as_str().map(str::to_owned))
                    .collect();
                assert_eq!(over.len(), count, "{told:?}");
                over
            }
        };
        assert_eq!(
            over(2).await,
            ["empty", "missing"].map(str::to_owned).into()
        );
        let groups = replica.alerting.groups().into_iter();
        let bills = groups
            .filter(|group| group.queue == "bills")
            .map(|group| group.id);
        replica.alerting.resolve(bills.collect::<String>()).unwrap();
        assert!(over(3).await.contains("bills"));
        purge(&amqp, "orders.parked").await;
        assert!(over(4).await.contains("orders"));
        replica.leave().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_keep_their_order_however_long_the_state_cannot_be_kept() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        // Reports that are given back for each failure are dropped, where a return counts.
        let strict = Policy::new("^retryrmq.serve.alerts$", json!({"delivery-limit": 4}));
        vhost.put_policy("strict", &strict).await.unwrap();
        let server = Server::start([]).await;
        let text = format!("{WAKE}[channels.a.webhook]\nurl = \"{}\"\n", server.url);
        let (one, memory) = Replica::with(&vhost, &text, false).await;
        // Each in a report of its own.
        for fingerprint in ["f1", "f2", "f3"] {
            one.alerting.send(parked(fingerprint));
            memory.has_failed(2).await;
        }
        // A second return would make a copy, which comes behind all others.
        one.leave().await;
        let (two, memory) = Replica::with(&vhost, &text, false).await;
        memory.has_failed(2).await;
        two.leave().await;
        let (three, memory) = Replica::with(&vhost, &text, false).await;
        memory.has_failed(2).await;
        memory.loads.store(true, Ordering::Relaxed);
        memory.saves.store(true, Ordering::Relaxed);
        let told = server.notices(3).await;
        let told: Vec<&str> = told
            .iter()
            .filter_map(|one| one["fingerprint"].as_str())
            .collect();
        assert_eq!(told, ["f1", "f2", "f3"]);
        assert_eq!(three.alerting.counts().repeated, 0);
        three.leave().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_state_is_the_newest_one_wherever_a_reader_dies() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let client = Client::connect(vhost.url()).await.unwrap();
        let memory = BrokerStateStore::new(client.clone(), STATE);
        assert_eq!(memory.load().await, Ok(None));
        for value in ["one", "two", "three"] {
            memory.save(value.into()).await.unwrap();
        }
        let amqp = vhost.connect().await;
        eventually(DEADLINE, "one message is kept", || async {
            amqp.depth(STATE).await == Some(1)
        })
        .await;
        // More often than the broker's own delivery limit.
        for _ in 0..25 {
            assert_eq!(memory.load().await, Ok(Some(b"three".to_vec())));
        }
        // A reader dies while it holds it; another one that reads meanwhile waits for it.
        let dying = vhost.connect().await;
        let held = dying
            .channel()
            .basic_get(STATE.into(), BasicGetOptions { no_ack: false })
            .await
            .unwrap();
        assert!(held.is_some());
        let reading = tokio::spawn({
            let memory = memory.clone();
            async move { memory.load().await }
        });
        eventually(DEADLINE, "the other one reads", || async {
            amqp.consumers(STATE).await == Some(1)
        })
        .await;
        dying.close().await;
        assert_eq!(reading.await.unwrap(), Ok(Some(b"three".to_vec())));
        memory.save("four".into()).await.unwrap();
        assert_eq!(memory.load().await, Ok(Some(b"four".to_vec())));
        client.close().await;
        assert!(memory.load().await.is_err());
    })
    .await;
}
