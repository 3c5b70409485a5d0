//! Delays wake-ups from lapin's thread until it has handled everything that it read at once.
//!
//! lapin wakes its consumer at the first of, say, thirty messages that it has read. On a thread that wakes at once, the consumer takes that
//! one, sleeps, and is woken for the next one; the two threads contend for every lock, which costs more than the messages themselves. So
//! code that waits for lapin uses a waker of [`put_off`]. The stream says when a chunk begins ([`begin`]) and ends ([`end`]), and the
//! waiting task is woken once, at the end.
//!
//! A wake-up from any other thread, or outside a chunk, passes at once. A thread that ends wakes everything that it holds.

use std::{
    cell::RefCell,
    future::poll_fn,
    pin::pin,
    sync::Arc,
    task::{Context, Wake, Waker},
};

thread_local! {
    static CHUNK: RefCell<WakeupBatch> = const { RefCell::new(WakeupBatch { waiting: None }) };
}

/// The tasks to wake at the end of this thread's chunk, if it is in one. Dropping it wakes them.
#[derive(Default)]
struct WakeupBatch {
    waiting: Option<Vec<Waker>>,
}

impl Drop for WakeupBatch {
    fn drop(&mut self) {
        self.waiting
            .take()
            .into_iter()
            .flatten()
            .for_each(Waker::wake);
    }
}

/// This thread begins to handle what it has read.
pub(super) fn begin() {
    CHUNK.with_borrow_mut(|chunk| {
        chunk.waiting.get_or_insert_default();
    });
}

/// Whether this thread is handling what it has read.
pub(super) fn is_under_way() -> bool {
    CHUNK.with_borrow(|chunk| chunk.waiting.is_some())
}

/// It has handled that.
pub(super) fn end() {
    // Dropping it wakes the tasks, when the list is no longer borrowed.
    drop(CHUNK.take());
}

struct DeferredWaker(Waker);

impl Wake for DeferredWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let held = CHUNK.try_with(|chunk| match &mut chunk.borrow_mut().waiting {
            Some(waiting) => {
                waiting.push(self.0.clone());
                true
            }
            None => false,
        });
        if !held.unwrap_or(false) {
            self.0.wake_by_ref();
        }
    }
}

/// Waits for something from lapin. It is woken when everything read together with it is handled.
pub(crate) async fn put_off<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|cx| {
        let waker = Waker::from(Arc::new(DeferredWaker(cx.waker().clone())));
        future.as_mut().poll(&mut Context::from_waker(&waker))
    })
    .await
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Counts its wake-ups, and a waker that puts them off.
    fn counted() -> (Arc<Count>, Waker) {
        let count = Arc::new(Count::default());
        let waker = Waker::from(Arc::new(DeferredWaker(Waker::from(Arc::clone(&count)))));
        (count, waker)
    }

    fn woken(count: &Count) -> usize {
        count.0.load(Ordering::SeqCst)
    }

    #[test]
    fn a_wake_up_waits_for_the_end_of_the_chunk() {
        let (count, waker) = counted();
        begin();
        begin();
        waker.wake_by_ref();
        assert!(is_under_way());
        assert_eq!(woken(&count), 0);
        end();
        assert_eq!(woken(&count), 1);
        waker.wake();
        assert_eq!(woken(&count), 2, "without a chunk it passes at once");
        end();
    }

    #[test]
    fn one_from_another_thread_passes_at_once() {
        let (count, waker) = counted();
        begin();
        std::thread::spawn(move || waker.wake()).join().unwrap();
        assert_eq!(woken(&count), 1);
        end();
    }

    #[test]
    fn a_thread_that_ends_lets_go() {
        let (count, waker) = counted();
        std::thread::spawn(move || {
            begin();
            waker.wake();
        })
        .join()
        .unwrap();
        assert_eq!(woken(&count), 1);
    }

    #[tokio::test]
    async fn whoever_waits_is_answered() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let waiting = tokio::spawn(put_off(receiver));
        tokio::task::yield_now().await;
        std::thread::spawn(move || {
            begin();
            sender.send(3).unwrap();
            end();
        })
        .join()
        .unwrap();
        assert_eq!(waiting.await.unwrap(), Ok(3));
    }
}
