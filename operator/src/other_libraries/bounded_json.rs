//! JSON of any shape, in bounded memory: a body of some megabytes may hold millions of empty lists, each of which would take more
//! memory than it has characters.

use std::{cell::Cell, collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// The most values that are kept in all. AMQP headers have to fit a frame.
const VALUES: usize = 4096;
/// The most levels.
const DEPTH: usize = 12;

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum BoundedJson {
    Null,
    Flag(bool),
    Number(i64),
    Fraction(f64),
    Text(String),
    List(Vec<BoundedJson>),
    Table(BTreeMap<String, BoundedJson>),
    /// More values or levels than any headers have.
    TooMuch,
}

impl<'de> Deserialize<'de> for BoundedJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let room = SizeBudget {
            depth: DEPTH,
            values: &Cell::new(VALUES),
        };
        room.deserialize(deserializer)
    }
}

/// How much more is kept.
#[derive(Clone, Copy)]
struct SizeBudget<'a> {
    depth: usize,
    values: &'a Cell<usize>,
}

impl SizeBudget<'_> {
    fn below(self) -> Self {
        Self {
            depth: self.depth.saturating_sub(1),
            ..self
        }
    }

    fn is_used_up(self) -> bool {
        self.depth == 0 || self.values.get() == 0
    }
}

impl<'de> DeserializeSeed<'de> for SizeBudget<'_> {
    type Value = BoundedJson;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<BoundedJson, D::Error> {
        if self.is_used_up() {
            IgnoredAny::deserialize(deserializer)?;
            return Ok(BoundedJson::TooMuch);
        }
        self.values.set(self.values.get() - 1);
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for SizeBudget<'_> {
    type Value = BoundedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<BoundedJson, E> {
        Ok(BoundedJson::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<BoundedJson, E> {
        Ok(BoundedJson::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<BoundedJson, E> {
        Ok(BoundedJson::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<BoundedJson, E> {
        Ok(i64::try_from(number).map_or(BoundedJson::TooMuch, BoundedJson::Number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<BoundedJson, E> {
        Ok(BoundedJson::Fraction(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<BoundedJson, E> {
        Ok(BoundedJson::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<BoundedJson, A::Error> {
        let mut items = Vec::new();
        while !self.below().is_used_up() {
            match seq.next_element_seed(self.below())? {
                Some(item) => items.push(item),
                None => return Ok(BoundedJson::List(items)),
            }
        }
        let mut more = false;
        while seq.next_element::<IgnoredAny>()?.is_some() {
            more = true;
        }
        Ok(if more {
            BoundedJson::TooMuch
        } else {
            BoundedJson::List(items)
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<BoundedJson, A::Error> {
        let mut table = BTreeMap::new();
        while !self.below().is_used_up() {
            match map.next_key::<String>()? {
                Some(name) => {
                    let value = map.next_value_seed(self.below())?;
                    table.insert(name, value);
                }
                None => return Ok(BoundedJson::Table(table)),
            }
        }
        let mut more = false;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            more = true;
        }
        Ok(if more {
            BoundedJson::TooMuch
        } else {
            BoundedJson::Table(table)
        })
    }
}
