//! What a walk writes on its copies, so that it recognises them later.

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable},
};

use crate::retry::headers;

/// Where a delivery comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeliverySource {
    /// This walk renewed it.
    Renewed,
    /// This walk replayed it, and it was parked again.
    Replayed,
    /// It was there before, or something else parked it.
    Elsewhere,
}

/// The marks of one walk.
#[derive(Debug)]
pub(crate) struct CopyMarkers {
    pub(crate) renewed: String,
    pub(crate) replayed: String,
}

impl CopyMarkers {
    /// The marks of the walk with this number, which nobody else can guess.
    pub(crate) fn of(walk: u64) -> Self {
        Self {
            renewed: format!("renewed {walk:016x}"),
            replayed: format!("replayed {walk:016x}"),
        }
    }

    /// Reads the header of a copy.
    pub(crate) fn source(&self, properties: &BasicProperties) -> DeliverySource {
        let empty = FieldTable::default();
        let table = properties.headers().as_ref().unwrap_or(&empty);
        match table.inner().get(headers::WALK) {
            Some(AMQPValue::LongString(text)) if text.as_bytes() == self.renewed.as_bytes() => {
                DeliverySource::Renewed
            }
            Some(AMQPValue::LongString(text)) if text.as_bytes() == self.replayed.as_bytes() => {
                DeliverySource::Replayed
            }
            _ => DeliverySource::Elsewhere,
        }
    }
}
