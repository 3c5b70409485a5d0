//! A running consumer: batches out, ends of attempts in.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use retryrmq::{Outcome, Token};
use retryrmq_bindings::{BatchGuard, BatchSize};

use crate::{
    byte_buffer::ByteBuffer,
    errors::FfiError,
    message,
    object_count::{LiveObject, ObjectKind},
    operation::{Answer, Operation, other},
    options::End,
};

/// A running consumer.
#[derive(Debug, uniffi::Object)]
pub struct Subscription {
    inner: Arc<retryrmq::Subscription>,
    size: Mutex<BatchSize>,
    _alive: LiveObject,
}

#[uniffi::export]
impl Operation {
    /// The subscription that was made.
    pub fn subscription(&self) -> Result<Arc<Subscription>, FfiError> {
        match self.take()? {
            Answer::Subscription(inner) => Ok(Arc::new(Subscription {
                inner: Arc::new(*inner),
                size: Mutex::default(),
                _alive: LiveObject::new(ObjectKind::Subscription),
            })),
            _ => Err(other()),
        }
    }
}

/// A number and its name.
#[derive(Debug, uniffi::Record)]
pub struct Counter {
    /// The name, the same in every language.
    pub name: String,
    /// The number.
    pub value: u64,
}

impl Subscription {
    fn size(&self) -> MutexGuard<'_, BatchSize> {
        self.size.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tokens(wire: &ByteBuffer) -> impl Iterator<Item = Token> {
    wire.chunks_exact(8).map(|bytes| {
        Token::from_u64(
            bytes
                .iter()
                .rev()
                .fold(0, |token, byte| token << 8 | u64::from(*byte)),
        )
    })
}

#[uniffi::export]
impl Subscription {
    /// Acknowledges the messages `acks`, and takes others, as many as are good at once: few after handlers that were `slow`. `ended` is whether
    /// the handler that is watched has ended, if there is one; if so, that of the first message is watched now. Waits for messages when there
    /// are none, `wait_ms` at most; 0 takes none. The last byte, behind the messages, says whether the handlers of the batch before
    /// are so quick that waking another goroutine would take longer.
    pub fn exchange(&self, acks: ByteBuffer, slow: bool, ended: bool, wait_ms: u32) -> ByteBuffer {
        if !acks.is_empty() {
            self.inner
                .settle(tokens(&acks).map(|token| (token, Outcome::Ack)));
        }
        if wait_ms == 0 {
            return ByteBuffer::default();
        }
        let most = {
            let mut size = self.size();
            if slow {
                size.slow();
            }
            size.next(ended, Instant::now())
        };
        let mut batch = self.inner.try_next_batch(most);
        if batch.is_empty() {
            let wait = Duration::from_millis(u64::from(wait_ms));
            batch = self.inner.next_batch_blocking(most, wait);
        }
        let guard = BatchGuard::new(batch.iter().map(|delivery| delivery.token), |tokens| {
            self.inner.give_back(tokens);
        });
        // One handler gets all messages of a batch.
        let handlers = match self.inner.batch_size() {
            Some(_) => batch.len().min(1),
            None => batch.len(),
        };
        let are_quick = self.size().took(handlers, Instant::now());
        let mut wire = message::batch(&batch, |message| self.inner.may_park(message));
        if !batch.is_empty() {
            wire.0.push(are_quick.into());
        }
        guard.disarm();
        wire
    }

    /// Ends an attempt that was not simply handled.
    pub fn settle(&self, token: u64, end: End) {
        self.inner.settle([(Token::from_u64(token), end.outcome())]);
    }

    /// Gives back messages that no handler has started on.
    pub fn give_back(&self, unstarted: ByteBuffer) {
        self.inner.give_back(tokens(&unstarted));
    }

    /// Asks for the end.
    pub fn close(&self) {
        self.inner.close();
    }

    /// Done when everything is settled.
    pub fn wait_closed(&self, ticket: u64) -> Result<Arc<Operation>, FfiError> {
        let inner = Arc::clone(&self.inner);
        Operation::begin(ticket, async move {
            inner.wait_closed().await?;
            Ok(Answer::Nothing)
        })
    }

    /// The numbers of this queue since the client was made.
    pub fn stats(&self) -> Vec<Counter> {
        self.inner
            .stats()
            .numbers()
            .into_iter()
            .map(|(name, value)| Counter {
                name: name.to_owned(),
                value,
            })
            .collect()
    }
}
