//! Dead letters of other libraries, as their fixtures have them, and hostile ones. `fixtures/README.md` says how each was made.
#![allow(missing_docs)]

use std::time::{Duration, SystemTime};

use base64::{Engine, prelude::BASE64_STANDARD};
use proptest::prelude::*;
use retryrmq_operator::other_libraries::{
    DeadLetter, DeadLetterSource, Headers, Library, RawDeadLetter, ReplayedMessage, Value, read,
};
use serde_json::{Value as Json, json};

struct Fixture {
    json: Json,
    headers: Headers,
}

impl Fixture {
    fn named(name: &str) -> Self {
        let path = format!("{}/tests/fixtures/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap();
        let json: Json = serde_json::from_str(&text).unwrap();
        let Value::Table(headers) = value(&json["headers"]) else {
            panic!("headers are a table");
        };
        Self { json, headers }
    }

    fn read(&self) -> DeadLetter {
        read(&RawDeadLetter {
            queue: self.json["queue"].as_str().unwrap(),
            headers: &self.headers,
            kind: self.json["properties"]["type"].as_str(),
            body: self.json["body"].as_str().unwrap().as_bytes(),
            died_in_own_queue: false,
        })
        .expect("it is recognised")
    }
}

fn value(json: &Json) -> Value {
    match json {
        Json::Null => Value::Null,
        Json::Bool(flag) => Value::Flag(*flag),
        Json::Number(number) => Value::Number(number.as_i64().unwrap()),
        Json::String(text) => Value::Text(text.clone()),
        Json::Array(items) => Value::List(items.iter().map(value).collect()),
        Json::Object(table) => match table.get("$time") {
            Some(seconds) => Value::Time(seconds.as_u64().unwrap()),
            None => Value::Table(
                table
                    .iter()
                    .map(|(name, one)| (name.clone(), value(one)))
                    .collect(),
            ),
        },
    }
}

fn queue(name: &str) -> DeadLetterSource {
    DeadLetterSource::Queue(name.to_owned())
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn at(micros: u64) -> Option<SystemTime> {
    Some(SystemTime::UNIX_EPOCH + Duration::from_micros(micros))
}

/// The names of headers that a replay leaves out.
fn without(letter: &DeadLetter) -> Vec<&str> {
    match &letter.replay {
        ReplayedMessage::Without(names) => names.iter().map(String::as_str).collect(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn masstransit() {
    let letter = Fixture::named("masstransit").read();
    assert_eq!(
        (letter.library, &letter.source),
        (Library::MassTransit, &queue("submit-order"))
    );
    assert_eq!(
        (&*letter.error, &*letter.error_type, letter.attempts),
        (
            "no such customer: 7",
            "System.InvalidOperationException",
            Some(4)
        )
    );
    assert_eq!(
        letter.failed_at,
        at(1_782_900_000_123_456).map(|time| time + Duration::from_nanos(700))
    );
    assert!(
        letter
            .stack
            .as_ref()
            .unwrap()
            .contains("SubmitOrderConsumer.cs:line 21")
    );
    assert_eq!(letter.message_type, text("Shop.Contracts.SubmitOrder"));
    let without = without(&letter);
    assert_eq!(without.len(), 13, "{without:?}");
    assert!(!without.contains(&"MT-Fault-Address") && !without.contains(&"tenant"));

    let skipped = Fixture::named("masstransit-skipped").read();
    assert_eq!(
        skipped.source,
        queue("submit-order"),
        "by the name of the queue"
    );
    assert_eq!(skipped.reason, None, "it never ran");
    assert!(
        skipped.error.contains("no consumer takes"),
        "{}",
        skipped.error
    );
}

#[test]
fn a_failure_of_an_earlier_life_is_not_told() {
    for (later, reason, library) in [
        (60, "delivery_limit", Library::Broker),
        (60, "expired", Library::MassTransit),
        (0, "rejected", Library::MassTransit),
    ] {
        let mut fixture = Fixture::named("masstransit");
        let death = json!([{"queue": "submit-order", "reason": reason, "time": {"$time": 1_782_900_000 + later}}]);
        fixture.headers.insert("x-death".to_owned(), value(&death));
        assert_eq!(fixture.read().library, library, "{reason} {later} s later");
    }
}

/// A publisher may write what a library writes. The broker has dead-lettered the message, and knows where.
#[test]
fn headers_that_name_another_queue_than_the_broker_choose_no_target() {
    let text = |text: &str| Value::Text(text.to_owned());
    let death = |queue: &str, reason: &str| {
        Value::Table(Headers::from_iter([
            ("queue".to_owned(), text(queue)),
            ("reason".to_owned(), text(reason)),
            ("time".to_owned(), Value::Time(1_790_000_000)),
        ]))
    };
    let refused = || vec![death("orders", "rejected")];
    let waited = || vec![death("orders.wait", "expired")];
    let fault = ("MT-Reason", "fault");
    let to_payments = ("MT-Fault-InputAddress", "rabbitmq://h/payments");
    for (said, deaths, source) in [
        (vec![fault, to_payments], refused(), None),
        (
            vec![
                ("NServiceBus.FailedQ", "payments"),
                ("NServiceBus.ExceptionInfo.ExceptionType", "X"),
            ],
            refused(),
            None,
        ),
        (
            vec![
                ("x-exception-message", "m"),
                ("x-exception-stacktrace", "a.B: m"),
                ("x-original-exchange", ""),
                ("x-original-routingKey", "payments"),
            ],
            refused(),
            None,
        ),
        // It seems to have failed later.
        (
            vec![
                fault,
                to_payments,
                ("MT-Fault-Timestamp", "2027-01-01T00:00:00.0000000Z"),
            ],
            refused(),
            None,
        ),
        (
            vec![
                ("NServiceBus.FailedQ", "payments"),
                ("NServiceBus.TimeOfFailure", "2027-01-01 00:00:00:000000 Z"),
            ],
            refused(),
            None,
        ),
        // The library names the same queue, or the message only waited elsewhere.
        (
            vec![fault, ("MT-Fault-InputAddress", "rabbitmq://h/orders")],
            refused(),
            Some("orders"),
        ),
        (vec![fault, to_payments], waited(), Some("payments")),
    ] {
        let mut headers: Headers = said
            .iter()
            .map(|(name, said)| ((*name).to_owned(), text(said)))
            .collect();
        headers.insert("x-death".to_owned(), Value::List(deaths));
        let letter = read(&RawDeadLetter {
            queue: "orders_error",
            headers: &headers,
            kind: None,
            body: b"{}",
            died_in_own_queue: false,
        });
        let letter = letter.unwrap();
        assert_eq!(letter.source.queue(), source, "{said:?}: {letter:?}");
    }
}

#[test]
fn nservicebus() {
    let letter = Fixture::named("nservicebus").read();
    assert_eq!(
        (letter.library, &letter.source),
        (Library::NServiceBus, &queue("Sales"))
    );
    assert_eq!(
        (&*letter.error, &*letter.error_type),
        ("no such customer: 7", "System.InvalidOperationException")
    );
    assert_eq!(letter.failed_at, at(1_782_900_000_123_456));
    assert_eq!(letter.message_type, text("Shop.PlaceOrder"));
    assert!(
        letter
            .stack
            .as_ref()
            .unwrap()
            .contains("PlaceOrderHandler.cs:line 12")
    );
    let without = without(&letter);
    assert_eq!(without.len(), 9, "{without:?}");
    assert!(
        without.contains(&"NServiceBus.DelayedRetries"),
        "its retries start again"
    );
    assert!(
        !without
            .iter()
            .any(|name| name.starts_with("NServiceBus.Message"))
    );
}

#[test]
fn spring_as_the_library_writes_it() {
    let letter = Fixture::named("spring-queue").read();
    assert_eq!(
        (letter.library, &letter.source),
        (Library::Spring, &queue("spring.orders"))
    );
    assert_eq!(
        (&*letter.error, &*letter.error_type),
        ("no such customer: 7", "java.lang.IllegalStateException")
    );
    assert!(
        letter
            .stack
            .as_ref()
            .unwrap()
            .contains("ListenerExecutionFailedException")
    );
    assert_eq!(without(&letter).len(), 4);

    let letter = Fixture::named("spring-exchange").read();
    let DeadLetterSource::Unknown(hint) = &letter.source else {
        panic!("{letter:?}");
    };
    assert!(
        hint.contains("`shop`") && hint.contains("`order.placed`"),
        "{hint}"
    );
    assert_eq!(
        letter.published,
        Some(("shop".into(), "order.placed".into()))
    );
}

#[test]
fn spring_cloud_stream_names_its_queue_in_that_of_the_dead_letters() {
    let mut fixture = Fixture::named("spring-exchange");
    fixture.json["queue"] = "orders.billing.dlq".into();
    assert_eq!(fixture.read().source, queue("orders.billing"));
}

#[test]
fn easynetq_with_newtonsoft() {
    let letter = Fixture::named("easynetq-newtonsoft").read();
    assert_eq!(
        (letter.library, &letter.source),
        (Library::EasyNetQ, &queue("Shop.OrderPlaced, Shop_billing"))
    );
    assert_eq!(
        (&*letter.error, &*letter.error_type),
        ("no such customer: 7", "System.InvalidOperationException")
    );
    assert_eq!(
        letter.published,
        Some(("Shop.OrderPlaced, Shop".into(), "order.placed".into()))
    );
    let ReplayedMessage::Original { body, properties } = &letter.replay else {
        panic!("{letter:?}");
    };
    assert_eq!(body, "{\"Customer\":7,\"Name\":\"Grüße\"}".as_bytes());
    assert_eq!(
        (
            &properties.message_id,
            &properties.kind,
            properties.timestamp,
            properties.priority
        ),
        (
            &text("m-7"),
            &text("Shop.OrderPlaced, Shop"),
            Some(1_782_899_940),
            None
        )
    );
    let expected: Headers = [
        ("tenant".to_owned(), Value::Text("acme".into())),
        ("weight".to_owned(), Value::Number(3)),
        ("fragile".to_owned(), Value::Flag(true)),
    ]
    .into();
    assert_eq!(properties.headers, expected);
}

#[test]
fn easynetq_with_system_text_json_and_a_binary_body() {
    let letter = Fixture::named("easynetq-systemtextjson").read();
    let ReplayedMessage::Original { body, properties } = &letter.replay else {
        panic!("{letter:?}");
    };
    assert_eq!(body, b"\x00\xff\x01binary");
    assert_eq!(properties.headers["at"], Value::Time(1_782_899_940));
    assert_eq!(properties.headers["tenant"], Value::Text("acme".into()));
    let route = Value::List(vec![Value::Text("a".into()), Value::Number(1)]);
    assert_eq!(properties.headers["route"], route);
}

#[test]
fn easynetq_bytes_that_were_lost_are_not_replayed() {
    let mut fixture = Fixture::named("easynetq-newtonsoft");
    let body = fixture.json["body"]
        .as_str()
        .unwrap()
        .replace("Grüße", "Gr\u{fffd}e");
    fixture.json["body"] = body.into();
    let letter = fixture.read();
    assert!(
        matches!(&letter.replay, ReplayedMessage::Never(why) if why.contains("bytes are lost")),
        "{letter:?}"
    );
}

#[test]
fn easynetq_a_body_that_may_be_text_or_base64_is_not_guessed() {
    let json = "{\"n\": 1}";
    let in_base64 = BASE64_STANDARD.encode(json);
    for (message, content_type, body) in [
        ("test", "text/plain", None),
        ("test", "application/octet-stream", Some(&b"\xb5\xeb-"[..])),
        ("hello, world", "text/plain", Some(b"hello, world")),
        (&in_base64, "application/json", Some(json.as_bytes())),
        ("1234", "application/json", Some(b"1234")),
        ("", "text/plain", Some(b"")),
    ] {
        let mut fixture = Fixture::named("easynetq-systemtextjson");
        let mut envelope: Json =
            serde_json::from_str(fixture.json["body"].as_str().unwrap()).unwrap();
        envelope["Message"] = message.into();
        envelope["BasicProperties"]["ContentType"] = content_type.into();
        fixture.json["body"] = envelope.to_string().into();
        let replayed = match fixture.read().replay {
            ReplayedMessage::Original { body, .. } => Some(body),
            _ => None,
        };
        assert_eq!(replayed.as_deref(), body, "{message} as {content_type}");
    }
}

#[test]
fn symfony_in_json() {
    let letter = Fixture::named("symfony").read();
    assert_eq!(letter.library, Library::Symfony);
    assert!(
        matches!(&letter.source, DeadLetterSource::Unknown(hint) if hint.contains("`async`")),
        "{letter:?}"
    );
    assert_eq!(
        (&*letter.error, &*letter.error_type, letter.failed_at),
        (
            "no such customer: 7",
            "App\\Exception\\NoSuchCustomer",
            at(1_782_900_000_000_000)
        )
    );
    assert!(
        letter
            .stack
            .as_ref()
            .unwrap()
            .contains("PlaceOrderHandler->__invoke")
    );
    let without = without(&letter);
    assert_eq!(without.len(), 4, "{without:?}");
    assert!(!without.iter().any(|name| name.ends_with("BusNameStamp")));
}

#[test]
fn symfony_in_php() {
    for form in ["slashes", "base64"] {
        let mut fixture = Fixture::named("symfony-php");
        if form == "base64" {
            let body = fixture.json["body"].as_str().unwrap();
            let plain = body
                .replace("\\0", "\0")
                .replace("\\\"", "\"")
                .replace("\\\\", "\\");
            fixture.json["body"] = BASE64_STANDARD.encode(plain).into();
        }
        let letter = fixture.read();
        assert_eq!(
            (&*letter.error, &*letter.error_type),
            ("no such \"customer\": 7", "App\\Exception\\NoSuchCustomer"),
            "{form}"
        );
        assert!(
            matches!(&letter.replay, ReplayedMessage::Never(why) if why.contains("messenger:failed:retry"))
        );
    }
}

#[test]
fn celery_as_the_library_writes_it() {
    let letter = Fixture::named("celery-rejected").read();
    assert_eq!(
        (letter.library, &letter.source),
        (Library::Celery, &queue("celery.orders"))
    );
    assert_eq!(
        (letter.reason, letter.attempts),
        (text("rejected"), Some(2))
    );
    assert_eq!(letter.message_type, text("shop.charge"));
    assert!(
        letter.error.contains("shop.charge was rejected"),
        "{}",
        letter.error
    );
    assert!(letter.failed_at.is_some());
    assert_eq!(
        letter.published,
        Some(("celery.shop".into(), "order.charge".into()))
    );
    assert_eq!(
        Fixture::named("celery-failed").read().message_type,
        text("shop.ship")
    );
}

/// The body of a replay whose counter begins again.
fn recounted(letter: &DeadLetter) -> &str {
    match &letter.replay {
        ReplayedMessage::Recounted(body) => std::str::from_utf8(body).unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn dramatiq_as_the_library_writes_it() {
    let fixture = Fixture::named("dramatiq-charge");
    let letter = fixture.read();
    assert_eq!(
        (letter.library, &letter.source, letter.attempts),
        (Library::Dramatiq, &queue("shop"), Some(2))
    );
    assert_eq!(
        (&*letter.error, &*letter.error_type),
        ("no such customer: 7", "tasks.NoSuchCustomer")
    );
    assert!(letter.stack.as_ref().unwrap().contains("in charge"));
    assert_eq!(
        (&letter.message_type, &letter.reason),
        (&text("charge"), &text("rejected"))
    );
    let body = fixture.json["body"].as_str().unwrap();
    assert_eq!(
        recounted(&letter),
        body.replace("\"retries\":1", "\"retries\":0")
    );

    let letter = Fixture::named("dramatiq-ship").read();
    assert_eq!((letter.attempts, &*letter.error_type), (Some(1), ""));
    assert!(
        letter.error.contains("actor ship was rejected"),
        "{}",
        letter.error
    );
    assert!(without(&letter).is_empty(), "it has no counter");
}

#[test]
fn dramatiq_arguments_that_are_named_like_its_counter_stay() {
    let mut fixture = Fixture::named("dramatiq-charge");
    let body = fixture.json["body"].as_str().unwrap();
    let kwargs = r#""kwargs":{"retries":5,"text":"\"retries\":1"}"#;
    fixture.json["body"] = body.replace(r#""kwargs":{"amount":12}"#, kwargs).into();
    let letter = fixture.read();
    let replayed = recounted(&letter);
    assert!(
        replayed.contains(kwargs) && replayed.contains(r#""options":{"retries":0,"#),
        "{replayed}"
    );
}

#[test]
fn dramatiq_exceptions_may_have_lines_that_are_indented() {
    let mut fixture = Fixture::named("dramatiq-charge");
    let mut body: serde_json::Value =
        serde_json::from_str(fixture.json["body"].as_str().unwrap()).unwrap();
    body["options"]["traceback"] = "Traceback (most recent call last):\n  File \"worker.py\", line 7, in charge\n    check(order)\n\
        pydantic_core.ValidationError: 1 validation error for Order\ncustomer\n  Input should be a number\n    For further information\n"
        .into();
    fixture.json["body"] = body.to_string().into();
    let letter = fixture.read();
    assert_eq!(letter.error_type, "pydantic_core.ValidationError");
    assert!(
        letter
            .error
            .starts_with("1 validation error for Order\ncustomer"),
        "{}",
        letter.error
    );
}

#[test]
fn taskiq_as_the_library_writes_it() {
    let fixture = Fixture::named("taskiq");
    let letter = fixture.read();
    assert_eq!(
        (letter.library, &letter.source, letter.attempts),
        (Library::Taskiq, &queue("taskiq.shop"), Some(2))
    );
    assert_eq!(
        (&letter.message_type, &letter.reason),
        (&text("shop.charge"), &text("delivery_limit"))
    );
    assert!(
        letter.error.contains("its worker died with it"),
        "{}",
        letter.error
    );
    let body = fixture.json["body"].as_str().unwrap();
    assert_eq!(
        recounted(&letter),
        body.replace(r#""_retries": "1""#, r#""_retries": "0""#)
    );
}

#[test]
fn watermill_as_the_library_writes_it() {
    let letter = Fixture::named("watermill").read();
    assert_eq!(
        (letter.library, &*letter.error),
        (Library::Watermill, "no such customer: 7")
    );
    let DeadLetterSource::Unknown(hint) = &letter.source else {
        panic!("watermill-amqp cannot take a replay")
    };
    assert!(hint.contains("`watermill.orders`"), "{hint}");
    assert_eq!(letter.message_type, text("OrderPlaced"));
    let without = without(&letter);
    assert_eq!(without.len(), 4, "{without:?}");
    assert!(without.iter().all(|name| name.contains("poisoned")));
}

#[test]
fn moleculer_as_the_library_writes_it() {
    let letter = Fixture::named("moleculer").read();
    assert_eq!(
        (letter.library, &letter.source),
        (Library::Moleculer, &queue("billing.order.placed"))
    );
    assert!(
        letter.error.contains("channel order.placed"),
        "{}",
        letter.error
    );
    assert_eq!(without(&letter).len(), 2);
}

#[test]
fn the_broker_says_where_it_was_refused_and_not_where_it_waited() {
    let letter = Fixture::named("x-death").read();
    assert_eq!(
        (letter.library, &letter.source),
        (Library::Broker, &queue("orders"))
    );
    assert_eq!(
        (&letter.reason, letter.failed_at),
        (&text("rejected"), at(1_782_900_000_000_000))
    );
    assert_eq!(
        letter.error,
        "dead-lettered by the broker out of orders (rejected), then morgue (expired)"
    );
    assert_eq!(
        letter.published,
        Some(("shop".into(), "order.placed".into()))
    );
}

#[test]
fn an_ordinary_message_is_none() {
    for (headers, body) in [
        (Headers::new(), &b"{\"customer\": 7}"[..]),
        (
            [("task".to_owned(), Value::Text("wash".into()))].into(),
            b"",
        ),
        (Headers::new(), b"O:36:\"Symfony"),
        (Headers::new(), b"{\"Exception\":1,\"BasicProperties\":2}"),
    ] {
        let letter = RawDeadLetter {
            queue: "q",
            headers: &headers,
            kind: None,
            body,
            died_in_own_queue: false,
        };
        assert_eq!(read(&letter), None, "{headers:?}");
    }
}

/// Whatever it is made of, what is said of it is small.
fn assert_bounded(letter: &DeadLetter) {
    let names = [
        Some(&letter.error_type),
        letter.message_type.as_ref(),
        letter.source.queue().map(str::to_owned).as_ref(),
    ]
    .into_iter()
    .flatten()
    .all(|name| name.len() <= 255);
    assert!(names && letter.error.len() <= 1024, "{letter:?}");
    assert!(
        letter
            .stack
            .as_ref()
            .is_none_or(|stack| stack.len() <= 16 * 1024)
    );
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::Flag),
        any::<i64>().prop_map(Value::Number),
        any::<f64>().prop_map(Value::Fraction),
        "\\PC{0,40}".prop_map(Value::Text),
        "[a-zé:;,. /%\\[{\"]{0,60}".prop_map(Value::Text),
        Just(Value::Text("é".repeat(70_000))),
        prop::collection::vec(any::<u8>(), 0..20).prop_map(Value::Bytes),
        any::<u64>().prop_map(Value::Time),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::List),
            prop::collection::btree_map(any_name(), inner, 0..5).prop_map(Value::Table),
        ]
    })
}

fn any_name() -> impl Strategy<Value = String> {
    let fixtures = [
        "masstransit",
        "nservicebus",
        "spring-queue",
        "celery-rejected",
        "symfony",
        "watermill",
        "moleculer",
        "taskiq",
        "x-death",
    ];
    let mut names: Vec<String> = fixtures
        .iter()
        .flat_map(|name| Fixture::named(name).headers.into_keys())
        .collect();
    names.extend(
        [
            "queue",
            "reason",
            "time",
            "exchange",
            "routing-keys",
            "count",
        ]
        .map(str::to_owned),
    );
    prop::sample::select(names)
}

proptest! {
    #[test]
    fn any_headers_are_read_within_bounds(
        headers in prop::collection::btree_map(any_name(), any_value(), 0..8),
        queue in "[a-z_.]{0,12}",
        body in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let letter = RawDeadLetter { queue: &queue, headers: &headers, kind: Some("EasyNetQ.SystemMessages.Error"), body: &body, died_in_own_queue: false };
        if let Some(letter) = read(&letter) {
            assert_bounded(&letter);
        }
    }

    #[test]
    fn any_change_to_an_envelope_is_read_within_bounds(
        name in prop::sample::select(vec![
            "easynetq-newtonsoft",
            "easynetq-systemtextjson",
            "symfony-php",
            "dramatiq-charge",
            "taskiq",
        ]),
        cut in 0usize..3_000,
        at in 0usize..3_000,
        bytes in prop::collection::vec(any::<u8>(), 0..6),
    ) {
        let fixture = Fixture::named(name);
        let mut body = fixture.json["body"].as_str().unwrap().as_bytes().to_vec();
        let at = at % body.len();
        body.splice(at..at, bytes);
        body.truncate(body.len() - cut % 40);
        let headers = Fixture::named(name).headers;
        let letter = RawDeadLetter { queue: "q", headers: &headers, kind: None, body: &body, died_in_own_queue: false };
        if let Some(letter) = read(&letter) {
            assert_bounded(&letter);
        }
    }
}

#[test]
fn an_envelope_of_millions_of_empty_lists_is_refused_and_not_built() {
    let lists = format!("[{}]", vec!["[]"; 1_000_000].join(","));
    let body = format!(
        "{{\"Exception\":\"e\",\"Queue\":\"q\",\"Message\":\"m\",\"BasicProperties\":{{\"Headers\":{{\"a\":{lists}}}}}}}"
    );
    let headers = Headers::new();
    let letter = RawDeadLetter {
        queue: "q",
        headers: &headers,
        kind: Some("EasyNetQ.SystemMessages.Error, EasyNetQ"),
        body: body.as_bytes(),
        died_in_own_queue: false,
    };
    let letter = read(&letter).unwrap();
    assert!(
        matches!(letter.replay, ReplayedMessage::Never(_)),
        "{letter:?}"
    );
}
