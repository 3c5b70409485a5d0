//! The options of a consumer, and the end of an attempt, from plain Python values.

use std::time::Duration;

use pyo3::{FromPyObject, PyResult, Python, pyclass, pyfunction, pymethods};
use retryrmq::{Consumer, Failure, Limits, Outcome, Pause, Policy, Rule};

use crate::errors::{bad_option, raised};

/// Reads a duration such as `"5m"`; seconds.
#[pyfunction]
pub(crate) fn parse_duration(py: Python<'_>, text: &str) -> PyResult<f64> {
    retryrmq::parse_duration(text)
        .map(|duration| duration.as_secs_f64())
        .map_err(|error| raised(py, &error))
}

/// Reads a policy and writes it in its full form, with the number of its retries and all its delays in seconds.
#[pyfunction]
pub(crate) fn policy(py: Python<'_>, text: &str) -> PyResult<(String, u32, Vec<f64>)> {
    let policy: Policy = text.parse().map_err(|error| raised(py, &error))?;
    let delays = (1..=policy.max_retries().min(1_000))
        .map(|retry| policy.delay(retry, 2).as_secs_f64())
        .collect();
    Ok((policy.to_string(), policy.max_retries(), delays))
}

/// The policy of a consumer that names none.
#[pyfunction]
pub(crate) fn default_policy() -> String {
    Policy::default().to_string()
}

pub(crate) fn seconds(py: Python<'_>, option: &str, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        bad_option(
            py,
            &format!("`{option}` cannot be {seconds} seconds; it must be a duration of at least 0"),
        )
    })
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

impl RuleParts {
    fn rule(self, py: Python<'_>) -> PyResult<Rule> {
        let rule = match self {
            Self::Text(text) => text.parse::<Rule>(),
            Self::Parts((routing_key, headers, error, policy)) => {
                policy.parse::<Policy>().map(|policy| {
                    let mut rule = Rule::new(policy);
                    if let Some(pattern) = routing_key {
                        rule = rule.routing_key(pattern);
                    }
                    for (name, value) in headers {
                        rule = rule.header(name, value);
                    }
                    if let Some(pattern) = error {
                        rule = rule.error(pattern);
                    }
                    rule
                })
            }
        };
        rule.map_err(|error| raised(py, &error))
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
    #[pyo3(signature = (queue, *, dlx=None, retry=None, strategy=None, rules=None, prefetch=None, concurrency=None,
        handler_timeout=None, drain_timeout=None, park=None, pause=None, declare=None, work_queue=None, reserved_name=None,
        crash_limit=None, defer_limit=None))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        queue: &str,
        dlx: Option<bool>,
        retry: Option<&str>,
        strategy: Option<&str>,
        rules: Option<Vec<RuleParts>>,
        prefetch: Option<u16>,
        concurrency: Option<usize>,
        handler_timeout: Option<f64>,
        drain_timeout: Option<f64>,
        park: Option<bool>,
        pause: Option<(f64, usize, f64)>,
        declare: Option<bool>,
        work_queue: Option<&str>,
        reserved_name: Option<bool>,
        crash_limit: Option<u32>,
        defer_limit: Option<u32>,
    ) -> PyResult<Self> {
        let refused = |error: retryrmq::Error| raised(py, &error);
        let mut consumer = Consumer::new(queue);
        let mut has_rules = false;
        if let Some(dlx) = dlx {
            consumer = consumer.dlx(dlx);
        }
        if let Some(policy) = retry {
            consumer = consumer.retry(policy.parse().map_err(refused)?);
        }
        if let Some(strategy) = strategy {
            consumer = consumer.strategy(strategy.parse().map_err(refused)?);
        }
        if let Some(rules) = rules {
            has_rules = !rules.is_empty();
            let rules = rules
                .into_iter()
                .map(|rule| rule.rule(py))
                .collect::<PyResult<Vec<_>>>()?;
            consumer = consumer.rules(rules);
        }
        if let Some(prefetch) = prefetch {
            consumer = consumer.prefetch(prefetch);
        }
        if let Some(concurrency) = concurrency {
            consumer = consumer.concurrency(concurrency);
        }
        if let Some(timeout) = handler_timeout {
            consumer = consumer.handler_timeout(seconds(py, "handler_timeout", timeout)?);
        }
        if let Some(timeout) = drain_timeout {
            consumer = consumer.drain_timeout(seconds(py, "drain_timeout", timeout)?);
        }
        if let Some(park) = park {
            consumer = consumer.park(park);
        }
        if let Some((failures, window, pause)) = pause {
            consumer = consumer.pause(
                Pause::default()
                    .failures(failures)
                    .window(window)
                    .pause(seconds(py, "pause", pause)?),
            );
        }
        if let Some(declare) = declare {
            consumer = consumer.declare(declare);
        }
        if let Some(work_queue) = work_queue {
            consumer = consumer.work_queue(work_queue.parse().map_err(refused)?);
        }
        if let Some(reserved_name) = reserved_name {
            consumer = consumer.reserved_name(reserved_name);
        }
        let mut limits = Limits::default();
        if let Some(crashes) = crash_limit {
            limits.crashes = crashes;
            limits.suspect = limits.suspect.min(crashes);
        }
        if let Some(deferrals) = defer_limit {
            limits.deferrals = deferrals;
        }
        let consumer = consumer.limits(limits);
        consumer.validate().map_err(refused)?;
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
        Ok(match what.as_str() {
            "ack" => Outcome::Ack,
            // Without a delay it would come back at once, again and again.
            "defer" => {
                Outcome::defer(delay.ok_or_else(|| bad_option(py, "`delay` of a Defer is None"))?)
            }
            "park" => Outcome::park(failure),
            "fatal" => Outcome::fatal(failure),
            _ => match delay {
                Some(delay) => Outcome::retry_after(delay, failure),
                None => Outcome::retry(failure),
            },
        })
    }
}
