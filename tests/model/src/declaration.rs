//! Which declarations are refused, and in which words.

use crate::frame::Refusal;
use crate::method::Declare;
use crate::settings::{QueueType, number, text};
use crate::{Profile, Version};
use lapin::types::{AMQPValue, FieldTable};

/// Times to live go up to ten years of 365 days.
const LONGEST: i64 = 315_360_000_000;

/// The arguments that have to be the same in a second declaration.
const COMPARED: [&str; 12] = [
    "x-message-ttl",
    "x-expires",
    "x-dead-letter-exchange",
    "x-dead-letter-routing-key",
    "x-dead-letter-strategy",
    "x-max-length",
    "x-max-length-bytes",
    "x-overflow",
    "x-delivery-limit",
    "x-single-active-consumer",
    "x-max-priority",
    "x-queue-type",
];

/// The queue type that was asked for, or why there can be no such queue.
pub(crate) fn check(profile: &Profile, declare: &Declare) -> Result<QueueType, Refusal> {
    let place = place(profile, &declare.queue);
    if declare.queue.starts_with("amq.") {
        let name = &declare.queue;
        return Err(Refusal {
            code: 403,
            text: format!("ACCESS_REFUSED - queue name '{name}' contains reserved prefix 'amq.*'"),
        });
    }
    let kind = match text(&declare.arguments, "x-queue-type").as_deref() {
        None | Some("classic") => QueueType::Classic,
        Some("quorum") => QueueType::Quorum,
        Some(other) => {
            return Err(invalid(&format!(
                "invalid arg 'x-queue-type' {place}: \"unsupported queue type '{other}'\""
            )));
        }
    };
    if kind == QueueType::Quorum {
        let impossible = [
            (!declare.durable, "non-durable"),
            (declare.auto_delete, "auto-delete"),
            (declare.exclusive, "exclusive"),
        ];
        if let Some((_, property)) = impossible.iter().find(|(wrong, _)| *wrong) {
            return Err(invalid(&format!("invalid property '{property}' {place}")));
        }
    }
    for (name, value) in declare.arguments.inner() {
        check_argument(profile, kind, name.as_str(), value, &place)?;
    }
    Ok(kind)
}

fn check_argument(
    profile: &Profile,
    kind: QueueType,
    name: &str,
    value: &AMQPValue,
    place: &str,
) -> Result<(), Refusal> {
    let is_time = matches!(name, "x-message-ttl" | "x-expires");
    if is_time || name == "x-max-length" {
        let table = single(name, value);
        let Some(count) = number(&table, name) else {
            return Err(invalid(&format!(
                "invalid arg '{name}' {place}: \"expected integer, got longstr\""
            )));
        };
        if count < 0 || (is_time && count > LONGEST) || (name == "x-expires" && count == 0) {
            return Err(invalid(&format!(
                "invalid arg '{name}' {place}: {{value_out_of_range,{count}}}"
            )));
        }
    }
    let native = name.starts_with("x-delayed-retry-") && profile.version >= Version::V4_3;
    if kind == QueueType::Classic && (name == "x-delivery-limit" || native) {
        return Err(invalid(&format!(
            "invalid arg '{name}' {place} of queue type rabbit_classic_queue"
        )));
    }
    Ok(())
}

/// Whether a queue that exists is the one that is declared.
pub(crate) fn compare(
    profile: &Profile,
    existing: &Existing<'_>,
    declare: &Declare,
) -> Result<(), Refusal> {
    let place = place(profile, &declare.queue);
    let flags = [
        ("durable", existing.durable, declare.durable),
        ("auto_delete", existing.auto_delete, declare.auto_delete),
    ];
    for (flag, current, received) in flags {
        if current != received {
            return Err(invalid(&format!(
                "inequivalent arg '{flag}' {place}: received '{received}' but current is '{current}'"
            )));
        }
    }
    for name in COMPARED {
        let value = |table: &FieldTable| table.inner().get(name).cloned();
        let (mut current, mut received) = (value(existing.arguments), value(&declare.arguments));
        if name == "x-queue-type" {
            let classic = || AMQPValue::LongString("classic".into());
            current = current.or_else(|| Some(classic()));
            let silent = profile.version == Version::V3_10 && existing.kind == QueueType::Quorum;
            if !silent {
                received = received.or_else(|| Some(classic()));
            }
        }
        if !same(current.as_ref(), received.as_ref()) {
            return Err(invalid(&format!(
                "inequivalent arg '{name}' {place}: {}",
                difference(received.as_ref(), current.as_ref())
            )));
        }
    }
    Ok(())
}

/// What a second declaration is compared with.
pub(crate) struct Existing<'a> {
    pub(crate) kind: QueueType,
    pub(crate) durable: bool,
    pub(crate) auto_delete: bool,
    pub(crate) arguments: &'a FieldTable,
}

/// The width of an integer does not matter.
fn same(one: Option<&AMQPValue>, other: Option<&AMQPValue>) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => {
            one == other || integer(one).is_some_and(|value| integer(other) == Some(value))
        }
        (None, None) => true,
        _ => false,
    }
}

fn difference(received: Option<&AMQPValue>, current: Option<&AMQPValue>) -> String {
    let typed = |value: &AMQPValue| {
        let kind = match value {
            AMQPValue::LongString(_) => "longstr",
            AMQPValue::Boolean(_) => "bool",
            _ => "long",
        };
        format!("the value '{}' of type '{kind}'", shown(value))
    };
    match (received, current) {
        (Some(received), Some(current)) => format!(
            "received '{}' but current is '{}'",
            shown(received),
            shown(current)
        ),
        (None, Some(current)) => format!("received none but current is {}", typed(current)),
        (Some(received), None) => format!("received {} but current is none", typed(received)),
        (None, None) => String::new(),
    }
}

fn shown(value: &AMQPValue) -> String {
    match value {
        AMQPValue::LongString(text) => String::from_utf8_lossy(text.as_bytes()).into(),
        AMQPValue::Boolean(flag) => flag.to_string(),
        other => integer(other).map_or_else(String::new, |value| value.to_string()),
    }
}

fn integer(value: &AMQPValue) -> Option<i64> {
    number(&single("value", value), "value")
}

fn single(name: &str, value: &AMQPValue) -> FieldTable {
    let mut table = FieldTable::default();
    table.insert(name.into(), value.clone());
    table
}

fn place(profile: &Profile, queue: &str) -> String {
    format!("for queue '{queue}' in vhost '{}'", profile.vhost)
}

fn invalid(complaint: &str) -> Refusal {
    Refusal {
        code: 406,
        text: format!("PRECONDITION_FAILED - {complaint}"),
    }
}
