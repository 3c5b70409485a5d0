//! A message as a Python handler gets it. A value is converted when it is first looked at.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::SystemTime,
};

use pyo3::{
    Bound, Py, PyAny, PyErr, PyResult, Python,
    exceptions::PyUnicodeDecodeError,
    intern, pyclass, pymethods,
    sync::PyOnceLock,
    types::{PyAnyMethods, PyBytes, PyDict, PyDictMethods, PyModule},
};
use retryrmq::{BasicProperties, Token};

use crate::{
    message_source::MessageSource,
    object_count::{LiveObject, ObjectKind},
    values,
};

/// A message.
///
/// If its handler returns, it is acknowledged; if the handler raises, it is retried. The methods `ack`, `retry`, `park` and `defer` are for
/// code that iterates over a consumer. They settle the message at once and never fail; awaiting their result is optional. Only the first
/// one counts.
#[pyclass(frozen, module = "retryrmq", name = "Message")]
pub(crate) struct Message {
    pub(crate) inner: retryrmq::Message,
    pub(crate) token: Token,
    /// Where it is settled; `None` for a message that was parked or is simulated.
    pub(crate) source: Option<Arc<MessageSource>>,
    settled: AtomicBool,
    body: PyOnceLock<Py<PyBytes>>,
    headers: PyOnceLock<Py<PyDict>>,
    _alive: LiveObject,
}

impl Message {
    pub(crate) fn new(
        inner: retryrmq::Message,
        token: Token,
        source: Option<Arc<MessageSource>>,
    ) -> Self {
        Self {
            inner,
            token,
            source,
            settled: AtomicBool::new(false),
            body: PyOnceLock::new(),
            headers: PyOnceLock::new(),
            _alive: LiveObject::new(ObjectKind::Message),
        }
    }

    fn time(py: Python<'_>, at: Option<SystemTime>) -> PyResult<Option<Bound<'_, PyAny>>> {
        retryrmq_bindings::unix_seconds(at)
            .map(|at| values::time(py, at))
            .transpose()
    }
}

/// The properties that are set, by their AMQP names, without the headers.
pub(crate) fn properties_dict<'py>(
    py: Python<'py>,
    properties: &BasicProperties,
) -> PyResult<Bound<'py, PyDict>> {
    let dict = PyDict::new(py);
    for (name, value) in retryrmq_bindings::texts(properties) {
        if let Some(value) = value {
            dict.set_item(name, value.as_str())?;
        }
    }
    if let Some(mode) = properties.delivery_mode() {
        dict.set_item("delivery_mode", *mode)?;
    }
    if let Some(priority) = properties.priority() {
        dict.set_item("priority", *priority)?;
    }
    if let Some(seconds) = properties.timestamp() {
        dict.set_item("timestamp", values::time(py, *seconds)?)?;
    }
    Ok(dict)
}

#[pymethods]
impl Message {
    /// The body, as it was published.
    #[getter]
    fn body<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        self.body
            .get_or_init(py, || PyBytes::new(py, self.inner.body()).unbind())
            .bind(py)
            .clone()
    }

    /// The body as text.
    ///
    /// Raises `UnicodeDecodeError` if it is not UTF-8.
    fn text(&self, py: Python<'_>) -> PyResult<String> {
        let body = self.inner.body();
        match std::str::from_utf8(body) {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => Err(PyErr::from_value(
                PyUnicodeDecodeError::new_utf8(py, body, error)?.into_any(),
            )),
        }
    }

    /// The body, parsed as JSON.
    ///
    /// Raises `json.JSONDecodeError` or `UnicodeDecodeError` (both are `ValueError`s) if it is not JSON.
    fn json<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        LOADS
            .get_or_try_init(py, || {
                PyModule::import(py, "json")?
                    .getattr("loads")
                    .map(Bound::unbind)
            })?
            .bind(py)
            .call1((self.body(py),))
    }

    /// The headers. They include the headers of the broker and the `x-retry-*` headers of this library.
    #[getter]
    fn headers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        Ok(self
            .headers
            .get_or_try_init(py, || {
                let table = match self.inner.headers() {
                    Some(table) => values::table(py, table)?,
                    None => PyDict::new(py),
                };
                Ok::<_, PyErr>(table.unbind())
            })?
            .bind(py)
            .clone())
    }

    /// The properties that are set, by their AMQP names, without the headers.
    #[getter]
    fn properties<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        properties_dict(py, self.inner.properties())
    }

    /// The exchange the message was first published to; empty for the default exchange.
    #[getter]
    fn exchange(&self) -> &str {
        self.inner.exchange()
    }

    /// The routing key the message was first published with.
    #[getter]
    fn routing_key(&self) -> &str {
        self.inner.routing_key()
    }

    /// The id that the publisher gave it; `None` without one.
    #[getter]
    fn message_id(&self) -> Option<&str> {
        self.inner.message_id()
    }

    /// The number of this attempt: 1 on first delivery.
    #[getter]
    fn attempt(&self) -> u32 {
        self.inner.attempt()
    }

    /// How many attempts failed before this one: `attempt - 1`.
    #[getter]
    fn retries(&self) -> u32 {
        self.inner.retries()
    }

    /// When the first attempt failed, in whole seconds, in UTC; `None` if none has failed.
    #[getter]
    fn first_failed_at<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        Self::time(py, self.inner.first_failed_at())
    }

    /// The error of the last failed attempt; `None` if none has failed.
    #[getter]
    fn last_error(&self) -> Option<&str> {
        self.inner.last_error()
    }

    /// How often the message was replayed from the parking queue.
    #[getter]
    fn replays(&self) -> u32 {
        self.inner.replays()
    }

    /// The work queue it came from.
    #[getter]
    fn queue(&self) -> &str {
        self.inner.queue()
    }

    /// Whether the broker has delivered this message before (AMQP `redelivered`).
    #[getter]
    fn redelivered(&self) -> bool {
        self.inner.redelivered()
    }

    /// Damage that was repaired so that the message could be read, such as names that are not UTF-8 or tables nested too deeply; `None` if
    /// there was none. If the handler fails on such a message, it is parked as `undecodable` at once.
    #[getter]
    fn mended(&self) -> Option<&str> {
        self.inner.mended()
    }

    /// The last failures, oldest first, as JSON.
    fn _history(&self) -> String {
        retryrmq_bindings::json_rows::history(&self.inner.history())
    }

    /// The last failures, at most ten, oldest first.
    #[getter]
    fn history<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        PyModule::import(py, "retryrmq._message")?.call_method1(intern!(py, "history"), (slf,))
    }

    /// Acknowledges the message: it was handled.
    fn ack<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        PyModule::import(py, "retryrmq._message")?.call_method1(intern!(py, "ack"), (slf,))
    }

    /// Ends the attempt as failed. The message is retried after `delay`, or after the policy's delay. If no retries are left, it is parked.
    /// Without `dlx` it is rejected without requeue.
    #[pyo3(signature = (error=None, *, delay=None))]
    fn retry<'py>(
        slf: &Bound<'py, Self>,
        error: Option<Bound<'py, PyAny>>,
        delay: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        PyModule::import(py, "retryrmq._message")?
            .call_method1(intern!(py, "retry"), (slf, error, delay))
    }

    /// Parks the message now as `requested`; `reason` goes into its record. Without `dlx` it is rejected without requeue.
    fn park<'py>(slf: &Bound<'py, Self>, reason: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        PyModule::import(py, "retryrmq._message")?.call_method1(intern!(py, "park"), (slf, reason))
    }

    /// Delivers the message again after `delay`; no attempt is used up. After `defer_limit` deferrals it is parked as `exhausted`. Without
    /// `dlx` the consumer holds it for at most a minute, then publishes a copy to the tail of its queue; after `defer_limit` deferrals it
    /// is rejected.
    fn defer<'py>(slf: &Bound<'py, Self>, delay: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        PyModule::import(py, "retryrmq._message")?.call_method1(intern!(py, "defer"), (slf, delay))
    }

    /// Whether a stack trace would be kept if this attempt failed.
    fn _may_park(&self) -> bool {
        self.source
            .as_ref()
            .is_none_or(|source| source.subscription.may_park(&self.inner))
    }

    /// Whether `_settle` has ended the attempt.
    #[getter]
    fn _is_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed)
    }

    /// Ends the attempt. Does nothing for a message that cannot be settled, or was settled before.
    fn _settle(&self, py: Python<'_>, end: crate::options::End) -> PyResult<()> {
        let outcome = end.outcome(py)?;
        self.settled.store(true, Ordering::Relaxed);
        if let Some(source) = &self.source
            && source.subscription.is_here()
        {
            source.subscription.settle([(self.token, outcome)]);
        }
        Ok(())
    }

    fn __len__(&self) -> usize {
        self.inner.body().len()
    }

    fn __bool__(&self) -> bool {
        true // even if the body is empty
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let queue = values::repr(py, self.inner.queue())?;
        let id = match self.inner.message_id() {
            Some(id) => values::repr(py, id)?,
            None => "None".to_owned(),
        };
        let (attempt, bytes) = (self.inner.attempt(), self.inner.body().len());
        Ok(format!(
            "<retryrmq.Message queue={queue} message_id={id} attempt={attempt} bytes={bytes}>"
        ))
    }
}
