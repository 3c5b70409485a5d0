//! The delivery tags of a walk that continues on another channel. Each channel counts from one; a walk counts on.

use crate::mutants::{self, Mutant};

/// Which tags belong to which channel.
#[derive(Debug, Default)]
pub(crate) struct ChannelTags {
    /// How many messages had come in all when the walk left each of its earlier channels.
    left_at: Vec<u64>,
}

impl ChannelTags {
    /// The walk continues on another channel, after this many messages in all.
    pub(crate) fn part(&mut self, came: u64) {
        self.left_at.push(came);
    }

    /// How many channels it has left.
    pub(crate) fn parted(&self) -> usize {
        self.left_at.len()
    }

    /// The walk's tag for a delivery on the current channel.
    pub(crate) fn of_walk(&self, tag: u64) -> u64 {
        tag + self.left_at.last().copied().unwrap_or(0)
    }

    /// The channel of a delivery, 0 for the first, and its tag on that channel.
    pub(crate) fn of_channel(&self, tag: u64) -> (usize, u64) {
        let mut channel = self.left_at.partition_point(|left_at| *left_at < tag);
        if mutants::has(Mutant::ForgetsTheChannel) {
            channel = self.left_at.len();
        }
        let before = channel
            .checked_sub(1)
            .and_then(|last| self.left_at.get(last));
        (channel, tag.saturating_sub(before.copied().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_is_settled_where_it_came() {
        let mut tags = ChannelTags::default();
        assert_eq!((tags.of_walk(1), tags.of_channel(1)), (1, (0, 1)));
        tags.part(40);
        assert_eq!(tags.of_walk(1), 41);
        for (tag, place) in [(40, (0, 40)), (41, (1, 1)), (43, (1, 3))] {
            assert_eq!(tags.of_channel(tag), place);
        }
        tags.part(40); // nothing came on the second channel
        assert_eq!((tags.of_walk(1), tags.of_channel(41)), (41, (2, 1)));
    }
}
