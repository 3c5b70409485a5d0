//! How much of a parking queue a walk receives at a time.
//!
//! A walk holds everything it received until it ends, so a fixed prefetch would stall it. Without a prefetch the broker would send the
//! whole queue at once, however little of it is wanted. So each consumer of a walk has a prefetch, and the next one's is as large as all
//! earlier ones together. What is held ahead of the caller is never more than what the caller has seen, or a few dozen messages, or some
//! megabytes, and never more than a sixteenth of a long walk.

/// The first share, and the smallest.
const FIRST: u64 = 32;
/// The most bytes of a share, times the share's number. The *number* of consumers must stay small: above 32, a quorum queue no longer takes
/// messages back in their order.
const BYTES: u64 = 64 * 1024 * 1024;
/// A share is at most this part of the walk, or this many messages. Each message takes some kilobytes until it is asked for, and all shares
/// together still need fewer than 32 consumers.
const PARTS: u64 = 16;
const LARGE: u64 = 2_048;

/// The share of the current consumer, and the earlier ones.
#[derive(Debug, Default)]
pub(crate) struct PrefetchWindow {
    /// How many consumers so far, including this one.
    number: u64,
    /// The delivery tag before its first one. The tags of a channel have no gaps.
    base: u64,
    prefetch: u64,
    /// How many it received and did not settle.
    outstanding: u64,
    /// How many came in all, to every consumer.
    came: u64,
    bytes: u64,
}

impl PrefetchWindow {
    /// Whether the broker was asked for messages yet.
    pub(crate) fn has_begun(&self) -> bool {
        self.number > 0
    }

    /// Whether the broker sends nothing more to this consumer.
    pub(crate) fn is_used_up(&self) -> bool {
        self.outstanding >= self.prefetch
    }

    /// The next consumer's tag and prefetch, when `left` messages are still to come. As text, tags sort in the order in which they were
    /// made, because a quorum queue sorts them as text.
    pub(crate) fn open(&mut self, left: u32) -> (String, u16) {
        self.number += 1;
        let average = self.bytes.checked_div(self.came).unwrap_or(0);
        let room = BYTES * self.number / average.max(1);
        let large = ((self.came + u64::from(left)) / PARTS).max(LARGE);
        let share = self.came.min(room).min(large);
        let share = share.max(FIRST).min(left.max(1).into());
        let prefetch = u16::try_from(share).unwrap_or(u16::MAX);
        (self.base, self.outstanding) = (self.came, 0);
        self.prefetch = prefetch.into();
        (format!("walk-{:06}", self.number), prefetch)
    }

    /// A delivery of so many bytes came.
    pub(crate) fn came(&mut self, bytes: usize) {
        self.came += 1;
        self.outstanding += 1;
        self.bytes += bytes as u64;
    }

    /// The delivery with this tag was settled. If it belongs to this consumer, the broker sends it another.
    pub(crate) fn settled(&mut self, tag: u64) {
        if tag > self.base {
            self.outstanding = self.outstanding.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The shares of a walk that settles nothing, until `total` have come.
    fn shares(total: u64, size: usize) -> Vec<u16> {
        let (mut window, mut shares, mut left) = (PrefetchWindow::default(), Vec::new(), total);
        while left > 0 {
            assert!(window.is_used_up());
            let (_, prefetch) = window.open(u32::try_from(left).unwrap());
            for _ in 0..prefetch {
                assert!(!window.is_used_up());
                window.came(size);
                left -= 1;
            }
            shares.push(prefetch);
        }
        shares
    }

    #[test]
    fn a_share_is_as_large_as_all_before_it_and_never_larger_than_what_is_left() {
        assert_eq!(shares(3, 10), [3]);
        assert_eq!(shares(300, 10), [32, 32, 64, 128, 44]);
        assert!(shares(1_000_000, 256).len() < 32);
    }

    #[test]
    fn no_share_is_more_than_a_sixteenth_of_a_long_walk() {
        for (total, size) in [(100_000, 256), (500_000, 256), (100_000, 64 * 1024)] {
            let shares = shares(total, size);
            assert!(
                shares
                    .iter()
                    .all(|share| u64::from(*share) <= total / PARTS),
                "{shares:?}"
            );
            assert!(shares.len() < 32, "{shares:?}");
        }
    }

    #[test]
    fn large_messages_come_in_small_shares() {
        // 16 MiB each: four fit into the first share's bytes, but no share is smaller than the smallest.
        assert_eq!(
            shares(100, 16 * 1024 * 1024),
            [32; 3].into_iter().chain([4]).collect::<Vec<_>>()
        );
        let shares = shares(20_000, 100 * 1024);
        assert!(shares.len() < 32, "{shares:?}");
        assert!(
            shares
                .iter()
                .all(|share| u64::from(*share) * 100 * 1024 <= 32 * BYTES)
        );
    }

    #[test]
    fn what_is_settled_makes_room_in_its_own_share_only() {
        let mut window = PrefetchWindow::default();
        let (_, prefetch) = window.open(1_000);
        (0..prefetch).for_each(|_| window.came(1));
        window.settled(1);
        assert!(!window.is_used_up(), "the broker sends one more");
        window.came(1);
        let (_, prefetch) = window.open(1_000);
        (0..prefetch).for_each(|_| window.came(1));
        window.settled(2);
        assert!(window.is_used_up(), "the consumer of 2 is cancelled");
        window.settled(40);
        assert!(!window.is_used_up());
    }

    proptest! {
        #[test]
        fn tags_sort_as_they_were_made(steps in 2usize..2_000) {
            let mut window = PrefetchWindow::default();
            let tags: Vec<String> = (0..steps).map(|_| window.open(5).0).collect();
            prop_assert!(tags.is_sorted());
        }
    }
}
