//! The sections `[delayed.EXCHANGE]` of a policy file.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// By the exchange that publishers send to.
pub(crate) type DelayedSections = BTreeMap<String, DelayedSection>;

/// What becomes of messages that are published to one exchange with a header `x-delay`, in milliseconds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DelayedSection {
    /// The exchange that messages are published to when they are due. It is somebody else's, and not made. Empty: the default exchange, which takes
    /// a routing key for the name of a queue.
    pub(crate) to: String,
    /// The type of the exchange that publishers send to, as they declare it. Unless given: topic. Both keep every routing key.
    #[serde(default, rename = "type")]
    pub(crate) kind: ExchangeKind,
}

/// A type of exchange that one binding takes everything from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ExchangeKind {
    /// Bound with `#`.
    #[default]
    Topic,
    /// Bound with any key.
    Fanout,
}

impl ExchangeKind {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Topic => "topic",
            Self::Fanout => "fanout",
        }
    }
}

/// Checks sections for what the file's form does not say.
///
/// # Errors
/// A sentence that names what to change.
pub(crate) fn check(sections: &DelayedSections) -> Result<(), String> {
    for (exchange, section) in sections {
        if exchange.is_empty() || exchange.starts_with("amq.") || exchange.starts_with("retryrmq.")
        {
            return Err(format!(
                "[delayed.\"{exchange}\"] names an exchange that is not yours to declare; choose another name"
            ));
        }
        if exchange.len() > 255 || section.to.len() > 255 {
            return Err("an exchange of [delayed] has a name of more than 255 bytes".to_owned());
        }
        // Round and round, without ever a queue of theirs.
        if sections.contains_key(&section.to) {
            return Err(format!(
                "[delayed.\"{exchange}\"] sends to {}, which is delayed itself: `to` is the exchange that consumers' queues are bound to",
                section.to
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(to: &str) -> DelayedSection {
        DelayedSection {
            to: to.to_owned(),
            kind: ExchangeKind::default(),
        }
    }

    #[test]
    fn what_cannot_work_is_refused() {
        let all = |entries: &[(&str, &str)]| {
            let entries = entries.iter();
            entries
                .map(|(name, to)| ((*name).to_owned(), section(to)))
                .collect::<DelayedSections>()
        };
        assert_eq!(check(&all(&[("orders", "shop"), ("mails", "")])), Ok(()));
        for (entries, words) in [
            (all(&[("", "shop")]), "not yours"),
            (all(&[("amq.topic", "shop")]), "not yours"),
            (all(&[("retryrmq.dead", "shop")]), "not yours"),
            (all(&[("a", "a")]), "delayed itself"),
            (all(&[("a", "b"), ("b", "shop")]), "delayed itself"),
        ] {
            let why = check(&entries).unwrap_err();
            assert!(why.contains(words), "{why}");
        }
    }
}
