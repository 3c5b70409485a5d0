//! Calls of lapin that are sent at their first poll, and answered later.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
};

/// A call that was sent. lapin queues the frames of a method at the first poll of its future, and completes it when they are written.
/// Awaiting each call at once would take a round trip to lapin's thread for every method.
pub(crate) enum StartedCall<'a, T> {
    Done(T),
    Running(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<'a, T> StartedCall<'a, T> {
    /// Polls `question` once. Calls are sent in the order in which they are begun.
    pub(crate) fn new(question: impl Future<Output = T> + Send + 'a) -> Self {
        let mut call = Self::Running(Box::pin(question));
        call.is_done();
        call
    }

    /// Whether the answer is there.
    pub(crate) fn is_done(&mut self) -> bool {
        if let Self::Running(question) = self
            && let Poll::Ready(answer) = question
                .as_mut()
                .poll(&mut Context::from_waker(Waker::noop()))
        {
            *self = Self::Done(answer);
        }
        matches!(self, Self::Done(_))
    }

    /// Waits for the answer.
    pub(crate) async fn answer(self) -> T {
        match self {
            Self::Done(answer) => answer,
            Self::Running(question) => question.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_begun_runs_up_to_its_first_wait() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let mut polled = false;
        let mut call = StartedCall::new(async {
            polled = true;
            receiver.await.unwrap_or(0)
        });
        assert!(!call.is_done());
        sender.send(7).unwrap();
        assert!(call.is_done());
        assert_eq!(call.answer().await, 7);
        assert!(polled);
    }

    #[tokio::test]
    async fn an_answer_can_be_there_at_once_or_be_waited_for() {
        assert_eq!(StartedCall::new(async { 1 }).answer().await, 1);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let call = StartedCall::new(receiver);
        sender.send(2).unwrap();
        assert_eq!(call.answer().await, Ok(2));
    }
}
