//! Values of AMQP 1.0, of every type, encoded in their widest form.

/// A value. Text is bytes, so that it need not be text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value10 {
    /// `null`
    Null,
    /// `boolean`
    Bool(bool),
    /// `ubyte`
    Ubyte(u8),
    /// `ushort`
    Ushort(u16),
    /// `uint`
    Uint(u32),
    /// `ulong`
    Ulong(u64),
    /// `byte`
    Byte(i8),
    /// `short`
    Short(i16),
    /// `int`
    Int(i32),
    /// `long`
    Long(i64),
    /// `float`, by its bits
    Float(u32),
    /// `double`, by its bits
    Double(u64),
    /// `decimal32`
    Decimal32([u8; 4]),
    /// `decimal64`
    Decimal64([u8; 8]),
    /// `decimal128`
    Decimal128([u8; 16]),
    /// `char`, which need not be one
    Char(u32),
    /// `timestamp`, in milliseconds
    Timestamp(i64),
    /// `uuid`
    Uuid([u8; 16]),
    /// `binary`
    Binary(Vec<u8>),
    /// `string`
    String(Vec<u8>),
    /// `symbol`
    Symbol(Vec<u8>),
    /// `list`
    List(Vec<Value10>),
    /// `map`
    Map(Vec<(Value10, Value10)>),
    /// `array`: all of the type of the first, `null` when it is empty
    Array(Vec<Value10>),
    /// A described value: its descriptor and what it describes.
    Described(Box<Value10>, Box<Value10>),
    /// What somebody has encoded.
    Encoded(Vec<u8>),
}

impl Value10 {
    /// A string.
    #[must_use]
    pub fn string(text: &str) -> Self {
        Self::String(text.into())
    }

    /// A symbol.
    #[must_use]
    pub fn symbol(text: &str) -> Self {
        Self::Symbol(text.into())
    }

    /// A `float`.
    #[must_use]
    pub fn float(number: f32) -> Self {
        Self::Float(number.to_bits())
    }

    /// A `double`.
    #[must_use]
    pub fn double(number: f64) -> Self {
        Self::Double(number.to_bits())
    }

    /// Constructor and value.
    #[must_use]
    pub fn encoded(&self) -> Vec<u8> {
        match self {
            // These have a form without a value, which clients use.
            Self::Bool(true) => vec![0x41],
            Self::Bool(false) => vec![0x42],
            Self::Encoded(bytes) => bytes.clone(),
            _ => [self.constructor(), self.payload()].concat(),
        }
    }

    fn constructor(&self) -> Vec<u8> {
        let code = match self {
            Self::Null => 0x40,
            Self::Bool(_) => 0x56,
            Self::Ubyte(_) => 0x50,
            Self::Ushort(_) => 0x60,
            Self::Uint(_) => 0x70,
            Self::Ulong(_) => 0x80,
            Self::Byte(_) => 0x51,
            Self::Short(_) => 0x61,
            Self::Int(_) => 0x71,
            Self::Long(_) => 0x81,
            Self::Float(_) => 0x72,
            Self::Double(_) => 0x82,
            Self::Decimal32(_) => 0x74,
            Self::Decimal64(_) => 0x84,
            Self::Decimal128(_) => 0x94,
            Self::Char(_) => 0x73,
            Self::Timestamp(_) => 0x83,
            Self::Uuid(_) => 0x98,
            Self::Binary(_) => 0xb0,
            Self::String(_) => 0xb1,
            Self::Symbol(_) => 0xb3,
            Self::List(_) => 0xd0,
            Self::Map(_) => 0xd1,
            Self::Array(_) => 0xf0,
            Self::Described(descriptor, value) => {
                return [vec![0], descriptor.encoded(), value.constructor()].concat();
            }
            Self::Encoded(bytes) => return bytes.clone(),
        };
        vec![code]
    }

    fn payload(&self) -> Vec<u8> {
        match self {
            Self::Null | Self::Encoded(_) => Vec::new(),
            Self::Bool(is) => vec![u8::from(*is)],
            Self::Ubyte(number) => vec![*number],
            Self::Ushort(number) => number.to_be_bytes().into(),
            Self::Uint(number) | Self::Float(number) | Self::Char(number) => {
                number.to_be_bytes().into()
            }
            Self::Ulong(number) | Self::Double(number) => number.to_be_bytes().into(),
            Self::Byte(number) => number.to_be_bytes().into(),
            Self::Short(number) => number.to_be_bytes().into(),
            Self::Int(number) => number.to_be_bytes().into(),
            Self::Long(number) | Self::Timestamp(number) => number.to_be_bytes().into(),
            Self::Decimal32(bytes) => bytes.into(),
            Self::Decimal64(bytes) => bytes.into(),
            Self::Decimal128(bytes) | Self::Uuid(bytes) => bytes.into(),
            Self::Binary(bytes) | Self::String(bytes) | Self::Symbol(bytes) => {
                [&length(bytes.len())[..], bytes].concat()
            }
            Self::List(items) => {
                let all: Vec<u8> = items.iter().flat_map(Self::encoded).collect();
                counted(items.len(), &all)
            }
            Self::Map(pairs) => {
                let pair = |(key, value): &(Self, Self)| [key.encoded(), value.encoded()].concat();
                let all: Vec<u8> = pairs.iter().flat_map(pair).collect();
                counted(pairs.len() * 2, &all)
            }
            Self::Array(items) => {
                let first = items.first().map_or(vec![0x40], Self::constructor);
                let all = items.iter().flat_map(Self::payload);
                counted(
                    items.len(),
                    &first.into_iter().chain(all).collect::<Vec<_>>(),
                )
            }
            Self::Described(_, value) => value.payload(),
        }
    }
}

fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).expect("it is small").to_be_bytes()
}

fn counted(count: usize, bytes: &[u8]) -> Vec<u8> {
    [&length(bytes.len() + 4)[..], &length(count), bytes].concat()
}
