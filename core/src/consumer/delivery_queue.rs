//! Between the engine and the handlers: messages one way, outcomes the other. The prefetch limits both.

use std::{
    collections::{HashSet, VecDeque},
    sync::{
        Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::{Delivery, Token, handler_latency::HandlerLatency};
use crate::retry::Outcome;

#[derive(Default)]
struct Arrivals {
    queue: VecDeque<Delivery>,
    /// No more messages will come.
    ended: bool,
}

fn take_from(arrivals: &mut Arrivals, max: usize) -> Vec<Delivery> {
    let count = arrivals.queue.len().min(max);
    arrivals.queue.drain(..count).collect()
}

/// How a message comes back from the handlers.
#[derive(Debug)]
pub(super) enum Ending {
    /// Its handler ended.
    Settled(Outcome),
    /// No handler started it.
    Unstarted,
}

/// Outcomes that the engine has not taken yet.
#[derive(Default)]
struct Outcomes {
    list: Vec<(Token, Ending)>,
    /// Whether the engine was woken for them.
    told: bool,
}

/// What the engine and the handlers share.
pub(super) struct Inbox {
    arrivals: Mutex<Arrivals>,
    /// Wakes waiting tasks, one at a time.
    arrived: Notify,
    /// Wakes waiting threads.
    arrived_blocking: Condvar,
    blocking: AtomicUsize,
    outcomes: Mutex<Outcomes>,
    /// Wakes the engine.
    engine: Notify,
    close: AtomicBool,
    abandon: AtomicBool,
    stopwatch: HandlerLatency,
}

impl Inbox {
    pub(super) fn new(stopwatch: HandlerLatency) -> Self {
        Self {
            arrivals: Mutex::default(),
            arrived: Notify::default(),
            arrived_blocking: Condvar::default(),
            blocking: AtomicUsize::default(),
            outcomes: Mutex::default(),
            engine: Notify::default(),
            close: AtomicBool::default(),
            abandon: AtomicBool::default(),
            stopwatch,
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
        self.arrivals().queue.extend(batch.drain(..));
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
        let delivery = arrivals.queue.pop_front();
        let are_more = !arrivals.queue.is_empty();
        drop(arrivals);
        self.stopwatch.start(&delivery);
        (delivery, are_more)
    }

    /// Takes the messages that are there, at most `max`.
    pub(super) fn take(&self, max: usize) -> Vec<Delivery> {
        let taken = take_from(&mut self.arrivals(), max);
        self.stopwatch.start(&taken);
        taken
    }

    /// Takes out a message that is settled, if no handler has taken it.
    pub(super) fn skip(&self, token: Token) {
        self.arrivals()
            .queue
            .retain(|delivery| delivery.token != token);
    }

    /// Takes all messages that no handler has taken.
    pub(super) fn take_back(&self) -> Vec<Delivery> {
        take_from(&mut self.arrivals(), usize::MAX)
    }

    /// Takes back those of these messages that no handler has taken.
    pub(super) fn take_these_back(&self, tokens: &[Token]) -> Vec<Token> {
        let tokens: HashSet<_> = tokens.iter().collect();
        let mut back = Vec::new();
        self.arrivals().queue.retain(|delivery| {
            let stays = !tokens.contains(&delivery.token);
            if !stays {
                back.push(delivery.token);
            }
            stays
        });
        back
    }

    /// Waits until there are messages (`true`), or no more will come (`false`).
    pub(super) async fn ready(&self) -> bool {
        loop {
            let arrived = self.arrived.notified();
            {
                let arrivals = self.arrivals();
                if !arrivals.queue.is_empty() {
                    return true;
                }
                if arrivals.ended {
                    drop(arrivals);
                    self.wake_one(); // for the next waiting task
                    return false;
                }
            }
            arrived.await;
        }
    }

    /// [`ready`](Self::ready) and [`take`](Self::take) in one, for a thread. Empty after `timeout`, or at the end.
    pub(super) fn take_blocking(&self, max: usize, timeout: Duration) -> Vec<Delivery> {
        // `Duration::MAX` is a way to say: however long it takes.
        let deadline = Instant::now().checked_add(timeout);
        self.blocking.fetch_add(1, Ordering::SeqCst);
        let mut arrivals = self.arrivals();
        while arrivals.queue.is_empty() && !arrivals.ended {
            let left = deadline.map_or(timeout, |deadline| {
                deadline.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                break;
            }
            arrivals = match self.arrived_blocking.wait_timeout(arrivals, left) {
                Ok((arrivals, _)) => arrivals,
                Err(poison) => poison.into_inner().0,
            };
        }
        self.blocking.fetch_sub(1, Ordering::SeqCst);
        let taken = take_from(&mut arrivals, max);
        drop(arrivals);
        self.stopwatch.start(&taken);
        taken
    }

    /// Adds outcomes of handlers, and wakes the engine once for all of them.
    pub(super) fn settle(&self, settled: impl IntoIterator<Item = (Token, Outcome)>) {
        let settled: Vec<_> = settled
            .into_iter()
            .map(|(token, outcome)| (token, Ending::Settled(outcome)))
            .collect();
        self.stopwatch.stop(settled.iter().map(|(token, _)| *token));
        self.end_all(settled.into_iter());
    }

    /// Adds the outcome of a worker that starts its next message at once. It does not wake the engine: tokio would make that the next task
    /// of the same thread, where no other thread can take it, and the next handler may keep the thread for long. [`tell`](Self::tell) wakes
    /// it.
    pub(super) fn settle_quietly(&self, token: Token, outcome: Outcome) {
        self.stopwatch.stop([token]);
        self.outcomes_now()
            .list
            .push((token, Ending::Settled(outcome)));
    }

    /// Wakes the engine if there are outcomes that it was not woken for.
    pub(super) fn tell(&self) {
        let wake = {
            let mut outcomes = self.outcomes_now();
            !outcomes.list.is_empty() && !std::mem::replace(&mut outcomes.told, true)
        };
        if wake {
            self.engine.notify_one();
        }
    }

    fn outcomes_now(&self) -> MutexGuard<'_, Outcomes> {
        self.outcomes
            .lock()
            .unwrap_or_else(|poison| poison.into_inner())
    }

    /// Gives back messages that were taken and not started; they are requeued.
    pub(super) fn give_back(&self, tokens: impl IntoIterator<Item = Token>) {
        self.end_all(tokens.into_iter().map(|token| (token, Ending::Unstarted)));
    }

    fn end_all(&self, ended: impl Iterator<Item = (Token, Ending)>) {
        self.outcomes_now().list.extend(ended);
        self.tell();
    }

    /// Moves the outcomes since the last call into `into`.
    pub(super) fn outcomes(&self, into: &mut Vec<(Token, Ending)>) {
        let mut outcomes = self.outcomes_now();
        outcomes.told = false;
        std::mem::swap(&mut outcomes.list, into);
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
    pub(super) async fn knock(&self) {
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
    use std::thread;

    use prometheus_client::metrics::histogram::Histogram;

    use super::*;

    #[test]
    fn a_thread_may_wait_without_a_deadline() {
        let inbox = Inbox::new(HandlerLatency::new(Histogram::new([])));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| inbox.take_blocking(1, Duration::MAX));
            while inbox.blocking.load(Ordering::SeqCst) == 0 && !waiting.is_finished() {
                thread::yield_now();
            }
            inbox.end();
            assert!(waiting.join().expect("it waits").is_empty());
        });
    }
}
