//! What costs the channel or the connection, and who goes with whom.

use crate::fixture::Fixture;
use retryrmq_model::lapin::BasicProperties;
use retryrmq_model::lapin::types::{AMQPValue, FieldTable};
use retryrmq_model::{Declare, Frame, Method, Profile, Publish, QueueType, Version};

fn refused(method: Method) -> Option<u16> {
    let mut fixture = Fixture::with(Profile {
        largest_body: 100,
        ..Profile::new(Version::V4_3)
    });
    fixture.declare("orders", QueueType::Classic);
    fixture.send(method);
    fixture.refusal()
}

fn publish(properties: BasicProperties) -> Method {
    Method::Publish(Box::new(Publish::to_queue("orders", *b"").with(properties)))
}

fn declare(declare: Declare) -> Method {
    Method::Declare(Box::new(declare))
}

#[test]
fn what_a_broker_cannot_take_is_refused_with_the_code_that_brokers_use() {
    let plain = BasicProperties::default;
    let huge = |bytes: usize| {
        let mut headers = FieldTable::default();
        headers.insert("huge".into(), AMQPValue::LongString(vec![7; bytes].into()));
        plain().with_headers(headers)
    };
    let large = |bytes| Method::Publish(Box::new(Publish::to_queue("orders", vec![7; bytes])));
    let missing = Publish {
        exchange: "missing".into(),
        ..Publish::to_queue("orders", *b"")
    };
    for (method, code) in [
        (large(100), None),
        (large(101), Some(406)), // 42
        (publish(huge(131_000)), None),
        (publish(huge(131_072)), Some(501)), // 25
        (publish(plain().with_user_id("guest".into())), None),
        (publish(plain().with_user_id("other".into())), Some(406)), // 24
        (
            publish(plain().with_reply_to("amq.rabbitmq.reply-to".into())),
            Some(406),
        ), // 86
        (
            publish(plain().with_reply_to("amq.rabbitmq.reply-to.x".into())),
            None,
        ),
        (publish(plain().with_expiration("soon".into())), Some(406)), // 15
        (Method::Publish(Box::new(missing)), Some(404)),              // 37
        (declare(Declare::passive("missing")), Some(404)),            // 18
        (
            declare(Declare::durable("orders", QueueType::Classic)),
            None,
        ),
        (
            declare(Declare::durable("orders", QueueType::Quorum)),
            Some(406),
        ),
        (
            declare(Declare::durable("amq.mine", QueueType::Quorum)),
            Some(403),
        ),
        (
            Method::Ack {
                tag: 1,
                multiple: false,
            },
            Some(406),
        ),
    ] {
        let words = format!("{method:?}");
        assert_eq!(refused(method), code, "{}", &words[..words.len().min(200)]);
    }
}

#[test]
fn an_exclusive_queue_is_locked_for_others_and_goes_with_its_connection() {
    let mut fixture = Fixture::new(Version::V4_3);
    let mut own = Declare::durable("own", QueueType::Classic);
    own.exclusive = true;
    fixture.declare_as(own);
    let owner = fixture.client;
    fixture.client = fixture.broker.connect().unwrap();
    fixture.send(Method::OpenChannel);
    fixture.send(declare(Declare::passive("own")));
    assert_eq!(fixture.refusal(), Some(405));
    fixture.broker.cut(owner);
    assert_eq!(fixture.broker.queue_view("own"), None);
}

#[test]
fn an_auto_delete_queue_goes_with_its_last_consumer_and_not_before_the_first() {
    let mut fixture = Fixture::new(Version::V4_3);
    let mut brief = Declare::durable("brief", QueueType::Classic);
    brief.auto_delete = true;
    fixture.declare_as(brief);
    assert!(fixture.broker.queue_view("brief").is_some());
    fixture.consume("brief", 1);
    fixture.frames();
    fixture.send(Method::Cancel {
        tag: "reader".into(),
    });
    assert_eq!(fixture.broker.queue_view("brief"), None);
}

#[test]
fn who_consumes_a_queue_that_is_deleted_is_told() {
    let mut fixture = Fixture::new(Version::V3_10);
    fixture.declare("orders", QueueType::Quorum);
    fixture.consume("orders", 1);
    fixture.frames();
    fixture.broker.delete_queue("orders");
    assert!(matches!(fixture.frames()[..], [Frame::Cancel { .. }])); // 31
}
