//! What the native half has to tell the Python half: finished operations, events, questions, log lines. A thread of the Python half
//! fetches them, so that no native thread ever waits for the interpreter.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    time::{Duration, Instant},
};

use pyo3::{
    Bound, PyResult, Python, pyclass, pymethods,
    types::{PyDict, PyDictMethods},
};
use retryrmq::lines;
use retryrmq_bindings::Events;

use crate::{
    logging,
    question::{Answer, Question},
};

/// As often is a lock tried that may never be free again.
const TRIES: usize = 1_000;

#[derive(Default)]
struct Waiting {
    finished: Vec<u64>,
    events: Events<u64>,
    /// By asker; one that nobody can ask any more has no question.
    asked: Vec<(u64, Option<Answer>)>,
    ended: bool,
}

#[derive(Default)]
pub(crate) struct Shared {
    waiting: Mutex<Waiting>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that the operation with this ticket is finished.
    pub(crate) fn finished(&self, ticket: u64) {
        self.lock().finished.push(ticket);
        self.changed.notify_one();
    }

    /// Hands over an event for a listener.
    pub(crate) fn told(&self, listener: u64, event: &retryrmq::Event) {
        self.lock().events.put(listener, event);
        self.changed.notify_one();
    }

    /// Hands over a question, or that there will be none for this asker any more.
    pub(crate) fn asked(&self, asker: u64, answer: Option<Answer>) {
        let mut waiting = self.lock();
        if waiting.ended {
            return; // nobody fetches it
        }
        waiting.asked.push((asker, answer));
        drop(waiting);
        self.changed.notify_one();
    }

    /// Has the log fetched.
    pub(crate) fn nudge(&self) {
        // Whoever is between looking at the log and waiting for news holds the lock, and would miss it. A fork may have copied
        // that lock locked: it is tried, not waited for.
        for _ in 0..TRIES {
            match self.waiting.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                _ => break,
            }
        }
        self.changed.notify_one();
    }
}

/// Who is told that there are lines. Only ever tried, never waited for: a fork may have copied it locked.
static READER: Mutex<Weak<Shared>> = Mutex::new(Weak::new());

/// Sends log lines to the reader of this pump.
fn told_to(pump: &Arc<Shared>) {
    if let Ok(mut reader) = READER.try_lock() {
        *reader = Arc::downgrade(pump);
    }
    lines::catch(|| {
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

/// Tickets, events with their listeners, questions with their askers, log lines, events that were dropped.
type News<'py> = (
    Vec<u64>,
    Vec<(u64, &'static str, Bound<'py, PyDict>)>,
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

    /// Waits for news, `seconds` at most. `None` once it was ended.
    fn news<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Option<News<'py>>> {
        let deadline = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        let (finished, (events, missed), asked, ended, lines) = py.detach(|| {
            let mut waiting = self.0.lock();
            loop {
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
        let events = events
            .iter()
            .map(|(listener, event)| Ok((*listener, event.name(), facts(py, event)?)))
            .collect::<PyResult<Vec<_>>>()?;
        let asked = asked
            .into_iter()
            .map(|(asker, answer)| {
                let question = answer
                    .map(|answer| Bound::new(py, Question::new(answer)))
                    .transpose()?;
                Ok((asker, question))
            })
            .collect::<PyResult<Vec<_>>>()?;
        Ok(Some((finished, events, asked, lines, missed)))
    }

    /// Lets whoever waits for news go.
    fn end(&self) {
        let unasked = {
            let mut waiting = self.0.lock();
            waiting.ended = true;
            std::mem::take(&mut waiting.asked)
        };
        drop(unasked); // outside of the lock: who waits for the answers is told
        self.0.changed.notify_all();
    }
}

/// What an event says; what it does not say is left out. Seconds for durations.
fn facts<'py>(py: Python<'py>, event: &retryrmq::Event) -> PyResult<Bound<'py, PyDict>> {
    let facts = event.facts();
    let dict = PyDict::new(py);
    dict.set_item("queue", facts.queue)?;
    if let Some(id) = facts.message_id {
        dict.set_item("message_id", id)?;
    }
    if let Some(attempt) = facts.attempt {
        dict.set_item("attempt", attempt)?;
    }
    if let Some(delay) = facts.delay {
        dict.set_item("delay", delay)?;
    }
    if let Some(reason) = facts.reason {
        dict.set_item("reason", reason.as_str())?;
    }
    if let Some(error) = facts.error {
        dict.set_item("error", error)?;
    }
    if let Some(crashes) = facts.crashes {
        dict.set_item("crashes", crashes)?;
    }
    Ok(dict)
}
