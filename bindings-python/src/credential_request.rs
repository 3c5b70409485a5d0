//! A request for credentials, to a Python function.

use std::sync::{Mutex, PoisonError};

use pyo3::{PyResult, Python, pyclass, pymethods};
use retryrmq::Login;
use tokio::sync::oneshot;

use crate::{
    object_count::{LiveObject, ObjectKind, ProcessBound},
    options::seconds,
};

/// The answer: a login, or why there is none.
pub(crate) type ReplySender = oneshot::Sender<Result<Login, String>>;

/// A request for credentials. It is answered once; dropping it is a refusal.
#[pyclass(frozen, module = "retryrmq._native")]
pub(crate) struct CredentialRequest {
    answer: ProcessBound<Mutex<Option<ReplySender>>>,
    _alive: LiveObject,
}

impl CredentialRequest {
    pub(crate) fn new(answer: ReplySender) -> Self {
        Self {
            answer: ProcessBound::new(Mutex::new(Some(answer))),
            _alive: LiveObject::new(ObjectKind::CredentialRequest),
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
            // Nobody may wait any more.
            let _ = answer.send(result);
        }
    }
}

#[pymethods]
impl CredentialRequest {
    /// Answers with a login, and for how many seconds the password is valid.
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

    /// Answers that there is no login, and why.
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
