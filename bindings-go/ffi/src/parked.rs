//! Parked messages.

use std::{collections::HashMap, sync::Arc, time::SystemTime};

use retryrmq::{HistoryEntry, Record};
use tokio::sync::Mutex;

use crate::{
    errors::Refusal,
    live::{Alive, Kind},
    message,
    operation::{Answer, Operation},
    values,
    wire::Wire,
};

/// One walk through the messages parked for a queue.
#[derive(Debug, uniffi::Object)]
pub struct Walk {
    browsing: Arc<Mutex<Option<Browsing>>>,
    _alive: Alive,
}

#[derive(Debug)]
struct Browsing {
    browse: retryrmq::Browse,
    /// What was shown and is neither replayed nor dropped, by its number.
    shown: HashMap<u64, Record>,
    next: u64,
}

impl Walk {
    pub(crate) fn new(browse: retryrmq::Browse) -> Self {
        Self {
            browsing: Arc::new(Mutex::new(Some(Browsing {
                browse,
                shown: HashMap::new(),
                next: 1,
            }))),
            _alive: Alive::new(Kind::Walk),
        }
    }
}

/// What is known of a parked message.
#[derive(Debug, uniffi::Record)]
struct Known {
    number: u64,
    reason: Option<String>,
    parked_at: Option<u64>,
    error: String,
    error_type: String,
    stack: Option<String>,
    fingerprint: String,
    attempts: u32,
    by_broker: bool,
    message: Wire,
}

fn known(number: u64, record: &Record) -> Wire {
    let mut message = Vec::new();
    message::write(&mut message, 0, &record.message(), true);
    let known = Known {
        number,
        reason: record.reason.map(|reason| reason.as_str().to_owned()),
        parked_at: record
            .parked_at
            .and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
            .map(|since| since.as_secs()),
        error: record.error.clone(),
        error_type: record.error_type.clone(),
        stack: record.stack.clone(),
        fingerprint: record.fingerprint.clone(),
        attempts: record.attempts,
        by_broker: record.by_broker,
        message: Wire(message),
    };
    let mut out = Vec::new();
    <Known as uniffi::Lower<crate::UniFfiTag>>::write(known, &mut out);
    Wire(out)
}

fn ended() -> Refusal {
    Refusal::new("closed", "this walk through the parked messages has ended")
}

#[uniffi::export]
impl Walk {
    /// The next parked message; nothing at the end.
    pub fn next(&self, ticket: u64) -> Result<Arc<Operation>, Refusal> {
        let browsing = Arc::clone(&self.browsing);
        Operation::begin_while_awaited(ticket, async move {
            let mut browsing = browsing.lock().await;
            let browsing = browsing.as_mut().ok_or_else(ended)?;
            let Some(record) = browsing.browse.next().await? else {
                return Ok(Answer::Record(Wire::default()));
            };
            let number = browsing.next;
            browsing.next += 1;
            let wire = known(number, &record);
            browsing.shown.insert(number, record);
            Ok(Answer::Record(wire))
        })
    }

    /// Sends a message back to the tail of its work queue.
    pub fn replay(&self, number: u64, ticket: u64) -> Result<Arc<Operation>, Refusal> {
        self.end(number, ticket, true)
    }

    /// Drops a message for good.
    pub fn discard(&self, number: u64, ticket: u64) -> Result<Arc<Operation>, Refusal> {
        self.end(number, ticket, false)
    }

    /// Ends the walk.
    pub fn close(&self, ticket: u64) -> Result<Arc<Operation>, Refusal> {
        let browsing = Arc::clone(&self.browsing);
        Operation::begin(ticket, async move {
            if let Some(browsing) = browsing.lock().await.take() {
                browsing.browse.close().await?;
            }
            Ok(Answer::Nothing)
        })
    }
}

impl Walk {
    fn end(&self, number: u64, ticket: u64, replay: bool) -> Result<Arc<Operation>, Refusal> {
        let browsing = Arc::clone(&self.browsing);
        Operation::begin(ticket, async move {
            let mut browsing = browsing.lock().await;
            let Browsing { browse, shown, .. } = browsing.as_mut().ok_or_else(ended)?;
            let record = shown
                .get(&number)
                .ok_or_else(|| Refusal::option("this message was replayed or dropped already"))?;
            if replay {
                browse.replay(record).await?;
            } else {
                browse.discard(record).await?;
            }
            shown.remove(&number);
            Ok(Answer::Nothing)
        })
    }
}

/// One failed attempt.
#[derive(Debug, uniffi::Record)]
pub struct Entry {
    /// Which attempt.
    pub attempt: u32,
    /// When, in seconds since 1970.
    pub at: u64,
    /// Why.
    pub error: String,
    /// The host name of the consumer.
    pub host: String,
    /// The version of the consuming application.
    pub app_version: String,
}

/// The last failures that these headers tell of, oldest first.
#[uniffi::export]
pub fn history(headers: Wire) -> Result<Vec<Entry>, Refusal> {
    Ok(HistoryEntry::read(&values::read_table(&headers)?)
        .into_iter()
        .map(|entry| Entry {
            attempt: entry.attempt,
            at: entry.at,
            error: entry.error,
            host: entry.host,
            app_version: entry.app_version,
        })
        .collect())
}
