//! Messages RabbitMQ takes from anybody and that a client may die of, and a publisher that can send them.
//!
//! A client library refuses to encode most of these, so this one speaks AMQP 0-9-1 itself, over a plain socket, and
//! knows just enough of it to publish. It blocks; a publish takes a few milliseconds.
//!
//! ```no_run
//! # fn example(url: &str) {
//! use retryrmq_harness::hostile::{Hostile, RawPublisher};
//!
//! let mut publisher = RawPublisher::connect(url);
//! for message in Hostile::all() {
//!     publisher.publish(&message, "orders", b"body");
//! }
//! # }
//! ```

mod raw_publisher;

pub use raw_publisher::RawPublisher;

const FRAME_MAX: u32 = 131_072;
/// Frame head and end, class to body size, property flags.
const HEADER_OVERHEAD: usize = 8 + 12 + 2;

/// Property flags, as bits of their word.
pub mod flag {
    /// content_type
    pub const CONTENT_TYPE: u16 = 1 << 15;
    /// content_encoding
    pub const CONTENT_ENCODING: u16 = 1 << 14;
    /// headers
    pub const HEADERS: u16 = 1 << 13;
    /// correlation_id
    pub const CORRELATION_ID: u16 = 1 << 10;
    /// reply_to
    pub const REPLY_TO: u16 = 1 << 9;
    /// message_id
    pub const MESSAGE_ID: u16 = 1 << 7;
    /// type
    pub const TYPE: u16 = 1 << 5;
    /// app_id
    pub const APP_ID: u16 = 1 << 3;
    /// cluster_id
    pub const CLUSTER_ID: u16 = 1 << 2;
}

/// A message that has something wrong with it.
#[derive(Clone, Debug)]
pub struct Hostile {
    /// What is wrong, for the test's report.
    pub name: String,
    /// The routing key where it matters; such a message reaches its queue through `amq.fanout`.
    pub routing_key: Option<Vec<u8>>,
    /// The property flags and the properties, as they go onto the wire.
    pub properties: Vec<u8>,
}

impl Hostile {
    fn new(name: impl Into<String>, properties: Vec<u8>) -> Self {
        Hostile {
            name: name.into(),
            routing_key: None,
            properties,
        }
    }

    /// All of the below.
    pub fn all() -> Vec<Self> {
        let mut all = vec![
            Self::nested_tables(1_000),
            Self::nested_tables(15_000),
            Self::nested_arrays(2_000),
            Self::nested_arrays(25_000),
            Self::header_key(),
            Self::inner_header_key(),
            Self::routing_key(),
            Self::headers_of_a_whole_frame(),
        ];
        all.extend(Self::properties());
        all
    }

    /// A header with so many tables, each within the one before. About 18 000 fit into a frame.
    pub fn nested_tables(depth: usize) -> Self {
        let table = nested(depth, |inner| entry(b"k", b'F', &long(&inner)));
        Self::new(format!("{depth} nested tables"), headers(&table))
    }

    /// A header with so many arrays, each within the one before. About 26 000 fit into a frame.
    pub fn nested_arrays(depth: usize) -> Self {
        let array = nested(depth, |inner| [b"A", &long(&inner)[..]].concat());
        let table = [&short(b"k"), &array[..]].concat();
        Self::new(format!("{depth} nested arrays"), headers(&table))
    }

    /// A header whose name is not UTF-8.
    pub fn header_key() -> Self {
        let table = entry(b"k\xff\xfe", b'S', &long(b"value"));
        Self::new("a header key", headers(&table))
    }

    /// The same, in a table within an array.
    pub fn inner_header_key() -> Self {
        let table = [b"F", &long(&entry(b"\xc3", b'V', b""))[..]].concat();
        let table = entry(b"array", b'A', &long(&table));
        Self::new("a header key in a table in an array", headers(&table))
    }

    /// A routing key that is not UTF-8.
    pub fn routing_key() -> Self {
        Hostile {
            routing_key: Some(b"gr\xfcn.\xe2\x82".to_vec()),
            ..Self::new("a routing key", headers(b""))
        }
    }

    /// Each property that can hold what is not UTF-8. RabbitMQ looks at `expiration` and `user_id` itself.
    pub fn properties() -> Vec<Self> {
        [
            ("content_type", flag::CONTENT_TYPE),
            ("content_encoding", flag::CONTENT_ENCODING),
            ("correlation_id", flag::CORRELATION_ID),
            ("reply_to", flag::REPLY_TO),
            ("message_id", flag::MESSAGE_ID),
            ("type", flag::TYPE),
            ("app_id", flag::APP_ID),
            ("cluster_id", flag::CLUSTER_ID),
        ]
        .map(|(name, flag)| Self::new(name, properties(flag, &short(b"a\xff\xfeb"))))
        .into()
    }

    /// Headers that fill a frame to its last byte: with whatever the broker adds (`x-death`, `x-delivery-count`) the
    /// message exceeds the frame size that consumers negotiated, and is sent all the same.
    pub fn headers_of_a_whole_frame() -> Self {
        let empty = long(&entry(b"blob", b'S', &long(b"")));
        let room = FRAME_MAX as usize - HEADER_OVERHEAD - empty.len();
        let table = entry(b"blob", b'S', &long(&vec![b'v'; room]));
        Self::new("headers of a whole frame", headers(&table))
    }
}

/// Property flags and properties with nothing but this headers table.
pub fn headers(table: &[u8]) -> Vec<u8> {
    properties(flag::HEADERS, &long(table))
}

/// Property flags and properties as they go onto the wire.
pub fn properties(flags: u16, list: &[u8]) -> Vec<u8> {
    [&flags.to_be_bytes(), list].concat()
}

/// A field of a table: name, type, value.
pub fn entry(key: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    [&short(key)[..], &[tag], value].concat()
}

/// A short string.
///
/// # Panics
/// Above 255 bytes.
pub fn short(bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).expect("a short string has at most 255 bytes");
    [&[len], bytes].concat()
}

/// A long string, table or array: its length, and its content.
pub fn long(content: &[u8]) -> Vec<u8> {
    [&size(content), content].concat()
}

fn size(content: &[u8]) -> [u8; 4] {
    u32::try_from(content.len())
        .expect("less than 4 GiB")
        .to_be_bytes()
}

fn nested(depth: usize, wrap: impl Fn(Vec<u8>) -> Vec<u8>) -> Vec<u8> {
    (0..depth).fold(Vec::new(), |inner, _| wrap(inner))
}
