//! A message as bytes and back. Properties are in AMQP's own encoding, so that every type comes back as it was.
//!
//! ```text
//! version u8 │ bytes of the rest of the head u32 │ delay in ms u64 │ exchange │ routing key │ record │ properties ║ body
//!                                                                  └ u8 + bytes ┘         └ u32 + bytes
//! ```
//! Numbers are big-endian. The body comes last, so that a list is drawn from heads alone.

use std::time::Duration;

use amq_protocol::protocol::basic::{gen_properties, parse_properties};
use cookie_factory::gen_simple;
use retryrmq::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

use super::{Error, MessageDraft, Result};

/// Readers refuse any other.
const VERSION: u8 = 1;

/// # Errors
/// [`Error::Unkeepable`] for a value that has no encoding.
pub(super) fn properties(properties: &BasicProperties) -> Result<Vec<u8>> {
    if properties
        .headers()
        .as_ref()
        .is_some_and(holds_short_string)
    {
        return Err(Error::Unkeepable(
            "a header is a short string, a type that AMQP has no letter for".to_owned(),
        ));
    }
    gen_simple(gen_properties(properties), Vec::new())
        .map_err(|why| Error::Unkeepable(format!("its properties have no encoding: {why}")))
}

fn holds_short_string(table: &FieldTable) -> bool {
    let mut rest: Vec<&AMQPValue> = table.inner().values().collect();
    while let Some(value) = rest.pop() {
        match value {
            AMQPValue::ShortString(_) => return true,
            AMQPValue::FieldArray(items) => rest.extend(items.as_slice()),
            AMQPValue::FieldTable(table) => rest.extend(table.inner().values()),
            _ => {}
        }
    }
    false
}

/// Everything but the body. Names have at most 255 bytes.
pub(super) fn head(draft: &MessageDraft, properties: &[u8]) -> Vec<u8> {
    let mut rest = Vec::with_capacity(16 + draft.record.len() + properties.len());
    rest.extend(milliseconds(draft.delay).to_be_bytes());
    for name in [&draft.exchange, &draft.routing_key] {
        rest.push(u8::try_from(name.len()).unwrap_or(u8::MAX));
        rest.extend(name.as_bytes());
    }
    rest.extend(length(&draft.record));
    rest.extend(&draft.record);
    rest.extend(properties);
    let mut head = vec![VERSION];
    head.extend(length(&rest));
    head.extend(rest);
    head
}

fn length(bytes: &[u8]) -> [u8; 4] {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX).to_be_bytes()
}

/// Rounded up: a message is never early.
pub(super) fn milliseconds(delay: Duration) -> u64 {
    u64::try_from(delay.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Reads what [`head`] has written, with a body behind it or without.
///
/// # Errors
/// What is wrong with it, for a person.
pub(super) fn read(bytes: &[u8]) -> std::result::Result<MessageDraft, String> {
    let mut bytes = Reader(bytes);
    match bytes.take(1)? {
        [VERSION] => {}
        other => {
            return Err(format!(
                "it is written in version {}, and this program reads {VERSION}",
                other[0]
            ));
        }
    }
    let mut head = Reader(bytes.long()?);
    let body = bytes.0.to_vec();
    let delay = Duration::from_millis(u64::from_be_bytes(head.array()?));
    let (exchange, routing_key) = (head.name()?, head.name()?);
    let record = head.long()?.to_vec();
    let properties = match parse_properties(head.0) {
        Ok(([], properties)) => properties,
        Ok((rest, _)) => return Err(format!("{} bytes follow its properties", rest.len())),
        Err(_) => return Err("its properties cannot be read".to_owned()),
    };
    Ok(MessageDraft {
        exchange,
        routing_key,
        delay,
        properties,
        body,
        record,
        redelivered: false,
        named_by: None,
    })
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> std::result::Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("it is cut off")?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> std::result::Result<[u8; N], String> {
        let taken = self.take(N)?;
        taken.try_into().map_err(|_| "it is cut off".to_owned())
    }

    fn long(&mut self) -> std::result::Result<&'a [u8], String> {
        let length = u32::from_be_bytes(self.array()?);
        self.take(length as usize)
    }

    fn name(&mut self) -> std::result::Result<String, String> {
        let length = self.take(1)?[0];
        let name = self.take(length.into())?;
        String::from_utf8(name.to_vec()).map_err(|_| "a name in it is not UTF-8".to_owned())
    }
}

#[cfg(test)]
mod tests;
