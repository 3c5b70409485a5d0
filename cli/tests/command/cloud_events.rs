//! `consume --http --cloudevents`: what a receiver of CloudEvents gets.

use retryrmq::types::{AMQPValue, FieldTable};
use retryrmq_harness::{lapin::BasicProperties, on_brokers};
use serde_json::{Value, json};

use crate::{
    endpoint::Endpoint,
    fixture::{Fixture, QUEUE},
    http::{consume, of},
};

/// A message with a type and a time, and an event of the AMQP protocol binding. Both are answered as their bodies say.
async fn publish(fixture: &Fixture, answer: &Value) {
    let json = BasicProperties::default().with_content_type("application/json".into());
    let plain = json
        .clone()
        .with_message_id("urn:a.b".into())
        .with_type("order.placed".into())
        .with_timestamp(1_795_000_000);
    let mut headers = FieldTable::default();
    for (name, value) in [
        ("cloudEvents:specversion", "1.0"),
        ("cloudEvents:id", "e-1"),
        ("cloudEvents:source", "https://shop.example/ü"),
        ("cloudEvents:type", "order.paid"),
    ] {
        headers.insert(name.into(), AMQPValue::LongString(value.into()));
    }
    let event = json.with_message_id("event".into()).with_headers(headers);
    let body = answer.to_string();
    for properties in [plain, event] {
        fixture
            .amqp
            .publish_with(QUEUE, body.as_str(), properties)
            .await;
    }
}

#[tokio::test]
async fn a_message_is_an_event_in_binary_mode() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let endpoint = Endpoint::new().await;
        let answer = json!({"status": 503});
        publish(&fixture, &answer).await;
        let options = [
            "--cloudevents=urn:shop",
            "--retry=list(1ms, 2h)",
            "--concurrency=1",
        ];
        let done = consume(&fixture, 4, &endpoint.url("/"), &options).await;
        done.exits(0);
        let seen = endpoint.seen();
        let attempts = |id: &str| {
            let of_it = seen
                .iter()
                .filter(|request| request.header("ce-id") == Some(id));
            of_it.collect::<Vec<_>>()
        };
        let (plain, event) = (attempts("urn:a.b"), attempts("e-1"));
        assert_eq!((plain.len(), event.len()), (2, 2));
        for (request, expected) in [
            (
                plain[0],
                [
                    ("ce-specversion", Some("1.0")),
                    ("ce-source", Some("urn:shop")),
                    ("ce-type", Some("order.placed")),
                    ("ce-time", Some("2026-11-18T11:06:40Z")),
                    ("ce-subject", Some(QUEUE)),
                    ("ce-retryrmqattempt", Some("1")),
                    ("content-type", Some("application/json")),
                    ("retryrmq-queue", Some(QUEUE)),
                ],
            ),
            (
                event[1],
                [
                    ("ce-specversion", Some("1.0")),
                    ("ce-source", Some("https://shop.example/%C3%BC")),
                    ("ce-type", Some("order.paid")),
                    ("ce-time", None),
                    ("ce-subject", None),
                    ("ce-retryrmqattempt", Some("2")),
                    (
                        "ce-retryrmqlasterror",
                        Some("HTTP%20503%20Service%20Unavailable"),
                    ),
                    ("retryrmq-attempt", Some("2")),
                ],
            ),
        ] {
            for (name, value) in expected {
                assert_eq!(request.header(name), value, "{name}");
            }
            assert_eq!(request.body, answer.to_string().as_bytes());
        }
    })
    .await;
}

#[tokio::test]
async fn a_batch_is_a_batch_of_events_and_each_has_its_answer() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let endpoint = Endpoint::new().await;
        let answer = json!({
            "headers": {"content-type": "application/json"},
            "body": json!(["ok", "park: junk"]).to_string(),
        });
        publish(&fixture, &answer).await;
        let options = ["--cloudevents", "--batch=2", "--batch-wait=30s"];
        let done = consume(&fixture, 2, &endpoint.url("/"), &options)
            .await
            .exits(0);
        of(&done, "handled", "urn:a.b");
        assert_eq!(of(&done, "parked", "event")["error"], "junk");
        let seen = endpoint.seen().remove(0);
        let kind = seen.header("content-type");
        assert_eq!(kind, Some("application/cloudevents-batch+json"));
        let events: Value = serde_json::from_slice(&seen.body).unwrap();
        assert_eq!(
            events,
            json!([
                {
                    "specversion": "1.0", "id": "urn:a.b", "source": "/queues/orders", "type": "order.placed",
                    "time": "2026-11-18T11:06:40Z", "subject": QUEUE, "datacontenttype": "application/json",
                    "retryrmqattempt": 1, "retryrmqretries": 0, "data": answer,
                },
                {
                    "specversion": "1.0", "id": "e-1", "source": "https://shop.example/ü", "type": "order.paid",
                    "datacontenttype": "application/json", "retryrmqattempt": 1, "retryrmqretries": 0, "data": answer,
                },
            ])
        );
    })
    .await;
}
