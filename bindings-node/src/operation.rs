//! Asynchronous operations. They start at once, and the queue of notifications announces their ends.

use std::{future::Future, sync::Arc};

use retryrmq_bindings::BindingError;
use tokio::task::AbortHandle;

use crate::{
    errors::{Result, thrown},
    notifier::{Answer, Notifier},
    object_count::{LiveObject, ObjectKind},
};

/// Starts `work`. There is always an answer with this ticket: somebody waits for it, and it keeps the process alive.
pub(crate) fn begin<T, E, F>(
    notifier: &Arc<Notifier>,
    ticket: f64,
    work: F,
    answer: impl FnOnce(T) -> Answer + Send + 'static,
) -> Result<()>
where
    T: Send + 'static,
    E: Into<BindingError> + Send + 'static,
    F: Future<Output = std::result::Result<T, E>> + Send + 'static,
{
    begin_abortable(notifier, ticket, work, answer).map(drop)
}

/// Like [`begin`], for work that can be given up. Returns `None` if it was done at once.
pub(crate) fn begin_abortable<T, E, F>(
    notifier: &Arc<Notifier>,
    ticket: f64,
    work: F,
    answer: impl FnOnce(T) -> Answer + Send + 'static,
) -> Result<Option<AbortHandle>>
where
    T: Send + 'static,
    E: Into<BindingError> + Send + 'static,
    F: Future<Output = std::result::Result<T, E>> + Send + 'static,
{
    let (notifier, alive) = (Arc::clone(notifier), LiveObject::new(ObjectKind::Operation));
    let end = move |result: Option<std::result::Result<T, E>>| {
        let _alive = alive;
        notifier.finished(
            ticket,
            match result {
                Some(Ok(value)) => answer(value),
                Some(Err(error)) => Answer::Failed(error.into()),
                None => Answer::Failed(BindingError::broken()),
            },
        );
    };
    retryrmq_bindings::begin(work, end).map_err(thrown)
}
