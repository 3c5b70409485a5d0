//! Parked messages.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use retryrmq::Record;
use retryrmq_bindings::{json_rows, message_codec};

use crate::{
    byte_buffer::ByteBuffer,
    errors::FfiError,
    message,
    object_count::{LiveObject, ObjectKind},
    operation::{Answer, Operation, other},
};

/// One walk through the messages parked for a queue.
#[derive(Debug, uniffi::Object)]
pub struct Walk {
    inner: retryrmq_bindings::Walk,
    shown: Arc<Mutex<ShownRecords>>,
    _alive: LiveObject,
}

/// What was shown, is neither replayed nor dropped, and can still be asked for, by its number.
#[derive(Debug, Default)]
struct ShownRecords {
    records: HashMap<u64, ShownRecord>,
    last: u64,
}

/// A record that was shown.
#[derive(Debug)]
struct ShownRecord {
    /// None while it is being replayed or dropped.
    record: Option<Record>,
    _alive: LiveObject,
}

fn lock(shown: &Mutex<ShownRecords>) -> MutexGuard<'_, ShownRecords> {
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of a walk beside its messages.
#[derive(Debug, uniffi::Record)]
pub struct WalkStatus {
    /// How many messages were there when it began and have not been seen yet.
    pub remaining: u32,
    /// How many others took messages when it began.
    pub others: u32,
    /// How many messages others took before they came.
    pub missed: u32,
    /// What is wrong with the parking queue.
    pub warning: Option<String>,
}

#[uniffi::export]
impl Operation {
    /// The walk that was begun.
    pub fn walk(&self) -> Result<Arc<Walk>, FfiError> {
        match self.take()? {
            Answer::Walk(browse) => Ok(Arc::new(Walk {
                inner: retryrmq_bindings::Walk::new(*browse),
                shown: Arc::default(),
                _alive: LiveObject::new(ObjectKind::Walk),
            })),
            _ => Err(other()),
        }
    }

    /// The next record of a walk; empty at the end.
    pub fn record(&self) -> Result<ByteBuffer, FfiError> {
        match self.take()? {
            Answer::Record(record) => Ok(record),
            _ => Err(other()),
        }
    }
}

/// A parked message, what is known of it as a row, and the number to ask for it.
#[derive(Debug, uniffi::Record)]
struct RecordView {
    number: u64,
    row: String,
    message: ByteBuffer,
}

fn record_view(number: u64, record: &Record) -> ByteBuffer {
    let view = RecordView {
        number,
        row: json_rows::record(record),
        message: message::alone(&record.message()),
    };
    let mut out = Vec::new();
    <RecordView as uniffi::Lower<crate::UniFfiTag>>::write(view, &mut out);
    ByteBuffer(out)
}

#[uniffi::export]
impl Walk {
    /// The next parked message; nothing at the end.
    pub fn next(&self, ticket: u64) -> Result<Arc<Operation>, FfiError> {
        let (next, shown) = (self.inner.next(), Arc::clone(&self.shown));
        // Not given up halfway: fresh copies may be on their way. The end of the walk ends it soon.
        Operation::begin(ticket, async move {
            let Some(record) = next.await? else {
                return Ok(Answer::Record(ByteBuffer::default()));
            };
            let mut shown = lock(&shown);
            shown.last += 1;
            let number = shown.last;
            let wire = record_view(number, &record);
            let shown_record = ShownRecord {
                record: Some(record),
                _alive: LiveObject::new(ObjectKind::Record),
            };
            shown.records.insert(number, shown_record);
            Ok(Answer::Record(wire))
        })
    }

    /// What is known of it beside its messages.
    pub fn status(&self) -> WalkStatus {
        WalkStatus {
            remaining: self.inner.remaining(),
            others: self.inner.others(),
            missed: self.inner.missed(),
            warning: self.inner.warning().map(str::to_owned),
        }
    }

    /// Sends a message back to the tail of the queue that it belongs to.
    pub fn replay(&self, number: u64, ticket: u64) -> Result<Arc<Operation>, FfiError> {
        self.settle(number, ticket, |walk, record| {
            let home = record.home.clone();
            walk.replay_to(record, home)
        })
    }

    /// Sends a message to the tail of this queue.
    pub fn replay_to(
        &self,
        number: u64,
        queue: String,
        ticket: u64,
    ) -> Result<Arc<Operation>, FfiError> {
        self.settle(number, ticket, |walk, record| walk.replay_to(record, queue))
    }

    /// Drops a message for good.
    pub fn discard(&self, number: u64, ticket: u64) -> Result<Arc<Operation>, FfiError> {
        self.settle(number, ticket, |walk, record| walk.drop(record))
    }

    /// Nobody can ask for this message any more. It stays parked.
    pub fn forget(&self, number: u64) {
        lock(&self.shown).records.remove(&number);
    }

    /// Ends the walk.
    pub fn close(&self, ticket: u64) -> Result<Arc<Operation>, FfiError> {
        let closing = self.inner.close();
        Operation::begin(ticket, async move {
            closing.await?;
            Ok(Answer::Nothing)
        })
    }
}

impl Walk {
    fn settle<F>(
        &self,
        number: u64,
        ticket: u64,
        how: impl FnOnce(&retryrmq_bindings::Walk, Record) -> F,
    ) -> Result<Arc<Operation>, FfiError>
    where
        F: Future<Output = Result<(), retryrmq_bindings::BindingError>> + Send + 'static,
    {
        // Taken now, because it may be forgotten while others are replayed before it, and so that of two that ask at once only one does
        // it. Put back where that fails.
        let record = lock(&self.shown)
            .records
            .get_mut(&number)
            .and_then(|shown_record| shown_record.record.take())
            .ok_or_else(|| FfiError::option("this message was replayed or dropped already"))?;
        let settling = how(&self.inner, record.clone());
        let shown = Arc::clone(&self.shown);
        Operation::begin(ticket, async move {
            let settled = settling.await;
            let mut shown = lock(&shown);
            if settled.is_ok() {
                shown.records.remove(&number);
            } else if let Some(shown_record) = shown.records.get_mut(&number) {
                // Unless it was forgotten meanwhile.
                shown_record.record = Some(record);
            }
            drop(shown);
            settled?;
            Ok(Answer::Nothing)
        })
    }
}

/// The last failures that these headers tell of, oldest first, as an array of rows.
#[uniffi::export]
pub fn history(headers: ByteBuffer) -> Result<String, FfiError> {
    Ok(json_rows::history(&message_codec::history(&headers)?))
}
