//! Rewrites a parking queue: every message is replaced by a fresh copy, so that the broker can delete the segments that it keeps because of
//! the oldest messages.

use super::{Browse, copy_marker::DeliverySource};
use crate::Result;

/// How many copies may be unconfirmed.
const WAVE: usize = 256;

impl Browse {
    /// Replaces everything that was ready when the walk began by fresh copies, in order. Each copy is confirmed before its original is
    /// acknowledged. If the process is killed, some of a wave of 256 messages exist twice. `progress` gets the number done after each wave;
    /// if it returns `false`, the rewrite ends early. Returns how many messages were replaced, and how many could not be;
    /// [`close`](Self::close) puts those back unchanged, and so it does with a wave that was begun when the future was dropped.
    ///
    /// # Errors
    /// Those of [`next`](Self::next). What was replaced stays replaced.
    pub async fn rewrite(&mut self, mut progress: impl FnMut(u64) -> bool) -> Result<(u64, u64)> {
        self.has_started = true;
        let (mut done, mut kept, mut ended) = (0, 0, false);
        let mut batch = Vec::new();
        while self.source.expects_originals() {
            if batch.len() >= WAVE || (!batch.is_empty() && !self.source.is_at_hand()) {
                let count = batch.len() as u64;
                let refused = self.write_again(std::mem::take(&mut batch)).await?;
                (done, kept) = (done + count - refused, kept + refused);
                if !progress(done) {
                    ended = true;
                    break;
                }
            }
            if !self.expect().await? {
                break;
            }
            let Some(front) = self.source.front() else {
                break;
            };
            let source = self.copies.source(front);
            let is_whole = self.obstacle(front).is_none();
            let Some(delivery) = self.source.next() else {
                break;
            };
            self.source.has_come(source);
            match source {
                DeliverySource::Elsewhere if is_whole => batch.push(self.keep(delivery)),
                DeliverySource::Elsewhere => kept += 1, // stays unacknowledged until the channel is closed
                // A copy that overtook the originals, for example because of its priority.
                DeliverySource::Renewed | DeliverySource::Replayed => self.pass_over(delivery),
            }
        }
        let count = batch.len() as u64;
        let refused = self.write_again(batch).await?;
        (done, kept) = (done + count - refused, kept + refused);
        // Copies of ours that were not delivered are in their places.
        let left = self.source.give_up_originals();
        self.missed += if ended { 0 } else { left };
        progress(done);
        Ok((done, kept))
    }

    /// Returns how many of a wave the broker did not accept.
    async fn write_again(&mut self, batch: Vec<super::Record>) -> Result<u64> {
        let tags: Vec<_> = batch.iter().map(|record| record.place.1).collect();
        self.renew(&tags).await?;
        Ok(tags.iter().filter(|tag| self.held.contains(**tag)).count() as u64)
    }
}
