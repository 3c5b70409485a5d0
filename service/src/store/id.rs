//! The name of a message that waits.

use std::fmt;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

use super::destination::{Destination, TAG_LETTERS};

/// The bytes of the digest in an id.
const DIGEST: usize = 16;

/// The letters of the digest.
const DIGEST_LETTERS: usize = 22;

/// Names one waiting message: a digest of where it goes, all its properties (so also of how it died: `x-death` and our own count are
/// among its headers) and its body, then the tag of its [`Destination`]. The same message that is taken in twice has one id.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(String);

impl Id {
    pub(super) fn of(exchange: &str, routing_key: &str, properties: &[u8], body: &[u8]) -> Self {
        let mut digest = Sha256::new();
        // With their lengths, so that no part can pass for the end of the one before.
        for part in [exchange.as_bytes(), routing_key.as_bytes(), properties] {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        digest.update(body);
        Self::join(
            &digest.finalize(),
            &Destination::of(exchange, routing_key).tag(),
        )
    }

    /// The id of a message that looks the same to the last byte, but is another.
    pub(super) fn twin(&self, nonce: &str) -> Self {
        let mut digest = Sha256::new();
        digest.update(&self.0);
        digest.update(nonce);
        Self::join(&digest.finalize(), self.tag())
    }

    fn join(digest: &[u8], tag: &str) -> Self {
        Self(format!(
            "{}.{tag}",
            BASE64_URL_SAFE_NO_PAD.encode(&digest[..DIGEST])
        ))
    }

    /// Reads an id, as a person gives it. Nothing when it cannot be one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (digest, tag) = text.split_once('.')?;
        let is = |part: &str, letters| {
            part.len() == letters
                && part
                    .bytes()
                    .all(|letter| letter.is_ascii_alphanumeric() || b"-_".contains(&letter))
        };
        (is(digest, DIGEST_LETTERS) && is(tag, TAG_LETTERS)).then(|| Self(text.to_owned()))
    }

    /// Sixteen hexadecimal digits that name the message, as marks do in the broker: most of its digest. Nothing for an id that no digest made.
    #[must_use]
    pub fn mark(&self) -> Option<String> {
        let digest = BASE64_URL_SAFE_NO_PAD.decode(&self.0[..DIGEST_LETTERS]);
        let digest = u128::from_be_bytes(digest.ok()?.try_into().ok()?);
        Some(format!("{:016x}", digest >> 64))
    }

    /// The tag of the line that the message goes to.
    pub(crate) fn tag(&self) -> &str {
        &self.0[self.0.len() - TAG_LETTERS..]
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Id {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Id({})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_part_counts_and_no_byte_moves_from_one_to_the_next() {
        let ids = [
            Id::of("", "orders", b"p", b"body"),
            Id::of("", "orders", b"pb", b"ody"),
            Id::of("", "orders", b"", b"pbody"),
            Id::of("", "order", b"p", b"body"),
            Id::of("orders", "", b"p", b"body"),
            Id::of("o", "rders", b"p", b"body"),
        ];
        for (at, id) in ids.iter().enumerate() {
            assert!(!ids[at + 1..].contains(id), "{id}");
        }
    }

    proptest! {
        #[test]
        fn an_id_and_its_twin_are_read_back(queue: String, properties: Vec<u8>, body: Vec<u8>, nonce: String) {
            let id = Id::of("", &queue, &properties, &body);
            prop_assert_eq!(&id, &Id::of("", &queue, &properties, &body));
            let twin = id.twin(&nonce);
            prop_assert_ne!(&twin, &id);
            prop_assert_ne!(twin.mark(), id.mark());
            for id in [id, twin] {
                prop_assert_eq!(id.mark().map(|mark| mark.len()), Some(16));
                prop_assert_eq!(id.tag(), Destination::of("", &queue).tag());
                prop_assert_eq!(Id::parse(id.as_str()), Some(id));
            }
        }

        #[test]
        fn any_text_is_an_id_or_none(text: String) {
            if let Some(id) = Id::parse(&text) {
                prop_assert_eq!(id.tag().len(), TAG_LETTERS);
            }
        }
    }

    #[test]
    fn what_is_no_id_is_refused() {
        let id = Id::of("", "orders", b"", b"");
        for text in ["", ".", "a.b", &id.as_str()[1..], &format!("{id}x")] {
            assert_eq!(Id::parse(text), None, "{text}");
        }
    }
}
