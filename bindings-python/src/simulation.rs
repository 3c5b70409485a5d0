//! A queue without a broker, for tests.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::{IntoPyObjectExt, Py, PyAny, PyRef, PyResult, Python, pyclass, pymethods};
use retryrmq::Step;

use crate::{
    errors::raised,
    live::{Alive, Kind},
    message::Message,
    options::{End, Options, seconds},
    publish::Outgoing,
};

/// What became of a message, the delay in seconds, the reason, the parked message.
type Became = (
    &'static str,
    Option<f64>,
    Option<&'static str>,
    Option<Py<PyAny>>,
);

/// A work queue and its consumer on a clock of their own.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Simulation {
    inner: Mutex<retryrmq::Simulation>,
    _alive: Alive,
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
            .map_err(|error| raised(py, &error))?;
        Ok(Self {
            inner: Mutex::new(inner),
            _alive: Alive::new(Kind::Simulation),
        })
    }

    /// Publishes to the queue.
    fn publish(&self, py: Python<'_>, message: Outgoing<'_>) -> PyResult<()> {
        let message = message.message(py)?;
        // Raising runs Python code, which may come back here, or let another thread in: the lock is free by then.
        let published = self.lock().publish(message);
        published.map_err(|error| raised(py, &error))
    }

    /// The next message; the clock moves on to its arrival.
    fn next(&self) -> Option<Message> {
        let delivery = self.lock().next()?;
        Some(Message::new(delivery.message, delivery.token, None))
    }

    /// Lets time pass.
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

    /// Ends an attempt: what became of the message, with the delay in seconds, the reason or the parked message.
    fn settle(&self, py: Python<'_>, message: PyRef<'_, Message>, end: End) -> PyResult<Became> {
        let outcome = end.outcome(py)?;
        let step = self.lock().settle(message.token, outcome);
        Ok(match step {
            Some(Step::Acked) => ("acked", None, None, None),
            Some(Step::Retried { delay, .. }) => ("retried", Some(delay.as_secs_f64()), None, None),
            Some(Step::Deferred { delay, .. }) => {
                ("deferred", Some(delay.as_secs_f64()), None, None)
            }
            Some(Step::Rejected) => ("rejected", None, None, None),
            Some(Step::Dropped { reason, .. }) => ("dropped", None, Some(reason.as_str()), None),
            Some(Step::Parked {
                reason, message, ..
            }) => {
                let token = retryrmq::Token::from_u64(u64::MAX);
                let parked = Message::new(message, token, None).into_py_any(py)?;
                ("parked", None, Some(reason.as_str()), Some(parked))
            }
            Some(_) | None => ("stale", None, None, None),
        })
    }
}
