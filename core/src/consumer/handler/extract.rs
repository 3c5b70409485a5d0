//! Handlers whose arguments are read from the message.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use super::{ErrorClassifier, IntoOutcome, Signal};
use crate::{Message, retry::Outcome};

/// What a handler can take as an argument, see [`extract`].
///
/// Implement it for what your handlers need from every message:
///
/// ```
/// use retryrmq::{FromMessage, Message, Signal, park};
///
/// struct Tenant(String);
///
/// impl FromMessage for Tenant {
///     fn from_message(message: &Message) -> Result<Self, Signal> {
///         let tenant = message.routing_key().split('.').next().unwrap_or_default();
///         if tenant.is_empty() {
///             return Err(park("a message without a tenant"));
///         }
///         Ok(Self(tenant.to_owned()))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be read from a message",
    note = "arguments are `Message`, `Json<T>`, or a type that implements `FromMessage`"
)]
pub trait FromMessage: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// What happens to the message instead; the handler does not run.
    fn from_message(message: &Message) -> Result<Self, Signal>;
}

impl FromMessage for Message {
    fn from_message(message: &Message) -> Result<Self, Signal> {
        Ok(message.clone())
    }
}

/// A function whose arguments are read from the message, see [`extract`]. Implemented for functions with up to four arguments.
pub trait ExtractHandler<Arguments> {
    /// What the function returns.
    type Future: Future;

    /// Reads the arguments, and calls the function.
    ///
    /// # Errors
    /// That of the first argument that cannot be read.
    fn call(&self, message: &Message) -> Result<Self::Future, Signal>;
}

macro_rules! functions {
    ($($argument:ident),+) => {
        impl<F, R, $($argument),+> ExtractHandler<($($argument,)+)> for F
        where
            F: Fn($($argument),+) -> R,
            R: Future,
            $($argument: FromMessage),+
        {
            type Future = R;

            fn call(&self, message: &Message) -> Result<R, Signal> {
                Ok(self($($argument::from_message(message)?),+))
            }
        }
    };
}

functions!(A);
functions!(A, B);
functions!(A, B, C);
functions!(A, B, C, D);

/// The answer of a handler whose arguments are read from the message: its own, or the reason why it did not run.
#[derive(Debug)]
pub struct Extracted<A>(Result<A, Signal>);

impl<A: IntoOutcome<By>, By> IntoOutcome<(Extracted<()>, By)> for Extracted<A> {
    fn into_outcome(self, classifier: &ErrorClassifier) -> Outcome {
        match self.0 {
            Ok(answer) => answer.into_outcome(classifier),
            Err(signal) => classifier.outcome(&signal),
        }
    }
}

/// The future of a handler whose arguments are read from the message.
#[derive(Debug)]
pub struct Extracting<R>(Result<Pin<Box<R>>, Option<Signal>>);

impl<R: Future> Future for Extracting<R> {
    type Output = Extracted<R::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Ok(running) => running
                .as_mut()
                .poll(context)
                .map(|answer| Extracted(Ok(answer))),
            Err(refused) => match refused.take() {
                Some(signal) => Poll::Ready(Extracted(Err(signal))),
                None => Poll::Pending, // it was ready before
            },
        }
    }
}

/// Makes a handler of a function whose arguments are read from the message: [`Json`](super::Json) for its body, [`Message`], and what
/// else implements [`FromMessage`]. If one of them cannot be read, the function does not run, and the message is treated as its error says.
///
/// ```no_run
/// # use retryrmq::{Json, Message, extract};
/// #[derive(serde::Deserialize)]
/// struct Order { id: u64 }
///
/// # async fn ship(_: u64, _attempt: u32) -> std::io::Result<()> { Ok(()) }
/// # async fn example(rmq: retryrmq::Client) -> retryrmq::Result<()> {
/// let running = rmq
///     .consumer("orders")
///     .dlx(true)
///     .start(extract(|Json(order): Json<Order>, message: Message| async move {
///         ship(order.id, message.attempt()).await
///     }))
///     .await?;
/// # Ok(())
/// # }
/// ```
pub fn extract<F, Arguments>(
    handler: F,
) -> impl Fn(Message) -> Extracting<F::Future> + Send + Sync + use<F, Arguments>
where
    F: ExtractHandler<Arguments> + Send + Sync,
{
    move |message| {
        let running = handler.call(&message);
        Extracting(running.map(Box::pin).map_err(Some))
    }
}
