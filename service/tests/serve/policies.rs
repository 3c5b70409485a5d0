//! What the policy file says, and how it changes.

use retryrmq_harness::{
    QueueType, Version, eventually, lapin::types::FieldTable, on_brokers, on_brokers_where,
};
use rustix::process::Signal;

use crate::fixture::{
    DEADLINE, INTAKE, NativeConsumer, Replica, declare, id, policy, program, take, text,
};

const POLICY: &str = r##"
[defaults]
retry = "fixed(1h, retries=1)"

[[rules]]
routing_key = "orders.vip"
retry = "fixed(2h, retries=1)"

[[rules]]
queue = "orders.*"
headers = { kind = "test*" }
end = "drop"

[[rules]]
queue = "orders.short"
reason = "expired"
retry = "fixed(3h, retries=1)"
"##;

async fn run(arguments: &[&str]) -> (Option<i32>, String, String) {
    let done = program().args(arguments).output().await.unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (done.status.code(), text(&done.stdout), text(&done.stderr))
}

#[tokio::test]
async fn a_file_is_checked_without_a_broker() {
    let file = policy(POLICY);
    let path = file.path().to_str().unwrap();
    let (code, out, err) = run(&["--config", path, "--check"]).await;
    assert_eq!((code, err.as_str()), (Some(0), ""), "{out}");
    std::fs::write(file.path(), "[[rules]]\nqeue = \"orders\"\n").unwrap();
    let (code, _, err) = run(&["--config", path, "--check"]).await;
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains(&format!("{path}:2:1: unknown field `qeue`")),
        "{err}"
    );
    let (code, out, _) = run(&["--schema"]).await;
    assert_eq!(code, Some(0));
    let schema: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(schema["additionalProperties"], false);
    assert!(schema["properties"]["rules"].is_object(), "{schema}");
}

#[tokio::test]
async fn the_example_is_a_file_that_can_be_read() {
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/serve/policy.toml");
    let (code, out, err) = run(&["--config", example, "--check"]).await;
    assert_eq!(code, Some(0), "{out}{err}");
}

#[tokio::test]
async fn rules_choose_by_queue_routing_key_header_and_reason() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy(POLICY);
        let replica = Replica::start(&vhost, Some(file.path())).await;
        for queue in ["orders.eu", "orders.vip"] {
            declare(&amqp, queue, QueueType::Quorum, true).await;
        }
        declare(&amqp, "orders.short", QueueType::Classic, false).await;
        declare(&amqp, "billing", QueueType::Classic, false).await;
        let mut kind = FieldTable::default();
        kind.insert("kind".into(), text("test-7"));
        amqp.publish_with("orders.eu", "x", id("usual")).await;
        amqp.publish_with("orders.eu", "x", id("test").with_headers(kind))
            .await;
        amqp.publish_with("orders.vip", "x", id("vip")).await;
        let _natives = [
            NativeConsumer::start(&vhost, "orders.eu", |_| false).await,
            NativeConsumer::start(&vhost, "orders.vip", |_| false).await,
        ];
        for queue in ["orders.short", "billing"] {
            amqp.publish_with(queue, "x", id(queue).with_expiration("1".into()))
                .await;
        }
        let waits = |queue: &str, hours: u64| format!("{queue}.retry.{}", hours * 3_600_000);
        for (queue, hours, name) in [
            ("orders.eu", 1, "usual"),
            ("orders.vip", 2, "vip"),
            ("orders.short", 3, "orders.short"),
        ] {
            let waiting = take(&amqp, &waits(queue, hours), 1).await.remove(0);
            assert_eq!(waiting.id(), Some(name));
            assert_eq!(waiting.header_int("x-retry-count"), Some(1));
        }
        let parked = take(&amqp, "billing.parked", 1).await.remove(0);
        assert_eq!(
            parked.header_text("x-retry-parked-reason").as_deref(),
            Some("expired")
        );
        assert_eq!(
            parked.header_text("x-retry-expiration").as_deref(),
            Some("1")
        );
        assert_eq!(parked.header_int("x-retry-count"), Some(0));
        let error = parked.header_text("x-retry-error");
        assert_eq!(
            error.as_deref(),
            Some("its time to live ran out in billing")
        );
        replica
            .counts(
                "retryrmq_serve_dropped_total{queue=\"orders.eu\",reason=\"rejected\"}",
                1,
            )
            .await;
        replica
            .counts(
                "retryrmq_serve_parked_total{queue=\"billing\",reason=\"expired\"}",
                1,
            )
            .await;
        replica.says("dropped, because the policy says so").await;
    })
    .await;
}

#[tokio::test]
async fn what_a_full_queue_pushed_out_and_what_came_back_too_often_is_parked() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let _replica = Replica::start(&vhost, None).await;
        let number = |number| retryrmq_harness::lapin::types::AMQPValue::LongLongInt(number);
        let mut full = FieldTable::default();
        full.insert("x-dead-letter-exchange".into(), text("retryrmq.dead"));
        full.insert("x-max-length".into(), number(1));
        amqp.declare_with("full", QueueType::Classic, full).await;
        amqp.publish_with("full", "x", id("first")).await;
        amqp.publish_with("full", "x", id("second")).await;
        let parked = take(&amqp, "full.parked", 1).await.remove(0);
        assert_eq!(parked.id(), Some("first"));
        assert_eq!(
            parked.header_text("x-retry-parked-reason").as_deref(),
            Some("overflow")
        );
        let mut limited = FieldTable::default();
        limited.insert("x-dead-letter-exchange".into(), text("retryrmq.dead"));
        limited.insert("x-delivery-limit".into(), number(2));
        amqp.declare_with("often", QueueType::Quorum, limited).await;
        amqp.publish_with("often", "x", id("often")).await;
        let mut consumer = amqp.consume("often", 1).await;
        use futures_util::StreamExt;
        use retryrmq_harness::lapin::options::BasicRejectOptions;
        for _ in 0..3 {
            let delivery = consumer.next().await.unwrap().unwrap();
            delivery
                .acker
                .reject(BasicRejectOptions { requeue: true })
                .await
                .unwrap();
        }
        let parked = take(&amqp, "often.parked", 1).await.remove(0);
        assert_eq!(
            parked.header_text("x-retry-parked-reason").as_deref(),
            Some("delivery-limit")
        );
    })
    .await;
}

#[tokio::test]
async fn a_changed_file_holds_at_once_and_a_broken_one_never() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let file = policy("[defaults]\nretry = \"fixed(1h)\"\n");
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let _native = NativeConsumer::start(&vhost, "orders", |_| false).await;
        let waits = async |hours: u64, name: &str| {
            amqp.publish_with("orders", "x", id(name)).await;
            let queue = format!("orders.retry.{}", hours * 3_600_000);
            assert_eq!(take(&amqp, &queue, 1).await[0].id(), Some(name));
        };
        waits(1, "before").await;
        // Its content is looked at.
        std::fs::write(file.path(), "[defaults]\nretry = \"fixed(2h)\"\n").unwrap();
        replica
            .counts("retryrmq_serve_policy_loads_total{result=\"loaded\"}", 2)
            .await;
        waits(2, "changed").await;
        std::fs::write(file.path(), "[defaults]\nretry = \"sometimes\"\n").unwrap();
        replica
            .counts("retryrmq_serve_policy_loads_total{result=\"refused\"}", 1)
            .await;
        let said = replica.says("is refused").await;
        assert!(
            said["error"]
                .as_str()
                .unwrap()
                .contains(":2:9: cannot read the retry policy"),
            "{said}"
        );
        waits(2, "broken").await;
        // And asked for.
        replica.signal(Signal::HUP);
        replica
            .counts("retryrmq_serve_policy_loads_total{result=\"refused\"}", 2)
            .await;
        std::fs::write(file.path(), "[defaults]\nretry = \"fixed(3h)\"\n").unwrap();
        replica.signal(Signal::HUP);
        replica
            .counts("retryrmq_serve_policy_loads_total{result=\"loaded\"}", 3)
            .await;
        waits(3, "mended").await;
        eventually(DEADLINE, "the intake is empty", || async {
            amqp.depth(INTAKE).await == Some(0)
        })
        .await;
        assert!(replica.end().await.success());
    })
    .await;
}

#[tokio::test]
async fn two_services_with_different_policies_say_so_until_they_agree() {
    on_brokers_where(
        |broker| broker.version() >= Version::V4_3,
        |broker| async move {
            let vhost = broker.vhost().await;
            let files = [
                policy("[defaults]\nretry = \"fixed(1h)\"\n"),
                policy("[defaults]\nretry = \"fixed(2h)\"\n"),
                policy("# as the first one\n[defaults]\nretry = \"fixed(60m)\"\n"),
            ];
            let [one, two, same] = files.each_ref();
            let one = Replica::start(&vhost, Some(one.path())).await;
            let same = Replica::start(&vhost, Some(same.path())).await;
            let differs = async |replica: &Replica, value: u8| {
                let line = format!("retryrmq_serve_policies_differ {value}");
                eventually(DEADLINE, &line, || async {
                    let (_, text) = replica.page("/metrics").await;
                    text.lines().any(|said| said == line)
                })
                .await;
            };
            differs(&one, 0).await;
            let other = Replica::start(&vhost, Some(two.path())).await;
            tokio::join!(differs(&one, 1), differs(&other, 1));
            let said = one.says("depends on which of them takes it").await;
            assert!(
                said["other"].as_str().unwrap().contains("retryrmq-serve@"),
                "{said}"
            );
            // A file that changes ends it at once where it is read, and with the next word of that one elsewhere.
            std::fs::write(two.path(), "[defaults]\nretry = \"fixed(1h)\"\n").unwrap();
            tokio::join!(differs(&one, 0), differs(&same, 0), differs(&other, 0));
            for replica in [&one, &other] {
                replica.says("uses a different policy any more").await;
                assert_eq!(replica.said("depends on which of them takes it"), 1);
            }
            for replica in [one, same, other] {
                assert!(replica.end().await.success());
            }
        },
    )
    .await;
}
