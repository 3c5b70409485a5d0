//! Between the engine and the handlers: messages one way, outcomes the other. The prefetch limits both.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::Notify, time::sleep_until};

use super::{Delivery, Token, handler_latency::HandlerLatency};
use crate::retry::Outcome;

/// How messages are combined for one handler.
///
/// A batch is formed here, of messages that no handler has taken. So those of an incomplete batch are requeued by a drain, held back by a
/// pause and returned in time to the broker like all others.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batching {
    /// The most messages of a batch.
    pub(super) size: usize,
    /// How long an incomplete one waits, from the arrival of its first message.
    pub(super) wait: Duration,
}

struct QueuedDelivery {
    delivery: Delivery,
    /// When; known if there are batches.
    at: Option<Instant>,
}

#[derive(Default)]
struct Arrivals {
    queue: VecDeque<QueuedDelivery>,
    /// No more messages will come.
    ended: bool,
}

/// Whether messages may be taken.
enum Readiness {
    Now,
    /// When an incomplete batch need not wait any longer; `None` if there are no messages.
    Later(Option<Instant>),
}

impl Arrivals {
    fn readiness(&self, batching: Option<Batching>) -> Readiness {
        let Some(first) = self.queue.front() else {
            return Readiness::Later(None);
        };
        let (Some(Batching { size, wait }), Some(at)) = (batching, first.at) else {
            return Readiness::Now;
        };
        let until = at + wait;
        let in_batch = self.in_first_batch(size);
        if in_batch < self.queue.len().min(size)
            || in_batch == size
            || first.delivery.alone
            || self
                .queue
                .iter()
                .take(in_batch)
                .any(|arrived| arrived.delivery.ends_batch)
            || Instant::now() >= until
        {
            Readiness::Now
        } else {
            Readiness::Later(Some(until))
        }
    }

    /// How many of the first messages may be in a batch of this size. One that comes alone is a batch of its own.
    fn in_first_batch(&self, size: usize) -> usize {
        let mut first = self.queue.iter().take(size);
        if first.next().is_some_and(|arrived| arrived.delivery.alone) {
            return 1;
        }
        let others = first.take_while(|arrived| !arrived.delivery.alone);
        (1 + others.count()).min(self.queue.len())
    }

    fn take(&mut self, max: usize) -> Vec<Delivery> {
        let count = self.queue.len().min(max);
        let taken = self.queue.drain(..count);
        taken.map(|arrived| arrived.delivery).collect()
    }

    /// At most `max` messages, or one batch if it is ready.
    fn take_ready(&mut self, batching: Option<Batching>, max: usize) -> Vec<Delivery> {
        match (batching, self.readiness(batching)) {
            (_, Readiness::Later(_)) => Vec::new(),
            (Some(batching), Readiness::Now) => self.take(self.in_first_batch(batching.size)),
            (None, Readiness::Now) => self.take(max),
        }
    }
}

/// How a message comes back from the handlers.
#[derive(Debug)]
pub(super) enum HandlerEnd {
    /// Its handler ended.
    Settled(Outcome),
    /// No handler started it.
    Unstarted,
}

/// Outcomes that the engine has not taken yet.
#[derive(Default)]
struct PendingOutcomes {
    list: Vec<(Token, HandlerEnd)>,
    /// Whether the engine was woken for them.
    engine_woken: bool,
}

/// What the engine and the handlers share.
pub(super) struct DeliveryQueue {
    arrivals: Mutex<Arrivals>,
    /// Wakes waiting tasks, one at a time.
    arrived: Notify,
    /// Wakes waiting threads.
    arrived_blocking: Condvar,
    blocking: AtomicUsize,
    outcomes: Mutex<PendingOutcomes>,
    /// Wakes the engine.
    engine: Notify,
    close: AtomicBool,
    abandon: AtomicBool,
    latency: HandlerLatency,
    batching: Option<Batching>,
    /// Has the timer for incomplete batches: callers may wait outside of a runtime.
    runtime: Handle,
}

impl DeliveryQueue {
    /// Must be called in a runtime.
    pub(super) fn new(latency: HandlerLatency, batching: Option<Batching>) -> Self {
        Self {
            arrivals: Mutex::default(),
            arrived: Notify::default(),
            arrived_blocking: Condvar::default(),
            blocking: AtomicUsize::default(),
            outcomes: Mutex::default(),
            engine: Notify::default(),
            close: AtomicBool::default(),
            abandon: AtomicBool::default(),
            latency,
            batching,
            runtime: Handle::current(),
        }
    }

    fn arrivals(&self) -> MutexGuard<'_, Arrivals> {
        self.arrivals
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Adds messages for the handlers. It wakes one task; that one wakes the next if there are more messages than it takes.
    pub(super) fn deliver(&self, batch: &mut Vec<Delivery>) {
        if batch.is_empty() {
            return;
        }
        let at = self.batching.map(|_| Instant::now());
        let arrived = batch
            .drain(..)
            .map(|delivery| QueuedDelivery { delivery, at });
        self.arrivals().queue.extend(arrived);
        self.wake_one();
        if self.blocking.load(Ordering::SeqCst) > 0 {
            self.arrived_blocking.notify_all();
        }
    }

    pub(super) fn wake_one(&self) {
        self.arrived.notify_one();
    }

    /// Wakes another task if messages are left.
    pub(super) fn wake_for_the_rest(&self) {
        if !self.arrivals().queue.is_empty() {
            self.wake_one();
        }
    }

    /// Takes one message, and says whether there are more.
    pub(super) fn take_one(&self) -> (Option<Delivery>, bool) {
        let mut arrivals = self.arrivals();
        let delivery = arrivals.queue.pop_front().map(|arrived| arrived.delivery);
        let are_more = !arrivals.queue.is_empty();
        drop(arrivals);
        self.latency.start(&delivery);
        (delivery, are_more)
    }

    /// Takes the messages that are there, at most `max`; or one batch if it is ready, whatever `max` is.
    pub(super) fn take(&self, max: usize) -> Vec<Delivery> {
        let taken = self.arrivals().take_ready(self.batching, max);
        self.latency.start(&taken);
        taken
    }

    /// Takes out a message that is settled, if no handler has taken it.
    pub(super) fn skip(&self, token: Token) {
        self.arrivals()
            .queue
            .retain(|arrived| arrived.delivery.token != token);
    }

    /// Takes all messages that no handler has taken.
    pub(super) fn take_back(&self) -> Vec<Delivery> {
        self.arrivals().take(usize::MAX)
    }

    /// Takes back those of these messages that no handler has taken.
    pub(super) fn recall_tokens(&self, tokens: &[Token]) -> Vec<Token> {
        let tokens: HashSet<_> = tokens.iter().collect();
        let mut back = Vec::new();
        self.arrivals().queue.retain(|arrived| {
            let token = arrived.delivery.token;
            let stays = !tokens.contains(&token);
            if !stays {
                back.push(token);
            }
            stays
        });
        back
    }

    /// Waits until there are messages, or a batch (`true`), or no more will come (`false`).
    pub(super) async fn ready(&self) -> bool {
        loop {
            let arrived = self.arrived.notified();
            let until = {
                let arrivals = self.arrivals();
                match arrivals.readiness(self.batching) {
                    Readiness::Now => return true,
                    Readiness::Later(None) if arrivals.ended => {
                        drop(arrivals);
                        self.wake_one(); // for the next waiting task
                        return false;
                    }
                    Readiness::Later(until) => until,
                }
            };
            match until {
                None => arrived.await,
                Some(until) => {
                    let waited = {
                        let _runtime = self.runtime.enter();
                        sleep_until(until.into())
                    };
                    tokio::select! {
                        () = arrived => {}
                        () = waited => {}
                    }
                }
            }
        }
    }

    /// [`ready`](Self::ready) and [`take`](Self::take) in one, for a thread. Empty after `timeout`, or at the end.
    pub(super) fn take_blocking(&self, max: usize, timeout: Duration) -> Vec<Delivery> {
        // `Duration::MAX` is a way to say: however long it takes.
        let deadline = Instant::now().checked_add(timeout);
        self.blocking.fetch_add(1, Ordering::SeqCst);
        let mut arrivals = self.arrivals();
        loop {
            let until = match arrivals.readiness(self.batching) {
                Readiness::Now => break,
                Readiness::Later(None) if arrivals.ended => break,
                Readiness::Later(until) => until,
            };
            let left = |until: Instant| until.saturating_duration_since(Instant::now());
            let time_left = deadline.map_or(timeout, left);
            if time_left.is_zero() {
                break;
            }
            let left = until.map_or(time_left, |until| time_left.min(left(until)));
            arrivals = match self.arrived_blocking.wait_timeout(arrivals, left) {
                Ok((arrivals, _)) => arrivals,
                Err(poison) => poison.into_inner().0,
            };
        }
        self.blocking.fetch_sub(1, Ordering::SeqCst);
        let taken = arrivals.take_ready(self.batching, max);
        drop(arrivals);
        self.latency.start(&taken);
        taken
    }

    /// Adds outcomes of handlers, and wakes the engine once for all of them.
    pub(super) fn settle(&self, settled: impl IntoIterator<Item = (Token, Outcome)>) {
        let settled: Vec<_> = settled
            .into_iter()
            .map(|(token, outcome)| (token, HandlerEnd::Settled(outcome)))
            .collect();
        self.latency.stop(settled.iter().map(|(token, _)| *token));
        self.end_all(settled.into_iter());
    }

    /// Adds the outcome of a worker that starts its next message at once. It does not wake the engine: tokio would make that the next task
    /// of the same thread, where no other thread can take it, and the next handler may keep the thread for long. [`wake_engine`](Self::wake_engine) wakes
    /// it.
    pub(super) fn settle_quietly(&self, token: Token, outcome: Outcome) {
        self.latency.stop([token]);
        self.outcomes_now()
            .list
            .push((token, HandlerEnd::Settled(outcome)));
    }

    /// Wakes the engine if there are outcomes that it was not woken for.
    pub(super) fn wake_engine(&self) {
        let wake = {
            let mut outcomes = self.outcomes_now();
            !outcomes.list.is_empty() && !std::mem::replace(&mut outcomes.engine_woken, true)
        };
        if wake {
            self.engine.notify_one();
        }
    }

    fn outcomes_now(&self) -> MutexGuard<'_, PendingOutcomes> {
        self.outcomes
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Gives back messages that were taken and not started; they are requeued.
    pub(super) fn give_back(&self, tokens: impl IntoIterator<Item = Token>) {
        self.end_all(
            tokens
                .into_iter()
                .map(|token| (token, HandlerEnd::Unstarted)),
        );
    }

    fn end_all(&self, ended: impl Iterator<Item = (Token, HandlerEnd)>) {
        self.outcomes_now().list.extend(ended);
        self.wake_engine();
    }

    /// Moves the outcomes since the last call into `into`.
    pub(super) fn outcomes(&self, into: &mut Vec<(Token, HandlerEnd)>) {
        let mut outcomes = self.outcomes_now();
        outcomes.engine_woken = false;
        std::mem::swap(&mut outcomes.list, into);
    }

    /// The most messages of a batch, if there are batches.
    pub(super) fn batch_size(&self) -> Option<usize> {
        self.batching.map(|batching| batching.size)
    }

    /// Asks the engine to drain and end.
    pub(super) fn close(&self) {
        self.close.store(true, Ordering::SeqCst);
        self.engine.notify_one();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.close.load(Ordering::SeqCst)
    }

    /// Asks the engine to end without waiting for handlers.
    pub(super) fn abandon(&self) {
        self.abandon.store(true, Ordering::SeqCst);
        self.close();
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandon.load(Ordering::SeqCst)
    }

    /// For the engine: resolves when there are outcomes or a request to close.
    pub(super) async fn wait_for_engine_work(&self) {
        self.engine.notified().await;
    }

    /// No more messages will come: wakes everyone who waits.
    pub(super) fn end(&self) {
        self.arrivals().ended = true;
        self.wake_one();
        self.arrived_blocking.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::Arc,
        task::{Context, Poll, Wake, Waker},
        thread,
    };

    use futures_util::FutureExt;
    use prometheus_client::metrics::histogram::Histogram;

    use super::*;
    use crate::consumer::Received;

    fn delivery_queue(batching: Option<Batching>) -> DeliveryQueue {
        DeliveryQueue::new(HandlerLatency::new(Histogram::new([])), batching)
    }

    fn batches(size: usize, wait: Duration) -> DeliveryQueue {
        delivery_queue(Some(Batching { size, wait }))
    }

    fn deliver(delivery_queue: &DeliveryQueue, count: u64) {
        let delivery = |number| Delivery {
            token: Token::from_u64(number),
            message: crate::Message(Arc::new(Received::for_tests("orders", "7"))),
            alone: false,
            ends_batch: false,
        };
        delivery_queue.deliver(&mut (0..count).map(delivery).collect());
    }

    fn deliver_alone(delivery_queue: &DeliveryQueue) {
        deliver(delivery_queue, 1);
        let mut arrivals = delivery_queue.arrivals();
        arrivals.queue.back_mut().unwrap().delivery.alone = true;
    }

    #[tokio::test]
    async fn a_batch_does_not_wait_for_what_cannot_come() {
        let delivery_queue = batches(10, LONG);
        deliver(&delivery_queue, 3);
        assert!(delivery_queue.ready().now_or_never().is_none());
        {
            let mut arrivals = delivery_queue.arrivals();
            arrivals.queue.back_mut().unwrap().delivery.ends_batch = true;
        }
        assert!(delivery_queue.ready().now_or_never().is_some());
        assert_eq!(delivery_queue.take(usize::MAX).len(), 3);
    }

    /// Longer than any test runs.
    const LONG: Duration = Duration::from_secs(3_600);
    const SHORT: Duration = Duration::from_millis(1);

    #[tokio::test]
    async fn a_thread_may_wait_without_a_deadline() {
        let delivery_queue = delivery_queue(None);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| delivery_queue.take_blocking(1, Duration::MAX));
            while delivery_queue.blocking.load(Ordering::SeqCst) == 0 && !waiting.is_finished() {
                thread::yield_now();
            }
            delivery_queue.end();
            assert!(waiting.join().expect("it waits").is_empty());
        });
    }

    #[tokio::test]
    async fn what_comes_alone_is_a_batch_at_once_and_ends_the_one_before_it() {
        let delivery_queue = batches(3, LONG);
        deliver(&delivery_queue, 2);
        deliver_alone(&delivery_queue);
        deliver(&delivery_queue, 3);
        deliver_alone(&delivery_queue);
        for size in [2, 1, 3, 1] {
            assert!(delivery_queue.ready().now_or_never().is_some());
            assert_eq!(delivery_queue.take(usize::MAX).len(), size);
        }
        deliver(&delivery_queue, 2);
        assert!(
            delivery_queue.take(usize::MAX).is_empty(),
            "it is incomplete"
        );
    }

    #[tokio::test]
    async fn only_complete_batches_are_taken_while_others_wait() {
        let delivery_queue = batches(3, LONG);
        deliver(&delivery_queue, 2);
        assert!(delivery_queue.take(usize::MAX).is_empty());
        assert!(delivery_queue.take_blocking(usize::MAX, SHORT).is_empty());
        assert!(
            delivery_queue.ready().now_or_never().is_none(),
            "it is incomplete"
        );
        deliver(&delivery_queue, 5);
        for taken in [
            delivery_queue.take(1),
            delivery_queue.take_blocking(1, LONG),
        ] {
            assert_eq!(taken.len(), 3, "a batch, whatever the limit");
        }
        assert!(delivery_queue.ready().now_or_never().is_none());
        assert_eq!(
            delivery_queue.take_back().len(),
            1,
            "what no handler has taken"
        );
    }

    #[tokio::test]
    async fn an_incomplete_batch_waits_only_so_long() {
        for wait in [Duration::ZERO, SHORT] {
            let delivery_queue = batches(3, wait);
            deliver(&delivery_queue, 2);
            assert!(delivery_queue.ready().await);
            assert_eq!(delivery_queue.take(usize::MAX).len(), 2);
            deliver(&delivery_queue, 1);
            assert_eq!(delivery_queue.take_blocking(usize::MAX, LONG).len(), 1);
        }
    }

    /// As for single messages, also if a part of them is taken back meanwhile.
    #[tokio::test]
    async fn the_end_of_an_incomplete_batch_is_the_end() {
        let delivery_queue = batches(3, LONG);
        deliver(&delivery_queue, 2);
        let mut ready = pin!(delivery_queue.ready());
        assert!(ready.as_mut().now_or_never().is_none());
        let first = [Token::from_u64(0)];
        assert_eq!(delivery_queue.recall_tokens(&first), first);
        delivery_queue.skip(Token::from_u64(1));
        delivery_queue.end();
        assert!(!ready.await);
        assert!(delivery_queue.take_blocking(usize::MAX, LONG).is_empty());
    }

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    /// The thread of a language polls by itself.
    #[test]
    fn the_wait_for_a_batch_needs_no_runtime_around_it() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let delivery_queue = runtime.block_on(async { batches(3, SHORT) });
        deliver(&delivery_queue, 1);
        let mut ready = pin!(delivery_queue.ready());
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let ready = loop {
            match ready.as_mut().poll(&mut context) {
                Poll::Pending => thread::park(),
                Poll::Ready(ready) => break ready,
            }
        };
        assert!(ready);
    }
}
