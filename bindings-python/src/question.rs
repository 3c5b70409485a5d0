//! A question to a function of Python's: who logs in?

use std::sync::{Mutex, PoisonError};

use pyo3::{PyResult, Python, pyclass, pymethods};
use retryrmq::Login;
use tokio::sync::oneshot;

use crate::{
    live::{Alive, Kind, Own},
    options::seconds,
};

/// Where an answer goes: a login, or why there is none.
pub(crate) type Answer = oneshot::Sender<Result<Login, String>>;

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
