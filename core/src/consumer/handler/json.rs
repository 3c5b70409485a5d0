//! Bodies in JSON.

use std::{error::Error as StdError, fmt};

use serde_core::de::DeserializeOwned;

use super::{FromMessage, Signal, undecodable};
use crate::Message;

/// The body of a message, read as JSON with serde. An argument of a handler, see [`extract`](super::extract()).
///
/// If the body is not what `T` expects, the handler does not run, and the message is parked at once as `undecodable`: it will not be
/// different at the next attempt. To decide by yourself, take a `Result<Json<T>, InvalidBody>`. An [`InvalidBody`] that the handler returns
/// as its error is retried like any other error.
///
/// ```
/// # use retryrmq::{Consumer, InvalidBody, Json, Publish, Simulation, Step, extract};
/// # #[derive(serde::Deserialize)]
/// # struct Order { id: u64 }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let mut simulation = Simulation::new(Consumer::new("orders").dlx(true))?;
/// simulation.publish(Publish::to_queue("orders", r#"{"id": "seven"}"#))?;
/// let parked = simulation.run(extract(|Json(order): Json<Order>| async move { Ok::<_, &str>(drop(order.id)) })).await;
/// assert!(matches!(&parked[0].step, Step::Parked { .. }));
///
/// simulation.publish(Publish::to_queue("orders", "{}"))?;
/// let retried = simulation
///     .run(extract(|order: Result<Json<Order>, InvalidBody>| async move {
///         let Json(order) = order?;
///         Ok::<_, InvalidBody>(drop(order.id))
///     }))
///     .await;
/// assert!(matches!(&retried[0].step, Step::Retried { .. }));
/// # Ok::<(), retryrmq::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned> FromMessage for Json<T> {
    fn from_message(message: &Message) -> Result<Self, Signal> {
        read(message).map_err(undecodable)
    }
}

impl<T: DeserializeOwned> FromMessage for Result<Json<T>, InvalidBody> {
    fn from_message(message: &Message) -> Result<Self, Signal> {
        Ok(read(message))
    }
}

fn read<T: DeserializeOwned>(message: &Message) -> Result<Json<T>, InvalidBody> {
    serde_json::from_slice(message.body())
        .map(Json)
        .map_err(|why| InvalidBody(without_the_value(&why.to_string())))
}

/// A body that is not the JSON that a handler expects. Its text is that of serde, without the value that was found: logs and records of
/// parked messages should not repeat what a message contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidBody(String);

impl fmt::Display for InvalidBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for InvalidBody {}

/// `invalid type: string "Ada", expected u64 at line 1 column 12` without `"Ada"`.
fn without_the_value(text: &str) -> String {
    let expected = text
        .rfind(", expected ")
        .or_else(|| text.rfind(", there are no "));
    let found = ["invalid type: ", "invalid value: ", "unknown variant "]
        .iter()
        .find_map(|start| text.starts_with(start).then_some(start.len()));
    let (Some(from), Some(to)) = (found, expected) else {
        return text.to_owned();
    };
    // What it is: words up to the value itself, which is quoted.
    let kind = text[from..to].split(['"', '`']).next().unwrap_or_default();
    format!("{}{}{}", &text[..from], kind.trim_end(), &text[to..]).replace(" ,", ",")
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::{
        Consumer, Publish, Simulation, Step,
        consumer::handler::extract,
        retry::{ParkReason, headers},
    };

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Order {
        id: u64,
        #[serde(default)]
        size: Option<Size>,
    }

    #[derive(Debug, Deserialize)]
    enum Size {
        Small,
    }

    #[test]
    fn the_error_names_what_is_wrong_and_not_what_was_there() {
        for (body, said) in [
            (
                r#"{"id": "s3cr3t\", expected x"}"#,
                "invalid type: string, expected u64 at line 1",
            ),
            (r#"{"id": -73571}"#, "invalid value: integer, expected u64"),
            (
                r#"{"id": 1.73571}"#,
                "invalid type: floating point, expected u64",
            ),
            (
                r#"{"id": 7, "size": "s3cr3t"}"#,
                "unknown variant, expected `Small`",
            ),
            ("{}", "missing field `id`"),
            (r#"{"id": 7, "idd": 8}"#, "unknown field `idd`, expected"),
            ("not json", "expected ident at line 1 column 2"),
            ("\u{feff}{}", "expected value at line 1 column 1"),
        ] {
            let error = serde_json::from_str::<Order>(body).unwrap_err().to_string();
            let text = without_the_value(&error);
            assert!(text.contains(said), "{text}");
            assert!(
                !text.contains("s3cr3t") && !text.contains("73571"),
                "{text}"
            );
        }
    }

    #[tokio::test]
    async fn an_argument_that_cannot_be_read_decides_and_the_handler_does_not_run() {
        let consumer = Consumer::new("orders").dlx(true);
        let mut simulation = Simulation::new(consumer).unwrap();
        for body in [r#"{"id": 7, "size": "Small"}"#, "{}"] {
            let order = Publish::to_queue("orders", body);
            simulation.publish(order).unwrap();
        }
        let handler = extract(|message: Message, Json(order): Json<Order>| async move {
            assert_eq!((order.id, order.size.is_some()), (7, true));
            assert_eq!(message.attempt(), 1);
            Ok::<(), std::io::Error>(())
        });
        let trials = simulation.run(handler).await;
        assert_eq!(trials.len(), 2);
        assert!(
            matches!(trials[0].step, Step::Acked),
            "{:?}",
            trials[0].step
        );
        let Step::Parked {
            reason, message, ..
        } = &trials[1].step
        else {
            panic!("{:?}", trials[1].step)
        };
        assert_eq!(*reason, ParkReason::Undecodable);
        let error_type = headers::string(message.headers().unwrap(), "x-retry-error-type");
        assert_eq!(error_type.as_deref(), Some("InvalidBody"));
    }
}
