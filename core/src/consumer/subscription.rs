//! The boundary of the core: batches out, outcomes in. Handlers never cross it.

use std::{fmt, panic::resume_unwind, sync::Arc, time::Duration};

use tokio::{sync::watch, time::sleep};
use tracing::warn;

use super::{Consumer, Message, Token, inbox::Inbox, shell::Shell, stopwatch::Stopwatch};
use crate::{
    Client, Error, ErrorKind, Result,
    client::{FIRST_PAUSE, LONGEST_PAUSE},
    connection::is_out_of_channels,
    retry::Outcome,
    telemetry::{Counters, Stats},
};

/// A message, and the token by which it is settled.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Delivery {
    /// Settles this delivery, once.
    pub token: Token,
    /// The message.
    pub message: Message,
}

/// A running consumer for which the caller runs the handlers.
///
/// Take messages with [`try_next_batch`](Self::try_next_batch), wait with [`ready`](Self::ready) only when that is
/// empty, and hand outcomes to [`settle`](Self::settle). What is taken and never settled keeps its place in the
/// prefetch until the connection ends, and the end of the subscription waits for it.
pub struct Subscription {
    inbox: Arc<Inbox>,
    counters: Counters,
    ended: watch::Receiver<()>,
    /// The fewest retries after which a message may be parked.
    patience: Option<u32>,
}

impl Subscription {
    /// Subscribes. A client that waits for its broker waits for it here as well: it may go again, or take its time to elect the leaders
    /// of its queues.
    pub(super) async fn open(options: Consumer, client: Client) -> Result<Self> {
        let waits = options.wait.unwrap_or(client.options().wait);
        let mut pause = FIRST_PAUSE;
        loop {
            match Self::tried(options.clone(), client.clone()).await {
                Err(error) if waits && error.is_transient() && !is_out_of_channels(&error) => {
                    warn!(queue = %options.queue, %error, "cannot consume yet; trying again");
                }
                opened => return opened,
            }
            tokio::select! {
                () = sleep(pause) => {}
                // The next try says so.
                () = client.consuming().is_over() => {}
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Given up in the middle, subscribing would leave a consumer on the client's connection that nobody reads from, and that
    /// swallows messages. So it goes on to its end, where a subscription that nobody waits for any more is closed.
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
        let inbox = Arc::new(Inbox::new(Stopwatch::new(client.handling(&options.queue))));
        let counters = client.counters(&options.queue);
        let patience = options.patience();
        let parks = options.dlx.then(|| (client.clone(), options.queue.clone()));
        let shell = Shell::subscribe(options, client, Arc::clone(&inbox), counters.clone()).await?;
        if let Some((client, queue)) = parks {
            client.watch_parked(&queue);
        }
        let (ending, ended) = watch::channel(());
        let end = End {
            inbox: Arc::clone(&inbox),
            _ending: ending,
        };
        tokio::spawn(async move {
            let _end = end;
            shell.run().await;
        });
        Ok(Self {
            inbox,
            counters,
            ended,
            patience,
        })
    }

    /// The messages that are there, at most `max`. Never waits.
    #[must_use]
    pub fn try_next_batch(&self, max: usize) -> Vec<Delivery> {
        self.inbox.take(max)
    }

    /// One message, and whether there are more.
    pub(super) fn take_one(&self) -> (Option<Delivery>, bool) {
        self.inbox.take_one()
    }

    /// Wakes another task that waits in [`ready`](Self::ready).
    pub(super) fn wake_another(&self) {
        self.inbox.wake_one();
    }

    /// Waits until there are messages (`true`), or until no more will come (`false`).
    pub async fn ready(&self) -> bool {
        self.inbox.ready().await
    }

    /// For a thread: waits for messages, at most `timeout`. Empty when none came, or none will.
    #[must_use]
    pub fn next_batch_blocking(&self, max: usize, timeout: Duration) -> Vec<Delivery> {
        self.inbox.take_blocking(max, timeout)
    }

    /// Hands over the outcomes of attempts. Never waits, never fails: a token that was settled before, belongs to a
    /// lost connection or was never given out is counted as stale, and does nothing.
    pub fn settle(&self, outcomes: impl IntoIterator<Item = (Token, Outcome)>) {
        self.inbox.settle(outcomes);
    }

    /// As [`settle`](Self::settle), for a worker that goes on at once; the engine learns of it at
    /// [`tell`](Self::tell), or a moment later.
    pub(super) fn settle_quietly(&self, token: Token, outcome: Outcome) {
        self.inbox.settle_quietly(token, outcome);
    }

    /// Wakes the engine for what was settled quietly.
    pub(super) fn tell(&self) {
        self.inbox.tell();
    }

    /// Whether the message may be parked if this attempt fails: whether it is worth the time to write down a stack trace,
    /// which only a parked message keeps.
    #[must_use]
    pub fn may_park(&self, message: &Message) -> bool {
        self.patience
            .is_some_and(|patience| message.retries() >= patience || message.mended().is_some())
    }

    /// Gives back messages that were taken and not started, mostly at the end: they go back to their queue, and are not
    /// blamed for a crash.
    pub fn give_back(&self, tokens: impl IntoIterator<Item = Token>) {
        self.inbox.give_back(tokens);
    }

    /// Asks for the end: no more messages, what runs may finish, the rest goes back to the queue.
    pub fn close(&self) {
        self.inbox.close();
    }

    /// Asks for the end now: handlers that run are not waited for. What is settled so far is acknowledged or on its way;
    /// the rest is the broker's again, and counts as delivered, as if this process had died.
    pub fn abandon(&self) {
        self.inbox.abandon();
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.inbox.is_closing()
    }

    /// Waits for the end.
    pub async fn wait_closed(&self) {
        let mut ended = self.ended.clone();
        while ended.changed().await.is_ok() {}
    }

    /// The numbers of this queue since the client was made.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.counters.stats()
    }
}

/// Lets everybody go who waits for messages or for the end: also when the task that would tell them has panicked.
struct End {
    inbox: Arc<Inbox>,
    _ending: watch::Sender<()>,
}

impl Drop for End {
    fn drop(&mut self) {
        self.inbox.close();
        self.inbox.end();
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}
