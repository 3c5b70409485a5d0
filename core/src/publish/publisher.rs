//! One lane per target queue, so that one stuck queue does not stop the others.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    pin::pin,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::Duration,
};

use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::timeout,
};

use super::{
    Job, Publish,
    channel_pool::ChannelPool,
    job::Task,
    publish_channel::{self, Lane},
    stall_detector::{Lanes, StallDetector},
};
use crate::{
    Error, ErrorKind, Result,
    connection::{ANSWER, Connection, Link},
};

/// The most lanes, and so channels, of a client. Further targets share them. A quorum queue without a leader confirms nothing, and holds up
/// every other confirm of its channel. So a waiting queue that lost its leader in a crash of its broker stops everything that shares its
/// lane. Where the broker allows fewer channels, lanes take [turns](ChannelPool).
const LANES: usize = u64::BITS as usize;

/// The most messages that callers of [`Publisher::publish`] may have unconfirmed together, including cancelled ones. Copies of a consumer's
/// messages are limited by its prefetch instead, because their originals are unacknowledged; they must not wait behind an application that
/// publishes without end. Both together limit a lane's queue.
const OUTSTANDING: usize = 4_096;

/// How long a caller of [`Publisher::publish`] waits while the broker reads nothing, if the message has no timeout.
const WAIT: Duration = ANSWER;

/// Publishes on its own connection.
pub(crate) struct Publisher {
    link: Arc<Link>,
    lanes: Vec<mpsc::UnboundedSender<Task>>,
    stalls: Arc<StallDetector>,
    /// The lane of each target, by the target's hash. At most [`LANES`] entries.
    assigned: Mutex<HashMap<u64, usize>>,
    choice: RandomState,
    room: Arc<Semaphore>,
}

impl Publisher {
    pub(crate) fn new(link: &Arc<Link>) -> Self {
        Self::with_lanes(link, |lane, jobs| {
            tokio::spawn(publish_channel::run(lane, jobs));
        })
    }

    /// One that publishes nothing, because its client has no broker.
    pub(crate) fn without_broker(link: &Arc<Link>) -> Self {
        Self::with_lanes(link, |_, _| {})
    }

    fn with_lanes(link: &Arc<Link>, start: impl Fn(Lane, mpsc::UnboundedReceiver<Task>)) -> Self {
        let (channels, stalls) = (
            Arc::<ChannelPool>::default(),
            Arc::new(StallDetector::new(LANES)),
        );
        let lanes = (0..LANES)
            .map(|number| {
                let (sender, jobs) = mpsc::unbounded_channel();
                let lane = Lane {
                    link: Arc::clone(link),
                    channels: Arc::clone(&channels),
                    stalls: Arc::clone(&stalls),
                    number,
                };
                start(lane, jobs);
                sender
            })
            .collect();
        Self {
            link: Arc::clone(link),
            lanes,
            stalls,
            assigned: Mutex::default(),
            choice: RandomState::new(),
            room: Arc::new(Semaphore::new(OUTSTANDING)),
        }
    }

    /// Passes a job to its lane. The job's `done` is called once, whatever happens. A message that was not sent when `asker` is gone is
    /// answered and not published. Returns the lane.
    pub(crate) fn submit_for(&self, job: Job, asker: Weak<()>) -> usize {
        self.hand_over(Task::new(job, Some(asker)))
    }

    fn hand_over(&self, task: Task) -> usize {
        let lane = self.lane(task.exchange.as_str(), task.routing_key.as_str());
        if let Err(mpsc::error::SendError(task)) = self.lanes[lane].send(task) {
            task.answer(Err(closed()));
        }
        lane
    }

    /// Whether publishing makes no progress now: the broker reads nothing because of a memory or disk alarm, or one of these lanes has waited
    /// for its confirms, or for a connection, for more than a second.
    pub(crate) fn is_stalled(&self, lanes: Lanes) -> bool {
        self.link.is_blocked() || self.stalls.any(lanes)
    }

    /// An exchange can have any number of routing keys, so all of them share one lane.
    fn lane(&self, exchange: &str, routing_key: &str) -> usize {
        let target = if exchange.is_empty() { routing_key } else { "" };
        let hash = self.choice.hash_one((exchange, target));
        let mut assigned = self.assigned.lock().unwrap_or_else(PoisonError::into_inner);
        let next = assigned.len();
        if next < LANES {
            *assigned.entry(hash).or_insert(next)
        } else {
            let shared = usize::try_from(hash % LANES as u64).unwrap_or(0);
            assigned.get(&hash).copied().unwrap_or(shared)
        }
    }

    /// The connection for messages sent now. It waits for one as long as a message would.
    ///
    /// # Errors
    /// [`ErrorKind::ConnectionLost`], and as [`Link::connection`].
    pub(crate) async fn connection(&self) -> Result<Arc<Connection>> {
        publish_channel::connection(&self.link).await
    }

    /// Waits for a connection, without a limit.
    ///
    /// # Errors
    /// As [`Link::connection`].
    pub(crate) async fn connected(&self) -> Result<()> {
        self.link.connection().await.map(drop)
    }

    /// Publishes, and waits for the confirm. If the future is dropped before the message is sent, it is not published.
    pub(crate) async fn publish(&self, message: Publish) -> Result<()> {
        let is_limited = message.timeout.is_some();
        let asker = Arc::new(());
        let published = async {
            // Kept until the message is answered, not only as long as somebody waits.
            let room = Arc::clone(&self.room).acquire_owned().await;
            let room = room.map_err(|why| closed().with_source(why))?;
            let (done, answer) = oneshot::channel();
            let done = Box::new(move |result| {
                drop(room);
                // The caller may have gone.
                let _ = done.send(result);
            });
            let job = message.into_job(self.link.header_room(), done)?;
            self.hand_over(Task::new(job, Some(Arc::downgrade(&asker))));
            answer.await.unwrap_or_else(|_| Err(closed()))
        };
        if is_limited {
            return published.await;
        }
        let mut published = pin!(published);
        loop {
            match timeout(WAIT, &mut published).await {
                Ok(answer) => return answer,
                // The lane has its own deadline, which an alarm extends.
                Err(_) if !self.link.is_blocked() => {}
                Err(_) => {
                    return Err(Error::new(
                        ErrorKind::Timeout,
                        "the broker did not confirm a message in time: it reads nothing, because it is short of memory \
                         or disk",
                    ));
                }
            }
        }
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed; connect a new one")
}
