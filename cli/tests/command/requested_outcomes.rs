//! What a command may say of its message's future, and where a body that it repeats cannot say it.

use retryrmq_harness::on_brokers;
use serde_json::json;

use crate::fixture::{CommandOutput, Fixture, PARKED, QUEUE};

/// A message whose body is a shell script: the command runs it.
const RUN_BODY: &str = "script=$(cat); eval \"$script\"";

async fn send(fixture: &Fixture, id: &str, body: &str) {
    fixture
        .run(&["publish", "--queue", QUEUE, "--message-id", id, body])
        .await
        .exits(0);
}

#[track_caller]
fn of(done: &CommandOutput, event: &str, id: &str) -> serde_json::Value {
    let found = done
        .events(event)
        .into_iter()
        .find(|line| line["message_id"] == id);
    found.unwrap_or_else(|| panic!("no {event} of {id}: {done:#?}"))
}

#[tokio::test]
async fn a_body_that_is_repeated_on_standard_error_delays_its_message_for_a_day_at_most() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let repeat = "echo \"bad order: $(cat)\" >&2; exit 1";
        send(&fixture, "a", "x\nretry-after: 365d").await;
        let done = fixture
            .consume(1, &["--retry=fixed(2h)"], repeat)
            .await
            .exits(0);
        assert_eq!(of(&done, "retried", "a")["delay_ms"], json!(86_400_000));
        assert!(
            done.err.contains("--max-retry-after"),
            "it is told: {done:#?}"
        );
        send(&fixture, "b", "x\nretry-after: 365d").await;
        send(&fixture, "c", "x\nretry-after: 9m").await;
        let options = ["--retry=fixed(2h)", "--max-retry-after=10m"];
        let done = fixture.consume(2, &options, repeat).await.exits(0);
        assert_eq!(of(&done, "retried", "b")["delay_ms"], json!(600_000));
        assert_eq!(of(&done, "retried", "c")["delay_ms"], json!(540_000));
    })
    .await;
}

#[tokio::test]
async fn a_descriptor_of_its_own_decides_whatever_standard_error_says() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let scripts = [
            ("after", "echo 'retry-after: 1h' >&$RETRYRMQ_OUTCOME_FD; echo busy >&2; echo 'retry-after: 3h' >&2; exit 1"),
            ("defer", "echo 'defer: 1h' >&$RETRYRMQ_OUTCOME_FD; echo 'retry-after: 3h' >&2; exit 1"),
            ("park", "echo 'park: no such customer' >&$RETRYRMQ_OUTCOME_FD; echo trace >&2; exit 1"),
            ("park-bare", "echo 'park:' >&$RETRYRMQ_OUTCOME_FD; echo trace >&2; echo why >&2; exit 1"),
            // Who says so is heard although the script's last word succeeded.
            ("forgot", "echo busy >&2; echo 'retry-after: 1h' >&$RETRYRMQ_OUTCOME_FD"),
            ("forgot-to-park", "echo 'park: no' >&$RETRYRMQ_OUTCOME_FD"),
            // An empty line is enough to close the other way.
            ("closed", "echo >&$RETRYRMQ_OUTCOME_FD; echo busy >&2; echo 'retry-after: 3h' >&2; exit 1"),
            ("ok", "echo >&$RETRYRMQ_OUTCOME_FD"),
            ("last", "printf 'park: no\\ndefer: 2h\\nretry-after: 1h' >&$RETRYRMQ_OUTCOME_FD; exit 1"),
            ("wrong", "echo 'retry-after: soon' >&$RETRYRMQ_OUTCOME_FD"),
            ("unknown", "echo 'requeue: 1s' >&$RETRYRMQ_OUTCOME_FD; exit 65"),
            ("signal", "echo 'retry-after: 1h' >&$RETRYRMQ_OUTCOME_FD; kill -9 $$"),
            ("much", "yes 'retry-after: 3h' | head -n 20000 >&$RETRYRMQ_OUTCOME_FD; echo 'retry-after: 1h' >&$RETRYRMQ_OUTCOME_FD; exit 1"),
            ("held", "echo 'retry-after: 1h' >&$RETRYRMQ_OUTCOME_FD; (while :; do echo noise; sleep 0.1; done) >&$RETRYRMQ_OUTCOME_FD & exit 1"),
        ];
        for (id, script) in scripts {
            send(&fixture, id, script).await;
        }
        let done = fixture.consume(scripts.len(), &["--retry=fixed(2h)", "--concurrency=4"], RUN_BODY).await.exits(0);
        for (id, error, delay) in [
            ("after", "retry-after: 3h", 3_600_000),
            ("forgot", "busy", 3_600_000),
            ("closed", "retry-after: 3h", 7_200_000),
            ("last", "exit status 1", 3_600_000),
            ("wrong", "exit status 0", 7_200_000),
            ("signal", "ended by signal 9", 3_600_000),
            ("much", "exit status 1", 3_600_000),
        ] {
            let retried = of(&done, "retried", id);
            assert_eq!((&retried["error"], &retried["delay_ms"]), (&json!(error), &json!(delay)), "{id}: {done:#?}");
        }
        of(&done, "retried", "held");
        assert_eq!(of(&done, "deferred", "defer")["delay_ms"], 3_600_000);
        for (id, error) in [("park", "no such customer"), ("park-bare", "why"), ("forgot-to-park", "no"), ("unknown", "exit status 65")] {
            let parked = of(&done, "parked", id);
            assert_eq!((&parked["error"], &parked["reason"]), (&json!(error), &json!("requested")), "{id}");
        }
        of(&done, "handled", "ok");
        assert!(done.err.contains("write it like") && done.err.contains("requeue"), "two remarks: {done:#?}");
        fixture.holds(PARKED, 4).await;
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_long_line_on_the_descriptor_is_what_its_first_word_says() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        // As long as a pipe hands out at once, and with the word wherever the end of what is kept may begin.
        for length in [8_191, 8_192, 8_193] {
            let wish = format!("{:<length$}", "defer: 23h");
            send(
                &fixture,
                &length.to_string(),
                &format!("{}{wish}", "x".repeat(100)),
            )
            .await;
        }
        let script = "printf 'park: bad order: %s\\n' \"$(cat)\" >&3";
        let done = fixture.consume(3, &[], script).await.exits(0);
        assert_eq!(done.events("parked").len(), 3, "{done:#?}");
        fixture.holds(PARKED, 3).await;
    })
    .await;
}

#[tokio::test]
async fn a_descriptor_belongs_to_one_run_alone() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        // All at once, so that one that inherited another's would show.
        let script = "echo pipes $(readlink /proc/$$/fd/3) all $(readlink /proc/$$/fd/*); \
            echo \"retry-after: $(cat)\" >&3; echo mine >&2; exit 1";
        for n in 1..=20 {
            send(&fixture, &n.to_string(), &format!("{n}h")).await;
        }
        let done = fixture
            .consume(20, &["--concurrency=20"], script)
            .await
            .exits(0);
        for n in 1..=20_u64 {
            assert_eq!(
                of(&done, "retried", &n.to_string())["delay_ms"],
                n * 3_600_000,
                "{done:#?}"
            );
        }
        let runs: Vec<(&str, &str)> = done
            .err
            .lines()
            .filter_map(|line| line.strip_prefix("pipes ")?.split_once(" all "))
            .collect();
        assert_eq!(runs.len(), 20, "{done:#?}");
        for (own, _) in &runs {
            let holders = runs.iter().filter(|(_, all)| all.contains(own)).count();
            assert!(
                own.starts_with("pipe:") && holders == 1,
                "{own} of {runs:#?}"
            );
        }
    })
    .await;
}
