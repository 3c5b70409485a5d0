//! Makes a stream where there is none.

use std::time::Duration;

use lapin::{
    options::QueueDeclareOptions,
    types::{AMQPValue, FieldTable},
};

use crate::{
    Error, ErrorKind, Result,
    connection::{Connection, Operation, ask, passive_declare},
    terminal_escape,
    topology::{missing_argument, name},
};

/// How many arguments of an existing stream are taken over before giving up.
const MOST: usize = 16;

/// Makes sure that a stream of this name exists, with these limits where it is missing.
pub(crate) async fn make(
    connection: &Connection,
    queue: &str,
    age: Duration,
    bytes: u64,
) -> Result<()> {
    let wire = name(queue)?;
    let channel = connection.channel().await?;
    let found = passive_declare(&channel, wire.clone()).await;
    let mut arguments = FieldTable::default();
    arguments.insert(
        "x-queue-type".into(),
        AMQPValue::LongString("stream".into()),
    );
    match found {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::QueueNotFound => {
            let age = format!("{}s", age.as_secs().max(1));
            let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
            arguments.insert("x-max-age".into(), AMQPValue::LongString(age.into()));
            arguments.insert("x-max-length-bytes".into(), AMQPValue::LongLongInt(bytes));
        }
        Err(error) => return Err(error),
    }
    for _ in 0..MOST {
        let durable = QueueDeclareOptions {
            durable: true,
            ..QueueDeclareOptions::default()
        };
        // A refusal closes the channel.
        let channel = connection.channel().await?;
        let declared = channel
            .lapin()
            .queue_declare(wire.clone(), durable, arguments.clone());
        let error = match ask(Operation::Declaring(queue), declared).await {
            Ok(_) => {
                channel.close().await;
                return Ok(());
            }
            Err(error) if error.kind() == ErrorKind::Mismatch => error,
            Err(error) => return Err(error),
        };
        // AMQP does not tell a queue's arguments, but a refusal names the first one that differs.
        match missing_argument(&error.to_string()) {
            Some((name, value)) if !arguments.contains_key(name.as_str()) => {
                arguments.insert(name.into(), value);
            }
            _ => return Err(is_no_stream(queue, error)),
        }
    }
    Err(Error::new(
        ErrorKind::Mismatch,
        format!(
            "the stream `{}` has more than {MOST} arguments",
            terminal_escape::line(queue)
        ),
    ))
}

fn is_no_stream(queue: &str, why: Error) -> Error {
    let message = format!(
        "the queue `{}` is there and is no stream: name another, or one that does not exist yet; {why}",
        terminal_escape::line(queue)
    );
    Error::new(ErrorKind::Mismatch, message).with_source(why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_of_somebody_elses_is_read_and_another_type_is_none() {
        let said = |name: &str, had: &str| {
            format!(
                "PRECONDITION_FAILED - inequivalent arg '{name}' for queue 'a' in vhost '/': received {had}"
            )
        };
        for (name, had, read) in [
            (
                "x-max-age",
                "none but current is the value '7D' of type 'longstr'",
                Some(AMQPValue::LongString("7D".into())),
            ),
            (
                "x-max-length-bytes",
                "none but current is the value '5000' of type 'long'",
                Some(AMQPValue::LongLongInt(5_000)),
            ),
            (
                "x-queue-type",
                "the value 'stream' of type 'longstr' but current is none",
                None,
            ),
            ("durable", "'true' but current is 'false'", None),
        ] {
            let read = read.map(|value| (name.to_owned(), value));
            assert_eq!(missing_argument(&said(name, had)), read, "{name}");
        }
    }
}
