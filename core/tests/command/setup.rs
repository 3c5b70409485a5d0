//! `retryrmq setup`: made by an administrator, used by a service that may make nothing.

use std::path::Path;

use retryrmq_harness::{Permissions, on_every_broker};
use serde_json::Value;

use crate::stage::{Desk, PARKED, QUEUE, finish, retryrmq};

const FILE: &str = r#"
[policies]
soon = "fixed(100ms, retries=1)"

[[queues]]
name = "orders"
retry = "soon"

[[queues]]
name = "mails"
retry = "list(1m, 10m)"
queue_type = "classic"
work_queue = { x-max-priority = 3 }

[[permissions]]
user = "shop"
consumes = ["orders"]
"#;

fn written(folder: &Path, text: &str) -> String {
    let file = folder.join("retries.toml");
    std::fs::write(&file, text).unwrap();
    file.display().to_string()
}

fn statuses(done: &Value) -> Vec<&str> {
    let queues = done["queues"].as_array().unwrap().iter();
    queues
        .flat_map(|queue| queue["items"].as_array().unwrap())
        .map(|item| item["status"].as_str().unwrap_or("-"))
        .collect()
}

#[tokio::test]
async fn a_service_that_may_make_nothing_works_with_what_was_set_up() {
    on_every_broker(|broker| async move {
        let desk = Desk::of(&broker).await;
        let folder = tempfile::tempdir().unwrap();
        let file = written(folder.path(), FILE);
        let missing = desk
            .run(&["--json", "setup", &file, "--dry-run"])
            .await
            .exits(3)
            .json();
        assert!(statuses(&missing).iter().all(|status| *status == "missing"));
        assert_eq!(desk.amqp.depth(QUEUE).await, None, "nothing was made");
        let made = desk.run(&["--json", "setup", &file]).await.exits(0).json();
        assert!(
            statuses(&made).iter().all(|status| *status == "created"),
            "{made}"
        );
        let again = desk.run(&["--json", "setup", &file]).await.exits(0).json();
        assert!(
            statuses(&again).iter().all(|status| *status == "present"),
            "{again}"
        );
        let table = desk.run(&["setup", &file]).await.exits(0).out;
        assert!(
            table.contains("rabbitmqctl set_permissions -p") && table.contains("✓ present"),
            "{table}"
        );

        // Exactly what is printed is enough.
        let grant = &again["permissions"][0];
        let word = |name: &str| grant[name].as_str().unwrap();
        assert_eq!(word("configure"), "^$");
        let user = format!("{}-shop", desk.vhost.name());
        let management = broker.management();
        management.create_user(&user, "pw", "").await.unwrap();
        let may = Permissions {
            configure: word("configure"),
            write: word("write"),
            read: word("read"),
        };
        management
            .set_permissions(desk.vhost.name(), &user, may)
            .await
            .unwrap();
        desk.amqp.publish(QUEUE, "x").await;
        let mut service = desk.command(&[
            "consume",
            QUEUE,
            "--dlx",
            "--no-declare",
            "--retry=fixed(100ms, retries=1)",
            "--count=2",
            "--",
            "false",
        ]);
        service.env("RETRYRMQ_URL", desk.vhost.url_as(&user, "pw"));
        finish(service, None).await.exits(0);
        desk.holds(PARKED, 1).await;
        management.delete_user(&user).await.unwrap();

        let other = written(
            folder.path(),
            &FILE
                .replace(
                    "[[permissions]]",
                    "[[queues]]\nname = \"late\"\n[[permissions]]",
                )
                .replace(
                    "retry = \"soon\"",
                    "retry = \"soon\"\nqueue_type = \"classic\"",
                ),
        );
        let differs = desk.run(&["setup", &other]).await.exits(5);
        assert!(differs.out.contains("≠ differs"), "{differs:#?}");
        assert_eq!(desk.amqp.depth("late").await, None, "nothing was made");
    })
    .await;
}

#[tokio::test]
async fn a_file_that_is_wrong_is_refused_with_its_line_and_column() {
    let folder = tempfile::tempdir().unwrap();
    for (text, words) in [
        (
            "[[queues]]\nname = \"orders\"\nretry = \"fixed(5x)\"\n",
            "retries.toml:3:9: ",
        ),
        (
            "[[queues]]\nname = \"orders\"\nretri = \"fixed(5s)\"\n",
            "retries.toml:3:1: ",
        ),
        ("[[queues]\n", "retries.toml:1:"),
    ] {
        let file = written(folder.path(), text);
        let mut command = retryrmq();
        command.args(["setup", &file, "--check"]);
        let done = finish(command, None).await.exits(2);
        assert!(done.err.contains(words), "{text}: {done:#?}");
    }
    let file = written(folder.path(), FILE);
    let mut command = retryrmq();
    command.args(["setup", &file, "--check", "--url=amqp://localhost:1/shop"]);
    let done = finish(command, None).await.exits(0);
    assert!(
        done.out.contains("list(1m, 10m)") && done.out.contains("-p shop"),
        "{done:#?}"
    );
    let mut command = retryrmq();
    command.args(["setup", "/nowhere/retries.toml"]);
    finish(command, None).await.exits(2);
}
