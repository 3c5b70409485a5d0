//! What a command learns about its message from the environment.

use retryrmq::types::{AMQPValue, DecimalValue, FieldArray, FieldTable};
use retryrmq_harness::{lapin::BasicProperties, on_brokers};
use serde_json::{Value, json};

use crate::fixture::{CommandOutput, Fixture, QUEUE};

/// The variables as `env -0` prints them, in the line of the command.
const SHOW: &str = "env -0 | grep -z ^RETRYRMQ_ | tr '\\0' '\\n' >&2";

fn variable(done: &CommandOutput, name: &str) -> Option<String> {
    let start = format!("RETRYRMQ_{name}=");
    done.err
        .lines()
        .find_map(|line| line.strip_prefix(&start).map(str::to_owned))
}

fn table<'a>(entries: impl IntoIterator<Item = (&'a str, AMQPValue)>) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in entries {
        table.insert(name.into(), value);
    }
    table
}

async fn publish(fixture: &Fixture, headers: FieldTable) {
    let properties = BasicProperties::default()
        .with_message_id("id-1".into())
        .with_headers(headers);
    fixture.amqp.publish_with(QUEUE, "", properties).await;
}

#[tokio::test]
async fn headers_of_every_type_are_json() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let nested = table([("k", AMQPValue::Void), ("l", AMQPValue::LongString("x".into()))]);
        publish(&fixture, table([
            ("bool", AMQPValue::Boolean(true)),
            ("i8", AMQPValue::ShortShortInt(-5)),
            ("u8", AMQPValue::ShortShortUInt(250)),
            ("i16", AMQPValue::ShortInt(-300)),
            ("u16", AMQPValue::ShortUInt(60_000)),
            ("i32", AMQPValue::LongInt(-70_000)),
            ("u32", AMQPValue::LongUInt(4_000_000_000)),
            ("i64", AMQPValue::LongLongInt(i64::MIN)),
            ("f32", AMQPValue::Float(0.1)),
            ("f64", AMQPValue::Double(-2.5)),
            ("decimal", AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 })),
            ("text", AMQPValue::LongString("Grüße \"x\"\n\u{1b}[2J".into())),
            ("nul", AMQPValue::LongString("a\0b".into())),
            ("not-utf8", AMQPValue::LongString(vec![0xff, 0].into())),
            ("bytes", AMQPValue::ByteArray(vec![0, 1, 2].into())),
            ("time", AMQPValue::Timestamp(1_700_000_000)),
            ("void", AMQPValue::Void),
            ("table", AMQPValue::FieldTable(nested.clone())),
            ("array", AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(nested), AMQPValue::Boolean(false)]))),
        ])).await;
        let done = fixture.consume(1, &[], SHOW).await.exits(0);
        let headers: Value = serde_json::from_str(&variable(&done, "HEADERS").unwrap()).unwrap();
        let mut expected = json!({
            "bool": true, "i8": -5, "u8": 250, "i16": -300, "u16": 60_000, "i32": -70_000, "u32": 4_000_000_000u32,
            "i64": i64::MIN, "f32": 0.1, "f64": -2.5, "decimal": "3.14", "text": "Grüße \"x\"\n\u{1b}[2J", "nul": "a\0b",
            "not-utf8": {"$bytes": "/wA="}, "bytes": {"$bytes": "AAEC"}, "time": "2023-11-14T22:13:20Z", "void": null,
            "table": {"k": null, "l": "x"}, "array": [{"k": null, "l": "x"}, false],
        });
        // RabbitMQ 3.10 writes a count of 0 on the first delivery from a quorum queue.
        if let Some(count) = headers.get("x-delivery-count") {
            expected["x-delivery-count"] = count.clone();
        }
        assert_eq!(headers, expected);
        for (name, value) in [
            ("QUEUE", Some(QUEUE)),
            ("ATTEMPT", Some("1")),
            ("RETRIES", Some("0")),
            ("MESSAGE_ID", Some("id-1")),
            ("EXCHANGE", Some("")),
            ("ROUTING_KEY", Some(QUEUE)),
            ("LAST_ERROR", None),
            ("HEADERS_CUT", None),
        ] {
            assert_eq!(variable(&done, name).as_deref(), value, "{name}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_nul_does_not_keep_a_command_from_starting() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let properties = BasicProperties::default()
            .with_message_id("a\0b".into())
            .with_headers(table([
                ("x-retry-count", AMQPValue::LongLongInt(1)),
                ("x-retry-error", AMQPValue::LongString("no\0way".into())),
            ]));
        fixture.amqp.publish_with(QUEUE, "", properties).await;
        let done = fixture.consume(1, &[], SHOW).await.exits(0);
        assert_eq!(done.events("handled").len(), 1, "{done:#?}");
        assert_eq!(variable(&done, "MESSAGE_ID").unwrap(), "a\u{fffd}b");
        assert_eq!(variable(&done, "LAST_ERROR").unwrap(), "no\u{fffd}way");
        assert_eq!(variable(&done, "ATTEMPT").unwrap(), "2");
    })
    .await;
}

#[tokio::test]
async fn headers_too_large_for_an_environment_are_cut_and_said_so() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        publish(
            &fixture,
            table([
                ("large", AMQPValue::LongString("x".repeat(90_000).into())),
                // In JSON six bytes each.
                ("odd", AMQPValue::LongString("\u{1}".repeat(25_000).into())),
                ("small", AMQPValue::LongString("kept".into())),
            ]),
        )
        .await;
        let done = fixture.consume(1, &[], SHOW).await.exits(0);
        assert_eq!(done.events("handled").len(), 1, "{}", done.out);
        let headers: Value = serde_json::from_str(&variable(&done, "HEADERS").unwrap()).unwrap();
        assert_eq!(
            (&headers["small"], headers.get("odd")),
            (&json!("kept"), None)
        );
        assert_eq!(headers["large"].as_str().map(str::len), Some(90_000));
        assert_eq!(variable(&done, "HEADERS_CUT").unwrap(), "1");
    })
    .await;
}

#[tokio::test]
async fn nothing_is_inherited_that_belongs_to_another_message() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture.amqp.publish(QUEUE, "").await;
        let mut command = fixture.command(&[
            "--json",
            "consume",
            QUEUE,
            "--dlx",
            "--count=1",
            "--",
            "sh",
            "-c",
            SHOW,
        ]);
        command
            .env("RETRYRMQ_MESSAGE_ID", "outer")
            .env("RETRYRMQ_LAST_ERROR", "outer")
            .env("RETRYRMQ_HEADERS_CUT", "9");
        let done = crate::fixture::finish(command, None).await.exits(0);
        for name in ["MESSAGE_ID", "LAST_ERROR", "HEADERS_CUT"] {
            assert_eq!(variable(&done, name), None, "{name}");
        }
    })
    .await;
}
