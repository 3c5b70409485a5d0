//! Avro with the schema of whoever wrote it, into a bounded tree.
//!
//! The schema is read by `apache-avro`. Its decoder trusts the lengths in the data up to half a gigabyte for each list, and
//! goes down as deep as a schema that contains itself says, so the data are read here.

use std::{collections::HashMap, panic::catch_unwind};

use apache_avro::schema::{DecimalSchema, Name, Namespace, Schema, UnionSchema};
use jiff::{SignedDuration, Timestamp, civil};
use serde_json::json;

use super::{
    bounded_value::{BoundedValue, LimitReached},
    cursor::{Cursor, MalformedAt},
};

/// A schema, and the names that it refers to.
#[derive(Debug)]
pub(super) struct AvroSchema {
    root: Schema,
    names: HashMap<Name, Schema>,
}

impl AvroSchema {
    /// Reads the JSON of a schema (an `.avsc` file).
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let json: serde_json::Value =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        names_are_sound(&json)?;
        let root = catch_unwind(|| Schema::parse(&json))
            .map_err(|_| "it cannot be read".to_owned())?
            .map_err(|error| error.to_string())?;
        let mut names = HashMap::new();
        collect(&root, &None, &mut names);
        Ok(Self { root, names })
    }

    /// The name of its record, enumeration or fixed, if it is one.
    pub(super) fn name(&self) -> Option<String> {
        self.root.name().map(|name| name.fullname(None))
    }

    /// Reads one datum, which must be all there is. Positions count from `base`.
    pub(super) fn decode(
        &self,
        bytes: &[u8],
        base: usize,
        tree: &mut BoundedValue,
    ) -> Result<(), MalformedAt> {
        let mut cursor = Cursor::within(bytes, base);
        self.value(&self.root, &None, &mut cursor, tree, 0)?;
        cursor.ends()
    }

    fn value(
        &self,
        schema: &Schema,
        space: &Namespace,
        cursor: &mut Cursor<'_>,
        tree: &mut BoundedValue,
        depth: usize,
    ) -> Result<(), MalformedAt> {
        let start = *cursor;
        // References and unions go down without a list or a map in between.
        if depth > 3 * super::bounded_value::DEEPEST {
            return Err(start.broken(super::bounded_value::TOO_DEEP));
        }
        let full = |full: LimitReached| start.full(full);
        match schema {
            Schema::Null => tree.put(json!(null)).map_err(full),
            Schema::Boolean => match cursor.byte("a boolean")? {
                0 => tree.put(json!(false)).map_err(full),
                1 => tree.put(json!(true)).map_err(full),
                other => Err(start.broken(format!("a boolean that is {other}"))),
            },
            Schema::Int | Schema::TimeMillis => tree.put(json!(int(cursor)?)).map_err(full),
            Schema::Long | Schema::TimeMicros => {
                tree.put(json!(cursor.zigzag("a long")?)).map_err(full)
            }
            Schema::Float => tree
                .put(super::fraction_f32(f32::from_le_bytes(
                    cursor.array("a float")?,
                )))
                .map_err(full),
            Schema::Double => tree
                .put(super::fraction(f64::from_le_bytes(
                    cursor.array("a double")?,
                )))
                .map_err(full),
            Schema::Bytes | Schema::BigDecimal => tree.bytes(sized(cursor, "bytes")?).map_err(full),
            Schema::String | Schema::Uuid => {
                let bytes = sized(cursor, "a string")?;
                match std::str::from_utf8(bytes) {
                    Ok(text) => tree.text(text).map_err(full),
                    Err(_) => Err(start.broken("a string that is not UTF-8")),
                }
            }
            Schema::Fixed(fixed) => tree
                .bytes(cursor.take(fixed.size as u64, "a fixed")?)
                .map_err(full),
            Schema::Duration => tree.bytes(cursor.take(12, "a duration")?).map_err(full),
            Schema::Decimal(decimal) => number(decimal, cursor, tree, start),
            Schema::Date => {
                let days = int(cursor)?;
                let date = civil::date(1970, 1, 1)
                    .checked_add(SignedDuration::from_hours(i64::from(days) * 24));
                match date {
                    Ok(date) => tree.text(&date.to_string()).map_err(full),
                    Err(_) => tree.put(json!(days)).map_err(full),
                }
            }
            Schema::TimestampMillis | Schema::LocalTimestampMillis => {
                time(schema, cursor, tree, Timestamp::from_millisecond)
            }
            Schema::TimestampMicros | Schema::LocalTimestampMicros => {
                time(schema, cursor, tree, Timestamp::from_microsecond)
            }
            Schema::TimestampNanos | Schema::LocalTimestampNanos => {
                time(schema, cursor, tree, |nanoseconds| {
                    Timestamp::from_nanosecond(nanoseconds.into())
                })
            }
            Schema::Enum(symbols) => {
                let index = int(cursor)?;
                let symbol = usize::try_from(index)
                    .ok()
                    .and_then(|index| symbols.symbols.get(index));
                match symbol {
                    Some(symbol) => tree.text(symbol).map_err(full),
                    None => Err(start.broken(format!(
                        "symbol {index} of an enumeration that has {}",
                        symbols.symbols.len()
                    ))),
                }
            }
            Schema::Union(union) => {
                let variant = variant(union, cursor, start)?;
                self.value(variant, space, cursor, tree, depth + 1)
            }
            Schema::Ref { name } => match self.names.get(&name.fully_qualified_name(space)) {
                Some(schema) => self.value(schema, space, cursor, tree, depth + 1),
                None => Err(start.broken(format!(
                    "a `{}`, which the schema does not define",
                    name.name
                ))),
            },
            Schema::Record(record) => {
                let name = record.name.fully_qualified_name(space);
                tree.map().map_err(full)?;
                for field in &record.fields {
                    tree.key(&field.name).map_err(full)?;
                    self.value(&field.schema, &name.namespace, cursor, tree, depth + 1)?;
                }
                tree.end();
                Ok(())
            }
            Schema::Array(array) => {
                tree.list().map_err(full)?;
                while let Some(count) = block(cursor)? {
                    for _ in 0..count {
                        self.value(&array.items, space, cursor, tree, depth + 1)?;
                    }
                }
                tree.end();
                Ok(())
            }
            Schema::Map(map) => {
                tree.map().map_err(full)?;
                while let Some(count) = block(cursor)? {
                    for _ in 0..count {
                        let at = *cursor;
                        let key = String::from_utf8_lossy(sized(cursor, "a key")?);
                        tree.key(&key).map_err(|why| at.full(why))?;
                        self.value(&map.types, space, cursor, tree, depth + 1)?;
                    }
                }
                tree.end();
                Ok(())
            }
        }
    }
}

/// `apache-avro` 0.21 panics at a name that is none.
fn names_are_sound(json: &serde_json::Value) -> Result<(), String> {
    let is_word = |word: &str| {
        let mut bytes = word.bytes();
        let begins = bytes
            .next()
            .is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        begins && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    match json {
        serde_json::Value::Object(map) => {
            if let Some(serde_json::Value::String(name)) = map.get("name")
                && !name.trim_start_matches('.').split('.').all(is_word)
            {
                return Err(format!(
                    "`{name}` is no name: letters, digits and _, with a letter or _ first"
                ));
            }
            map.values().try_for_each(names_are_sound)
        }
        serde_json::Value::Array(items) => items.iter().try_for_each(names_are_sound),
        _ => Ok(()),
    }
}

/// Every named schema, by its full name.
fn collect(schema: &Schema, space: &Namespace, names: &mut HashMap<Name, Schema>) {
    let mut named = |name: &Name| {
        let name = name.fully_qualified_name(space);
        names.insert(name.clone(), schema.clone());
        name.namespace
    };
    match schema {
        Schema::Record(record) => {
            let within = named(&record.name);
            for field in &record.fields {
                collect(&field.schema, &within, names);
            }
        }
        Schema::Enum(symbols) => drop(named(&symbols.name)),
        Schema::Fixed(fixed) => drop(named(&fixed.name)),
        Schema::Array(array) => collect(&array.items, space, names),
        Schema::Map(map) => collect(&map.types, space, names),
        Schema::Union(union) => {
            for variant in union.variants() {
                collect(variant, space, names);
            }
        }
        Schema::Decimal(decimal) => collect(&decimal.inner, space, names),
        _ => {}
    }
}

fn variant<'s>(
    union: &'s UnionSchema,
    cursor: &mut Cursor<'_>,
    start: Cursor<'_>,
) -> Result<&'s Schema, MalformedAt> {
    let index = cursor.zigzag("a union")?;
    usize::try_from(index)
        .ok()
        .and_then(|index| union.variants().get(index))
        .ok_or_else(|| {
            start.broken(format!(
                "branch {index} of a union that has {}",
                union.variants().len()
            ))
        })
}

fn int(cursor: &mut Cursor<'_>) -> Result<i32, MalformedAt> {
    let start = *cursor;
    let number = cursor.zigzag("an int")?;
    i32::try_from(number).map_err(|_| start.broken(format!("an int that is {number}")))
}

fn sized<'a>(cursor: &mut Cursor<'a>, what: &str) -> Result<&'a [u8], MalformedAt> {
    let start = *cursor;
    let length = cursor.zigzag("a length")?;
    match u64::try_from(length) {
        Ok(length) => cursor.take(length, what),
        Err(_) => Err(start.broken(format!("{what} of {length} bytes"))),
    }
}

/// How many items follow; none at the end. A negative count comes with the size of the block, for those who skip it.
fn block(cursor: &mut Cursor<'_>) -> Result<Option<u64>, MalformedAt> {
    let count = cursor.zigzag("a count")?;
    if count < 0 {
        cursor.zigzag("a size")?;
    }
    Ok((count != 0).then(|| count.unsigned_abs()))
}

/// A decimal as text where it fits into 128 bits, else its bytes.
fn number(
    decimal: &DecimalSchema,
    cursor: &mut Cursor<'_>,
    tree: &mut BoundedValue,
    start: Cursor<'_>,
) -> Result<(), MalformedAt> {
    let bytes = match &*decimal.inner {
        Schema::Fixed(fixed) => cursor.take(fixed.size as u64, "a decimal")?,
        _ => sized(cursor, "a decimal")?,
    };
    let done = if bytes.len() > 16 || decimal.scale > 1_000 {
        tree.bytes(bytes)
    } else {
        let sign = if bytes.first().is_some_and(|byte| *byte >= 0x80) {
            -1
        } else {
            0
        };
        let whole = bytes
            .iter()
            .fold(sign, |all: i128, byte| (all << 8) | i128::from(*byte));
        let digits = format!(
            "{:0>width$}",
            whole.unsigned_abs(),
            width = decimal.scale + 1
        );
        let (front, back) = digits.split_at(digits.len() - decimal.scale);
        let sign = if whole < 0 { "-" } else { "" };
        let point = if back.is_empty() { "" } else { "." };
        tree.text(&format!("{sign}{front}{point}{back}"))
    };
    done.map_err(|full| start.full(full))
}

/// A point in time as RFC 3339, a local one without its zone; beyond the calendar the number itself.
fn time(
    schema: &Schema,
    cursor: &mut Cursor<'_>,
    tree: &mut BoundedValue,
    read: impl Fn(i64) -> Result<Timestamp, jiff::Error>,
) -> Result<(), MalformedAt> {
    let start = *cursor;
    let number = cursor.zigzag("a time")?;
    let is_local = matches!(
        schema,
        Schema::LocalTimestampMillis | Schema::LocalTimestampMicros | Schema::LocalTimestampNanos
    );
    let done = match read(number) {
        Ok(time) if is_local => tree.text(time.to_string().trim_end_matches('Z')),
        Ok(time) => tree.text(&time.to_string()),
        Err(_) => tree.put(json!(number)),
    };
    done.map_err(|full| start.full(full))
}
