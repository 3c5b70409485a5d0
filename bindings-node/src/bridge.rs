//! News for one environment (the main thread, or a worker): finished operations, messages that wait, events, log lines. The environment is
//! woken once for everything, and fetches it in one call.
//!
//! The TypeScript half numbers operations and subscriptions with JavaScript numbers. A narrower type would overflow in a process that lives
//! long, and an answer would not find its operation.

use std::sync::Arc;

use napi_derive::napi;
use retryrmq::Login;

use crate::{
    errors::Result,
    live::{Alive, Kind},
    logging,
    outcome::duration,
    shared::{Shared, Wake},
};

/// The bridge of one environment.
#[napi]
pub struct Bridge {
    pub(crate) shared: Arc<Shared>,
    _alive: Alive,
}

#[napi]
impl Bridge {
    /// A bridge that wakes its environment by calling `wake`.
    #[napi(constructor, catch_unwind)]
    pub fn new(wake: Wake) -> Self {
        let shared = Arc::new(Shared::new(wake));
        logging::told_to(&shared);
        Self {
            shared,
            _alive: Alive::new(Kind::Bridge),
        }
    }

    /// Answers a question: the login, and for how many milliseconds from now the broker accepts it.
    #[napi(catch_unwind)]
    pub fn answer(
        &self,
        question: f64,
        user: String,
        password: String,
        expires_in: Option<f64>,
    ) -> Result<()> {
        let mut login = Login::new(user, password);
        if let Some(ms) = expires_in {
            login = login.expires_in(duration("expiresIn", ms)?);
        }
        self.shared.answered(question, Ok(login));
        Ok(())
    }

    /// Ends: wakes its environment no more, and releases what that takes.
    #[napi(catch_unwind)]
    pub fn end(&self) {
        self.shared.end();
    }

    /// Says why a question has no answer.
    #[napi(catch_unwind)]
    pub fn refuse(&self, question: f64, why: String) {
        self.shared.answered(question, Err(why));
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // The environment ends: everyone who waits for an answer of it gets an error.
        let unanswered = self.shared.lock().questions.end();
        drop(unanswered);
    }
}
