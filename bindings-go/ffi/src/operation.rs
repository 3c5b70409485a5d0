//! What takes time: begun by a call, finished in the core's own runtime, told by its ticket.

use std::{
    future::Future,
    sync::{Arc, Mutex, PoisonError},
};

use retryrmq_bindings as common;
use tokio::task::AbortHandle;

use crate::{
    byte_buffer::ByteBuffer,
    errors::FfiError,
    notifications,
    object_count::{LiveObject, ObjectKind},
};

/// What an operation can give: plain values, which whoever takes them makes objects of.
#[derive(Debug)]
pub(crate) enum Answer {
    Nothing,
    Client(retryrmq::Client),
    Subscription(Box<retryrmq::Subscription>),
    Walk(Box<retryrmq::Browse>),
    Record(ByteBuffer),
}

type Slot = Arc<Mutex<Option<Result<Answer, FfiError>>>>;

/// Something that was begun. It comes to its end also when it was freed before, unless it is one that is only of use to
/// those who wait for it.
#[derive(Debug, uniffi::Object)]
pub struct Operation {
    answer: Slot,
    /// How to give it up when it is freed.
    abort: Option<AbortHandle>,
    _alive: LiveObject,
}

impl Operation {
    /// Begins what may change something at the broker. It is not given up halfway, between a copy and its original for
    /// example; an answer that nobody waits for is let go.
    pub(crate) fn begin(
        ticket: u64,
        work: impl Future<Output = Result<Answer, FfiError>> + Send + 'static,
    ) -> Result<Arc<Self>, FfiError> {
        Self::run(ticket, work).map(|(answer, _)| Self::new(answer, None))
    }

    /// Begins what leaves nothing behind wherever it is cut short, and is given up when it is freed before its end. The next message of a
    /// walk is not of that kind: copies of others may be on their way.
    pub(crate) fn begin_while_awaited(
        ticket: u64,
        work: impl Future<Output = Result<Answer, FfiError>> + Send + 'static,
    ) -> Result<Arc<Self>, FfiError> {
        Self::run(ticket, work).map(|(answer, abort)| Self::new(answer, abort))
    }

    fn new(answer: Slot, abort: Option<AbortHandle>) -> Arc<Self> {
        Arc::new(Self {
            answer,
            abort,
            _alive: LiveObject::new(ObjectKind::Operation),
        })
    }

    fn run(
        ticket: u64,
        work: impl Future<Output = Result<Answer, FfiError>> + Send + 'static,
    ) -> Result<(Slot, Option<AbortHandle>), FfiError> {
        let answer = Slot::default();
        let slot = Arc::downgrade(&answer);
        let abort = common::begin(work, move |given| {
            if let Some(slot) = slot.upgrade() {
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = given;
            }
            notifications::finished(ticket);
        })?;
        Ok((answer, abort))
    }

    pub(crate) fn take(&self) -> Result<Answer, FfiError> {
        self.answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
            .unwrap_or_else(|| Err(common::BindingError::broken().into()))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if let Some(abort) = &self.abort {
            abort.abort();
        }
    }
}

/// For whoever takes an answer that is another one than was asked for.
pub(crate) fn other() -> FfiError {
    FfiError::new(
        "error",
        "an operation gave an unexpected answer; this is a bug in retryrmq",
    )
}

#[uniffi::export]
impl Operation {
    /// The end of one that gives nothing.
    pub fn nothing(&self) -> Result<(), FfiError> {
        self.take().map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Until the Go half would have heard that these operations have ended, together or one by one.
    fn told(mut tickets: Vec<u64>) {
        while !tickets.is_empty() {
            let finished = notifications::fetch_notifications(60_000).finished;
            tickets.retain(|ticket| !finished.contains(ticket));
        }
    }

    #[test]
    fn one_that_panics_is_answered() {
        let begun = [
            Operation::begin(71, async { panic!("on purpose") }),
            Operation::begin_while_awaited(72, async { panic!("on purpose") }),
        ];
        told(vec![71, 72]);
        for operation in begun {
            let refusal = operation.unwrap().nothing().unwrap_err();
            assert!(refusal.to_string().contains("bug in retryrmq"), "{refusal}");
        }
    }
}
