//! Messages that another library received from RabbitMQ, and that are retried or parked as a consumer of their queue would.

use pyo3::{IntoPyObjectExt, PyResult, Python, pyclass, pymethods};
use retryrmq::{Error, FailedMessage, Failure, Outcome, ParkReason};

use crate::{
    errors::{bad_option, raised},
    live::Own,
    operation::Operation,
    options::seconds,
    publish::Outgoing,
};

/// Stores copies of messages that failed in one queue.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Retrier {
    inner: Own<retryrmq::Retrier>,
}

impl Retrier {
    pub(crate) fn new(retrier: retryrmq::Retrier) -> Self {
        Self {
            inner: Own::new(retrier),
        }
    }

    fn begin(
        &self,
        py: Python<'_>,
        failed: FailedMessage,
        outcome: Option<Outcome>,
    ) -> PyResult<Operation> {
        self.inner
            .check(py, "connect after the fork, in each process")?;
        let retrier = (*self.inner).clone();
        let work = async move {
            let decision = match outcome {
                Some(outcome) => retrier.decide(&failed, &outcome),
                None => retrier.detour(&failed),
            };
            if let Some(decision) = &decision {
                retrier.store(&failed, decision).await?;
            }
            Ok::<_, Error>(decision.map(|decision| decision.queue))
        };
        let stored = Operation::begin(py, work, |py, queue| queue.into_py_any(py))?;
        Ok(stored.given_up_when_dropped())
    }
}

/// A failure: error, error type, stack.
type Failing = (String, String, Option<String>);

fn failure((error, error_type, stack): Failing) -> Failure {
    let mut failure = Failure::new(error).of_type(error_type);
    failure.stack = stack;
    failure
}

/// Each stores a copy and is done when the copy is safe; the answer is the name of its queue. `exchange` and `routing_key` of the message
/// are those with which it came to the queue. If the operation is dropped before the copy was sent, none is sent.
#[pymethods]
impl Retrier {
    /// The message failed, and comes back after `delay` seconds. Its `x-retry-count` says how often it failed before.
    fn retry(
        &self,
        py: Python<'_>,
        message: Outgoing<'_>,
        delay: f64,
        why: Failing,
    ) -> PyResult<Operation> {
        let delay = seconds(py, "delay", delay)?;
        let outcome = Outcome::retry_after(delay, failure(why));
        self.begin(py, message.failed(py, self.inner.queue())?, Some(outcome))
    }

    /// The message comes back after `delay` seconds, and has not failed.
    fn defer(&self, py: Python<'_>, message: Outgoing<'_>, delay: f64) -> PyResult<Operation> {
        let outcome = Outcome::defer(seconds(py, "delay", delay)?);
        self.begin(py, message.failed(py, self.inner.queue())?, Some(outcome))
    }

    /// The message was not run, and comes back soon. Its `x-retry-crashes` is the count that it keeps.
    fn detour(&self, py: Python<'_>, message: Outgoing<'_>) -> PyResult<Operation> {
        self.begin(py, message.failed(py, self.inner.queue())?, None)
    }

    /// The message is parked for this reason, a word of `x-retry-parked-reason`.
    fn park(
        &self,
        py: Python<'_>,
        message: Outgoing<'_>,
        reason: &str,
        why: Failing,
    ) -> PyResult<Operation> {
        let unknown = || bad_option(py, &format!("unknown reason `{reason}`"));
        let outcome = Outcome::Park {
            reason: ParkReason::parse(reason).ok_or_else(unknown)?,
            failure: failure(why),
        };
        self.begin(py, message.failed(py, self.inner.queue())?, Some(outcome))
    }
}

/// The retrier of a queue. Whoever calls it decides how often a message is retried: no count is too large for its policy.
pub(crate) fn of(py: Python<'_>, client: &retryrmq::Client, queue: String) -> PyResult<Retrier> {
    let endless = "fixed(1s, retries=1000000)".parse();
    let retrier = client
        .retrier(queue)
        .and_then(|retrier| Ok(retrier.retry(endless?)))
        .map_err(|error| raised(py, error))?;
    Ok(Retrier::new(retrier))
}
