//! Several hosts, and a cluster whose nodes go one after the other.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use retryrmq::{Client, ErrorKind, Message, Publish};
use retryrmq_harness::{
    Broker, Node, QueueType, Version, eventually, free_port, on_brokers, on_brokers_where,
};
use tokio::time::sleep;

use crate::{
    connecting::{host_and_port, refused},
    fixture::{DEADLINE, Observations, QUEUE, connect, policy, start},
    logins::cut,
    network::{CONSUMING, CutProxies, GatedProxy, PUBLISHING},
};

#[tokio::test]
async fn any_of_several_hosts_will_do() {
    on_brokers(|broker| async move {
        let (at, dead) = (host_and_port(&broker), free_port());
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

/// What was handled, however often.
type Handled = Arc<Mutex<BTreeSet<String>>>;

/// Until each is confirmed: a queue that is looking for a leader takes nothing.
async fn publish(client: &Client, range: std::ops::Range<usize>) {
    for number in range {
        eventually(DEADLINE, &format!("{number} is confirmed"), || {
            client.publish(Publish::to_queue(QUEUE, number.to_string()))
        })
        .await;
    }
}

async fn until_handled(node: &Node, handled: &Handled, numbers: usize, when: &str) {
    eventually(DEADLINE, &format!("all are handled {when}"), || async {
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
    on_brokers_where(heals, |broker| async move {
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
    eventually(DEADLINE, "no queue needs this node", || async {
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

/// The nodes call their cluster differently, so that a new connection to the one is compared with an open one to the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_connection_to_a_silent_node_keeps_no_other_away() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let nodes = [broker.own_node(&[]).await, broker.own_node(&[]).await];
        nodes[1].join(&nodes[0]).await;
        let (one, other) = (free_port(), free_port());
        let proxies = CutProxies::default();
        let first = proxies.lead(one, host_and_port(&nodes[0])).await;
        // No heartbeat finds out in time.
        let url = format!("amqp://guest:guest@127.0.0.1:{one},127.0.0.1:{other}/%2f?heartbeat=300");
        let client = Client::connect(&url).await.unwrap();
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
        first.abort();
        let _second = GatedProxy::open(other, host_and_port(&nodes[1])).await;
        proxies.silence(PUBLISHING);
        proxies.cut(CONSUMING);
        let publisher = Client::connect(nodes[1].url()).await.unwrap();
        let message = Publish::to_queue(QUEUE, "x").message_id("one");
        publisher.publish(message).await.unwrap();
        observations.until("one", 1).await;
        publish(&client, 0..1).await;
        running.close().await;
        publisher.close().await;
        client.close().await;
    })
    .await;
}

/// Closes the connection with this name, and no other.
async fn cut_one(node: &Node, name: &str) {
    let management = node.management();
    // The list may still have one that is gone.
    eventually(DEADLINE, "the connection is known, and closed", || async {
        let known = management.connections("/").await.unwrap();
        let connection = known
            .into_iter()
            .find(|known| known.client_name.as_deref() == Some(name))
            .ok_or("it is not known")?;
        let closed = management.close_connection(&connection.name).await;
        closed.map_err(|error| error.to_string())
    })
    .await;
}

/// Until somebody names a cluster, each of its nodes calls it after itself; and a name may change under a client.
#[tokio::test]
async fn the_nodes_of_one_cluster_are_one_whatever_they_call_it() {
    crate::log_capture::start();
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let nodes = [broker.own_node(&[]).await, broker.own_node(&[]).await];
        nodes[1].join(&nodes[0]).await;
        let management = nodes[0].management();
        management.create_user("limited", "pw", "").await.unwrap();
        let limited = ["set_permissions", "limited", "^orders.*", ".*", ".*"];
        nodes[0].ctl(&limited).await;
        for login in ["guest:guest", "limited:pw"] {
            let (user, _) = login.split_once(':').unwrap();
            let ports = [free_port(), free_port()];
            let first = GatedProxy::open(ports[0], host_and_port(&nodes[0])).await;
            let [one, other] = ports;
            let url = format!("amqp://{login}@127.0.0.1:{one},127.0.0.1:{other}/%2f?name={user}");
            let client = Client::connect(&url).await.unwrap();
            let observations = Observations::default();
            let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
            // From now on there is only the other node to come to, and the publishing connection stays at the first.
            first.shut().await;
            let _second = GatedProxy::open(ports[1], host_and_port(&nodes[1])).await;
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
                observations.until(id, 1).await;
            }
            let warned: Vec<_> = crate::log_capture::lines()
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
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let dead = free_port();
        let url = vhost.url().replacen('@', &format!("@127.0.0.1:{dead},"), 1);
        let client = Client::connect(&url).await.unwrap();
        let observations = Observations::default();
        let running = start(client.consumer(QUEUE).dlx(true), &observations, |_| Ok(())).await;
        cut(&vhost).await;
        observations.event("reconnected").await;
        let publisher = connect(&vhost).await;
        publisher
            .publish(Publish::to_queue(QUEUE, "x").message_id("one"))
            .await
            .unwrap();
        observations.until("one", 1).await;
        running.close().await;
    })
    .await;
}
