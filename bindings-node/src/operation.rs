//! Something that takes time: begun at once, announced by the bridge when it is done.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    bridge::{Answer, Shared},
    errors::{Failed, Result, thrown},
    live::{Alive, Kind},
};

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
    let runtime = retryrmq::runtime().map_err(|error| thrown(&error))?;
    let bridge = Arc::clone(bridge);
    let alive = Alive::new(Kind::Operation);
    let finish = move |result: std::result::Result<T, E>| {
        bridge.finished(
            ticket,
            match result {
                Ok(value) => answer(value),
                Err(error) => Answer::Failed(error.into()),
            },
        );
        drop(alive);
    };
    let mut work: Pin<Box<dyn Future<Output = _> + Send>> = Box::pin(work);
    let _inside = runtime.enter();
    match work.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => finish(result),
        Poll::Pending => drop(runtime.spawn(async move { finish(work.await) })),
    }
    Ok(())
}
