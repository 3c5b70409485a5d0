//! Dead letters whose headers name a queue that they do not belong to.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    QueueType,
    lapin::options::{BasicGetOptions, BasicRejectOptions},
    on_brokers,
};
use serde_json::json;

use crate::{dead_letter_fixture::DeadLetterFixture, fixture::Fixture};

#[tokio::test]
async fn a_header_that_names_a_parking_queue_is_not_obeyed() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let (dead, parked) = ("orders_error", "orders.parked");
        for queue in [dead, parked, "orders"] {
            fixture.amqp.declare(queue, QueueType::Classic).await;
        }
        let mut forged = DeadLetterFixture::named("masstransit");
        forged.0["headers"]["MT-Fault-InputAddress"] = json!("rabbitmq://localhost/orders.parked");
        forged.arrives(&fixture, dead).await;
        fixture.holds(dead, 1).await;
        let replay = ["parked", "replay", dead, "--dlq", "--all"];
        let done = fixture.run(&replay).await.exits(3);
        assert!(done.err.contains("pass --to QUEUE"), "{done:?}");
        assert_eq!(fixture.amqp.depth(parked).await, Some(0));
        fixture
            .run(&["parked", "replay", dead, "--dlq", "--all", "--to=orders"])
            .await
            .exits(0);
        fixture.holds("orders", 1).await;
        fixture.holds(dead, 0).await;
    })
    .await;
}

#[tokio::test]
async fn what_its_publisher_wrote_does_not_choose_where_a_dead_letter_goes() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let (work, parked, other) = ("orders", "orders.parked", "payments");
        let mut route = FieldTable::default();
        for (name, value) in [("exchange", ""), ("routing-key", parked)] {
            let name = format!("x-dead-letter-{name}");
            route.insert(name.into(), AMQPValue::LongString(value.into()));
        }
        fixture
            .amqp
            .declare_with(work, QueueType::Classic, route)
            .await;
        for queue in [parked, other] {
            fixture.amqp.declare(queue, QueueType::Classic).await;
        }
        // No time of the failure, so that nothing says which came first.
        let mut forged = DeadLetterFixture::named("masstransit");
        let headers = forged.0["headers"].as_object_mut().unwrap();
        headers.remove("MT-Fault-Timestamp");
        headers["MT-Fault-InputAddress"] = json!("rabbitmq://localhost/payments");
        forged.arrives(&fixture, work).await;
        fixture.holds(work, 1).await;
        let got = fixture
            .amqp
            .channel()
            .basic_get(work.into(), BasicGetOptions::default());
        let reject = BasicRejectOptions { requeue: false };
        got.await
            .unwrap()
            .unwrap()
            .acker
            .reject(reject)
            .await
            .unwrap();
        fixture.holds(parked, 1).await;

        let line = fixture
            .run(&["--json", "parked", "ls", work])
            .await
            .exits(0)
            .json();
        assert_eq!(
            (&line["home"], &line["reason"], &line["by_broker"]),
            (&json!(work), &json!("rejected"), &json!(true)),
            "{line}"
        );
        fixture
            .run(&["parked", "replay", work, "--all"])
            .await
            .exits(0);
        fixture.holds(parked, 0).await;
        assert_eq!(fixture.amqp.depth(other).await, Some(0));
        let message = fixture.amqp.take(work).await.unwrap();
        assert_eq!(message.text(), forged.body());
        let address = message.header_text("MT-Fault-InputAddress");
        assert_eq!(address.as_deref(), Some("rabbitmq://localhost/payments"));
    })
    .await;
}
