//! What a name means: the one message that was looked at, and nothing is done where it may mean another.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{
    QueueType,
    lapin::{
        BasicProperties, ExchangeKind,
        options::{ExchangeDeclareOptions, QueueBindOptions},
    },
    on_every_broker,
};

use crate::{
    stage::{Desk, PARKED, QUEUE},
    walking::parked,
};

/// As Spring's `RepublishMessageRecoverer` does it.
#[tokio::test]
async fn what_an_application_parked_keeps_its_name_and_where_it_was_published() {
    on_every_broker(|broker| async move {
        let desk = Desk::of(&broker).await;
        for queue in [PARKED, QUEUE] {
            desk.amqp.declare(queue, QueueType::Quorum).await;
        }
        let channel = desk.amqp.channel();
        let options = ExchangeDeclareOptions {
            durable: true,
            ..ExchangeDeclareOptions::default()
        };
        channel
            .exchange_declare(
                "parking".into(),
                ExchangeKind::Direct,
                options,
                FieldTable::default(),
            )
            .await
            .unwrap();
        channel
            .queue_bind(
                PARKED.into(),
                "parking".into(),
                "eu.orders".into(),
                QueueBindOptions::default(),
                FieldTable::default(),
            )
            .await
            .unwrap();
        let properties = BasicProperties::default();
        desk.amqp
            .publish_to("parking", "eu.orders", "x", properties)
            .await;
        let mut marks = Vec::new();
        for _ in 0..4 {
            desk.holds(PARKED, 1).await;
            let listed = desk.run(&["--json", "parked", "ls", QUEUE]).await.exits(0);
            let line = &listed.lines()[0];
            assert_eq!(
                (line["exchange"].as_str(), line["routing_key"].as_str()),
                (Some("parking"), Some("eu.orders"))
            );
            marks.push(line["mark"].as_str().unwrap().to_owned());
        }
        marks.dedup();
        assert_eq!(marks.len(), 1, "{marks:?}");
        desk.holds(PARKED, 1).await;
        let name = format!("#1={}", marks[0]);
        desk.run(&["parked", "replay", QUEUE, &name]).await.exits(0);
        desk.holds(QUEUE, 1).await;
        let copy = desk.amqp.take(QUEUE).await.unwrap();
        assert_eq!(copy.header_text("x-retry-exchange").unwrap(), "parking");
        assert_eq!(
            copy.header_text("x-retry-routing-key").unwrap(),
            "eu.orders"
        );
    })
    .await;
}
