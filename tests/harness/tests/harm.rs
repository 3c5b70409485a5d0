//! Brokers that are killed and networks that break, and tests that fail.

use retryrmq_harness::lapin::options::QueueDeclareOptions;
use retryrmq_harness::lapin::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    Amqp, Broker, CutProxy, Direction, Ledger, Node, QueueType, Version, brokers, eventually,
    on_brokers, on_brokers_where, on_every_broker,
};
use serde_json::json;
use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::process::Command;
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_node_of_ones_own_is_killed_and_comes_back_with_its_data_while_the_others_notice_nothing()
{
    on_every_broker(|broker| async move {
        if !broker.is_controllable() {
            return eprintln!("skipped: {broker} was given and must not be killed");
        }
        let bystander = broker.connect().await;
        let node = broker.own_node(&[]).await;
        let amqp = node.connect().await;
        amqp.declare("orders", QueueType::Classic).await;
        amqp.publish("orders", "1").await;
        // Before Khepri, which 4.3 has, a new queue is on disk only some time after it was declared.
        if node.version() < Version::V4_3 {
            node.ctl(&["eval", "ok = mnesia:sync_log()."]).await;
        }
        node.kill().await;
        eventually(SOON, "the client notices", || async {
            !amqp.connection().status().connected()
        })
        .await;
        assert!(Amqp::try_connect(node.url()).await.is_err());
        node.start().await;
        let messages = node.connect().await.drain("orders").await;
        assert_eq!(
            messages
                .iter()
                .map(|message| message.text())
                .collect::<Vec<_>>(),
            ["1"]
        );
        assert!(bystander.connection().status().connected());
    })
    .await;
}

#[tokio::test]
async fn a_node_can_be_given_settings() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return eprintln!("skipped: {broker} was given and has the settings it has");
        }
        let node = broker.own_node(&["channel_max = 7"]).await;
        assert_eq!(
            node.connect()
                .await
                .connection()
                .configuration()
                .channel_max(),
            7
        );
    })
    .await;
}

/// A plugin that no other test wants, so that no other test is given the node between two lives.
const PLUGIN: &str = "plugins = rabbitmq_event_exchange";

#[tokio::test]
async fn a_node_that_was_released_is_as_new() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let mut processes = HashSet::new();
        for settings in [&[PLUGIN, "channel_max = 7"][..], &[PLUGIN], &[PLUGIN]] {
            let node = broker.own_node(settings).await;
            processes.insert(node.ctl(&["eval", "os:getpid()."]).await);
            let channels = if settings.len() > 1 { 7 } else { 2047 };
            is_as_new(&node, channels).await;
            leave_traces(&node).await;
        }
        if !is_docker() {
            assert_eq!(processes.len(), 1, "one process had all lives");
        }
    })
    .await;
}

fn is_docker() -> bool {
    let brokers = std::env::var("RETRYRMQ_TEST_BROKERS").unwrap_or_default();
    let control = brokers.split('|').nth(3).unwrap_or_default();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{control} available")]);
    command.output().expect("sh is there").stdout == b"docker\n"
}

async fn is_as_new(node: &Node, channels: u16) {
    let management = node.management();
    for (path, names) in [
        ("vhosts", "/"),
        ("users", "guest"),
        ("queues", ""),
        ("policies", ""),
    ] {
        let all = management.get(path.into()).await.unwrap();
        let all = all.as_array().unwrap().iter();
        let all: Vec<_> = all.map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(all.join(" "), names, "{path}");
    }
    let tick = "application:get_env(rabbit, channel_tick_interval).";
    assert_eq!(node.ctl(&["eval", tick]).await.trim(), "{ok,60000}");
    let amqp = node.connect().await;
    let configuration = amqp.connection().configuration();
    assert_eq!(configuration.channel_max(), channels);
    for kind in QueueType::ALL {
        let queue = kind.to_string();
        amqp.declare(&queue, kind).await;
        assert_eq!(amqp.depth(&queue).await, Some(0), "{kind}");
        // Not before the alarm is off.
        amqp.publish(&queue, "1").await;
        assert_eq!(amqp.take(&queue).await.unwrap().text(), "1");
    }
    amqp.close().await;
}

async fn leave_traces(node: &Node) {
    let management = node.management();
    let policy = json!({"pattern": "", "definition": {"max-length": 1}});
    for (path, body) in [
        ("vhosts/old", json!({"default_queue_type": "quorum"})),
        (
            "users/old",
            json!({"password": "pw", "tags": "administrator"}),
        ),
        (
            "permissions/old/old",
            json!({"configure": "", "write": "", "read": ""}),
        ),
        ("policies/%2f/old", policy),
    ] {
        management.put(path.into(), body).await.unwrap();
    }
    let amqp = node.connect().await;
    for kind in QueueType::ALL {
        amqp.publish(&kind.to_string(), "old").await;
    }
    let mut stream = FieldTable::default();
    stream.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("stream".into()),
    );
    let durable = QueueDeclareOptions::durable();
    let declared = amqp
        .channel()
        .queue_declare("stream".into(), durable, stream);
    declared.await.unwrap();
    let set = "application:set_env(rabbit, channel_tick_interval, 200).";
    node.ctl(&["eval", set]).await;
    node.raise_memory_alarm().await;
}

/// Members of a cluster look for one that is gone, and make a new node of its name theirs.
#[tokio::test]
async fn a_new_node_is_of_no_cluster_that_had_its_number() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let (gone, left) = tokio::join!(broker.own_node(&[]), broker.own_node(&[]));
        left.join(&gone).await;
        drop(gone);
        let new = broker.own_node(&[]).await;
        // A node that comes back to its cluster is there after a second.
        for _ in 0..10 {
            let nodes = new.ctl(&["eval", "length(nodes())."]).await;
            assert_eq!(nodes.trim(), "0", "nodes that the new one knows");
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        drop(left);
    })
    .await;
}

#[tokio::test]
async fn nodes_form_a_cluster_and_a_quorum_queue_survives_one_of_them() {
    let newest = brokers()
        .into_iter()
        .filter(|broker| broker.is_controllable())
        .max_by_key(|broker| broker.version());
    let Some(broker) = newest else {
        return eprintln!("skipped: no broker here can be controlled");
    };
    let (one, two, three) = tokio::join!(
        broker.own_node(&[]),
        broker.own_node(&[]),
        broker.own_node(&[])
    );
    two.join(&one).await;
    three.join(&one).await;
    let amqp = one.connect().await;
    amqp.declare("orders", QueueType::Quorum).await;
    eventually(SOON, "three nodes hold the queue", || async {
        let queue = one
            .management()
            .queue("/", "orders")
            .await
            .unwrap()
            .unwrap();
        queue.raw["members"]
            .as_array()
            .is_some_and(|members| members.len() == 3)
    })
    .await;
    amqp.publish("orders", "1").await;
    one.kill().await;
    let amqp = two.connect().await;
    eventually(SOON, "the message is on another node", || async {
        amqp.depth("orders").await == Some(1)
    })
    .await;
}

#[tokio::test]
async fn a_cut_connection_ends_and_a_new_one_is_let_through() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let proxy = CutProxy::to(vhost.url()).await;
        for harm in [CutProxy::cut, CutProxy::close] {
            let amqp = Amqp::connect(proxy.url()).await;
            assert_eq!(proxy.open(), 1);
            harm(&proxy);
            eventually(SOON, "the client notices", || async {
                !amqp.connection().status().connected()
            })
            .await;
            eventually(SOON, "the proxy has let go", || async { proxy.open() == 0 }).await;
        }
        proxy.refuse();
        assert!(Amqp::try_connect(proxy.url()).await.is_err());
        proxy.resume();
        Amqp::connect(proxy.url()).await;
        assert_eq!(proxy.accepted(), 4);
    })
    .await;
}

#[tokio::test]
async fn a_connection_can_be_cut_within_a_frame() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let direct = vhost.connect().await;
        direct.declare("orders", QueueType::Classic).await;
        let proxy = CutProxy::to(vhost.url()).await;
        for direction in [Direction::ToBroker, Direction::ToClient] {
            let amqp = Amqp::connect(proxy.url()).await;
            amqp.publish("orders", "before").await;
            // A frame's header has seven bytes, and no frame of these is as short as nine.
            proxy.cut_after(direction, 9);
            let asked = amqp.connection().create_channel().await;
            assert!(asked.is_err(), "{direction:?}");
            eventually(SOON, "the proxy has let go", || async { proxy.open() == 0 }).await;
        }
        assert_eq!(direct.depth("orders").await, Some(2));
        Amqp::connect(proxy.url()).await;
    })
    .await;
}

#[tokio::test]
async fn a_proxy_to_several_nodes_takes_the_next_that_is_there() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let nobody = "amqp://127.0.0.1:1/";
        let proxy = CutProxy::to_any(&[vhost.url(), nobody]).await;
        for _ in 0..3 {
            Amqp::connect(proxy.url()).await.close().await;
        }
        assert_eq!(proxy.accepted(), 3);
    })
    .await;
}

#[tokio::test]
async fn what_a_stall_held_back_arrives_when_it_ends() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let direct = vhost.connect().await;
        direct.declare("orders", QueueType::Classic).await;
        let proxy = CutProxy::to(vhost.url()).await;
        let amqp = Amqp::connect(proxy.url()).await;
        for (stalled, arrived) in [
            (Direction::ToBroker, 0),
            (Direction::ToClient, 1),
            (Direction::Both, 0),
        ] {
            proxy.stall(stalled);
            let publish = amqp.publish("orders", "1");
            tokio::pin!(publish);
            // Long enough for a publish and its confirm to go through many times over, were they let.
            let looks = async {
                eventually(SOON, "the broker has what gets through", || async {
                    direct.depth("orders").await == Some(arrived)
                })
                .await;
                for _ in 0..20 {
                    assert_eq!(direct.depth("orders").await, Some(arrived), "{stalled:?}");
                }
            };
            tokio::select! {
                () = publish.as_mut() => panic!("a confirm came through a stall {stalled:?}"),
                () = looks => {}
            }
            assert!(amqp.connection().status().connected());
            proxy.resume();
            publish.await;
            assert_eq!(direct.drain("orders").await.len(), 1);
        }
    })
    .await;
}

#[tokio::test]
async fn a_delayed_answer_comes_no_sooner_than_the_delay() {
    on_brokers(|broker| async move {
        let delay = Duration::from_millis(300);
        let vhost = broker.vhost().await;
        let proxy = CutProxy::to(vhost.url()).await;
        let amqp = Amqp::connect(proxy.url()).await;
        amqp.declare("orders", QueueType::Classic).await;
        proxy.delay(Direction::ToClient, delay);
        let sent = Instant::now();
        amqp.publish("orders", "1").await;
        assert!(sent.elapsed() >= delay);
    })
    .await;
}

#[tokio::test]
async fn the_books_balance_over_a_cut() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let direct = vhost.connect().await;
        direct.declare("orders", QueueType::Quorum).await;
        let ledger = Ledger::new();
        for id in 0..20 {
            direct.publish("orders", id.to_string()).await;
            ledger.published(id.to_string());
        }
        let proxy = CutProxy::to(vhost.url()).await;
        let amqp = Amqp::connect(proxy.url()).await;
        for _ in 0..5 {
            ledger.handled(amqp.take("orders").await.unwrap().text());
        }
        proxy.cut();
        for message in direct.drain("orders").await {
            ledger.queued(message.text());
        }
        assert_eq!(
            ledger.assert_nothing_lost(&format!("{broker}, cut")).queued,
            15
        );
    })
    .await;
}

#[tokio::test]
async fn a_failure_names_the_broker_it_happened_on() {
    let oldest: Version = brokers()
        .iter()
        .map(|broker| broker.version())
        .min()
        .unwrap();
    let run =
        on_every_broker(|broker| async move { assert!(broker.version() > oldest, "too old") });
    let panic = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(run))
        .await
        .unwrap_err();
    let says = panic.downcast_ref::<String>().unwrap();
    assert_eq!(says, &format!("RabbitMQ {oldest}: too old"));
}
