//! Parked messages.

use std::{
    sync::{Arc, PoisonError},
    time::SystemTime,
};

use pyo3::{Bound, IntoPyObjectExt, PyAny, PyRef, PyResult, Python, pyclass, pymethods};
use tokio::sync::Mutex;

use crate::{
    live::{Alive, Kind, Own},
    message::Message,
    operation::Operation,
    values,
};

/// One walk through the messages parked for a queue.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Walk {
    browse: Own<Arc<Mutex<Option<retryrmq::Browse>>>>,
    remaining: std::sync::Mutex<u32>,
    _alive: Alive,
}

impl Walk {
    pub(crate) fn new(browse: retryrmq::Browse) -> Self {
        Self {
            remaining: std::sync::Mutex::new(browse.remaining()),
            browse: Own::new(Arc::new(Mutex::new(Some(browse)))),
            _alive: Alive::new(Kind::Walk),
        }
    }

    /// In a forked child nobody would answer, and what the walk holds is its parent's.
    fn here(&self, py: Python<'_>) -> PyResult<Arc<Mutex<Option<retryrmq::Browse>>>> {
        self.browse.check(
            py,
            "this walk through parked messages was begun before the process was forked; connect after the fork, in each process",
        )?;
        Ok(Arc::clone(&self.browse))
    }
}

#[pymethods]
impl Walk {
    /// The next parked message, as a `Record`, or `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Operation> {
        let browse = self.here(py)?;
        if let Ok(mut remaining) = self.remaining.lock() {
            *remaining = remaining.saturating_sub(1);
        }
        Operation::begin(
            py,
            async move {
                match browse.lock().await.as_mut() {
                    Some(browse) => browse.next().await,
                    None => Ok(None),
                }
            },
            |py, record| match record {
                Some(record) => Record {
                    inner: record,
                    _alive: Alive::new(Kind::Record),
                }
                .into_py_any(py),
                None => Ok(py.None()),
            },
        )
    }

    /// Sends a record back to the tail of its work queue.
    fn replay(&self, py: Python<'_>, record: PyRef<'_, Record>) -> PyResult<Operation> {
        let (browse, record) = (self.here(py)?, record.inner.clone());
        Operation::begin(
            py,
            async move {
                match browse.lock().await.as_mut() {
                    Some(browse) => browse.replay(&record).await,
                    None => Ok(()),
                }
            },
            |py, ()| Ok(py.None()),
        )
    }

    /// Drops a record for good.
    fn drop(&self, py: Python<'_>, record: PyRef<'_, Record>) -> PyResult<Operation> {
        let (browse, record) = (self.here(py)?, record.inner.clone());
        Operation::begin(
            py,
            async move {
                match browse.lock().await.as_mut() {
                    Some(browse) => browse.discard(&record).await,
                    None => Ok(()),
                }
            },
            |py, ()| Ok(py.None()),
        )
    }

    /// Ends the walk.
    fn close(&self, py: Python<'_>) -> PyResult<Operation> {
        let browse = self.here(py)?;
        Operation::begin(
            py,
            async move {
                match browse.lock().await.take() {
                    Some(browse) => browse.close().await,
                    None => Ok(()),
                }
            },
            |py, ()| Ok(py.None()),
        )
    }

    /// How many messages were there when the walk began and have not been seen yet.
    #[getter]
    fn remaining(&self) -> u32 {
        *self
            .remaining
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The record of a parked message.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Record {
    inner: retryrmq::Record,
    _alive: Alive,
}

#[pymethods]
impl Record {
    #[getter]
    fn message(&self) -> Message {
        Message::new(
            self.inner.message(),
            retryrmq::Token::from_u64(u64::MAX),
            None,
        )
    }

    #[getter]
    fn reason(&self) -> Option<&'static str> {
        self.inner.reason.map(retryrmq::ParkReason::as_str)
    }

    #[getter]
    fn parked_at<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.inner
            .parked_at
            .and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
            .map(|since| values::time(py, since.as_secs()))
            .transpose()
    }

    #[getter]
    fn error(&self) -> &str {
        &self.inner.error
    }

    #[getter]
    fn error_type(&self) -> &str {
        &self.inner.error_type
    }

    #[getter]
    fn stack(&self) -> Option<&str> {
        self.inner.stack.as_deref()
    }

    #[getter]
    fn fingerprint(&self) -> &str {
        &self.inner.fingerprint
    }

    #[getter]
    fn attempts(&self) -> u32 {
        self.inner.attempts
    }

    #[getter]
    fn by_broker(&self) -> bool {
        self.inner.by_broker
    }
}
