//! What is left after a broker was killed.

use lapin::options::BasicRejectOptions;
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, Broker, Node, QueueType, Version, Vhost, on_brokers_where};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How old a quorum queue has to be before the core trusts it with the only copy of a message.
const SAFE_AGE: Duration = Duration::from_secs(2);
/// An age at which all of five such queues were empty after a kill; at one second none was.
const YOUNG: Duration = Duration::from_millis(600);
/// Longer than a restart takes, so that the delay is survived and not merely outlived.
const DELAY: Duration = Duration::from_secs(12);

/// Facts 9, 10, 41, 42 and 87, in one life of a node because a restart is what takes time.
#[tokio::test]
async fn what_a_killed_broker_remembers() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        let vhost = node.vhost().await;
        let amqp = vhost.connect().await;
        sizes_come_as_expected(&node).await;
        fill_held(&amqp).await;
        let consumer = vhost.connect().await;
        hold(consumer.channel(), "held-quorum").await;
        hold(consumer.channel(), "held-classic").await;
        fill_old(&amqp).await;
        let young = kill_with_young_queues(&node, &vhost).await;
        young_quorum_queues_are_empty_and_all_others_are_not(&vhost, &young).await;
        // Before the last kill: what is due before a kill may be lost on its way, because nobody confirms it.
        let delays_since = fill_delays(&vhost.connect().await).await;
        old_queues_are_safe_right_after_a_restart(&node, &vhost).await;
        bindings_to_markers_are_kept_and_go_with_their_queues(&vhost.connect().await).await;
        classic_queues_say_redelivered_of_everything(&vhost).await;
        delays_are_kept(&vhost, delays_since).await;
    })
    .await;
}

/// Fact 42.
async fn sizes_come_as_expected(node: &Node) {
    let size = node
        .ctl(&["eval", "application:get_env(rabbit, max_message_size)."])
        .await;
    let mebibytes = if node.version() < Version::V4_0 {
        128
    } else {
        16
    };
    assert_eq!(size.trim(), format!("{{ok,{}}}", mebibytes * 1024 * 1024));
}

async fn fill_old(amqp: &Amqp) {
    for queue_type in QueueType::ALL {
        amqp.declare(&format!("old-{queue_type}"), queue_type).await;
    }
    sleep(SAFE_AGE).await;
    for queue_type in QueueType::ALL {
        amqp.publish(&format!("old-{queue_type}"), "").await;
        mark(amqp, &format!("old-{queue_type}")).await;
    }
    sleep(SAFE_AGE).await; // Mnesia writes it to disk later
}

/// Fact 87.
async fn bindings_to_markers_are_kept_and_go_with_their_queues(amqp: &Amqp) {
    for queue_type in QueueType::ALL {
        let queue = format!("old-{queue_type}");
        assert_eq!(
            code(delete_unbound_marker(amqp, &queue).await),
            406,
            "{queue}"
        );
        amqp.delete(&queue).await;
        delete_unbound_marker(amqp, &queue).await.unwrap();
    }
}

/// Kills and starts the node with a message in queues that are no older than [`YOUNG`], and returns the end of their
/// names. On a busy machine the signal may come too late to tell anything; then there is another try.
async fn kill_with_young_queues(node: &Node, vhost: &Vhost) -> String {
    for round in 0..15 {
        let amqp = vhost.connect().await;
        let declared = Instant::now();
        for queue_type in QueueType::ALL {
            let young = format!("{queue_type}-{round}");
            amqp.declare(&young, queue_type).await;
            amqp.publish(&young, "").await;
        }
        let dies = async {
            while amqp.connection().status().connected() {
                sleep(Duration::from_millis(5)).await;
            }
            declared.elapsed()
        };
        // The script that kills it has more to do.
        let ((), age) = tokio::join!(node.kill(), dies);
        node.start().await;
        if age < YOUNG {
            return round.to_string();
        }
    }
    panic!("this machine is too slow to kill a broker within {YOUNG:?}");
}

/// Facts 9 and 87: what makes a queue old is not forgotten with its broker.
async fn old_queues_are_safe_right_after_a_restart(node: &Node, vhost: &Vhost) {
    let amqp = vhost.connect().await;
    for queue_type in QueueType::ALL {
        amqp.publish(&format!("old-{queue_type}"), "second").await;
    }
    node.kill().await;
    node.start().await;
    let amqp = vhost.connect().await;
    for queue_type in QueueType::ALL {
        let queue = format!("old-{queue_type}");
        let messages = [
            hold(amqp.channel(), &queue).await,
            hold(amqp.channel(), &queue).await,
        ];
        assert!(
            messages.iter().any(|message| message.data == b"second"),
            "{queue}"
        );
    }
}

/// Fact 9.
async fn young_quorum_queues_are_empty_and_all_others_are_not(vhost: &Vhost, young: &str) {
    let amqp = vhost.connect().await;
    for queue in ["old-classic", "old-quorum"] {
        hold(amqp.channel(), queue).await;
    }
    // Before Khepri, which 4.3 has, the declaration itself may not be on disk yet.
    let classic = format!("classic-{young}");
    if vhost.broker().version() >= Version::V4_3 || amqp.depth(&classic).await.is_some() {
        hold(amqp.channel(), &classic).await;
    }
    // Such a queue can come back without a leader, and then does not answer: a channel of its own.
    let channel = amqp.new_channel().await;
    let message = timeout(
        Duration::from_secs(3),
        peek(&channel, &format!("quorum-{young}")),
    )
    .await;
    assert!(
        !matches!(message, Ok(Some(_))),
        "a confirmed message has survived in a queue that was milliseconds old"
    );
}

async fn fill_held(amqp: &Amqp) {
    for queue_type in QueueType::ALL {
        let queue = format!("held-{queue_type}");
        amqp.declare(&queue, queue_type).await;
        for _ in 0..2 {
            amqp.publish(&queue, "").await;
        }
    }
}

/// Fact 41. The first of the two messages was with a consumer at the kill, the second never was.
async fn classic_queues_say_redelivered_of_everything(vhost: &Vhost) {
    let amqp = vhost.connect().await;
    for (queue, second) in [("held-classic", true), ("held-quorum", false)] {
        let first = hold(amqp.channel(), queue).await;
        assert!(first.redelivered, "{queue}: the first");
        assert_eq!(
            hold(amqp.channel(), queue).await.redelivered,
            second,
            "{queue}: the second"
        );
        let counted = (queue == "held-quorum").then_some(1);
        assert_eq!(
            count(&first.properties, "x-delivery-count"),
            counted,
            "the end of a broker counts as a crash"
        );
    }
}

async fn fill_delays(amqp: &Amqp) -> Instant {
    let milliseconds = i64::try_from(DELAY.as_millis()).unwrap();
    amqp.declare("work", QueueType::Classic).await;
    for queue_type in QueueType::ALL {
        amqp.declare_with(
            &format!("wait-{queue_type}"),
            queue_type,
            wait_queue(queue_type, milliseconds, "work"),
        )
        .await;
    }
    let delayed = [
        ("x-delayed-retry-type", string("failed")),
        ("x-delayed-retry-min", int(milliseconds)),
        ("x-delayed-retry-max", int(milliseconds)),
    ];
    amqp.declare_with("native", QueueType::Quorum, table(delayed))
        .await;
    sleep(SAFE_AGE).await;
    let start = Instant::now();
    amqp.publish("wait-classic", "classic").await;
    amqp.publish("wait-quorum", "quorum").await;
    amqp.publish("native", "native").await;
    hold(amqp.channel(), "native")
        .await
        .reject(BasicRejectOptions { requeue: true })
        .await
        .unwrap();
    start
}

/// Fact 10.
async fn delays_are_kept(vhost: &Vhost, since: Instant) {
    let amqp = vhost.connect().await;
    let early = amqp.depth("work").await.unwrap();
    assert!(
        since.elapsed() > DELAY || early == 0,
        "they are due at once after a restart"
    );
    let mut seen = vec![
        hold(amqp.channel(), "work").await.data.clone(),
        hold(amqp.channel(), "work").await.data.clone(),
    ];
    seen.sort();
    assert_eq!(seen, [b"classic".to_vec(), b"quorum".to_vec()]);
    assert!(since.elapsed() >= DELAY, "they are due too early");
    if vhost.broker().version() >= Version::V4_3 {
        let native = hold(amqp.channel(), "native").await;
        assert_eq!(count(&native.properties, "x-delivery-count"), Some(1));
    }
}
