//! A queue without a broker, for tests.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use retryrmq::Token;
use retryrmq_bindings::nanoseconds;

use crate::{
    errors::Refusal,
    live::{Alive, Kind},
    message,
    options::{Ending, Options},
    publish::Outgoing,
    wire::Wire,
};

/// A work queue and its consumer on a clock of their own.
#[derive(Debug, uniffi::Object)]
pub struct Simulation {
    inner: Mutex<retryrmq::Simulation>,
    _alive: Alive,
}

/// What became of a message.
#[derive(Debug, uniffi::Record)]
pub struct Became {
    /// `acked`, `retried`, `deferred`, `parked`, `dropped`, `rejected` or `stale`.
    pub what: String,
    /// How long it waits, in nanoseconds.
    pub delay: Option<u64>,
    /// Why it was given up.
    pub reason: Option<String>,
    /// The parked message.
    pub parked: Option<Wire>,
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
    pub fn new(options: Arc<Options>) -> Result<Arc<Self>, Refusal> {
        Ok(Arc::new(Self {
            inner: Mutex::new(retryrmq::Simulation::new(options.consumer.clone())?),
            _alive: Alive::new(Kind::Simulation),
        }))
    }

    /// Publishes to the queue.
    pub fn publish(&self, outgoing: Outgoing, body: Wire) -> Result<(), Refusal> {
        Ok(self.lock().publish(outgoing.message(body)?)?)
    }

    /// The next message, as a batch of one; nothing at the end. The clock moves on to its arrival.
    pub fn next(&self) -> Wire {
        let mut simulation = self.lock();
        let delivery = simulation.next();
        message::batch(delivery.as_slice(), |message| simulation.may_park(message))
    }

    /// Nanoseconds since the beginning.
    pub fn elapsed(&self) -> u64 {
        nanoseconds(self.lock().elapsed())
    }

    /// Ends an attempt.
    pub fn settle(&self, token: u64, ending: Ending) -> Became {
        let step = self.lock().settle(Token::from_u64(token), ending.outcome());
        let became = retryrmq_bindings::Became::from(step);
        Became {
            what: became.what.to_owned(),
            delay: became.delay.map(nanoseconds),
            reason: became.reason.map(str::to_owned),
            parked: became.parked.as_ref().map(message::alone),
        }
    }
}
