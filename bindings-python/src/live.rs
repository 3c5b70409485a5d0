//! How many native objects are alive: what a test of leaks asks.

use std::{
    ops::Deref,
    sync::atomic::{AtomicI64, Ordering},
};

use pyo3::{
    Bound, PyResult, Python, pyfunction,
    types::{PyDict, PyDictMethods},
};

use crate::errors::exception;

/// The kinds that are counted.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Client,
    Subscription,
    Message,
    Operation,
    Walk,
    Record,
    Simulation,
    Question,
}

const NAMES: [&str; 8] = [
    "clients",
    "subscriptions",
    "messages",
    "operations",
    "walks",
    "records",
    "simulations",
    "questions",
];
static ALIVE: [AtomicI64; 8] = [const { AtomicI64::new(0) }; 8];

/// One living object; counted for as long as it is.
#[derive(Debug)]
pub(crate) struct Alive(Kind);

impl Alive {
    pub(crate) fn new(kind: Kind) -> Self {
        ALIVE[kind as usize].fetch_add(1, Ordering::Relaxed);
        Self(kind)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        ALIVE[self.0 as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// The living native objects of this process by kind.
#[pyfunction]
pub(crate) fn live(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let counts = PyDict::new(py);
    for (name, count) in NAMES.iter().zip(&ALIVE) {
        counts.set_item(name, count.load(Ordering::Relaxed))?;
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
        Err(exception(py, "forked", message, ""))
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
