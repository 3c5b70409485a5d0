//! What handlers and events said.

use crate::handler_script::{Answer, HandlerScript};
use retryrmq::{Event, Message};
use std::collections::{BTreeMap, BTreeSet};
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Clones write into the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observations(Arc<Mutex<ObservationLog>>);

#[derive(Debug, Default)]
struct ObservationLog {
    handled: BTreeMap<String, usize>,
    parked: BTreeSet<String>,
    waited: BTreeSet<String>,
    events: BTreeMap<&'static str, usize>,
}

impl Observations {
    /// A handler whose errors have so many bytes at least.
    pub(crate) fn handler(
        &self,
        error: usize,
    ) -> impl Fn(Message) -> Ready<Answer> + Send + Sync + 'static {
        let observations = self.clone();
        move |message| {
            let answer = HandlerScript::answer(&message, error);
            if let (Ok(()), Some(id)) = (&answer, message.message_id()) {
                *observations
                    .pages()
                    .handled
                    .entry(id.to_owned())
                    .or_default() += 1;
            }
            ready(answer)
        }
    }

    pub(crate) fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let observations = self.clone();
        move |event| {
            let mut pages = observations.pages();
            *pages.events.entry(event.name()).or_default() += 1;
            match event {
                Event::Parked {
                    message_id: Some(id),
                    ..
                } => _ = pages.parked.insert(id.clone()),
                Event::Retried {
                    message_id: Some(id),
                    ..
                }
                | Event::Detoured {
                    message_id: Some(id),
                    ..
                } => _ = pages.waited.insert(id.clone()),
                _ => {}
            }
        }
    }

    /// The messages that a handler succeeded with, and how often.
    pub(crate) fn handled(&self) -> BTreeMap<String, usize> {
        self.pages().handled.clone()
    }

    /// The messages that were parked, by the consumer's own word.
    pub(crate) fn parked(&self) -> BTreeSet<String> {
        self.pages().parked.clone()
    }

    /// The messages that have waited, for a retry or on a detour, by the consumer's own word.
    pub(crate) fn waited(&self) -> BTreeSet<String> {
        self.pages().waited.clone()
    }

    /// How many events of each name there were.
    pub(crate) fn events(&self) -> BTreeMap<&'static str, usize> {
        self.pages().events.clone()
    }

    fn pages(&self) -> MutexGuard<'_, ObservationLog> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
