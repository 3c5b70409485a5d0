//! `retryrmq serve`, which becomes another program, and `retryrmq enable --service`.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use retryrmq_harness::on_brokers;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{
    fixture::{CommandOutput, QUEUE, finish},
    management_fixture::ManagementFixture,
};

/// A copy of the command in a folder of its own: beside the one that was built may be the service's program.
fn alone(folder: &Path, arguments: &[&str]) -> Command {
    let command = folder.join("retryrmq");
    if !command.exists() {
        fs::copy(env!("CARGO_BIN_EXE_retryrmq"), &command).unwrap();
    }
    let mut alone = Command::new(command);
    alone
        .env("PATH", "/usr/bin:/bin")
        .env_remove("RETRYRMQ_URL")
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .args(arguments);
    alone
}

async fn run(folder: &Path, arguments: &[&str]) -> CommandOutput {
    finish(alone(folder, arguments), None).await
}

#[tokio::test]
async fn serve_becomes_the_program_and_says_what_to_install_without_it() {
    let folder = tempfile::tempdir().unwrap();
    let missing = run(folder.path(), &["serve", "--config", "p.toml"])
        .await
        .exits(3);
    assert!(
        missing.err.contains("cargo install retryrmq-serve"),
        "{missing:#?}"
    );
    let program = folder.path().join("retryrmq-serve");
    fs::write(
        &program,
        "#!/bin/sh\nprintf '%s\\n' \"$RETRYRMQ_URL\" \"$@\"\nexit 7\n",
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    for (arguments, expected) in [
        (
            &[
                "--url",
                "amqp://u:secret@h/v",
                "-v",
                "serve",
                "--config",
                "p.toml",
                "--check",
            ][..],
            &[
                "amqp://u:secret@h/v",
                "--verbose",
                "--config",
                "p.toml",
                "--check",
            ][..],
        ),
        (&["serve", "--help"], &["amqp://localhost", "--help"]),
        (&["--json", "serve"], &["amqp://localhost", "--json"]),
    ] {
        let done = run(folder.path(), arguments).await.exits(7);
        assert_eq!(done.out.lines().collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn a_queue_is_pointed_at_the_service_once_that_is_there_and_back_again() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        management_fixture.queue(QUEUE, json!({})).await;
        let enable = ["--json", "enable", QUEUE, "--service", "--yes"];
        let none = management_fixture.run(&enable).await.exits(3);
        assert!(
            none.err.contains("start the service there first"),
            "{none:#?}"
        );
        management_fixture.fanout("retryrmq.dead").await;
        let unbound = management_fixture.run(&enable).await.exits(3);
        assert!(unbound.err.contains("no queue is bound"), "{unbound:#?}");
        management_fixture.queue("retryrmq.intake", json!({})).await;
        let amqp = &management_fixture.fixture.amqp;
        let bound = amqp.channel().queue_bind(
            "retryrmq.intake".into(),
            "retryrmq.dead".into(),
            "".into(),
            Default::default(),
            Default::default(),
        );
        bound.await.unwrap();
        // It was enabled without a service before.
        management_fixture
            .run(&["enable", QUEUE, "--yes"])
            .await
            .exits(0);
        let done = management_fixture.run(&enable).await.exits(0).json();
        let expected = json!({
            "dead-letter-exchange": "retryrmq.dead",
            "dead-letter-strategy": "at-least-once",
            "overflow": "reject-publish",
        });
        assert_eq!(done["definition"], expected);
        amqp.publish(QUEUE, "x").await;
        let channel = amqp.new_channel().await;
        let got = channel.basic_get(QUEUE.into(), Default::default()).await;
        let message = got.unwrap().expect("it is there");
        message.reject(Default::default()).await.unwrap();
        management_fixture.fixture.holds("retryrmq.intake", 1).await;
        let again = management_fixture
            .run(&["enable", QUEUE, "--service", "--yes"])
            .await
            .exits(0);
        assert!(again.out.contains("nothing to do"), "{again:#?}");
        management_fixture
            .run(&["disable", QUEUE, "--yes"])
            .await
            .exits(0);
        let path = format!("policies/{}", management_fixture.fixture.vhost.name());
        let left: Value = broker.management().get(path).await.unwrap();
        assert_eq!(left, json!([]));
    })
    .await;
}
