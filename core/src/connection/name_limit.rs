//! Which names a broker can say. RabbitMQ 4 closes the connection (541) instead of refusing something with a text that is longer than 255 bytes
//! and not ASCII (`docs/broker-facts.md`, 85).

use super::{Server, error_mapping::LONGEST_TEXT};
use crate::{Error, ErrorKind, Result};

/// The answer for a missing queue or exchange, without its name and that of the virtual host.
const MISSING: &str = "NOT_FOUND - no exchange '' in vhost ''";

/// How long a name may be that a broker has to say in a virtual host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NameLimit {
    vhost: usize,
    vhost_is_ascii: bool,
    cuts_long_texts: bool,
}

impl NameLimit {
    /// That of a broker that says everything.
    pub(crate) const NONE: Self = Self {
        vhost: 0,
        vhost_is_ascii: true,
        cuts_long_texts: true,
    };

    pub(crate) fn new(server: &Server, vhost: &str) -> Self {
        Self {
            vhost: vhost.len(),
            vhost_is_ascii: vhost.is_ascii(),
            cuts_long_texts: server.capabilities().cuts_long_refusals,
        }
    }

    /// Whether the broker can refuse something in these words. They are given without the names in them: this one, once, and that of the virtual
    /// host.
    pub(crate) fn can_say(self, words: &str, name: &str) -> bool {
        self.cuts(name) || name.len() <= self.room(words)
    }

    /// Whether the broker cuts a text with this name, if it is too long.
    fn cuts(self, name: &str) -> bool {
        self.cuts_long_texts || self.vhost_is_ascii && name.is_ascii()
    }

    /// How many bytes the name may have in these words.
    fn room(self, words: &str) -> usize {
        LONGEST_TEXT.saturating_sub(words.len() + self.vhost)
    }

    /// Checks that the broker can say that there is no queue or exchange of this name.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`].
    pub(crate) fn check(self, name: &str) -> Result<()> {
        self.check_with(name, 0)
    }

    /// Checks the name of a queue from which other names are made, by adding up to so many bytes.
    ///
    /// # Errors
    /// [`ErrorKind::TooLarge`].
    pub(crate) fn check_with(self, name: &str, added: usize) -> Result<()> {
        let cuts = self.cuts(name);
        let most = if cuts {
            LONGEST_TEXT
        } else {
            self.room(MISSING)
        };
        if name.len() + added <= most {
            return Ok(());
        }
        let head: String = name.chars().take(40).collect();
        let may_have = most.saturating_sub(added);
        let others = match added {
            0 => String::new(),
            _ => format!(", because the names of its waiting queues are {added} bytes longer"),
        };
        let why = if cuts {
            format!("AMQP carries names of {most} bytes; use a shorter name")
        } else {
            format!(
                "RabbitMQ 4 closes the connection when it has to say that something is missing whose name is longer than {most} bytes, and this \
                 name or that of the virtual host is not ASCII; use a shorter name, or ASCII"
            )
        };
        let message = format!(
            "the name `{head}…` has {} bytes, and may have at most {may_have}{others}: {why}",
            name.len()
        );
        Err(Error::new(ErrorKind::TooLarge, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(version: &str, vhost: &str) -> NameLimit {
        NameLimit::new(&Server::for_tests("RabbitMQ", version), vhost)
    }

    #[test]
    fn a_name_may_be_as_long_as_the_broker_can_say() {
        let new = limit("4.3.0", "/");
        for (limit, name, most) in [
            (new, "a", 255),
            (new, "é", 216),
            (limit("4.0.5", "/"), "é", 216),
            (limit("4.0.5", "shop"), "é", 213),
            (limit("4.0.5", "shöp"), "a", 212),
            (limit("3.10.8", "shöp"), "é", 255),
        ] {
            for added in [0, 18] {
                let most = most - added;
                let fits = name.repeat(most / name.len());
                limit.check_with(&fits, added).unwrap();
                let long = format!("{fits}{name}");
                let error = limit.check_with(&long, added).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::TooLarge);
                assert!(!error.is_transient());
                let text = error.to_string();
                assert!(text.contains(&format!("at most {most}")), "{text}");
                assert!(text.contains("use a shorter name"), "{text}");
            }
        }
        // A virtual host of which nothing can be said.
        let error = limit("4.3.0", &"é".repeat(120))
            .check("orders")
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn longer_words_leave_less_room_for_a_name() {
        let new = limit("4.3.0", "/");
        let name = "é".repeat(100);
        assert!(new.can_say(MISSING, &name));
        assert!(!new.can_say(&"w".repeat(60), &name));
        assert!(new.can_say(&"w".repeat(60), &"a".repeat(200)));
        assert!(limit("3.10.8", "/").can_say(&"w".repeat(60), &name));
    }
}
