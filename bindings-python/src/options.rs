//! The options of a consumer, and the end of an attempt, from plain Python values.

use std::time::Duration;

use pyo3::{FromPyObject, PyResult, Python, pyclass, pyfunction, pymethods};
use retryrmq::{Consumer, Failure, Outcome, Policy};
use retryrmq_bindings::{self as common, Ended, Given, PauseGiven, PolicyText, RuleGiven};

use crate::errors::raised;

/// Reads a duration such as `"5m"`; seconds.
#[pyfunction]
pub(crate) fn parse_duration(py: Python<'_>, text: &str) -> PyResult<f64> {
    retryrmq::parse_duration(text)
        .map(|duration| duration.as_secs_f64())
        .map_err(|error| raised(py, error))
}

/// Reads a policy and writes it in its full form, with the number of its retries and all its delays in seconds.
#[pyfunction]
pub(crate) fn policy(py: Python<'_>, text: &str) -> PyResult<(String, u32, Vec<f64>)> {
    let read = PolicyText::read(Some(text)).map_err(|error| raised(py, error))?;
    let delays = read.delays.iter().map(Duration::as_secs_f64).collect();
    Ok((read.text, read.retries, delays))
}

/// The policy of a consumer that names none.
#[pyfunction]
pub(crate) fn default_policy() -> String {
    Policy::default().to_string()
}

pub(crate) fn seconds(py: Python<'_>, option: &str, seconds: f64) -> PyResult<Duration> {
    common::seconds(option, seconds).map_err(|refusal| raised(py, refusal))
}

/// A rule: its text, or routing key, header names and values, error pattern and policy.
#[derive(FromPyObject)]
pub(crate) enum RuleParts {
    Text(String),
    #[allow(clippy::type_complexity)]
    Parts(
        (
            Option<String>,
            Vec<(String, String)>,
            Option<String>,
            String,
        ),
    ),
}

impl From<RuleParts> for RuleGiven {
    fn from(parts: RuleParts) -> Self {
        match parts {
            RuleParts::Text(text) => Self {
                text: Some(text),
                ..Self::default()
            },
            RuleParts::Parts((routing_key, headers, error, policy)) => Self {
                text: None,
                routing_key,
                headers,
                error,
                policy,
            },
        }
    }
}

/// The options of a consumer, checked.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Options {
    pub(crate) consumer: Consumer,
    has_rules: bool,
}

#[pymethods]
impl Options {
    #[new]
    #[pyo3(signature = (queue, *, dlx=None, retry=None, strategy=None, rules=None, prefetch=None, priority=None, concurrency=None,
        handler_timeout=None, drain_timeout=None, park=None, pause=None, declare=None, work_queue=None, reserved_name=None,
        crash_limit=None, defer_limit=None, fatal=false))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        queue: String,
        dlx: Option<bool>,
        retry: Option<String>,
        strategy: Option<String>,
        rules: Option<Vec<RuleParts>>,
        prefetch: Option<u16>,
        priority: Option<i32>,
        concurrency: Option<usize>,
        handler_timeout: Option<f64>,
        drain_timeout: Option<f64>,
        park: Option<bool>,
        pause: Option<(f64, usize, f64)>,
        declare: Option<bool>,
        work_queue: Option<String>,
        reserved_name: Option<bool>,
        crash_limit: Option<u32>,
        defer_limit: Option<u32>,
        fatal: bool,
    ) -> PyResult<Self> {
        let span = |option, value: Option<f64>| {
            let value = value.map(|value| seconds(py, option, value));
            value.transpose()
        };
        let pause = pause.map(|(failures, window, pause)| {
            Ok::<_, pyo3::PyErr>(PauseGiven {
                failures: Some(failures),
                window: Some(window),
                pause: Some(seconds(py, "pause", pause)?),
            })
        });
        let given = Given {
            queue,
            dlx,
            retry,
            strategy,
            rules: rules
                .unwrap_or_default()
                .into_iter()
                .map(Into::into)
                .collect(),
            prefetch,
            priority,
            concurrency,
            handler_timeout: span("handler_timeout", handler_timeout)?,
            drain_timeout: span("drain_timeout", drain_timeout)?,
            park,
            pause: pause.transpose()?,
            declare,
            work_queue,
            reserved_name,
            crash_limit,
            defer_limit,
            fatal,
        };
        let common::Options {
            consumer,
            has_rules,
        } = given.read().map_err(|refused| raised(py, refused))?;
        Ok(Self {
            consumer,
            has_rules,
        })
    }

    /// How many handlers run at a time.
    #[getter]
    fn concurrency(&self) -> usize {
        self.consumer.handlers()
    }

    /// How many messages may be unacknowledged at a time.
    #[getter]
    fn prefetch(&self) -> u16 {
        self.consumer.window()
    }

    /// How long a handler may take, in seconds.
    #[getter]
    fn handler_timeout(&self) -> Option<f64> {
        self.consumer.limit().map(|limit| limit.as_secs_f64())
    }

    /// How long closing waits for running handlers, in seconds.
    #[getter]
    fn drain_timeout(&self) -> f64 {
        self.consumer.last_call().as_secs_f64()
    }

    /// Whether the kinds of an error matter to somebody.
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
        let Self(what, error, error_type, kinds, stack, delay) = self;
        let delay = delay.map(|delay| seconds(py, "delay", delay)).transpose()?;
        let mut failure = Failure::new(error).of_type(error_type).also(kinds);
        failure.stack = stack;
        let ended = what.bytes().next().and_then(Ended::from_letter);
        ended
            .unwrap_or(Ended::Retry)
            .outcome(failure, delay)
            .map_err(|refusal| raised(py, refusal))
    }
}
