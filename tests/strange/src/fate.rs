//! What becomes of a message: its id says it, so that the handler needs nothing else.

use retryrmq::{Message, park};
use std::error::Error;

/// What a handler answers with.
pub(crate) type Answer = Result<(), Box<dyn Error + Send + Sync>>;

/// What the attempts at a message do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    Succeeds,
    FailsOnce,
    FailsAlways,
    IsFatal,
}

impl Fate {
    pub(crate) const ALL: [Fate; 4] = [
        Fate::Succeeds,
        Fate::FailsOnce,
        Fate::FailsAlways,
        Fate::IsFatal,
    ];

    fn name(self) -> &'static str {
        match self {
            Fate::Succeeds => "succeeds",
            Fate::FailsOnce => "fails-once",
            Fate::FailsAlways => "fails-always",
            Fate::IsFatal => "is-fatal",
        }
    }

    /// The id of the message of a batch with this number and fate.
    pub(crate) fn id(self, batch: &str, number: usize) -> String {
        format!("{batch}-{number}-{}", self.name())
    }

    fn of(id: &str) -> Fate {
        let of = Fate::ALL.into_iter().find(|fate| id.ends_with(fate.name()));
        of.expect("the id ends with a fate")
    }

    /// Whether it ends in the parking queue.
    pub(crate) fn is_parked(id: &str) -> bool {
        matches!(Fate::of(id), Fate::FailsAlways | Fate::IsFatal)
    }

    /// What the handler answers, with an error of so many bytes at least. A message that was replayed succeeds.
    pub(crate) fn answer(message: &Message, error: usize) -> Answer {
        let id = message.message_id().expect("every message has an id");
        match Fate::of(id) {
            _ if message.replays() > 0 => Ok(()),
            Fate::Succeeds => Ok(()),
            Fate::FailsOnce if message.attempt() > 1 => Ok(()),
            Fate::FailsOnce | Fate::FailsAlways => {
                Err(format!("{:.<error$}", "it fails by its id").into())
            }
            Fate::IsFatal => Err(park("it is fatal by its id").into()),
        }
    }
}
