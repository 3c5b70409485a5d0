//! Which of the messages that wait are meant.

use std::collections::BTreeSet;

use retryrmq::{WaitingMessage, terminal_escape};

use super::store::StoredMessage;

/// By id, or all.
#[derive(Clone, Debug)]
pub(super) enum WaitingSelection {
    All,
    /// The message id, or `#` and the mark that `show` and `ls --look` print.
    Ids(Vec<String>),
}

impl WaitingSelection {
    /// Those of the names that mean this message.
    pub(super) fn names(&self, waiting_message: &WaitingMessage) -> Vec<String> {
        match self {
            Self::All => Vec::new(),
            Self::Ids(ids) => ids
                .iter()
                .filter(|id| is(waiting_message, id))
                .cloned()
                .collect(),
        }
    }

    /// The same of a message in the service's store, which has one more name: its id there.
    pub(super) fn names_stored(&self, stored: &StoredMessage) -> Vec<String> {
        match self {
            Self::All => Vec::new(),
            Self::Ids(ids) => ids.iter().filter(|id| stored.is(id)).cloned().collect(),
        }
    }

    pub(super) fn takes_stored(&self, stored: &StoredMessage) -> bool {
        match self {
            Self::All => true,
            Self::Ids(ids) => ids.iter().any(|id| stored.is(id)),
        }
    }

    /// The names that mean none of those that were found.
    pub(super) fn missing(&self, found: &BTreeSet<String>) -> Option<String> {
        let Self::Ids(ids) = self else { return None };
        let missing = ids.iter().filter(|id| !found.contains(*id));
        let missing: Vec<_> = missing
            .map(|id| format!("`{}`", terminal_escape::line(id)))
            .collect();
        (!missing.is_empty()).then(|| missing.join(", "))
    }

    pub(super) fn takes(&self, waiting_message: &WaitingMessage) -> bool {
        match self {
            Self::All => true,
            Self::Ids(ids) => ids.iter().any(|id| is(waiting_message, id)),
        }
    }
}

/// Whether a message goes by that name.
pub(super) fn is(waiting_message: &WaitingMessage, id: &str) -> bool {
    waiting_message.message().message_id() == Some(id)
        || id
            .strip_prefix('#')
            .is_some_and(|mark| mark == waiting_message.mark)
}

/// The name that a message goes by: its id, or its mark.
pub(super) fn name(waiting_message: &WaitingMessage) -> String {
    let message = waiting_message.message();
    message
        .message_id()
        .map_or_else(|| format!("#{}", waiting_message.mark), ToOwned::to_owned)
}
