//! How a walk renews messages that it must not requeue: as fresh copies, in order if possible.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use lapin::message::Delivery;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    Browse, Record,
    marks::Source,
    wear::{NEAR, Wear, may_go},
};
use crate::{Error, ErrorKind, Result, consumer::Received};

/// How many copies may be unconfirmed when a walk ends.
const WAVE: usize = 256;

/// How often copies are sent again, at the end of a walk, to a queue that is full.
const TRIES: u32 = 20;
/// How long such a queue may take to notice that its messages are held.
const PAUSE: Duration = Duration::from_millis(250);

impl Browse {
    /// In a queue of moderate size, all messages that were requeued before are renewed first. So none of them is held, and they keep their
    /// order.
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

    /// Renews those of the next messages that are `wanted`, up to a number. No message waits for another here, because a walk that is
    /// killed meanwhile uses up a delivery of each. But a full parking queue accepts copies only when enough of it is held.
    pub(super) async fn rotate(
        &mut self,
        most: u32,
        wanted: fn(Wear, &Delivery) -> bool,
    ) -> Result<()> {
        let (mut wave, mut enough) = (Vec::new(), 1);
        for _ in 0..most {
            if wave.len() >= enough && !self.supply.is_at_hand() {
                wave = self.put_back(wave).await?;
                enough = (wave.len() * 2).max(1);
            }
            if !self.expect().await? {
                break;
            }
            let source = match self.supply.front() {
                Some(next) if wanted(self.wear, next) && self.obstacle(next).is_none() => {
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
        let left = self.put_back(wave).await?;
        // Shown as they are, and renewed at the end, when more is held.
        self.unrenewed.extend(left);
        Ok(())
    }

    /// Renews a wave. Messages whose copies the broker refuses are shown as they are. This returns those whose copies it cannot take now.
    async fn put_back(&mut self, wave: Vec<Record>) -> Result<Vec<Record>> {
        let stale = wave
            .iter()
            .map(|record| (record.place.1, Arc::clone(&record.received)))
            .collect();
        let Refused { for_good, for_now } = self.renew(stale).await?;
        let mut left = Vec::new();
        for record in wave {
            let (_, tag) = record.place;
            if for_good.contains(&tag) {
                self.unrenewed.push_back(record);
            } else if for_now.iter().any(|(refused, _)| *refused == tag) {
                left.push(record);
            }
        }
        Ok(left)
    }

    /// Takes everything that was looked at before, so that all of it is requeued together and in order.
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

    /// Holds a message that is not shown.
    pub(super) fn pass_over(&mut self, delivery: Delivery) {
        if self.wear.at_the_end(&delivery) && self.obstacle(&delivery).is_none() {
            self.keep(delivery);
        }
    }

    /// Holds a message that must be renewed.
    pub(super) fn keep(&mut self, delivery: Delivery) -> Record {
        let record = self.record(delivery);
        let (_, tag) = record.place;
        self.held.insert(tag, Some(Arc::clone(&record.received)));
        record
    }

    /// Renews what was looked at before, including deliveries that were not handed out. The consumer is cancelled by then; otherwise each
    /// settlement would make room for a message that would be requeued unseen, and counted.
    pub(super) async fn refresh(&mut self) -> Result<()> {
        if self.wear.counts() {
            for delivery in self.supply.end().await? {
                self.pass_over(delivery);
            }
        }
        let mut stale = self.held.stale();
        for tries in 1.. {
            stale = self.renew(stale).await?.for_now;
            if stale.is_empty() {
                break;
            }
            if tries == TRIES {
                return Err(Error::new(
                    ErrorKind::NotConfirmed,
                    format!(
                        "`{}` is full and takes no fresh copies (basic.nack), so that {} messages go back as they are, and the look \
                         has spent a delivery of each; raise its `max-length`, or replay or drop some",
                        self.parking,
                        stale.len()
                    ),
                ));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Publishes copies to the tail, and acknowledges each original after the confirm. A refused copy does not stop the others.
    ///
    /// # Errors
    /// Those that are not about one message. Then no more messages are renewed.
    pub(super) async fn renew(&mut self, stale: Vec<(u64, Arc<Received>)>) -> Result<Refused> {
        let (mut result, mut refused) = (Ok(()), Refused::default());
        for wave in stale.chunks(WAVE) {
            // If the queue has the originals again, the messages would exist twice.
            let ours = self.supply.check();
            self.unless_over(ours)?;
            let messages: Vec<_> = wave
                .iter()
                .map(|(_, received)| Arc::clone(received))
                .collect();
            let asked = Instant::now();
            let sent = self.copies.renew(&messages).await;
            self.supply.confirmed(asked);
            for ((tag, received), sent) in wave.iter().zip(sent) {
                if may_go(Some(sent.is_ok())) {
                    self.settle(*tag).await?;
                    self.supply.copy_sent();
                }
                match sent {
                    Err(error) if error.kind() == ErrorKind::NotConfirmed => {
                        refused.for_now.push((*tag, Arc::clone(received)));
                    }
                    // A missing permission to publish affects all of them.
                    Err(error)
                        if error.is_permanent() && error.kind() != ErrorKind::AccessRefused =>
                    {
                        self.warn_of_refused(received, &error);
                        self.held.insert(*tag, None);
                        refused.for_good.insert(*tag);
                    }
                    sent => result = result.and(sent),
                }
            }
        }
        result.map(|()| refused)
    }

    fn warn_of_refused(&self, received: &Received, error: &Error) {
        let way_out = match error.kind() {
            ErrorKind::TooLarge => {
                "raise RabbitMQ's `max_message_size`, or its `frame_max` where the headers are too large, to save it; or drop it"
            }
            _ => "drop it, or let the broker take it",
        };
        warn!(
            queue = self.parking,
            message_id = received.message_id(),
            "the broker takes no fresh copy of this message, so that each look at it spends a delivery, and a delivery limit may \
             take it; {way_out}. {error}"
        );
    }
}

/// Messages whose copies the broker did not take; they are still held.
#[derive(Default)]
pub(super) struct Refused {
    /// For good: for example, larger than the broker now accepts.
    for_good: BTreeSet<u64>,
    /// As long as the queue is full.
    for_now: Vec<(u64, Arc<Received>)>,
}

impl Refused {
    /// How many.
    pub(super) fn count(&self) -> u64 {
        (self.for_good.len() + self.for_now.len()) as u64
    }
}
