//! A queue without a broker, for tests.

use napi::{
    Env,
    bindgen_prelude::{Either, Null},
};
use napi_derive::napi;

use crate::{
    byte_reader::Reader,
    errors::{Result, thrown},
    message::{Batch, alone, batch},
    object_count::{LiveObject, ObjectKind},
    options::Options,
    outcome, publish,
};

/// A simulated work queue and its consumer.
#[napi]
pub struct Simulation {
    inner: retryrmq::Simulation,
    _alive: LiveObject,
}

/// What happened to a message.
#[napi(object, object_from_js = false)]
pub struct SimulationResult<'env> {
    /// `acked`, `retried`, `deferred`, `parked`, `dropped`, `rejected` or `stale`.
    pub what: &'static str,
    /// How long it waits, in milliseconds.
    pub delay: Option<f64>,
    /// Why it was parked or dropped.
    pub reason: Option<&'static str>,
    /// The parked message.
    pub parked: Option<Batch<'env>>,
}

#[napi]
impl Simulation {
    /// An empty queue and the options of its consumer.
    #[napi(constructor, catch_unwind)]
    pub fn new(options: &Options) -> Result<Self> {
        let inner = retryrmq::Simulation::new(options.consumer.clone());
        Ok(Self {
            inner: inner.map_err(thrown)?,
            _alive: LiveObject::new(ObjectKind::Simulation),
        })
    }

    /// Publishes to the queue.
    #[napi(catch_unwind)]
    pub fn publish(&mut self, message: &[u8]) -> Result<()> {
        let message = publish::read(message)?;
        self.inner.publish(message).map_err(thrown)
    }

    /// The next message. The clock moves on to its arrival. `null` if there is none.
    #[napi(catch_unwind)]
    pub fn next<'env>(&mut self, env: &'env Env) -> Result<Either<Batch<'env>, Null>> {
        match self.inner.next() {
            Some(delivery) => batch(env, &[delivery], |_| true).map(Either::A),
            None => Ok(Either::B(Null)),
        }
    }

    /// Milliseconds since the beginning.
    #[napi(getter, catch_unwind)]
    pub fn elapsed(&self) -> f64 {
        self.inner.elapsed().as_secs_f64() * 1000.0
    }

    /// Ends an attempt.
    #[napi(catch_unwind)]
    pub fn settle<'env>(&mut self, env: &'env Env, end: &[u8]) -> Result<SimulationResult<'env>> {
        let (token, outcome) = outcome::read(&mut Reader::new(end))?;
        let became = retryrmq_bindings::SimulationResult::from(self.inner.settle(token, outcome));
        Ok(SimulationResult {
            what: became.what,
            delay: became.delay.map(|delay| delay.as_secs_f64() * 1000.0),
            reason: became.reason,
            parked: became
                .parked
                .map(|message| alone(env, &message))
                .transpose()?,
        })
    }
}
