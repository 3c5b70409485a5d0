//! A machine that has no more files to spare.

use std::process::Stdio;

use retryrmq_harness::{lapin::BasicProperties, on_brokers};

use crate::fixture::{Fixture, QUEUE, finish};

#[tokio::test]
async fn too_few_files_for_all_commands_cost_no_message_anything() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        for n in 0..40 {
            let properties = BasicProperties::default().with_message_id(n.to_string().into());
            fixture.amqp.publish_with(QUEUE, "", properties).await;
        }
        let mut command = tokio::process::Command::new("sh");
        command
            .args(["-c", "ulimit -n 64; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_retryrmq"))
            .args(["--json", "consume", QUEUE, "--dlx"])
            .args(["--count=40", "--concurrency=40", "--", "sleep", "3"])
            .env("RETRYRMQ_URL", fixture.vhost.url())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let done = finish(command, None).await.exits(0);
        let handled = done.events("handled");
        assert_eq!(handled.len(), 40, "{done:#?}");
        assert!(handled.iter().all(|event| event["attempt"] == 1));
        assert!(
            done.err.contains("open files"),
            "it says what is missing: {done:#?}"
        );
        fixture.holds(QUEUE, 0).await;
    })
    .await;
}
