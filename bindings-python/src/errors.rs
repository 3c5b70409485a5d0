//! Errors of the core as the exceptions of the Python half.

use std::error::Error as _;

use pyo3::{
    PyErr, PyResult, Python, intern,
    types::{PyAnyMethods, PyModule},
};

/// The exception for an error of the core.
pub(crate) fn raised(py: Python<'_>, error: &retryrmq::Error) -> PyErr {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(cause) = next.filter(|_| causes.len() < 8) {
        causes.push(cause.to_string());
        next = cause.source();
    }
    exception(py, error.code(), &error.to_string(), &causes.join(": "))
}

/// The exception with this code.
pub(crate) fn exception(py: Python<'_>, code: &str, message: &str, detail: &str) -> PyErr {
    let made = || -> PyResult<PyErr> {
        let make = PyModule::import(py, "retryrmq.errors")?.getattr(intern!(py, "_from_code"))?;
        Ok(PyErr::from_value(make.call1((code, message, detail))?))
    };
    made().unwrap_or_else(|error| error)
}

/// An option with a value that cannot work.
pub(crate) fn bad_option(py: Python<'_>, message: &str) -> PyErr {
    exception(py, "invalid_option", message, "")
}
