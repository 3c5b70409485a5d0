//! The clock and the count of one measurement.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::Measured;
use crate::process;

/// Counts messages that are done. Its clock starts with the first delivery, so that nobody's connecting and declaring counts.
pub(super) struct Meter {
    count: usize,
    left: AtomicUsize,
    reached: Notify,
    began: OnceLock<(Instant, Duration)>,
}

impl Meter {
    pub(super) fn to(count: usize) -> Self {
        Self {
            count,
            left: AtomicUsize::new(count),
            reached: Notify::new(),
            began: OnceLock::new(),
        }
    }

    /// A delivery is here.
    pub(super) fn arrived(&self) {
        self.began.get_or_init(|| (Instant::now(), process::cpu()));
    }

    /// A message is done.
    pub(super) fn one(&self) {
        if self.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.reached.notify_one();
        }
    }

    /// Returns when all are done.
    pub(super) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Messages per second, and CPU per message, when all are done.
    pub(super) async fn pace(&self) -> Measured {
        self.reached().await;
        let (began, cpu) = self.began.get().copied().expect("a delivery");
        let (took, used) = (began.elapsed(), process::cpu().saturating_sub(cpu));
        Measured::default()
            .with("per_second", self.count as f64 / took.as_secs_f64())
            .with("cpu_us", used.as_secs_f64() * 1e6 / self.count as f64)
    }
}
