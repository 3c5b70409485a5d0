//! How many native objects are alive, for tests of leaks.

use std::ops::Deref;

use pyo3::{
    Bound, PyResult, Python, pyfunction,
    types::{PyDict, PyDictMethods},
};
pub(crate) use retryrmq_bindings::{LiveObject, ObjectKind};

use crate::errors::exception;

/// The number of live native objects of this process, by kind.
#[pyfunction]
pub(crate) fn live_objects(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let counts = PyDict::new(py);
    for (name, count) in retryrmq_bindings::live_objects() {
        counts.set_item(name, count)?;
    }
    Ok(counts)
}

/// A value that only the process that made it may drop. In a forked child, threads that do not exist there may hold its locks, so there it
/// is leaked.
#[derive(Debug)]
pub(crate) struct ProcessBound<T> {
    pid: u32,
    /// `None` only while it is dropped.
    value: Option<T>,
}

impl<T> ProcessBound<T> {
    pub(crate) fn new(value: T) -> Self {
        Self {
            pid: std::process::id(),
            value: Some(value),
        }
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_here(&self) -> bool {
        self.pid == std::process::id()
    }

    /// Raises `ForkedError` with this message in another process.
    pub(crate) fn check(&self, py: Python<'_>, message: &str) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(exception(py, "forked", message))
    }
}

impl<T> Deref for ProcessBound<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken out only by the end")
    }
}

impl<T> Drop for ProcessBound<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}
