//! A message in the format of AMQP 1.0: why RabbitMQ cannot deliver it over AMQP 0-9-1, and what it looks like in another queue.
//!
//! What is passed on keeps the bytes of its publisher. A decoder would have to know every message that RabbitMQ accepts: it takes, for
//! example, maps as application properties, which the standard forbids.

use std::ops::Range;

use super::value::{
    self, Reader, Value, boolean, described, short_list, string, symbol, timestamp, ubyte,
};

pub(crate) const HEADER: u64 = 0x70;
pub(crate) const DELIVERY_ANNOTATIONS: u64 = 0x71;
pub(crate) const ANNOTATIONS: u64 = 0x72;
pub(crate) const PROPERTIES: u64 = 0x73;
pub(crate) const APPLICATION_PROPERTIES: u64 = 0x74;
pub(crate) const DATA: u64 = 0x75;
const SEQUENCE: u64 = 0x76;
const VALUE: u64 = 0x77;
const FOOTER: u64 = 0x78;
/// The field of the properties that tells its publisher.
const USER_ID: usize = 1;

/// The longest short string of AMQP 0-9-1, in bytes.
const SHORT: usize = 255;

/// Where a message was found, and when.
#[derive(Clone, Debug)]
pub(crate) struct Found<'a> {
    pub(crate) queue: &'a str,
    /// In milliseconds since 1970.
    pub(crate) at: i64,
    pub(crate) cause: &'a str,
}

/// The annotations that [`set_aside`](Message::set_aside) adds.
pub(crate) const FOUND_IN: &str = "x-opt-retry-queue";
pub(crate) const FOUND_AT: &str = "x-opt-retry-set-aside-at";
pub(crate) const CAUSE: &str = "x-opt-retry-cause";
/// Annotations that a copy must not have, because they tell where *it* was published to, or the broker would route it there (`x-cc`); and
/// ours, which keep them.
const RENAMED: [(&str, &str); 3] = [
    ("x-exchange", EXCHANGE),
    ("x-routing-key", ROUTING_KEY),
    ("x-cc", "x-opt-retry-cc"),
];
pub(crate) const EXCHANGE: &str = "x-opt-retry-exchange";
pub(crate) const ROUTING_KEY: &str = "x-opt-retry-routing-key";
/// The property `user-id`: the broker refuses one that is not the connection's own.
const PUBLISHER: &str = "x-opt-retry-user-id";

/// How often the broker has delivered it: its own annotations.
const COUNTED: [&str; 2] = ["x-delivery-count", "x-acquired-count"];

/// All that are ours.
const OURS: [&str; 7] = [
    FOUND_IN,
    FOUND_AT,
    CAUSE,
    PUBLISHER,
    RENAMED[0].1,
    RENAMED[1].1,
    RENAMED[2].1,
];

/// The sections of a message, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    payload: Vec<u8>,
    sections: Vec<(u64, Value, Range<usize>)>,
    /// Whether something follows its data that is no section.
    is_garbled: bool,
}

impl Message {
    /// `None`: these bytes are no message.
    pub(crate) fn read(payload: Vec<u8>) -> Option<Self> {
        let (mut reader, mut sections) = (Reader::new(&payload), Vec::new());
        let mut is_garbled = false;
        while !reader.is_at_end() {
            let from = reader.at();
            let code = Reader::new(&payload[from..]).descriptor();
            if matches!(code, Some(SEQUENCE | VALUE)) {
                // RabbitMQ passes it on as it is, with what follows.
                sections.extend(code.map(|code| (code, Value::Opaque, from..payload.len())));
                break;
            }
            match reader.next() {
                Some((Value::Described(_, content), range)) if code.is_some() => {
                    sections.extend(code.map(|code| (code, *content, range)));
                }
                // RabbitMQ 4.0 looks at a publisher's data, and what follows it, only to convert it.
                _ if code == Some(DATA) || sections.iter().any(|(code, ..)| *code == DATA) => {
                    is_garbled = true;
                    sections.push((DATA, Value::Opaque, from..payload.len()));
                    break;
                }
                _ => return None,
            }
        }
        Some(Self {
            payload,
            sections,
            is_garbled,
        })
    }

    fn section(&self, code: u64) -> Option<&Value> {
        self.sections
            .iter()
            .find(|(is, ..)| *is == code)
            .map(|(_, content, _)| content)
    }

    /// The pairs of a section that is a map.
    pub(crate) fn map(&self, code: u64) -> &[(Value, Value)] {
        match self.section(code) {
            Some(Value::Map(pairs)) => pairs,
            _ => &[],
        }
    }

    /// A field of a section that is a list.
    pub(crate) fn field(&self, code: u64, number: usize) -> &Value {
        match self.section(code) {
            Some(Value::List(fields)) => fields.get(number).unwrap_or(&Value::Null),
            _ => &Value::Null,
        }
    }

    pub(crate) fn annotation(&self, name: &str) -> Option<&Value> {
        let pairs = self.map(ANNOTATIONS).iter();
        pairs
            .filter(|(key, _)| key.bytes() == Some(name.as_bytes()))
            .map(|(_, value)| value)
            .next()
    }

    /// The largest of the counts that its queue shows as annotations. Before the first one, its publisher's may be seen instead.
    pub(crate) fn counted(&self) -> Option<u64> {
        let counts = COUNTED.iter().filter_map(|name| self.annotation(name));
        let counts = counts.filter_map(|count| match count {
            Value::Number(count) => u64::try_from(*count).ok(),
            Value::Ulong(count) => Some(*count),
            _ => None,
        });
        counts.max()
    }

    /// How often it came back because the connection, session or channel that it was delivered to ended. RabbitMQ writes this into the header itself,
    /// whatever the publisher put there (`docs/broker-facts.md`, 94).
    pub(crate) fn died(&self) -> u64 {
        match self.field(HEADER, 4) {
            Value::Number(count) => u64::try_from(*count).unwrap_or_default(),
            _ => 0,
        }
    }

    /// The bytes that its publisher chose, without annotations.
    pub(crate) fn content(&self) -> &[u8] {
        let first = self.sections.iter().find(|(code, ..)| *code >= PROPERTIES);
        first.map_or(&[], |(.., range)| &self.payload[range.start..])
    }

    /// The content of its data sections; of another body, the body's bytes.
    pub(crate) fn body(&self) -> Vec<u8> {
        let parts = self.sections.iter();
        let parts = parts.filter(|(code, ..)| (DATA..FOOTER).contains(code));
        let parts = parts.map(|(code, content, range)| match content.bytes() {
            Some(bytes) if *code == DATA => bytes,
            _ => &self.payload[range.clone()],
        });
        parts.collect::<Vec<_>>().concat()
    }

    /// Why RabbitMQ closes the connection of an AMQP 0-9-1 client to which it should deliver this; `None` if it delivers it
    /// (`docs/broker-facts.md`, 94). `leaves_out_odd_numbers`: decimal and infinite numbers are no reason, unless they are in a list.
    pub(crate) fn obstacle(&self, leaves_out_odd_numbers: bool) -> Option<String> {
        let values = Values {
            leaves_out_odd_numbers,
        };
        let of_headers = || {
            let all = self.map(APPLICATION_PROPERTIES).iter();
            all.filter(|(key, _)| matches!(key, Value::String(name) if name.len() <= SHORT))
                .find_map(|(key, value)| {
                    describe_problem("application property", key, values.of_header(value))
                })
        };
        let of_annotations = || {
            self.map(ANNOTATIONS).iter().find_map(|(key, value)| {
                describe_problem(
                    "annotation",
                    key,
                    self.annotation_wrong(&values, key, value),
                )
            })
        };
        let has_footer = self.map(FOOTER).iter().any(|(key, _)| !is_extension(key));
        let is_opaque = |code: &u64| self.section(*code) == Some(&Value::Opaque);
        let opaque = [ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES, FOOTER];
        has_footer
            .then(|| "it has a footer with a key that does not begin with `x-`".to_owned())
            .or_else(|| self.has_odd_data().then(|| GARBLED.to_owned()))
            .or_else(|| (opaque.iter().any(is_opaque)).then(|| format!("a section of it {OPAQUE}")))
            .or_else(|| self.property_wrong())
            .or_else(of_headers)
            .or_else(of_annotations)
    }

    /// Whether its body is data, and something in it or behind it is not.
    fn has_odd_data(&self) -> bool {
        let is_odd = |(code, content, _): &(u64, Value, _)| {
            *code == DATA && !matches!(content, Value::Binary(_))
        };
        self.is_garbled || self.sections.iter().any(is_odd)
    }

    /// What is wrong with its properties.
    fn property_wrong(&self) -> Option<String> {
        let texts = [(6, "content-type"), (7, "content-encoding")];
        let long = texts
            .into_iter()
            .find(|(field, _)| !is_short_text(self.field(PROPERTIES, *field)));
        let ids = [(0, "message-id"), (5, "correlation-id")];
        let odd = ids.into_iter().find(|(field, _)| {
            let value = self.field(PROPERTIES, *field);
            !matches!(
                value,
                Value::Null
                    | Value::Ulong(_)
                    | Value::Uuid(_)
                    | Value::Binary(_)
                    | Value::String(_)
            )
        });
        let time = self.field(PROPERTIES, 9);
        let is_time = !is_odd(time) && !matches!(time, Value::Bool(_) | Value::Described(..));
        long.map(|(_, name)| {
            format!("its {name} is no short string of AMQP 0-9-1: at most {SHORT} bytes of text")
        })
        .or_else(|| odd.map(|(_, name)| format!("its {name} is no text, number or UUID")))
        .or_else(|| (!is_time).then(|| "its creation-time is no time".to_owned()))
    }

    fn annotation_wrong(
        &self,
        values: &Values,
        key: &Value,
        value: &Value,
    ) -> Option<&'static str> {
        let Value::Symbol(name) = key else {
            return None;
        };
        let is_text = name == b"x-basic-type" || name == b"x-basic-expiration";
        match name.as_slice() {
            // Whatever the header says.
            b"x-basic-type"
            | b"x-basic-expiration"
            | b"x-basic-delivery-mode"
            | b"x-basic-priority" => {
                let fits = if is_text {
                    is_short_text(value)
                } else {
                    is_number(value)
                };
                (!fits).then_some(NO_BASIC)
            }
            // Not converted.
            b"x-death" | b"x-exchange" | b"x-routing-key" => None,
            b"x-opt-deaths" => match value {
                Value::Array(deaths) => {
                    let is_odd = deaths.iter().any(|death| !is_death(death));
                    is_odd.then_some(DEATHS)
                }
                _ => None,
            },
            name if name.starts_with(b"x-") && name.len() <= SHORT => values.of_header(value),
            _ => None,
        }
    }

    /// The payload of a copy for the queue of unreadable messages: durable, without a time to live, with annotations that tell where it was
    /// found. All else has the bytes of its publisher. `largest`: so many bytes the broker takes. A copy that would be larger tells nothing.
    pub(crate) fn set_aside(&self, found: &Found<'_>, largest: Option<u64>) -> Vec<u8> {
        let copy = self.copy(Some(found));
        let fits = largest.is_none_or(|largest| copy.len() as u64 <= largest);
        if fits { copy } else { self.copy(None) }
    }

    fn copy(&self, found: Option<&Found<'_>>) -> Vec<u8> {
        let priority = match self.field(HEADER, 1) {
            Value::Number(priority) => u8::try_from(*priority).ok().map(ubyte),
            _ => None,
        };
        let header = [&boolean(true)[..], &priority.unwrap_or_default()].concat();
        let count = if header.len() > 1 { 2 } else { 1 };
        let mut all = described(HEADER as u8, &short_list(count, &header));
        let (count, annotations) = self.annotated(found);
        if count > 0 {
            all.extend(described(
                ANNOTATIONS as u8,
                &value::map(count, &annotations),
            ));
        }
        for (code, _, range) in &self.sections {
            match *code {
                HEADER | DELIVERY_ANNOTATIONS | ANNOTATIONS => {}
                PROPERTIES => all.extend(self.properties_without_publisher(range)),
                _ => all.extend_from_slice(&self.payload[range.clone()]),
            }
        }
        all
    }

    fn properties_without_publisher(&self, range: &Range<usize>) -> Vec<u8> {
        if *self.field(PROPERTIES, USER_ID) == Value::Null {
            return self.payload[range.clone()].to_vec();
        }
        let mut fields = self.encoded_items(PROPERTIES);
        fields[USER_ID] = value::NULL;
        described(
            PROPERTIES as u8,
            &value::encoded_list(fields.len(), &fields.concat()),
        )
    }

    /// Its annotations with ours, and how many keys and values they are. Without `found`, the broker's and ours are left out.
    fn annotated(&self, found: Option<&Found<'_>>) -> (usize, Vec<u8>) {
        let (mut count, mut items) = (0, Vec::new());
        let mut add = |key: &[u8], value: &[u8]| {
            items.extend_from_slice(key);
            items.extend_from_slice(value);
            count += 2;
        };
        for pair in self.encoded_items(ANNOTATIONS).chunks_exact(2) {
            let (key, value) = (pair[0], pair[1]);
            let name = Reader::new(key).next().map(|(name, _)| name);
            let name = name.as_ref().and_then(Value::bytes);
            let is = |known: &str| name == Some(known.as_bytes());
            let renamed = RENAMED.iter().find(|(theirs, _)| is(theirs));
            match (renamed, found) {
                (Some((_, ours)), Some(_)) => add(&symbol(ours), value),
                (Some(_), None) => {}
                // A message that is set aside again tells of the last time.
                (None, _) if OURS.iter().any(|ours| is(ours)) => {}
                (None, None) if COUNTED.iter().any(|counted| is(counted)) => {}
                (None, _) => add(key, value),
            }
        }
        if let Some(found) = found {
            add(&symbol(FOUND_IN), &string(found.queue));
            add(&symbol(FOUND_AT), &timestamp(found.at));
            add(&symbol(CAUSE), &string(found.cause));
            if *self.field(PROPERTIES, USER_ID) != Value::Null {
                add(&symbol(PUBLISHER), self.encoded_items(PROPERTIES)[USER_ID]);
            }
        }
        (count, items)
    }

    /// What is in a section that is a list or a map, as its publisher encoded it.
    fn encoded_items(&self, code: u64) -> Vec<&[u8]> {
        let section = self.sections.iter().find(|(is, ..)| *is == code);
        let bytes = section.map_or(&[][..], |(.., range)| &self.payload[range.clone()]);
        let mut reader = Reader::new(bytes);
        reader.enter();
        std::iter::from_fn(|| reader.skip()).collect()
    }
}

/// What is wrong with a value, as a sentence about the place where it is.
fn describe_problem(what: &str, key: &Value, wrong: Option<&'static str>) -> Option<String> {
    let name = String::from_utf8_lossy(key.bytes().unwrap_or_default()).into_owned();
    let short: String = name.chars().take(60).collect();
    wrong.map(|wrong| format!("its {what} `{short}` {wrong}"))
}

const UUID: &str = "is or contains a UUID, which AMQP 0-9-1 does not have";
const CHAR: &str = "is or contains a character, which AMQP 0-9-1 does not have";
const ODD: &str = "is or contains a decimal or infinite number";
const NESTED: &str = "contains a type that RabbitMQ cannot convert to AMQP 0-9-1 inside a list";
const DESCRIBED: &str = "is or contains a described type, which AMQP 0-9-1 does not have";
const KEY: &str = "contains a map with a key longer than 255 bytes, or that is no text";
const OPAQUE: &str = "has too many levels or values to be looked into";
const GARBLED: &str = "its body is data with something behind it that is neither data nor a footer";
const NO_BASIC: &str = "has no value that this property can have in AMQP 0-9-1";
const DEATHS: &str = "is not as RabbitMQ writes it";

fn is_short_text(value: &Value) -> bool {
    *value == Value::Null || value.bytes().is_some_and(|text| text.len() <= SHORT)
}

fn is_number(value: &Value) -> bool {
    matches!(value, Value::Null | Value::Number(_) | Value::Ulong(_))
}

/// Whether RabbitMQ has written this record of a dead-lettering.
fn is_death(death: &Value) -> bool {
    let Value::Map(pairs) = death else {
        return false;
    };
    let names = [
        "queue",
        "reason",
        "count",
        "first-time",
        "last-time",
        "exchange",
        "routing-keys",
    ];
    names.iter().all(|name| {
        pairs
            .iter()
            .any(|(key, _)| key.bytes() == Some(name.as_bytes()))
    })
}

/// What RabbitMQ's conversion of a value to AMQP 0-9-1 has no case for.
struct Values {
    leaves_out_odd_numbers: bool,
}

/// A value is in a table, or bare in a list: RabbitMQ's conversion has two functions, and the one for bare values knows fewer types.
impl Values {
    /// Of the value of a header.
    fn of_header(&self, value: &Value) -> Option<&'static str> {
        match value {
            Value::Map(pairs) => pairs
                .iter()
                .find_map(|(key, value)| wrong_key(key).or_else(|| self.of_header(value))),
            Value::List(items) | Value::Array(items) => items
                .iter()
                .filter(|item| !(self.leaves_out_odd_numbers && is_odd(item)))
                .find_map(|item| self.bare(item)),
            value if is_odd(value) => (!self.leaves_out_odd_numbers).then_some(ODD),
            value => foreign(value),
        }
    }

    fn bare(&self, value: &Value) -> Option<&'static str> {
        match value {
            Value::Ulong(_) | Value::Array(_) => Some(NESTED),
            Value::Map(pairs) => pairs.iter().find_map(|(key, value)| {
                let odd = is_odd(value).then_some(ODD);
                let wrong = wrong_key(key).or(odd);
                wrong.or_else(|| self.of_header(value))
            }),
            Value::List(items) => items.iter().find_map(|item| self.bare(item)),
            value if is_odd(value) => Some(ODD),
            value => foreign(value),
        }
    }
}

fn wrong_key(key: &Value) -> Option<&'static str> {
    let is_name = key.bytes().is_some_and(|name| name.len() <= SHORT);
    (!is_name).then_some(KEY)
}

fn is_extension(key: &Value) -> bool {
    matches!(key, Value::Symbol(name) if name.starts_with(b"x-"))
}

/// A type that AMQP 0-9-1 does not have, wherever it is.
fn foreign(value: &Value) -> Option<&'static str> {
    match value {
        Value::Uuid(_) => Some(UUID),
        Value::Char(_) => Some(CHAR),
        Value::Described(..) => Some(DESCRIBED),
        Value::Opaque => Some(OPAQUE),
        _ => None,
    }
}

fn is_odd(value: &Value) -> bool {
    match value {
        Value::Decimal => true,
        Value::Float(number) => !number.is_finite(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{value::null, *};

    const NAME: &str = "a";

    /// A message with these sections.
    fn message(sections: &[Vec<u8>]) -> Message {
        let data = described(DATA as u8, &value::binary(b"body"));
        Message::read([sections.concat(), data].concat()).unwrap()
    }

    fn pair(key: &[u8], value: &[u8]) -> Vec<u8> {
        value::map(2, &[key, value].concat())
    }

    fn with_header(value: &[u8]) -> Message {
        let headers = pair(&string(NAME), value);
        message(&[described(APPLICATION_PROPERTIES as u8, &headers)])
    }

    fn with_annotation(name: &str, value: &[u8]) -> Message {
        message(&[described(ANNOTATIONS as u8, &pair(&symbol(name), value))])
    }

    fn with_property(number: usize, value: Vec<u8>) -> Message {
        let mut fields = vec![null(); number];
        fields.push(value);
        message(&[described(PROPERTIES as u8, &value::list(&fields))])
    }

    /// Whether it is unreadable on 4.0, and on 4.3.
    fn verdicts(message: &Message) -> [bool; 2] {
        [false, true].map(|leaves_out| message.obstacle(leaves_out).is_some())
    }

    /// What was measured (`docs/broker-facts.md`, 94).
    #[test]
    fn what_no_client_of_amqp_0_9_1_can_be_given_is_told_from_the_rest() {
        let uuid = [&[0x98][..], &[7; 16]].concat();
        let (ulong, decimal) = (vec![0x53, 1], vec![0x74, 0, 0, 0, 1]);
        let nan = [&[0x72][..], &f32::NAN.to_be_bytes()].concat();
        let wide = vec![0x56, 1];
        let list = |item: &[u8]| value::list(&[item.to_vec()]);
        let map = |item: &[u8]| pair(&symbol("k"), item);
        let long = "k".repeat(256);
        for (message, expected) in [
            (with_header(&string("text")), [false; 2]),
            (with_header(&uuid), [true; 2]),
            (with_header(&[0x73, 0, 0, 0, 65]), [true; 2]),
            (with_header(&list(&uuid)), [true; 2]),
            (with_header(&map(&uuid)), [true; 2]),
            (with_header(&ulong), [false; 2]),
            (with_header(&map(&ulong)), [false; 2]),
            (with_header(&list(&ulong)), [true; 2]),
            (with_header(&list(&wide)), [false; 2]),
            (with_header(&map(&wide)), [false; 2]),
            (with_header(&list(&[0x41])), [false; 2]),
            (with_header(&decimal), [true, false]),
            (with_header(&nan), [true, false]),
            (with_header(&list(&decimal)), [true, false]),
            (with_header(&list(&map(&decimal))), [true; 2]),
            (with_header(&pair(&symbol(&long), &null())), [true; 2]),
            (with_header(&pair(&[0x54, 5], &null())), [true; 2]),
            (
                message(&[described(
                    APPLICATION_PROPERTIES as u8,
                    &pair(&string(&long), &uuid),
                )]),
                [false; 2],
            ),
            (with_annotation("x-a", &uuid), [true; 2]),
            (with_annotation("x-death", &uuid), [false; 2]),
            (with_annotation("x-basic-type", &string(&long)), [true; 2]),
            (with_annotation("x-basic-priority", &string("7")), [true; 2]),
            (with_annotation("x-basic-priority", &ubyte(7)), [false; 2]),
            (with_property(0, symbol("id")), [true; 2]),
            (with_property(0, uuid.clone()), [false; 2]),
            (with_property(6, symbol(&long)), [true; 2]),
            (with_property(4, string(&long)), [false; 2]),
            (with_property(9, timestamp(-1)), [false; 2]),
            (with_property(9, decimal.clone()), [true; 2]),
            (
                message(&[described(FOOTER as u8, &pair(&symbol("f"), &null()))]),
                [true; 2],
            ),
        ] {
            assert_eq!(verdicts(&message), expected, "{message:?}");
        }
    }

    #[test]
    fn a_section_may_be_described_by_its_name() {
        let named = |name: &str, content: &[u8]| [&[0][..], &symbol(name), content].concat();
        let uuid = [&[0x98][..], &[7; 16]].concat();
        let message = Message::read(
            [
                named("amqp:properties:list", &value::list(&[string("id")])),
                named(
                    "amqp:application-properties:map",
                    &pair(&string(NAME), &uuid),
                ),
                named("amqp:data:binary", &value::binary(b"body")),
            ]
            .concat(),
        )
        .unwrap();
        assert_eq!(verdicts(&message), [true; 2]);
        assert_eq!(message.body(), b"body");
        let found = Found {
            queue: "orders",
            at: 0,
            cause: "why",
        };
        let copy = Message::read(message.set_aside(&found, None)).unwrap();
        assert_eq!(copy.content(), message.content());
        assert!(Message::read(named("amqp:other:list", &value::list(&[]))).is_none());
    }

    #[test]
    fn a_copy_has_the_bytes_of_its_publisher_and_tells_where_it_was_found() {
        let time_to_live = value::list(&[boolean(false), ubyte(7), value::uint(5)]);
        let annotations = [
            pair(&symbol("x-exchange"), &string("shop")),
            pair(&symbol("x-opt-retry-cause"), &string("an older one")),
            pair(&symbol("x-a"), &[0x44]),
        ];
        let items: Vec<u8> = annotations
            .iter()
            .flat_map(|map| map[9..].to_vec())
            .collect();
        let properties = described(PROPERTIES as u8, &value::list(&[string("id")]));
        let original = message(&[
            described(HEADER as u8, &time_to_live),
            described(DELIVERY_ANNOTATIONS as u8, &value::map(0, &[])),
            described(ANNOTATIONS as u8, &value::map(6, &items)),
            properties.clone(),
        ]);
        let found = Found {
            queue: "orders",
            at: 1_700_000_000_000,
            cause: "why",
        };
        let copy = Message::read(original.set_aside(&found, None)).unwrap();
        assert_eq!(copy.content(), original.content());
        assert!(
            copy.payload
                .windows(properties.len())
                .any(|part| part == properties)
        );
        assert!(copy.field(HEADER, 0).is_true());
        assert_eq!(copy.field(HEADER, 1), &Value::Number(7));
        assert_eq!(copy.field(HEADER, 2), &Value::Null);
        let text = |text: &str| Some(Value::String(text.as_bytes().to_vec()));
        for (name, expected) in [
            (FOUND_IN, text("orders")),
            (CAUSE, text("why")),
            (FOUND_AT, Some(Value::Timestamp(1_700_000_000_000))),
            ("x-opt-retry-exchange", text("shop")),
            ("x-exchange", None),
            ("x-a", Some(Value::Ulong(0))),
        ] {
            assert_eq!(copy.annotation(name).cloned(), expected, "{name}");
        }
        assert_eq!(copy.map(ANNOTATIONS).len(), 5);
        assert_eq!(copy.body(), b"body");
    }

    #[test]
    fn a_copy_tells_nothing_where_it_would_be_too_large_and_never_whose_it_is() {
        let annotations = [
            symbol("x-cc"),
            value::list(&[string("orders")]),
            symbol("x-delivery-count"),
            vec![0x44],
            symbol("x-a"),
            vec![0x41],
        ];
        let fields = [string("id"), value::binary(b"shop"), string("to")];
        let original = message(&[
            described(ANNOTATIONS as u8, &value::map(6, &annotations.concat())),
            described(PROPERTIES as u8, &value::list(&fields)),
        ]);
        let found = Found {
            queue: "orders",
            at: 0,
            cause: "why",
        };
        let copy = |largest| Message::read(original.set_aside(&found, largest)).unwrap();
        let size = original.payload.len() as u64;
        for (largest, annotations) in [(None, 7), (Some(10 * size), 7), (Some(size), 1)] {
            let copy = copy(largest);
            assert_eq!(copy.map(ANNOTATIONS).len(), annotations);
            assert_eq!(copy.annotation("x-cc"), None);
            assert_eq!(copy.annotation("x-a"), Some(&Value::Bool(true)));
            let fields: Vec<_> = (0..3).map(|place| copy.field(PROPERTIES, place)).collect();
            let text = |text: &str| Value::String(text.into());
            assert_eq!(fields, [&text("id"), &Value::Null, &text("to")]);
            assert!(largest.is_none_or(|largest| copy.payload.len() as u64 <= largest));
            assert_eq!(copy.body(), b"body");
        }
        let publisher = copy(None).annotation(PUBLISHER).cloned();
        assert_eq!(publisher, Some(Value::Binary(b"shop".to_vec())));
    }

    #[test]
    fn what_is_behind_data_must_be_data_or_a_footer() {
        let data = described(DATA as u8, &value::binary(b"body"));
        let body = |bytes: &[&[u8]]| Message::read(bytes.concat()).unwrap();
        let footer = described(FOOTER as u8, &pair(&symbol("x-f"), &[0x40]));
        let text = described(DATA as u8, &string("text"));
        let sequence = described(SEQUENCE as u8, &[0xff, 0xff]);
        for (bytes, expected) in [
            (&[&data[..], &data][..], false),
            (&[&data, &footer], false),
            (&[&data, &[0xff, 0xff]], true),
            (&[&data, &[0, 0x53, 0x78, 0xd1, 0xff]], true),
            (&[&text], true),
            (&[&sequence], false),
        ] {
            assert_eq!(verdicts(&body(bytes)), [expected; 2], "{bytes:x?}");
        }
    }
}
