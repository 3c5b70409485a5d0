//! What a consumer has tried since it lost its connection.

use super::MOST_LOOKS;
use crate::{Error, ErrorKind, unreadable::suspects::Suspects};

/// Tries to consume again after a connection was lost.
#[derive(Debug, Default)]
pub(super) struct ConsumeTries {
    pub(super) number: u32,
    pub(super) last: LastScan,
    /// Whether a look ended at a message that cannot be delivered over AMQP 1.0. Farther looks would end there as well.
    pub(super) is_hidden: bool,
    /// Whether looks saw nothing that would cost several connections.
    pub(super) is_unknown: bool,
    /// Whether messages were moved.
    pub(super) has_moved: bool,
    /// Whether the queue was found without a leader.
    pub(super) is_leaderless: bool,
    /// How often some were tried one at a time at a cost, since connections are lost in a row.
    pub(super) trials: u32,
    /// Why some were not tried that may be the ones.
    pub(super) untried: Option<String>,
    /// What the last look saw of those that it cannot tell from others.
    pub(super) suspects: Suspects,
    /// Whether the client's other consumers know that this one has found a reason.
    pub(super) has_told: bool,
    /// Whether the broker refused to store copies when it was asked last, as long as nobody changes permissions or queues.
    pub(super) was_forbidden: bool,
    /// How many messages were ready, in how many tries there were none, and how often the queue became shorter.
    pub(super) ready: Option<u32>,
    pub(super) empty: u32,
    pub(super) shrunk: u32,
    /// Whether the last look did not see what could not be moved, and how often another one followed. Another consumer may have held it.
    pub(super) is_missing: bool,
    pub(super) missing: u32,
    /// How many messages were in the queue for what was moved, and how often there was reason to look because of that.
    pub(super) aside: Option<u32>,
    pub(super) changed: u32,
}

/// What the last look came to.
#[derive(Clone, Debug, Default)]
pub(super) enum LastScan {
    #[default]
    None,
    /// It saw every message that it was to see. It has moved those that cannot be delivered, or there was none.
    Clean,
    /// It saw single messages, which are in order. It does not know what is behind them.
    Partial,
    /// It found messages that could not be moved.
    Refused(ErrorKind, String),
    /// It ended at a message that cannot be delivered over AMQP 1.0, or failed.
    Failed(String),
}

impl ConsumeTries {
    /// Whether to read the queue: for the first, the second, the fourth and so on. Pauses grow, and then it has to be started again.
    pub(super) fn reads(&self) -> bool {
        self.number.is_power_of_two() && self.number <= MOST_LOOKS
    }

    /// Takes note of how many messages are ready. Returns whether they are fewer than before: then the message may be gone, whoever took it.
    pub(super) fn note_ready(&mut self, ready: Option<u32>) -> bool {
        let Some(ready) = ready else { return false };
        self.empty = if ready == 0 { self.empty + 1 } else { 0 };
        self.ready
            .replace(ready)
            .is_some_and(|before| ready < before)
    }

    /// Takes note of how many messages were moved by anybody. Returns whether somebody, an operator perhaps, has moved some or made room.
    pub(super) fn note_set_aside(&mut self, aside: Option<u32>) -> bool {
        let Some(aside) = aside else { return false };
        self.aside
            .replace(aside)
            .is_some_and(|before| before != aside)
    }

    /// Takes note of why the broker would store no copies. Returns whether it does now what it had forbidden.
    pub(super) fn note_refusal(&mut self, refusal: Option<&Error>) -> bool {
        let Some(refusal) = refusal else {
            return std::mem::take(&mut self.was_forbidden);
        };
        self.was_forbidden |= forbids(refusal);
        false
    }
}

/// Whether an error lasts until somebody changes permissions or queues.
pub(super) fn forbids(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::AccessRefused | ErrorKind::QueueNotFound | ErrorKind::Mismatch
    )
}

/// Counts one more of something that may happen so often.
pub(super) fn is_one_more(count: &mut u32, most: u32) -> bool {
    let is_allowed = *count < most;
    *count += u32::from(is_allowed);
    is_allowed
}
