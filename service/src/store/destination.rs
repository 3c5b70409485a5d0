//! Where a message goes: what waits for one line must not wait for another.

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use sha2::{Digest, Sha256};

/// The target that messages are counted by, and that is paused as a whole when it takes nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Destination {
    /// A queue, by way of the default exchange.
    Queue(String),
    /// An exchange, and one of the lanes that its routing keys share. One of them may lead to a queue that is full, and there may be any number of
    /// them: those of one lane are paused together.
    Exchange(String, u8),
}

/// The bytes of a line's digest in an id. Two lines that share them are paused together, and nothing worse.
const TAG: usize = 6;

/// The letters of a [`Destination::tag`].
pub(crate) const TAG_LETTERS: usize = 8;

impl Destination {
    /// The line of a message with this exchange and routing key.
    #[must_use]
    pub fn of(exchange: &str, routing_key: &str) -> Self {
        if exchange.is_empty() {
            Self::Queue(routing_key.to_owned())
        } else {
            Self::Exchange(exchange.to_owned(), Sha256::digest(routing_key)[0])
        }
    }

    /// The exchange whose lane it is.
    pub(crate) fn exchange(&self) -> Option<&str> {
        match self {
            Self::Queue(_) => None,
            Self::Exchange(name, _) => Some(name),
        }
    }

    /// All lanes of an exchange.
    pub(crate) fn lanes(exchange: &str) -> impl Iterator<Item = Self> {
        (0..=u8::MAX).map(move |lane| Self::Exchange(exchange.to_owned(), lane))
    }

    /// The line as it is written in a store.
    pub(crate) fn key(&self) -> String {
        match self {
            Self::Queue(name) => format!("q:{name}"),
            Self::Exchange(name, lane) => format!("l:{lane:02x}{name}"),
        }
    }

    pub(crate) fn from_key(key: &str) -> Option<Self> {
        match key.split_at_checked(2)? {
            ("q:", name) => Some(Self::Queue(name.to_owned())),
            ("l:", name) => {
                let (lane, name) = name.split_at_checked(2)?;
                let lane = u8::from_str_radix(lane, 16).ok()?;
                Some(Self::Exchange(name.to_owned(), lane))
            }
            // Before there were lanes. Such a message may wait for a year.
            ("x:", name) => Some(Self::Exchange(name.to_owned(), 0)),
            _ => None,
        }
    }

    /// Short, and of the same length for every line, so that a script sees in an id where the message goes without reading it.
    pub(crate) fn tag(&self) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(&Sha256::digest(self.key())[..TAG])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_before_there_were_lanes_is_counted() {
        let destination = Destination::from_key("x:shop").unwrap();
        assert_eq!(destination.exchange(), Some("shop"));
    }

    #[test]
    fn the_lanes_of_an_exchange_are_all_that_its_routing_keys_share() {
        let lanes: std::collections::HashSet<_> = Destination::lanes("shop").collect();
        assert_eq!(lanes.len(), 256);
        for number in 0..100 {
            let destination = Destination::of("shop", &format!("order.{number}"));
            assert!(lanes.contains(&destination));
            assert_eq!(destination.exchange(), Some("shop"));
        }
        assert_eq!(Destination::of("", "shop").exchange(), None);
    }

    #[test]
    fn a_queue_and_an_exchange_of_one_name_are_two_lines() {
        let (queue, exchange) = (
            Destination::of("", "orders"),
            Destination::of("orders", "any"),
        );
        assert_ne!(queue.tag(), exchange.tag());
        for destination in [queue, exchange, Destination::of("", "")] {
            assert_eq!(destination.tag().len(), TAG_LETTERS);
            assert_eq!(Destination::from_key(&destination.key()), Some(destination));
        }
        assert_eq!(Destination::from_key("é"), None);
        assert_ne!(
            Destination::of("x", "a").tag(),
            Destination::of("x", "b").tag()
        );
        assert_eq!(Destination::of("x", "a"), Destination::of("x", "a"));
        let lanes = (0..2_000).map(|number| Destination::of("x", &format!("order.{number}")));
        let lanes: std::collections::HashSet<_> = lanes.collect();
        assert_eq!(lanes.len(), 256, "there are no more of them");
        for key in ["l:", "l:é", "l:zz", "z:a"] {
            assert_eq!(Destination::from_key(key), None, "{key}");
        }
    }
}
