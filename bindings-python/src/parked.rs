//! Parked messages.

use pyo3::{IntoPyObjectExt, PyRef, PyResult, Python, pyclass, pymethods};
use retryrmq_bindings::json_rows;

use crate::{
    message::Message,
    object_count::{LiveObject, ObjectKind, ProcessBound},
    operation::Operation,
};

/// One walk through the messages parked for a queue.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Walk {
    inner: ProcessBound<retryrmq_bindings::Walk>,
    _alive: LiveObject,
}

impl Walk {
    pub(crate) fn new(browse: retryrmq::Browse) -> Self {
        Self {
            inner: ProcessBound::new(retryrmq_bindings::Walk::new(browse)),
            _alive: LiveObject::new(ObjectKind::Walk),
        }
    }

    /// Raises in a forked child: nothing would answer there, and the messages belong to the parent's walk.
    fn here(&self, py: Python<'_>) -> PyResult<&retryrmq_bindings::Walk> {
        self.inner.check(
            py,
            "this walk through parked messages was begun before the process was forked; connect after the fork, in each process",
        )?;
        Ok(&self.inner)
    }
}

#[pymethods]
impl Walk {
    /// The next parked message as a `Record`; `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Operation> {
        Operation::begin(py, self.here(py)?.next(), |py, record| match record {
            Some(record) => Record {
                inner: record,
                _alive: LiveObject::new(ObjectKind::Record),
            }
            .into_py_any(py),
            None => Ok(py.None()),
        })
    }

    /// Replays a record to the tail of its own queue.
    fn replay(&self, py: Python<'_>, record: PyRef<'_, Record>) -> PyResult<Operation> {
        let home = record.inner.home.clone();
        self.replay_to(py, record, home)
    }

    /// Replays a record to the tail of this queue.
    fn replay_to(
        &self,
        py: Python<'_>,
        record: PyRef<'_, Record>,
        queue: String,
    ) -> PyResult<Operation> {
        let replaying = self.here(py)?.replay_to(record.inner.clone(), queue);
        Operation::begin(py, replaying, |py, ()| Ok(py.None()))
    }

    /// Drops a record for good.
    fn drop(&self, py: Python<'_>, record: PyRef<'_, Record>) -> PyResult<Operation> {
        let dropping = self.here(py)?.drop(record.inner.clone());
        Operation::begin(py, dropping, |py, ()| Ok(py.None()))
    }

    /// Ends the walk.
    fn close(&self, py: Python<'_>) -> PyResult<Operation> {
        Operation::begin(py, self.here(py)?.close(), |py, ()| Ok(py.None()))
    }

    /// How many messages were ready when the walk began and were not shown yet.
    #[getter]
    fn remaining(&self) -> u32 {
        self.inner.remaining()
    }

    /// How many other consumers the parking queue had when the walk began.
    #[getter]
    fn others(&self) -> u32 {
        self.inner.others()
    }

    /// How many messages others took before this walk came to them.
    #[getter]
    fn missed(&self) -> u32 {
        self.inner.missed()
    }

    /// What is wrong with the parking queue.
    #[getter]
    fn warning(&self) -> Option<&str> {
        self.inner.warning()
    }
}

/// The record of a parked message.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Record {
    inner: retryrmq::Record,
    _alive: LiveObject,
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

    /// What is known of it, as JSON.
    #[getter]
    fn row(&self) -> String {
        json_rows::record(&self.inner)
    }
}
