//! Dead letters of other libraries as they were caught, published as the libraries do.

use retryrmq::types::{AMQPValue, FieldArray, FieldTable};
use retryrmq_harness::lapin::BasicProperties;
use serde_json::Value;

use crate::fixture::Fixture;

/// One of `operator/tests/fixtures`.
pub(crate) struct DeadLetterFixture(pub(crate) Value);

impl DeadLetterFixture {
    pub(crate) fn named(name: &str) -> Self {
        let path = format!(
            "{}/../operator/tests/fixtures/{name}.json",
            env!("CARGO_MANIFEST_DIR")
        );
        Self(serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
    }

    pub(crate) fn body(&self) -> &str {
        self.0["body"].as_str().unwrap()
    }

    /// With all headers that no broker writes.
    pub(crate) fn properties(&self) -> BasicProperties {
        let AMQPValue::FieldTable(mut headers) = field(&self.0["headers"]) else {
            panic!("headers are a table");
        };
        let by_broker = |name: &str| name.contains("-death");
        headers = headers
            .inner()
            .iter()
            .filter(|(name, _)| !by_broker(name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect::<std::collections::BTreeMap<_, _>>()
            .into();
        let mut properties = BasicProperties::default().with_headers(headers);
        let text = |name: &str| self.0["properties"][name].as_str();
        if let Some(id) = text("message_id") {
            properties = properties.with_message_id(id.into());
        }
        if let Some(kind) = text("content_type") {
            properties = properties.with_content_type(kind.into());
        }
        if let Some(id) = text("correlation_id") {
            properties = properties.with_correlation_id(id.into());
        }
        if let Some(kind) = text("type") {
            properties = properties.with_type(kind.into());
        }
        properties
    }

    /// Puts it into this queue, as the library does.
    pub(crate) async fn arrives(&self, fixture: &Fixture, queue: &str) {
        fixture
            .amqp
            .publish_with(queue, self.body(), self.properties())
            .await;
    }
}

fn field(json: &Value) -> AMQPValue {
    match json {
        Value::Null => AMQPValue::Void,
        Value::Bool(flag) => AMQPValue::Boolean(*flag),
        Value::Number(number) => AMQPValue::LongLongInt(number.as_i64().unwrap()),
        Value::String(text) => AMQPValue::LongString(text.as_str().into()),
        Value::Array(items) => AMQPValue::FieldArray(FieldArray::from(
            items.iter().map(field).collect::<Vec<_>>(),
        )),
        Value::Object(table) => match table.get("$time") {
            Some(seconds) => AMQPValue::Timestamp(seconds.as_u64().unwrap()),
            None => {
                let mut fields = FieldTable::default();
                for (name, value) in table {
                    fields.insert(name.as_str().into(), field(value));
                }
                AMQPValue::FieldTable(fields)
            }
        },
    }
}
