//! An asynchronous operation. It starts at once; a thread waits for it, or an event loop is told when it is done.

use std::{
    future::Future,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pyo3::{Py, PyAny, PyRef, PyResult, Python, pyclass, pymethods};
use retryrmq_bindings::BindingError;
use tokio::task::AbortHandle;

use crate::{
    errors::{exception, raised},
    notification_queue::{NotificationQueue, Notifier},
    object_count::{LiveObject, ObjectKind},
};

/// How long to wait between two checks for signals, so that Ctrl-C works while a thread waits.
const SLICE: Duration = Duration::from_millis(200);

/// Makes the answer when somebody takes it.
type Answer = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Py<PyAny>> + Send>;

enum State {
    Running {
        /// Several, if somebody waits again after an earlier wait ended.
        tell: Vec<(Arc<Notifier>, u64)>,
    },
    Done(Answer),
    Taken,
}

struct Completion {
    state: Mutex<State>,
    done: Condvar,
    given_up: AtomicBool,
}

impl Completion {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn finish(&self, answer: Answer) {
        let before = std::mem::replace(&mut *self.lock(), State::Done(answer));
        self.done.notify_all();
        if let State::Running { tell } = before {
            for (notifications, ticket) in tell {
                notifications.finished(ticket);
            }
        }
    }
}

/// An asynchronous operation.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Operation {
    shared: Arc<Completion>,
    /// The process that runs it. In a forked child nothing would finish it.
    pid: u32,
    /// The running work; `None` if it was done at once.
    work: Option<AbortHandle>,
    given_up_when_dropped: bool,
    _alive: LiveObject,
}

impl Operation {
    /// Starts `work` on the process's runtime. Its first steps run on this thread, so that operations start in the order of the calls.
    pub(crate) fn begin<T, E, F, C>(py: Python<'_>, work: F, convert: C) -> PyResult<Self>
    where
        T: Send + 'static,
        E: Into<BindingError> + Send + 'static,
        F: Future<Output = Result<T, E>> + Send + 'static,
        C: for<'py> FnOnce(Python<'py>, T) -> PyResult<Py<PyAny>> + Send + 'static,
    {
        let shared = Arc::new(Completion {
            state: Mutex::new(State::Running { tell: Vec::new() }),
            done: Condvar::new(),
            given_up: AtomicBool::new(false),
        });
        let owed = Arc::clone(&shared);
        let end = move |result: Option<Result<T, E>>| {
            let given_up = owed.given_up.load(Ordering::Relaxed);
            // What only a success needs is released at once after a failure, above all the login's function.
            let answer: Answer = match result {
                Some(Ok(value)) => Box::new(move |py| convert(py, value)),
                Some(Err(error)) => Box::new(move |py| Err(raised(py, error))),
                None if given_up => {
                    let why = "this was given up; begin it again";
                    Box::new(move |py| Err(exception(py, "closed", why)))
                }
                None => Box::new(|py| Err(raised(py, BindingError::broken()))),
            };
            owed.finish(answer);
        };
        let work = py
            .detach(|| retryrmq_bindings::begin(work, end))
            .map_err(|error| raised(py, error))?;
        Ok(Self {
            shared,
            pid: std::process::id(),
            work,
            given_up_when_dropped: false,
            _alive: LiveObject::new(ObjectKind::Operation),
        })
    }
}

impl Operation {
    /// For work that may take forever, and that nobody else needs.
    pub(crate) fn given_up_when_dropped(mut self) -> Self {
        self.given_up_when_dropped = true;
        self
    }

    fn stop(&self) {
        // In a forked child, threads that do not exist there may hold its locks.
        if let Some(work) = &self.work
            && self.pid == std::process::id()
        {
            self.shared.given_up.store(true, Ordering::Relaxed);
            work.abort();
        }
    }

    /// Raises in a forked child, where nothing would finish it.
    fn here(&self, py: Python<'_>) -> PyResult<()> {
        if self.pid == std::process::id() {
            return Ok(());
        }
        let message =
            "this was begun before the process was forked; connect after the fork, in each process";
        Err(exception(py, "forked", message))
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.given_up_when_dropped {
            self.stop();
        }
    }
}

#[pymethods]
impl Operation {
    /// Lets `notifications` announce its end with this ticket; at once if it is done already.
    fn notify(
        &self,
        py: Python<'_>,
        notifications: PyRef<'_, NotificationQueue>,
        ticket: u64,
    ) -> PyResult<()> {
        self.here(py)?;
        let mut state = self.shared.lock();
        match &mut *state {
            State::Running { tell } => tell.push((Arc::clone(&notifications.0), ticket)),
            State::Done(_) | State::Taken => notifications.0.finished(ticket),
        }
        Ok(())
    }

    /// Waits, and checks for signals meanwhile. Returns the answer or raises; returns `None` after `seconds`.
    #[pyo3(signature = (seconds=None))]
    fn wait(&self, py: Python<'_>, seconds: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        self.here(py)?;
        let deadline = seconds.map(|seconds| {
            std::time::Instant::now() + Duration::from_secs_f64(seconds.clamp(0.0, 1e6))
        });
        loop {
            let slice = deadline.map_or(SLICE, |deadline| {
                deadline
                    .saturating_duration_since(std::time::Instant::now())
                    .min(SLICE)
            });
            let done = py.detach(|| {
                let state = self.shared.lock();
                let waited = self
                    .shared
                    .done
                    .wait_timeout_while(state, slice, |state| {
                        matches!(state, State::Running { .. })
                    })
                    .unwrap_or_else(PoisonError::into_inner);
                !waited.1.timed_out()
            });
            if done {
                return self.result(py).map(Some);
            }
            py.check_signals()?;
            if deadline.is_some_and(|deadline| std::time::Instant::now() >= deadline) {
                return Ok(None);
            }
        }
    }

    /// Cancels it if it still runs. Whoever waits for it gets an error.
    fn give_up(&self, py: Python<'_>) -> PyResult<()> {
        self.here(py)?;
        py.detach(|| self.stop());
        Ok(())
    }

    /// Whether it is done.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        self.here(py)?;
        Ok(!matches!(*self.shared.lock(), State::Running { .. }))
    }

    /// The answer, once; or raises.
    fn result(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.here(py)?;
        let mut state = self.shared.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(answer) => {
                drop(state);
                answer(py)
            }
            running @ State::Running { .. } => {
                *state = running;
                Err(pyo3::exceptions::PyRuntimeError::new_err(
                    "this operation is still running",
                ))
            }
            State::Taken => Err(pyo3::exceptions::PyRuntimeError::new_err(
                "the answer of this operation was taken already",
            )),
        }
    }
}
