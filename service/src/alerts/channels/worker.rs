//! A task for each channel: what hangs or fails there holds up nobody else.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use tokio::{sync::mpsc, task::JoinHandle, time::sleep};

use super::{Line, attempt::Again};
use crate::alerts::{ChannelCounts, Notice};

/// Notices that wait for one channel. The outbox of the engine holds as many.
const WAITING: usize = 1_000;
/// Between two tries at most.
const LONGEST: Duration = Duration::from_secs(300);

/// That a channel has taken a notice, or given it up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::alerts) struct Done {
    pub(in crate::alerts) number: u64,
    pub(in crate::alerts) channel: String,
}

/// Patience with a channel.
#[derive(Clone, Copy, Debug)]
pub(in crate::alerts) struct Patience {
    /// Before the second try; each further pause is twice as long.
    pub(in crate::alerts) pause: Duration,
    /// After so long a notice is no news any more.
    pub(in crate::alerts) give_up_after: Duration,
}

/// A running channel. Dropped, it is silent at once.
#[derive(Debug)]
pub(in crate::alerts) struct Worker {
    notices: mpsc::Sender<Notice>,
    task: JoinHandle<()>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Worker {
    pub(in crate::alerts) fn start(
        name: String,
        line: Arc<Line>,
        patience: Patience,
        counts: Arc<Mutex<ChannelCounts>>,
        done: mpsc::UnboundedSender<Done>,
    ) -> Self {
        let (notices, mut waiting) = mpsc::channel::<Notice>(WAITING);
        let task = tokio::spawn(async move {
            while let Some(notice) = waiting.recv().await {
                deliver(&name, &line, &notice, patience, &counts).await;
                let number = notice.number;
                let channel = name.clone();
                if done.send(Done { number, channel }).is_err() {
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

async fn deliver(
    name: &str,
    line: &Line,
    notice: &Notice,
    patience: Patience,
    counts: &Mutex<ChannelCounts>,
) {
    let counted = |change: fn(&mut ChannelCounts)| {
        change(&mut counts.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let mut pause = patience.pause;
    loop {
        let refusal = match line.send(notice).await {
            Ok(()) => return counted(|counts| counts.sent += 1),
            Err(refusal) => refusal,
        };
        let age = Timestamp::now().duration_since(notice.at);
        let is_old = Duration::try_from(age).is_ok_and(|age| age >= patience.give_up_after);
        let wish = match refusal.again {
            Again::Soon if !is_old => Duration::ZERO,
            Again::NotBefore(wish) if !is_old => wish,
            _ => {
                counted(|counts| counts.failed += 1);
                // The summary, too: this line is the last that anybody hears of it.
                tracing::error!(
                    channel = name,
                    page = notice.page,
                    kind = notice.kind.as_str(),
                    summary = notice.summary,
                    "an alert was not delivered and is given up: {}",
                    refusal.why
                );
                return;
            }
        };
        counted(|counts| counts.retried += 1);
        tracing::warn!(
            channel = name,
            page = notice.page,
            "an alert was not delivered and is tried again: {}",
            refusal.why
        );
        // Replicas and channels that were refused together do not come back together.
        let jitter = pause.mul_f64(fastrand::f64() * 0.2);
        sleep((pause + jitter).max(wish)).await;
        pause = (pause * 2).min(LONGEST);
    }
}
