//! Bodies decoded for people and programs, with schemas from the command line and from a configuration file.

use std::{fs, path::Path};

use prost::Message;
use retryrmq_harness::{QueueType, lapin::BasicProperties, on_brokers};
use serde_json::json;

use crate::fixture::{Fixture, PARKED, QUEUE};

const PROTO: &str = "syntax = \"proto3\"; package shop; message Customer { int64 id = 1; string name = 2; } message Order { Customer customer = 1; double total = 2; } message Note { string text = 4; }";
const AVRO: &str = r#"{"type": "record", "name": "Line", "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}]}"#;

/// A descriptor set, as protoc writes it, an Avro schema, and a configuration file that names both.
fn write_schemas(folder: &Path) {
    fs::write(folder.join("shop.proto"), PROTO).unwrap();
    let set = protox::compile(["shop.proto"], [folder])
        .unwrap()
        .encode_to_vec();
    fs::write(folder.join("shop.pb"), set).unwrap();
    fs::write(folder.join("line.avsc"), AVRO).unwrap();
    let config = "[[decoders]]\ncontent_type = '*/avro'\navro = 'line.avsc'\n\n[[decoders]]\nqueue = 'orders'\nproto = 'shop.pb'\ntype = 'shop.Order'\n";
    fs::write(folder.join("retryrmq.toml"), config).unwrap();
}

#[tokio::test]
async fn bodies_are_decoded_by_the_schemas_that_are_given() {
    on_brokers(|broker| async move {
        let fixture = Fixture::of(&broker).await;
        let folder = tempfile::tempdir().unwrap();
        write_schemas(folder.path());
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
        fixture.amqp.declare(PARKED, QueueType::Quorum).await;
        let order = &b"\x0a\x07\x08\x07\x12\x03Ada\x11\x00\x00\x00\x00\x00\x00\x29\x40"[..];
        for (id, body, kind) in [
            ("order", order, "application/octet-stream"),
            ("line", b"\x06A-1\x04", "binary/avro"),
            (
                "packed",
                b"\x82\xa1a\x01\xa1b\x93\x01\xc1",
                "application/msgpack",
            ),
            (
                "wrapped",
                b"eyJjdXN0b21lciI6IHsiaWQiOiA3fX0=",
                "application/octet-stream",
            ),
        ] {
            let properties = BasicProperties::default()
                .with_message_id(id.into())
                .with_content_type(kind.into());
            fixture.amqp.publish_with(PARKED, body, properties).await;
        }
        fixture.holds(PARKED, 4).await;

        let (set, avro, config) = (path("shop.pb"), path("line.avsc"), path("retryrmq.toml"));
        let value = json!({"customer": {"id": 7, "name": "Ada"}, "total": 12.5});
        for (options, guess) in [
            (vec!["--proto", &set, "--type", "shop.Order"], false),
            (vec!["--proto", &set, "--proto-type", "Order"], false),
            (vec!["--proto", &set], true),
            (vec!["--config", &config], false),
        ] {
            let mut arguments = vec!["--json", "parked", "show", QUEUE, "order"];
            arguments.extend(&options);
            let decoded = fixture.run(&arguments).await.exits(0).json()["decoded"].clone();
            assert_eq!(
                (&decoded["type"], &decoded["value"], &decoded["guess"]),
                (&json!("shop.Order"), &value, &json!(guess)),
                "{options:?}"
            );
            assert_eq!(
                (&decoded["format"], &decoded["score"]),
                (&json!("protobuf"), &json!(100))
            );
        }
        for options in [["--avro", &*avro], ["--config", &*config]] {
            let mut arguments = vec!["--json", "parked", "show", QUEUE, "line"];
            arguments.extend(options);
            let decoded = fixture.run(&arguments).await.exits(0).json()["decoded"].clone();
            assert_eq!(
                (&decoded["format"], &decoded["value"]),
                (&json!("avro"), &json!({"sku": "A-1", "count": 2}))
            );
        }
        let found = fixture
            .run(&[
                "--json",
                "parked",
                "ls",
                QUEUE,
                "--config",
                &config,
                "--where=has(body.customer) && body.customer.name == 'Ada'",
            ])
            .await
            .exits(0);
        assert_eq!(found.json()["message_id"], "order");

        // For people; without a schema a guess is marked as one, and what breaks off says where.
        let all = fixture
            .run(&["parked", "show", QUEUE, "--all"])
            .await
            .exits(0)
            .out;
        for words in [
            "protobuf without a schema (a guess)",
            "breaks off at byte 8 (0x8) of the MessagePack",
            "base64 > JSON",
            "000000  82 a1 61 01",
        ] {
            assert!(all.contains(words), "{words} in {all}");
        }
        let best = fixture
            .run(&["parked", "show", QUEUE, "order", "--proto", &set])
            .await
            .exits(0)
            .out;
        assert!(
            best.contains("protobuf shop.Order (best fit of 3, 100 %)")
                && best.contains("\"name\": \"Ada\""),
            "{best}"
        );

        // What fits best is good enough to look at, and not to drop by.
        fs::write(path("guess.toml"), "[[decoders]]\nproto = 'shop.pb'\n").unwrap();
        let guess = path("guess.toml");
        let drop = ["parked", "drop", QUEUE, "--where=body.customer.id == 7"];
        for options in [["--proto", &*set], ["--config", &*guess]] {
            let done = fixture
                .run(&[&drop[..], &options, &["--yes"]].concat())
                .await;
            let done = done.exits(2);
            assert!(
                done.err.contains("name the type with --proto-type"),
                "{done:#?}"
            );
            let done = fixture
                .run(&[&drop[..], &options, &["--dry-run"]].concat())
                .await;
            assert!(done.exits(0).err.contains("would be dropped"));
            let replay = ["parked", "replay", QUEUE, "--where=body.customer.id == 7"];
            let done = fixture
                .run(&[&replay[..], &options].concat())
                .await
                .exits(2);
            assert!(
                done.err.contains("name the type with --proto-type"),
                "{done:#?}"
            );
            let done = fixture
                .run(&[&replay[..], &options, &["--dry-run"]].concat())
                .await;
            assert!(done.exits(0).err.contains("would be replayed"));
        }
        // Without any decoder the format itself may be a guess.
        let condition = "--where=message_id == 'order' && body != null";
        for act in [&["replay"][..], &["drop", "--yes"]] {
            let arguments = [&["parked"], act, &[QUEUE, condition]].concat();
            let done = fixture.run(&arguments).await.exits(3);
            assert!(
                done.err.contains("by a guess") && done.err.contains("--proto and --type"),
                "{done:#?}"
            );
            let rehearsed = [&arguments[..], &["--dry-run"]].concat();
            fixture.run(&rehearsed).await.exits(0);
        }
        fixture.holds(PARKED, 4).await;

        let done = fixture
            .run(&[
                "parked",
                "show",
                QUEUE,
                "order",
                "--proto",
                &set,
                "--type=shop.Ordr",
            ])
            .await
            .exits(2);
        assert!(done.err.contains("`shop.Order`"), "{done:#?}");
        fs::write(
            path("bad.toml"),
            "[[decoders]]\nqueue = 'orders'\nformt = 'json'\n",
        )
        .unwrap();
        let mut command = fixture.command(&["parked", "ls", QUEUE]);
        command.env("RETRYRMQ_CONFIG", path("bad.toml"));
        let done = crate::fixture::finish(command, None).await.exits(2);
        assert!(done.err.contains("line 3, column 1"), "{done:#?}");
        fixture.holds(PARKED, 4).await;

        // With the type it is no guess; nor is a condition on something else than the body.
        let typed = ["--proto", &*set, "--type=shop.Order", "--yes"];
        let typed = [&drop[..], &typed, &["--header=nope"]].concat();
        fixture.run(&typed).await.exits(3);
        let other = ["parked", "drop", QUEUE, "--yes", "--config", &guess];
        let done = fixture
            .run(&[&other[..], &["--where=message_id == 'order'"]].concat())
            .await
            .exits(0);
        assert!(done.err.contains("1 message dropped: order"), "{done:#?}");
        fixture.holds(PARKED, 3).await;
    })
    .await;
}
