//! A task for each channel: what hangs or fails there holds up nobody else.

use std::{
    future::pending,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{
    sync::mpsc,
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use super::{OpenChannel, retry_queue::RetryQueue, send_result::RetryAdvice};
use crate::alerts::{ChannelCounts, Notice};

/// Notices that wait for one channel, and as many that were not looked at yet. The outbox of the engine holds as many.
const WAITING: usize = 1_000;

/// That a channel has taken a notice, or given it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::alerts) struct NoticeDone {
    pub(in crate::alerts) number: u64,
    pub(in crate::alerts) channel: String,
}

/// Patience with a channel.
#[derive(Clone, Copy, Debug)]
pub(in crate::alerts) struct ChannelTimeouts {
    /// Before the second try; each further pause is twice as long.
    pub(in crate::alerts) pause: Duration,
    /// After so long a notice is no news any more.
    pub(in crate::alerts) give_up_after: Duration,
}

/// A running channel. Dropped, it is silent at once.
#[derive(Debug)]
pub(in crate::alerts) struct ChannelWorker {
    notices: mpsc::Sender<Notice>,
    task: JoinHandle<()>,
}

impl Drop for ChannelWorker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ChannelWorker {
    pub(in crate::alerts) fn start(
        name: String,
        line: Arc<OpenChannel>,
        timeouts: ChannelTimeouts,
        counts: Arc<Mutex<ChannelCounts>>,
        done: mpsc::UnboundedSender<NoticeDone>,
    ) -> Self {
        let (notices, mut new) = mpsc::channel::<Notice>(WAITING);
        let task = tokio::spawn(async move {
            let mut retry_queue = RetryQueue::new(timeouts.pause);
            loop {
                let turn = retry_queue.next(Instant::now());
                let place = tokio::select! {
                    biased; // what is new may pass what was refused
                    notice = new.recv(), if retry_queue.len() < WAITING => match notice {
                        Some(notice) => {
                            retry_queue.add(notice, Instant::now());
                            continue;
                        }
                        None => return,
                    },
                    place = its_turn(turn) => place,
                };
                let notice = retry_queue.notice(place);
                let number = notice.number;
                match deliver(&name, &line, notice, timeouts, &counts).await {
                    SendOutcome::Taken => retry_queue.taken(place),
                    SendOutcome::GivenUp => retry_queue.given_up(place),
                    SendOutcome::Refused(retry_after) => {
                        retry_queue.refused(place, retry_after, Instant::now(), fastrand::f64());
                        continue;
                    }
                }
                let channel = name.clone();
                if done.send(NoticeDone { number, channel }).is_err() {
                    return; // nobody speaks here any more
                }
            }
        });
        Self { notices, task }
    }

    /// Hands a notice over; `false` when too many wait.
    pub(in crate::alerts) fn send(&self, notice: Notice) -> bool {
        self.notices.try_send(notice).is_ok()
    }
}

/// What became of a try.
enum SendOutcome {
    Taken,
    GivenUp,
    /// It is tried again, not before that.
    Refused(Option<Duration>),
}

async fn its_turn(turn: Option<(usize, Instant)>) -> usize {
    match turn {
        Some((place, at)) => {
            sleep_until(at).await;
            place
        }
        None => pending().await,
    }
}

async fn deliver(
    name: &str,
    line: &OpenChannel,
    notice: &Notice,
    timeouts: ChannelTimeouts,
    counts: &Mutex<ChannelCounts>,
) -> SendOutcome {
    let counted = |change: fn(&mut ChannelCounts)| {
        change(&mut counts.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let Err(refusal) = line.send(notice).await else {
        counted(|counts| counts.sent += 1);
        return SendOutcome::Taken;
    };
    let age = Timestamp::now().duration_since(notice.at);
    let is_old = Duration::try_from(age).is_ok_and(|age| age >= timeouts.give_up_after);
    let retry_after = match refusal.again {
        RetryAdvice::Soon if !is_old => None,
        RetryAdvice::NotBefore(retry_after) if !is_old => Some(retry_after),
        _ => {
            counted(|counts| counts.failed += 1);
            // The summary, too: this line is the last that anybody hears of it.
            tracing::error!(
                channel = name,
                incident = notice.incident,
                kind = notice.kind.as_str(),
                summary = notice.summary,
                "an alert was not delivered and is given up: {}",
                refusal.why
            );
            return SendOutcome::GivenUp;
        }
    };
    counted(|counts| counts.retried += 1);
    tracing::warn!(
        channel = name,
        incident = notice.incident,
        "an alert was not delivered and is tried again: {}",
        refusal.why
    );
    SendOutcome::Refused(retry_after)
}
