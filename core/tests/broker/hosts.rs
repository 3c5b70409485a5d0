//! Several hosts, brokers that come later, and a cluster whose nodes go one after the other.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use retryrmq::{Client, ClientOptions, ErrorKind, Message, Publish, Strategy};
use retryrmq_harness::{
    Broker, Node, QueueType, Version, Vhost, eventually, on_every_broker, on_every_broker_where,
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    time::sleep,
};

use crate::{
    connecting::{host_and_port, refused},
    logins::cut,
    stage::{Diary, PATIENCE, QUEUE, connect, policy, start},
};

/// A port on which nothing listened a moment ago.
pub(crate) async fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn any_of_several_hosts_will_do() {
    on_every_broker(|broker| async move {
        let (at, dead) = (host_and_port(&broker), free_port().await);
        for urls in [
            format!("amqp://guest:guest@127.0.0.1:{dead},{at}/%2f"),
            format!("amqp://guest:guest@no-such-host.invalid,{at}/%2f"),
            format!("amqp://guest:guest@127.0.0.1:{dead}/%2f, amqp://guest:guest@{at}/%2f"),
        ] {
            // In any order.
            for _ in 0..4 {
                let client = Client::connect(&urls).await;
                let client = client.unwrap_or_else(|error| panic!("{urls}: {error}"));
                client.close().await;
            }
        }
        // One that refuses says more than one that is away.
        let urls = format!("amqp://guest:wr0ng@127.0.0.1:{dead},{at}/%2f");
        let why = refused(
            Client::connect(&urls).await,
            ErrorKind::AuthenticationFailed,
        );
        assert!(why.contains(&at), "{why}");
    })
    .await;
}

/// What is consumed at one broker and copied to another would wait where nobody looks.
#[tokio::test]
async fn hosts_that_are_no_cluster_are_not_mixed() {
    let brokers = retryrmq_harness::brokers();
    let [one, other, ..] = &brokers[..] else {
        return eprintln!("skipped: it takes two brokers");
    };
    let vhost = one.vhost().await;
    other
        .management()
        .create_vhost(vhost.name(), None)
        .await
        .unwrap();
    let urls = format!("{}, {}", vhost.url(), other.url_of_vhost(vhost.name()));
    let mut versions = BTreeSet::new();
    for _ in 0..12 {
        let client = Client::connect(&urls).await.unwrap();
        client.health().unwrap();
        versions.insert(client.server().version.clone());
        let plan = client.consumer(QUEUE).dlx(true).plan().unwrap();
        client.apply_plan(&plan).await.unwrap();
        // It goes to where it consumes.
        let (there, elsewhere) = if client.server().version == one.version().to_string() {
            (one, other)
        } else {
            (other, one)
        };
        let depth = async |broker: &Broker| {
            let amqp = retryrmq_harness::Amqp::connect(&broker.url_of_vhost(vhost.name())).await;
            let depth = amqp.depth(QUEUE).await;
            amqp.close().await;
            depth.unwrap_or(0)
        };
        let before = (depth(there).await, depth(elsewhere).await);
        client.publish(Publish::to_queue(QUEUE, "x")).await.unwrap();
        let after = (depth(there).await, depth(elsewhere).await);
        assert_eq!(after, (before.0 + 1, before.1));
        client.close().await;
    }
    other.management().delete_vhost(vhost.name()).await.unwrap();
}

#[tokio::test]
async fn a_broker_that_is_not_there_yet_is_waited_for() {
    on_every_broker(|broker| async move {
        let (at, port) = (host_and_port(&broker), free_port().await);
        let url = format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        refused(Client::connect(&url).await, ErrorKind::Unreachable);
        let options = ClientOptions::new().wait(true);
        let connecting = tokio::spawn(async move { Client::connect_with(&url, options).await });
        sleep(Duration::from_millis(700)).await;
        assert!(!connecting.is_finished(), "there is nobody yet");
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let wires = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut broker = TcpStream::connect(&at).await.unwrap();
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut broker).await;
                });
            }
        });
        let client = connecting.await.unwrap().unwrap();
        client.health().unwrap();
        assert!(
            client
                .metrics_text()
                .contains("retryrmq_connection_up{purpose=\"consume\"} 1")
        );
        client.close().await;
        assert_eq!(client.health().unwrap_err().kind(), ErrorKind::Closed);
        assert!(
            client
                .metrics_text()
                .contains("retryrmq_connection_up{purpose=\"consume\"} 0")
        );
        wires.abort();
        // Who refuses is not waited for.
        let wrong = format!("amqp://guest:wr0ng@{}/%2f", host_and_port(&broker));
        let options = ClientOptions::new().wait(true);
        refused(
            Client::connect_with(&wrong, options).await,
            ErrorKind::AuthenticationFailed,
        );
    })
    .await;
}

/// The broker that was waited for goes again before anything is consumed, as where all of a cluster starts at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_waits_for_a_broker_waits_for_it_to_subscribe_as_well() {
    on_every_broker(|broker| async move {
        let (vhost, port) = (broker.vhost().await, free_port().await);
        let door = Door::open(port, host_and_port(&broker)).await;
        let options = ClientOptions::new().wait(true);
        let client = Client::connect_with(&behind(&vhost, port), options)
            .await
            .unwrap();
        door.shut().await;
        let subscribing = |queue: &str| {
            let consumer = client.consumer(queue).dlx(true);
            tokio::spawn(async move { consumer.messages().await })
        };
        let (one, other) = (subscribing(QUEUE), subscribing("other"));
        sleep(Duration::from_millis(700)).await;
        assert!(!one.is_finished() && !other.is_finished(), "it is away");
        // Nobody waits for this one any more, and it leaves nothing behind.
        other.abort();
        let door = Door::open(port, host_and_port(&broker)).await;
        let mut messages = one.await.unwrap().expect("the broker is back");
        client.publish(Publish::to_queue(QUEUE, "x")).await.unwrap();
        messages.next().await.unwrap().ack();
        messages.close().await;
        // Nor does it wait for longer than its client lives.
        door.shut().await;
        let third = subscribing("third");
        sleep(Duration::from_millis(100)).await;
        client.close().await;
        let ended = tokio::time::timeout(PATIENCE, third).await;
        let error = ended.expect("it ends with its client").unwrap();
        assert_eq!(error.map(drop).unwrap_err().kind(), ErrorKind::Closed);
        // Who refuses is not waited for.
        let options = ClientOptions::new().wait(true);
        let client = Client::connect_with(vhost.url(), options).await.unwrap();
        let missing = client.consumer("missing").messages().await;
        refused(missing.map(drop), ErrorKind::QueueNotFound);
        client.close().await;
    })
    .await;
}

/// What was handled, however often.
type Handled = Arc<Mutex<BTreeSet<String>>>;

/// Until each is confirmed: a queue that is looking for a leader takes nothing.
async fn publish(client: &Client, range: std::ops::Range<usize>) {
    for number in range {
        eventually(PATIENCE, &format!("{number} is confirmed"), || {
            client.publish(Publish::to_queue(QUEUE, number.to_string()))
        })
        .await;
    }
}

async fn until_handled(node: &Node, handled: &Handled, numbers: usize, when: &str) {
    eventually(PATIENCE, &format!("all are handled {when}"), || async {
        let handled = handled.lock().unwrap().len();
        if handled == numbers {
            Ok(())
        } else {
            let queues = node
                .ctl(&[
                    "list_queues",
                    "name",
                    "messages_ready",
                    "messages_unacknowledged",
                    "leader",
                ])
                .await;
            Err(format!("{handled} of {numbers}; {queues}"))
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_may_lose_any_of_its_nodes() {
    // Before 4.3 a quorum queue may be left without a leader for good by a kill (fact 57), whoever consumes it; `make chaos`
    // goes through that.
    let heals = |broker: &Broker| broker.is_controllable() && broker.version() >= Version::V4_3;
    on_every_broker_where(heals, |broker| async move {
        let nodes = [
            broker.own_node(&[]).await,
            broker.own_node(&[]).await,
            broker.own_node(&[]).await,
        ];
        nodes[1].join(&nodes[0]).await;
        nodes[2].join(&nodes[0]).await;
        let hosts: Vec<_> = nodes.iter().map(|node| host_and_port(node)).collect();
        let url = format!("amqp://guest:guest@{}/%2f?heartbeat=5", hosts.join(","));
        let amqp = nodes[0].connect().await;
        amqp.declare(QUEUE, QueueType::Quorum).await;
        let client = Client::connect(&url).await.unwrap();
        publish(&client, 0..60).await;
        let handled = Handled::default();
        let seen = Arc::clone(&handled);
        let running = client
            .consumer(QUEUE)
            .dlx(true)
            .retry(policy("fixed(1s, retries=100)"))
            .prefetch(16)
            .concurrency(8)
            .start(move |message: Message| {
                let seen = Arc::clone(&seen);
                async move {
                    sleep(Duration::from_millis(200)).await;
                    // Every third fails at first, so that copies are on their way as well.
                    let number: usize = String::from_utf8_lossy(message.body()).parse().unwrap();
                    if number.is_multiple_of(3) && message.attempt() == 1 {
                        return Err("not yet");
                    }
                    seen.lock().unwrap().insert(number.to_string());
                    Ok(())
                }
            })
            .await
            .unwrap();
        for (round, node) in nodes.iter().enumerate() {
            until_dispensable(node).await;
            take_away(node, round).await;
            let published = 60 + 30 * round;
            publish(&client, published..published + 30).await;
            let when = format!("without node {round}");
            let other = &nodes[(round + 1) % nodes.len()];
            until_handled(other, &handled, published + 30, &when).await;
            bring_back(node, round).await;
        }
        running.close().await;
        client.close().await;
        let left = nodes[0].connect().await.depth(QUEUE).await;
        assert_eq!(left, Some(0));
    })
    .await;
}

/// As whoever looks after a cluster does it: no node goes while a queue needs it (`rabbitmq-diagnostics
/// check_if_node_is_quorum_critical`).
async fn until_dispensable(node: &Node) {
    eventually(PATIENCE, "no queue needs this node", || async {
        let critical = "rabbit_quorum_queue:list_with_minimum_quorum().";
        match node.ctl(&["eval", critical]).await.trim() {
            "[]" => Ok(()),
            queues => Err(queues.to_owned()),
        }
    })
    .await;
}

/// The first is drained (`rabbitmq-upgrade drain` closes its listeners and its clients' connections); the others are killed.
async fn take_away(node: &Node, round: usize) {
    if round == 0 {
        node.ctl(&["eval", "rabbit_maintenance:drain()."]).await;
    } else {
        node.kill().await;
    }
}

async fn bring_back(node: &Node, round: usize) {
    if round == 0 {
        node.ctl(&["eval", "rabbit_maintenance:revive()."]).await;
    } else {
        node.start().await;
    }
}

/// A way to a broker that can be shut for those who come, while those who are there stay.
struct Door(tokio::task::JoinHandle<()>);

impl Door {
    async fn open(port: u16, at: String) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        Self(tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let Ok(mut broker) = TcpStream::connect(&at).await else {
                    return;
                };
                tokio::spawn(async move {
                    let _ = tokio::io::copy_bidirectional(&mut stream, &mut broker).await;
                });
            }
        }))
    }

    async fn shut(self) {
        self.0.abort();
        let _ = self.0.await;
    }
}

/// The URL of a virtual host behind a door.
fn behind(vhost: &Vhost, port: u16) -> String {
    vhost.url().replacen(
        &host_and_port(vhost.broker()),
        &format!("127.0.0.1:{port}"),
        1,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_the_broker_is_away_publishers_are_told_and_old_depths_are_not_shown() {
    on_every_broker(|broker| async move {
        let (vhost, port) = (broker.vhost().await, free_port().await);
        let door = Door::open(port, host_and_port(&broker)).await;
        let client = Client::connect(&behind(&vhost, port)).await.unwrap();
        let diary = Diary::default();
        let mut all = Vec::new();
        for queue in ["one", "three", "two"] {
            let consumer = client
                .consumer(queue)
                .dlx(true)
                .retry(policy("fixed(5s, retries=0)"));
            all.push(start(consumer, &diary, |_| Err("no".into())).await);
            client.publish(Publish::to_queue(queue, "x")).await.unwrap();
        }
        let delayed = || Publish::to_queue("one", "x").delay(Duration::from_secs(3_600));
        client.publish(delayed()).await.unwrap();
        let until_depths = async |number: usize| {
            eventually(PATIENCE, &format!("{number} depths are shown"), || async {
                let text = client.metrics_text();
                let shown: Vec<_> = text
                    .lines()
                    .filter(|line| line.starts_with("retryrmq_parked_depth{"))
                    .map(str::to_owned)
                    .collect();
                if shown.len() == number {
                    Ok(())
                } else {
                    Err(format!("{shown:?}"))
                }
            })
            .await;
        };
        until_depths(3).await;
        door.shut().await;
        cut(&vhost).await;
        until_depths(0).await;
        let published = tokio::time::timeout(PATIENCE, client.publish(delayed())).await;
        let error = published.expect("the publisher is told").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionLost, "{error}");
        // And why there is none: nobody listens there any more.
        eventually(PATIENCE, "the publisher is told why", || async {
            let error = client.publish(delayed()).await.unwrap_err().to_string();
            error.contains("refused").then_some(()).ok_or(error)
        })
        .await;
        drop(all);
        client.close().await;
    })
    .await;
}

/// Each of them pauses for up to ten seconds between two tries by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_connections_come_back_together() {
    on_every_broker(|broker| async move {
        let (vhost, port) = (broker.vhost().await, free_port().await);
        let door = Door::open(port, host_and_port(&broker)).await;
        let client = Client::connect(&behind(&vhost, port)).await.unwrap();
        let up = || {
            let text = client.metrics_text();
            let is_up = |line: &&str| {
                line.starts_with("retryrmq_connection_up{") && line.trim_end().ends_with(" 1")
            };
            text.lines().filter(is_up).count()
        };
        door.shut().await;
        cut(&vhost).await;
        eventually(PATIENCE, "both are lost", || async {
            (up() == 0).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_secs(12)).await;
        let door = Door::open(port, host_and_port(&broker)).await;
        while up() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let first = Instant::now();
        eventually(PATIENCE, "both are back", || async {
            (up() == 2).then_some(())
        })
        .await;
        // The shortest pause that either may have left after such an outage is far from sure to be above this.
        assert!(
            first.elapsed() < Duration::from_secs(2),
            "{:?}",
            first.elapsed()
        );
        client.close().await;
        door.shut().await;
    })
    .await;
}

/// The same address is another version after a reconnection, as in a rolling upgrade.
#[tokio::test]
async fn a_broker_that_cannot_serve_the_consumer_any_more_is_not_consumed_from() {
    crate::capture::start();
    let brokers = retryrmq_harness::brokers();
    let old = brokers
        .iter()
        .find(|broker| broker.version() < Version::V4_0);
    let new = brokers
        .iter()
        .find(|broker| broker.version() >= Version::V4_0);
    let (Some(old), Some(new)) = (old, new) else {
        return eprintln!("skipped: it takes a broker before 4.0 and another one");
    };
    let (vhost, port) = (old.vhost().await, free_port().await);
    let management = new.management();
    management.create_vhost(vhost.name(), None).await.unwrap();
    let door = Door::open(port, host_and_port(old)).await;
    let client = Client::connect(&behind(&vhost, port)).await.unwrap();
    let diary = Diary::default();
    let queue = format!("upgraded-{}", vhost.name());
    let consumer = client
        .consumer(&queue)
        .dlx(true)
        .strategy(Strategy::DeadLetter)
        .retry(policy("fixed(300ms, retries=30)"));
    let running = start(consumer, &diary, |_| Ok(())).await;
    door.shut().await;
    cut(&vhost).await;
    let _door = Door::open(port, host_and_port(new)).await;
    eventually(PATIENCE, "the refusal is told", || async {
        let told = crate::capture::lines().into_iter().any(|line| {
            line.contains("cannot consume")
                && line.contains(&queue)
                && line.contains("cannot hold 30 retries")
        });
        told.then_some(())
    })
    .await;
    running.close().await;
    client.close().await;
    management.delete_vhost(vhost.name()).await.unwrap();
}

/// One connection through a door.
struct Wire {
    carrying: tokio::task::JoinHandle<()>,
    silence: watch::Sender<bool>,
}

/// A way to a broker, each connection on which can be cut by itself, or left open and silent.
#[derive(Default)]
pub(crate) struct Wires(Arc<Mutex<Vec<Wire>>>);

impl Wires {
    /// Until the task is ended, after which nobody else comes.
    pub(crate) async fn lead(&self, port: u16, at: String) -> tokio::task::JoinHandle<()> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let wires = Arc::clone(&self.0);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut broker = TcpStream::connect(&at).await.unwrap();
                let (silence, mut silent) = watch::channel(false);
                let silenced = async move {
                    let _ = silent.wait_for(|silent| *silent).await.is_ok();
                    std::future::pending().await
                };
                let carrying = tokio::spawn(async move {
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut stream, &mut broker) => {}
                        () = silenced => {}
                    }
                });
                wires.lock().unwrap().push(Wire { carrying, silence });
            }
        })
    }

    pub(crate) fn cut(&self, number: usize) {
        self.0.lock().unwrap()[number].carrying.abort();
    }

    fn silence(&self, number: usize) {
        self.0.lock().unwrap()[number].silence.send_replace(true);
    }
}

/// The connections of a client, in the order in which it opens them.
const CONSUMING: usize = 0;
pub(crate) const PUBLISHING: usize = 1;

/// The nodes call their cluster differently, so that a new connection to the one is compared with an open one to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_connection_to_a_silent_node_keeps_no_other_away() {
    on_every_broker_where(Broker::is_controllable, |broker| async move {
        let nodes = [broker.own_node(&[]).await, broker.own_node(&[]).await];
        nodes[1].join(&nodes[0]).await;
        let (one, other) = (free_port().await, free_port().await);
        let wires = Wires::default();
        let first = wires.lead(one, host_and_port(&nodes[0])).await;
        // No heartbeat finds out in time.
        let url = format!("amqp://guest:guest@127.0.0.1:{one},127.0.0.1:{other}/%2f?heartbeat=300");
        let client = Client::connect(&url).await.unwrap();
        let diary = Diary::default();
        let running = start(client.consumer(QUEUE).dlx(true), &diary, |_| Ok(())).await;
        first.abort();
        let _second = Door::open(other, host_and_port(&nodes[1])).await;
        wires.silence(PUBLISHING);
        wires.cut(CONSUMING);
        let publisher = Client::connect(nodes[1].url()).await.unwrap();
        let message = Publish::to_queue(QUEUE, "x").message_id("one");
        publisher.publish(message).await.unwrap();
        diary.until("one", 1).await;
        publish(&client, 0..1).await;
        running.close().await;
        publisher.close().await;
        client.close().await;
    })
    .await;
}

/// Its first connection is lost for good while it opens its second one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_connects_as_the_broker_goes_does_not_wait_for_its_return() {
    on_every_broker(|broker| async move {
        let (vhost, port) = (broker.vhost().await, free_port().await);
        let wires = Wires::default();
        let way = wires.lead(port, host_and_port(&broker)).await;
        let url = behind(&vhost, port);
        let connecting = tokio::spawn(async move { Client::connect(&url).await });
        eventually(PATIENCE, "it opens the second", || async {
            match wires.0.lock().unwrap().len() {
                2 => Ok(()),
                opened => Err(opened.to_string()),
            }
        })
        .await;
        way.abort();
        wires.cut(CONSUMING);
        let connected = tokio::time::timeout(PATIENCE, connecting).await;
        let client = connected.expect("connecting ends").unwrap();
        // The rest is made again in the background.
        if let Ok(client) = client {
            eventually(PATIENCE, "the loss is known", || async {
                client.health().is_err()
            })
            .await;
            client.close().await;
        }
    })
    .await;
}

/// Closes the connection with this name, and no other.
async fn cut_one(node: &Node, name: &str) {
    let management = node.management();
    let connection = eventually(PATIENCE, "the connection is known", || async {
        let known = management.connections("/").await.unwrap();
        known
            .into_iter()
            .find(|known| known.client_name.as_deref() == Some(name))
    })
    .await;
    management.close_connection(&connection.name).await.unwrap();
}

/// Until somebody names a cluster, each of its nodes calls it after itself; and a name may change under a client.
#[tokio::test]
async fn the_nodes_of_one_cluster_are_one_whatever_they_call_it() {
    crate::capture::start();
    on_every_broker_where(Broker::is_controllable, |broker| async move {
        let nodes = [broker.own_node(&[]).await, broker.own_node(&[]).await];
        nodes[1].join(&nodes[0]).await;
        let management = nodes[0].management();
        management.create_user("limited", "pw", "").await.unwrap();
        let limited = ["set_permissions", "limited", "^orders.*", ".*", ".*"];
        nodes[0].ctl(&limited).await;
        for login in ["guest:guest", "limited:pw"] {
            let (user, _) = login.split_once(':').unwrap();
            let ports = [free_port().await, free_port().await];
            let first = Door::open(ports[0], host_and_port(&nodes[0])).await;
            let [one, other] = ports;
            let url = format!("amqp://{login}@127.0.0.1:{one},127.0.0.1:{other}/%2f?name={user}");
            let client = Client::connect(&url).await.unwrap();
            let diary = Diary::default();
            let running = start(client.consumer(QUEUE).dlx(true), &diary, |_| Ok(())).await;
            // From now on there is only the other node to come to, and the publishing connection stays at the first.
            first.shut().await;
            let _second = Door::open(ports[1], host_and_port(&nodes[1])).await;
            let named = format!("{user}-fleet");
            for (id, at) in [("moved", &nodes[0]), ("renamed", &nodes[1])] {
                if id == "renamed" {
                    nodes[0].ctl(&["set_cluster_name", &named]).await;
                }
                cut_one(at, &format!("{user} (consume)")).await;
                let publisher = Client::connect(nodes[0].url()).await.unwrap();
                publisher
                    .publish(Publish::to_queue(QUEUE, "x").message_id(id))
                    .await
                    .unwrap();
                publisher.close().await;
                diary.until(id, 1).await;
            }
            let warned: Vec<_> = crate::capture::lines()
                .into_iter()
                .filter(|line| {
                    line.contains("give it one name") && line.contains(&format!("name={named}"))
                })
                .collect();
            assert_eq!(warned.is_empty(), user == "guest", "{warned:?}");
            running.close().await;
            client.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_client_does_goes_on_at_another_host() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let dead = free_port().await;
        let url = vhost.url().replacen('@', &format!("@127.0.0.1:{dead},"), 1);
        let client = Client::connect(&url).await.unwrap();
        let diary = Diary::default();
        let running = start(client.consumer(QUEUE).dlx(true), &diary, |_| Ok(())).await;
        cut(&vhost).await;
        diary.event("reconnected").await;
        let publisher = connect(&vhost).await;
        publisher
            .publish(Publish::to_queue(QUEUE, "x").message_id("one"))
            .await
            .unwrap();
        diary.until("one", 1).await;
        running.close().await;
    })
    .await;
}
