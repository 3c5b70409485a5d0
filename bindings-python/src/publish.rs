//! A message on its way out, from plain Python values.

use pyo3::{Bound, FromPyObject, PyAny, PyResult, Python};
use retryrmq::{BasicProperties, Publish, types::ShortString};

use crate::{errors::bad_option, options::seconds, values};

/// What a message may carry beside its body.
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

impl Outgoing<'_> {
    pub(crate) fn message(self, py: Python<'_>) -> PyResult<Publish> {
        let mut properties =
            BasicProperties::default().with_delivery_mode(if self.persistent { 2 } else { 1 });
        macro_rules! texts {
            ($($field:ident => $set:ident),*) => {$(
                if let Some(text) = &self.$field {
                    properties = properties.$set(short(py, stringify!($field), text)?);
                }
            )*};
        }
        texts!(
            message_id => with_message_id, content_type => with_content_type,
            content_encoding => with_content_encoding, correlation_id => with_correlation_id,
            reply_to => with_reply_to, app_id => with_app_id, user_id => with_user_id
        );
        if let Some(kind) = &self.kind {
            properties = properties.with_type(short(py, "type", kind)?);
        }
        if let Some(headers) = &self.headers {
            properties = properties.with_headers(values::field_table(headers, "headers")?);
        }
        if let Some(expiration) = self.expiration {
            let ms = seconds(py, "expiration", expiration)?
                .as_millis()
                .to_string();
            properties = properties.with_expiration(ms.into());
        }
        if let Some(priority) = self.priority {
            properties = properties.with_priority(priority);
        }
        if let Some(timestamp) = &self.timestamp {
            properties = properties.with_timestamp(values::seconds(timestamp, "timestamp")?);
        }
        let mut message = Publish::to_exchange(self.exchange, self.routing_key, self.body)
            .properties(properties)
            .mandatory(self.mandatory);
        if let Some(delay) = self.delay {
            message = message.delay(seconds(py, "delay", delay)?);
        }
        Ok(message)
    }
}

fn short(py: Python<'_>, option: &str, text: &str) -> PyResult<ShortString> {
    ShortString::try_new(text)
        .map_err(|_| bad_option(py, &format!("`{option}` is longer than 255 bytes")))
}
