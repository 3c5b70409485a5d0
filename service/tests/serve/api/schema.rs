//! Compares JSON with a schema (JSON Schema 2020-12), as far as the description of the API goes. A keyword that it does not know fails the test.

use serde_json::{Map, Value};

/// What of `value` is not as the schema says.
pub(super) fn faults(document: &Value, schema: &Value, value: &Value) -> Vec<String> {
    let mut faults = Vec::new();
    check(document, schema, value, "$", &mut faults);
    faults
}

fn check(document: &Value, schema: &Value, value: &Value, place: &str, faults: &mut Vec<String>) {
    let schema = match schema {
        Value::Bool(true) => return,
        Value::Object(schema) => schema,
        other => panic!("{place}: {other} is no schema"),
    };
    for (keyword, said) in schema {
        let is_met = match keyword.as_str() {
            "title" | "description" | "default" | "format" => true,
            "$ref" => {
                let pointer = said.as_str().unwrap().strip_prefix('#').unwrap();
                let target = document.pointer(pointer);
                let target = target.unwrap_or_else(|| panic!("{pointer} is nowhere"));
                check(document, target, value, place, faults);
                true
            }
            "type" => match said {
                Value::Array(types) => types.iter().any(|one| is_a(value, one)),
                one => is_a(value, one),
            },
            "const" => said == value,
            "enum" => said.as_array().unwrap().contains(value),
            "anyOf" => count(document, said, value) > 0,
            "oneOf" => count(document, said, value) == 1,
            "minimum" => value.as_f64().is_none_or(|it| it >= said.as_f64().unwrap()),
            "maximum" => value.as_f64().is_none_or(|it| it <= said.as_f64().unwrap()),
            "minLength" => length(value).is_none_or(|it| it >= said.as_u64().unwrap()),
            "maxLength" => length(value).is_none_or(|it| it <= said.as_u64().unwrap()),
            "items" => {
                for (number, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(document, said, item, &format!("{place}[{number}]"), faults);
                }
                true
            }
            "properties" => {
                properties(document, said, value, place, faults);
                true
            }
            "required" => {
                let names = said
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|name| name.as_str().unwrap());
                value.as_object().is_none_or(|object| {
                    let mut names = names;
                    names.all(|name| object.contains_key(name))
                })
            }
            "additionalProperties" => {
                assert_eq!(said, &Value::Bool(false), "{place}");
                let known = schema.get("properties").and_then(Value::as_object);
                value.as_object().is_none_or(|object| {
                    object
                        .keys()
                        .all(|name| known.is_some_and(|known| known.contains_key(name)))
                })
            }
            other => panic!("{place}: the keyword {other} is not compared"),
        };
        if !is_met {
            faults.push(format!("{place}: {keyword} {said} and {value}"));
        }
    }
}

fn properties(
    document: &Value,
    said: &Value,
    value: &Value,
    place: &str,
    faults: &mut Vec<String>,
) {
    let none = Map::new();
    let object = value.as_object().unwrap_or(&none);
    for (name, schema) in said.as_object().unwrap() {
        if let Some(value) = object.get(name) {
            check(document, schema, value, &format!("{place}.{name}"), faults);
        }
    }
}

/// How many of the schemas hold.
fn count(document: &Value, schemas: &Value, value: &Value) -> usize {
    let schemas = schemas.as_array().unwrap().iter();
    schemas
        .filter(|schema| faults(document, schema, value).is_empty())
        .count()
}

fn length(value: &Value) -> Option<u64> {
    value.as_str().map(|text| text.chars().count() as u64)
}

fn is_a(value: &Value, kind: &Value) -> bool {
    match kind.as_str().unwrap() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("{other} is no type"),
    }
}

#[test]
fn what_is_not_as_the_schema_says_is_found() {
    let document = serde_json::json!({"s": {
        "type": "object",
        "properties": {"a": {"type": ["integer", "null"], "minimum": 1}, "b": {"oneOf": [{"const": "x"}, {"const": "y"}]}},
        "required": ["a"],
        "additionalProperties": false,
    }});
    let schema = serde_json::json!({"$ref": "#/s"});
    for (value, is_good) in [
        (r#"{"a": 1, "b": "x"}"#, true),
        (r#"{"a": null}"#, true),
        (r#"{"b": "x"}"#, false),
        (r#"{"a": 0}"#, false),
        (r#"{"a": "1"}"#, false),
        (r#"{"a": 1, "b": "z"}"#, false),
        (r#"{"a": 1, "c": 1}"#, false),
        ("7", false),
    ] {
        let read = serde_json::from_str(value).unwrap();
        let faults = faults(&document, &schema, &read);
        assert_eq!(faults.is_empty(), is_good, "{value}: {faults:?}");
    }
}
