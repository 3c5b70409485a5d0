//! What a due dispatcher has done, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the start. They only grow, but for [`in_flight`](Self::in_flight).
#[derive(Debug, Default)]
pub struct DispatcherMetrics {
    pub(super) published: AtomicU64,
    pub(super) given_up: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) again: AtomicU64,
    pub(super) lost: AtomicU64,
    pub(super) unreadable: AtomicU64,
    pub(super) in_flight: AtomicU64,
}

pub(super) fn add(figure: &AtomicU64, count: usize) {
    figure.fetch_add(count as u64, Ordering::Relaxed);
}

impl DispatcherMetrics {
    /// Messages that were published and confirmed.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published.load(Ordering::Relaxed)
    }

    /// Messages that were [given up](super::super::Sink::give_up).
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }

    /// Messages that went back into the store, because they could not be published.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Messages that were claimed after somebody's lease had run out. They may have been published twice.
    #[must_use]
    pub fn again(&self) -> u64 {
        self.again.load(Ordering::Relaxed)
    }

    /// Messages whose lease ran out here while they were published. They may be published twice.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Messages in the store that this program cannot read.
    #[must_use]
    pub fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }

    /// Messages that are claimed now.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }
}
