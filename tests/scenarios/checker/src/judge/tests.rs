//! A checker that cannot fail is worth nothing: one run that is as expected, and every way in which it could differ.

use lapin::types::AMQPValue;
use serde_json::json;

use super::*;
use crate::line::Attempt;
use crate::observations::RemainingMessage;

const SCENARIO: &str = "
shows: Everything that can be judged.
topology:
  queues: [{name: audit}]
publish:
  - {id: good, exchange: shop, routing_key: order.new, headers: {n: {$int8: 1}}, properties: {priority: 3}}
  - {id: bad}
  - {id: copy}
  - {id: odd, unreadable: true}
  - {id: stuck, unreadable: true}
handler:
  good: [error, ok]
  bad: [error]
expect:
  messages:
    good: {runs: 2, spacing: [300ms], not_before: 100ms, sees: {1: {headers: {x-retry-count: {$absent: true}}}, last: {last_error: it failed}}, ends: handled}
    bad: {runs: 1, ends: {parked: exhausted, record: {headers: {x-retry-error: it failed}, properties: {message_id: {$absent: true}}}}}
    odd: {runs: 0, ends: unreadable}
    stuck: {runs: 0, ends: stuck}
    copy: {runs: 0, replayed: [{home: orders, reason: {$absent: true}}], ends: {in: audit}}
  order: [good, bad, good]
  together: 1
  queues: {orders.parked: {type: quorum}, orders.retry.300: null}
  events: [retried, {parked: {queue: orders, error: {$contains: failed}}}]
  log: [info attempt 1 failed]
  restarts: 0
";

fn attempt(
    id: &str,
    run: usize,
    at_ms: u64,
    exchange: &str,
    routing_key: &str,
    headers: Value,
    rest: Value,
) -> Attempt {
    let Value::Object(headers) = headers else {
        panic!("headers are a table")
    };
    let Value::Object(rest) = rest else {
        panic!("the rest is a table")
    };
    Attempt {
        id: id.into(),
        run,
        at_ms,
        attempt: run as u64,
        exchange: exchange.into(),
        routing_key: routing_key.into(),
        headers,
        body_bytes: id.len() as u64,
        body_sha256: sha256(id.as_bytes()),
        rest,
    }
}

fn left(id: &str, headers: &Value) -> RemainingMessage {
    let AMQPValue::FieldTable(table) = field::from_notation(headers).unwrap() else {
        panic!("headers are a table")
    };
    let properties = lapin::BasicProperties::default().with_headers(table);
    let (body_bytes, body_sha256) = (id.len() as u64, sha256(id.as_bytes()));
    RemainingMessage {
        properties,
        exchange: String::new(),
        routing_key: "orders.parked".into(),
        body_bytes,
        body_sha256,
    }
}

fn parked_headers() -> Value {
    json!({
        "scenario-id": "bad", "x-retry-parked-reason": "exhausted", "x-retry-parked-at": {"$timestamp": 1},
        "x-retry-protocol": 1, "x-retry-count": 1, "x-retry-exchange": "", "x-retry-routing-key": "orders",
        "x-retry-fingerprint": "f", "x-retry-error": "it failed",
    })
}

fn scenario() -> Scenario {
    Scenario::from_yaml("all", SCENARIO).unwrap()
}

fn as_expected() -> Observations {
    let properties = json!({"priority": 3});
    let quorum = whole::description("quorum", true, serde_json::Map::new());
    Observations {
        published: [
            ("good".into(), 1000),
            ("bad".into(), 1000),
            ("copy".into(), 1000),
        ]
        .into(),
        attempts: vec![
            attempt(
                "good",
                1,
                1100,
                "shop",
                "order.new",
                json!({"scenario-id": "good", "n": 1}),
                json!({"retries": 0, "properties": properties}),
            ),
            attempt(
                "bad",
                1,
                1200,
                "",
                "orders",
                json!({"scenario-id": "bad"}),
                json!({}),
            ),
            attempt(
                "good",
                2,
                1450,
                "shop",
                "order.new",
                json!({"scenario-id": "good", "n": 1, "x-retry-count": 1}),
                json!({"last_error": "it failed"}),
            ),
        ],
        settled: [
            (("good".into(), 1), 1150),
            (("bad".into(), 1), 1210),
            (("good".into(), 2), 1460),
        ]
        .into(),
        events: vec![
            ("retried".into(), json!({"queue": "orders"})),
            ("parked".into(), json!({"queue": "orders", "error": "no"})),
            (
                "parked".into(),
                json!({"queue": "orders", "error": "it failed"}),
            ),
        ],
        unread: [("orders".into(), 1), ("orders.unreadable".into(), 1)].into(),
        log: vec![
            ("warn".into(), "attempt 1".into()),
            ("info".into(), "retryrmq: attempt 1 failed: no".into()),
        ],
        replayed: vec![("copy".into(), json!({"home": "orders"}))],
        left: [
            ("orders".into(), Vec::new()),
            ("orders.parked".into(), vec![left("bad", &parked_headers())]),
            (
                "audit".into(),
                vec![left("copy", &json!({"scenario-id": "copy"}))],
            ),
        ]
        .into(),
        queues: ["orders", "audit", "orders.parked", "orders.retry.300"]
            .map(|name| (name.to_owned(), quorum.clone()))
            .into(),
        ..Observations::default()
    }
}

#[test]
fn what_is_as_expected_passes() {
    assert_eq!(judge(&scenario(), &as_expected()), Vec::<String>::new());
}

fn parked_with(key: &str, value: Value) -> Vec<RemainingMessage> {
    let mut headers = parked_headers();
    headers[key] = value;
    vec![left("bad", &headers)]
}

#[test]
fn every_difference_is_found() {
    type Change = fn(&mut Observations);
    let cases: Vec<(&str, Change)> = vec![
        ("driver died", |seen| {
            seen.problems.push("the driver died".into())
        }),
        ("run 2 times, it ran 3 times", |seen| {
            seen.attempts.push(seen.attempts[2].clone())
        }),
        ("run 2 times, it ran 1 times", |seen| {
            drop(seen.attempts.remove(2))
        }),
        ("expected the attempts [1, 2]", |seen| {
            seen.attempts[2].attempt = 3
        }),
        ("counted the runs", |seen| seen.attempts[2].run = 1),
        ("expected at least 300 ms", |seen| {
            seen.attempts[2].at_ms = 1448
        }),
        ("from publication to run 1", |seen| {
            seen.attempts[0].at_ms = 1098
        }),
        ("copy: expected 1 replays, saw 0", |seen| {
            seen.replayed.clear()
        }),
        ("copy, replay 1, home", |seen| {
            seen.replayed[0].1 = json!({"home": "billing"})
        }),
        ("expected the exchange 'shop'", |seen| {
            seen.attempts[2].exchange = String::new()
        }),
        ("expected the routing key 'order.new'", |seen| {
            seen.attempts[2].routing_key = "orders".into()
        }),
        ("do not fit", |seen| {
            drop(seen.attempts[0].rest.insert("retries".into(), 1.into()))
        }),
        ("header n: published", |seen| {
            drop(seen.attempts[2].headers.insert("n".into(), 2.into()))
        }),
        ("header n: published", |seen| {
            drop(seen.attempts[2].headers.remove("n"))
        }),
        ("property priority", |seen| {
            drop(
                seen.attempts[0]
                    .rest
                    .insert("properties".into(), json!({"priority": 4})),
            )
        }),
        ("were published", |seen| seen.attempts[0].body_bytes = 1),
        ("not those that were published", |seen| {
            seen.attempts[0].body_sha256 = sha256(b"evil")
        }),
        ("expected nothing", |seen| {
            drop(
                seen.attempts[0]
                    .headers
                    .insert("x-retry-count".into(), 0.into()),
            )
        }),
        ("good, run 2, last_error", |seen| {
            drop(seen.attempts[2].rest.remove("last_error"))
        }),
        ("good: expected it in no queue", |seen| {
            seen.left
                .get_mut("orders")
                .unwrap()
                .push(left("good", &json!({"scenario-id": "good"})));
        }),
        ("did not succeed: lost", |seen| {
            drop(seen.attempts.remove(2))
        }),
        ("never saw it: lost", |seen| {
            seen.attempts.retain(|attempt| attempt.id != "good")
        }),
        (
            "bad: expected it once, in orders.parked, found it in no queue",
            |seen| drop(seen.left.remove("orders.parked")),
        ),
        (
            "bad: expected it in orders.parked, found it in audit",
            |seen| {
                let messages = seen.left.remove("orders.parked").unwrap();
                seen.left.get_mut("audit").unwrap().extend(messages);
            },
        ),
        ("bad: expected it once", |seen| {
            seen.left
                .get_mut("orders.parked")
                .unwrap()
                .push(left("bad", &parked_headers()))
        }),
        ("x-retry-parked-reason: expected \"exhausted\"", |seen| {
            seen.left.insert(
                "orders.parked".into(),
                parked_with("x-retry-parked-reason", json!("fatal")),
            );
        }),
        ("x-retry-parked-at", |seen| {
            drop(seen.left.insert(
                "orders.parked".into(),
                parked_with("x-retry-parked-at", json!(1)),
            ))
        }),
        ("x-retry-exchange", |seen| {
            drop(seen.left.insert(
                "orders.parked".into(),
                parked_with("x-retry-exchange", json!("x")),
            ))
        }),
        ("x-retry-error", |seen| {
            drop(seen.left.insert(
                "orders.parked".into(),
                parked_with("x-retry-error", json!("other")),
            ))
        }),
        ("properties.message_id: expected nothing", |seen| {
            let message = &mut seen.left.get_mut("orders.parked").unwrap()[0];
            message.properties = message.properties.clone().with_message_id("m".into());
        }),
        ("copy in audit, header scenario-id", |seen| {
            let message = &mut seen.left.get_mut("audit").unwrap()[0];
            message.properties = lapin::BasicProperties::default().with_message_id("copy".into());
        }),
        ("copy in audit: the body", |seen| {
            seen.left.get_mut("audit").unwrap()[0].body_bytes = 0
        }),
        ("'ghost' that nobody published", |seen| {
            seen.attempts
                .push(attempt("ghost", 1, 1, "", "orders", json!({}), json!({})));
        }),
        ("audit holds a message 'ghost'", |seen| {
            seen.left
                .get_mut("audit")
                .unwrap()
                .push(left("ghost", &json!({"scenario-id": "ghost"})));
        }),
        ("audit holds a message without an id", |seen| {
            seen.left
                .get_mut("audit")
                .unwrap()
                .push(left("x", &json!({})))
        }),
        ("expected the order good bad good", |seen| {
            seen.attempts.swap(0, 1)
        }),
        ("saw 2", |seen| {
            *seen.settled.get_mut(&("good".into(), 1)).unwrap() = 1205
        }),
        ("expected a queue orders.retry.300", |seen| {
            drop(seen.queues.remove("orders.retry.300"))
        }),
        ("nobody expected a queue orders.retry.400", |seen| {
            drop(seen.queues.insert("orders.retry.400".into(), json!({})))
        }),
        ("queue orders.parked.type", |seen| {
            seen.queues.insert(
                "orders.parked".into(),
                whole::description("classic", true, serde_json::Map::new()),
            );
        }),
        ("expected the event 'retried'", |seen| seen.events.clear()),
        ("event parked, error", |seen| drop(seen.events.pop())),
        ("event parked, queue", |seen| {
            seen.events.remove(1);
            seen.events[1].1 = json!({"error": "it failed"});
        }),
        ("expected 1 messages in orders.unreadable", |seen| {
            seen.unread.clear();
        }),
        ("expected 1 messages in orders that", |seen| {
            *seen.unread.get_mut("orders").unwrap() = 2;
        }),
        ("odd: expected it in no queue, found it in audit", |seen| {
            let audit = seen.left.get_mut("audit").unwrap();
            audit.push(left("odd", &json!({"scenario-id": "odd"})));
        }),
        ("expected 'info attempt 1 failed' in the log", |seen| {
            seen.log[1].0 = "debug".into()
        }),
        ("was refused: strategy_refused", |seen| {
            seen.refused = Some(("strategy_refused".into(), "no".into()))
        }),
        ("started again 0 times, it was 1", |seen| seen.restarts = 1),
    ];
    for (complaint, change) in cases {
        let mut seen = as_expected();
        change(&mut seen);
        let violations = judge(&scenario(), &seen);
        assert!(
            violations.iter().any(|line| line.contains(complaint)),
            "no '{complaint}' among {violations:#?}"
        );
    }
}

#[test]
fn a_refusal_is_compared() {
    let scenario = Scenario::from_yaml(
        "refused",
        "{shows: x, expect: {refused: {code: strategy_refused, says: [quorum]}}}",
    )
    .unwrap();
    let refused = |code: &str, message: &str| Observations {
        refused: Some((code.into(), message.into())),
        ..Observations::default()
    };
    assert!(
        judge(
            &scenario,
            &refused("strategy_refused", "it needs a quorum queue")
        )
        .is_empty()
    );
    assert_eq!(
        judge(&scenario, &refused("other", "it needs a quorum queue")).len(),
        1
    );
    assert_eq!(
        judge(&scenario, &refused("strategy_refused", "no")).len(),
        1
    );
    assert_eq!(judge(&scenario, &Observations::default()).len(), 1);
}

#[test]
fn copies_elsewhere_are_counted() {
    let text = "{shows: x, publish: [{id: a}], expect: {messages: {a: {runs: 0, ends: {in: orders}, also_in: [audit]}}}}";
    let scenario = Scenario::from_yaml("copies", text).unwrap();
    let with = |orders: usize, audit: usize| {
        let copies = |count| vec![left("a", &json!({"scenario-id": "a"})); count];
        Observations {
            left: [
                ("orders".into(), copies(orders)),
                ("audit".into(), copies(audit)),
            ]
            .into(),
            ..Observations::default()
        }
    };
    assert!(judge(&scenario, &with(1, 1)).is_empty());
    for (orders, audit) in [(1, 0), (1, 2), (0, 1), (2, 1)] {
        assert_eq!(
            judge(&scenario, &with(orders, audit)).len(),
            1,
            "{orders} {audit}"
        );
    }
}

#[test]
fn what_the_broker_parked_says_nothing() {
    let text =
        "{shows: x, publish: [{id: a}], expect: {messages: {a: {runs: 0, ends: {parked: null}}}}}";
    let scenario = Scenario::from_yaml("broker", text).unwrap();
    let with = |headers: Value| Observations {
        left: [("orders.parked".into(), vec![left("a", &headers)])].into(),
        ..Observations::default()
    };
    assert!(judge(&scenario, &with(json!({"scenario-id": "a"}))).is_empty());
    assert_eq!(
        judge(
            &scenario,
            &with(json!({"scenario-id": "a", "x-retry-parked-reason": "fatal"}))
        )
        .len(),
        1
    );
}
