//! Asynchronous operations: started here, finished on the process's runtime.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    task::{Context, Poll, Waker},
};

use tokio::task::AbortHandle;

/// The callback for the end. If it is dropped without a result, for example after a panic, it is called with `None`.
struct CompletionGuard<T, F: FnOnce(Option<T>)>(Option<F>, std::marker::PhantomData<fn(T)>);

impl<T, F: FnOnce(Option<T>)> CompletionGuard<T, F> {
    fn finish(mut self, result: T) {
        if let Some(end) = self.0.take() {
            end(Some(result));
        }
    }
}

impl<T, F: FnOnce(Option<T>)> Drop for CompletionGuard<T, F> {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end(None);
        }
    }
}

/// Starts `work` on the process's runtime. Its first steps run on this thread, so that operations start in the order of the calls. `end` is
/// called once with the result, or with `None` if the work broke off. The handle can give the work up; it is `None` if the work was done at
/// once.
///
/// # Errors
/// Those of [`retryrmq::runtime`]. Then nothing was started, and `end` is never called.
pub fn begin<T, F, E>(work: F, end: E) -> retryrmq::Result<Option<AbortHandle>>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
    E: FnOnce(Option<T>) + Send + 'static,
{
    let runtime = retryrmq::runtime()?;
    let completion = CompletionGuard(Some(end), std::marker::PhantomData);
    let mut work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
    let _inside = runtime.enter();
    let mut first = || work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    Ok(match catch_unwind(AssertUnwindSafe(&mut first)) {
        Ok(Poll::Ready(result)) => {
            completion.finish(result);
            None
        }
        Ok(Poll::Pending) => {
            let going_on = runtime.spawn(async move { completion.finish(work.await) });
            Some(going_on.abort_handle())
        }
        Err(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn whatever_comes_of_it_is_told_once() {
        let (told, heard) = mpsc::channel();
        let tell = || {
            let told = told.clone();
            move |end: Option<u8>| told.send(end).unwrap()
        };
        assert!(begin(async { 1 }, tell()).unwrap().is_none());
        assert_eq!(heard.recv().unwrap(), Some(1));
        assert!(
            begin(async { panic!("at once") }, tell())
                .unwrap()
                .is_none()
        );
        assert_eq!(heard.recv().unwrap(), None);
        let later = |panics: bool| async move {
            tokio::task::yield_now().await;
            assert!(!panics, "later");
            2
        };
        assert!(begin(later(false), tell()).unwrap().is_some());
        assert_eq!(heard.recv().unwrap(), Some(2));
        assert!(begin(later(true), tell()).unwrap().is_some());
        assert_eq!(heard.recv().unwrap(), None);
        let endless = begin(std::future::pending(), tell()).unwrap().unwrap();
        endless.abort();
        assert_eq!(heard.recv().unwrap(), None);
        drop(told);
    }
}
