//! What becomes of a message: its id says it, so that the handler needs nothing else.

use retryrmq::{Message, park};
use std::error::Error;

/// What a handler answers with.
pub(crate) type Answer = Result<(), Box<dyn Error + Send + Sync>>;

/// What the attempts at a message do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandlerScript {
    Succeeds,
    FailsOnce,
    FailsAlways,
    IsFatal,
}

impl HandlerScript {
    pub(crate) const ALL: [HandlerScript; 4] = [
        HandlerScript::Succeeds,
        HandlerScript::FailsOnce,
        HandlerScript::FailsAlways,
        HandlerScript::IsFatal,
    ];

    fn name(self) -> &'static str {
        match self {
            HandlerScript::Succeeds => "succeeds",
            HandlerScript::FailsOnce => "fails-once",
            HandlerScript::FailsAlways => "fails-always",
            HandlerScript::IsFatal => "is-fatal",
        }
    }

    /// The id of the message of a batch with this number and fate.
    pub(crate) fn id(self, batch: &str, number: usize) -> String {
        format!("{batch}-{number}-{}", self.name())
    }

    fn of(id: &str) -> HandlerScript {
        let of = HandlerScript::ALL
            .into_iter()
            .find(|handler_script| id.ends_with(handler_script.name()));
        of.expect("the id ends with a fate")
    }

    /// Whether it ends in the parking queue.
    pub(crate) fn is_parked(id: &str) -> bool {
        matches!(
            HandlerScript::of(id),
            HandlerScript::FailsAlways | HandlerScript::IsFatal
        )
    }

    /// What the handler answers, with an error of so many bytes at least. A message that was replayed succeeds.
    pub(crate) fn answer(message: &Message, error: usize) -> Answer {
        let id = message.message_id().expect("every message has an id");
        match HandlerScript::of(id) {
            _ if message.replays() > 0 => Ok(()),
            HandlerScript::Succeeds => Ok(()),
            HandlerScript::FailsOnce if message.attempt() > 1 => Ok(()),
            HandlerScript::FailsOnce | HandlerScript::FailsAlways => {
                Err(format!("{:.<error$}", "it fails by its id").into())
            }
            HandlerScript::IsFatal => Err(park("it is fatal by its id").into()),
        }
    }
}
