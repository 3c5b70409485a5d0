//! A parking queue rewritten: every message put back as a fresh copy, so that the broker can delete what it keeps because
//! of the oldest of them.

use std::sync::Arc;

use super::{Browse, marks::Source};
use crate::Result;

/// Copies that are on their way at a time.
const WAVE: usize = 256;

impl Browse {
    /// Puts everything that was there when the walk began back as fresh copies, in order: each is confirmed before its original
    /// is acknowledged. Killed meanwhile, some of a wave of 256 are there twice. `progress` hears how many are done, after each
    /// wave, and ends it early by saying false. Returns how many were put back, and how many could not be: see [`close`](Self::close), which keeps those as they are.
    ///
    /// # Errors
    /// Those of [`next`](Self::next). What was done stays done.
    pub async fn rewrite(&mut self, mut progress: impl FnMut(u64) -> bool) -> Result<(u64, u64)> {
        self.begun = true;
        let (mut done, mut kept, mut ended) = (0, 0, false);
        let mut wave = Vec::new();
        while self.supply.expects_originals() {
            if wave.len() >= WAVE || (!wave.is_empty() && !self.supply.is_at_hand()) {
                let count = wave.len() as u64;
                let refused = self.write_again(std::mem::take(&mut wave)).await?;
                (done, kept) = (done + count - refused, kept + refused);
                if !progress(done) {
                    ended = true;
                    break;
                }
            }
            if !self.expect().await? {
                break;
            }
            let Some(front) = self.supply.front() else {
                break;
            };
            let source = self.copies.source(front);
            let is_whole = self.obstacle(front).is_none();
            let Some(delivery) = self.supply.next() else {
                break;
            };
            self.supply.has_come(source);
            match source {
                Source::Elsewhere if is_whole => wave.push(self.keep(delivery)),
                Source::Elsewhere => kept += 1, // unacknowledged until the channel is closed
                // A copy that overtook the originals, as one with a priority does.
                Source::Renewed | Source::Replayed => self.pass_over(delivery),
            }
        }
        let count = wave.len() as u64;
        let refused = self.write_again(wave).await?;
        (done, kept) = (done + count - refused, kept + refused);
        // Copies of ours that nobody fetched are where they should be.
        let left = self.supply.give_up_originals();
        self.missed += if ended { 0 } else { left };
        progress(done);
        Ok((done, kept))
    }

    /// Returns how many of a wave the broker took no copies of.
    async fn write_again(&mut self, wave: Vec<super::Record>) -> Result<u64> {
        if wave.is_empty() {
            return Ok(0);
        }
        let stale = wave
            .iter()
            .map(|record| (record.place.1, Arc::clone(&record.received)))
            .collect();
        let refused = self.renew(stale).await?;
        Ok(refused.count())
    }
}
