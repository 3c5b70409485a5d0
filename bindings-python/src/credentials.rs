//! The login by a function of Python's. A question is news, which the Python half fetches; the answer is a call.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::{PyResult, Python, pyclass, pymethods};
use retryrmq::{Credentials, Login};
use tokio::sync::oneshot;

use crate::{
    live::{Alive, Kind, Own},
    options::seconds,
    pump::Shared,
};

/// Where an answer goes: a login, or why there is none.
pub(crate) type Answer = oneshot::Sender<Result<Login, String>>;

const UNANSWERED: &str =
    "it is not called any more, because the client was closed or Python is ending";

/// Asks one asker of the Python half, which is told when nobody can ask it any more.
pub(crate) struct Asking {
    pump: Arc<Shared>,
    asker: u64,
    /// A fork may have copied the pump's lock locked.
    pid: u32,
}

impl Asking {
    pub(crate) fn new(pump: Arc<Shared>, asker: u64) -> Arc<Self> {
        Arc::new(Self {
            pump,
            asker,
            pid: std::process::id(),
        })
    }

    pub(crate) fn credentials(self: &Arc<Self>) -> Credentials {
        let asking = Arc::clone(self);
        Credentials::new(move || {
            let (answer, answered) = oneshot::channel();
            asking.pump.asked(asking.asker, Some(answer));
            async move { answered.await.unwrap_or_else(|_| Err(UNANSWERED.into())) }
        })
    }

    /// Has the Python half let go of the function.
    pub(crate) fn end(&self) {
        if self.pid == std::process::id() {
            self.pump.asked(self.asker, None);
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.end();
    }
}

/// Who logs in? To be answered once; one that is dropped is a refusal.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct Question {
    answer: Own<Mutex<Option<Answer>>>,
    _alive: Alive,
}

impl Question {
    pub(crate) fn new(answer: Answer) -> Self {
        Self {
            answer: Own::new(Mutex::new(Some(answer))),
            _alive: Alive::new(Kind::Question),
        }
    }

    fn send(&self, result: Result<Login, String>) {
        if !self.answer.is_here() {
            return;
        }
        let answer = self
            .answer
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(answer) = answer {
            // It comes in vain when nobody waits any more.
            let _ = answer.send(result);
        }
    }
}

#[pymethods]
impl Question {
    /// Who logs in, and for how many seconds the password is good.
    fn answer(
        &self,
        py: Python<'_>,
        user: String,
        password: String,
        expires_in: Option<f64>,
    ) -> PyResult<()> {
        let mut login = Login::new(user, password);
        if let Some(lifetime) = expires_in {
            login = login.expires_in(seconds(py, "expires_in", lifetime)?);
        }
        self.send(Ok(login));
        Ok(())
    }

    /// Says why there is no login.
    fn refuse(&self, why: String) {
        self.send(Err(why));
    }

    /// Whether somebody still waits for the answer.
    #[getter]
    fn is_open(&self) -> bool {
        self.answer.is_here()
            && self
                .answer
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .as_ref()
                .is_some_and(|answer| !answer.is_closed())
    }
}
