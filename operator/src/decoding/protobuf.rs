//! Protobuf with a descriptor set: a message that is named, or the one of the set that fits best.
//!
//! `prost-reflect` decodes. It builds whatever a body claims, so the body is measured first, field by field, without
//! building anything: how much of it the message knows, how many values it holds, and where it breaks off.

use prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MessageDescriptor, ReflectMessage,
    SerializeOptions,
};
use serde_json::Value;

use super::{
    bounded_value::{MOST_VALUES, TOO_DEEP},
    cursor::{Cursor, MalformedAt},
    protobuf_wire::{self, Field, Payload},
};

/// Shown as what is in it.
const ANY: &str = "google.protobuf.Any";
/// Levels of messages within messages; `prost` itself goes down 100.
const DEEPEST: usize = 64;
/// What a message costs beside its fields, in values: a map of fields, and a place in it for a dozen.
const MESSAGE: usize = 4;
/// How much of a body is measured against each message of a set.
const MOST_TRIED: usize = 256 * 1024;

/// The messages of a descriptor set.
#[derive(Clone, Debug)]
pub(super) struct Messages {
    pool: DescriptorPool,
    named: Option<MessageDescriptor>,
}

/// How well a message describes a body.
#[derive(Clone, Debug, PartialEq)]
pub struct SchemaFit {
    /// The message, with its package.
    pub message: String,
    /// Per cent of the body that it knows and that looks like what it says, 100 at most.
    pub score: u8,
    /// How many messages of the set were tried to find it; 0 where it was given.
    pub tried: usize,
    /// Others of the set that fit as well, or nearly.
    pub others: Vec<(String, u8)>,
}

/// Messages with their scores.
type SchemaScores = Vec<(String, u8)>;

/// What was decoded by a message.
pub(super) struct DecodedMessage {
    pub(super) fit: SchemaFit,
    pub(super) value: Option<Value>,
    pub(super) broken: Option<MalformedAt>,
}

impl Messages {
    /// Reads a descriptor set; `named` is a message of it, with its package.
    pub(super) fn parse(set: &[u8], named: Option<&str>) -> Result<Self, String> {
        let pool = DescriptorPool::decode(set).map_err(|error| error.to_string())?;
        if pool.all_messages().next().is_none() {
            return Err("it describes no message".to_owned());
        }
        let named = named.map(|name| named_in(&pool, name)).transpose()?;
        Ok(Self { pool, named })
    }

    /// Whether it was said which message bodies are.
    pub(super) fn are_named(&self) -> bool {
        self.named.is_some()
    }

    /// Decodes as the message that was named, or as the one that fits best; none where nothing fits at all.
    pub(super) fn decode(&self, bytes: &[u8], base: usize) -> Option<DecodedMessage> {
        let (message, tried, others) = match &self.named {
            Some(message) => (message.clone(), 0, Vec::new()),
            None => self.best(bytes, base)?,
        };
        let measure = FitMeasure::of(&message, bytes, base);
        let fit = SchemaFit {
            message: message.full_name().to_owned(),
            score: measure.score(bytes.len()),
            tried,
            others,
        };
        let is_whole = measure.broken.is_none();
        let (value, broken) = match json(message, &bytes[..measure.sound - base], is_whole) {
            Ok(value) => (Some(value), measure.broken),
            Err(why) => (None, measure.broken.or(Some(MalformedAt { at: base, why }))),
        };
        Some(DecodedMessage { fit, value, broken })
    }

    /// Whether the bytes are a message of the set from one end to the other.
    pub(super) fn fits(&self, bytes: &[u8]) -> bool {
        match &self.named {
            Some(message) => {
                let measure = FitMeasure::of(message, bytes, 0);
                measure.broken.is_none() && measure.score(bytes.len()) > 50
            }
            None => self.best(bytes, 0).is_some_and(|(message, ..)| {
                FitMeasure::of(&message, bytes, 0).score(bytes.len()) > 50
            }),
        }
    }

    /// The message that knows most of the bytes; of those that know as much, the one with the fewest fields that did not come.
    fn best(&self, bytes: &[u8], base: usize) -> Option<(MessageDescriptor, usize, SchemaScores)> {
        let is_candidate = |message: &MessageDescriptor| {
            !message.is_map_entry() && !message.full_name().starts_with("google.protobuf.")
        };
        let sample = sample(bytes);
        let mut tried = 0;
        let mut fits: Vec<(u8, usize, MessageDescriptor)> = self
            .pool
            .all_messages()
            .filter(is_candidate)
            .inspect(|_| tried += 1)
            .filter_map(|message| {
                let measure = FitMeasure::of(&message, sample, base);
                let score = measure.score(sample.len());
                let absent = message.fields().len().saturating_sub(measure.distinct);
                (measure.broken.is_none() && score > 0).then_some((score, absent, message))
            })
            .collect();
        fits.sort_by(|(score, absent, one), (other_score, other_absent, other)| {
            other_score
                .cmp(score)
                .then(absent.cmp(other_absent))
                .then_with(|| one.full_name().cmp(other.full_name()))
        });
        let mut fits = fits.into_iter();
        let (score, _, best) = fits.next()?;
        let others = fits
            .take_while(|(other, ..)| *other + 5 >= score)
            .take(3)
            .map(|(score, _, message)| (message.full_name().to_owned(), score))
            .collect();
        Some((best, tried, others))
    }
}

/// The message of that name, or the only one whose name ends so.
fn named_in(pool: &DescriptorPool, name: &str) -> Result<MessageDescriptor, String> {
    if let Some(message) = pool.get_message_by_name(name.trim_start_matches('.')) {
        return Ok(message);
    }
    let all = || {
        pool.all_messages()
            .filter(|message| !message.is_map_entry())
    };
    let mut alike = all().filter(|message| message.name() == name);
    match (alike.next(), alike.next()) {
        (Some(message), None) => Ok(message),
        (Some(one), Some(other)) => Err(format!(
            "it has several messages `{name}`: say which, `{}` or `{}`",
            one.full_name(),
            other.full_name()
        )),
        _ => {
            let mut names: Vec<String> = all()
                .filter(|message| !message.full_name().starts_with("google.protobuf."))
                .map(|message| format!("`{}`", message.full_name()))
                .collect();
            names.sort();
            let more = if names.len() > 10 { " and others" } else { "" };
            names.truncate(10);
            Err(format!(
                "it has no message `{name}`; it has {}{more}",
                names.join(", ")
            ))
        }
    }
}

/// Whole fields from the front of a large body: enough to tell messages apart.
fn sample(bytes: &[u8]) -> &[u8] {
    if bytes.len() <= MOST_TRIED {
        return bytes;
    }
    let mut cursor = Cursor::new(bytes);
    let mut end = 0;
    while let Ok(Some(_)) = protobuf_wire::field(&mut cursor, 0) {
        if cursor.position() > MOST_TRIED && end > 0 {
            break;
        }
        end = cursor.position();
    }
    if end == 0 { bytes } else { &bytes[..end] }
}

/// How many fields with their default are written into a body.
const MOST_DEFAULTS: usize = 4_096;

/// How many fields have their default and were not sent, in the message and those within it.
fn defaults(message: &DynamicMessage) -> usize {
    let within = |value: &prost_reflect::Value| match value {
        prost_reflect::Value::Message(message) => defaults(message),
        prost_reflect::Value::List(values) => values.iter().map(of_value).sum(),
        prost_reflect::Value::Map(values) => values.values().map(of_value).sum(),
        _ => 0,
    };
    let kind = message.descriptor();
    let is_absent =
        |field: &FieldDescriptor| !field.supports_presence() && !message.has_field(field);
    let absent = kind.fields().filter(is_absent).count();
    let sent = message.fields().map(|(_, value)| within(value));
    absent + sent.sum::<usize>()
}

fn of_value(value: &prost_reflect::Value) -> usize {
    match value {
        prost_reflect::Value::Message(message) => defaults(message),
        _ => 0,
    }
}

/// `is_whole`: what is not there was not sent, and has its default.
fn json(message: MessageDescriptor, bytes: &[u8], is_whole: bool) -> Result<Value, String> {
    let message = DynamicMessage::decode(message, bytes).map_err(|error| error.to_string())?;
    // What JSON calls 64-bit numbers in texts would be no numbers for a filter. A field that has its default is not on the wire, and a filter asks
    // for `paid == false` all the same; but to write very many of those would let a small body become a huge value.
    let options = SerializeOptions::new()
        .stringify_64_bit_integers(false)
        .skip_default_fields(!is_whole || defaults(&message) > MOST_DEFAULTS)
        .use_proto_field_name(true);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(|error| error.to_string())
}

/// What was found by going through the bytes.
struct FitMeasure {
    values: usize,
    /// Bytes that the message does not know.
    unknown: usize,
    /// Bytes of texts with control characters: rather a message within that another type would know.
    odd: usize,
    /// Fields of the outermost message that came.
    distinct: usize,
    /// Where the last whole field of the outermost message ends.
    sound: usize,
    broken: Option<MalformedAt>,
}

impl FitMeasure {
    fn of(message: &MessageDescriptor, bytes: &[u8], base: usize) -> Self {
        let mut measure = Self {
            values: 0,
            unknown: 0,
            odd: 0,
            distinct: 0,
            sound: base,
            broken: None,
        };
        let mut cursor = Cursor::within(bytes, base);
        if message.full_name() == ANY {
            measure.broken = measure.any(message, cursor, 0).err();
            if measure.broken.is_none() {
                measure.sound += bytes.len();
            }
            return measure;
        }
        let mut seen = std::collections::BTreeSet::new();
        loop {
            let before = (measure.unknown, measure.odd);
            let next = protobuf_wire::field(&mut cursor, 0).and_then(|field| match field {
                Some(field) => measure
                    .field(message, &field, cursor.position() - field.at, 0)
                    .map(|()| Some(field.number)),
                None => Ok(None),
            });
            match next {
                Ok(Some(number)) => {
                    if message.get_field(number).is_some() {
                        seen.insert(number);
                    }
                    measure.sound = cursor.position();
                }
                Ok(None) => break,
                Err(broken) => {
                    (measure.unknown, measure.odd) = before;
                    measure.broken = Some(broken);
                    break;
                }
            }
        }
        measure.distinct = seen.len();
        // What comes after the break is not known either.
        measure.unknown += base + bytes.len() - measure.sound;
        measure
    }

    fn score(&self, total: usize) -> u8 {
        if total == 0 {
            return 100;
        }
        let known =
            total.saturating_sub(self.unknown) - self.odd.min(total - self.unknown.min(total)) / 2;
        u8::try_from(known * 100 / total).unwrap_or(100)
    }

    fn level(
        &mut self,
        message: &MessageDescriptor,
        mut cursor: Cursor<'_>,
        depth: usize,
    ) -> Result<(), MalformedAt> {
        if depth >= DEEPEST {
            return Err(cursor.broken(TOO_DEEP));
        }
        self.count(MESSAGE, cursor.position())?;
        if message.full_name() == ANY {
            return self.any(message, cursor, depth);
        }
        while let Some(field) = protobuf_wire::field(&mut cursor, depth)? {
            self.field(message, &field, cursor.position() - field.at, depth)?;
        }
        Ok(())
    }

    /// `size` bytes of the wire are this field.
    fn field(
        &mut self,
        message: &MessageDescriptor,
        field: &Field<'_>,
        size: usize,
        depth: usize,
    ) -> Result<(), MalformedAt> {
        self.count(1, field.at)?;
        let Some(known) = message.get_field(field.number) else {
            self.unknown += size;
            return Ok(());
        };
        let wrong = || MalformedAt {
            at: field.at,
            why: format!(
                "field {} (`{}`) is of another type",
                field.number,
                known.name()
            ),
        };
        match (field.payload, known.kind()) {
            (Payload::Bytes(bytes), Kind::Message(inner)) if !known.is_group() => {
                self.level(&inner, Cursor::within(bytes, field.inside), depth + 1)
            }
            (Payload::Group(bytes), Kind::Message(inner)) if known.is_group() => {
                self.level(&inner, Cursor::within(bytes, field.inside), depth + 1)
            }
            (Payload::Bytes(bytes), Kind::String) => match std::str::from_utf8(bytes) {
                Ok(text) => {
                    if text.chars().any(|c| c.is_control() && !c.is_whitespace()) {
                        self.odd += size;
                    }
                    Ok(())
                }
                Err(error) => Err(MalformedAt {
                    at: field.inside + error.valid_up_to(),
                    why: format!("field {} (`{}`) is not UTF-8", field.number, known.name()),
                }),
            },
            (Payload::Bytes(_), Kind::Bytes) => Ok(()),
            (Payload::Bytes(bytes), kind) if known.is_list() => {
                self.packed(&kind, Cursor::within(bytes, field.inside), &known)
            }
            (payload, kind) if agrees(payload, &kind) => {
                if let (Payload::Varint(number), Kind::Enum(names)) = (payload, kind) {
                    // One that the schema has no name for speaks against this message.
                    let named = i32::try_from(number.cast_signed())
                        .is_ok_and(|number| names.get_value(number).is_some());
                    if !named {
                        self.odd += size;
                    }
                }
                Ok(())
            }
            _ => Err(wrong()),
        }
    }

    fn packed(
        &mut self,
        kind: &Kind,
        mut cursor: Cursor<'_>,
        field: &FieldDescriptor,
    ) -> Result<(), MalformedAt> {
        while cursor.left() > 0 {
            self.count(1, cursor.position())?;
            match kind {
                Kind::Double | Kind::Fixed64 | Kind::Sfixed64 => {
                    _ = cursor.array::<8>(field.name())?
                }
                Kind::Float | Kind::Fixed32 | Kind::Sfixed32 => {
                    _ = cursor.array::<4>(field.name())?
                }
                Kind::String | Kind::Bytes | Kind::Message(_) => {
                    return Err(
                        cursor.broken(format!("field `{}` is of another type", field.name()))
                    );
                }
                _ => drop(cursor.varint(field.name())?),
            }
        }
        Ok(())
    }

    /// A message of any type, which is decoded when it is shown: as deep as a body says, if nobody counts.
    fn any(
        &mut self,
        any: &MessageDescriptor,
        mut cursor: Cursor<'_>,
        depth: usize,
    ) -> Result<(), MalformedAt> {
        let (mut url, mut value) = ("", None);
        let start = cursor;
        while let Some(field) = protobuf_wire::field(&mut cursor, depth)? {
            match (field.number, field.payload) {
                (1, Payload::Bytes(bytes)) => url = std::str::from_utf8(bytes).unwrap_or_default(),
                (2, Payload::Bytes(bytes)) => value = Some(Cursor::within(bytes, field.inside)),
                _ => {}
            }
        }
        let name = url.rsplit('/').next().unwrap_or_default();
        match any.parent_pool().get_message_by_name(name) {
            Some(message) => match value {
                Some(value) => self.level(&message, value, depth + 1),
                None => Ok(()),
            },
            None => Err(start.broken(format!(
                "an Any of a message `{name}`, which the set does not have"
            ))),
        }
    }

    fn count(&mut self, values: usize, at: usize) -> Result<(), MalformedAt> {
        self.values += values;
        if self.values > MOST_VALUES {
            return Err(MalformedAt {
                at,
                why: "it has more than 131 072 values".to_owned(),
            });
        }
        Ok(())
    }
}

fn agrees(payload: Payload<'_>, kind: &Kind) -> bool {
    match payload {
        Payload::Varint(_) => matches!(
            kind,
            Kind::Int32
                | Kind::Int64
                | Kind::Uint32
                | Kind::Uint64
                | Kind::Sint32
                | Kind::Sint64
                | Kind::Bool
                | Kind::Enum(_)
        ),
        Payload::Fixed64(_) => matches!(kind, Kind::Double | Kind::Fixed64 | Kind::Sfixed64),
        Payload::Fixed32(_) => matches!(kind, Kind::Float | Kind::Fixed32 | Kind::Sfixed32),
        Payload::Bytes(_) | Payload::Group(_) => false,
    }
}
