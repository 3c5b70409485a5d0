//! Tables of AMQP values as AMQP itself writes them, which languages read and write as well.
//!
//! A table is its fields without the length before them; the tags are those that RabbitMQ uses. Numbers are big-endian.

use retryrmq::types::{
    AMQPValue, ByteArray, DecimalValue, FieldArray, FieldTable, LongString, ShortString,
};

use crate::BindingError;

/// Deeper nesting is refused on the way out. The core has limited what comes in to it.
const DEPTH: usize = 32;

/// Writes the fields of a table.
pub fn write_table(out: &mut Vec<u8>, table: &FieldTable) {
    for (name, value) in table {
        write_short(out, name);
        write_value(out, value);
    }
}

/// Writes one byte of length and the text.
pub(crate) fn write_short(out: &mut Vec<u8>, text: &ShortString) {
    let bytes = text.as_str().as_bytes();
    let length = u8::try_from(bytes.len()).unwrap_or(u8::MAX);
    out.push(length);
    out.extend_from_slice(&bytes[..usize::from(length)]);
}

fn write_value(out: &mut Vec<u8>, value: &AMQPValue) {
    match value {
        AMQPValue::Boolean(flag) => out.extend([b't', u8::from(*flag)]),
        AMQPValue::ShortShortInt(number) => tagged(out, b'b', &number.to_be_bytes()),
        AMQPValue::ShortShortUInt(number) => tagged(out, b'B', &number.to_be_bytes()),
        AMQPValue::ShortInt(number) => tagged(out, b's', &number.to_be_bytes()),
        AMQPValue::ShortUInt(number) => tagged(out, b'u', &number.to_be_bytes()),
        AMQPValue::LongInt(number) => tagged(out, b'I', &number.to_be_bytes()),
        AMQPValue::LongUInt(number) => tagged(out, b'i', &number.to_be_bytes()),
        AMQPValue::LongLongInt(number) => tagged(out, b'l', &number.to_be_bytes()),
        AMQPValue::Float(number) => tagged(out, b'f', &number.to_be_bytes()),
        AMQPValue::Double(number) => tagged(out, b'd', &number.to_be_bytes()),
        AMQPValue::DecimalValue(decimal) => {
            tagged(out, b'D', &[decimal.scale]);
            out.extend(decimal.value.to_be_bytes());
        }
        AMQPValue::ShortString(text) => long(out, b'S', text.as_str().as_bytes()),
        AMQPValue::LongString(text) => long(out, b'S', text.as_bytes()),
        AMQPValue::ByteArray(bytes) => long(out, b'x', bytes.as_slice()),
        AMQPValue::Timestamp(seconds) => tagged(out, b'T', &seconds.to_be_bytes()),
        AMQPValue::FieldArray(array) => nested(out, b'A', |out| {
            for value in array.as_slice() {
                write_value(out, value);
            }
        }),
        AMQPValue::FieldTable(table) => nested(out, b'F', |out| write_table(out, table)),
        AMQPValue::Void => out.push(b'V'),
    }
}

fn tagged(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    out.push(tag);
    out.extend_from_slice(bytes);
}

fn long(out: &mut Vec<u8>, tag: u8, bytes: &[u8]) {
    nested(out, tag, |out| out.extend_from_slice(bytes));
}

fn nested(out: &mut Vec<u8>, tag: u8, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(tag);
    let at = out.len();
    out.extend([0; 4]);
    write(out);
    let length = u32::try_from(out.len() - at - 4).unwrap_or(0);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Reads the fields of a table: `headers` that a language wrote, or that [`write_table`] did.
///
/// # Errors
/// `invalid_option` for a name that is not UTF-8, for nesting deeper than 32 levels, and for bytes that are no table.
pub fn read_table(bytes: &[u8]) -> Result<FieldTable, BindingError> {
    Reader { rest: bytes }.table(0)
}

struct Reader<'a> {
    rest: &'a [u8],
}

fn cut_short() -> BindingError {
    BindingError::option("`headers` is cut short; this is a bug in retryrmq")
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], BindingError> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or_else(cut_short)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BindingError> {
        self.bytes(N)?.try_into().map_err(|_| cut_short())
    }

    fn nested(&mut self) -> Result<Reader<'a>, BindingError> {
        let length = u32::from_be_bytes(self.array()?);
        let rest = self.bytes(usize::try_from(length).map_err(|_| cut_short())?)?;
        Ok(Reader { rest })
    }

    fn table(&mut self, depth: usize) -> Result<FieldTable, BindingError> {
        let mut table = FieldTable::default();
        while !self.rest.is_empty() {
            let [length] = self.array()?;
            let name = std::str::from_utf8(self.bytes(usize::from(length))?)
                .map_err(|_| BindingError::option("a name in `headers` is not valid UTF-8"))?;
            // One byte of length cannot say too much.
            let name = ShortString::try_new(name).map_err(|_| cut_short())?;
            let value = self.value(depth)?;
            table.insert(name, value);
        }
        Ok(table)
    }

    fn value(&mut self, depth: usize) -> Result<AMQPValue, BindingError> {
        if depth > DEPTH {
            return Err(BindingError::option(format!(
                "`headers` is nested more than {DEPTH} levels deep"
            )));
        }
        let [tag] = self.array()?;
        Ok(match tag {
            b't' => AMQPValue::Boolean(self.array::<1>()? != [0]),
            b'b' => AMQPValue::ShortShortInt(i8::from_be_bytes(self.array()?)),
            b'B' => AMQPValue::ShortShortUInt(u8::from_be_bytes(self.array()?)),
            b's' => AMQPValue::ShortInt(i16::from_be_bytes(self.array()?)),
            b'u' => AMQPValue::ShortUInt(u16::from_be_bytes(self.array()?)),
            b'I' => AMQPValue::LongInt(i32::from_be_bytes(self.array()?)),
            b'i' => AMQPValue::LongUInt(u32::from_be_bytes(self.array()?)),
            b'l' => AMQPValue::LongLongInt(i64::from_be_bytes(self.array()?)),
            b'f' => AMQPValue::Float(f32::from_be_bytes(self.array()?)),
            b'd' => AMQPValue::Double(f64::from_be_bytes(self.array()?)),
            b'D' => AMQPValue::DecimalValue(DecimalValue {
                scale: u8::from_be_bytes(self.array()?),
                value: u32::from_be_bytes(self.array()?),
            }),
            b'S' => AMQPValue::LongString(LongString::from(self.nested()?.rest)),
            b'x' => AMQPValue::ByteArray(ByteArray::from(self.nested()?.rest)),
            b'T' => AMQPValue::Timestamp(u64::from_be_bytes(self.array()?)),
            b'F' => AMQPValue::FieldTable(self.nested()?.table(depth + 1)?),
            b'A' => {
                let mut inner = self.nested()?;
                let mut array = FieldArray::default();
                while !inner.rest.is_empty() {
                    array.push(inner.value(depth + 1)?);
                }
                AMQPValue::FieldArray(array)
            }
            b'V' => AMQPValue::Void,
            _ => return Err(cut_short()),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use retryrmq_harness::{
        amqp_values::{any_table, any_value},
        fuzz::{fuzz, gist},
    };

    use super::*;

    fn written(table: &FieldTable) -> Vec<u8> {
        let mut out = Vec::new();
        write_table(&mut out, table);
        out
    }

    proptest! {
        #[test]
        fn every_table_comes_back_to_the_last_bit(table in any_table(any_value())) {
            let bytes = written(&table);
            let back = read_table(&bytes).unwrap();
            // NaN is not equal to itself, but its bytes are.
            prop_assert_eq!(written(&back), bytes);
            prop_assert_eq!(format!("{back:?}"), format!("{table:?}"));
        }
    }

    #[test]
    fn any_table_of_a_language_is_read_or_refused() {
        let seeds: [&[u8]; 4] = [
            b"\x01at\x01\x01bS\0\0\0\x02hi\x01cx\0\0\0\x01\xff",
            b"\x01tF\0\0\0\x06\x01aA\0\0\0\0\x01vV",
            b"\x01aA\0\0\0\x06b\x01B\xffs\0\x01",
            b"\x01DD\x02\0\0\x01\x3a\x01TT\0\0\0\0\x6a\0\0\0",
        ];
        let words = [
            "\u{1}",
            "A",
            "F",
            "F\0\0\0\u{5}",
            "S\0\0\0\u{1}",
            "x",
            "l",
            "d",
            "V",
            "t",
        ];
        fuzz(&seeds, &words, |bytes| match read_table(bytes) {
            Ok(table) => {
                let again = written(&table);
                assert_eq!(written(&read_table(&again).unwrap()), again);
                table.inner().len().to_string()
            }
            Err(why) => gist(&why.message),
        });
    }

    #[test]
    fn what_is_nested_too_deeply_or_cut_short_is_refused() {
        let nested = |levels| {
            let mut table = FieldTable::default();
            table.insert("end".into(), AMQPValue::Void);
            for _ in 0..levels {
                let mut outer = FieldTable::default();
                outer.insert("in".into(), AMQPValue::FieldTable(table));
                table = outer;
            }
            written(&table)
        };
        assert!(read_table(&nested(DEPTH)).is_ok());
        let why = read_table(&nested(DEPTH + 1)).unwrap_err();
        assert!(why.message.contains("more than 32 levels"), "{why:?}");
        let whole = nested(1);
        for end in 1..whole.len() {
            let why = read_table(&whole[..end]).unwrap_err();
            assert!(why.message.contains("cut short"), "{why:?}");
        }
        let why = read_table(b"\x01\xffV").unwrap_err();
        assert!(why.message.contains("not valid UTF-8"), "{why:?}");
    }
}
