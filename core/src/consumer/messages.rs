//! Messages as a stream. The caller answers each of them.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures_util::Stream;

use super::{ErrorClassifier, IntoOutcome, Message, Subscription, Token};
use crate::{
    retry::{Failure, Outcome},
    telemetry::Stats,
};

type Ready = Pin<Box<dyn Future<Output = bool> + Send + Sync>>;

/// What an [`Attempt`] shares with its stream.
struct Answers {
    subscription: Subscription,
    classifier: ErrorClassifier,
    dlx: bool,
}

/// The messages of a queue, one by one. [`Consumer::messages`](crate::Consumer::messages) makes it.
///
/// It is a [`Stream`]; [`next`](Self::next) needs no trait. It ends after [`close`](Self::close), or when its client ends.
///
/// If it is dropped, it takes no more messages. Messages that were not handed out are requeued. Those that were can still be
/// answered within the [`drain_timeout`](crate::Consumer::drain_timeout).
#[must_use = "messages are taken from their queue meanwhile"]
pub struct Messages {
    answers: Arc<Answers>,
    /// Kept between two polls, so that no wake-up is missed.
    ready: Option<Ready>,
}

impl Messages {
    pub(super) fn new(subscription: Subscription, classifier: ErrorClassifier, dlx: bool) -> Self {
        Self {
            answers: Arc::new(Answers {
                subscription,
                classifier,
                dlx,
            }),
            ready: None,
        }
    }

    /// The next message; waits for one. `None` at the end. If the future is dropped while it waits, no message is lost.
    pub async fn next(&mut self) -> Option<Attempt> {
        std::future::poll_fn(|context| Pin::new(&mut *self).poll_next(context)).await
    }

    /// Drains: takes no more messages, requeues those not handed out, and waits for the answers of the others, up to the
    /// [`drain_timeout`](crate::Consumer::drain_timeout). Returns when everything is settled.
    pub async fn close(self) {
        self.answers.subscription.close();
        let _ = self.answers.subscription.wait_closed().await; // there is nothing left to close either way
    }

    /// The counters of this queue since the client was made. All consumers of the queue on that client share them.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.answers.subscription.stats()
    }
}

impl Stream for Messages {
    type Item = Attempt;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Attempt>> {
        loop {
            if let (Some(delivery), _) = self.answers.subscription.take_one() {
                return Poll::Ready(Some(Attempt {
                    answers: Arc::clone(&self.answers),
                    token: Some(delivery.token),
                    message: delivery.message,
                }));
            }
            let answers = Arc::clone(&self.answers);
            let ready = self
                .ready
                .get_or_insert_with(|| Box::pin(async move { answers.subscription.ready().await }));
            match ready.as_mut().poll(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(more) => {
                    self.ready = None;
                    if !more {
                        return Poll::Ready(None);
                    }
                }
            }
        }
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.answers.subscription.close();
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Messages")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// A message from [`Messages`] that waits for its answer.
///
/// If it is dropped without an answer, the attempt ended without a result, through a panic, an early return or a cancelled task. With
/// [`dlx`](crate::Consumer::dlx) it counts as a failed attempt with the error type `Unanswered`. It is retried by the policy and parked in
/// the end, so a message that crashes its task does not return forever. While the stream closes, or without `dlx`, the message is
/// requeued instead and delivered again.
#[must_use = "a message that is dropped without an answer is a failed attempt"]
pub struct Attempt {
    answers: Arc<Answers>,
    /// `None` once it is answered.
    token: Option<Token>,
    message: Message,
}

impl Attempt {
    /// The message.
    #[must_use]
    pub fn message(&self) -> &Message {
        &self.message
    }

    /// Acknowledges the message (AMQP `basic.ack`). Never waits and never fails. If the connection is lost at that moment, the message may
    /// be delivered again.
    pub fn ack(self) {
        self.answer(Outcome::Ack);
    }

    /// Ends the attempt with what a handler would return: `Ok(())`, an error, [`park`](crate::park), [`retry_after`](crate::retry_after),
    /// [`defer`](crate::defer), or an [`Outcome`]. Never waits and never fails.
    pub fn settle<By>(self, answer: impl IntoOutcome<By>) {
        let outcome = answer.into_outcome(&self.answers.classifier);
        self.answer(outcome);
    }

    fn answer(mut self, outcome: Outcome) {
        if let Some(token) = self.token.take() {
            self.answers.subscription.settle([(token, outcome)]);
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(token) = self.token.take() else {
            return;
        };
        let subscription = &self.answers.subscription;
        if !self.answers.dlx || subscription.is_closing() {
            subscription.give_back([token]);
            return;
        }
        let failure =
            Failure::new("the message was dropped without an answer").of_type("Unanswered");
        subscription.settle([(token, Outcome::retry(failure))]);
    }
}

impl fmt::Debug for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attempt")
            .field("message", &self.message)
            .finish_non_exhaustive()
    }
}
