//! The two types of queue that work can be in.

use std::fmt;

/// A queue's type, always given explicitly because a vhost's default may be either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QueueType {
    /// One copy on one node, no delivery count.
    Classic,
    /// Replicated, counts deliveries.
    Quorum,
}

impl QueueType {
    /// Both.
    pub const ALL: [QueueType; 2] = [QueueType::Classic, QueueType::Quorum];

    /// The value of `x-queue-type`.
    pub fn as_str(self) -> &'static str {
        match self {
            QueueType::Classic => "classic",
            QueueType::Quorum => "quorum",
        }
    }
}

impl fmt::Display for QueueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
