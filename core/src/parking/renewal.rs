//! How a walk puts back what it may not give back: as fresh copies, and in order where that can be had.

use std::sync::Arc;

use lapin::message::Delivery;

use super::{
    Browse,
    marks::Source,
    wear::{NEAR, Wear, may_go},
};
use crate::{Result, consumer::Received};

/// As many copies are on their way at a time when a walk ends.
const WAVE: usize = 256;

impl Browse {
    /// In a queue of moderate size nothing is held that was given back before: all of it becomes fresh copies first, and
    /// keeps its order.
    pub(super) async fn begin(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let total = self.supply.left();
        if !self.expect().await? {
            return Ok(());
        }
        match self.supply.front() {
            Some(first) if self.wear.all_at_once(first) => self.rotate(total, |_, _| true).await,
            _ => Ok(()),
        }
    }

    /// Makes fresh copies of what comes next and is `wanted`, so many at most. A message waits here for no other, because
    /// a walk that is killed meanwhile spends a delivery.
    pub(super) async fn rotate(
        &mut self,
        most: u32,
        wanted: fn(Wear, &Delivery) -> bool,
    ) -> Result<()> {
        let mut wave = Vec::new();
        for _ in 0..most {
            if !wave.is_empty() && !self.supply.is_at_hand() {
                self.renew(std::mem::take(&mut wave)).await?;
            }
            if !self.expect().await? {
                break;
            }
            let source = match self.supply.front() {
                Some(next) if wanted(self.wear, next) && self.copies.is_renewable(next) => {
                    self.copies.source(next)
                }
                _ => break,
            };
            if source == Source::Replayed {
                break;
            }
            let Some(delivery) = self.supply.next() else {
                break;
            };
            self.supply.has_come(source);
            wave.push(self.keep(delivery));
        }
        self.renew(wave).await
    }

    /// Takes everything that was looked at before, so that all of it goes back together and in order.
    pub(super) async fn rejoin(&mut self) -> Result<()> {
        let mut farther = 0;
        while self.wear.keeps_order() && self.supply.is_among_the_seen() && farther < NEAR {
            if !self.expect().await? {
                break;
            }
            if let Some(delivery) = self.supply.next() {
                self.supply.has_come(Source::Elsewhere);
                self.pass_over(delivery);
            }
            farther += 1;
        }
        Ok(())
    }

    /// Holds what nobody asked for.
    pub(super) fn pass_over(&mut self, delivery: Delivery) {
        if self.wear.at_the_end(&delivery) && self.copies.is_renewable(&delivery) {
            self.keep(delivery);
        }
    }

    /// Holds what must be renewed.
    fn keep(&mut self, delivery: Delivery) -> (u64, Arc<Received>) {
        let record = self.record(delivery);
        let (_, tag) = record.place;
        self.held.insert(tag, Some(Arc::clone(&record.received)));
        (tag, record.received)
    }

    /// Puts what was looked at before back as fresh copies, also what came and nobody asked for. Nothing comes any more by
    /// then: each settlement makes room for a message that would go back unseen, and counted.
    pub(super) async fn refresh(&mut self) -> Result<()> {
        if self.wear.counts() {
            for delivery in self.supply.end().await? {
                self.pass_over(delivery);
            }
        }
        let stale: Vec<_> = self
            .held
            .iter()
            .filter_map(|(tag, stale)| stale.as_ref().map(|received| (*tag, Arc::clone(received))))
            .collect();
        self.renew(stale).await
    }

    /// Confirmed copies at the tail, then the originals are acknowledged. One that fails does not stop the others.
    async fn renew(&mut self, stale: Vec<(u64, Arc<Received>)>) -> Result<()> {
        let mut result = Ok(());
        for wave in stale.chunks(WAVE) {
            let messages: Vec<_> = wave
                .iter()
                .map(|(_, received)| Arc::clone(received))
                .collect();
            let sent = self.copies.renew(&messages).await;
            for ((tag, _), sent) in wave.iter().zip(sent) {
                if may_go(Some(sent.is_ok())) {
                    self.settle(*tag).await?;
                    self.supply.copy_sent();
                }
                result = result.and(sent);
            }
        }
        result
    }
}
