//! A record of what handlers saw and of what the consumer told.

use retryrmq::{Event, Message};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Attempts and events in the order in which they came. Clones share the record.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Arc<Mutex<Record>>);

#[derive(Debug, Default)]
struct Record {
    attempts: Vec<(String, u32)>,
    successes: BTreeMap<String, usize>,
    events: Vec<Event>,
}

impl Recorder {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// An attempt begins; returns the message's body as text.
    pub fn attempt(&self, message: &Message) -> String {
        let id = text(message);
        let attempt = (id.clone(), message.attempt());
        self.record().attempts.push(attempt);
        id
    }

    /// An attempt has succeeded.
    pub fn success(&self, id: &str) {
        *self.record().successes.entry(id.to_owned()).or_default() += 1;
    }

    /// What [`Consumer::on_event`](retryrmq::Consumer::on_event) takes.
    pub fn listener(&self) -> impl Fn(&Event) + Send + Sync + 'static {
        let recorder = self.clone();
        move |event| recorder.record().events.push(event.clone())
    }

    /// All attempts that began: body and attempt.
    pub fn attempts(&self) -> Vec<(String, u32)> {
        self.record().attempts.clone()
    }

    /// How often an attempt at this message began.
    pub fn runs(&self, id: &str) -> usize {
        self.record()
            .attempts
            .iter()
            .filter(|(seen, _)| seen == id)
            .count()
    }

    /// How often this message was handled.
    pub fn handled(&self, id: &str) -> usize {
        self.record().successes.get(id).copied().unwrap_or(0)
    }

    /// How many different messages were handled.
    pub fn handled_count(&self) -> usize {
        self.record().successes.len()
    }

    /// How many events have this name.
    pub fn count(&self, event: &str) -> usize {
        self.record()
            .events
            .iter()
            .filter(|seen| seen.name() == event)
            .count()
    }

    /// All events.
    pub fn events(&self) -> Vec<Event> {
        self.record().events.clone()
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message's body.
pub fn text(message: &Message) -> String {
    String::from_utf8_lossy(message.body()).into_owned()
}
