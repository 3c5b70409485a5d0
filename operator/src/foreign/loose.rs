//! JSON of any shape, in bounded memory: a body of some megabytes may hold millions of empty lists, each of which would take more
//! memory than it has characters.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, MapAccess, SeqAccess, Visitor},
};

/// As many members of one list or table are kept. AMQP headers have to fit a frame.
const MEMBERS: usize = 256;
/// Levels that are kept. With the bound above, and since all headers fit 128 KiB, memory stays small.
const DEPTH: usize = 4;

/// A value.
#[derive(Clone, Debug)]
pub(crate) enum Loose {
    Null,
    Flag(bool),
    Number(i64),
    Fraction(f64),
    Text(String),
    List(Vec<Loose>),
    Table(BTreeMap<String, Loose>),
    /// More members or levels than any header has.
    TooMuch,
}

impl<'de> Deserialize<'de> for Loose {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(At(DEPTH))
    }
}

/// How many more levels are kept.
#[derive(Clone, Copy)]
struct At(usize);

impl<'de> serde::de::DeserializeSeed<'de> for At {
    type Value = Loose;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Loose, D::Error> {
        if self.0 == 0 {
            IgnoredAny::deserialize(deserializer)?;
            return Ok(Loose::TooMuch);
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for At {
    type Value = Loose;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Loose, E> {
        Ok(Loose::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Loose, E> {
        Ok(Loose::Flag(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Loose, E> {
        Ok(Loose::Number(number))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Loose, E> {
        Ok(i64::try_from(number).map_or(Loose::TooMuch, Loose::Number))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Loose, E> {
        Ok(Loose::Fraction(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Loose, E> {
        Ok(Loose::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Loose, A::Error> {
        let mut items = Vec::new();
        while items.len() < MEMBERS {
            match seq.next_element_seed(Self(self.0 - 1))? {
                Some(item) => items.push(item),
                None => return Ok(Loose::List(items)),
            }
        }
        let mut more = false;
        while seq.next_element::<IgnoredAny>()?.is_some() {
            more = true;
        }
        Ok(if more {
            Loose::TooMuch
        } else {
            Loose::List(items)
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Loose, A::Error> {
        let mut table = BTreeMap::new();
        while table.len() < MEMBERS {
            match map.next_key::<String>()? {
                Some(name) => {
                    let value = map.next_value_seed(Self(self.0 - 1))?;
                    table.insert(name, value);
                }
                None => return Ok(Loose::Table(table)),
            }
        }
        let mut more = false;
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
            more = true;
        }
        Ok(if more {
            Loose::TooMuch
        } else {
            Loose::Table(table)
        })
    }
}
