//! Notifications of the native half for the Python half: finished operations, events, requests for credentials, log lines. A thread of the Python half fetches
//! them, so that no native thread ever waits for the interpreter.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak},
    time::{Duration, Instant},
};

use pyo3::{Bound, PyResult, Python, pyclass, pymethods};
use retryrmq::log_buffer;
use retryrmq_bindings::{Events, json_rows};

use crate::{
    credential_request::{CredentialRequest, ReplySender},
    logging,
    wakeups::Wakeups,
};

/// How often to try a lock that may stay locked forever.
const TRIES: usize = 1_000;

#[derive(Default)]
struct Pending {
    finished: Vec<u64>,
    events: Events<u64>,
    /// Keyed by provider. `None`: there will be no more requests for it.
    credential_requests: Vec<(u64, Option<ReplySender>)>,
    ended: bool,
}

#[derive(Default)]
pub(crate) struct Notifier {
    pending: Mutex<Pending>,
    changed: Condvar,
    /// For a fetcher that must not block its thread.
    wakeups: OnceLock<Wakeups>,
}

impl Notifier {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
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
    pub(crate) fn event(&self, listener: u64, event: &retryrmq::Event) {
        let has_room = self.lock().events.has_room(listener);
        let row = has_room.then(|| json_rows::event(event));
        self.lock().events.put(listener, row);
        self.wake();
    }

    /// Adds a request for a provider of credentials, or `None` if there will be no more.
    pub(crate) fn credential_request(&self, provider: u64, answer: Option<ReplySender>) {
        let mut pending = self.lock();
        if pending.ended {
            return; // nobody fetches it
        }
        pending.credential_requests.push((provider, answer));
        drop(pending);
        self.wake();
    }

    /// Announces that there are log lines.
    pub(crate) fn log_lines_arrived(&self) {
        // A thread between looking at the log and waiting for notifications holds the lock, and would miss this. A fork may have copied the lock
        // locked, so it is tried and not waited for.
        for _ in 0..TRIES {
            match self.pending.try_lock() {
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
                _ => break,
            }
        }
        self.wake();
    }
}

/// The queue of which log lines are fetched. Its lock is only tried: a fork may have copied it locked.
static LOG_READER: Mutex<Weak<Notifier>> = Mutex::new(Weak::new());

/// Announces log lines to this queue.
fn send_log_lines_to(notifications: &Arc<Notifier>) {
    if let Ok(mut reader) = LOG_READER.try_lock() {
        *reader = Arc::downgrade(notifications);
    }
    log_buffer::capture(|| {
        if let Ok(reader) = LOG_READER.try_lock()
            && let Some(notifications) = reader.upgrade()
        {
            notifications.log_lines_arrived();
        }
    });
}

/// The notifications for one process.
#[pyclass(frozen, module = "retryrmq._native")]
#[derive(Default)]
pub(crate) struct NotificationQueue(pub(crate) Arc<Notifier>);

/// Tickets, events as rows with their listeners, requests with their providers, log lines, and the number of dropped events.
type Notifications<'py> = (
    Vec<u64>,
    Vec<(u64, String)>,
    Vec<(u64, Option<Bound<'py, CredentialRequest>>)>,
    Vec<logging::Line>,
    u32,
);

#[pymethods]
impl NotificationQueue {
    #[new]
    fn new() -> Self {
        let notifications = Self::default();
        send_log_lines_to(&notifications.0);
        notifications
    }

    /// Waits for notifications, for at most `seconds`. `None` after the end.
    fn fetch<'py>(&self, py: Python<'py>, seconds: f64) -> PyResult<Option<Notifications<'py>>> {
        let deadline = Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 3600.0));
        let (finished, (events, missed), credential_requests, ended, lines) = py.detach(|| {
            let mut pending = self.0.lock();
            loop {
                if let Some(wakeups) = self.0.wakeups.get() {
                    wakeups.clear();
                }
                let lines = logging::take();
                let left = deadline.saturating_duration_since(Instant::now());
                let any = !pending.finished.is_empty()
                    || !pending.events.is_empty()
                    || !pending.credential_requests.is_empty()
                    || !lines.is_empty();
                if any || pending.ended || left.is_zero() {
                    return (
                        std::mem::take(&mut pending.finished),
                        pending.events.take(),
                        std::mem::take(&mut pending.credential_requests),
                        pending.ended,
                        lines,
                    );
                }
                pending = self
                    .0
                    .changed
                    .wait_timeout(pending, left)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0;
            }
        });
        if ended
            && finished.is_empty()
            && events.is_empty()
            && credential_requests.is_empty()
            && lines.is_empty()
        {
            return Ok(None);
        }
        let credential_requests = credential_requests
            .into_iter()
            .map(|(provider, answer)| {
                let request = answer
                    .map(|answer| Bound::new(py, CredentialRequest::new(answer)))
                    .transpose()?;
                Ok((provider, request))
            })
            .collect::<PyResult<Vec<_>>>()?;
        Ok(Some((
            finished,
            events.into(),
            credential_requests,
            lines,
            missed,
        )))
    }

    /// A file descriptor that is readable when there may be notifications, until they are fetched. It belongs to this queue.
    fn wakeups(&self) -> PyResult<i32> {
        if self.0.wakeups.get().is_none() {
            // Another thread may have set it meanwhile, which is as good.
            let _ = self.0.wakeups.set(Wakeups::new()?);
        }
        Ok(self.0.wakeups.get().map_or(-1, Wakeups::readable))
    }

    /// Wakes everyone who waits for notifications.
    fn end(&self) {
        let unasked = {
            let mut pending = self.0.lock();
            pending.ended = true;
            std::mem::take(&mut pending.credential_requests)
        };
        drop(unasked); // outside the lock: the drop wakes whoever waits for the answers
        self.0.changed.notify_all();
        self.0.wake();
    }
}
