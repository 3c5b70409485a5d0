//! `retryrmq publish`: confirmed, or an error.

use std::{io::Write, net::TcpListener};

use retryrmq::types::AMQPValue;
use retryrmq_harness::{
    Permissions,
    lapin::{ExchangeKind, options::QueueBindOptions},
    on_brokers,
};

use crate::fixture::{Fixture, QUEUE};

#[tokio::test]
async fn a_message_is_as_it_was_asked_for() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let arguments = [
            "--json",
            "publish",
            "--queue",
            QUEUE,
            "--message-id=7",
            "--content-type=application/json",
            "--header=tenant=a=b",
            "--header=n:=5",
            "--header=deep:={\"k\":[1.5,true,null]}",
            "{}",
        ];
        assert_eq!(
            fixture.run(&arguments).await.exits(0).json()["published"],
            1
        );
        let message = fixture.amqp.take(QUEUE).await.unwrap();
        assert_eq!((message.text(), message.id()), ("{}", Some("7")));
        assert_eq!(
            message.properties.content_type().as_ref().unwrap().as_str(),
            "application/json"
        );
        assert_eq!(*message.properties.delivery_mode(), Some(2));
        assert_eq!(message.header_text("tenant").unwrap(), "a=b");
        assert_eq!(message.header("n"), Some(AMQPValue::LongLongInt(5)));
        assert!(matches!(
            message.header("deep"),
            Some(AMQPValue::FieldTable(_))
        ));
    })
    .await;
}

#[tokio::test]
async fn bodies_come_from_standard_input_too() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let body = [0, 0xff, b'\n', 0];
        fixture
            .feed(&["publish", "--queue", QUEUE], &body)
            .await
            .exits(0);
        assert_eq!(fixture.amqp.take(QUEUE).await.unwrap().body, body);
        let lines: String = (1..=1000).map(|n| format!("line {n}\n")).collect();
        let done = fixture
            .feed(
                &[
                    "--json",
                    "publish",
                    "--queue",
                    QUEUE,
                    "--lines",
                    "--message-id=m",
                ],
                lines.as_bytes(),
            )
            .await
            .exits(0);
        assert_eq!(done.json()["published"], 1000);
        let all = fixture.amqp.drain(QUEUE).await;
        for (index, message) in all.iter().enumerate() {
            let (id, body) = (format!("m-{}", index + 1), format!("line {}", index + 1));
            assert_eq!(
                (message.id(), message.text()),
                (Some(id.as_str()), body.as_str()),
                "in order"
            );
        }
        assert_eq!(all.len(), 1000);
        fixture
            .run(&["publish", "--queue", QUEUE, "--count=3", "again"])
            .await
            .exits(0);
        fixture.holds(QUEUE, 3).await;
    })
    .await;
}

#[tokio::test]
async fn what_no_queue_takes_is_an_error() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let done = fixture.run(&["publish", QUEUE, "x"]).await.exits(2);
        assert!(done.err.contains("pass --queue orders"), "{done:#?}");
        let done = fixture
            .run(&["--json", "publish", "--queue=nope", "x"])
            .await
            .exits(3);
        assert!(
            done.err.contains("\"code\":\"unroutable\"")
                && done.err.contains("there is no queue `nope`"),
            "{done:#?}"
        );
        let done = fixture
            .run(&[
                "--json",
                "publish",
                "--exchange=amq.topic",
                "--routing-key=a.b",
                "x",
            ])
            .await
            .exits(3);
        assert!(done.err.contains("unroutable"), "{done:#?}");
        fixture
            .run(&["publish", "--exchange=nope", "--routing-key=a.b", "x"])
            .await
            .exits(3);
        fixture
            .amqp
            .channel()
            .exchange_declare(
                "shop".into(),
                ExchangeKind::Topic,
                Default::default(),
                Default::default(),
            )
            .await
            .unwrap();
        fixture
            .amqp
            .channel()
            .queue_bind(
                QUEUE.into(),
                "shop".into(),
                "eu.#".into(),
                QueueBindOptions::default(),
                Default::default(),
            )
            .await
            .unwrap();
        fixture
            .run(&["publish", "--exchange=shop", "--routing-key=eu.de", "x"])
            .await
            .exits(0);
        let message = fixture.amqp.take(QUEUE).await.unwrap();
        assert_eq!(
            (message.exchange.as_str(), message.routing_key.as_str()),
            ("shop", "eu.de")
        );
    })
    .await;
}

#[tokio::test]
async fn a_delayed_message_waits() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        fixture
            .run(&["publish", "--queue", QUEUE, "--delay=1h", "x"])
            .await
            .exits(0);
        assert_eq!(fixture.amqp.depth(QUEUE).await, Some(0));
        fixture
            .run(&["publish", "--queue", QUEUE, "--delay=200ms", "soon"])
            .await
            .exits(0);
        fixture.holds(QUEUE, 1).await;
        assert_eq!(fixture.amqp.take(QUEUE).await.unwrap().text(), "soon");
        fixture
            .run(&["publish", "--queue=nope", "--delay=1s", "x"])
            .await
            .exits(3);
    })
    .await;
}

/// In whatever order they are tried.
#[tokio::test]
async fn one_of_several_hosts_will_do_and_the_password_may_be_in_a_file() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let nobody = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let dead = nobody.local_addr().unwrap();
        drop(nobody);
        let user = fixture.vhost.name();
        let management = broker.management();
        management
            .create_user(user, "4711-sesame", "")
            .await
            .unwrap();
        let allowed = management.set_permissions(fixture.vhost.name(), user, Permissions::ALL);
        allowed.await.unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        writeln!(file, "4711-sesame").unwrap();
        let at = fixture.vhost.url_as(user, "").replacen(":@", "@", 1);
        let at = at.replacen('@', &format!("@{dead},"), 1);
        let url = format!("{at}?passwordfile={}", file.path().display());
        for _ in 0..6 {
            let publish = ["--url", &url, "publish", "--queue", QUEUE, "x"];
            fixture.run(&publish).await.exits(0);
        }
        fixture.holds(QUEUE, 6).await;
        file.as_file().set_len(0).unwrap();
        let publish = ["--url", &url, "publish", "--queue", QUEUE, "x"];
        let refused = fixture.run(&publish).await;
        assert!(!refused.status.success(), "{refused:#?}");
        management.delete_user(user).await.unwrap();
    })
    .await;
}
