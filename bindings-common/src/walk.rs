//! One walk through the messages parked for a queue, which may be asked by many and is busy with one thing at a time.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use retryrmq::{Browse, Record};
use tokio::{
    sync::{Mutex, watch},
    time::sleep,
};

use crate::BindingError;

/// How long the end of a walk waits for a message that is on its way. It may be a fresh copy that is not confirmed yet: cut short, the
/// original would be replaced a second time, and be parked twice.
const GRACE: Duration = Duration::from_secs(2);

/// A walk.
#[derive(Clone, Debug)]
pub struct Walk {
    browse: Arc<Mutex<Option<Browse>>>,
    status: Arc<WalkStatus>,
    /// Whether it is to end: nobody wants another message then, and none may come for long.
    closing: Arc<watch::Sender<bool>>,
}

/// What is told of a walk while it may be busy.
#[derive(Debug)]
struct WalkStatus {
    remaining: AtomicU32,
    missed: AtomicU32,
    others: u32,
    warning: Option<String>,
}

fn walk_closed() -> BindingError {
    BindingError::new(
        "closed",
        "replay or drop parked messages inside the loop, at whose end the others are put back",
    )
}

impl Walk {
    /// A walk that has just begun.
    #[must_use]
    pub fn new(browse: Browse) -> Self {
        Self {
            status: Arc::new(WalkStatus {
                remaining: browse.remaining().into(),
                missed: browse.missed().into(),
                others: browse.others(),
                warning: browse.warning().map(str::to_owned),
            }),
            browse: Arc::new(Mutex::new(Some(browse))),
            closing: Arc::new(watch::Sender::new(false)),
        }
    }

    /// The next parked message; `None` at the end, and for a walk that is over or ends meanwhile.
    pub fn next(
        &self,
    ) -> impl Future<Output = Result<Option<Record>, BindingError>> + Send + use<> {
        let walk = self.clone();
        let mut closing = self.closing.subscribe();
        async move {
            let left = async {
                // Its sender is in `walk`, so this has no other end.
                let _ = closing.wait_for(|closing| *closing).await;
                sleep(GRACE).await;
            };
            tokio::select! {
                biased;
                next = walk.next_record() => next,
                () = left => Ok(None),
            }
        }
    }

    async fn next_record(&self) -> Result<Option<Record>, BindingError> {
        if *self.closing.borrow() {
            return Ok(None);
        }
        let mut browse = self.browse.lock().await;
        let Some(browse) = browse.as_mut() else {
            return Ok(None);
        };
        let next = browse.next().await;
        let status = &self.status;
        status
            .remaining
            .store(browse.remaining(), Ordering::Relaxed);
        status.missed.store(browse.missed(), Ordering::Relaxed);
        Ok(next?)
    }

    /// Sends a record to the tail of a queue: its home, for most.
    pub fn replay_to(
        &self,
        record: Record,
        queue: String,
    ) -> impl Future<Output = Result<(), BindingError>> + Send + use<> {
        let browse = Arc::clone(&self.browse);
        async move {
            let mut browse = browse.lock().await;
            let browse = browse.as_mut().ok_or_else(walk_closed)?;
            Ok(browse.replay_to(&record, &queue).await?)
        }
    }

    /// Drops a record for good.
    pub fn drop(
        &self,
        record: Record,
    ) -> impl Future<Output = Result<(), BindingError>> + Send + use<> {
        let browse = Arc::clone(&self.browse);
        async move {
            let mut browse = browse.lock().await;
            let browse = browse.as_mut().ok_or_else(walk_closed)?;
            Ok(browse.drop(&record).await?)
        }
    }

    /// Ends the walk, and soon a wait for its next message: messages that were neither replayed nor dropped are requeued.
    pub fn close(&self) -> impl Future<Output = Result<(), BindingError>> + Send + use<> {
        let browse = Arc::clone(&self.browse);
        self.closing.send_replace(true);
        async move {
            let browse = browse.lock().await.take();
            match browse {
                Some(browse) => Ok(browse.close().await?),
                None => Ok(()),
            }
        }
    }

    /// How many messages were there when the walk began and have not been seen yet.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.status.remaining.load(Ordering::Relaxed)
    }

    /// How many others took messages out of the parking queue when the walk began.
    #[must_use]
    pub fn others(&self) -> u32 {
        self.status.others
    }

    /// How many messages others took before they came.
    #[must_use]
    pub fn missed(&self) -> u32 {
        self.status.missed.load(Ordering::Relaxed)
    }

    /// What is wrong with the parking queue.
    #[must_use]
    pub fn warning(&self) -> Option<&str> {
        self.status.warning.as_deref()
    }
}
