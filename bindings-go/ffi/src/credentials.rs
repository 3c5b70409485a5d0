//! The credentials, asked of the Go half: a request is a notification, and its answer a call.

use std::{
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use retryrmq::{Credentials, Login};
use retryrmq_bindings::{CredentialReply, CredentialRequests};

use crate::{
    notifications::{self, CredentialRequest},
    object_count::{LiveObject, ObjectKind},
};

/// What a function gave. No `Debug`: it holds a secret.
#[derive(uniffi::Enum)]
#[allow(missing_debug_implementations)]
pub enum CredentialsAnswer {
    /// Who logs in.
    Login {
        /// The user.
        user: String,
        /// The password, or a token.
        password: String,
        /// How long that is good for, in nanoseconds, where it is known.
        lifetime: Option<u64>,
    },
    /// No login.
    Failed {
        /// Why, as the rest of a sentence.
        why: String,
    },
}

static OPEN: LazyLock<Mutex<CredentialRequests>> = LazyLock::new(Mutex::default);

fn open() -> MutexGuard<'static, CredentialRequests> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request that is open. Dropped unanswered, because the answer is late or its client is gone, it is taken back.
struct OpenRequest {
    provider: u64,
    number: u64,
    _alive: LiveObject,
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        if open().take(self.number).is_some() {
            notifications::credential_request(self.notification(true));
        }
    }
}

impl OpenRequest {
    fn notification(&self, over: bool) -> CredentialRequest {
        CredentialRequest {
            provider: self.provider,
            number: self.number,
            over,
        }
    }
}

/// The function of the Go half that has this number.
pub(crate) fn credentials(provider: u64) -> Credentials {
    Credentials::new(move || async move {
        // The requests of a process never end, so there is always a number.
        let Some((number, answered)) = open().ask() else {
            return unanswered();
        };
        let request = OpenRequest {
            provider,
            number,
            _alive: LiveObject::new(ObjectKind::CredentialRequest),
        };
        notifications::credential_request(request.notification(false));
        answered.await.unwrap_or_else(|_| unanswered())
    })
}

fn unanswered() -> CredentialReply {
    Err("nobody answered".to_owned())
}

/// Answers a request. An answer that nobody waits for any more is let go.
#[uniffi::export]
pub fn answer_credentials(number: u64, given: CredentialsAnswer) {
    let Some(answer) = open().take(number) else {
        return;
    };
    let _ = answer.send(match given {
        CredentialsAnswer::Login {
            user,
            password,
            lifetime,
        } => {
            let login = Login::new(user, password);
            Ok(match lifetime {
                Some(lifetime) => login.expires_in(Duration::from_nanos(lifetime)),
                None => login,
            })
        }
        CredentialsAnswer::Failed { why } => Err(why),
    });
}
