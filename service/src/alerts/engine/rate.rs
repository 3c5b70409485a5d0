//! How many in the last minute.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// A slot has five seconds, so that a minute is told to within them.
const SLOT: i64 = 5;
const SLOTS: i64 = 60 / SLOT;

/// Counts in slots of five seconds, of the last minute only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct MinuteRate(BTreeMap<i64, u32>);

impl MinuteRate {
    pub(super) fn count(&mut self, at: Timestamp, now: Timestamp) {
        let (slot, newest) = (slot(at), slot(now));
        // A clock that was set back leaves slots of the future.
        self.0
            .retain(|slot, _| (newest - SLOTS + 1..=newest).contains(slot));
        if slot > newest - SLOTS && slot <= newest {
            let count = self.0.entry(slot).or_default();
            *count = count.saturating_add(1);
        }
    }

    pub(super) fn last_minute(&self, now: Timestamp) -> u32 {
        let newest = slot(now);
        let slots = self.0.range(newest - SLOTS + 1..=newest);
        slots.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }
}

fn slot(at: Timestamp) -> i64 {
    at.as_second().div_euclid(SLOT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_is_a_minute_whatever_the_order_and_the_clock() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let mut rate = MinuteRate::default();
        for second in [30, 0, 59, 10] {
            rate.count(at(second), at(59));
        }
        assert_eq!(rate.last_minute(at(59)), 4);
        assert_eq!(rate.last_minute(at(64)), 3); // that of 0 s is older
        assert_eq!(rate.last_minute(at(200)), 0);
        rate.count(at(0), at(200));
        assert_eq!(rate.last_minute(at(200)), 0);
        rate.count(at(200), at(200));
        rate.count(at(-5_000), at(-5_000));
        assert_eq!(rate.last_minute(at(-5_000)), 1);
    }
}
