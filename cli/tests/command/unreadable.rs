//! `retryrmq unreadable`: messages that RabbitMQ cannot deliver over AMQP 0-9-1.

use retryrmq_harness::{
    Amqp10, Broker, Message10, QueueType, Version, amqp10::uuid, eventually, on_brokers_where,
};

use crate::fixture::{DEADLINE, Fixture, QUEUE};

fn bomb(id: &str) -> Message10 {
    Message10::new("the body")
        .id(id)
        .property("tenant", uuid([7; 16]))
}

fn stores_what_amqp_0_9_1_cannot_carry(broker: &Broker) -> bool {
    broker.version() >= Version::V4_0
}

#[tokio::test]
async fn what_a_consumer_moved_is_listed_and_dropped() {
    on_brokers_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let fixture = Fixture::of(&broker).await;
        fixture.amqp.declare(QUEUE, QueueType::Quorum).await;
        let nothing = fixture.run(&["unreadable", "ls", QUEUE]).await.exits(0);
        assert!(nothing.err.contains("nothing is in orders.unreadable"));
        let mut publisher = Amqp10::connect(&fixture.vhost).await;
        publisher.publish("/queues/orders", &bomb("order-17")).await;
        fixture.amqp.publish(QUEUE, "behind").await;
        let consume = ["consume", QUEUE, "--dlx", "--count=1", "--", "true"];
        let consumed = fixture.run(&consume).await.exits(0);
        let told =
            "1 message to orders.unreadable, which RabbitMQ cannot deliver over AMQP 0-9-1: ";
        assert!(consumed.err.contains(told), "{}", consumed.err);
        eventually(DEADLINE, "it is moved", || async {
            fixture.amqp.depth("orders.unreadable").await == Some(1)
        })
        .await;
        let listed = fixture.run(&["--json", "unreadable", "ls", QUEUE]).await;
        let listed = listed.exits(0).json();
        assert_eq!(listed["name"], "orders.unreadable");
        let message = &listed["messages"][0];
        assert_eq!(message["message_id"], "order-17");
        assert_eq!(message["found_in"], "orders");
        assert_eq!(message["body_base64"], "dGhlIGJvZHk=");
        let tenant = "uuid 07070707-0707-0707-0707-070707070707";
        assert_eq!(message["properties"]["tenant"], tenant);
        let id = message["id"].as_str().unwrap();
        let shown = fixture.run(&["unreadable", "ls", QUEUE]).await.exits(0);
        for words in [id, "order-17", "UUID"] {
            assert!(shown.out.contains(words), "{words}: {}", shown.out);
        }
        let drop = ["unreadable", "drop", QUEUE, "--id", "0000000000000000"];
        fixture.run(&drop).await.exits(2); // nobody is there to be asked
        fixture
            .run(&[&drop[..], &["--yes"]].concat())
            .await
            .exits(3);
        let drop = ["unreadable", "drop", QUEUE, "--yes", "--id", id];
        let dropped = fixture.run(&drop).await.exits(0);
        assert_eq!(dropped.out, "1 message dropped from orders.unreadable\n");
        assert_eq!(fixture.amqp.depth("orders.unreadable").await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn messages_are_taken_out_of_any_queue() {
    on_brokers_where(stores_what_amqp_0_9_1_cannot_carry, |broker| async move {
        let fixture = Fixture::of(&broker).await;
        fixture.amqp.declare("orders.dlq", QueueType::Classic).await;
        let mut publisher = Amqp10::connect(&fixture.vhost).await;
        fixture.amqp.publish("orders.dlq", "readable").await;
        for id in ["a", "b"] {
            publisher.publish("/queues/orders.dlq", &bomb(id)).await;
        }
        let take = ["--json", "unreadable", "take", QUEUE, "--from=orders.dlq"];
        let taken = fixture.run(&take).await.exits(0).json();
        assert_eq!(taken["moved"], 2);
        assert_eq!(taken["to"], "orders.unreadable");
        assert_eq!(fixture.amqp.depth("orders.unreadable").await, Some(2));
        assert_eq!(fixture.amqp.depth("orders.dlq").await, Some(1));
        let missing = ["unreadable", "take", QUEUE, "--from=nobody"];
        fixture.run(&missing).await.exits(3);
    })
    .await;
}
