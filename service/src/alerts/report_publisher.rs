//! The reporter of a replica: entries become reports, in order, each confirmed before the next.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use retryrmq::doubling_pause::DoublingPause;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};

use super::{
    notifier::ReportSender,
    report::{Report, ReportEntry},
    shared_state::SharedState,
};

/// Entries of one report.
const MOST: usize = 200;
/// How long a report waits for more entries: so a storm is few messages.
const LINGER: Duration = Duration::from_millis(200);
/// Between tries to publish a report.
const PAUSE: DoublingPause =
    DoublingPause::new(Duration::from_millis(200), Duration::from_secs(10));

pub(super) struct ReportPublisher {
    report_sender: ReportSender,
    tick: Duration,
    shared: Arc<SharedState>,
    replica: String,
    sequence: u64,
}

impl ReportPublisher {
    pub(super) fn new(
        report_sender: ReportSender,
        tick: Duration,
        shared: Arc<SharedState>,
    ) -> Self {
        Self {
            report_sender,
            tick,
            shared,
            replica: format!("{:016x}", fastrand::u64(..)),
            sequence: 0,
        }
    }

    /// Until nobody has anything to tell any more.
    pub(super) async fn run(mut self, mut judged: mpsc::Receiver<ReportEntry>) {
        // The first one at once: the leader of an empty queue does not know yet that it is the one.
        let mut due = Instant::now();
        loop {
            let mut entries = Vec::new();
            let received = tokio::select! {
                received = judged.recv_many(&mut entries, MOST) => received,
                () = sleep_until(due) => usize::MAX,
            };
            if received == 0 {
                return;
            }
            if !entries.is_empty() && entries.len() < MOST {
                let end = Instant::now() + LINGER;
                loop {
                    let room = MOST - entries.len();
                    tokio::select! {
                        more = judged.recv_many(&mut entries, room) => {
                            if more == 0 || entries.len() == MOST {
                                break;
                            }
                        }
                        () = sleep_until(end) => break,
                    }
                }
            }
            self.report(entries).await;
            due = Instant::now() + self.tick;
        }
    }

    /// Publishes until it is confirmed. What is told meanwhile waits, and what there is no room for is dropped and counted.
    async fn report(&mut self, entries: Vec<ReportEntry>) {
        self.sequence += 1;
        let report = Report {
            replica: self.replica.clone(),
            sequence: self.sequence,
            lost: self.shared.unmentioned.swap(0, Ordering::Relaxed),
            entries,
        };
        let mut pause = PAUSE;
        loop {
            // A tick that nobody heard in time tells nothing.
            let lifetime = (report.entries.is_empty() && report.lost == 0).then(|| self.tick * 3);
            match self.report_sender.send(&report, lifetime).await {
                Ok(()) => return,
                Err(why) => tracing::warn!(why, "alerts cannot be reported; trying again"),
            }
            sleep(pause.next_pause()).await;
        }
    }
}
