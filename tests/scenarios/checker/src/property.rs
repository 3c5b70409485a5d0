//! Properties of messages by their AMQP names, as scenarios give them and as messages show them.

use std::collections::BTreeMap;

use lapin::BasicProperties;
use lapin::types::ShortString;
use serde_json::{Map, Value, json};

/// The properties that a scenario gives, by their AMQP names; headers are apart.
pub fn from_notation(given: &BTreeMap<String, Value>) -> Result<BasicProperties, String> {
    let mut properties = BasicProperties::default().with_delivery_mode(2);
    for (name, value) in given {
        let text = || {
            short(
                value
                    .as_str()
                    .ok_or_else(|| format!("property {name} is a text"))?,
            )
        };
        let small = || {
            value
                .as_u64()
                .and_then(|n| n.try_into().ok())
                .ok_or_else(|| format!("{name} is a small number"))
        };
        properties = match name.as_str() {
            "content_type" => properties.with_content_type(text()?),
            "content_encoding" => properties.with_content_encoding(text()?),
            "delivery_mode" => properties.with_delivery_mode(small()?),
            "priority" => properties.with_priority(small()?),
            "correlation_id" => properties.with_correlation_id(text()?),
            "reply_to" => properties.with_reply_to(text()?),
            "expiration" => properties.with_expiration(text()?),
            "message_id" => properties.with_message_id(text()?),
            "timestamp" => {
                properties.with_timestamp(value.as_u64().ok_or("timestamp is in seconds")?)
            }
            "type" => properties.with_type(text()?),
            "user_id" => properties.with_user_id(text()?),
            "app_id" => properties.with_app_id(text()?),
            _ => return Err(format!("'{name}' is no property of a message")),
        };
    }
    Ok(properties)
}

/// The properties of a message that was read, by their AMQP names; only those that are set.
pub fn to_notation(properties: &BasicProperties) -> Map<String, Value> {
    let texts = [
        ("content_type", properties.content_type()),
        ("content_encoding", properties.content_encoding()),
        ("correlation_id", properties.correlation_id()),
        ("reply_to", properties.reply_to()),
        ("expiration", properties.expiration()),
        ("message_id", properties.message_id()),
        ("type", properties.kind()),
        ("user_id", properties.user_id()),
        ("app_id", properties.app_id()),
    ];
    let mut map = Map::new();
    for (name, text) in texts {
        if let Some(text) = text {
            map.insert(name.into(), json!(text.as_str()));
        }
    }
    for (name, number) in [
        ("delivery_mode", properties.delivery_mode()),
        ("priority", properties.priority()),
    ] {
        if let Some(number) = number {
            map.insert(name.into(), json!(number));
        }
    }
    if let Some(seconds) = properties.timestamp() {
        map.insert("timestamp".into(), json!(seconds));
    }
    map
}

fn short(text: &str) -> Result<ShortString, String> {
    ShortString::try_new(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_survive_too() {
        let given: BTreeMap<String, Value> = serde_json::from_value(json!({
            "message_id": "m", "priority": 3, "timestamp": 1_700_000_000, "type": "t", "user_id": "guest", "delivery_mode": 1
        }))
        .unwrap();
        let read = to_notation(&from_notation(&given).unwrap());
        assert_eq!(read.into_iter().collect::<BTreeMap<_, _>>(), given);
    }
}
