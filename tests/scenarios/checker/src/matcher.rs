//! Comparing what was seen with what a scenario expects, in the notation of `expect`.
//!
//! A plain value must be equal (an integer of any width, a text of any string type). A table must contain at least the
//! keys that are named. An array must have the same length. One key with a dollar asks for something else:
//! `{$contains: text}`, `{$type: timestamp}`, `{$absent: true}`, `{$present: true}`, `{$length: 2}`, `{$length: {$at_most: 1024}}`,
//! `{$at_least: 3}`, and `{$int64: 3}` for a value of exactly this AMQP type.

use lapin::types::AMQPValue;
use serde_json::Value;

use crate::field;

/// Something seen: exactly, on the wire, or as plain JSON, in a driver's words.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// Read from the broker by the checker itself.
    Exact(&'a AMQPValue),
    /// Printed by a driver.
    Told(&'a Value),
}

impl<'a> Seen<'a> {
    fn items(self) -> Option<Vec<Self>> {
        match self {
            Self::Exact(AMQPValue::FieldArray(items)) => {
                Some(items.as_slice().iter().map(Self::Exact).collect())
            }
            Self::Told(Value::Array(items)) => Some(items.iter().map(Self::Told).collect()),
            _ => None,
        }
    }

    fn get(self, key: &str) -> Result<Option<Self>, ()> {
        match self {
            Self::Exact(AMQPValue::FieldTable(table)) => {
                Ok(table.inner().get(key).map(Self::Exact))
            }
            Self::Told(Value::Object(map)) => Ok(map.get(key).map(Self::Told)),
            _ => Err(()),
        }
    }

    fn plain(self) -> Option<Value> {
        match self {
            Self::Exact(value) => field::to_plain(value),
            Self::Told(value) => Some(value.clone()),
        }
    }

    fn words(self) -> String {
        let value = match self {
            Self::Exact(value) => field::to_notation(value),
            Self::Told(value) => value.clone(),
        };
        let text = value.to_string();
        match text.char_indices().nth(300) {
            Some((end, _)) => format!("{}… ({} bytes)", &text[..end], text.len()),
            None => text,
        }
    }
}

/// What is wrong with what was seen at `place`, one sentence each; nothing when it is as expected.
pub fn differences(place: &str, expected: &Value, seen: Option<Seen<'_>>) -> Vec<String> {
    let wanted = match expected {
        Value::Object(map) => field::typed(map),
        _ => None,
    };
    if let Some(("absent", flag)) = wanted {
        return match (seen, flag == &Value::Bool(false)) {
            (Some(seen), false) => vec![format!("{place}: expected nothing, saw {}", seen.words())],
            (None, true) => vec![format!("{place}: expected something, saw nothing")],
            _ => Vec::new(),
        };
    }
    let Some(seen) = seen else {
        return vec![format!("{place}: expected {expected}, saw nothing")];
    };
    let differs = |is_as_expected: bool| {
        if is_as_expected {
            Vec::new()
        } else {
            vec![format!(
                "{place}: expected {expected}, saw {}",
                seen.words()
            )]
        }
    };
    match (wanted, expected) {
        (Some((asked, value)), _) => differs(is_as_asked(asked, value, expected, seen)),
        (None, Value::Object(map)) => map
            .iter()
            .flat_map(|(key, expected)| match seen.get(key) {
                Ok(found) => differences(&format!("{place}.{key}"), expected, found),
                Err(()) => vec![format!("{place}: expected a table, saw {}", seen.words())],
            })
            .collect(),
        (None, Value::Array(wanted)) => match seen.items() {
            Some(items) if items.len() == wanted.len() => wanted
                .iter()
                .zip(items)
                .enumerate()
                .flat_map(|(n, (expected, item))| {
                    differences(&format!("{place}[{n}]"), expected, Some(item))
                })
                .collect(),
            Some(items) => {
                vec![format!(
                    "{place}: expected {} items, saw {}: {}",
                    wanted.len(),
                    items.len(),
                    seen.words()
                )]
            }
            None => differs(false),
        },
        (None, plain) => differs(seen.plain().is_some_and(|seen| same(plain, &seen))),
    }
}

fn is_as_asked(asked: &str, value: &Value, expected: &Value, seen: Seen<'_>) -> bool {
    let plain = seen.plain();
    match asked {
        "present" => true,
        "contains" => {
            let text = plain.as_ref().and_then(Value::as_str);
            value
                .as_str()
                .is_some_and(|part| text.is_some_and(|text| text.contains(part)))
        }
        "length" => {
            let length = seen.items().map(|items| items.len());
            let length = length.or_else(|| plain.as_ref().and_then(Value::as_str).map(str::len));
            length.is_some_and(|length| match value.as_u64() {
                Some(wanted) => wanted == length as u64,
                None => differences("length", value, Some(Seen::Told(&length.into()))).is_empty(),
            })
        }
        "at_least" => plain
            .and_then(|seen| seen.as_f64())
            .is_some_and(|seen| value.as_f64().is_some_and(|least| seen >= least)),
        "at_most" => plain
            .and_then(|seen| seen.as_f64())
            .is_some_and(|seen| value.as_f64().is_some_and(|most| seen <= most)),
        "type" => match seen {
            Seen::Exact(seen) => value.as_str() == Some(field::type_name(seen)),
            Seen::Told(_) => true, // languages print other types: the checker looks at the wire itself
        },
        _ => match (field::from_notation(expected), seen) {
            (Ok(wanted), Seen::Exact(seen)) => wanted == *seen,
            (Ok(wanted), Seen::Told(told)) => {
                field::to_plain(&wanted).is_none_or(|wanted| same(&wanted, told))
            }
            (Err(_), _) => false,
        },
    }
}

/// Whether two plain values mean the same; `1` and `1.0` do.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() || b.is_f64() => {
            a.as_f64() == b.as_f64()
        }
        _ => one == other,
    }
}

/// What is wrong with a value that should have stayed as it was published.
pub fn kept(place: &str, published: &AMQPValue, seen: Option<Seen<'_>>) -> Vec<String> {
    let words = field::to_notation(published);
    let Some(seen) = seen else {
        return vec![format!("{place}: published {words}, now it is missing")];
    };
    let unchanged = match seen {
        Seen::Exact(seen) => seen == published,
        Seen::Told(told) => still_told(published, told),
    };
    if unchanged {
        Vec::new()
    } else {
        vec![format!(
            "{place}: published {words}, now it is {}",
            seen.words()
        )]
    }
}

fn still_told(published: &AMQPValue, told: &Value) -> bool {
    match (published, told) {
        (AMQPValue::FieldArray(items), Value::Array(told)) => {
            let items = items.as_slice();
            items.len() == told.len()
                && items
                    .iter()
                    .zip(told)
                    .all(|(item, told)| still_told(item, told))
        }
        (AMQPValue::FieldTable(table), Value::Object(told)) => {
            table.inner().len() == told.len()
                && table.into_iter().all(|(key, value)| {
                    told.get(key.as_str())
                        .is_some_and(|told| still_told(value, told))
                })
        }
        (AMQPValue::FieldArray(_) | AMQPValue::FieldTable(_), _) => false,
        _ => field::to_plain(published).is_none_or(|plain| same(&plain, told)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn told(expected: Value, seen: Value) -> bool {
        differences("it", &expected, Some(Seen::Told(&seen))).is_empty()
    }

    fn exact(expected: Value, seen: Value) -> bool {
        let seen = field::from_notation(&seen).unwrap();
        differences("it", &expected, Some(Seen::Exact(&seen))).is_empty()
    }

    #[test]
    fn plain_values_are_equal_or_not() {
        for (value, other) in [
            (json!(1), json!(2)),
            (json!("a"), json!("b")),
            (json!(true), json!(false)),
            (json!(null), json!(0)),
        ] {
            assert!(
                told(value.clone(), value.clone()) && exact(value.clone(), value.clone()),
                "{value}"
            );
            assert!(
                !told(value.clone(), other.clone()) && !exact(value.clone(), other),
                "{value}"
            );
        }
        assert!(
            exact(json!(5), json!({"$int8": 5})),
            "an integer of any width"
        );
        assert!(
            !exact(json!({"$int64": 5}), json!({"$int8": 5})),
            "an integer of this width"
        );
        assert!(!told(json!("1"), json!(1)));
    }

    #[test]
    fn tables_may_hold_more_and_arrays_may_not() {
        assert!(told(json!({"a": 1}), json!({"a": 1, "b": 2})));
        assert!(!told(json!({"a": 1}), json!({"b": 2})));
        assert!(!told(json!({"a": {"b": 1}}), json!({"a": 1})));
        assert!(!exact(json!([1, 2]), json!([1])));
        assert!(!exact(json!([1, 2]), json!([1, 3])));
        assert!(exact(
            json!([{"x": {"$type": "int8"}}]),
            json!([{"x": {"$int8": 1}, "y": 2}])
        ));
    }

    #[test]
    fn questions_are_answered_both_ways() {
        let cases = [
            (json!({"$contains": "oo"}), json!("foo"), json!("bar")),
            (json!({"$length": 2}), json!([1, 2]), json!([1])),
            (
                json!({"$length": {"$at_most": 2}}),
                json!("ab"),
                json!("abc"),
            ),
            (json!({"$at_least": 2}), json!(2), json!(1)),
            (json!({"$at_most": 2}), json!(2), json!(3)),
            (json!({"$type": "string"}), json!("x"), json!(1)),
            (
                json!({"$timestamp": 5}),
                json!({"$timestamp": 5}),
                json!({"$timestamp": 6}),
            ),
        ];
        for (asked, yes, no) in cases {
            assert!(exact(asked.clone(), yes), "{asked}");
            assert!(!exact(asked.clone(), no), "{asked}");
        }
        let present = Some(Seen::Told(&Value::Null));
        assert!(differences("it", &json!({"$absent": true}), None).is_empty());
        assert!(!differences("it", &json!({"$absent": true}), present).is_empty());
        assert!(differences("it", &json!({"$present": true}), present).is_empty());
        assert!(!differences("it", &json!({"$present": true}), None).is_empty());
        assert!(!exact(json!({"$unheard_of": 1}), json!(1)));
    }

    #[test]
    fn kept_means_type_and_value_on_the_wire() {
        let published =
            field::from_notation(&json!({"a": [{"$int8": 1}, {"$timestamp": 5}]})).unwrap();
        let wider = field::from_notation(&json!({"a": [1, {"$timestamp": 5}]})).unwrap();
        assert!(kept("it", &published, Some(Seen::Exact(&published))).is_empty());
        assert_eq!(kept("it", &published, Some(Seen::Exact(&wider))).len(), 1);
        assert_eq!(kept("it", &published, None).len(), 1);
        assert!(
            kept(
                "it",
                &published,
                Some(Seen::Told(&json!({"a": [1, "whatever"]})))
            )
            .is_empty()
        );
        assert_eq!(
            kept(
                "it",
                &published,
                Some(Seen::Told(&json!({"a": [2, "whatever"]})))
            )
            .len(),
            1
        );
        assert_eq!(
            kept("it", &published, Some(Seen::Told(&json!({"a": [1]})))).len(),
            1
        );
    }

    #[test]
    fn long_values_are_cut_between_characters() {
        let long = Value::String("ä".repeat(1000));
        assert!(differences("it", &json!(1), Some(Seen::Told(&long)))[0].contains("…"));
    }
}
