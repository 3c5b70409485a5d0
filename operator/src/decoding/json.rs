//! JSON into a bounded tree.

use serde::{
    Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};
use serde_json::Value;

use super::{bounded_value::BoundedValue, cursor::MalformedAt};

pub(super) fn decode(text: &[u8], tree: &mut BoundedValue) -> Result<(), MalformedAt> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    Node(tree)
        .deserialize(&mut reader)
        .and_then(|()| reader.end())
        .map_err(|error| MalformedAt {
            at: offset(text, error.line(), error.column()),
            why: sentence(&error),
        })
}

/// The reason alone: the place is told in bytes.
fn sentence(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let end = text.rfind(" at line ").unwrap_or(text.len());
    text[..end].to_owned()
}

/// Lines and columns count from 1, columns in bytes; the column is that of the last byte that was read.
fn offset(text: &[u8], line: usize, column: usize) -> usize {
    let start = match line {
        0 | 1 => 0,
        _ => text
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(line - 2)
            .map_or(text.len(), |(at, _)| at + 1),
    };
    (start + column.saturating_sub(1)).min(text.len())
}

struct Node<'t>(&'t mut BoundedValue);

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.0.put(value.into()).map_err(E::custom)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.0.put(value.into()).map_err(E::custom)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        self.0.put(value.into()).map_err(E::custom)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        self.0.put(value.into()).map_err(E::custom)
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        self.0.text(value).map_err(E::custom)
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        self.0.put(Value::Null).map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        self.0.list().map_err(de::Error::custom)?;
        while items.next_element_seed(Node(self.0))?.is_some() {}
        self.0.end();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<(), A::Error> {
        self.0.map().map_err(de::Error::custom)?;
        while let Some(key) = entries.next_key::<String>()? {
            self.0.key(&key).map_err(de::Error::custom)?;
            entries.next_value_seed(Node(self.0))?;
        }
        self.0.end();
        Ok(())
    }
}
