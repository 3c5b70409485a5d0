//! A queue without a broker, for tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::{IntoPyObjectExt, Py, PyAny, PyRef, PyResult, Python, pyclass, pymethods};

use crate::{
    errors::raised,
    message::Message,
    object_count::{LiveObject, ObjectKind},
    options::{End, Options, seconds},
    publish::Outgoing,
};

/// What happened to a message, the delay in seconds, the reason, the parked message.
type SimulationResult = (
    &'static str,
    Option<f64>,
    Option<&'static str>,
    Option<Py<PyAny>>,
);

/// A simulated work queue and its consumer.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Simulation {
    inner: Mutex<retryrmq::Simulation>,
    _alive: LiveObject,
}

impl Simulation {
    fn lock(&self) -> MutexGuard<'_, retryrmq::Simulation> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Simulation {
    #[new]
    fn new(py: Python<'_>, options: PyRef<'_, Options>) -> PyResult<Self> {
        let inner = retryrmq::Simulation::new(options.consumer.clone())
            .map_err(|error| raised(py, error))?;
        Ok(Self {
            inner: Mutex::new(inner),
            _alive: LiveObject::new(ObjectKind::Simulation),
        })
    }

    /// Publishes to the queue.
    fn publish(&self, py: Python<'_>, message: Outgoing<'_>) -> PyResult<()> {
        let message = message.message(py)?;
        // Raising may run Python code that comes back here, or lets another thread in. The lock is free by then.
        let published = self.lock().publish(message);
        published.map_err(|error| raised(py, error))
    }

    /// The next message. The clock moves on to its arrival.
    fn next(&self) -> Option<Message> {
        let delivery = self.lock().next()?;
        Some(Message::new(delivery.message, delivery.token, None))
    }

    /// Moves the clock forward.
    fn advance(&self, py: Python<'_>, by: f64) -> PyResult<()> {
        let by = seconds(py, "by", by)?;
        self.lock().advance(by);
        Ok(())
    }

    /// Seconds since the beginning.
    #[getter]
    fn elapsed(&self) -> f64 {
        self.lock().elapsed().as_secs_f64()
    }

    /// Ends an attempt. Returns what happened to the message, with the delay in seconds, the reason or the parked message.
    fn settle(
        &self,
        py: Python<'_>,
        message: PyRef<'_, Message>,
        end: End,
    ) -> PyResult<SimulationResult> {
        let outcome = end.outcome(py)?;
        let step = self.lock().settle(message.token, outcome);
        let became = retryrmq_bindings::SimulationResult::from(step);
        let parked = became.parked.map(|message| {
            let token = retryrmq::Token::from_u64(u64::MAX);
            Message::new(message, token, None).into_py_any(py)
        });
        let delay = became.delay.map(|delay| delay.as_secs_f64());
        Ok((became.what, delay, became.reason, parked.transpose()?))
    }
}
