//! What consumers of AMQP 0-9-1 can be given of what publishers of AMQP 1.0 send.

use lapin::options::BasicGetOptions;
use retryrmq_facts::*;
use retryrmq_harness::{
    Amqp, Amqp10, Body10, Message10,
    Property10::{self, *},
    QueueType,
    Value10::{self, *},
    Version, Vhost, eventually, on_every_broker_where,
};

fn new() -> Message10 {
    Message10::new("x")
}

fn with(property: Property10, value: Value10) -> Message10 {
    new().with(property, value)
}

fn application(value: Value10) -> Message10 {
    new().application(Value10::string("name"), value)
}

fn annotated(key: &str, value: Value10) -> Message10 {
    new().annotation(Value10::symbol(key), value)
}

fn text() -> Value10 {
    Value10::string("text")
}

fn long(length: usize) -> Vec<u8> {
    vec![b'x'; length]
}

fn map(key: Value10, value: Value10) -> Value10 {
    Map(vec![(key, value)])
}

fn entry(value: Value10) -> Value10 {
    map(Value10::symbol("key"), value)
}

fn list(value: Value10) -> Value10 {
    List(vec![value])
}

fn footer(body: Body10, key: &str) -> Message10 {
    Message10::of(body).footer(Value10::symbol(key), text())
}

fn data() -> Body10 {
    Body10::Data(vec![b"x".into()])
}

/// What no consumer of AMQP 0-9-1 can be given.
fn unreadable() -> Vec<Message10> {
    let mut all = vec![
        // Properties that do not fit, or are of a type that is against the protocol.
        with(ContentType, Symbol(long(256))),
        with(ContentType, Int(1)),
        with(ContentEncoding, Symbol(long(256))),
        with(MessageId, Value10::symbol("id")),
        with(CorrelationId, Int(1)),
        with(CreationTime, Bool(true)),
        footer(data(), "key"),
        annotated("x-basic-type", Value10::String(long(256))),
        annotated("x-basic-priority", text()).header([]),
        annotated("x-basic-expiration", Uint(3_600_000)).header([]),
        annotated("x-basic-delivery-mode", text()).header([]),
        annotated("x-opt-deaths", Array(vec![entry(text())])),
    ];
    for value in [Uuid([7; 16]), Char(0x41)] {
        all.push(application(value.clone()));
        all.push(annotated("x-name", value.clone()));
        all.push(application(list(value.clone())));
        all.push(application(entry(value)));
    }
    let nested = [
        list(Ulong(1)),
        Array(vec![Ulong(1)]),
        list(Array(vec![Int(1)])),
        list(list(Decimal32([1; 4]))),
        list(entry(Value10::double(f64::NAN))),
        map(Int(1), text()),
        map(Null, text()),
        map(Symbol(long(256)), text()),
    ];
    for value in nested {
        all.push(application(value.clone()));
        all.push(annotated("x-name", value));
    }
    all
}

/// What 4.3 leaves out of the message, and 4.0 cannot give to a consumer.
fn unreadable_on_4_0() -> Vec<Message10> {
    let values = [
        Decimal32([1; 4]),
        Decimal64([1; 8]),
        Decimal128([1; 16]),
        Value10::float(f32::NAN),
        Value10::double(f64::INFINITY),
    ];
    let all = values.into_iter();
    all.flat_map(|value| [application(value.clone()), application(list(value))])
        .collect()
}

/// What may look as if it were unreadable.
fn readable() -> Vec<Message10> {
    let mut all = vec![
        with(ContentType, Symbol(long(255))),
        with(ReplyTo, Value10::String(long(256))),
        with(GroupId, Value10::String(long(256))),
        with(Subject, Uuid([7; 16])),
        with(AbsoluteExpiryTime, Timestamp(i64::MIN)),
        with(CreationTime, Timestamp(i64::MIN)),
        footer(data(), "x-key"),
        footer(Body10::Value(text()), "key"),
        new().header([Bool(false), Ubyte(255), Uint(u32::MAX)]),
        new().header([]),
        new().delivery_annotation(Value10::symbol("x-name"), Uuid([7; 16])),
        new().application(Value10::String(long(256)), Int(1)),
        new().application(Int(1), Int(1)),
        Message10::of(Body10::Value(list(Uuid([7; 16])))),
        Message10::of(Body10::Sequence(vec![vec![Char(0x41)], vec![]])),
        Message10::of(Body10::Data(vec![vec![], b"x".into()])),
    ];
    for value in [Ulong(1), Uuid([7; 16]), Binary(long(300))] {
        all.push(with(MessageId, value.clone()));
        all.push(with(CorrelationId, value));
    }
    let values = [
        Null,
        Ulong(u64::MAX),
        Timestamp(-1),
        Binary(vec![255]),
        Value10::String(vec![255]),
        Value10::String(long(70_000)),
        entry(Ulong(1)),
        entry(Array(vec![Int(1)])),
        Array(vec![list(Int(1))]),
        list(list(list(Int(1)))),
        map(Symbol(long(255)), text()),
    ];
    for value in values {
        all.push(application(value.clone()));
        all.push(annotated("x-name", value));
    }
    all
}

async fn get(amqp: &Amqp) -> lapin::Result<Option<lapin::message::BasicGetMessage>> {
    let get = amqp
        .channel()
        .basic_get("work".into(), BasicGetOptions::default());
    get.await
}

/// Asserts that nobody can have this message, that whoever tries loses the connection, and that the message is still there then.
async fn is_unreadable(vhost: &Vhost, message: &Message10) {
    for _ in 0..2 {
        let amqp = vhost.connect().await;
        eventually(DEADLINE, "the message is there", || async {
            amqp.depth("work").await == Some(1)
        })
        .await;
        let refused = refusal(get(&amqp).await.map(drop));
        assert_eq!(refused, (541, "INTERNAL_ERROR".to_owned()), "{message:?}");
        eventually(DEADLINE, "the connection is gone", || async {
            !amqp.connection().status().connected()
        })
        .await;
    }
}

async fn on_both_types<F: Future<Output = ()>>(test: impl Fn(Version, QueueType, Vhost) -> F) {
    on_every_broker_where(
        |broker| broker.version() >= Version::V4_0,
        |broker| {
            let test = &test;
            async move {
                for kind in QueueType::ALL {
                    test(broker.version(), kind, broker.vhost().await).await;
                }
            }
        },
    )
    .await;
}

/// Fact 94.
#[tokio::test]
async fn some_messages_of_amqp_1_0_cost_each_consumer_its_connection() {
    on_both_types(|version, kind, vhost| async move {
        let amqp = vhost.connect().await;
        let mut publisher = Amqp10::connect(&vhost).await;
        let mut all = unreadable();
        if version < Version::V4_3 {
            all.extend(unreadable_on_4_0());
        }
        for message in all {
            amqp.declare("work", kind).await;
            publisher.publish("/queues/work", &message).await;
            is_unreadable(&vhost, &message).await;
            amqp.delete("work").await;
        }
    })
    .await;
}

/// Fact 94.
#[tokio::test]
async fn all_other_messages_of_amqp_1_0_can_be_consumed() {
    on_both_types(|version, kind, vhost| async move {
        let amqp = vhost.connect().await;
        amqp.declare("work", kind).await;
        let mut publisher = Amqp10::connect(&vhost).await;
        let mut all = readable();
        if version >= Version::V4_3 {
            all.extend(unreadable_on_4_0());
        }
        let published = publisher.try_publish_all("/queues/work", &all).await;
        published.unwrap();
        for message in all {
            let came = amqp.take("work").await;
            assert!(came.is_some(), "{message:?}");
        }
    })
    .await;
}
