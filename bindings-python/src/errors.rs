//! Errors of the core as the exceptions of the Python half.

use pyo3::{
    PyErr, PyResult, Python, intern,
    types::{PyAnyMethods, PyModule},
};
use retryrmq_bindings::BindingError;

/// The exception for an error of the core or of the bindings.
pub(crate) fn raised(py: Python<'_>, error: impl Into<BindingError>) -> PyErr {
    let error = error.into();
    let made = || -> PyResult<PyErr> {
        let make = PyModule::import(py, "retryrmq.errors")?.getattr(intern!(py, "_from_code"))?;
        Ok(PyErr::from_value(make.call1((
            error.code,
            error.message,
            error.detail,
        ))?))
    };
    made().unwrap_or_else(|error| error)
}

/// The exception with this code.
pub(crate) fn exception(py: Python<'_>, code: &'static str, message: &str) -> PyErr {
    raised(py, BindingError::new(code, message))
}

/// An option with a value that cannot work.
pub(crate) fn bad_option(py: Python<'_>, message: &str) -> PyErr {
    raised(py, BindingError::option(message))
}
