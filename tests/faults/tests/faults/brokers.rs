//! Brokers that are killed, and what else needs a node of a test's own. The longest test of all is here, and near the first
//! by name, so that the others run beside it.

use crate::alarms::{alarm, ended_in_an_alarm};
use crate::fixture::{QUEUE, loaded, no_connection_is_left, seen, show_logs};
use crate::fullness::full_work_queue;
use crate::young_waiting_queues::killed_after_a_waiting_queue_was_made;
use retryrmq::Client;
use retryrmq_faults::disruption::Disruption;
use retryrmq_faults::ledger::LoadLedger;
use retryrmq_faults::load;
use retryrmq_faults::publisher::Publisher;
use retryrmq_faults::recorder::Recorder;
use retryrmq_harness::{Node, QueueType, on_brokers};
use std::time::Duration;

const KILLS: usize = 3;
/// A quorum queue younger than this does not survive the death of its only node.
pub(crate) const SETTLING: Duration = Duration::from_secs(4);

/// One after the other, because there is one node for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_when_the_broker_is_killed_or_raises_an_alarm() {
    on_brokers(|broker| async move {
        if !broker.is_controllable() {
            return eprintln!("skipped: {broker} was given and must not be killed");
        }
        show_logs();
        let node = broker.own_node(&[]).await;
        for kind in QueueType::ALL {
            node.connect().await.declare(&name(kind), kind).await;
            node.connect()
                .await
                .declare(&format!("waiting queue.{}", name(kind)), kind)
                .await;
            node.connect()
                .await
                .declare(&format!("alarm.{}", name(kind)), kind)
                .await;
        }
        killed_under_load(&node).await;
        killed_after_a_waiting_queue_was_made(&node).await;
        alarm(&node).await;
        ended_in_an_alarm(&node).await;
        full_work_queue(&node).await;
        no_connection_is_left(&node, "/").await;
    })
    .await;
}

fn name(kind: QueueType) -> String {
    format!("{QUEUE}.{kind}")
}

async fn killed_under_load(node: &Node) {
    let what = format!("{}, broker killed", **node);
    let client = Client::connect(node.url()).await.unwrap();
    let mut loads = Vec::new();
    for kind in QueueType::ALL {
        let (load_ledger, recorder) = (LoadLedger::new(&name(kind)), Recorder::new());
        let ledger = load_ledger.clone();
        let consumer = Client::connect(node.url()).await.unwrap();
        let running = consumer
            .consumer(name(kind))
            .dlx(true)
            .retry(load::policy())
            .on_event(recorder.listener())
            .start(loaded(&recorder, move |id| ledger.handled(id)))
            .await
            .unwrap();
        loads.push((kind, load_ledger, recorder, consumer, running));
    }
    tokio::time::sleep(SETTLING).await;
    let publishers: Vec<_> = loads
        .iter()
        .map(|(kind, load_ledger, ..)| {
            Publisher::start(client.clone(), &name(*kind), load_ledger.clone())
        })
        .collect();
    let mut disruption = Disruption::new(&what, KILLS);
    while disruption.goes_on() {
        for (_, _, recorder, ..) in &loads {
            seen("the consumer is back", || {
                recorder.count("reconnected") == recorder.count("disconnected")
            })
            .await;
        }
        disruption.pause(300..2_500).await;
        node.kill().await;
        disruption.pause(0..500).await;
        node.start().await;
    }
    disruption.pause(300..1_000).await;
    let mut published = 0;
    for publisher in publishers {
        published += publisher.stop().await;
    }
    println!(
        "{what}: {published} published over {} kills",
        disruption.made()
    );
    let amqp = node.connect().await;
    for (kind, load_ledger, recorder, consumer, running) in loads {
        load_ledger.settled(&amqp).await;
        running.close().await;
        println!("{what}, {kind}: {:?}", running.stats());
        assert!(recorder.count("reconnected") >= KILLS, "{what}, {kind}");
        load_ledger
            .balance(node, "/", &amqp, &format!("{what}, {kind}"))
            .await;
        consumer.close().await;
    }
    client.close().await;
}
