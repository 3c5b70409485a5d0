//! Who may not look, or looks in the wrong place, is told what to do.

use retryrmq_harness::{Permissions, eventually, on_brokers};
use serde_json::{Value, json};

use crate::{
    fixture::{DEADLINE, PARKED, QUEUE, finish, retryrmq},
    management_fixture::ManagementFixture,
};

#[tokio::test]
async fn who_may_not_look_is_told_what_is_missing() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let (vhost, management) = (&management_fixture.fixture.vhost, broker.management());
        let user = format!("{}-u", vhost.name());
        let as_user = |password: &str| {
            let mut command = management_fixture.command(&["doctor"]);
            command.env("RETRYRMQ_URL", vhost.url_as(&user, password));
            finish(command, None)
        };
        let secret = "s3cret-of-nobody";
        let unknown = as_user(secret).await.exits(4);
        management.create_user(&user, secret, "").await.unwrap();
        let untagged = as_user(secret).await.exits(5);
        management
            .create_user(&user, secret, "management")
            .await
            .unwrap();
        let outside = as_user(secret).await.exits(3);
        management
            .set_permissions(
                vhost.name(),
                &user,
                Permissions {
                    configure: "",
                    write: "",
                    read: "",
                },
            )
            .await
            .unwrap();
        let inside = as_user(secret).await;
        let mut enabling = management_fixture.command(&["enable", "orders", "--yes"]);
        enabling.env("RETRYRMQ_URL", vhost.url_as(&user, secret));
        management_fixture
            .queue("orders", serde_json::json!({}))
            .await;
        management_fixture
            .queue("orders.parked", serde_json::json!({}))
            .await;
        let powerless = finish(enabling, None).await.exits(5);
        management.delete_user(&user).await.unwrap();
        for (done, words) in [
            (&unknown, "the user or the password is wrong"),
            (&untagged, "tag `management`"),
            (&outside, "no permissions in it"),
            (&inside, "only to a user with the tag `monitoring`"),
            (&powerless, "tag `policymaker`"),
        ] {
            assert!(done.err.contains(words), "{words}: {done:#?}");
            assert!(!format!("{done:?}").contains(secret), "{done:#?}");
        }
        assert!(matches!(inside.status.code(), Some(0 | 8)), "{inside:#?}");
    })
    .await;
}

#[tokio::test]
async fn who_looks_in_the_wrong_place_is_told_where_to_look() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let at = |management: String| {
            let mut command = management_fixture.command(&["doctor"]);
            command.env("RETRYRMQ_MANAGEMENT_URL", management);
            finish(command, None)
        };
        let amqp = management_fixture
            .fixture
            .vhost
            .url()
            .split('@')
            .nth(1)
            .unwrap();
        let amqp = format!("http://{}", amqp.split('/').next().unwrap());
        let other = at(amqp).await.exits(4);
        assert!(other.err.contains("--management URL"), "{other:#?}");
        let tls = broker.management().url().replace("http://", "https://");
        let plain = at(tls).await.exits(4);
        assert!(plain.err.contains("http://"), "{plain:#?}");
        let page = at(format!("{}/nowhere", broker.management().url()))
            .await
            .exits(4);
        assert!(
            page.err.contains("not RabbitMQ's management API"),
            "{page:#?}"
        );
        let wrong = at("http://u:s3cret@h:99999".to_owned()).await.exits(2);
        assert!(!wrong.err.contains("s3cret"), "{wrong:#?}");
    })
    .await;
}

#[tokio::test]
async fn nothing_that_answers_is_said_with_the_plugin() {
    let mut command = retryrmq();
    command.args([
        "--url=amqp://u:s3cret@127.0.0.1:1",
        "--json",
        "doctor",
        "--management=http://127.0.0.1:1",
    ]);
    let done = finish(command, None).await.exits(4);
    assert!(
        done.err
            .contains("rabbitmq-plugins enable rabbitmq_management"),
        "{done:#?}"
    );
    assert!(
        done.err.contains("\"unreachable\"") && !done.err.contains("s3cret"),
        "{done:#?}"
    );
}

#[tokio::test]
async fn topology_and_consume_warn_of_a_policy_that_harms_what_is_parked() {
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        let plan = ["--json", "topology", QUEUE, "--retry=fixed(1s)"];
        management_fixture
            .run(&[&plan[..], &["--apply"]].concat())
            .await
            .exits(0);
        let healthy = management_fixture.run(&plan).await.exits(0).json();
        assert_eq!(healthy["warnings"], json!([]));
        management_fixture
            .policy("limits", "^orders", 0, json!({"delivery-limit": 5}))
            .await;
        eventually(DEADLINE, "topology warns", || async {
            let warned = management_fixture.run(&plan).await.exits(0).json();
            let of = |code, name| move |one: &Value| one["code"] == code && one["name"] == name;
            let warnings = warned["warnings"].as_array().unwrap().clone();
            if warnings.iter().any(of("RQ110", PARKED)) {
                return Ok(());
            }
            Err(warned.to_string())
        })
        .await;
        let told = management_fixture.run(&plan[1..]).await.exits(0).err;
        assert!(
            told.contains("warning: `orders.parked`") && told.contains("(RQ110)"),
            "{told}"
        );
        let consume = [
            "consume",
            QUEUE,
            "--dlx",
            "--retry=fixed(1s)",
            "--idle=3s",
            "--",
            "true",
        ];
        eventually(DEADLINE, "consume warns", || async {
            let told = management_fixture.run(&consume).await.exits(0).err;
            let warns = told.contains("`orders.parked` is where dead letters end");
            if warns { Ok(()) } else { Err(told) }
        })
        .await;
        let mut elsewhere = management_fixture.command(&plan[1..]);
        elsewhere.env("RETRYRMQ_MANAGEMENT_URL", "http://127.0.0.1:1");
        let told = finish(elsewhere, None).await.exits(0).err;
        assert!(told.contains("policies were not looked at"), "{told}");
    })
    .await;
}

#[tokio::test]
async fn consume_without_dlx_warns_where_failed_messages_are_lost() {
    const LOST: &str = "it has no dead-letter exchange";
    on_brokers(|broker| async move {
        let management_fixture = ManagementFixture::of(&broker).await;
        management_fixture.queue("lossy", json!({})).await;
        management_fixture.queue("by-policy", json!({})).await;
        management_fixture.queue("dead", json!({})).await;
        management_fixture.routed("routed", "dead", json!({})).await;
        let policy = json!({"dead-letter-exchange": ""});
        management_fixture
            .policy("dead-letters", "^by-policy$", 0, policy)
            .await;
        let told = |queue: &'static str, more: &'static [&'static str]| {
            let consume = [&["consume", queue], more, &["--idle=1s", "--", "true"]].concat();
            let management_fixture = &management_fixture;
            async move {
                management_fixture
                    .run_with_policies(&consume)
                    .await
                    .exits(0)
                    .err
            }
        };
        let warned = told("lossy", &[]).await;
        assert!(
            warned.contains(LOST) && warned.contains("`lossy`"),
            "{warned}"
        );
        let silent = told("lossy", &["--dlx=false"]).await;
        assert!(!silent.contains(LOST), "{silent}");
        let routed = told("routed", &[]).await;
        assert!(!routed.contains(LOST), "{routed}");
        // The management API knows of a policy some seconds later.
        eventually(DEADLINE, "the policy is seen", || async {
            let told = told("by-policy", &[]).await;
            if told.contains(LOST) {
                Err(told)
            } else {
                Ok(())
            }
        })
        .await;
    })
    .await;
}
