//! What tells the nodes of one cluster from brokers that have nothing to do with each other.

use lapin::{options::QueueDeclareOptions, types::FieldTable};
use retryrmq_facts::*;
use retryrmq_harness::{Amqp, Broker, eventually, on_brokers_where};

/// Fact 60. Two nodes of a cluster that nobody named, and a third that stands alone.
#[tokio::test]
async fn an_exclusive_queue_is_known_in_its_cluster_and_virtual_host_only() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let (one, other) = tokio::join!(broker.own_node(&[]), broker.own_node(&[]));
        other.join(&one).await;
        let (at_one, at_other) = (one.connect().await, other.connect().await);
        let names = [name(&one).await, name(&other).await];
        assert_ne!(names[0], names[1], "each node is called after itself");

        let mark = mark(&at_one).await;
        // A node may hear of it a moment later.
        eventually(DEADLINE, "RESOURCE_LOCKED", || async {
            let said = look(&at_other, &mark).await;
            assert!([404, 405].contains(&said), "{said}");
            said == 405
        })
        .await;
        assert_eq!(look(&one.connect().await, &mark).await, 405);
        assert_eq!(look(&one.vhost().await.connect().await, &mark).await, 404);
        assert_eq!(look(&broker.connect().await, &mark).await, 404);

        one.ctl(&["set_cluster_name", "fleet"]).await;
        assert_eq!(
            [name(&one).await, name(&other).await],
            ["fleet".to_owned(), "fleet".to_owned()]
        );
    })
    .await;
}

/// What the node says that its cluster is called, to whoever connects.
async fn name(broker: &Broker) -> String {
    let overview = broker.management().overview().await.unwrap();
    overview["cluster_name"].as_str().unwrap().to_owned()
}

async fn mark(amqp: &Amqp) -> String {
    let options = QueueDeclareOptions {
        exclusive: true,
        ..QueueDeclareOptions::default()
    };
    let declared = amqp
        .channel()
        .queue_declare("".into(), options, FieldTable::default());
    declared.await.unwrap().name().to_string()
}

/// The code with which the look is refused.
async fn look(amqp: &Amqp, mark: &str) -> u16 {
    let options = QueueDeclareOptions {
        passive: true,
        ..QueueDeclareOptions::default()
    };
    let channel = amqp.new_channel().await;
    let looked = channel.queue_declare(mark.into(), options, FieldTable::default());
    code(looked.await)
}
