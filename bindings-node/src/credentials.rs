//! The login from a JavaScript function. It is not called from here: a request is a notification, and the environment answers it with a
//! call.

use std::sync::{Arc, Weak};

use retryrmq::Credentials;
use retryrmq_bindings::CredentialReply;

use crate::{
    notifier::Notifier,
    object_count::{LiveObject, ObjectKind},
};

/// An open request. Dropping it withdraws it: the answer took too long, or is no longer needed.
struct CredentialRequest {
    notifier: Weak<Notifier>,
    number: u64,
    _alive: LiveObject,
}

impl Drop for CredentialRequest {
    fn drop(&mut self) {
        if let Some(notifier) = self.notifier.upgrade() {
            notifier.withdraw(self.number);
        }
    }
}

/// A function of an environment, by its number there. When nobody can ask it any more, the environment forgets it.
struct CredentialProvider {
    notifier: Weak<Notifier>,
    number: f64,
    _alive: LiveObject,
}

impl CredentialProvider {
    async fn ask(self: Arc<Self>) -> CredentialReply {
        let ended =
            || "the thread that it runs in has ended; connect again in one that lives".to_owned();
        let (request, answered) = {
            let notifier = self.notifier.upgrade().ok_or_else(ended)?;
            let (number, answered) = notifier
                .request_credentials(self.number)
                .ok_or_else(ended)?;
            let request = CredentialRequest {
                notifier: Weak::clone(&self.notifier),
                number,
                _alive: LiveObject::new(ObjectKind::CredentialRequest),
            };
            (request, answered)
        };
        let said = answered.await;
        drop(request);
        said.unwrap_or_else(|_| Err(ended()))
    }
}

impl Drop for CredentialProvider {
    fn drop(&mut self) {
        if let Some(notifier) = self.notifier.upgrade() {
            notifier.forgotten(self.number);
        }
    }
}

/// The credentials from the function with this number.
pub(crate) fn provider(notifier: &Arc<Notifier>, function: f64) -> Credentials {
    let function = Arc::new(CredentialProvider {
        notifier: Arc::downgrade(notifier),
        number: function,
        _alive: LiveObject::new(ObjectKind::CredentialProvider),
    });
    Credentials::new(move || Arc::clone(&function).ask())
}
