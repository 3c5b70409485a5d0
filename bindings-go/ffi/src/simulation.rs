//! A queue without a broker, for tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use retryrmq::Token;
use retryrmq_bindings::nanoseconds;

use crate::{
    byte_buffer::ByteBuffer,
    errors::FfiError,
    message,
    object_count::{LiveObject, ObjectKind},
    options::{End, Options},
    publish::Outgoing,
};

/// A work queue and its consumer on a clock of their own.
#[derive(Debug, uniffi::Object)]
pub struct Simulation {
    inner: Mutex<retryrmq::Simulation>,
    _alive: LiveObject,
}

/// What became of a message.
#[derive(Debug, uniffi::Record)]
pub struct SimulationResult {
    /// `acked`, `retried`, `deferred`, `parked`, `dropped`, `rejected` or `stale`.
    pub what: String,
    /// How long it waits, in nanoseconds.
    pub delay: Option<u64>,
    /// Why it was given up.
    pub reason: Option<String>,
    /// The parked message.
    pub parked: Option<ByteBuffer>,
}

impl Simulation {
    fn lock(&self) -> MutexGuard<'_, retryrmq::Simulation> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[uniffi::export]
impl Simulation {
    /// An empty queue.
    #[uniffi::constructor]
    pub fn new(options: Arc<Options>) -> Result<Arc<Self>, FfiError> {
        Ok(Arc::new(Self {
            inner: Mutex::new(retryrmq::Simulation::new(options.consumer.clone())?),
            _alive: LiveObject::new(ObjectKind::Simulation),
        }))
    }

    /// Publishes to the queue.
    pub fn publish(&self, outgoing: Outgoing, body: ByteBuffer) -> Result<(), FfiError> {
        Ok(self.lock().publish(outgoing.message(body)?)?)
    }

    /// The next message, as a batch of one; nothing at the end. The clock moves on to its arrival.
    pub fn next(&self) -> ByteBuffer {
        let mut simulation = self.lock();
        let delivery = simulation.next();
        message::batch(delivery.as_slice(), |message| simulation.may_park(message))
    }

    /// Nanoseconds since the beginning.
    pub fn elapsed(&self) -> u64 {
        nanoseconds(self.lock().elapsed())
    }

    /// Ends an attempt.
    pub fn settle(&self, token: u64, end: End) -> SimulationResult {
        let step = self.lock().settle(Token::from_u64(token), end.outcome());
        let became = retryrmq_bindings::SimulationResult::from(step);
        SimulationResult {
            what: became.what.to_owned(),
            delay: became.delay.map(nanoseconds),
            reason: became.reason.map(str::to_owned),
            parked: became.parked.as_ref().map(message::alone),
        }
    }
}
