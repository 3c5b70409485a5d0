//! Header values in the notation of scenario files, and as AMQP has them.
//!
//! JSON and YAML know fewer types than AMQP. A plain value stands for the natural type (`7` is an `l`, a text an `S`);
//! every other type is a table with one key: `{$int8: 7}`, `{$timestamp: 1700000000}`, `{$bytes: AAEC}` (base64),
//! `{$decimal: {scale: 2, value: 314}}`; and `{$repeat: {text: x, times: 1000}}` is a long text.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString};
use serde_json::{Map, Number, Value, json};

/// The AMQP value that a notation stands for.
pub fn from_notation(value: &Value) -> Result<AMQPValue, String> {
    Ok(match value {
        Value::Null => AMQPValue::Void,
        Value::Bool(flag) => AMQPValue::Boolean(*flag),
        Value::String(text) => AMQPValue::LongString(text.as_bytes().into()),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(integer), _) => AMQPValue::LongLongInt(integer),
            (None, Some(float)) if !number.is_u64() => AMQPValue::Double(float),
            _ => return Err(format!("{number} does not fit a header")),
        },
        Value::Array(items) => {
            let items = items
                .iter()
                .map(from_notation)
                .collect::<Result<Vec<_>, _>>()?;
            AMQPValue::FieldArray(FieldArray::from(items))
        }
        Value::Object(map) => match typed(map) {
            Some((kind, value)) => from_typed(kind, value)?,
            None => AMQPValue::FieldTable(table(map.iter())?),
        },
    })
}

/// A table of headers.
pub fn table<'a>(
    entries: impl IntoIterator<Item = (&'a String, &'a Value)>,
) -> Result<FieldTable, String> {
    let mut table = FieldTable::default();
    for (key, value) in entries {
        table.insert(short(key)?, from_notation(value)?);
    }
    Ok(table)
}

/// The type and value of a table such as `{$int8: 7}`.
pub fn typed(map: &Map<String, Value>) -> Option<(&str, &Value)> {
    let (key, value) = map.iter().next().filter(|_| map.len() == 1)?;
    key.strip_prefix('$').map(|kind| (kind, value))
}

fn short(text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|error| error.to_string())
}

fn from_typed(kind: &str, value: &Value) -> Result<AMQPValue, String> {
    let refused = || format!("{value} is no {kind}");
    let integer = || value.as_i64().ok_or_else(refused);
    Ok(match kind {
        "int8" => AMQPValue::ShortShortInt(integer()?.try_into().map_err(|_| refused())?),
        "uint8" => AMQPValue::ShortShortUInt(integer()?.try_into().map_err(|_| refused())?),
        "int16" => AMQPValue::ShortInt(integer()?.try_into().map_err(|_| refused())?),
        "uint16" => AMQPValue::ShortUInt(integer()?.try_into().map_err(|_| refused())?),
        "int32" => AMQPValue::LongInt(integer()?.try_into().map_err(|_| refused())?),
        "uint32" => AMQPValue::LongUInt(integer()?.try_into().map_err(|_| refused())?),
        "int64" => AMQPValue::LongLongInt(integer()?),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the notation asks for the narrower type"
        )]
        "float32" => AMQPValue::Float(value.as_f64().ok_or_else(refused)? as f32),
        "float64" => AMQPValue::Double(value.as_f64().ok_or_else(refused)?),
        "string" => AMQPValue::LongString(value.as_str().ok_or_else(refused)?.into()),
        "timestamp" => AMQPValue::Timestamp(value.as_u64().ok_or_else(refused)?),
        "bytes" => {
            let bytes = BASE64_STANDARD
                .decode(value.as_str().ok_or_else(refused)?)
                .map_err(|_| refused())?;
            AMQPValue::ByteArray(bytes.into())
        }
        "repeat" => {
            let text = value
                .get("text")
                .and_then(Value::as_str)
                .ok_or_else(refused)?;
            let times = value
                .get("times")
                .and_then(Value::as_u64)
                .and_then(|n| n.try_into().ok())
                .ok_or_else(refused)?;
            AMQPValue::LongString(text.repeat(times).into())
        }
        "decimal" => {
            let part = |name: &str| value.get(name).and_then(Value::as_u64).ok_or_else(refused);
            let scale = part("scale")?.try_into().map_err(|_| refused())?;
            let value = part("value")?.try_into().map_err(|_| refused())?;
            AMQPValue::DecimalValue(DecimalValue { scale, value })
        }
        _ => return Err(format!("${kind} is no type of header")),
    })
}

/// The name of a value's type in the notation.
pub fn type_name(value: &AMQPValue) -> &'static str {
    match value {
        AMQPValue::Boolean(_) => "bool",
        AMQPValue::ShortShortInt(_) => "int8",
        AMQPValue::ShortShortUInt(_) => "uint8",
        AMQPValue::ShortInt(_) => "int16",
        AMQPValue::ShortUInt(_) => "uint16",
        AMQPValue::LongInt(_) => "int32",
        AMQPValue::LongUInt(_) => "uint32",
        AMQPValue::LongLongInt(_) => "int64",
        AMQPValue::Float(_) => "float32",
        AMQPValue::Double(_) => "float64",
        AMQPValue::DecimalValue(_) => "decimal",
        AMQPValue::ShortString(_) | AMQPValue::LongString(_) => "string",
        AMQPValue::FieldArray(_) => "array",
        AMQPValue::Timestamp(_) => "timestamp",
        AMQPValue::FieldTable(_) => "table",
        AMQPValue::ByteArray(_) => "bytes",
        AMQPValue::Void => "null",
    }
}

/// The notation of a value, for people to read.
pub fn to_notation(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::Boolean(flag) => json!(flag),
        AMQPValue::LongLongInt(integer) => json!(integer),
        AMQPValue::ShortShortInt(integer) => json!({ "$int8": integer }),
        AMQPValue::ShortShortUInt(integer) => json!({ "$uint8": integer }),
        AMQPValue::ShortInt(integer) => json!({ "$int16": integer }),
        AMQPValue::ShortUInt(integer) => json!({ "$uint16": integer }),
        AMQPValue::LongInt(integer) => json!({ "$int32": integer }),
        AMQPValue::LongUInt(integer) => json!({ "$uint32": integer }),
        AMQPValue::Float(float) => json!({ "$float32": float }),
        AMQPValue::Double(float) => json!(float),
        AMQPValue::DecimalValue(decimal) => {
            json!({"$decimal": {"scale": decimal.scale, "value": decimal.value}})
        }
        AMQPValue::ShortString(text) => json!(text.as_str()),
        AMQPValue::LongString(text) => match std::str::from_utf8(text.as_bytes()) {
            Ok(text) => json!(text),
            Err(_) => json!({ "$bytes": BASE64_STANDARD.encode(text.as_bytes()) }),
        },
        AMQPValue::FieldArray(items) => {
            Value::Array(items.as_slice().iter().map(to_notation).collect())
        }
        AMQPValue::Timestamp(seconds) => json!({ "$timestamp": seconds }),
        AMQPValue::FieldTable(table) => headers_notation(table),
        AMQPValue::ByteArray(bytes) => {
            json!({ "$bytes": BASE64_STANDARD.encode(bytes.as_slice()) })
        }
        AMQPValue::Void => Value::Null,
    }
}

/// The notation of a whole table.
pub fn headers_notation(table: &FieldTable) -> Value {
    Value::Object(
        table
            .into_iter()
            .map(|(key, value)| (key.to_string(), to_notation(value)))
            .collect(),
    )
}

/// The plain JSON of a value, where JSON has it: what a driver that knows no AMQP types would print.
pub fn to_plain(value: &AMQPValue) -> Option<Value> {
    Some(match value {
        AMQPValue::ShortShortInt(integer) => json!(integer),
        AMQPValue::ShortShortUInt(integer) => json!(integer),
        AMQPValue::ShortInt(integer) => json!(integer),
        AMQPValue::ShortUInt(integer) => json!(integer),
        AMQPValue::LongInt(integer) => json!(integer),
        AMQPValue::LongUInt(integer) => json!(integer),
        AMQPValue::Float(float) => Value::Number(Number::from_f64(f64::from(*float))?),
        AMQPValue::LongString(text) => json!(std::str::from_utf8(text.as_bytes()).ok()?),
        AMQPValue::DecimalValue(_) | AMQPValue::Timestamp(_) | AMQPValue::ByteArray(_) => {
            return None;
        }
        AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_) => return None,
        other => to_notation(other),
    })
}

/// A whole table as a driver may print it: plain JSON where there is one, the notation elsewhere.
pub fn headers_plain(table: &FieldTable) -> Value {
    Value::Object(
        table
            .into_iter()
            .map(|(key, value)| (key.to_string(), plain_or_notation(value)))
            .collect(),
    )
}

fn plain_or_notation(value: &AMQPValue) -> Value {
    match value {
        AMQPValue::FieldArray(items) => {
            Value::Array(items.as_slice().iter().map(plain_or_notation).collect())
        }
        AMQPValue::FieldTable(table) => headers_plain(table),
        other => to_plain(other).unwrap_or_else(|| to_notation(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_survives_its_notation() {
        let notation = json!({
            "a": 1, "b": -1, "c": i64::MAX, "d": 1.5, "e": true, "f": null, "g": "text",
            "h": {"$int8": -5}, "i": {"$uint8": 200}, "j": {"$int16": -300}, "k": {"$uint16": 60000},
            "l": {"$int32": -70000}, "m": {"$uint32": 4_000_000_000_u32}, "n": {"$float32": 0.5},
            "o": {"$timestamp": 1_700_000_000}, "p": {"$bytes": "AAEC"}, "q": {"$decimal": {"scale": 2, "value": 314}},
            "r": [1, [{"$int8": 1}], {"deep": {"er": null}}], "s": {}, "t": [],
        });
        let value = from_notation(&notation).unwrap();
        assert_eq!(to_notation(&value), notation);
    }

    #[test]
    fn what_does_not_fit_its_type_is_refused() {
        for wrong in [
            json!({"$int8": 128}),
            json!({"$uint8": -1}),
            json!({"$bytes": "?"}),
            json!({"$colour": 1}),
            json!(u64::MAX),
        ] {
            assert!(from_notation(&wrong).is_err(), "{wrong} was accepted");
        }
    }
}
