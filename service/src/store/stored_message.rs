//! A message as it waits: whole.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use retryrmq::{BasicProperties, MAX_DELAY};

use super::{Destination, Error, Id, Result, codec};

/// The most bytes that AMQP has for the name of an exchange or queue.
const LONGEST_NAME: usize = 255;

/// The bytes of a nonce; as letters the scripts count on 8.
const NONCE: usize = 6;

/// What is to be kept, as the intake has decided it.
#[derive(Clone, Debug, Default)]
pub struct MessageDraft {
    /// Where it goes when it is due; empty is the default exchange.
    pub exchange: String,
    /// With the default exchange the queue that failed.
    pub routing_key: String,
    /// How long it waits, from the moment when the store has it, by the clock of the store. At most a year.
    pub delay: Duration,
    /// All properties and headers that it is published with.
    pub properties: BasicProperties,
    /// The body.
    pub body: Vec<u8>,
    /// Whatever the intake wants to know again when the message is due or listed. The store does not read it.
    pub record: Vec<u8>,
    /// Whether the broker says that it may have delivered this before (`redelivered`). Then a message that has a `message-id`, is kept
    /// already and is equal to the last byte is this one, unless that is being published: this may be its next life. Without an id it is
    /// another that looks the same, as two ticks of one second do, and both wait: RabbitMQ 4 says that of dead letters when it delivers
    /// them for the first time, too.
    pub redelivered: bool,
    /// The properties that name it, where not all of [`properties`](Self::properties) are the same each time that the broker delivers it.
    pub named_by: Option<BasicProperties>,
}

/// A message that waits, or is to. It is cheap to clone.
#[derive(Clone, Debug)]
pub struct StoredMessage(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: Id,
    nonce: String,
    draft: MessageDraft,
    head: Vec<u8>,
}

impl StoredMessage {
    /// A message to keep. Its id follows from where it goes, its properties and its body.
    ///
    /// # Errors
    /// [`Error::Unkeepable`] with what is wrong: a name above 255 bytes, a delay above a year, a header that AMQP cannot carry.
    pub fn new(draft: MessageDraft) -> Result<Self> {
        for (what, name) in [
            ("exchange", &draft.exchange),
            ("routing key", &draft.routing_key),
        ] {
            if name.len() > LONGEST_NAME {
                return Err(Error::Unkeepable(format!(
                    "the {what} has {} bytes, and AMQP carries {LONGEST_NAME}",
                    name.len()
                )));
            }
        }
        if draft.delay > MAX_DELAY {
            return Err(Error::Unkeepable(format!(
                "a delay of {} s is longer than 365d",
                draft.delay.as_secs()
            )));
        }
        let properties = codec::properties(&draft.properties)?;
        let named_by = match &draft.named_by {
            Some(named_by) => codec::properties(named_by)?,
            None => properties.clone(),
        };
        let id = Id::of(&draft.exchange, &draft.routing_key, &named_by, &draft.body);
        let head = codec::head(&draft, &properties);
        let nonce: [u8; NONCE] = std::array::from_fn(|_| fastrand::u8(..));
        Ok(Self(Arc::new(Inner {
            id,
            nonce: BASE64_URL_SAFE_NO_PAD.encode(nonce),
            draft,
            head,
        })))
    }

    /// The message as a store had it, under the id that it had there.
    pub(super) fn restored(id: Id, draft: MessageDraft) -> Self {
        Self(Arc::new(Inner {
            id,
            nonce: String::new(),
            draft,
            head: Vec::new(),
        }))
    }

    /// Its name, unless the store has to tell it from another that looks the same.
    #[must_use]
    pub fn id(&self) -> &Id {
        &self.0.id
    }

    /// Whether it is the one that the store has, if that looks the same.
    pub(super) fn is_known_again(&self) -> bool {
        let draft = &self.0.draft;
        draft.redelivered && draft.properties.message_id().is_some()
    }

    /// Its name if the store has another that looks the same.
    pub(super) fn twin(&self) -> Id {
        self.0.id.twin(&self.0.nonce)
    }

    /// Tells this call for keeping it from any other, so that asking again stores nothing twice.
    pub(super) fn nonce(&self) -> &str {
        &self.0.nonce
    }

    /// Everything but the body, encoded.
    pub(super) fn head(&self) -> &[u8] {
        &self.0.head
    }

    /// Where it goes.
    #[must_use]
    pub fn destination(&self) -> Destination {
        Destination::of(&self.0.draft.exchange, &self.0.draft.routing_key)
    }

    /// All that is kept of it.
    #[must_use]
    pub fn draft(&self) -> &MessageDraft {
        &self.0.draft
    }

    /// The bytes that it takes in a store, names and bookkeeping left out.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.head.len() + self.0.draft.body.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_kept_is_refused_with_a_sentence() {
        let name = "n".repeat(256);
        for (draft, words) in [
            (
                MessageDraft {
                    routing_key: name.clone(),
                    ..MessageDraft::default()
                },
                "the routing key has 256 bytes",
            ),
            (
                MessageDraft {
                    exchange: name,
                    ..MessageDraft::default()
                },
                "the exchange has 256 bytes",
            ),
            (
                MessageDraft {
                    delay: MAX_DELAY + Duration::from_secs(1),
                    ..MessageDraft::default()
                },
                "longer than 365d",
            ),
        ] {
            let why = StoredMessage::new(draft).unwrap_err();
            assert!(why.to_string().contains(words), "{why}");
            assert!(!why.is_transient());
        }
        assert!(
            StoredMessage::new(MessageDraft {
                routing_key: "n".repeat(255),
                delay: MAX_DELAY,
                ..MessageDraft::default()
            })
            .is_ok()
        );
    }

    #[test]
    fn the_record_the_delay_and_the_flag_do_not_name_a_message() {
        let one = StoredMessage::new(MessageDraft {
            routing_key: "orders".to_owned(),
            ..MessageDraft::default()
        })
        .unwrap();
        let same = StoredMessage::new(MessageDraft {
            routing_key: "orders".to_owned(),
            delay: Duration::from_secs(9),
            record: b"attempt 3".to_vec(),
            redelivered: true,
            ..MessageDraft::default()
        })
        .unwrap();
        assert_eq!(one.id(), same.id());
        assert_ne!(one.twin(), same.twin(), "each call has a nonce of its own");
        assert_eq!(one.nonce().len(), 8);
    }
}
