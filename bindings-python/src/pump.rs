//! News from the native half for the Python half: finished operations, events, questions, log lines. A thread of the Python half fetches
//! them, so that no native thread ever waits for the interpreter.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak},
    time::{Duration, Instant},
};

use pyo3::{Bound, PyResult, Python, pyclass, pymethods};
use retryrmq::log_buffer;
use retryrmq_bindings::{Events, json_rows};

use crate::{
    logging,
    question::{Answer, Question},
    wakeups::Wakeups,
};

/// How often to try a lock that may stay locked forever.
const TRIES: usize = 1_000;

#[derive(Default)]
struct Waiting {
    finished: Vec<u64>,
    events: Events<u64>,
    /// Keyed by asker. `None`: there will be no more questions for it.
    asked: Vec<(u64, Option<Answer>)>,
    ended: bool,
}

#[derive(Default)]
pub(crate) struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
    /// For a fetcher that must not block its thread.
    wakeups: OnceLock<Wakeups>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        self.changed.notify_one();
        if let Some(wakeups) = self.wakeups.get() {
            wakeups.send();
        }
    }

    /// Announces that the operation with this ticket is finished.
    pub(crate) fn finished(&self, ticket: u64) {
        self.lock().finished.push(ticket);
        self.wake();
    }

    /// Adds an event for a listener.
    pub(crate) fn told(&self, listener: u64, event: &retryrmq::Event) {
        let has_room = self.lock().events.has_room(listener);
        let row = has_room.then(|| json_rows::event(event));
        self.lock().events.put(listener, row);
        self.wake();
    }

    /// Adds a question for an asker, or `None` if there will be no more.
    pub(crate) fn asked(&self, asker: u64, answer: Option<Answer>) {
        let mut waiting = self.lock();
        if waiting.ended {
            return; // nobody fetches it
        }
        waiting.asked.push((asker, answer));
        drop(waiting);
        self.wake();
    }

    /// Announces that there are log lines.
    pub(crate) fn nudge(&self) {
        // A thread between looking at the log and waiting for news holds the lock, and would miss this. A fork may have copied the lock
        // locked, so it is tried and not waited for.
        for _ in 0..TRIES {
            match self.waiting.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                _ => break,
            }
        }
        self.wake();
    }
}

/// The pump that fetches log lines. Its lock is only tried: a fork may have copied it locked.
static READER: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

/// Sends log lines to this pump.
fn told_to(pump: &Arc<Shared>) {
    if let Ok(mut reader) = READER.try_lock() {
        *reader = Arc::downgrade(pump);
    }
    log_buffer::capture(|| {
        if let Ok(reader) = READER.try_lock()
            && let Some(pump) = reader.upgrade()
        {
            pump.nudge();
        }
    });
}

/// A queue of news for one process.
#[pyclass(frozen, module = "retryrmq._native")]
#[derive(Default)]
pub(crate) struct Pump(pub(crate) Arc<Shared>);

/// Tickets, events as rows with their listeners, questions with their askers, log lines, and the number of dropped events.
type News<'py> = (
    Vec<u64>,
    Vec<(u64, String)>,
    Vec<(u64, Option<Bound<'py, Question>>)>,
    Vec<logging::Line>,
    u32,
);

#[pymethods]
impl Pump {
    #[new]
    fn new() -> Self {
        let pump = Self::default();
        told_to(&pump.0);
        pump
    }

    /// Waits for news, for at most `seconds`. `None` after the end.
    fn news<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Option<News<'py>>> {
        let deadline = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        let (finished, (events, missed), asked, ended, lines) = py.detach(|| {
            let mut waiting = self.0.lock();
            loop {
                if let Some(wakeups) = self.0.wakeups.get() {
                    wakeups.clear();
                }
                let lines = logging::take();
                let left = deadline.saturating_duration_since(Instant::now());
                let news = !waiting.finished.is_empty()
                    || !waiting.events.is_empty()
                    || !waiting.asked.is_empty()
                    || !lines.is_empty();
                if news || waiting.ended || left.is_zero() {
                    return (
                        std::mem::take(&mut waiting.finished),
                        waiting.events.take(),
                        std::mem::take(&mut waiting.asked),
                        waiting.ended,
                        lines,
                    );
                }
                waiting = self
                    .0
                    .changed
                    .wait_timeout(waiting, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        });
        if ended && finished.is_empty() && events.is_empty() && asked.is_empty() && lines.is_empty()
        {
            return Ok(None);
        }
        let asked = asked
            .into_iter()
            .map(|(asker, answer)| {
                let question = answer
                    .map(|answer| Bound::new(py, Question::new(answer)))
                    .transpose()?;
                Ok((asker, question))
            })
            .collect::<PyResult<Vec<_>>>()?;
        Ok(Some((finished, events.into(), asked, lines, missed)))
    }

    /// A file descriptor that is readable when there may be news, until they are fetched. It belongs to the pump.
    fn wakeups(&self) -> PyResult<i32> {
        if self.0.wakeups.get().is_none() {
            // Another thread may have set it meanwhile, which is as good.
            let _ = self.0.wakeups.set(Wakeups::new()?);
        }
        Ok(self.0.wakeups.get().map_or(-1, Wakeups::readable))
    }

    /// Wakes everyone who waits for news.
    fn end(&self) {
        let unasked = {
            let mut waiting = self.0.lock();
            waiting.ended = true;
            std::mem::take(&mut waiting.asked)
        };
        drop(unasked); // outside the lock: the drop wakes whoever waits for the answers
        self.0.changed.notify_all();
        self.0.wake();
    }
}
