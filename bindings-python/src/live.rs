//! How many native objects are alive: what a test of leaks asks.

use std::ops::Deref;

use pyo3::{
    Bound, PyResult, Python, pyfunction,
    types::{PyDict, PyDictMethods},
};
pub(crate) use retryrmq_bindings::{Alive, Kind};

use crate::errors::exception;

/// The living native objects of this process by kind.
#[pyfunction]
pub(crate) fn live(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let counts = PyDict::new(py);
    for (name, count) in retryrmq_bindings::living() {
        counts.set_item(name, count)?;
    }
    Ok(counts)
}

/// Something that only the process that made it may end: in a forked child its locks may be held by threads that do not
/// exist there, so there it is left as it is.
#[derive(Debug)]
pub(crate) struct Own<T> {
    pid: u32,
    /// Always there; taken out only by the end.
    value: Option<T>,
}

impl<T> Own<T> {
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

    /// Raises `ForkedError` with this message where it is not.
    pub(crate) fn check(&self, py: Python<'_>, message: &str) -> PyResult<()> {
        if self.is_here() {
            return Ok(());
        }
        Err(exception(py, "forked", message))
    }
}

impl<T> Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("taken out only by the end")
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if !self.is_here() {
            std::mem::forget(self.value.take());
        }
    }
}
