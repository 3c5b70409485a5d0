//! How a command ends decides what becomes of its message.

use retryrmq_harness::on_brokers;
use serde_json::{Value, json};

use crate::fixture::{Fixture, PARKED, QUEUE, finish};

/// A message whose body is a shell script: the command runs it.
const RUN_BODY: &str = "script=$(cat); eval \"$script\"";

async fn send(fixture: &Fixture, id: &str, body: &str) {
    fixture
        .run(&["publish", "--queue", QUEUE, "--message-id", id, body])
        .await
        .exits(0);
}

#[tokio::test]
async fn every_way_to_end_has_its_outcome() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let scripts = [
            ("ok", "exit 0"),
            ("park", "echo trace >&2; echo no such customer >&2; exit 65"),
            ("temporary", "exit 75"),
            ("status", "echo first >&2; echo last >&2; echo >&2; exit 3"),
            ("signal", "kill -9 $$"),
            ("after", "echo busy >&2; echo 'retry-after: 1h' >&2; exit 1"),
            (
                "soon",
                "echo busy >&2; echo 'retry-after: soon' >&2; exit 1",
            ),
            ("defer", "echo later >&2; echo 'defer: 1h' >&2; exit 75"),
            (
                "defer-failed",
                "echo later >&2; echo 'defer: 1h' >&2; exit 1",
            ),
            ("slow", "echo waiting >&2; sleep 600 & wait"),
        ];
        for (id, script) in scripts {
            send(&fixture, id, script).await;
        }
        // Long enough for ten shells that start at once on a busy machine.
        let options = ["--retry=fixed(2h)", "--timeout=20s", "--concurrency=10"];
        let done = fixture
            .consume(scripts.len(), &options, RUN_BODY)
            .await
            .exits(0);
        let of = |event: &str, id: &str| {
            let found = done
                .events(event)
                .into_iter()
                .find(|line| line["message_id"] == id);
            found.unwrap_or_else(|| panic!("no {event} of {id}: {done:#?}"))
        };
        assert_eq!(of("handled", "ok")["attempt"], 1);
        assert_eq!(
            (
                &of("parked", "park")["reason"],
                &of("parked", "park")["error"]
            ),
            (&json!("requested"), &json!("no such customer"))
        );
        for (id, error, delay) in [
            ("temporary", "exit status 75", 7_200_000),
            ("status", "last", 7_200_000),
            ("signal", "ended by signal 9", 7_200_000),
            ("after", "busy", 3_600_000),
            ("soon", "busy", 7_200_000),
            ("defer-failed", "later", 7_200_000),
            ("slow", "the command took longer than 20s", 7_200_000),
        ] {
            let retried = of("retried", id);
            assert_eq!(
                (&retried["error"], &retried["delay_ms"], &retried["attempt"]),
                (&json!(error), &json!(delay), &json!(1))
            );
        }
        assert_eq!(of("deferred", "defer")["delay_ms"], 3_600_000);
        let sum = done.events("done").remove(0);
        let counts = ["attempts", "handled", "retried", "deferred", "parked"]
            .map(|name| sum[name].as_u64().unwrap());
        assert_eq!(counts, [10, 1, 7, 1, 1]);
        assert!(
            done.err.contains("write it like") && done.err.contains("exit status 75"),
            "two remarks: {done:#?}"
        );
        fixture.holds(QUEUE, 0).await;
        fixture.holds("orders.retry.7200000", 6).await;
        fixture.holds(PARKED, 1).await;

        let waiting = fixture.amqp.drain("orders.retry.7200000").await;
        let header = |id: &str, name: &str| {
            let message = waiting
                .iter()
                .find(|message| message.id() == Some(id))
                .unwrap();
            message.header_text(name)
        };
        assert_eq!(
            header("status", "x-retry-error-type").unwrap(),
            "exit status 3"
        );
        assert_eq!(header("signal", "x-retry-error-type").unwrap(), "signal 9");
        assert_eq!(
            header("slow", "x-retry-error-type").unwrap(),
            "HandlerTimeout"
        );
        let parked = fixture.amqp.take(PARKED).await.unwrap();
        assert_eq!(
            parked.header_text("x-retry-error-stack").unwrap(),
            "trace\nno such customer"
        );
        assert_eq!(
            parked.header_text("x-retry-error-type").unwrap(),
            "exit status 65"
        );
    })
    .await;
}

#[tokio::test]
async fn a_message_comes_back_with_its_past_and_is_parked_in_the_end() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        send(&fixture, "a", "").await;
        let script = "echo \"$RETRYRMQ_ATTEMPT $RETRYRMQ_RETRIES $RETRYRMQ_LAST_ERROR\" >&2; echo \"failed $RETRYRMQ_ATTEMPT\" >&2; exit 1";
        let done = fixture.consume(3, &["--retry=list(100ms, 200ms)"], script).await.exits(0);
        for line in ["1 0 ", "2 1 failed 1", "3 2 failed 2"] {
            assert!(done.err.lines().any(|said| said == line), "{line}: {done:#?}");
        }
        let parked = done.events("parked").remove(0);
        assert_eq!((&parked["reason"], &parked["attempt"]), (&json!("exhausted"), &json!(3)));
    })
    .await;
}

#[tokio::test]
async fn an_end_is_heard_of_where_a_supervisor_ignores_the_end_of_its_children() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let ignoring = |arguments: &[&str]| fixture.below("trap '' CHLD", arguments);
        let mut status = tokio::process::Command::new("bash");
        status
            .args(["-c", "trap '' CHLD; exec grep SigIgn: /proc/self/status"])
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped());
        let status = finish(status, None).await.exits(0);
        let mask = u64::from_str_radix(status.out["SigIgn:".len()..].trim(), 16).unwrap();
        assert_ne!(mask & 1 << 16, 0, "it is inherited: {status:#?}");
        send(&fixture, "ok", "exit 0").await;
        send(&fixture, "park", "exit 65").await;
        send(&fixture, "slow", "sleep 600").await;
        let arguments = [
            "--json",
            "consume",
            QUEUE,
            "--dlx",
            "--count=3",
            "--timeout=10s",
            "--retry=fixed(2h)",
            "--",
            "sh",
            "-c",
            RUN_BODY,
        ];
        let done = finish(ignoring(&arguments), None).await.exits(0);
        assert_eq!(done.events("handled").len(), 1, "{done:#?}");
        assert_eq!(done.events("parked").len(), 1, "{done:#?}");
        assert_eq!(done.events("retried").len(), 1, "{done:#?}");
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

#[tokio::test]
async fn rules_go_by_the_kind_of_end() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for id in ["3", "4"] {
            send(&fixture, id, &format!("exit {id}")).await;
        }
        let options = [
            "--retry=fixed(1h)",
            "--rule=error=exit status 3 => fixed(3h)",
        ];
        let done = fixture.consume(2, &options, RUN_BODY).await.exits(0);
        let delays: Vec<Value> = done
            .events("retried")
            .into_iter()
            .map(|event| event["delay_ms"].clone())
            .collect();
        assert_eq!(delays.len(), 2);
        assert!(
            delays.contains(&json!(10_800_000)) && delays.contains(&json!(3_600_000)),
            "{delays:?}"
        );
    })
    .await;
}

#[tokio::test]
async fn whoever_turns_dlx_off_is_warned_only_of_the_first_failure() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        send(&fixture, "a", "").await;
        let run = ["--dlx=false", "--count=1", "--", "false"];
        let done = fixture.run(&[&["consume", QUEUE], &run[..]].concat()).await;
        let done = done.exits(0);
        assert!(!done.err.contains("dlx was not set"), "{done:#?}");
        assert!(done.err.contains("dlx is off"), "{done:#?}");
        let refused = ["consume", QUEUE, "--dlx=false", "--no-park", "--", "true"];
        let refused = fixture.run(&refused).await.exits(2).err;
        assert!(refused.contains("--no-park needs --dlx"), "{refused}");
        let on = ["consume", QUEUE, "--dlx=true", "--idle=1s", "--", "true"];
        let on = fixture.run(&on).await.exits(0).err;
        assert!(!on.contains("dlx"), "{on}");
    })
    .await;
}

#[tokio::test]
async fn without_dlx_the_queue_decides() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        send(&fixture, "a", "").await;
        let done = fixture
            .run(&[
                "--json",
                "consume",
                QUEUE,
                "--count=1",
                "--",
                "sh",
                "-c",
                "echo no >&2; exit 1",
            ])
            .await
            .exits(0);
        assert_eq!(done.events("rejected").remove(0)["error"], "no");
        assert!(done.err.contains("dlx was not set"), "{done:#?}");
        assert!(done.err.contains("dlx is off"), "{done:#?}");
        fixture.holds(QUEUE, 0).await;
        assert_eq!(fixture.amqp.depth(PARKED).await, None, "nothing was made");
    })
    .await;
}
