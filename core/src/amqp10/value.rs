//! The types of AMQP 1.0: read from bytes, as far as they matter here, and the few that are written.

use std::ops::Range;

/// Deeper values are not looked into.
const DEEPEST: usize = 64;
/// So many values are looked into. One of a byte in a message takes thirty times that in memory.
const MOST_VALUES: usize = 100_000;

/// A value. What matters is which type it has, and where its bytes are.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    /// An integer of any type but [`Ulong`](Self::Ulong).
    Number(i64),
    Ulong(u64),
    Float(f64),
    Decimal,
    Char(u32),
    Timestamp(i64),
    Uuid([u8; 16]),
    Binary(Vec<u8>),
    String(Vec<u8>),
    Symbol(Vec<u8>),
    List(Vec<Self>),
    Map(Vec<(Self, Self)>),
    Array(Vec<Self>),
    Described(Box<Self>, Box<Self>),
    /// Too deep, or of too many values, to be looked into.
    Opaque,
}

/// The names of a message's sections. Their codes begin with that of the header.
const SECTIONS: [&str; 9] = [
    "amqp:header:list",
    "amqp:delivery-annotations:map",
    "amqp:message-annotations:map",
    "amqp:properties:list",
    "amqp:application-properties:map",
    "amqp:data:binary",
    "amqp:amqp-sequence:list",
    "amqp:amqp-value:*",
    "amqp:footer:map",
];
const FIRST_SECTION: u64 = 0x70;

impl Value {
    /// Its bytes, if it is text or binary.
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::Binary(bytes) | Self::String(bytes) | Self::Symbol(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub(super) fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => u64::try_from(*number).ok(),
            Self::Ulong(number) => Some(*number),
            _ => None,
        }
    }

    /// The code of a section that it describes, by number or by name. RabbitMQ takes both, and passes on what the publisher chose.
    fn section(&self) -> Option<u64> {
        let Self::Symbol(name) = self else {
            return self.number();
        };
        let place = SECTIONS.iter().position(|known| known.as_bytes() == name)?;
        Some(FIRST_SECTION + place as u64)
    }

    pub(super) fn is_true(&self) -> bool {
        matches!(self, Self::Bool(true))
    }

    /// The fields of a list that is described by this code.
    pub(super) fn fields(self, expected: u64) -> Option<Vec<Self>> {
        match self {
            Self::Described(code, list) if code.number() == Some(expected) => match *list {
                Self::List(fields) => Some(fields),
                _ => None,
            },
            _ => None,
        }
    }

    /// The code that describes it.
    pub(super) fn code(&self) -> Option<u64> {
        match self {
            Self::Described(code, _) => code.number(),
            _ => None,
        }
    }
}

/// Reads values one after the other. `None`: these bytes are not AMQP 1.0.
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// How many more values are looked into.
    left: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            at: 0,
            left: MOST_VALUES,
        }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.at >= self.bytes.len()
    }

    /// The next value, and where it is.
    pub(crate) fn next(&mut self) -> Option<(Value, Range<usize>)> {
        let from = self.at;
        let value = self.value(0)?;
        Some((value, from..self.at))
    }

    /// The code that describes the next value, which is then next.
    pub(super) fn descriptor(&mut self) -> Option<u64> {
        (self.byte()? == 0).then(|| self.value(1)?.section())?
    }

    /// Goes on to the first item of the described list or map that is next.
    pub(super) fn enter(&mut self) -> Option<()> {
        self.descriptor()?;
        let width = match self.byte()? {
            0xc0 | 0xc1 => 1,
            0xd0 | 0xd1 => 4,
            _ => return None,
        };
        self.take(2 * width).map(|_| ())
    }

    /// Goes past the next value, however deep it is, and returns its bytes.
    pub(super) fn skip(&mut self) -> Option<&'a [u8]> {
        let (from, mut values) = (self.at, 1_usize);
        while values > 0 {
            values -= 1;
            let code = self.byte()?;
            let length = match code >> 4 {
                // Its descriptor, and what it describes.
                0 if code == 0 => {
                    values += 2;
                    0
                }
                0x4 => 0,
                0x5 => 1,
                0x6 => 2,
                0x7 => 4,
                0x8 => 8,
                0x9 => 16,
                0xa | 0xc | 0xe => self.length(1)?,
                0xb | 0xd | 0xf => self.length(4)?,
                _ => return None,
            };
            self.take(length)?;
        }
        self.bytes.get(from..self.at)
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let end = self.at.checked_add(count)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|taken| taken[0])
    }

    /// A number of so many bytes, without a sign.
    fn unsigned(&mut self, width: usize) -> Option<u64> {
        let taken = self.take(width)?;
        Some(
            taken
                .iter()
                .fold(0, |all, byte| all << 8 | u64::from(*byte)),
        )
    }

    fn signed(&mut self, width: usize) -> Option<i64> {
        let shift = 64 - 8 * u32::try_from(width).ok()?;
        self.unsigned(width)
            .map(|number| (number << shift).cast_signed() >> shift)
    }

    /// The length of something, in one byte or four.
    fn length(&mut self, width: usize) -> Option<usize> {
        usize::try_from(self.unsigned(width)?).ok()
    }

    fn value(&mut self, depth: usize) -> Option<Value> {
        let is_described = *self.bytes.get(self.at)? == 0;
        if self.left == 0 || is_described && depth >= DEEPEST {
            return self.skip().map(|_| Value::Opaque);
        }
        self.left -= 1;
        let code = self.byte()?;
        if is_described {
            let descriptor = self.value(depth + 1)?;
            let value = self.value(depth + 1)?;
            return Some(Value::Described(descriptor.into(), value.into()));
        }
        self.of_type(code, depth)
    }

    /// What follows a constructor.
    fn of_type(&mut self, code: u8, depth: usize) -> Option<Value> {
        let number = |number: Option<u64>| number.map(|all| Value::Number(all.cast_signed()));
        match code {
            0x40 => Some(Value::Null),
            0x41 => Some(Value::Bool(true)),
            0x42 => Some(Value::Bool(false)),
            0x56 => self.byte().map(|byte| Value::Bool(byte != 0)),
            0x43 => Some(Value::Number(0)),
            0x44 => Some(Value::Ulong(0)),
            0x53 => self.unsigned(1).map(Value::Ulong),
            0x80 => self.unsigned(8).map(Value::Ulong),
            0x50 | 0x52 => number(self.unsigned(1)),
            0x60 => number(self.unsigned(2)),
            0x70 => number(self.unsigned(4)),
            0x51 | 0x54 | 0x55 => self.signed(1).map(Value::Number),
            0x61 => self.signed(2).map(Value::Number),
            0x71 => self.signed(4).map(Value::Number),
            0x81 => self.signed(8).map(Value::Number),
            0x72 => (self.unsigned(4)?.try_into().ok())
                .map(|bits| Value::Float(f32::from_bits(bits).into())),
            0x82 => self
                .unsigned(8)
                .map(|bits| Value::Float(f64::from_bits(bits))),
            0x83 => self.signed(8).map(Value::Timestamp),
            0x73 => self.unsigned(4)?.try_into().ok().map(Value::Char),
            0x74 => self.take(4).map(|_| Value::Decimal),
            0x84 => self.take(8).map(|_| Value::Decimal),
            0x94 => self.take(16).map(|_| Value::Decimal),
            0x98 => self.take(16)?.try_into().ok().map(Value::Uuid),
            0xa0 | 0xb0 => self.sized(code, 0xb0).map(Value::Binary),
            0xa1 | 0xb1 => self.sized(code, 0xb1).map(Value::String),
            0xa3 | 0xb3 => self.sized(code, 0xb3).map(Value::Symbol),
            0x45 => Some(Value::List(Vec::new())),
            0xc0 | 0xd0 => {
                let items = self.compound(code == 0xd0, depth)?;
                Some(items.map_or(Value::Opaque, Value::List))
            }
            0xc1 | 0xd1 => {
                let Some(all) = self.compound(code == 0xd1, depth)? else {
                    return Some(Value::Opaque);
                };
                let (mut all, mut pairs) = (all.into_iter(), Vec::new());
                while let Some(key) = all.next() {
                    pairs.push((key, all.next()?));
                }
                Some(Value::Map(pairs))
            }
            0xe0 | 0xf0 => self.array(code == 0xf0, depth),
            _ => None,
        }
    }

    fn sized(&mut self, code: u8, large: u8) -> Option<Vec<u8>> {
        let length = self.length(if code == large { 4 } else { 1 })?;
        self.take(length).map(<[u8]>::to_vec)
    }

    /// A reader of what is within the next list, map or array, and how many values it says to have; `None` for them: too many, or too deep.
    fn within(&mut self, large: bool, depth: usize) -> Option<(Self, Option<usize>)> {
        let width = if large { 4 } else { 1 };
        let size = self.length(width)?;
        let mut within = Reader::new(self.take(size)?);
        within.left = self.left;
        let count = within.length(width)?;
        let fits = count <= self.left && depth < DEEPEST;
        Some((within, fits.then_some(count)))
    }

    /// The items of a list or a map; `None` inside: they are not looked into.
    fn compound(&mut self, large: bool, depth: usize) -> Option<Option<Vec<Value>>> {
        let (mut within, count) = self.within(large, depth)?;
        let Some(count) = count else {
            return Some(None);
        };
        let items: Option<Vec<_>> = (0..count).map(|_| within.value(depth + 1)).collect();
        self.left = within.left;
        items.map(Some)
    }

    fn array(&mut self, large: bool, depth: usize) -> Option<Value> {
        let (mut within, Some(count)) = self.within(large, depth)? else {
            return Some(Value::Opaque);
        };
        let code = within.byte()?;
        if code == 0 {
            // All items have the same descriptor, and one of them tells as much as all.
            let descriptor = within.value(depth + 1)?;
            let code = within.byte()?;
            let items = (0..count.min(1)).map(|_| {
                let item = within.of_type(code, depth + 1)?;
                Some(Value::Described(descriptor.clone().into(), item.into()))
            });
            return items.collect::<Option<Vec<_>>>().map(Value::Array);
        }
        let items: Option<Vec<_>> = (0..count)
            .map(|_| within.of_type(code, depth + 1))
            .collect();
        self.left = within.left.saturating_sub(count);
        items.map(Value::Array)
    }
}

pub(super) const NULL: &[u8] = &[0x40];
pub(super) const TRUE: &[u8] = &[0x41];
pub(super) const FALSE: &[u8] = &[0x42];

pub(super) fn boolean(value: bool) -> Vec<u8> {
    if value { TRUE.to_vec() } else { FALSE.to_vec() }
}

pub(super) fn null() -> Vec<u8> {
    NULL.to_vec()
}

pub(super) fn ubyte(number: u8) -> Vec<u8> {
    vec![0x50, number]
}

pub(super) fn uint(number: u32) -> Vec<u8> {
    [&[0x70], &number.to_be_bytes()[..]].concat()
}

pub(super) fn timestamp(milliseconds: i64) -> Vec<u8> {
    [&[0x83], &milliseconds.to_be_bytes()[..]].concat()
}

pub(super) fn string(text: &str) -> Vec<u8> {
    sized(0xb1, text.as_bytes())
}

pub(super) fn symbol(text: &str) -> Vec<u8> {
    sized(0xb3, text.as_bytes())
}

pub(super) fn binary(bytes: &[u8]) -> Vec<u8> {
    sized(0xb0, bytes)
}

fn sized(code: u8, bytes: &[u8]) -> Vec<u8> {
    [&[code], &length(bytes.len())[..], bytes].concat()
}

pub(super) fn list(items: &[Vec<u8>]) -> Vec<u8> {
    compound(0xd0, items.len(), &items.concat())
}

/// A list of so many items, which are encoded.
pub(super) fn encoded_list(count: usize, items: &[u8]) -> Vec<u8> {
    compound(0xd0, count, items)
}

/// A list of few small items, which are encoded.
pub(super) fn short_list(count: u8, items: &[u8]) -> Vec<u8> {
    let size = u8::try_from(items.len() + 1).unwrap_or(u8::MAX);
    [&[0xc0, size, count], items].concat()
}

/// A map of so many keys and values, which are encoded.
pub(super) fn map(count: usize, items: &[u8]) -> Vec<u8> {
    compound(0xd1, count, items)
}

fn compound(code: u8, count: usize, items: &[u8]) -> Vec<u8> {
    [&[code], &length(items.len() + 4)[..], &length(count), items].concat()
}

pub(super) fn described(code: u8, value: &[u8]) -> Vec<u8> {
    [&[0, 0x53, code], value].concat()
}

/// Nothing that is written here is as large as that.
fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(bytes: &[u8]) -> Option<Value> {
        let mut reader = Reader::new(bytes);
        let (value, range) = reader.next()?;
        (range == (0..bytes.len())).then_some(value)
    }

    #[test]
    fn each_type_is_told_by_its_constructor() {
        let text = |text: &str| text.as_bytes().to_vec();
        for (bytes, value) in [
            (vec![0x40], Value::Null),
            (vec![0x56, 1], Value::Bool(true)),
            (vec![0x44], Value::Ulong(0)),
            (vec![0x53, 200], Value::Ulong(200)),
            (vec![0x54, 255], Value::Number(-1)),
            (vec![0x61, 255, 254], Value::Number(-2)),
            (vec![0x60, 1, 0], Value::Number(256)),
            (vec![0x73, 0, 0, 0, 65], Value::Char(65)),
            (vec![0x74, 0, 0, 0, 1], Value::Decimal),
            ([&[0x98][..], &[7; 16]].concat(), Value::Uuid([7; 16])),
            (vec![0xa1, 2, b'h', b'i'], Value::String(text("hi"))),
            (symbol("hi"), Value::Symbol(text("hi"))),
            (binary(b"hi"), Value::Binary(text("hi"))),
            (timestamp(-5), Value::Timestamp(-5)),
            (
                list(&[uint(9), null()]),
                Value::List(vec![Value::Number(9), Value::Null]),
            ),
            (vec![0x45], Value::List(vec![])),
            (
                map(2, &[symbol("a"), boolean(false)].concat()),
                Value::Map(vec![(Value::Symbol(text("a")), Value::Bool(false))]),
            ),
            (
                vec![0xe0, 4, 2, 0x53, 1, 2],
                Value::Array(vec![Value::Ulong(1), Value::Ulong(2)]),
            ),
            (
                described(0x75, &binary(b"")),
                Value::Described(Value::Ulong(0x75).into(), Value::Binary(vec![]).into()),
            ),
        ] {
            assert_eq!(read(&bytes), Some(value), "{bytes:x?}");
        }
    }

    #[test]
    fn what_is_cut_or_lies_about_its_size_is_no_value() {
        for bytes in [
            &[0xa1, 3, b'h'][..],
            &[0xd0, 0, 0, 0, 8, 0, 0, 0, 5, 0x40, 0x40, 0x40, 0x40],
            &[0xc1, 2, 1, 0x40],
            &[0x80, 1],
            &[0x99],
            &[],
        ] {
            assert_eq!(read(bytes), None, "{bytes:x?}");
        }
        let deep = [vec![0; 10_000], vec![0x40]].concat();
        assert_eq!(read(&deep), None);
    }

    #[test]
    fn what_would_take_much_memory_is_not_looked_into() {
        let is_opaque = |bytes: &[u8]| read(bytes) == Some(Value::Opaque);
        let many = vec![NULL.to_vec(); MOST_VALUES + 1];
        assert!(is_opaque(&list(&many)));
        assert!(is_opaque(&map(MOST_VALUES + 1, &many.concat())));
        let described = [&[0][..], &string(&"d".repeat(60_000)), NULL].concat();
        let array = |count: usize, items: &[u8]| compound(0xf0, count, items);
        assert!(is_opaque(&array(MOST_VALUES + 1, &described)));
        let Some(Value::Array(items)) = read(&array(60_000, &described)) else {
            panic!("an array");
        };
        assert_eq!(items.len(), 1);
        // In a list, each may have what the others left.
        let lists = vec![list(&many[..MOST_VALUES / 2]); 5];
        let Some(Value::List(items)) = read(&list(&lists)) else {
            panic!("a list");
        };
        let opaque = items.iter().filter(|item| **item == Value::Opaque);
        assert_eq!(opaque.count(), 4);
    }

    #[test]
    fn what_is_deep_is_passed_over() {
        let nested = |count: usize| {
            (0..count).fold(null(), |inner, _| {
                list(&[described(0x75, &map(2, &[null(), inner].concat()))])
            })
        };
        let shallow = format!("{:?}", read(&nested(5)).unwrap());
        assert!(!shallow.contains("Opaque"));
        let deep = format!("{:?}", read(&nested(1_000)).unwrap());
        assert!(deep.contains("Opaque"));
        let chain = [[0, 0x44].repeat(10_000), null()].concat();
        assert!(format!("{:?}", read(&chain).unwrap()).contains("Opaque"));
    }

    proptest! {
        #[test]
        fn no_bytes_do_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = Reader::new(&bytes);
            while let Some((_, range)) = reader.next() {
                prop_assert!(range.end <= bytes.len() && range.start < range.end);
            }
        }
    }
}
