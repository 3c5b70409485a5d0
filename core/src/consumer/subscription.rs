//! The boundary of the core: batches of messages out, outcomes in. Handlers never cross it.

use std::{
    fmt,
    panic::{AssertUnwindSafe, resume_unwind},
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::Either};
use tokio::{sync::watch, time::sleep};
use tracing::{debug, warn};

use super::{
    Consumer, Message, Token, delivery_queue::DeliveryQueue, fake_client::FakeBroker,
    fake_consumer::FakeConsumer, handler::panic_text, handler_latency::HandlerLatency,
    shell::Shell,
};
use crate::{
    Client, Error, ErrorKind, Result,
    connection::{BROKER_AWAY_PAUSE, is_out_of_channels},
    retry::Outcome,
    telemetry::{Counters, Stats, WarnLimiter},
};

/// A message, and the token to settle it with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// Settles this delivery, once.
    pub token: Token,
    /// The message.
    pub message: Message,
    /// No other message may be in a batch with it, and none is awaited: it may take its consumer down, or only one at a time can come.
    pub(super) alone: bool,
    /// No other message comes before one of those that are handed out is settled, so its batch awaits none.
    pub(super) ends_batch: bool,
}

/// A running consumer whose caller runs the handlers. [`Consumer::subscribe`] makes it. Dropping it starts to close it.
///
/// Take messages with [`try_next_batch`](Self::try_next_batch). Wait with [`ready`](Self::ready) only when that returns nothing. Return
/// outcomes with [`settle`](Self::settle). A message that is taken and never settled keeps its place in the prefetch until the connection
/// ends, and closing waits for it up to the drain timeout.
pub struct Subscription {
    delivery_queue: Arc<DeliveryQueue>,
    counters: Counters,
    ended: watch::Receiver<Option<String>>,
    /// The fewest retries after which a message may be parked.
    fewest_retries: Option<u32>,
}

impl Subscription {
    /// Subscribes. A client that waits for its broker also waits here: the broker may go away again, or its queues may still have no leaders.
    pub(super) async fn open(options: Consumer, client: Client) -> Result<Self> {
        let waits = options.wait.unwrap_or(client.options().wait);
        let (mut pause, mut warn_limiter) = (BROKER_AWAY_PAUSE, WarnLimiter::default());
        loop {
            match Self::tried(options.clone(), client.clone()).await {
                Err(error) if waits && error.is_transient() && !is_out_of_channels(&error) => {
                    if warn_limiter.is_news(error.to_string()) {
                        warn!(queue = %options.queue, %error, "cannot consume yet; trying again");
                    } else {
                        debug!(queue = %options.queue, %error, "cannot consume yet; trying again");
                    }
                }
                opened => return opened,
            }
            tokio::select! {
                () = sleep(pause.next_pause()) => {}
                // The next try reports it.
                () = client.consuming().is_over() => {}
            }
        }
    }

    /// Dropping a half-done subscribe would leave a consumer that nobody reads from, and whose messages nobody handles. So subscribing
    /// always runs to its end; if nobody waits for it any more, the subscription is then closed.
    async fn tried(options: Consumer, client: Client) -> Result<Self> {
        match tokio::spawn(Self::opened(options, client)).await {
            Ok(opened) => opened,
            Err(end) => match end.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(_) => Err(Error::new(
                    ErrorKind::Closed,
                    "the runtime ended while the consumer subscribed",
                )),
            },
        }
    }

    async fn opened(options: Consumer, client: Client) -> Result<Self> {
        let latency = HandlerLatency::new(client.handling(&options.queue));
        let delivery_queue = Arc::new(DeliveryQueue::new(latency, options.batching()));
        let counters = client.counters(&options.queue);
        let fewest_retries = options.fewest_retries();
        let parks = options
            .has_dlx()
            .then(|| (client.clone(), options.queue.clone()));
        let shared = (Arc::clone(&delivery_queue), counters.clone());
        let running = match FakeBroker::of(&client) {
            None => Either::Left(
                Shell::subscribe(options, client, shared.0, shared.1)
                    .await?
                    .run(),
            ),
            Some(fake) => {
                let consumer = Arc::new(FakeConsumer::new(options, shared.0, shared.1)?);
                fake.consume(&consumer)?;
                Either::Right(consumer.run())
            }
        };
        if let Some((client, queue)) = parks {
            client.watch_parked(&queue);
        }
        let (ending, ended) = watch::channel(None);
        let end = WakeOnEnd {
            delivery_queue: Arc::clone(&delivery_queue),
            ending,
        };
        tokio::spawn(async move {
            if let Err(panic) = AssertUnwindSafe(running).catch_unwind().await {
                end.broke(panic_text(&*panic));
            }
        });
        Ok(Self {
            delivery_queue,
            counters,
            ended,
            fewest_retries,
        })
    }

    /// The messages that have arrived, at most `max`. Never waits.
    ///
    /// With [`batch`](Consumer::batch) it is the batch for one handler, whatever `max` is: a complete one, or an incomplete one after
    /// [`batch_wait`](Consumer::batch_wait). The same goes for [`next_batch_blocking`](Self::next_batch_blocking), and
    /// [`ready`](Self::ready) waits for such a batch.
    #[must_use]
    pub fn try_next_batch(&self, max: usize) -> Vec<Delivery> {
        self.delivery_queue.take(max)
    }

    /// One message, and whether there are more.
    pub(super) fn take_one(&self) -> (Option<Delivery>, bool) {
        self.delivery_queue.take_one()
    }

    /// Wakes another task that waits in [`ready`](Self::ready).
    pub(super) fn wake_another(&self) {
        self.delivery_queue.wake_one();
    }

    /// Wakes another task that waits, if there are messages left, even if they are no complete batch: somebody must wait for that.
    pub(super) fn wake_for_the_rest(&self) {
        self.delivery_queue.wake_for_the_rest();
    }

    /// Waits until there are messages (`true`), or until no more will come (`false`).
    pub async fn ready(&self) -> bool {
        self.delivery_queue.ready().await
    }

    /// Blocks the thread until there are messages, for at most `timeout`. Returns at most `max` of them; none if none came in time, or no
    /// more will come.
    #[must_use]
    pub fn next_batch_blocking(&self, max: usize, timeout: Duration) -> Vec<Delivery> {
        self.delivery_queue.take_blocking(max, timeout)
    }

    /// Returns the outcomes of attempts. Never waits and never fails. A token does nothing if it was settled before, belongs to a lost
    /// connection or was never handed out; it is counted as stale in [`stats`](Self::stats).
    pub fn settle(&self, outcomes: impl IntoIterator<Item = (Token, Outcome)>) {
        self.delivery_queue.settle(outcomes);
    }

    /// Like [`settle`](Self::settle), for a worker that starts its next message at once. The engine sees it after [`wake_engine`](Self::wake_engine), or
    /// a moment later.
    pub(super) fn settle_quietly(&self, token: Token, outcome: Outcome) {
        self.delivery_queue.settle_quietly(token, outcome);
    }

    /// Wakes the engine for outcomes that were settled quietly.
    pub(super) fn wake_engine(&self) {
        self.delivery_queue.wake_engine();
    }

    /// Whether the message may be parked if this attempt fails. Only then is a stack trace worth recording: only a parked message keeps it.
    #[must_use]
    pub fn may_park(&self, message: &Message) -> bool {
        self.fewest_retries.is_some_and(|fewest_retries| {
            message.retries() >= fewest_retries || message.mended().is_some()
        })
    }

    /// Requeues messages that were taken but not started, mostly while closing. That does not count as a crash.
    pub fn give_back(&self, tokens: impl IntoIterator<Item = Token>) {
        self.delivery_queue.give_back(tokens);
    }

    /// Starts to close: no more messages come, running handlers may finish, and everything else is requeued. Returns at once;
    /// see [`wait_closed`](Self::wait_closed).
    pub fn close(&self) {
        self.delivery_queue.close();
    }

    /// Ends now, without waiting for running handlers. Outcomes settled so far are still carried out, and what no handler was given, or was
    /// [given back](Self::give_back), is requeued uncounted; for that it waits at most two seconds for the broker. All other messages are
    /// requeued as if this process had crashed, and that counts as a delivery.
    pub fn abandon(&self) {
        self.delivery_queue.abandon();
    }

    /// The [`batch`](Consumer::batch) that it was made with: each call returns the messages of at most one handler. `None` for single
    /// messages.
    #[must_use]
    pub fn batch_size(&self) -> Option<usize> {
        self.delivery_queue.batch_size()
    }

    /// Whether it was asked to close.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.delivery_queue.is_closing()
    }

    /// Waits until it is closed.
    ///
    /// # Errors
    /// [`Closed`](ErrorKind::Closed) if a bug in retryrmq ended it, with the text of the panic. Messages that were not settled are
    /// then delivered again, and no handler starts one that it could not settle.
    pub async fn wait_closed(&self) -> Result<()> {
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
        let defect = ended.borrow().clone();
        defect.map_or(Ok(()), |defect| Err(Error::new(ErrorKind::Closed, defect)))
    }

    /// The counters of this queue since the client was made. All consumers of the queue on that client share them.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }
}

/// Wakes everyone who waits for messages or for the end, even if the task that should do it has panicked.
struct WakeOnEnd {
    delivery_queue: Arc<DeliveryQueue>,
    /// Closed at the end; what it holds then is the defect that ended the task.
    ending: watch::Sender<Option<String>>,
}

impl WakeOnEnd {
    fn broke(&self, panic: &str) {
        self.ending.send_replace(Some(format!(
            "the consumer was ended by a bug in retryrmq: {panic}; its unsettled messages are delivered again. Please report it"
        )));
        // Nobody could settle them; the broker delivers them again.
        self.delivery_queue.take_back();
    }
}

impl Drop for WakeOnEnd {
    fn drop(&mut self) {
        self.delivery_queue.close();
        self.delivery_queue.end();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.delivery_queue.close();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
