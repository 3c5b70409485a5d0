//! The login from a Python function. The Python half fetches a question as news, and answers it with a call.

use std::sync::Arc;

use retryrmq::Credentials;
use tokio::sync::oneshot;

use crate::pump::Shared;

const UNANSWERED: &str =
    "it is not called any more, because the client was closed or Python is ending";

/// Asks one asker of the Python half, and says when there will be no more questions.
pub(crate) struct Asking {
    pump: Arc<Shared>,
    asker: u64,
    /// A fork may have copied the pump's lock in its locked state.
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

    /// Lets the Python half release the function.
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
