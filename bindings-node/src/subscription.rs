//! A running consumer: batches of messages out, ends of attempts in.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::Instant,
};

use napi::{Env, bindgen_prelude::Either};
use napi_derive::napi;
use retryrmq::Outcome;
use retryrmq_bindings::{BatchGuard, BatchSize};

use crate::{
    byte_reader::Reader,
    errors::Result,
    message::{Batch, batch},
    notification_queue::NotificationQueue,
    notifier::{Answer, Notifier},
    object_count::{LiveObject, ObjectKind},
    operation::begin,
    outcome,
};

/// Resolves when there are messages (`true`), or no more will come (`false`).
type Readiness = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Informs the notifier on the thread that brings messages; a task in between would have to be woken itself.
struct ReadyWaker {
    notifier: Arc<Notifier>,
    id: f64,
}

impl Wake for ReadyWaker {
    fn wake(self: Arc<Self>) {
        self.notifier.ready(self.id);
    }
}

/// What a look for messages finds.
#[napi(string_enum = "lowercase")]
pub enum Arrivals {
    /// There are messages.
    Some,
    /// There are none yet; a notification says when to look again.
    None,
    /// No more will come.
    Ended,
}

/// A running consumer.
#[napi]
pub struct Subscription {
    inner: Arc<retryrmq::Subscription>,
    readiness: Option<Readiness>,
    size: BatchSize,
    _alive: LiveObject,
}

impl Subscription {
    pub(crate) fn new(inner: retryrmq::Subscription) -> Self {
        Self {
            inner: Arc::new(inner),
            readiness: None,
            size: BatchSize::default(),
            _alive: LiveObject::new(ObjectKind::Subscription),
        }
    }
}

#[napi]
impl Subscription {
    /// Messages that have arrived, as many as are good at once; `null` if there are none. Never waits. `ended` is whether the handler that is
    /// watched has ended, if there is one; if so, that of the first message is watched now.
    #[napi(catch_unwind)]
    pub fn take<'env>(
        &mut self,
        env: &'env Env,
        ended: bool,
    ) -> Result<Either<Batch<'env>, napi::bindgen_prelude::Null>> {
        let now = Instant::now();
        let messages = self.inner.try_next_batch(self.size.next(ended, now));
        if messages.is_empty() {
            return Ok(Either::B(napi::bindgen_prelude::Null));
        }
        self.size.took(messages.len(), now);
        let tokens = messages.iter().map(|delivery| delivery.token);
        let guard = BatchGuard::new(tokens, |tokens| self.inner.give_back(tokens));
        let batch = batch(env, &messages, |message| self.inner.may_park(message))?;
        guard.disarm();
        Ok(Either::A(batch))
    }

    /// Looks for messages. If there are none, a notification says when to look again.
    #[napi(catch_unwind)]
    pub fn listen(&mut self, notifications: &NotificationQueue, id: f64) -> Arrivals {
        let mut readiness = self.readiness.take().unwrap_or_else(|| {
            let subscription = Arc::clone(&self.inner);
            Box::pin(async move { subscription.ready().await })
        });
        let waker = Waker::from(Arc::new(ReadyWaker {
            notifier: Arc::clone(&notifications.notifier),
            id,
        }));
        match readiness.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(true) => Arrivals::Some,
            Poll::Ready(false) => Arrivals::Ended,
            Poll::Pending => {
                self.readiness = Some(readiness);
                Arrivals::None
            }
        }
    }

    /// Settles attempts: the first `count` of `handled` are acknowledged, the others end as written. It stops at one that cannot be read,
    /// because nobody knows where the next one begins; unsettled messages are delivered again.
    #[napi(catch_unwind)]
    pub fn settle(&self, handled: &[f64], count: u32, others: Option<&[u8]>) -> Result<()> {
        let handled = handled.get(..count as usize).unwrap_or(handled);
        let acks = handled
            .iter()
            .map(|token| (outcome::token(*token), Outcome::Ack));
        let mut from = Reader::new(others.unwrap_or_default());
        let mut failed = Vec::new();
        let mut readable = Ok(());
        while readable.is_ok() && !from.is_empty() {
            readable = outcome::read(&mut from).map(|end| failed.push(end));
        }
        self.inner.settle(acks.chain(failed));
        readable
    }

    /// Requeues messages that no handler has started.
    #[napi(catch_unwind)]
    pub fn give_back(&self, tokens: &[f64]) {
        self.inner
            .give_back(tokens.iter().map(|token| outcome::token(*token)));
    }

    /// Starts to close.
    #[napi(catch_unwind)]
    pub fn close(&self) {
        self.inner.close();
    }

    /// Ends now, without waiting for handlers.
    #[napi(catch_unwind)]
    pub fn abandon(&self) {
        self.inner.abandon();
    }

    /// Done when everything is settled.
    #[napi(catch_unwind)]
    pub fn wait_closed(&self, notifications: &NotificationQueue, ticket: f64) -> Result<()> {
        let subscription = Arc::clone(&self.inner);
        begin(
            &notifications.notifier,
            ticket,
            async move { subscription.wait_closed().await },
            |()| Answer::Nothing,
        )
    }

    /// The counters of this queue since the client was made.
    #[napi(catch_unwind)]
    pub fn stats(&self) -> Vec<(&'static str, i64)> {
        self.inner
            .stats()
            .numbers()
            .into_iter()
            .map(|(name, number)| (name, i64::try_from(number).unwrap_or(i64::MAX)))
            .collect()
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // Nobody can run its handlers any more, mostly because a worker thread has ended.
        self.inner.abandon();
    }
}
