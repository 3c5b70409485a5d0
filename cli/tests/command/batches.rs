//! `consume --batch`: several messages for one run, and an end for each.

use retryrmq_harness::{lapin::BasicProperties, on_brokers};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{
    endpoint::Endpoint,
    fixture::{Fixture, PARKED, QUEUE},
    http::{of, send},
};

/// Answers on the descriptor for each message, as its body says.
const ANSWER_AS_BODIES_SAY: &str = r#"
    echo "a batch of $RETRYRMQ_BATCH of $RETRYRMQ_QUEUE" >&2
    while read -r line; do
        answer=${line#*'"body":"'}
        echo "${answer%%'"'*}" >&3
    done
"#;

async fn publish(fixture: &Fixture, messages: &[(&str, &str)]) {
    let messages = messages.iter().map(|(id, body)| {
        let properties = BasicProperties::default().with_message_id((*id).into());
        (QUEUE, *body, properties)
    });
    fixture.amqp.publish_all("", messages).await;
}

#[tokio::test]
async fn a_command_answers_for_each_message() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        publish(
            &fixture,
            &[
                ("ok", "ok"),
                ("fails", "fail: no such customer"),
                ("later", "retry-after: 1h"),
                ("deferred", "defer: 1h"),
                ("parked", "park: junk"),
                ("unknown", "fine"),
            ],
        )
        .await;
        let options = ["--batch=6", "--batch-wait=30s", "--retry=fixed(2h)"];
        let done = fixture
            .consume(6, &options, ANSWER_AS_BODIES_SAY)
            .await
            .exits(0);
        assert!(done.err.contains("a batch of 6 of orders"), "{done:#?}");
        assert!(done.err.contains("write `ok`"), "a remark: {done:#?}");
        of(&done, "handled", "ok");
        assert_eq!(of(&done, "deferred", "deferred")["delay_ms"], 3_600_000);
        let parked = of(&done, "parked", "parked");
        assert_eq!(
            (&parked["error"], &parked["reason"]),
            (&json!("junk"), &json!("requested"))
        );
        for (id, error, delay) in [
            ("fails", "no such customer", 7_200_000),
            ("later", "retry-after: 1h", 3_600_000),
            ("unknown", "fine", 7_200_000),
        ] {
            let retried = of(&done, "retried", id);
            assert_eq!(
                (&retried["error"], &retried["delay_ms"], &retried["attempt"]),
                (&json!(error), &json!(delay), &json!(1))
            );
        }
        fixture.holds(QUEUE, 0).await;
        fixture.holds(PARKED, 1).await;
    })
    .await;
}

#[tokio::test]
async fn messages_without_an_answer_end_as_the_command() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for (script, error, events) in [
            ("cat >/dev/null", "", ["handled", "handled", "handled"]),
            (
                "echo no database >&2; exit 1",
                "no database",
                ["retried", "retried", "retried"],
            ),
            (
                "echo junk >&2; exit 65",
                "junk",
                ["parked", "parked", "parked"],
            ),
            (
                "echo ok >&3; kill -9 $$",
                "ended by signal 9",
                ["handled", "retried", "retried"],
            ),
            (
                "echo ok >&3; echo ok >&3; sleep 600 & wait",
                "the command took longer than 20s",
                ["handled", "handled", "retried"],
            ),
            (
                "echo ok >&3",
                "the command answered 1 of 3 messages; write one line for each, in their order",
                ["retried", "retried", "retried"],
            ),
            // It is the line of the second message.
            (
                "printf 'ok\\n\\nok\\n' >&3",
                "an empty answer",
                ["handled", "retried", "handled"],
            ),
        ] {
            let ids = ["a", "b", "c"];
            publish(&fixture, &ids.map(|id| (id, "x"))).await;
            let options = [
                "--batch=3",
                "--batch-wait=30s",
                "--retry=fixed(2h)",
                "--timeout=20s",
            ];
            let done = fixture.consume(3, &options, script).await.exits(0);
            for (id, event) in ids.into_iter().zip(events) {
                let found = of(&done, event, id);
                if event != "handled" {
                    assert_eq!(found["error"], error, "{script}");
                }
            }
            fixture.holds(QUEUE, 0).await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_command_did_not_read_is_not_acknowledged() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        // A pipe holds less than two of them.
        let large = "x".repeat(50_000);
        publish(
            &fixture,
            &["a", "b", "c", "d"].map(|id| (id, large.as_str())),
        )
        .await;
        let options = ["--batch=4", "--batch-wait=30s", "--retry=fixed(2h)"];
        let done = fixture.consume(4, &options, "head -n 1 >/dev/null").await;
        let done = done.exits(0);
        of(&done, "handled", "a");
        let error = of(&done, "retried", "d")["error"].to_string();
        assert!(error.contains("of 4 messages"), "{error}");
    })
    .await;
}

#[tokio::test]
async fn a_batch_that_waits_for_more_is_not_idle() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        publish(&fixture, &[("a", "1"), ("b", "2")]).await;
        let consume = [
            "consume",
            QUEUE,
            "--dlx",
            "--idle=4s",
            "--batch=9",
            "--batch-wait=8s",
            "--",
            "cat",
        ];
        fixture.run(&consume).await.exits(0);
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_line_has_all_of_its_message() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let properties = |id: &str| {
            BasicProperties::default()
                .with_message_id(id.into())
                .with_content_type("text/plain".into())
        };
        fixture.amqp
            .publish_with(QUEUE, "two\nlines", properties("a"))
            .await;
        fixture.amqp
            .publish_with(QUEUE, b"\xff\x00", properties("b"))
            .await;
        // More than the attempts that are asked for: the third message is not run.
        fixture.amqp.publish_with(QUEUE, "c", properties("c")).await;
        let options = ["--batch=3", "--batch-wait=30s"];
        let done = fixture.consume(2, &options, "cat >&2").await.exits(0);
        let line = |body: &str| -> Value {
            let line = done.err.lines().find(|line| line.contains(body));
            serde_json::from_str(line.unwrap_or_else(|| panic!("{done:#?}"))).unwrap()
        };
        let expected = json!({
            "message_id": "a", "attempt": 1, "retries": 0, "exchange": "", "routing_key": QUEUE, "headers": {},
            "properties": {"message_id": "a", "content_type": "text/plain", "delivery_mode": 2}, "body": "two\nlines",
        });
        assert_eq!(line("two"), expected);
        assert_eq!(line("body_base64")["body_base64"], "/wA=");
        fixture.holds(QUEUE, 1).await;
    })
    .await;
}

#[tokio::test]
async fn a_kill_in_a_batch_loses_nothing() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        publish(&fixture, &[("a", "1"), ("b", "2"), ("c", "3")]).await;
        let options = ["--batch=3", "--batch-wait=30s"];
        let mut running = fixture.start(&options, "echo begun $RETRYRMQ_BATCH; sleep 600");
        assert_eq!(running.line().await, "begun 3");
        running.signal(Signal::KILL);
        running.end().await;
        fixture.holds(QUEUE, 3).await;
        let options = ["--batch=3", "--batch-wait=1s"];
        let done = fixture
            .consume(3, &options, "cat >/dev/null")
            .await
            .exits(0);
        for id in ["a", "b", "c"] {
            assert_eq!(of(&done, "handled", id)["attempt"], 1);
        }
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_drain_returns_a_batch_that_waits() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let options = ["--batch=3", "--batch-wait=1m"];
        let running = fixture.start(&options, "echo begun");
        publish(&fixture, &[("a", "1"), ("b", "2")]).await;
        fixture.holds(QUEUE, 0).await;
        running.signal(Signal::TERM);
        assert!(running.end().await.success());
        fixture.holds(QUEUE, 2).await;
    })
    .await;
}

#[tokio::test]
async fn an_endpoint_answers_for_each_message_or_for_all() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let endpoint = Endpoint::new().await;
        let url = endpoint.url("/orders");
        let consume = async |ids: &[&str], answer: Value| {
            for id in ids {
                send(&fixture, id, &answer).await;
            }
            let count = format!("--count={}", ids.len());
            let batch = format!("--batch={}", ids.len());
            let arguments = [
                "--json",
                "consume",
                QUEUE,
                "--dlx",
                &count,
                &batch,
                "--batch-wait=30s",
                "--retry=fixed(2h)",
                "--http",
                &url,
            ];
            fixture.run(&arguments).await.exits(0)
        };
        let json = json!({"content-type": "application/json"});
        let answers = json!(["ok", "park: junk", "retry-after: 1h"]).to_string();
        let done = consume(
            &["a", "b", "c"],
            json!({"status": 200, "headers": json, "body": answers}),
        )
        .await;
        of(&done, "handled", "a");
        assert_eq!(of(&done, "parked", "b")["error"], "junk");
        assert_eq!(of(&done, "retried", "c")["delay_ms"], 3_600_000);
        let seen = endpoint.seen().remove(0);
        assert_eq!(seen.header("content-type"), Some("application/json"));
        assert_eq!(seen.header("retryrmq-batch"), Some("3"));
        assert_eq!(seen.header("retryrmq-queue"), Some(QUEUE));
        let sent: Vec<Value> = serde_json::from_slice(&seen.body).unwrap();
        assert_eq!(sent[2]["message_id"], "c");

        let done = consume(&["d", "e"], json!({"status": 200, "body": "[]"})).await;
        for id in ["d", "e"] {
            of(&done, "handled", id);
        }
        let done = consume(&["f", "g"], json!({"status": 500, "body": "boom"})).await;
        for id in ["f", "g"] {
            assert_eq!(of(&done, "retried", id)["error"], "HTTP 500: boom");
        }
        let done = consume(
            &["h", "i"],
            json!({"status": 200, "headers": json, "body": answers}),
        )
        .await;
        for id in ["h", "i"] {
            let error = of(&done, "retried", id)["error"]
                .as_str()
                .unwrap()
                .to_owned();
            assert!(error.contains("answered 3 of 2 messages"), "{error}");
        }
        // One that is invalid takes no other with it.
        send(
            &fixture,
            "j",
            &json!({"status": 422, "body": "no customer"}),
        )
        .await;
        send(&fixture, "k", &json!({"status": 200, "body": ""})).await;
        let arguments = [
            "--json",
            "consume",
            QUEUE,
            "--dlx",
            "--count=2",
            "--batch=2",
            "--batch-wait=30s",
            "--http",
            &url,
        ];
        let done = fixture.run(&arguments).await.exits(0);
        assert_eq!(of(&done, "parked", "j")["error"], "HTTP 422: no customer");
        of(&done, "handled", "k");
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}
