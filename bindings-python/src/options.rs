//! The options of a consumer, and the end of an attempt, from plain Python values.

use std::time::Duration;

use pyo3::{FromPyObject, PyResult, Python, pyclass, pyfunction, pymethods};
use retryrmq::{Consumer, Failure, Outcome, Policy};
use retryrmq_bindings::{self as common, EndKind, PolicyText};

use crate::errors::raised;

/// Parses a duration such as `"5m"`; returns seconds.
#[pyfunction]
pub(crate) fn parse_duration(py: Python<'_>, text: &str) -> PyResult<f64> {
    retryrmq::parse_duration(text)
        .map(|duration| duration.as_secs_f64())
        .map_err(|error| raised(py, error))
}

/// A duration in seconds as text, as every language writes it in an error.
#[pyfunction]
pub(crate) fn duration_text(seconds: f64) -> String {
    common::duration_text(seconds * 1000.0)
}

/// Parses a policy. Returns its full form, the number of its retries and all its delays in seconds.
#[pyfunction]
pub(crate) fn policy(py: Python<'_>, text: &str) -> PyResult<(String, u32, Vec<f64>)> {
    let read = PolicyText::read(Some(text)).map_err(|error| raised(py, error))?;
    let delays = read.delays.iter().map(Duration::as_secs_f64).collect();
    Ok((read.text, read.retries, delays))
}

/// The default policy of a consumer.
#[pyfunction]
pub(crate) fn default_policy() -> String {
    Policy::default().to_string()
}

pub(crate) fn seconds(py: Python<'_>, option: &str, seconds: f64) -> PyResult<Duration> {
    common::seconds(option, seconds).map_err(|refusal| raised(py, refusal))
}

/// The options of a consumer, checked.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Options {
    pub(crate) consumer: Consumer,
    has_rules: bool,
}

#[pymethods]
impl Options {
    /// Reads the options from one JSON object.
    #[new]
    fn new(py: Python<'_>, given: &str) -> PyResult<Self> {
        let common::Options {
            consumer,
            has_rules,
        } = common::Options::read(given).map_err(|refused| raised(py, refused))?;
        Ok(Self {
            consumer,
            has_rules,
        })
    }

    /// How many handlers run at a time.
    #[getter]
    fn concurrency(&self) -> usize {
        self.consumer.configured_concurrency()
    }

    /// How many messages may be unacknowledged at a time.
    #[getter]
    fn prefetch(&self) -> u16 {
        self.consumer.configured_prefetch()
    }

    /// How many messages a handler gets at most; `None` for single messages.
    #[getter]
    fn batch(&self) -> Option<usize> {
        self.consumer.batch_size()
    }

    /// How long a handler may take, in seconds.
    #[getter]
    fn handler_timeout(&self) -> Option<f64> {
        self.consumer
            .configured_handler_timeout()
            .map(|limit| limit.as_secs_f64())
    }

    /// How long closing waits for running handlers, in seconds.
    #[getter]
    fn drain_timeout(&self) -> f64 {
        self.consumer.configured_drain_timeout().as_secs_f64()
    }

    /// Whether rules need the base classes of an error.
    #[getter]
    fn has_rules(&self) -> bool {
        self.has_rules
    }
}

/// The end of an attempt: what, error, error type, further types, stack, delay in seconds.
#[derive(FromPyObject)]
pub(crate) struct End(
    String,
    String,
    String,
    Vec<String>,
    Option<String>,
    Option<f64>,
);

impl End {
    pub(crate) fn outcome(self, py: Python<'_>) -> PyResult<Outcome> {
        let delay = self.5.map(|delay| seconds(py, "delay", delay));
        let kind = self.0.bytes().next().and_then(EndKind::from_letter);
        kind.unwrap_or(EndKind::Retry)
            .outcome(self.failure(), delay.transpose()?)
            .map_err(|refusal| raised(py, refusal))
    }

    pub(crate) fn failure(self) -> Failure {
        let Self(_, error, error_type, kinds, stack, _) = self;
        let mut failure = Failure::new(error).of_type(error_type).also(kinds);
        failure.stack = stack;
        failure
    }
}
