//! Since when each lane has waited for the broker.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use tokio::time::Instant;

/// A longer wait is a stall.
const USUAL: Duration = Duration::from_secs(1);

/// Some of the lanes, a bit for each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lanes(u64);

impl Lanes {
    fn has(self, lane: usize) -> bool {
        self.0 & Self::bit(lane) != 0
    }

    fn bit(lane: usize) -> u64 {
        u32::try_from(lane).map_or(0, |lane| 1_u64.checked_shl(lane).unwrap_or(0))
    }
}

/// The lanes that somebody has used.
#[derive(Debug, Default)]
pub(crate) struct UsedLanes(AtomicU64);

impl UsedLanes {
    pub(crate) fn add(&self, lane: usize) {
        self.0.fetch_or(Lanes::bit(lane), Ordering::Relaxed);
    }

    pub(crate) fn all(&self) -> Lanes {
        Lanes(self.0.load(Ordering::Relaxed))
    }
}

/// A clock for each lane. Reading it takes a few loads.
#[derive(Debug)]
pub(super) struct StallDetector {
    began: Instant,
    /// Milliseconds after `began`, plus one; 0 for a lane that does not wait.
    since: Vec<AtomicU64>,
}

impl StallDetector {
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

    /// Whether any of these lanes has waited for longer than usual.
    pub(super) fn any(&self, lanes: Lanes) -> bool {
        let now = self.now();
        let usual = u64::try_from(USUAL.as_millis()).unwrap_or(u64::MAX);
        let mut since = self.since.iter().enumerate();
        since.any(|(lane, since)| {
            let since = since.load(Ordering::Relaxed);
            lanes.has(lane) && since > 0 && now.saturating_sub(since - 1) > usual
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
        let (stalls, used, others) = (
            StallDetector::new(2),
            UsedLanes::default(),
            UsedLanes::default(),
        );
        used.add(1);
        others.add(0);
        let stalled = || stalls.any(used.all());
        assert!(!stalled());
        let waiting = stalls.waits(1);
        tokio::time::advance(USUAL).await;
        assert!(!stalled());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(stalled());
        assert!(!stalls.any(others.all()) && !stalls.any(Lanes::default()));
        drop(waiting);
        assert!(!stalled());
    }
}
