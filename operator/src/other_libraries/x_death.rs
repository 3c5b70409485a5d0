//! RabbitMQ's own `x-death`: an array of tables, newest first, one for each queue and reason.
//!
//! Documented at <https://www.rabbitmq.com/docs/dlx#effects>; measured on 3.10, 4.0 and 4.3.

use std::time::{Duration, SystemTime};

use super::{
    Value,
    raw_dead_letter::{
        DeadLetter, DeadLetterSource, ERROR, Library, NAME, RawDeadLetter, ReplayedMessage,
    },
    time,
    value::{cut, text},
};

/// The most entries that are looked at.
const MOST: usize = 64;

/// One entry.
#[derive(Clone, Debug)]
pub(crate) struct XDeath {
    pub(crate) queue: String,
    pub(crate) reason: String,
    pub(crate) at: Option<SystemTime>,
    published: (Option<String>, Option<String>),
}

impl XDeath {
    /// What happened to a task whose library writes no error down.
    pub(crate) fn how_a_task_died(&self) -> &'static str {
        match self.reason.as_str() {
            "rejected" => "was rejected by its worker",
            "expired" => "expired before a worker took it",
            "maxlen" => "found its queue full",
            "delivery_limit" => "was delivered too often: its worker died with it, or gave it back",
            _ => "was dead-lettered",
        }
    }
}

/// All entries, newest first; none where the header is something else.
pub(crate) fn all(dead_letter: &RawDeadLetter<'_>) -> Vec<XDeath> {
    let Some(Value::List(deaths)) = dead_letter.headers.get("x-death") else {
        return Vec::new();
    };
    deaths
        .iter()
        .take(MOST)
        .filter_map(|death| {
            let Value::Table(death) = death else {
                return None;
            };
            let key = match death.get("routing-keys") {
                Some(Value::List(keys)) => keys.first().and_then(|key| key.text(NAME)),
                _ => None,
            };
            Some(XDeath {
                queue: text(death, "queue", NAME)?,
                reason: text(death, "reason", NAME).unwrap_or_default(),
                at: match death.get("time") {
                    Some(Value::Time(seconds)) => time::of_seconds(*seconds),
                    _ => None,
                },
                published: (death.get("exchange").and_then(|name| name.text(NAME)), key),
            })
        })
        .collect()
}

/// The death that gave the message up: the newest in another queue that was no mere expiry. What only waited until its time to
/// live ran out was on its way, unless nothing else happened to it.
pub(crate) fn decisive<'a>(
    dead_letter: &RawDeadLetter<'_>,
    deaths: &'a [XDeath],
) -> Option<&'a XDeath> {
    let elsewhere = || {
        deaths
            .iter()
            .filter(|death| death.queue != dead_letter.queue)
    };
    let refused = elsewhere().find(|death| death.reason != "expired");
    refused.or_else(|| elsewhere().next())
}

/// Whether the broker gave the message up after the failure that a library wrote on it: then that is of an earlier life, as where
/// somebody moved the message back by hand. What only expired lay in the library's own dead-letter queue.
pub(crate) fn came_after(dead_letter: &RawDeadLetter<'_>, said: &DeadLetter) -> bool {
    let deaths = all(dead_letter);
    let died = decisive(dead_letter, &deaths).filter(|death| death.reason != "expired");
    match (died.and_then(|death| death.at), said.failed_at) {
        // The broker tells whole seconds.
        (Some(died), Some(failed)) => died > failed + Duration::from_secs(1),
        _ => false,
    }
}

/// The queue out of which the broker dead-lettered the message, if a library names another one.
pub(crate) fn other_queue(dead_letter: &RawDeadLetter<'_>, said: &DeadLetter) -> Option<String> {
    let deaths = all(dead_letter);
    let died = decisive(dead_letter, &deaths).filter(|death| death.reason != "expired")?;
    let named = said.source.queue()?;
    (said.library != Library::Celery && died.queue != named).then(|| died.queue.clone())
}

/// The exchange and routing key of its publisher: those of the oldest death.
pub(crate) fn published(deaths: &[XDeath]) -> Option<(String, String)> {
    let (exchange, key) = &deaths.last()?.published;
    Some((exchange.clone()?, key.clone()?))
}

/// What the broker dead-lettered, and nobody else says anything of.
pub(crate) fn read(dead_letter: &RawDeadLetter<'_>) -> Option<DeadLetter> {
    let deaths = all(dead_letter);
    let newest = deaths.first()?;
    let source = match decisive(dead_letter, &deaths) {
        Some(death) => DeadLetterSource::Queue(death.queue.clone()),
        None => {
            DeadLetterSource::Unknown("its `x-death` names no other queue than this one".to_owned())
        }
    };
    let decisive = decisive(dead_letter, &deaths).unwrap_or(newest);
    let path: Vec<_> = deaths
        .iter()
        .rev()
        .skip(deaths.len().saturating_sub(8))
        .map(|death| format!("{} ({})", death.queue, death.reason))
        .collect();
    Some(DeadLetter {
        published: published(&deaths),
        reason: Some(decisive.reason.clone()),
        error: cut(
            &format!(
                "dead-lettered by the broker out of {}",
                path.join(", then ")
            ),
            ERROR,
        ),
        failed_at: decisive.at,
        // The broker's headers never travel with a replay.
        replay: ReplayedMessage::Without(Vec::new()),
        ..DeadLetter::of(Library::Broker, source)
    })
}
