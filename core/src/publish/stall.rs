//! Since when each lane has waited for the broker.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// A longer wait is a stall.
const USUAL: Duration = Duration::from_secs(1);

/// A clock for each lane. Reading it takes a few loads.
#[derive(Debug)]
pub(super) struct Stalls {
    began: Instant,
    /// Milliseconds after `began`, plus one; 0 for a lane that does not wait.
    since: Vec<AtomicU64>,
}

impl Stalls {
    pub(super) fn new(lanes: usize) -> Self {
        Self {
            began: Instant::now(),
            since: (0..lanes).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// This lane waits, until the returned value is dropped.
    pub(super) fn waits(&self, lane: usize) -> impl Drop + use<'_> {
        struct Waiting<'a>(&'a AtomicU64);
        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Relaxed);
            }
        }
        let since = &self.since[lane];
        since.store(self.now() + 1, Ordering::Relaxed);
        Waiting(since)
    }

    /// Whether any lane has waited for longer than usual.
    pub(super) fn any(&self) -> bool {
        let now = self.now();
        let usual = u64::try_from(USUAL.as_millis()).unwrap_or(u64::MAX);
        self.since.iter().any(|since| {
            let since = since.load(Ordering::Relaxed);
            since > 0 && now.saturating_sub(since - 1) > usual
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wave_that_takes_longer_than_usual_is_a_stall() {
        let stalls = Stalls::new(2);
        assert!(!stalls.any());
        let waiting = stalls.waits(1);
        tokio::time::advance(USUAL).await;
        assert!(!stalls.any());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(stalls.any());
        drop(waiting);
        assert!(!stalls.any());
    }
}
