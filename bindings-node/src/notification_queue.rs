//! Notifications for one environment (the main thread, or a worker): finished operations, messages that wait, events, log lines. The environment is
//! woken once for everything, and fetches it in one call.
//!
//! The TypeScript half numbers operations and subscriptions with JavaScript numbers. A narrower type would overflow in a process that lives
//! long, and an answer would not find its operation.

use std::sync::Arc;

use napi_derive::napi;
use retryrmq::Login;

use crate::{
    errors::Result,
    logging,
    notifier::{Notifier, Wake},
    object_count::{LiveObject, ObjectKind},
    outcome::duration,
};

/// The notifications for one environment.
#[napi]
pub struct NotificationQueue {
    pub(crate) notifier: Arc<Notifier>,
    _alive: LiveObject,
}

#[napi]
impl NotificationQueue {
    /// A queue that wakes its environment by calling `wake`.
    #[napi(constructor, catch_unwind)]
    pub fn new(wake: Wake) -> Self {
        let notifier = Arc::new(Notifier::new(wake));
        logging::send_log_lines_to(&notifier);
        Self {
            notifier,
            _alive: LiveObject::new(ObjectKind::NotificationQueue),
        }
    }

    /// Answers a request: the login, and for how many milliseconds from now the broker accepts it.
    #[napi(catch_unwind)]
    pub fn answer(
        &self,
        request: f64,
        user: String,
        password: String,
        expires_in: Option<f64>,
    ) -> Result<()> {
        let mut login = Login::new(user, password);
        if let Some(ms) = expires_in {
            login = login.expires_in(duration("expiresIn", ms)?);
        }
        self.notifier.reply(request, Ok(login));
        Ok(())
    }

    /// Ends: wakes its environment no more, and releases what that takes.
    #[napi(catch_unwind)]
    pub fn end(&self) {
        self.notifier.end();
    }

    /// Says why a request has no answer.
    #[napi(catch_unwind)]
    pub fn refuse(&self, request: f64, why: String) {
        self.notifier.reply(request, Err(why));
    }
}

impl Drop for NotificationQueue {
    fn drop(&mut self) {
        // The environment ends: everyone who waits for an answer of it gets an error.
        let unanswered = self.notifier.lock().credential_requests.end();
        drop(unanswered);
    }
}
