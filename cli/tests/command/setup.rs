//! `retryrmq setup`: made by an administrator, used by a service that may make nothing.

use std::path::Path;

use retryrmq_harness::{Permissions, on_brokers};
use serde_json::Value;

use crate::fixture::{Fixture, PARKED, QUEUE, finish, retryrmq};

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
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let folder = tempfile::tempdir().unwrap();
        let file = written(folder.path(), FILE);
        let missing = fixture
            .run(&["--json", "setup", &file, "--dry-run"])
            .await
            .exits(3)
            .json();
        assert!(statuses(&missing).iter().all(|status| *status == "missing"));
        assert_eq!(fixture.amqp.depth(QUEUE).await, None, "nothing was made");
        let made = fixture
            .run(&["--json", "setup", &file])
            .await
            .exits(0)
            .json();
        assert!(
            statuses(&made).iter().all(|status| *status == "created"),
            "{made}"
        );
        let again = fixture
            .run(&["--json", "setup", &file])
            .await
            .exits(0)
            .json();
        assert!(
            statuses(&again).iter().all(|status| *status == "present"),
            "{again}"
        );
        let table = fixture.run(&["setup", &file]).await.exits(0).out;
        assert!(
            table.contains("rabbitmqctl set_permissions -p") && table.contains("✓ present"),
            "{table}"
        );

        // Exactly what is printed is enough.
        let grant = &again["permissions"][0];
        let word = |name: &str| grant[name].as_str().unwrap();
        assert_eq!(word("configure"), "^$");
        let user = format!("{}-shop", fixture.vhost.name());
        let management = broker.management();
        management.create_user(&user, "pw", "").await.unwrap();
        let may = Permissions {
            configure: word("configure"),
            write: word("write"),
            read: word("read"),
        };
        management
            .set_permissions(fixture.vhost.name(), &user, may)
            .await
            .unwrap();
        fixture.amqp.publish(QUEUE, "x").await;
        let mut service = fixture.command(&[
            "consume",
            QUEUE,
            "--dlx",
            "--no-declare",
            "--retry=fixed(100ms, retries=1)",
            "--count=2",
            "--",
            "false",
        ]);
        service.env("RETRYRMQ_URL", fixture.vhost.url_as(&user, "pw"));
        finish(service, None).await.exits(0);
        fixture.holds(PARKED, 1).await;
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
        let differs = fixture.run(&["setup", &other]).await.exits(5);
        assert!(differs.out.contains("≠ differs"), "{differs:#?}");
        assert_eq!(fixture.amqp.depth("late").await, None, "nothing was made");
    })
    .await;
}

#[tokio::test]
async fn permissions_are_compared_and_given_in_place_of_others() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let folder = tempfile::tempdir().unwrap();
        let management = broker.management();
        let shop = format!("{}-shop", fixture.vhost.name());
        let text = FILE.replace("user = \"shop\"", &format!("user = \"{shop}\""));
        let file = written(folder.path(), &text);
        let url = format!("--management={}", management.url());
        let setup = ["--json", "setup", &file, "--permissions", &url];
        let run = |more: &'static [&'static str]| {
            let arguments = [&setup[..], more].concat();
            let fixture = &fixture;
            async move { fixture.run(&arguments).await }
        };
        let done = run(&["--dry-run"]).await.exits(3);
        assert!(done.err.contains(&format!("no user `{shop}`")), "{done:#?}");
        management.create_user(&shop, "pw", "").await.unwrap();
        let done = run(&[]).await.exits(2);
        assert!(done.err.contains("--yes"), "{done:#?}");
        assert_eq!(fixture.amqp.depth(QUEUE).await, None, "nothing was made");

        fixture.run(&["setup", &file]).await.exits(0);
        let status = |done: &Value| done["permissions"][0]["status"].clone();
        let before = run(&["--dry-run"]).await.exits(3).json();
        assert_eq!(
            (status(&before), &before["complete"]),
            ("differs".into(), &true.into())
        );
        assert!(before["permissions"][0]["had"].is_null(), "{before}");
        let all = Permissions {
            configure: ".*",
            write: ".*",
            read: ".*",
        };
        let vhost = fixture.vhost.name();
        management.set_permissions(vhost, &shop, all).await.unwrap();
        let table = fixture.run(&[&setup[1..], &["--dry-run"]].concat()).await;
        let table = table.exits(3).out;
        assert!(
            table.contains(&format!("permissions of {shop} in {vhost}"))
                && table.contains("  - .*")
                && table.contains("  + ^$"),
            "{table}"
        );

        // Neither more nor less than what is needed.
        let given = run(&["--yes"]).await.exits(0).json();
        assert_eq!(status(&given), "given");
        assert_eq!(given["permissions"][0]["had"]["configure"], ".*");
        assert_eq!(
            status(&run(&["--dry-run"]).await.exits(0).json()),
            "present"
        );
        let mut declares = fixture.command(&["topology", "other", "--apply"]);
        declares.env("RETRYRMQ_URL", fixture.vhost.url_as(&shop, "pw"));
        finish(declares, None).await.exits(5);
        let mut consumes = fixture.command(&[
            "consume",
            QUEUE,
            "--dlx",
            "--no-declare",
            "--retry=fixed(100ms, retries=1)",
            "--count=1",
            "--",
            "true",
        ]);
        consumes.env("RETRYRMQ_URL", fixture.vhost.url_as(&shop, "pw"));
        fixture.amqp.publish(QUEUE, "x").await;
        finish(consumes, None).await.exits(0);

        // Whoever may not change them is told which tag it takes, and nobody takes his own.
        management
            .create_user(&shop, "pw", "management")
            .await
            .unwrap();
        let mut asks = fixture.command(&["setup", &file, "--permissions", "--dry-run"]);
        let (_, host) = management.url().split_once("://").unwrap();
        let host = host.rsplit('@').next().unwrap();
        asks.env(
            "RETRYRMQ_MANAGEMENT_URL",
            format!("http://{shop}:pw@{host}"),
        );
        let done = finish(asks, None).await;
        assert!(
            !done.status.success() && !done.err.contains(":pw"),
            "{done:#?}"
        );
        management.delete_user(&shop).await.unwrap();
        let own = written(folder.path(), &FILE.replace("\"shop\"", "\"guest\""));
        let done = fixture
            .run(&["setup", &own, "--permissions", &url, "--yes"])
            .await
            .exits(2);
        assert!(done.err.contains("the user that asks"), "{done:#?}");
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

#[tokio::test]
async fn what_is_for_others_to_make_is_not_promised() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let folder = tempfile::tempdir().unwrap();
        let text = "[[queues]]\nname = \"orders\"\nwork_queue = \"existing\"\n";
        let file = written(folder.path(), text);
        let done = fixture.run(&["setup", &file, "--dry-run"]).await.exits(3);
        assert!(done.err.contains("but for what others make"), "{done:#?}");
        fixture.run(&["setup", &file]).await.exits(3);
        assert_eq!(fixture.amqp.depth(PARKED).await, None, "nothing was made");
    })
    .await;
}
