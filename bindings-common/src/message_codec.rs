//! Messages as bytes, laid out so that a language reads only what is looked at.
//!
//! ```text
//! batch    messages, one after the other
//!
//! message   0  size u32, of all of it
//!           4  flags u32: 1 redelivered, 2 may be parked, 4 has an id, 8 has failed, 16 has a last error, 32 was mended, 64 body is outside
//!           8  token u64
//!          16  first failure u64, in seconds since 1970
//!          24  attempt u32
//!          28  replays u32
//!          32  eight sizes u32: exchange, routing key, message id, last error, what was mended, properties, headers, body
//!          64  these eight, one after the other
//!
//! property  number u8, then a text (size u8, bytes), delivery mode or priority (u8), or timestamp (u64)
//! ```
//!
//! Numbers are little-endian. Headers are a table as in [`amqp_table`]. What is missing has no bytes; flags tell it
//! from what is empty. Bodies that are too large for the batch are outside: one that keeps a message must not keep all others.
//!
//! A reader steps over a message by its size, and finds the body at its end. The history is in the headers; [`history`] reads it for whoever
//! asks.

use retryrmq::{BasicProperties, Delivery, HistoryEntry, Message, Token};

use crate::{BindingError, amqp_table, durations::unix_seconds, properties::texts};

const REDELIVERED: u32 = 1;
const MAY_PARK: u32 = 2;
const HAS_ID: u32 = 4;
const HAS_FAILED: u32 = 8;
const HAS_ERROR: u32 = 16;
const MENDED: u32 = 32;
const OUTSIDE: u32 = 64;

/// Where the sizes of the parts begin.
const SIZES: usize = 32;
/// How many parts there are.
const PARTS: usize = 8;

/// About how many bytes a message has beside its body.
const AROUND_BODY: usize = 192;

/// Messages as bytes.
#[derive(Debug)]
pub struct Batch<'a> {
    /// All of it but bodies that are outside.
    pub bytes: Vec<u8>,
    /// The bodies that are outside, in the order of their messages.
    pub bodies: Vec<&'a [u8]>,
    largest: usize,
}

impl<'a> Batch<'a> {
    /// These deliveries. Bodies of more than `largest` bytes are outside. `may_park` says whether a stack would be kept if the attempt failed.
    pub fn of(
        deliveries: &'a [Delivery],
        largest: usize,
        may_park: impl Fn(&Message) -> bool,
    ) -> Self {
        let messages = deliveries.iter().map(|delivery| &delivery.message);
        let mut batch = Self::with_room(messages, largest);
        for Delivery { token, message, .. } in deliveries {
            batch.add(*token, message, may_park(message));
        }
        batch
    }

    /// One message that nobody settles.
    #[must_use]
    pub fn alone(message: &'a Message, largest: usize) -> Self {
        let mut batch = Self::with_room([message].into_iter(), largest);
        batch.add(Token::from_u64(0), message, true);
        batch
    }

    fn with_room<'m>(messages: impl Iterator<Item = &'m Message>, largest: usize) -> Self {
        let inside = |message: &Message| Some(message.body().len()).filter(|len| *len <= largest);
        let room = messages.map(|message| AROUND_BODY + inside(message).unwrap_or(0));
        Self {
            bytes: Vec::with_capacity(room.sum()),
            bodies: Vec::new(),
            largest,
        }
    }

    fn add(&mut self, token: Token, message: &'a Message, may_park: bool) {
        let body = message.body();
        let is_outside = body.len() > self.largest;
        let first_failed_at = unix_seconds(message.first_failed_at());
        let mut flags = 0;
        for (flag, is_set) in [
            (REDELIVERED, message.redelivered()),
            (MAY_PARK, may_park),
            (HAS_ID, message.message_id().is_some()),
            (HAS_FAILED, first_failed_at.is_some()),
            (HAS_ERROR, message.last_error().is_some()),
            (MENDED, message.mended().is_some()),
            (OUTSIDE, is_outside),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let begin = self.bytes.len();
        let out = &mut self.bytes;
        out.extend([0; 4]);
        out.extend(flags.to_le_bytes());
        out.extend(token.to_u64().to_le_bytes());
        out.extend(first_failed_at.unwrap_or(0).to_le_bytes());
        out.extend(message.attempt().to_le_bytes());
        out.extend(message.replays().to_le_bytes());
        out.extend([0; 4 * PARTS]);
        let texts = [
            Some(message.exchange()),
            Some(message.routing_key()),
            message.message_id(),
            message.last_error(),
            message.mended(),
        ];
        for (part, text) in texts.into_iter().enumerate() {
            let text = text.unwrap_or_default();
            self.part(begin, part, |out| out.extend_from_slice(text.as_bytes()));
        }
        self.part(begin, 5, |out| properties(out, message.properties()));
        if let Some(headers) = message.headers() {
            self.part(begin, 6, |out| amqp_table::write_table(out, headers));
        }
        if is_outside {
            self.bodies.push(body);
        } else {
            self.part(begin, 7, |out| out.extend_from_slice(body));
        }
        self.fill(begin, self.bytes.len() - begin);
    }

    /// Writes a part of the message that begins there, and its size.
    fn part(&mut self, begin: usize, part: usize, write: impl FnOnce(&mut Vec<u8>)) {
        let at = self.bytes.len();
        write(&mut self.bytes);
        self.fill(begin + SIZES + 4 * part, self.bytes.len() - at);
    }

    /// Writes a size where room was left for it.
    fn fill(&mut self, at: usize, size: usize) {
        // Nothing that AMQP carries is larger.
        let size = u32::try_from(size).unwrap_or(u32::MAX);
        self.bytes[at..at + 4].copy_from_slice(&size.to_le_bytes());
    }
}

fn properties(out: &mut Vec<u8>, properties: &BasicProperties) {
    let texts = texts(properties);
    for (number, (_, text)) in (0_u8..).zip(texts) {
        if let Some(text) = text {
            out.push(number);
            amqp_table::write_short(out, text);
        }
    }
    if let Some(mode) = properties.delivery_mode() {
        out.extend([10, *mode]);
    }
    if let Some(priority) = properties.priority() {
        out.extend([11, *priority]);
    }
    if let Some(seconds) = properties.timestamp() {
        out.push(12);
        out.extend(seconds.to_le_bytes());
    }
}

/// The last failures that the headers of a message tell of, oldest first.
///
/// # Errors
/// Those of [`read_table`](amqp_table::read_table): never for headers of this layout.
pub fn history(headers: &[u8]) -> Result<Vec<HistoryEntry>, BindingError> {
    Ok(HistoryEntry::read(&amqp_table::read_table(headers)?))
}

#[cfg(test)]
mod tests {
    use retryrmq::{Consumer, Failure, Outcome, Publish, Simulation, types::AMQPValue};

    use super::*;

    /// A message after one failure.
    fn failed(body: &[u8]) -> Vec<Delivery> {
        let mut headers = retryrmq::types::FieldTable::default();
        headers.insert("colour".into(), AMQPValue::LongString("red".into()));
        let properties = BasicProperties::default()
            .with_message_id("seven".into())
            .with_priority(3)
            .with_timestamp(1_000_000_000)
            .with_headers(headers);
        let consumer = Consumer::new("orders").dlx(true);
        let mut simulation = Simulation::new(consumer).unwrap();
        let message = Publish::to_queue("orders", body.to_vec()).properties(properties);
        simulation.publish(message).unwrap();
        let first = simulation.next().unwrap();
        let outcome = Outcome::Retry {
            failure: Failure::new("no such colour"),
            delay: None,
        };
        simulation.settle(first.token, outcome);
        vec![simulation.next().unwrap()]
    }

    fn number(bytes: &[u8], at: usize) -> usize {
        u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
    }

    /// The parts of the message that begins there.
    fn parts(bytes: &[u8], begin: usize) -> Vec<&[u8]> {
        let mut at = begin + SIZES + 4 * PARTS;
        let parts = (0..PARTS).map(|part| {
            let from = at;
            at += number(bytes, begin + SIZES + 4 * part);
            &bytes[from..at]
        });
        let parts = parts.collect();
        assert_eq!(at, begin + number(bytes, begin));
        parts
    }

    #[test]
    fn a_reader_that_goes_by_the_picture_finds_everything() {
        let mut deliveries = failed(b"first");
        deliveries.extend(failed(b""));
        let bytes = Batch::of(&deliveries, usize::MAX, |_| false).bytes;
        let first = parts(&bytes, 0);
        let texts: [&[u8]; 5] = [b"", b"orders", b"seven", b"no such colour", b""];
        assert_eq!(first[..5], texts);
        assert_eq!(first[5][..7], *b"\x05\x05seven");
        assert!(first[5].ends_with(b"\x0b\x03\x0c\x00\xca\x9a\x3b\0\0\0\0"));
        let headers = amqp_table::read_table(first[6]).unwrap();
        let red = AMQPValue::LongString("red".into());
        assert_eq!(headers.inner().get("colour"), Some(&red));
        let history = history(first[6]).unwrap();
        assert_eq!(history.len(), 1);
        assert_eq!(history[0].error, "no such colour");
        assert_eq!(first[7], b"first");
        let message = &deliveries[0].message;
        let flags = u32::try_from(number(&bytes, 4)).unwrap();
        assert_eq!(flags & (HAS_ID | HAS_FAILED | HAS_ERROR), 28);
        assert_eq!(flags & (MAY_PARK | MENDED | OUTSIDE), 0);
        let token = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
        assert_eq!(token, deliveries[0].token.to_u64());
        let first_failed_at = u64::from_le_bytes(bytes[16..24].try_into().unwrap());
        assert_eq!(
            Some(first_failed_at),
            unix_seconds(message.first_failed_at())
        );
        assert_eq!((number(&bytes, 24), number(&bytes, 28)), (2, 0));

        let second = number(&bytes, 0);
        assert_eq!(parts(&bytes, second)[7], b"");
        assert_eq!(second + number(&bytes, second), bytes.len());
    }

    #[test]
    fn a_large_body_is_outside() {
        let deliveries = failed(&[7; 11]);
        let message = &deliveries[0].message;
        for (largest, is_outside) in [(11, false), (10, true)] {
            let batch = Batch::alone(message, largest);
            assert_eq!(number(&batch.bytes, 4) & 64 != 0, is_outside);
            assert_eq!(parts(&batch.bytes, 0)[7].is_empty(), is_outside);
            let outside: &[&[u8]] = if is_outside { &[&[7; 11]] } else { &[] };
            assert_eq!(batch.bodies, outside);
        }
    }
}
