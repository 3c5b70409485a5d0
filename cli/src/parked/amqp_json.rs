//! A message as JSON and back, every type of AMQP exactly: for `export`, `import` and `--edit`.
//!
//! What JSON has a type for is written as it is: text (`S`), `true`, whole numbers (`l`), `null`, lists, tables. Anything else is an
//! object with one key that says the type: `{"$int32": 7}`, `{"$timestamp": 1700000000}`, `{"$bytes": "base64"}`. Fractions are
//! texts, because readers of JSON round them.

use base64::{Engine, prelude::BASE64_STANDARD};
use retryrmq::{
    BasicProperties,
    types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString},
};
use serde_json::{Map, Value, json};

/// Deeper than any table that a client hands out.
const DEEPEST: usize = 100;

pub(super) fn of_table(table: &FieldTable) -> Value {
    let entries: Map<_, _> = table
        .inner()
        .iter()
        .map(|(name, value)| (name.to_string(), of_value(value)))
        .collect();
    // A table that would be taken for a type is wrapped.
    if entries.keys().any(|name| name.starts_with('$')) {
        json!({ "$table": entries })
    } else {
        Value::Object(entries)
    }
}

fn of_value(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(flag) => json!(flag),
        AMQPValue::LongLongInt(number) => json!(number),
        AMQPValue::Void => Value::Null,
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => json!(text),
            Err(_) => json!({ "$string": BASE64_STANDARD.encode(text.as_bytes()) }),
        },
        AMQPValue::FieldTable(table) => of_table(table),
        AMQPValue::FieldArray(items) => items.as_slice().iter().map(of_value).collect(),
        AMQPValue::ShortShortInt(number) => json!({ "$int8": number }),
        AMQPValue::ShortShortUInt(number) => json!({ "$uint8": number }),
        AMQPValue::ShortInt(number) => json!({ "$int16": number }),
        AMQPValue::ShortUInt(number) => json!({ "$uint16": number }),
        AMQPValue::LongInt(number) => json!({ "$int32": number }),
        AMQPValue::LongUInt(number) => json!({ "$uint32": number }),
        AMQPValue::Timestamp(seconds) => json!({ "$timestamp": seconds }),
        AMQPValue::ShortString(text) => json!({ "$short": text.as_str() }),
        AMQPValue::ByteArray(bytes) => {
            json!({ "$bytes": BASE64_STANDARD.encode(bytes.as_slice()) })
        }
        AMQPValue::DecimalValue(decimal) => {
            json!({ "$decimal": { "scale": decimal.scale, "value": decimal.value } })
        }
        AMQPValue::Float(number) if number.is_nan() => {
            json!({ "$float": format!("bits {:08x}", number.to_bits()) })
        }
        AMQPValue::Float(number) => json!({ "$float": number.to_string() }),
        AMQPValue::Double(number) if number.is_nan() => {
            json!({ "$double": format!("bits {:016x}", number.to_bits()) })
        }
        AMQPValue::Double(number) => json!({ "$double": number.to_string() }),
    }
}

/// # Errors
/// What is wrong, and under which name.
pub(super) fn to_table(json: &Value) -> Result<FieldTable, String> {
    table(json, 0)
}

fn table(json: &Value, depth: usize) -> Result<FieldTable, String> {
    let entries = json.as_object().ok_or("headers are an object")?;
    let entries = match tag(entries) {
        Some(("$table", Value::Object(wrapped))) => wrapped,
        _ => entries,
    };
    let mut table = FieldTable::default();
    for (name, entry) in entries {
        let inside = |why: String| format!("`{name}`: {why}");
        let short = short(name).map_err(inside)?;
        table.insert(short, value(entry, depth + 1).map_err(inside)?);
    }
    Ok(table)
}

/// The one key that says a type.
fn tag(entries: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (name, value) = entries.iter().next()?;
    (entries.len() == 1 && name.starts_with('$')).then_some((name.as_str(), value))
}

fn value(json: &Value, depth: usize) -> Result<AMQPValue, String> {
    if depth > DEEPEST {
        return Err("this is nested too deeply".to_owned());
    }
    Ok(match json {
        Value::Null => AMQPValue::Void,
        Value::Bool(flag) => AMQPValue::Boolean(*flag),
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => AMQPValue::LongLongInt(whole),
            (None, Some(fraction)) if !number.is_u64() => AMQPValue::Double(fraction),
            _ => return Err(format!("{number} is larger than AMQP carries")),
        },
        Value::Array(items) => AMQPValue::FieldArray(FieldArray::from(
            items
                .iter()
                .map(|item| value(item, depth + 1))
                .collect::<Result<Vec<_>, _>>()?,
        )),
        Value::Object(entries) => match tag(entries) {
            Some((name, inner)) if name != "$table" => typed(name, inner)?,
            _ => AMQPValue::FieldTable(table(json, depth)?),
        },
    })
}

fn typed(name: &str, json: &Value) -> Result<AMQPValue, String> {
    macro_rules! whole {
        ($variant:ident) => {
            json.as_i64()
                .and_then(|number| number.try_into().ok())
                .map(AMQPValue::$variant)
        };
    }
    let text = json.as_str();
    let bytes = || BASE64_STANDARD.decode(text?).ok();
    let value = match name {
        "$int8" => whole!(ShortShortInt),
        "$uint8" => whole!(ShortShortUInt),
        "$int16" => whole!(ShortInt),
        "$uint16" => whole!(ShortUInt),
        "$int32" => whole!(LongInt),
        "$uint32" => whole!(LongUInt),
        "$timestamp" => json.as_u64().map(AMQPValue::Timestamp),
        "$short" => match text.map(short) {
            Some(text) => Some(AMQPValue::ShortString(text?)),
            None => None,
        },
        "$string" => bytes().map(|bytes| AMQPValue::LongString(bytes.into())),
        "$bytes" => bytes().map(|bytes| AMQPValue::ByteArray(bytes.into())),
        "$decimal" => decimal(json),
        "$float" => text
            .and_then(|text| match text.strip_prefix("bits ") {
                Some(bits) => u32::from_str_radix(bits, 16).ok().map(f32::from_bits),
                None => text.parse().ok(),
            })
            .map(AMQPValue::Float),
        "$double" => text
            .and_then(|text| match text.strip_prefix("bits ") {
                Some(bits) => u64::from_str_radix(bits, 16).ok().map(f64::from_bits),
                None => text.parse().ok(),
            })
            .map(AMQPValue::Double),
        _ => return Err(format!("there is no type `{name}`")),
    };
    value.ok_or_else(|| format!("{json} is no {name}"))
}

fn decimal(json: &Value) -> Option<AMQPValue> {
    let part = |name| json.get(name)?.as_u64();
    Some(AMQPValue::DecimalValue(DecimalValue {
        scale: part("scale")?.try_into().ok()?,
        value: part("value")?.try_into().ok()?,
    }))
}

fn short(text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|_| {
        format!(
            "{} bytes are more than the 255 that AMQP carries",
            text.len()
        )
    })
}

/// The texts among the properties, by their AMQP names.
macro_rules! texts {
    ($each:ident) => {
        $each!(
            "content_type", content_type, with_content_type;
            "content_encoding", content_encoding, with_content_encoding;
            "correlation_id", correlation_id, with_correlation_id;
            "reply_to", reply_to, with_reply_to;
            "expiration", expiration, with_expiration;
            "message_id", message_id, with_message_id;
            "type", kind, with_type;
            "user_id", user_id, with_user_id;
            "app_id", app_id, with_app_id;
            "cluster_id", cluster_id, with_cluster_id
        )
    };
}

/// The properties that are set, headers left out.
pub(super) fn of_properties(properties: &BasicProperties) -> Value {
    let mut all = Map::new();
    macro_rules! each {
        ($($name:literal, $get:ident, $set:ident);*) => {$(
            if let Some(text) = properties.$get() {
                all.insert($name.to_owned(), json!(text.as_str()));
            }
        )*};
    }
    texts!(each);
    for (name, number) in [
        ("delivery_mode", properties.delivery_mode().map(u64::from)),
        ("priority", properties.priority().map(u64::from)),
        ("timestamp", *properties.timestamp()),
    ] {
        if let Some(number) = number {
            all.insert(name.to_owned(), json!(number));
        }
    }
    Value::Object(all)
}

/// # Errors
/// What is wrong, and with which property.
pub(super) fn to_properties(json: &Value) -> Result<BasicProperties, String> {
    let mut properties = BasicProperties::default();
    for (name, value) in json.as_object().ok_or("properties are an object")? {
        let bad = |what: &str| format!("the property `{name}` is {what}, not {value}");
        let text = || short(value.as_str().ok_or_else(|| bad("a text"))?);
        let number = || value.as_u64().ok_or_else(|| bad("a whole number"));
        let small = || number()?.try_into().map_err(|_| bad("a number up to 255"));
        macro_rules! each {
            ($($known:literal, $get:ident, $set:ident);*) => {
                match name.as_str() {
                    $($known => properties.$set(text()?),)*
                    "delivery_mode" => properties.with_delivery_mode(small()?),
                    "priority" => properties.with_priority(small()?),
                    "timestamp" => properties.with_timestamp(number()?),
                    _ => return Err(format!("there is no property `{name}`")),
                }
            };
        }
        properties = texts!(each);
    }
    Ok(properties)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_value() -> impl Strategy<Value = AMQPValue> {
        let name = "[$a-zä]{0,8}";
        let leaf = prop_oneof![
            any::<bool>().prop_map(AMQPValue::Boolean),
            any::<i8>().prop_map(AMQPValue::ShortShortInt),
            any::<u8>().prop_map(AMQPValue::ShortShortUInt),
            any::<i16>().prop_map(AMQPValue::ShortInt),
            any::<u16>().prop_map(AMQPValue::ShortUInt),
            any::<i32>().prop_map(AMQPValue::LongInt),
            any::<u32>().prop_map(AMQPValue::LongUInt),
            any::<i64>().prop_map(AMQPValue::LongLongInt),
            any::<u32>().prop_map(|bits| AMQPValue::Float(f32::from_bits(bits))),
            any::<u64>().prop_map(|bits| AMQPValue::Double(f64::from_bits(bits))),
            (any::<u8>(), any::<u32>())
                .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
            "\\PC{0,20}".prop_map(|text| AMQPValue::ShortString(text.as_str().into())),
            any::<Vec<u8>>().prop_map(|bytes| AMQPValue::LongString(bytes.into())),
            any::<Vec<u8>>().prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
            any::<u64>().prop_map(AMQPValue::Timestamp),
            Just(AMQPValue::Void),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6)
                    .prop_map(|items| AMQPValue::FieldArray(FieldArray::from(items))),
                prop::collection::btree_map(name, inner, 0..6).prop_map(|entries| {
                    let mut table = FieldTable::default();
                    for (name, value) in entries {
                        table.insert(name.as_str().into(), value);
                    }
                    AMQPValue::FieldTable(table)
                }),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_comes_back_to_the_last_bit(value in any_value()) {
            let mut table = FieldTable::default();
            table.insert("value".into(), value);
            let text = of_table(&table).to_string();
            let back = to_table(&serde_json::from_str(&text).unwrap()).unwrap();
            // NaN is not equal to itself.
            prop_assert_eq!(of_table(&back).to_string(), text);
            prop_assert_eq!(format!("{back:?}"), format!("{table:?}"));
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (json, words) in [
            (json!({"a": {"$int8": 300}}), "`a`: 300 is no $int8"),
            (json!({"a": {"$what": 1}}), "no type `$what`"),
            (json!({"a": 18_446_744_073_709_551_615u64}), "larger than"),
            (json!({"n".repeat(256): 1}), "256 bytes"),
            (json!([]), "an object"),
        ] {
            let why = to_table(&json).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
        for (json, words) in [
            (json!({"colour": "red"}), "no property `colour`"),
            (json!({"priority": 256}), "up to 255"),
            (json!({"message_id": 7}), "a text"),
        ] {
            let why = to_properties(&json).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }

    #[test]
    fn every_property_comes_back() {
        let mut json = json!({"delivery_mode": 2, "priority": 9, "timestamp": u64::MAX});
        for name in [
            "content_type",
            "content_encoding",
            "correlation_id",
            "reply_to",
            "expiration",
            "message_id",
            "type",
            "user_id",
            "app_id",
            "cluster_id",
        ] {
            json[name] = json!(format!("the {name}"));
        }
        assert_eq!(of_properties(&to_properties(&json).unwrap()), json);
    }
}
