//! What a walk writes on its copies, so that it knows them when they come by again.

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

use crate::retry::headers;

/// Where a delivery comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// This walk put it back as a fresh copy.
    Renewed,
    /// This walk replayed it, and it was parked again.
    Replayed,
    /// It was there before, or somebody else parked it.
    Elsewhere,
}

/// The marks of one walk.
#[derive(Debug)]
pub(crate) struct Marks {
    pub(crate) renewed: String,
    pub(crate) replayed: String,
}

impl Marks {
    /// Of the walk with this number, which nobody else can have guessed.
    pub(crate) fn of(walk: u64) -> Self {
        Self {
            renewed: format!("renewed {walk:016x}"),
            replayed: format!("replayed {walk:016x}"),
        }
    }

    /// What the copy's header says.
    pub(crate) fn source(&self, properties: &BasicProperties) -> Source {
        let empty = FieldTable::default();
        let table = properties.headers().as_ref().unwrap_or(&empty);
        match table.inner().get(headers::WALK) {
            Some(AMQPValue::LongString(text)) if text.as_bytes() == self.renewed.as_bytes() => {
                Source::Renewed
            }
            Some(AMQPValue::LongString(text)) if text.as_bytes() == self.replayed.as_bytes() => {
                Source::Replayed
            }
            _ => Source::Elsewhere,
        }
    }
}
