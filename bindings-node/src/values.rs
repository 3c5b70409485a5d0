//! AMQP values on their way to JavaScript, and back.
//!
//! | AMQP | JavaScript | back |
//! |---|---|---|
//! | `t` boolean | `boolean` | `t` |
//! | all integers | `number`, or `bigint` where a number would not be exact | `l` (64 bits) |
//! | `f`, `d` | `number` | `d` |
//! | `D` decimal | `Decimal` | `D` |
//! | `s`, `S` text | `string`, or `Buffer` if it is not UTF-8 | `S` |
//! | `x` bytes | `Buffer` | `x` |
//! | `T` timestamp | `Date`, or `number` past the end of JavaScript's calendar | `T` (whole seconds) |
//! | `A` array | `Array` | `A` |
//! | `F` table | plain object | `F` |
//! | `V` void | `null` | `V` |

use retryrmq::types::{
    AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString,
};

use crate::{
    errors::{Result, bad_option, mixed_versions},
    wire::{Reader, Writer},
};

/// Deeper nesting in outgoing values is refused. The core limits incoming values.
const DEPTH: usize = 32;

pub(crate) fn write_table(out: &mut Writer, table: &FieldTable) {
    out.len(table.inner().len());
    for (name, value) in table {
        out.bytes(name.as_str().as_bytes());
        write_value(out, value);
    }
}

fn write_value(out: &mut Writer, value: &AMQPValue) {
    match value {
        AMQPValue::Boolean(flag) => {
            out.u8(b't');
            out.u8(u8::from(*flag));
        }
        AMQPValue::ShortShortInt(number) => write_integer(out, (*number).into()),
        AMQPValue::ShortShortUInt(number) => write_integer(out, (*number).into()),
        AMQPValue::ShortInt(number) => write_integer(out, (*number).into()),
        AMQPValue::ShortUInt(number) => write_integer(out, (*number).into()),
        AMQPValue::LongInt(number) => write_integer(out, (*number).into()),
        AMQPValue::LongUInt(number) => write_integer(out, (*number).into()),
        AMQPValue::LongLongInt(number) => write_integer(out, *number),
        AMQPValue::Float(number) => write_number(out, f64::from(*number)),
        AMQPValue::Double(number) => write_number(out, *number),
        AMQPValue::DecimalValue(decimal) => {
            out.u8(b'D');
            out.u8(decimal.scale);
            out.u32(decimal.value);
        }
        AMQPValue::ShortString(text) => write_text(out, text.as_str().as_bytes()),
        AMQPValue::LongString(text) => write_text(out, text.as_bytes()),
        AMQPValue::ByteArray(bytes) => {
            out.u8(b'x');
            out.bytes(bytes.as_slice());
        }
        AMQPValue::Timestamp(seconds) => {
            out.u8(b'T');
            out.f64(*seconds as f64);
        }
        AMQPValue::FieldArray(array) => {
            out.u8(b'A');
            out.len(array.as_slice().len());
            for entry in array.as_slice() {
                write_value(out, entry);
            }
        }
        AMQPValue::FieldTable(table) => {
            out.u8(b'F');
            write_table(out, table);
        }
        AMQPValue::Void => out.u8(b'V'),
    }
}

fn write_integer(out: &mut Writer, number: i64) {
    out.u8(b'l');
    out.i64(number);
}

fn write_number(out: &mut Writer, number: f64) {
    out.u8(b'd');
    out.f64(number);
}

fn write_text(out: &mut Writer, text: &[u8]) {
    out.u8(if std::str::from_utf8(text).is_ok() {
        b'S'
    } else {
        b'x'
    });
    out.bytes(text);
}

pub(crate) fn read_table(from: &mut Reader<'_>, depth: usize) -> Result<FieldTable> {
    if depth > DEPTH {
        return Err(too_deep());
    }
    let mut table = FieldTable::default();
    for _ in 0..from.u32()? {
        let name = from.text()?;
        let short = ShortString::try_new(name.as_str()).map_err(|_| {
            let head: String = name.chars().take(40).collect();
            bad_option(format!(
                "a name in `headers` is longer than 255 bytes: `{head}…`"
            ))
        })?;
        table.insert(short, read_value(from, depth + 1)?);
    }
    Ok(table)
}

fn read_value(from: &mut Reader<'_>, depth: usize) -> Result<AMQPValue> {
    Ok(match from.u8()? {
        b't' => AMQPValue::Boolean(from.u8()? != 0),
        b'l' => AMQPValue::LongLongInt(from.i64()?),
        b'd' => AMQPValue::Double(from.f64()?),
        b'D' => AMQPValue::DecimalValue(DecimalValue {
            scale: from.u8()?,
            value: from.u32()?,
        }),
        b'S' => AMQPValue::LongString(LongString::from(from.text()?)),
        b'x' => AMQPValue::ByteArray(ByteArray::from(from.bytes()?)),
        b'T' => AMQPValue::Timestamp(from.f64()? as u64),
        b'A' => {
            if depth > DEPTH {
                return Err(too_deep());
            }
            let mut array = FieldArray::default();
            for _ in 0..from.u32()? {
                array.push(read_value(from, depth + 1)?);
            }
            AMQPValue::FieldArray(array)
        }
        b'F' => AMQPValue::FieldTable(read_table(from, depth)?),
        b'V' => AMQPValue::Void,
        _ => return Err(mixed_versions()),
    })
}

fn too_deep() -> napi::Error<crate::errors::Code> {
    bad_option(format!("`headers` is nested more than {DEPTH} levels deep"))
}
