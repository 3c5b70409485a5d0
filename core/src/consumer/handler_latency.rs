//! How long handlers take: from taking a message to its outcome.

use std::{
    sync::{Mutex, PoisonError},
    time::Instant,
};

use prometheus_client::metrics::histogram::Histogram;

use super::{Delivery, Token};

/// Starts when a message is taken, and stops at its outcome.
pub(super) struct HandlerLatency {
    /// Keyed by the index of the token. A token that is settled twice, or too late, is not found.
    taken: Mutex<Vec<Option<(Token, Instant)>>>,
    seconds: Histogram,
}

impl HandlerLatency {
    pub(super) fn new(seconds: Histogram) -> Self {
        Self {
            taken: Mutex::default(),
            seconds,
        }
    }

    /// Starts for deliveries that were taken now.
    pub(super) fn start<'a>(&self, deliveries: impl IntoIterator<Item = &'a Delivery>) {
        let now = Instant::now();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for delivery in deliveries {
            let index = delivery.token.index();
            if taken.len() <= index {
                taken.resize(index + 1, None);
            }
            taken[index] = Some((delivery.token, now));
        }
    }

    /// Stops for tokens that have their outcome now.
    pub(super) fn stop(&self, tokens: impl IntoIterator<Item = Token>) {
        let now = Instant::now();
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        for token in tokens {
            let Some(slot) = taken.get_mut(token.index()) else {
                continue;
            };
            if let Some((_, start)) = slot.take_if(|(of, _)| *of == token) {
                self.seconds
                    .observe(now.saturating_duration_since(start).as_secs_f64());
            }
        }
    }
}
