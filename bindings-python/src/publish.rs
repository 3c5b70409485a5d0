//! A message to publish, from plain Python values.

use pyo3::{Bound, FromPyObject, PyAny, PyResult, Python};
use retryrmq::Publish;

use crate::{errors::raised, options::seconds, values};

/// What a message may have besides its body.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Outgoing<'py> {
    exchange: String,
    routing_key: String,
    body: Vec<u8>,
    #[pyo3(default)]
    headers: Option<Bound<'py, PyAny>>,
    #[pyo3(default)]
    delay: Option<f64>,
    #[pyo3(default)]
    timeout: Option<f64>,
    mandatory: bool,
    persistent: bool,
    #[pyo3(default)]
    message_id: Option<String>,
    #[pyo3(default)]
    content_type: Option<String>,
    #[pyo3(default)]
    content_encoding: Option<String>,
    #[pyo3(default)]
    correlation_id: Option<String>,
    #[pyo3(default)]
    reply_to: Option<String>,
    #[pyo3(default)]
    expiration: Option<f64>,
    #[pyo3(default)]
    priority: Option<u8>,
    #[pyo3(default)]
    timestamp: Option<Bound<'py, PyAny>>,
    #[pyo3(default, item("type"))]
    kind: Option<String>,
    #[pyo3(default)]
    app_id: Option<String>,
    #[pyo3(default)]
    user_id: Option<String>,
}

const NAMES: [&str; 8] = [
    "message_id",
    "content_type",
    "content_encoding",
    "correlation_id",
    "reply_to",
    "type",
    "app_id",
    "user_id",
];

impl Outgoing<'_> {
    pub(crate) fn message(self, py: Python<'_>) -> PyResult<Publish> {
        self.outgoing(py)?
            .message(NAMES)
            .map_err(|refusal| raised(py, refusal))
    }

    fn outgoing(self, py: Python<'_>) -> PyResult<retryrmq_bindings::Outgoing> {
        let span = |option, value: Option<f64>| {
            let value = value.map(|value| seconds(py, option, value));
            value.transpose()
        };
        let headers = self.headers.as_ref();
        let timestamp = self.timestamp.as_ref();
        Ok(retryrmq_bindings::Outgoing {
            headers: headers
                .map(|headers| values::field_table(headers, "headers"))
                .transpose()?,
            delay: span("delay", self.delay)?,
            timeout: span("timeout", self.timeout)?,
            expiration: span("expiration", self.expiration)?,
            timestamp: timestamp
                .map(|timestamp| values::seconds(timestamp, "timestamp"))
                .transpose()?,
            exchange: self.exchange,
            routing_key: self.routing_key,
            body: self.body,
            mandatory: self.mandatory,
            persistent: self.persistent,
            message_id: self.message_id,
            content_type: self.content_type,
            content_encoding: self.content_encoding,
            correlation_id: self.correlation_id,
            reply_to: self.reply_to,
            kind: self.kind,
            app_id: self.app_id,
            user_id: self.user_id,
            priority: self.priority,
        })
    }
}
