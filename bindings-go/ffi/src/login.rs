//! Who logs in, asked of the Go half: a question is a piece of news, and its answer a call.

use std::{
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use retryrmq::{Credentials, Login};
use retryrmq_bindings::{Questions, Said};

use crate::{
    live::{Alive, Kind},
    news::{self, Question},
};

/// What a function gave. No `Debug`: it holds a secret.
#[derive(uniffi::Enum)]
#[allow(missing_debug_implementations)]
pub enum Given {
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

static OPEN: LazyLock<Mutex<Questions>> = LazyLock::new(Mutex::default);

fn open() -> MutexGuard<'static, Questions> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A question that is open. Dropped unanswered, because the answer is late or its client is gone, it is taken back.
struct Asked {
    credentials: u64,
    number: u64,
    _alive: Alive,
}

impl Drop for Asked {
    fn drop(&mut self) {
        if open().take(self.number).is_some() {
            news::question(self.news(true));
        }
    }
}

impl Asked {
    fn news(&self, over: bool) -> Question {
        Question {
            credentials: self.credentials,
            number: self.number,
            over,
        }
    }
}

/// The function of the Go half that has this number.
pub(crate) fn credentials(credentials: u64) -> Credentials {
    Credentials::new(move || async move {
        // The questions of a process never end, so there is always a number.
        let Some((number, answered)) = open().ask() else {
            return nobody();
        };
        let asked = Asked {
            credentials,
            number,
            _alive: Alive::new(Kind::Question),
        };
        news::question(asked.news(false));
        answered.await.unwrap_or_else(|_| nobody())
    })
}

fn nobody() -> Said {
    Err("nobody answered".to_owned())
}

/// Answers a question. An answer that nobody waits for any more is let go.
#[uniffi::export]
pub fn answer(number: u64, given: Given) {
    let Some(answer) = open().take(number) else {
        return;
    };
    let _ = answer.send(match given {
        Given::Login {
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
        Given::Failed { why } => Err(why),
    });
}
