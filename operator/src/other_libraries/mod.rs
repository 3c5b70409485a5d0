//! Dead letters that other libraries and the broker itself left, read as records.
//!
//! ```text
//!   headers, type, body ─► easynetq ─► masstransit ─► nservicebus ─► spring ─► symfony ─► watermill ─► moleculer
//!                              │                   ─► celery ─► taskiq ─► dramatiq ─► deaths (x-death)
//!                              │ the first that knows its own marks says
//!                              ▼
//!   DeadLetter: which library, out of which queue, why, with which stack, since when, and what to replay
//! ```
//!
//! A library's own words come before the broker's `x-death`: they say why a message failed. But its publisher may have written them, and chosen the
//! queue that a replay goes to. So where `x-death` names another queue, nobody is believed, and a person has to say which it is. Every reader is a table from headers to a record, pure, and bounded whatever stands in them.

mod body_counter;
mod bounded_json;
mod celery;
mod dramatiq;
mod easynetq;
mod masstransit;
mod moleculer;
mod nservicebus;
mod php;
mod raw_dead_letter;
mod spring;
mod symfony;
mod taskiq;
mod time;
mod value;
mod watermill;
mod x_death;

pub use celery::task as celery_task;
pub use raw_dead_letter::{
    DeadLetter, DeadLetterSource, Library, Properties, RawDeadLetter, ReplayedMessage,
};
pub use value::{Headers, Value};

/// What a dead letter says of its past; `None` where nothing of a failure can be recognised. A message that retryrmq itself parked
/// is for its own reader.
#[must_use]
pub fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let said = easynetq::read(dead_letter)
        .or_else(|| masstransit::read(dead_letter))
        .or_else(|| nservicebus::read(dead_letter))
        .or_else(|| spring::read(dead_letter))
        .or_else(|| symfony::read(dead_letter))
        .or_else(|| watermill::read(dead_letter))
        .or_else(|| moleculer::read(dead_letter))
        .or_else(|| celery::read(dead_letter))
        .or_else(|| taskiq::read(dead_letter))
        .or_else(|| dramatiq::read(dead_letter));
    let Some(said) = said.filter(|_| !dead_letter.died_in_own_queue) else {
        return x_death::read(dead_letter);
    };
    match x_death::other_queue(dead_letter, &said) {
        // Both may be a publisher's: a library publishes what it gives up, and keeps the headers.
        Some(queue) => Some(DeadLetter {
            source: DeadLetterSource::Unknown(format!(
                "its headers name `{}`, and its `x-death` names `{queue}`",
                said.source.queue().unwrap_or_default()
            )),
            ..said
        }),
        None if said.library != Library::Celery && x_death::came_after(dead_letter, &said) => {
            x_death::read(dead_letter)
        }
        None => Some(said),
    }
}
