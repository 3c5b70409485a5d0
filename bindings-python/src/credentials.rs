//! The login from a Python function. The Python half fetches a request as a notification, and answers it with a call.

use std::sync::Arc;

use retryrmq::Credentials;
use tokio::sync::oneshot;

use crate::notification_queue::Notifier;

const UNANSWERED: &str =
    "it is not called any more, because the client was closed or Python is ending";

/// Asks one function of the Python half, by its number there, and says when there will be no more requests.
pub(crate) struct CredentialProvider {
    notifications: Arc<Notifier>,
    number: u64,
    /// A fork may have copied the lock of the notifications in its locked state.
    pid: u32,
}

impl CredentialProvider {
    pub(crate) fn new(notifications: Arc<Notifier>, number: u64) -> Arc<Self> {
        Arc::new(Self {
            notifications,
            number,
            pid: std::process::id(),
        })
    }

    pub(crate) fn credentials(self: &Arc<Self>) -> Credentials {
        let provider = Arc::clone(self);
        Credentials::new(move || {
            let (answer, answered) = oneshot::channel();
            provider
                .notifications
                .credential_request(provider.number, Some(answer));
            async move { answered.await.unwrap_or_else(|_| Err(UNANSWERED.into())) }
        })
    }

    /// Lets the Python half release the function.
    pub(crate) fn end(&self) {
        if self.pid == std::process::id() {
            self.notifications.credential_request(self.number, None);
        }
    }
}

impl Drop for CredentialProvider {
    fn drop(&mut self) {
        self.end();
    }
}
