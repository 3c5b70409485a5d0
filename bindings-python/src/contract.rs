//! The wire contract for messages of another client's connection.

use pyo3::{
    Bound, Py, PyAny, PyRef, PyResult, Python, pyclass, pymethods,
    types::{PyAnyMethods, PyBytes, PyDict, PyDictMethods},
};
use retryrmq::{
    Argument, BasicProperties, Item, Missing, Outcome, ParkReason, Token,
    contract::{self, Admitted, Incoming, Settlement},
    types::ShortString,
};
use retryrmq_bindings::{amqp_table, json_rows};

use crate::{
    copy_store::Decision,
    errors::{bad_option, raised},
    message::{Message, properties_dict},
    options::{End, Options},
    values,
};

/// A queue: name, arguments, whether an existing one must have exactly these, whether it is created, and whether a consumer can do without it.
type Queue = (String, Py<PyDict>, bool, bool, bool);

/// How a message is settled: what, the event, the routing key, properties, headers, the headers as AMQP writes them, the delay in seconds,
/// and the decision for a store of copies.
type Settled = (
    &'static str,
    Option<String>,
    String,
    Option<Py<PyDict>>,
    Option<Py<PyDict>>,
    Option<Py<PyBytes>>,
    Option<f64>,
    Option<Decision>,
);

/// What a consumer of one queue would decide. It has no connection.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Contract(contract::Contract);

#[pymethods]
impl Contract {
    #[new]
    fn new(
        py: Python<'_>,
        options: PyRef<'_, Options>,
        queue_type: Option<&str>,
        app_version: &str,
        frame_max: u32,
        classic: bool,
    ) -> PyResult<Self> {
        let made = contract::Contract::new(options.consumer.clone());
        let mut contract = made.map_err(|error| raised(py, error))?;
        if let Some(queue_type) = queue_type {
            let kind = queue_type.parse().map_err(|error| raised(py, error))?;
            contract = contract.queue_type(kind);
        }
        let contract = contract.app_version(app_version).classic(classic);
        Ok(Self(contract.frame_max(frame_max)))
    }

    /// The queues that must exist, in the order of creation.
    fn topology(&self, py: Python<'_>) -> PyResult<Vec<Queue>> {
        let plan = self.0.topology();
        let queues = plan.items.iter().filter_map(|item| queue(py, item));
        queues.collect()
    }

    /// How a waiting or parking queue is declared; `None` for other names.
    fn declaration(&self, py: Python<'_>, name: &str) -> PyResult<Option<Queue>> {
        let item = self.0.declaration(name);
        item.and_then(|item| queue(py, &item)).transpose()
    }

    /// Reads a delivery.
    fn read(
        &self,
        py: Python<'_>,
        body: Vec<u8>,
        route: (String, String),
        redelivered: bool,
        headers: Option<Bound<'_, PyAny>>,
        properties: &Bound<'_, PyDict>,
    ) -> PyResult<Message> {
        let mut given = read_properties(properties)?;
        if let Some(headers) = headers {
            given = given.with_headers(values::field_table(&headers, "headers")?);
        }
        let incoming = Incoming::new(body)
            .properties(given)
            .route(route.0, route.1)
            .redelivered(redelivered);
        let message = self.0.read(incoming).map_err(|error| raised(py, error))?;
        Ok(Message::new(message, Token::from_u64(u64::MAX), None))
    }

    /// What to do before the handler: `run`, `alone`, or how the message is settled without it.
    fn admit(
        &self,
        py: Python<'_>,
        message: PyRef<'_, Message>,
    ) -> PyResult<(&'static str, Option<Settled>)> {
        Ok(match self.0.admit(&message.inner) {
            Admitted::Settle(settlement) => {
                ("settle", Some(settled(py, &message.inner, settlement)?))
            }
            Admitted::RunAlone => ("alone", None),
            _ => ("run", None),
        })
    }

    /// What follows the end of an attempt.
    fn after(&self, py: Python<'_>, message: PyRef<'_, Message>, end: End) -> PyResult<Settled> {
        let outcome = end.outcome(py)?;
        settled(py, &message.inner, self.0.after(&message.inner, &outcome))
    }

    /// A short wait for a message that did not run.
    fn detour(&self, py: Python<'_>, message: PyRef<'_, Message>) -> PyResult<Settled> {
        settled(py, &message.inner, self.0.detour(&message.inner))
    }

    /// Parks a message for this reason, a word of `x-retry-parked-reason`, with the failure of `end`.
    fn park(
        &self,
        py: Python<'_>,
        message: PyRef<'_, Message>,
        reason: &str,
        end: End,
    ) -> PyResult<Settled> {
        let unknown = || bad_option(py, &format!("unknown reason `{reason}`"));
        let outcome = Outcome::Park {
            reason: ParkReason::parse(reason).ok_or_else(unknown)?,
            failure: end.failure(),
        };
        settled(py, &message.inner, self.0.after(&message.inner, &outcome))
    }

    /// Whether the next failure may park the message.
    fn may_park(&self, message: PyRef<'_, Message>) -> bool {
        self.0.may_park(&message.inner)
    }

    /// Whether a copy must not wait until its queue is old enough.
    fn is_urgent(&self, message: PyRef<'_, Message>) -> bool {
        self.0.is_urgent(&message.inner)
    }
}

/// A queue of a plan; `None` for anything else.
fn queue(py: Python<'_>, item: &Item) -> Option<PyResult<Queue>> {
    let Item::Queue {
        name,
        arguments,
        any_arguments,
        missing,
        ..
    } = item
    else {
        return None;
    };
    let dict = PyDict::new(py);
    for (argument, value) in arguments {
        let put = match value {
            Argument::Text(text) => dict.set_item(argument.as_ref(), text),
            Argument::Number(number) => dict.set_item(argument.as_ref(), number),
            Argument::Flag(flag) => dict.set_item(argument.as_ref(), flag),
            _ => Ok(()),
        };
        if let Err(error) = put {
            return Some(Err(error));
        }
    }
    let is_created = !matches!(missing, Missing::Refused | Missing::Gone);
    let is_optional = *missing == Missing::DoneWithout;
    let (name, dict) = (name.clone(), dict.unbind());
    Some(Ok((name, dict, !any_arguments, is_created, is_optional)))
}

fn settled(
    py: Python<'_>,
    message: &retryrmq::Message,
    settlement: Settlement,
) -> PyResult<Settled> {
    let (event, copy) = match settlement {
        Settlement::Drop(event) => {
            let row = Some(json_rows::event(&event));
            return Ok(("drop", row, String::new(), None, None, None, None, None));
        }
        Settlement::Copy(copy) => (json_rows::event(&copy.event), copy),
        _ => return Ok(("ack", None, String::new(), None, None, None, None, None)),
    };
    let empty = retryrmq::types::FieldTable::default();
    let table = copy.properties.headers().as_ref().unwrap_or(&empty);
    let mut written = Vec::new();
    amqp_table::write_table(&mut written, table);
    Ok((
        "copy",
        Some(event),
        copy.queue.clone(),
        Some(properties_dict(py, &copy.properties)?.unbind()),
        Some(values::table(py, table)?.unbind()),
        Some(PyBytes::new(py, &written).unbind()),
        copy.delay.map(|delay| delay.as_secs_f64()),
        Some(Decision::new(message, *copy)),
    ))
}

/// Properties by their AMQP names, without the headers.
fn read_properties(given: &Bound<'_, PyDict>) -> PyResult<BasicProperties> {
    let mut properties = BasicProperties::default();
    for (name, value) in given.iter() {
        let name: String = name.extract()?;
        let text = |value: &Bound<'_, PyAny>| -> PyResult<ShortString> {
            let text: String = value.extract()?;
            ShortString::try_new(text.as_str())
                .map_err(|_| bad_option(value.py(), &format!("`{name}` is longer than 255 bytes")))
        };
        properties = match name.as_str() {
            "content_type" => properties.with_content_type(text(&value)?),
            "content_encoding" => properties.with_content_encoding(text(&value)?),
            "correlation_id" => properties.with_correlation_id(text(&value)?),
            "reply_to" => properties.with_reply_to(text(&value)?),
            "expiration" => properties.with_expiration(text(&value)?),
            "message_id" => properties.with_message_id(text(&value)?),
            "type" => properties.with_type(text(&value)?),
            "user_id" => properties.with_user_id(text(&value)?),
            "app_id" => properties.with_app_id(text(&value)?),
            "cluster_id" => properties.with_cluster_id(text(&value)?),
            "delivery_mode" => properties.with_delivery_mode(value.extract()?),
            "priority" => properties.with_priority(value.extract()?),
            "timestamp" => properties.with_timestamp(values::seconds(&value, "timestamp")?),
            _ => {
                let known = "content_type, content_encoding, correlation_id, reply_to, expiration, message_id, type, user_id, app_id, \
                             cluster_id, delivery_mode, priority, timestamp";
                let why = format!("there is no property `{name}`; the properties are {known}");
                return Err(bad_option(value.py(), &why));
            }
        };
    }
    Ok(properties)
}
