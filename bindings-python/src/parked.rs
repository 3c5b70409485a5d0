//! Parked messages.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
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
    counts: Arc<Counts>,
    others: u32,
    warning: Option<String>,
    _alive: Alive,
}

/// What is told of a walk while it may be busy.
#[derive(Default)]
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

impl Walk {
    pub(crate) fn new(browse: retryrmq::Browse) -> Self {
        let counts = Counts::default();
        counts.of(&browse);
        Self {
            counts: Arc::new(counts),
            others: browse.others(),
            warning: browse.warning().map(str::to_owned),
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
        let (browse, counts) = (self.here(py)?, Arc::clone(&self.counts));
        Operation::begin(
            py,
            async move {
                match browse.lock().await.as_mut() {
                    Some(browse) => {
                        let next = browse.next().await;
                        counts.of(browse);
                        next
                    }
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

    /// Sends a record back to the tail of the queue that it belongs to.
    fn replay(&self, py: Python<'_>, record: PyRef<'_, Record>) -> PyResult<Operation> {
        let home = record.inner.home.clone();
        self.replay_to(py, record, home)
    }

    /// Sends a record to the tail of this queue.
    fn replay_to(
        &self,
        py: Python<'_>,
        record: PyRef<'_, Record>,
        queue: String,
    ) -> PyResult<Operation> {
        let (browse, record) = (self.here(py)?, record.inner.clone());
        Operation::begin(
            py,
            async move {
                match browse.lock().await.as_mut() {
                    Some(browse) => browse.replay_to(&record, &queue).await,
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
                    Some(browse) => browse.drop(&record).await,
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
        self.counts.remaining.load(Ordering::Relaxed)
    }

    /// How many others took messages out of the parking queue when the walk began.
    #[getter]
    fn others(&self) -> u32 {
        self.others
    }

    /// How many messages others took before they came.
    #[getter]
    fn missed(&self) -> u32 {
        self.counts.missed.load(Ordering::Relaxed)
    }

    /// What is wrong with the parking queue.
    #[getter]
    fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
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

    #[getter]
    fn home(&self) -> &str {
        &self.inner.home
    }

    #[getter]
    fn mark(&self) -> &str {
        &self.inner.mark
    }
}
