//! Random messages of publishers of AMQP 1.0, MQTT 5 and STOMP, with ordinary ones of AMQP 0-9-1 between them, go through everything that
//! the library and the service do with a message. None may be lost, and none may block another.
//!
//! `make test` sends some hundred on each way; `make messages` 100 000 in all (`RETRYRMQ_STRANGE_MESSAGES`), and prints its books.
//! `RETRYRMQ_STRANGE_SEED` makes others, and `RETRYRMQ_STRANGE_RARE`
//! sets that one in so many is what the broker cannot give to everybody.
#![allow(missing_docs)]

#[allow(dead_code, reason = "the tests of the service use the rest")]
#[path = "../serve/fixture.rs"]
mod fixture;
mod ledger;
mod publishers;
mod routes;
#[allow(dead_code, reason = "the tests of the store use the rest")]
#[path = "../redis/server.rs"]
mod server;

use retryrmq::Strategy;
use retryrmq_harness::{Broker, Class, Node, QueueType, Version, Vhost, on_brokers_where};

use crate::{
    fixture::{Replica, policy},
    server::{KINDS, Servers, available},
};

/// What else is sent to consumers that have this library, and that it is one message in so many. They put aside what the broker cannot give
/// to them, which costs them connections.
pub(crate) fn rare(broker: &Broker) -> (Class, u32) {
    let given = std::env::var("RETRYRMQ_STRANGE_RARE").ok();
    let given = given.map(|one_in| one_in.parse().expect("one in so many is a number"));
    // Among many of these, RabbitMQ 4.0 has others that it cannot give to a client of AMQP 1.0.
    let usual = if broker.version() >= Version::V4_3 {
        1
    } else {
        20
    };
    (Class::Movable, given.unwrap_or(usual))
}

/// How many ways there are, if every one of them is possible.
const WAYS: u32 = 10;

/// How many messages on each way.
fn count() -> u32 {
    let given = std::env::var("RETRYRMQ_STRANGE_MESSAGES").ok();
    given.map_or(120, |count| {
        let all: u32 = count.parse().expect("a number of messages");
        all.div_ceil(WAYS)
    })
}

fn has_protocols(broker: &Broker) -> bool {
    broker.version() >= Version::V4_0 && broker.is_controllable()
}

async fn node(broker: &Broker) -> Node {
    let plugins = "plugins = rabbitmq_mqtt rabbitmq_stomp";
    broker.own_node(&[plugins]).await
}

async fn serve(vhost: &Vhost, section: &str) -> (Replica, tempfile::NamedTempFile) {
    let file = policy(&format!(
        "[defaults]\nretry = \"list(50ms, 50ms)\"\n[delayed.orders]\nto = \"shop\"\n{section}"
    ));
    let replica = Replica::start(vhost, Some(file.path())).await;
    (replica, file)
}

#[tokio::test]
async fn the_library_loses_no_message_of_any_protocol() {
    on_brokers_where(has_protocols, |broker| async move {
        let node = node(&broker).await;
        routes::long_content_type_of_mqtt(&node.vhost().await).await;
        for kind in QueueType::ALL {
            let way = routes::LibraryConsumers {
                kind,
                strategy: Strategy::RetryQueues,
            };
            way.run(&node.vhost().await, count()).await;
            let way = routes::LibraryConsumers {
                kind,
                strategy: Strategy::DeadLetter,
            };
            way.run(&node.vhost().await, count()).await;
        }
        if broker.version() >= Version::V4_3 {
            let way = routes::LibraryConsumers {
                kind: QueueType::Quorum,
                strategy: Strategy::Native,
            };
            way.run(&node.vhost().await, count()).await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_service_loses_no_message_of_any_protocol() {
    on_brokers_where(has_protocols, |broker| async move {
        let node = node(&broker).await;
        let vhost = node.vhost().await;
        let (replica, _file) = serve(&vhost, "").await;
        let way = routes::LibraryConsumers {
            kind: QueueType::Quorum,
            strategy: Strategy::Service,
        };
        way.run(&vhost, count()).await;
        routes::rejected(&vhost, QueueType::Classic, count()).await;
        routes::delayed(&vhost, count()).await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn the_store_in_redis_loses_no_message_of_any_protocol() {
    on_brokers_where(
        |broker| has_protocols(broker) && available(),
        |broker| async move {
            let servers = Servers::new(KINDS[0]);
            servers.start(0, &[]);
            let node = node(&broker).await;
            let vhost = node.vhost().await;
            let section = format!("[store.redis]\naddresses = [\"{}\"]\n", servers.address(0));
            let (replica, _file) = serve(&vhost, &section).await;
            routes::rejected(&vhost, QueueType::Quorum, count()).await;
            routes::delayed(&vhost, count()).await;
            assert!(replica.end().await.success());
        },
    )
    .await;
}
