//! Asynchronous operations. They start at once, and the bridge announces their ends.

use std::{future::Future, sync::Arc};

use retryrmq_bindings::Refusal;
use tokio::task::AbortHandle;

use crate::{
    errors::{Result, thrown},
    live::{Alive, Kind},
    shared::{Answer, Shared},
};

/// Starts `work`. There is always an answer with this ticket: somebody waits for it, and it keeps the process alive.
pub(crate) fn begin<T, E, F>(
    bridge: &Arc<Shared>,
    ticket: f64,
    work: F,
    answer: impl FnOnce(T) -> Answer + Send + 'static,
) -> Result<()>
where
    T: Send + 'static,
    E: Into<Refusal> + Send + 'static,
    F: Future<Output = std::result::Result<T, E>> + Send + 'static,
{
    attempt(bridge, ticket, work, answer).map(drop)
}

/// Like [`begin`], for work that can be given up. Returns `None` if it was done at once.
pub(crate) fn attempt<T, E, F>(
    bridge: &Arc<Shared>,
    ticket: f64,
    work: F,
    answer: impl FnOnce(T) -> Answer + Send + 'static,
) -> Result<Option<AbortHandle>>
where
    T: Send + 'static,
    E: Into<Refusal> + Send + 'static,
    F: Future<Output = std::result::Result<T, E>> + Send + 'static,
{
    let (bridge, alive) = (Arc::clone(bridge), Alive::new(Kind::Operation));
    let end = move |result: Option<std::result::Result<T, E>>| {
        let _alive = alive;
        bridge.finished(
            ticket,
            match result {
                Some(Ok(value)) => answer(value),
                Some(Err(error)) => Answer::Failed(error.into()),
                None => Answer::Failed(Refusal::broken()),
            },
        );
    };
    retryrmq_bindings::begin(work, end).map_err(thrown)
}
