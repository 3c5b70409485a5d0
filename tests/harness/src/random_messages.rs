//! Random messages of publishers of AMQP 1.0, MQTT 5 and STOMP: with every section, property and type of header that their protocol has.
//!
//! A message is made from a seed and its number alone, so that any of them can be made again. The number is in its [body](token_of),
//! because everything else may be lost on its way.

use crate::{Body10, Message10, MqttMessage, Property10, StompMessage, Value10};
use fastrand::Rng;

/// What a message may contain. Each has all that those before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// What every client of AMQP 0-9-1 can read: names are UTF-8.
    Text,
    /// What the broker can give to a client of AMQP 0-9-1 (fact 94): names may be any bytes.
    Readable,
    /// What the broker can give to a client of AMQP 0-9-1 or of AMQP 1.0, and no message that it cannot give to a client of AMQP 1.0.
    Movable,
    /// What the broker accepts: also what it can give to no client of AMQP 0-9-1. Some of it the broker cannot
    /// even give to a client of AMQP 1.0.
    Anything,
}

/// Headers that brokers, this library and its predecessors have a meaning for.
const OWN: [&str; 44] = [
    "BCC",
    "CC",
    "timestamp_in_ms",
    "x-acquired-count",
    "x-correlation-id",
    "x-death",
    "x-delay",
    "x-delivery-count",
    "x-delivery-limit",
    "x-exception-message",
    "x-exchange",
    "x-first-death-exchange",
    "x-first-death-queue",
    "x-first-death-reason",
    "x-last-death-queue",
    "x-last-death-reason",
    "x-match",
    "x-message-id",
    "x-opt-deaths",
    "x-opt-rabbitmq-received-time",
    "x-reply-to-topic",
    "x-retries",
    "x-retry-count",
    "x-retry-crashes",
    "x-retry-deferrals",
    "x-retry-delayed-until",
    "x-retry-error",
    "x-retry-error-stack",
    "x-retry-error-type",
    "x-retry-exchange",
    "x-retry-expiration",
    "x-retry-fingerprint",
    "x-retry-first-failed-at",
    "x-retry-headers-cut",
    "x-retry-history",
    "x-retry-parked-at",
    "x-retry-parked-reason",
    "x-retry-protocol",
    "x-retry-replays",
    "x-retry-reply-to",
    "x-retry-routing-key",
    "x-retry-user-id",
    "x-retry-walk",
    "x-stream-offset",
];

/// What is in no name of a queue or an exchange here.
const TEXTS: [&str; 12] = [
    "",
    "1",
    "-1",
    "rejected",
    "amq.rabbitmq.reply-to",
    "amq.rabbitmq.reply-to.g1h2AA5yZXBseUAx.abc==",
    "/queues/none",
    "urn:uuid:01234567-89ab-cdef-0123-456789abcdef",
    "zażółć \u{1f600}",
    "a\nb\r\tc: \\",
    "99999999999999999999",
    "application/json",
];

/// The least that a message lives, in milliseconds: it is not to expire on its way.
const LIFE: u32 = 3_600_000;

/// Makes messages of one class from one seed.
#[derive(Clone, Copy, Debug)]
pub struct RandomMessages {
    /// What they may contain.
    pub class: Class,
    /// Another seed makes others.
    pub seed: u64,
}

/// How a message of this number can be recognised, which its body has in it.
#[must_use]
pub fn token(number: u32) -> String {
    format!("<message {number:08}>")
}

/// The number of the message with this body.
#[must_use]
pub fn token_of(body: &[u8]) -> Option<u32> {
    let start = b"<message ";
    let at = body.windows(start.len()).position(|part| part == start)?;
    let digits = body.get(at + start.len()..)?.get(..8)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The value for this name. What is a delay is short: a test does not wait for days.
fn soon(name: &Value10, value: Value10) -> Value10 {
    let (Value10::String(bytes) | Value10::Symbol(bytes)) = name else {
        return value;
    };
    if bytes != b"x-delay" {
        return value;
    }
    match value {
        Value10::Uint(delay) => Value10::Uint(delay % 400),
        Value10::Ulong(delay) => Value10::Ulong(delay % 400),
        Value10::Int(delay) => Value10::Int(delay % 400),
        Value10::Long(delay) => Value10::Long(delay % 400),
        other => other,
    }
}

impl RandomMessages {
    /// A message of AMQP 1.0.
    #[must_use]
    pub fn amqp10(self, number: u32) -> Message10 {
        let mut making = self.making(number);
        let mut message = Message10::of(making.body(&token(number)));
        message = message.header(making.header());
        for _ in 0..making.few(2) {
            let (key, value) = (making.annotation_name(), making.value(2));
            message = message.delivery_annotation(key, value);
        }
        for _ in 0..making.few(4) {
            let (key, value) = making.annotation();
            let value = soon(&key, value);
            message = message.annotation(key, value);
        }
        for (property, value) in making.properties() {
            message = message.with(property, value);
        }
        for _ in 0..making.few(6) {
            let (name, value) = (making.name(), making.value(2));
            let value = soon(&name, value);
            message = message.application(name, value);
        }
        if making.is(40) {
            // Nearly as much as a frame holds.
            for number in 0..making.random.u32(5..24) {
                let name = Value10::string(&format!("large {number}"));
                message = message.application(name, Value10::String(vec![b'x'; 5_000]));
            }
        }
        if making.is(8) {
            let key = match making.class {
                Class::Movable | Class::Anything => making.name(),
                _ => making.annotation_name(),
            };
            message = message.footer(key, making.value(2));
        }
        message
    }

    /// A message of MQTT 5.
    #[must_use]
    pub fn mqtt(self, number: u32) -> MqttMessage {
        let mut making = self.making(number);
        let mut message = MqttMessage::new(making.bytes(&token(number)));
        if making.is(2) {
            message = message.text(making.random.bool());
        }
        if making.is(3) {
            let seconds = [LIFE / 1_000, 86_400, u32::MAX / 1_000, u32::MAX];
            message = message.expires_after(making.one(&seconds));
        }
        if making.is(2) {
            message = message.content_type(&making.long_text());
        }
        if making.is(2) {
            message = message.response_topic(&making.topic());
        }
        if making.is(2) {
            let text = making.long_text().into_bytes();
            let bytes = [text, vec![0, 255], vec![7; 16]];
            message = message.correlation(&making.one(&bytes));
        }
        for _ in 0..making.few(6) {
            let name = making.text_name(65_000).replace('\0', "");
            message = message.user(&name, &making.long_text());
        }
        message
    }

    /// A message of STOMP. The text of its headers is all of it that is odd.
    #[must_use]
    pub fn stomp(self, number: u32) -> StompMessage {
        let mut making = self.making(number);
        let mut message = StompMessage::new(making.bytes(&token(number)));
        let own = [
            "content-type",
            "content-encoding",
            "correlation-id",
            "reply-to",
            "amqp-message-id",
            "type",
            "app-id",
        ];
        for name in own {
            let text = making.short_text();
            // The broker makes a queue for an answer, or refuses to.
            let is_refused =
                name == "reply-to" && (text.contains('/') || text == "amq.rabbitmq.reply-to");
            if !is_refused && making.is(4) {
                message = message.header(name, &text);
            }
        }
        if making.is(4) {
            message = message.header("persistent", making.one(&["true", "false"]));
        }
        if making.is(4) {
            message = message.header("priority", making.one(&["0", "9", "255"]));
        }
        if making.is(4) {
            let times = ["3600000", "315360000000", "0000000003600000"];
            message = message.header("expiration", making.one(&times));
        }
        if making.is(4) {
            let times = ["0", "1700000000", "9223372036854775807"];
            message = message.header("timestamp", making.one(&times));
        }
        if making.is(8) {
            message = message.header("user-id", "guest");
        }
        for _ in 0..making.few(6) {
            let name = making.text_name(255);
            // An empty name is no header, and the broker wants lists for the others.
            if !["", "CC", "BCC"].contains(&name.as_str()) {
                message = message.header(&name, &making.long_text());
            }
        }
        message
    }

    fn making(self, number: u32) -> MessageBuilder {
        let mixed = (self.seed << 32 | u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        MessageBuilder {
            random: Rng::with_seed(mixed),
            class: self.class,
        }
    }
}

/// One message that is made.
struct MessageBuilder {
    random: Rng,
    class: Class,
}

impl MessageBuilder {
    /// Once in so many times.
    fn is(&mut self, times: u32) -> bool {
        self.random.u32(..times) == 0
    }

    fn few(&mut self, most: usize) -> usize {
        self.random.usize(..=most)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.random.usize(..of.len())].clone()
    }

    /// Text, sometimes longer than a short string may be.
    fn long_text(&mut self) -> String {
        match self.random.u32(..8) {
            0 => "é".repeat(self.random.usize(120..400)),
            1 => "x".repeat(self.one(&[255, 256, 2_000])),
            _ => self.short_text(),
        }
    }

    fn short_text(&mut self) -> String {
        match self.random.u32(..8) {
            0 => "y".repeat(self.one(&[127, 255])),
            1 => self.random.u64(..).to_string(),
            _ => self.one(&TEXTS).to_owned(),
        }
    }

    fn topic(&mut self) -> String {
        let text = self.long_text().replace(['#', '+', '\0'], "_");
        format!("replies/{text}")
    }

    fn text_name(&mut self, longest: usize) -> String {
        match self.random.u32(..10) {
            0..=5 => self.one(&OWN).to_owned(),
            6 => "n".repeat(self.one(&[255, 256, 1_000]).min(longest)),
            7 => self
                .one(&["", "x-", "ñ€\u{1f600}", "a b", "x-ñ"])
                .to_owned(),
            _ => format!("x-{}", self.random.alphanumeric()),
        }
    }

    /// The name of an application property, which is nearly always a string.
    fn name(&mut self) -> Value10 {
        match self.random.u32(..30) {
            0 => Value10::Int(7),
            1 if self.class >= Class::Readable => Value10::String(vec![b'x', 255, 254]),
            _ => Value10::String(self.text_name(1_000).into_bytes()),
        }
    }

    /// The broker takes symbols that begin with `x-`.
    fn annotation_name(&mut self) -> Value10 {
        if self.class >= Class::Readable && self.is(30) {
            return Value10::Symbol(vec![b'x', b'-', 255]);
        }
        let name = self.text_name(300);
        let name = name.strip_prefix("x-").unwrap_or(&name);
        Value10::symbol(&format!("x-{name}"))
    }

    fn annotation(&mut self) -> (Value10, Value10) {
        let special = match self.random.u32(..10) {
            0 => ("x-basic-priority", Value10::Ubyte(self.random.u8(..))),
            1 => ("x-basic-delivery-mode", Value10::Ubyte(2)),
            2 => ("x-basic-type", Value10::string(&self.short_text())),
            3 => ("x-cc", Value10::List(vec![Value10::string("nowhere")])),
            _ => {
                let name = self.annotation_name();
                let value = match &name {
                    // The broker reads these itself.
                    Value10::Symbol(name) if name.starts_with(b"x-opt-deaths") => {
                        Value10::List(vec![self.decoded(|making| making.scalar(true))])
                    }
                    // A quorum queue shows its own instead (fact 94), so beside what AMQP 1.0 cannot carry, this is not found.
                    Value10::Symbol(name)
                        if (name == b"x-delivery-count" || name == b"x-acquired-count")
                            && self.class == Class::Movable =>
                    {
                        Value10::Uint(self.random.u32(..))
                    }
                    _ => self.decoded(|making| making.value(2)),
                };
                return (name, value);
            }
        };
        (Value10::symbol(special.0), special.1)
    }

    /// A value of a section that the broker decodes, and encodes again for a client of AMQP 1.0.
    fn decoded(&mut self, mut make: impl FnMut(&mut Self) -> Value10) -> Value10 {
        loop {
            let value = make(self);
            if self.class != Class::Movable || is_encoded_again(&value) {
                return value;
            }
        }
    }

    fn header(&mut self) -> Vec<Value10> {
        let durable = self.one(&[Value10::Bool(true), Value10::Bool(false), Value10::Null]);
        let priority = self.one(&[Value10::Null, Value10::Ubyte(0), Value10::Ubyte(255)]);
        let times = [Value10::Null, Value10::Uint(LIFE), Value10::Uint(u32::MAX)];
        let mut all = vec![durable, priority, self.one(&times)];
        all.extend([Value10::Bool(self.random.bool()), Value10::Uint(3)]);
        all.truncate(self.few(5));
        all
    }

    fn properties(&mut self) -> Vec<(Property10, Value10)> {
        let text = |making: &mut Self| Value10::string(&making.long_text());
        let mut all = vec![
            (Property10::MessageId, self.id()),
            (Property10::UserId, Value10::Binary(b"guest".into())),
            (Property10::To, text(self)),
            (Property10::Subject, text(self)),
            (Property10::ReplyTo, text(self)),
            (Property10::CorrelationId, self.id()),
            (Property10::ContentType, self.short_symbol()),
            (Property10::ContentEncoding, self.short_symbol()),
            (Property10::AbsoluteExpiryTime, self.time()),
            (Property10::CreationTime, self.time()),
            (Property10::GroupId, text(self)),
            (Property10::GroupSequence, Value10::Uint(u32::MAX)),
            (Property10::ReplyToGroupId, text(self)),
        ];
        all.retain(|_| self.random.u32(..3) == 0);
        all
    }

    /// A message id or a correlation id.
    fn id(&mut self) -> Value10 {
        match self.random.u32(..6) {
            0 => Value10::Ulong(self.random.u64(..)),
            1 => Value10::Uuid(self.random.u128(..).to_be_bytes()),
            2 => Value10::Binary(vec![255; self.random.usize(..400)]),
            3 if self.class >= Class::Readable => Value10::String(vec![255, 254]),
            4 if self.class >= Class::Movable => self.decoded(|making| making.scalar(true)),
            _ => Value10::string(&self.long_text()),
        }
    }

    fn time(&mut self) -> Value10 {
        Value10::Timestamp(self.one(&[0, -1, 1_700_000_000_123, i64::MAX, i64::MIN]))
    }

    fn short_symbol(&mut self) -> Value10 {
        match self.random.u32(..6) {
            0 if self.class >= Class::Readable => Value10::Symbol(vec![255, 254]),
            1 if self.class >= Class::Movable => Value10::Symbol(vec![b'x'; 256]),
            _ => Value10::symbol(&self.short_text()),
        }
    }

    /// A value without others in it.
    fn scalar(&mut self, is_in_list: bool) -> Value10 {
        let number = self.random.u64(..);
        match self
            .random
            .u32(..if self.class >= Class::Movable { 31 } else { 24 })
        {
            0 => Value10::Null,
            1 | 2 => Value10::Bool(number.is_multiple_of(2)),
            3 => Value10::Ubyte(self.random.u8(..)),
            4 => Value10::Ushort(self.random.u16(..)),
            5 => Value10::Uint(self.random.u32(..)),
            // In a list, no client of AMQP 0-9-1 gets it.
            6 if !is_in_list || self.class >= Class::Movable => Value10::Ulong(number),
            7 => Value10::Byte(self.random.i8(..)),
            8 => Value10::Short(self.random.i16(..)),
            9 => Value10::Int(self.random.i32(..)),
            6 | 10 => Value10::Long(self.random.i64(..)),
            11 => Value10::Long(self.random.i64(0..20)),
            12 => Value10::float(self.random.f32() * 1e30),
            13 => Value10::double(-self.random.f64() * 1e300),
            14 | 15 => self.time(),
            16 => Value10::Binary(vec![255; self.random.usize(..300)]),
            17 => Value10::String(vec![255, 254]),
            18 => Value10::Symbol(vec![b's'; self.random.usize(..300)]),
            19..24 => Value10::string(&self.long_text()),
            24 => Value10::Uuid(self.random.u128(..).to_be_bytes()),
            25 => Value10::Char(self.one(&[0x41, 0x1f600, 0xd800])),
            26 => Value10::Decimal32([1; 4]),
            27 => Value10::Decimal64([1; 8]),
            28 => Value10::Decimal128([1; 16]),
            29 => Value10::float(f32::NAN),
            _ => Value10::double(f64::INFINITY),
        }
    }

    /// A value, with others in it to this depth.
    fn value(&mut self, depth: u32) -> Value10 {
        let compound = depth > 0 && self.is(4);
        if !compound {
            return self.scalar(depth < 2);
        }
        match self.random.u32(..3) {
            0 => Value10::List((0..self.few(3)).map(|_| self.value(depth - 1)).collect()),
            1 => {
                let pair = |_| {
                    let key = self.text_name(255);
                    (Value10::symbol(&key), self.value(depth - 1))
                };
                Value10::Map((0..3).map(pair).collect())
            }
            // In a list, no client of AMQP 0-9-1 gets one.
            _ if depth == 2 => {
                let one = match self.scalar(true) {
                    // The broker refuses an array of these.
                    Value10::Null
                    | Value10::Decimal32(_)
                    | Value10::Decimal64(_)
                    | Value10::Decimal128(_) => Value10::Bool(true),
                    one => one,
                };
                Value10::Array(vec![one; self.few(3)])
            }
            _ => self.scalar(true),
        }
    }

    fn bytes(&mut self, token: &str) -> Vec<u8> {
        let length = self.one(&[0, 1, 100, 5_000]);
        let rest = (0..length).map(|_| self.random.u8(..));
        token.bytes().chain(rest).collect()
    }

    fn body(&mut self, token: &str) -> Body10 {
        let id = Value10::string(token);
        match self.random.u32(..8) {
            0 => Body10::Value(id),
            1 => Body10::Value(Value10::Binary(self.bytes(token))),
            2 => Body10::Value(Value10::List(vec![id, self.value(2), Value10::Char(0x41)])),
            3 => Body10::Value(Value10::Map(vec![(id, self.value(2))])),
            4 => Body10::Sequence(vec![vec![id, self.value(2)], vec![], vec![self.value(2)]]),
            5 => Body10::Data(vec![vec![], self.bytes(token), vec![0, 255]]),
            _ => Body10::Data(vec![self.bytes(token)]),
        }
    }
}

/// Whether every version of the broker can encode this again (fact 94).
fn is_encoded_again(value: &Value10) -> bool {
    *value != Value10::Null && !has_odd_number(value)
}

fn has_odd_number(value: &Value10) -> bool {
    match value {
        Value10::Decimal32(_) | Value10::Decimal64(_) | Value10::Decimal128(_) => true,
        Value10::Float(bits) => !f32::from_bits(*bits).is_finite(),
        Value10::Double(bits) => !f64::from_bits(*bits).is_finite(),
        Value10::List(all) | Value10::Array(all) => all.iter().any(has_odd_number),
        Value10::Map(pairs) => pairs
            .iter()
            .any(|(key, value)| has_odd_number(key) || has_odd_number(value)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_made_again_from_its_number_and_known_by_it() {
        let messages = RandomMessages {
            class: Class::Anything,
            seed: 3,
        };
        for number in [0, 1, 99_999_999] {
            let first = messages.amqp10(number).encoded();
            assert_eq!(first, messages.amqp10(number).encoded());
            assert_eq!(token_of(&first), Some(number));
        }
        assert_ne!(messages.amqp10(1).encoded(), messages.amqp10(2).encoded());
        assert_eq!(token_of(b"<message 1>"), None);
    }
}
