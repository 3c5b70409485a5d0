//! What a handler may return.

use std::{borrow::Cow, error::Error as StdError};

use super::{Cause, ErrorClassifier};
use crate::retry::Outcome;

/// What a handler may return: `Result<(), E>`, or an [`Outcome`], which can also name error types.
///
/// `E` is an error, a report such as `anyhow::Error` or `eyre::Report`, a `Box<dyn Error>` or text:
///
/// ```no_run
/// # use retryrmq::{Consumer, Message};
/// # async fn examples(orders: Consumer, mails: Consumer) -> retryrmq::Result<()> {
/// orders.start(|_: Message| async { Err(std::io::Error::other("the disk is full")) }).await?;
/// mails.start(|_: Message| async { Err::<(), Box<dyn std::error::Error>>("busy".into()) }).await?;
/// # Ok(())
/// # }
/// ```
///
/// Nothing else counts as handled. A future or a function inside `Ok` would be acknowledged without having run, so it does not compile:
///
/// ```compile_fail
/// # use retryrmq::{Consumer, Message};
/// # async fn example(orders: Consumer) -> retryrmq::Result<()> {
/// async fn inner(_: Message) -> std::io::Result<()> { Ok(()) }
/// orders.start(|message: Message| async { Ok::<_, std::io::Error>(inner(message)) }).await?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail
/// # use retryrmq::{Consumer, Message};
/// # async fn example(orders: Consumer) -> retryrmq::Result<()> {
/// orders.start(|message: Message| async { Ok::<_, std::io::Error>(move || drop(message)) }).await?;
/// # Ok(())
/// # }
/// ```
///
/// ```compile_fail
/// # use retryrmq::{Consumer, Message};
/// # async fn example(orders: Consumer) -> retryrmq::Result<()> {
/// async fn inner(_: Message) -> std::io::Result<()> { Ok(()) }
/// orders.start(|message: Message| async { inner(message) }).await?;
/// # Ok(())
/// # }
/// ```
///
/// The parameter `By` only tells these kinds of answers apart. It is always inferred. A generic function that takes a handler needs it,
/// too:
///
/// ```
/// use retryrmq::{Client, IntoOutcome, Message, RunningConsumer};
///
/// async fn orders<F, R, By: 'static>(rmq: Client, handler: F) -> retryrmq::Result<RunningConsumer>
/// where
///     F: Fn(Message) -> R + Send + Sync + 'static,
///     R: Future<Output: IntoOutcome<By>> + Send + 'static,
/// {
///     rmq.consumer("orders").dlx(true).start(handler).await
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how an attempt ended",
    label = "this handler does not return `Result<(), E>` or `Outcome`",
    note = "`E` is an error, a report such as `anyhow::Error`, a `Box<dyn Error>` or a text",
    note = "what is within `Ok` must be `()`: a future there would never run, so await it first"
)]
pub trait IntoOutcome<By = Itself> {
    /// The outcome of the attempt. `classifier` says what an error means.
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome;
}

/// The answer has a type of its own.
#[derive(Debug)]
pub enum Itself {}

/// The error of the result is a [`StdError`].
#[derive(Debug)]
pub enum ByError {}

/// The error of the result contains one: a report, or a box.
#[derive(Debug)]
pub enum ByReport {}

impl IntoOutcome for Outcome {
    fn into_outcome(self, _: &ErrorClassifier) -> Outcome {
        self
    }
}

impl<E: StdError + 'static> IntoOutcome<ByError> for Result<(), E> {
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome {
        classified_by(self, |error| {
            classifier.typed(error, Some(std::any::type_name::<E>()))
        })
    }
}

impl<E: AsRef<dyn StdError + 'static>> IntoOutcome<ByReport> for Result<(), E> {
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome {
        classified_by(self, |error| classifier.outcome(error.as_ref()))
    }
}

impl IntoOutcome for Result<(), Cause> {
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome {
        classified_by(self, |error| classifier.outcome(&**error))
    }
}

impl IntoOutcome for Result<(), Box<dyn StdError + Send>> {
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome {
        classified_by(self, |error| classifier.outcome(&**error))
    }
}

impl IntoOutcome for Result<(), String> {
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome {
        classified_by(self, |error| classifier.text(error))
    }
}

impl IntoOutcome for Result<(), &str> {
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome {
        classified_by(self, |error| classifier.text(error))
    }
}

impl IntoOutcome for Result<(), Cow<'_, str>> {
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome {
        classified_by(self, |error| classifier.text(error))
    }
}

fn classified_by<E>(answer: Result<(), E>, classifier: impl FnOnce(&E) -> Outcome) -> Outcome {
    match answer {
        Ok(()) => Outcome::Ack,
        Err(error) => classifier(&error),
    }
}
