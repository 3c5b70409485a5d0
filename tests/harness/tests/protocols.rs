//! Random messages are what their class says.

use futures_util::StreamExt;
use retryrmq_harness::{
    Amqp10, Broker, Class, QueueType, RandomMessages, Version, Vhost, eventually, on_brokers_where,
    random_messages::token_of,
};
use std::collections::BTreeSet;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(120);
const COUNT: u32 = 400;

fn speaks_1_0(broker: &Broker) -> bool {
    broker.version() >= Version::V4_0
}

async fn publish(vhost: &Vhost, class: Class) {
    let amqp = vhost.connect().await;
    amqp.declare("work", QueueType::Quorum).await;
    let random = RandomMessages { class, seed: 5 };
    let all: Vec<_> = (0..COUNT).map(|number| random.amqp10(number)).collect();
    let mut publisher = Amqp10::connect(vhost).await;
    let published = publisher.try_publish_all("/queues/work", &all).await;
    published.unwrap_or_else(|refused| panic!("{class:?}: {refused}"));
    assert_eq!(amqp.depth("work").await, Some(COUNT));
}

#[tokio::test]
async fn text_can_be_read_by_every_client() {
    on_brokers_where(speaks_1_0, |broker| async move {
        let vhost = broker.vhost().await;
        publish(&vhost, Class::Text).await;
        let all = vhost.connect().await.drain("work").await;
        // Some have a higher priority than others.
        let there: BTreeSet<_> = all.iter().filter_map(|one| token_of(&one.body)).collect();
        assert!(there.into_iter().eq(0..COUNT));
    })
    .await;
}

#[tokio::test]
async fn anything_is_accepted_and_not_all_of_it_can_be_read() {
    on_brokers_where(speaks_1_0, |broker| async move {
        let vhost = broker.vhost().await;
        publish(&vhost, Class::Anything).await;
        let amqp = vhost.connect().await;
        let mut consumer = amqp.consume("work", 0).await;
        let mut seen = 0;
        while let Some(Ok(_)) = consumer.next().await {
            seen += 1;
            assert!(seen < COUNT, "all can be read");
        }
        eventually(SOON, "all are in the queue again", || async {
            vhost.connect().await.depth("work").await == Some(COUNT)
        })
        .await;
    })
    .await;
}
