//! Something that takes time: begun at once, announced by the bridge when it is done.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use tokio::task::AbortHandle;

use crate::{
    bridge::{Answer, Shared},
    errors::{Failed, Result, thrown},
    live::{Alive, Kind},
};

/// Whoever owes the answer. One that is dropped without it, as by a panic in the middle of the work, answers with an error:
/// somebody waits, and the process stays alive for it.
struct Owing {
    bridge: Arc<Shared>,
    ticket: f64,
    answered: bool,
    _alive: Alive,
}

impl Owing {
    fn finish(mut self, answer: Answer) {
        self.answered = true;
        self.bridge.finished(self.ticket, answer);
    }
}

impl Drop for Owing {
    fn drop(&mut self) {
        if !self.answered {
            let broken = Failed {
                code: "error",
                message: "this was begun and broke off by a fault of retryrmq itself; whether it was done is not known".into(),
                detail: String::new(),
            };
            self.bridge.finished(self.ticket, Answer::Failed(broken));
        }
    }
}

/// Begins `work` on the process's runtime. Its first steps are made here and now, so that operations begin in the order in
/// which they were asked for. The answer comes with this ticket.
pub(crate) fn begin<T, E, F>(
    bridge: &Arc<Shared>,
    ticket: f64,
    work: F,
    answer: impl FnOnce(T) -> Answer + Send + 'static,
) -> Result<()>
where
    T: Send + 'static,
    E: Into<Failed> + Send + 'static,
    F: Future<Output = std::result::Result<T, E>> + Send + 'static,
{
    attempt(bridge, ticket, work, answer).map(drop)
}

/// As [`begin`], for work that may be given up; there is nothing to give up when it was done at once.
pub(crate) fn attempt<T, E, F>(
    bridge: &Arc<Shared>,
    ticket: f64,
    work: F,
    answer: impl FnOnce(T) -> Answer + Send + 'static,
) -> Result<Option<AbortHandle>>
where
    T: Send + 'static,
    E: Into<Failed> + Send + 'static,
    F: Future<Output = std::result::Result<T, E>> + Send + 'static,
{
    let runtime = retryrmq::runtime().map_err(|error| thrown(&error))?;
    let owing = Owing {
        bridge: Arc::clone(bridge),
        ticket,
        answered: false,
        _alive: Alive::new(Kind::Operation),
    };
    let finish = move |result: std::result::Result<T, E>| {
        owing.finish(match result {
            Ok(value) => answer(value),
            Err(error) => Answer::Failed(error.into()),
        });
    };
    let mut work: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(work);
    let _inside = runtime.enter();
    let mut first = || work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    Ok(match catch_unwind(AssertUnwindSafe(&mut first)) {
        Ok(Poll::Ready(result)) => {
            finish(result);
            None
        }
        Ok(Poll::Pending) => {
            let going_on = runtime.spawn(async move { finish(work.await) });
            Some(going_on.abort_handle())
        }
        Err(_) => {
            drop(finish);
            None
        }
    })
}
