//! Parked messages.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::SystemTime,
};

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
    counts: Arc<Counts>,
    others: u32,
    warning: Option<String>,
    _alive: Alive,
}

/// What is told of a walk while it may be busy.
#[derive(Debug, Default)]
struct Counts {
    remaining: AtomicU32,
    missed: AtomicU32,
}

impl Counts {
    fn of(&self, browse: &retryrmq::Browse) {
        self.remaining.store(browse.remaining(), Ordering::Relaxed);
        self.missed.store(browse.missed(), Ordering::Relaxed);
    }
}

/// What is known of a walk beside its messages.
#[derive(Debug, uniffi::Record)]
pub struct Outlook {
    /// How many messages were there when it began and have not been seen yet.
    pub remaining: u32,
    /// How many others took messages when it began.
    pub others: u32,
    /// How many messages others took before they came.
    pub missed: u32,
    /// What is wrong with the parking queue.
    pub warning: Option<String>,
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
        let counts = Counts::default();
        counts.of(&browse);
        Self {
            counts: Arc::new(counts),
            others: browse.others(),
            warning: browse.warning().map(str::to_owned),
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
    home: String,
    mark: String,
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
        home: record.home.clone(),
        mark: record.mark.clone(),
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
        let (browsing, counts) = (Arc::clone(&self.browsing), Arc::clone(&self.counts));
        Operation::begin_while_awaited(ticket, async move {
            let mut browsing = browsing.lock().await;
            let browsing = browsing.as_mut().ok_or_else(ended)?;
            let next = browsing.browse.next().await;
            counts.of(&browsing.browse);
            let Some(record) = next? else {
                return Ok(Answer::Record(Wire::default()));
            };
            let number = browsing.next;
            browsing.next += 1;
            let wire = known(number, &record);
            browsing.shown.insert(number, record);
            Ok(Answer::Record(wire))
        })
    }

    /// What is known of it beside its messages.
    pub fn outlook(&self) -> Outlook {
        Outlook {
            remaining: self.counts.remaining.load(Ordering::Relaxed),
            others: self.others,
            missed: self.counts.missed.load(Ordering::Relaxed),
            warning: self.warning.clone(),
        }
    }

    /// Sends a message back to the tail of the queue that it belongs to.
    pub fn replay(&self, number: u64, ticket: u64) -> Result<Arc<Operation>, Refusal> {
        self.end(number, ticket, End::Home)
    }

    /// Sends a message to the tail of this queue.
    pub fn replay_to(
        &self,
        number: u64,
        queue: String,
        ticket: u64,
    ) -> Result<Arc<Operation>, Refusal> {
        self.end(number, ticket, End::To(queue))
    }

    /// Drops a message for good.
    pub fn discard(&self, number: u64, ticket: u64) -> Result<Arc<Operation>, Refusal> {
        self.end(number, ticket, End::Gone)
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

/// Where a message goes.
enum End {
    Home,
    To(String),
    Gone,
}

impl Walk {
    fn end(&self, number: u64, ticket: u64, end: End) -> Result<Arc<Operation>, Refusal> {
        let browsing = Arc::clone(&self.browsing);
        Operation::begin(ticket, async move {
            let mut browsing = browsing.lock().await;
            let Browsing { browse, shown, .. } = browsing.as_mut().ok_or_else(ended)?;
            let record = shown
                .get(&number)
                .ok_or_else(|| Refusal::option("this message was replayed or dropped already"))?;
            match end {
                End::Home => browse.replay(record).await?,
                End::To(queue) => browse.replay_to(record, &queue).await?,
                End::Gone => browse.drop(record).await?,
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
