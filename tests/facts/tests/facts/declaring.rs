//! What a declaration may change, and what a broker says when it may not.

use lapin::options::QueueDeclareOptions;
use lapin::types::AMQPValue;
use lapin::{Connection, Result};
use retryrmq_facts::*;
use retryrmq_harness::{QueueType, Version, Vhost, on_every_broker, on_every_queue_type};

type Arguments = Vec<(&'static str, AMQPValue)>;

/// Fact 18.
#[tokio::test]
async fn declaring_again_with_equal_arguments_is_allowed() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let declare = |arguments| {
            declare(
                amqp.connection(),
                "queue",
                arguments,
                QueueDeclareOptions::durable(),
            )
        };
        declare(arguments(queue_type)).await.unwrap();
        declare(arguments(queue_type)).await.unwrap();
        declare(changed(
            queue_type,
            "x-message-ttl",
            Some(AMQPValue::LongInt(60_000)),
        ))
        .await
        .unwrap();
        declare(changed(queue_type, "x-unheard-of", Some(int(1))))
            .await
            .expect("what no broker knows is not compared");
    })
    .await;
}

/// Fact 18.
#[tokio::test]
async fn declaring_again_with_any_other_argument_is_refused_in_these_words() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let durable = QueueDeclareOptions::durable();
        declare(amqp.connection(), "queue", arguments(queue_type), durable).await.unwrap();
        let (this, other) = (queue_type.as_str(), if queue_type == QueueType::Quorum { "classic" } else { "quorum" });
        for (name, value, complaint) in [
            ("x-message-ttl", Some(int(60_001)), "received '60001' but current is '60000'"),
            ("x-message-ttl", None, "received none but current is the value '60000' of type 'long'"),
            ("x-max-length", Some(int(5)), "received the value '5' of type 'long' but current is none"),
            ("x-dead-letter-exchange", Some(string("amq.direct")), "received 'amq.direct' but current is ''"),
            ("x-dead-letter-exchange", None, "received none but current is the value '' of type 'longstr'"),
            ("x-queue-type", Some(string(other)), &format!("received '{other}' but current is '{this}'")),
        ] {
            let again = declare(amqp.connection(), "queue", changed(queue_type, name, value), durable).await;
            assert_eq!(refusal(again), (406, inequivalent(name, &vhost, complaint)));
        }
        let transient = declare(amqp.connection(), "queue", arguments(queue_type), QueueDeclareOptions::default()).await;
        let complaint = "received 'false' but current is 'true'";
        assert_eq!(refusal(transient), (406, inequivalent("durable", &vhost, complaint)));
        let exclusive = QueueDeclareOptions { exclusive: true, ..durable };
        let (code, text) = refusal(declare(amqp.connection(), "queue", arguments(queue_type), exclusive).await);
        assert_eq!(code, 405);
        let vhost = vhost.name();
        let start = format!("RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'queue' in vhost '{vhost}'.");
        assert!(text.starts_with(&start), "{text}");
    })
    .await;
}

/// Fact 18.
#[tokio::test]
async fn leaving_the_type_out_means_classic_except_on_3_10_where_it_means_none() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let durable = QueueDeclareOptions::durable();
        let classic = vec![("x-queue-type", string("classic"))];
        declare(amqp.connection(), "without", vec![], durable)
            .await
            .unwrap();
        declare(amqp.connection(), "without", classic.clone(), durable)
            .await
            .unwrap();
        declare(amqp.connection(), "with", classic, durable)
            .await
            .unwrap();
        declare(amqp.connection(), "with", vec![], durable)
            .await
            .unwrap();

        amqp.declare("queue", QueueType::Quorum).await;
        let complaint = if broker.version() < Version::V4_0 {
            "received none but current is the value 'quorum' of type 'longstr'"
        } else {
            "received 'classic' but current is 'quorum'"
        };
        let without = declare(amqp.connection(), "queue", vec![], durable).await;
        assert_eq!(
            refusal(without),
            (406, inequivalent("x-queue-type", &vhost, complaint))
        );
    })
    .await;
}

/// Fact 18.
#[tokio::test]
async fn a_passive_declaration_looks_at_nothing_but_the_name() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let passive = QueueDeclareOptions {
            passive: true,
            ..Default::default()
        };
        let missing = declare(amqp.connection(), "queue", vec![], passive).await;
        let vhost = vhost.name();
        assert_eq!(
            refusal(missing),
            (
                404,
                format!("NOT_FOUND - no queue 'queue' in vhost '{vhost}'")
            )
        );
        declare(
            amqp.connection(),
            "queue",
            arguments(queue_type),
            QueueDeclareOptions::durable(),
        )
        .await
        .unwrap();
        declare(amqp.connection(), "queue", vec![], passive)
            .await
            .unwrap();
        declare(
            amqp.connection(),
            "queue",
            vec![("x-message-ttl", int(1))],
            passive,
        )
        .await
        .unwrap();
    })
    .await;
}

/// Fact 18.
#[tokio::test]
async fn arguments_that_cannot_be_are_refused_in_these_words() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let quorum = || ("x-queue-type", string("quorum"));
        for (arguments, complaint) in [
            (
                vec![("x-queue-type", string("bogus"))],
                "'x-queue-type'…: \"unsupported queue type 'bogus'\"",
            ),
            (
                vec![quorum(), ("x-dead-letter-strategy", string("bogus"))],
                "'x-dead-letter-strategy'…: invalid_dlx_strategy",
            ),
            (
                vec![quorum(), ("x-message-ttl", string("5"))],
                "'x-message-ttl'…: \"expected integer, got longstr\"",
            ),
            (
                vec![
                    ("x-queue-type", string("classic")),
                    ("x-delivery-limit", int(1)),
                ],
                "'x-delivery-limit'… of queue type rabbit_classic_queue",
            ),
        ] {
            let refused = declare(
                amqp.connection(),
                "queue",
                arguments,
                QueueDeclareOptions::durable(),
            )
            .await;
            let place = format!(" for queue 'queue' in vhost '{}'", vhost.name());
            let complaint = complaint.replace('…', &place);
            assert_eq!(
                refusal(refused),
                (
                    406,
                    format!("PRECONDITION_FAILED - invalid arg {complaint}")
                )
            );
        }
        let reserved = declare(
            amqp.connection(),
            "amq.mine",
            vec![],
            QueueDeclareOptions::durable(),
        )
        .await;
        let text = "ACCESS_REFUSED - queue name 'amq.mine' contains reserved prefix 'amq.*'";
        assert_eq!(refusal(reserved), (403, text.to_owned()));
    })
    .await;
}

/// Fact 15.
#[tokio::test]
async fn a_queue_name_may_have_255_bytes() {
    on_every_queue_type(|broker, queue_type| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let name = "ü".repeat(127) + "q";
        assert_eq!(name.len(), 255);
        amqp.declare(&name, queue_type).await;
        amqp.publish(&name, "").await;
        hold(amqp.channel(), &name).await;
    })
    .await;
}

/// Fact 22.
#[tokio::test]
async fn a_transient_queue_that_others_may_use_is_allowed_everywhere() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let classic = vec![("x-queue-type", string("classic"))];
        declare(
            amqp.connection(),
            "queue",
            classic,
            QueueDeclareOptions::default(),
        )
        .await
        .unwrap();
    })
    .await;
}

/// What an ordinary retry queue is declared with.
fn arguments(queue_type: QueueType) -> Arguments {
    let mut arguments = dead_letters_to("work");
    arguments.extend([
        ("x-queue-type", string(queue_type.as_str())),
        ("x-message-ttl", int(60_000)),
    ]);
    arguments
}

/// The same with one argument set, added or left out.
fn changed(queue_type: QueueType, name: &'static str, value: Option<AMQPValue>) -> Arguments {
    let mut arguments = arguments(queue_type);
    arguments.retain(|(known, _)| *known != name);
    arguments.extend(value.map(|value| (name, value)));
    arguments
}

fn inequivalent(argument: &str, vhost: &Vhost, complaint: &str) -> String {
    let vhost = vhost.name();
    format!(
        "PRECONDITION_FAILED - inequivalent arg '{argument}' for queue 'queue' in vhost '{vhost}': {complaint}"
    )
}

/// Declares on a channel of its own, which a refusal closes.
async fn declare(
    connection: &Connection,
    name: &str,
    arguments: Arguments,
    options: QueueDeclareOptions,
) -> Result<()> {
    let channel = connection.create_channel().await?;
    let declared = channel
        .queue_declare(name.into(), options, table(arguments))
        .await
        .map(drop);
    match declared {
        Ok(()) => channel.close(200, "".into()).await?,
        Err(_) => closed(&channel).await,
    }
    declared
}

/// Fact 84.
#[tokio::test]
async fn what_no_type_takes_is_refused_with_the_default_type() {
    on_every_broker(|broker| async move {
        let mut cells = vec![(broker.vhost().await, "classic")];
        if broker.version() >= Version::V4_0 {
            let quorum = Vhost::with_default_queue_type(&broker, QueueType::Quorum).await;
            let stream = Vhost::with_default_stream(&broker).await;
            cells.extend([(quorum, "quorum"), (stream, "stream")]);
        }
        for (vhost, kind) in cells {
            let amqp = vhost.connect().await;
            let arguments = vec![
                ("x-max-age", string("1D")),
                ("x-message-ttl", AMQPValue::LongInt(1)),
            ];
            let options = QueueDeclareOptions::durable();
            let refused = declare(amqp.connection(), "queue", arguments, options).await;
            let (code, text) = refusal(refused);
            assert_eq!(code, 406);
            let end = format!("of queue type rabbit_{kind}_queue");
            assert!(text.ends_with(&end), "{text}");
            assert_eq!(amqp.depth("queue").await, None, "it was not created");
        }
    })
    .await;
}

/// Fact 85.
#[tokio::test]
async fn a_refusal_that_is_too_long_and_not_ascii_costs_the_connection() {
    on_every_broker(|broker| async move {
        let vhost = broker.vhost().await;
        // What is said of a missing queue, without its name.
        let said = "NOT_FOUND - no queue '' in vhost ''".len() + vhost.name().len();
        let most = 255 - said;
        let long = "ä".repeat(most / 2 + 1);
        for (name, is_long) in [
            ("x".repeat(most + 2), false),
            ("ä".repeat(most / 2), false),
            (long, true),
        ] {
            let amqp = vhost.connect().await;
            let passive = QueueDeclareOptions {
                passive: true,
                ..QueueDeclareOptions::default()
            };
            let asked =
                amqp.channel()
                    .queue_declare(name.as_str().into(), passive, Default::default());
            let (code, text) = refusal(asked.await);
            if is_long && broker.version() >= Version::V4_0 {
                assert_eq!((code, text.as_str()), (541, "INTERNAL_ERROR"), "{name}");
            } else {
                assert_eq!(code, 404, "{name}: {text}");
            }
        }
    })
    .await;
}
