//! Which existing waiting queue replaces one that cannot be used.

use std::{collections::BTreeSet, time::Duration};

/// Which of the delays in `there_are` serves a message that is to wait `wanted`, which is also its own expiration: the next longer one, so
/// that it is never early. If none is as long, the longest, because early is better than never.
pub(super) fn fallback(wanted: Duration, there_are: &BTreeSet<Duration>) -> Option<Duration> {
    there_are
        .range(wanted..)
        .next()
        .or_else(|| there_are.last())
        .copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_next_longer_one_and_else_the_longest() {
        let seconds = Duration::from_secs;
        let there_are = BTreeSet::from([1, 10, 60].map(seconds));
        for (wanted, taken) in [(0, 1), (1, 1), (2, 10), (11, 60), (60, 60), (3_600, 60)] {
            let taken = Some(seconds(taken));
            assert_eq!(fallback(seconds(wanted), &there_are), taken, "{wanted}");
        }
        assert_eq!(fallback(seconds(1), &BTreeSet::new()), None);
    }

    proptest! {
        #[test]
        fn never_early_where_one_is_as_long(
            wanted in 0u64..1_000,
            there_are in prop::collection::btree_set(0u64..1_000, 1..9),
        ) {
            let wanted = Duration::from_millis(wanted);
            let there_are: BTreeSet<_> = there_are.into_iter().map(Duration::from_millis).collect();
            let taken = fallback(wanted, &there_are).unwrap();
            prop_assert!(there_are.contains(&taken));
            prop_assert!(taken >= wanted || there_are.last() == Some(&taken));
            prop_assert!(!there_are.iter().any(|other| *other >= wanted && *other < taken));
        }
    }
}
