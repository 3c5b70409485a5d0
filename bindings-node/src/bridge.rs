//! What the native half has to tell one environment (the main thread, or a worker): finished operations, messages that
//! wait, events, log lines. It is woken once for all that is there, and fetches it in one call.
//!
//! The TypeScript half numbers operations and subscriptions, and the numbers are JavaScript's own: a narrower type would
//! begin anew in a process that lives long, and an answer would find nobody.

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

    /// The answer to a question: who logs in, and for how many milliseconds from now the broker takes that.
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

    /// Why there is no answer to a question.
    #[napi(catch_unwind)]
    pub fn refuse(&self, question: f64, why: String) {
        self.shared.answered(question, Err(why));
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // The environment is at its end: whoever waits for an answer of it has one now, that there will be none.
        let unanswered = self.shared.lock().questions.end();
        drop(unanswered);
    }
}
