//! How a walk renews messages that it must not requeue: as fresh copies, in order if possible.

use std::{sync::Arc, time::Duration};

use lapin::message::Delivery;
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    Browse, Record,
    copies::CopyConfirm,
    copy_marker::DeliverySource,
    delivery_limit::{DeliveryLimit, NEAR, may_go},
};
use crate::{Error, ErrorKind, Result, consumer::Received};

/// How many copies may be unconfirmed when a walk ends.
const WAVE: usize = 256;

/// How often copies are sent again, at the end of a walk, to a queue that is full.
const TRIES: u32 = 20;
/// How long such a queue may take to notice that its messages are held.
const PAUSE: Duration = Duration::from_millis(250);

/// The renewal of messages before any of them is shown.
pub(super) struct RepublishBatch {
    /// How many more may be renewed.
    most: u32,
    wanted: fn(DeliveryLimit, &Delivery) -> bool,
    /// Those that are held for it now.
    batch: Vec<Record>,
    /// With so many the wave is renewed.
    enough: usize,
}

/// A copy that was sent, and the message that may go when it is confirmed.
pub(super) struct Sent {
    tag: u64,
    answer: Result<CopyConfirm>,
    asked: Instant,
}

impl Browse {
    /// In a queue of moderate size, all messages that were requeued before are renewed first. So none of them is held, and they keep their
    /// order.
    pub(super) async fn begin(&mut self) -> Result<()> {
        if self.has_started {
            return Ok(());
        }
        let total = self.source.left();
        let any = self.expect().await?;
        if any && self.connection.server().capabilities().serves_amqp10 {
            // A message among them that cannot be delivered ends the connection: before anything is shown, the walk can begin anew.
            let came = self.source.take_what_is_on_its_way().await;
            self.unless_over(came)?;
        }
        self.has_started = true;
        match self.source.front() {
            Some(first) if any && self.delivery_limit.all_at_once(first) => {
                self.rotate(total, |_, _| true).await
            }
            _ => Ok(()),
        }
    }

    /// Renews those of the next messages that are `wanted`, up to a number. No message waits for another here, because a walk that is
    /// killed meanwhile uses up a delivery of each. But a full parking queue accepts copies only when enough of it is held.
    pub(super) async fn rotate(
        &mut self,
        most: u32,
        wanted: fn(DeliveryLimit, &Delivery) -> bool,
    ) -> Result<()> {
        self.rotation = Some(RepublishBatch {
            most,
            wanted,
            batch: Vec::new(),
            enough: 1,
        });
        self.turn().await
    }

    /// Goes on with the rotation, if there is one that has not come to its end.
    pub(super) async fn turn(&mut self) -> Result<()> {
        while let Some(rotation) = &self.rotation
            && rotation.most > 0
        {
            let wanted = rotation.wanted;
            if rotation.batch.len() >= rotation.enough && !self.source.is_at_hand() {
                self.put_back().await?;
            }
            if !self.expect().await? {
                break;
            }
            let source = match self.source.front() {
                Some(next)
                    if wanted(self.delivery_limit, next) && self.obstacle(next).is_none() =>
                {
                    self.copies.source(next)
                }
                _ => break,
            };
            if source == DeliverySource::Replayed {
                break;
            }
            let Some(delivery) = self.source.next() else {
                break;
            };
            self.source.has_come(source);
            let record = self.keep(delivery);
            if let Some(rotation) = &mut self.rotation {
                rotation.most -= 1;
                rotation.batch.push(record);
            }
        }
        self.put_back().await?;
        // Shown as they are, and renewed at the end, when more is held.
        if let Some(rotation) = self.rotation.take() {
            self.unrenewed.extend(rotation.batch);
        }
        Ok(())
    }

    /// Renews the rotation's wave. Messages whose copies the broker refuses are shown as they are. Those whose copies it cannot take now
    /// stay in the wave.
    async fn put_back(&mut self) -> Result<()> {
        let batch = self.rotation.iter().flat_map(|rotation| &rotation.batch);
        let tags: Vec<_> = batch.map(|record| record.place.1).collect();
        self.renew(&tags).await?;
        let Some(rotation) = &mut self.rotation else {
            return Ok(());
        };
        for record in std::mem::take(&mut rotation.batch) {
            let (_, tag) = record.place;
            if self.held.must_go(tag).is_some() {
                rotation.batch.push(record);
            } else if self.held.contains(tag) {
                self.unrenewed.push_back(record);
            }
        }
        rotation.enough = (rotation.batch.len() * 2).max(1);
        Ok(())
    }

    /// Takes everything that was looked at before, so that all of it is requeued together and in order.
    pub(super) async fn rejoin(&mut self) -> Result<()> {
        if self.delivery_limit.keeps_order() {
            self.turn().await?;
        }
        let mut farther = 0;
        while self.delivery_limit.keeps_order() && self.source.is_among_the_seen() && farther < NEAR
        {
            if !self.expect().await? {
                break;
            }
            if let Some(delivery) = self.source.next() {
                self.source.has_come(DeliverySource::Elsewhere);
                self.pass_over(delivery);
            }
            farther += 1;
        }
        Ok(())
    }

    /// Holds a message that is not shown.
    pub(super) fn pass_over(&mut self, delivery: Delivery) {
        if self.delivery_limit.at_the_end(&delivery) && self.obstacle(&delivery).is_none() {
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
        if self.delivery_limit.counts() {
            for delivery in self.source.end().await? {
                self.pass_over(delivery);
            }
        }
        for tries in 1.. {
            self.renew(&self.held.stale()).await?;
            let stale = self.held.stale();
            if stale.is_empty() {
                break;
            }
            if tries == TRIES {
                return Err(Error::new(
                    ErrorKind::NotConfirmed,
                    format!(
                        "`{}` is full and rejects copies (basic.nack), so {} messages are requeued as they are, and each has used up a \
                         delivery; raise its `max-length`, or replay or drop some",
                        self.parking,
                        stale.len()
                    ),
                ));
            }
            sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Publishes copies to the tail, and acknowledges each original after the confirm. A refused copy does not stop the others: its original
    /// is still [held](super::held::HeldMessages), to be renewed again if the queue was full, and otherwise as it is.
    ///
    /// # Errors
    /// Those that are not about one message.
    pub(super) async fn renew(&mut self, tags: &[u64]) -> Result<()> {
        // Those of a call whose future was dropped.
        let mut result = self.hear().await;
        for batch in tags.chunks(WAVE) {
            // If the queue has the originals again, the messages would exist twice.
            let ours = self.source.check();
            self.unless_over(ours)?;
            let asked = Instant::now();
            for tag in batch {
                if let Some(received) = self.held.must_go(*tag) {
                    self.sent.push_back(Sent {
                        tag: *tag,
                        answer: self.copies.renew(received),
                        asked,
                    });
                }
            }
            result = result.and(self.hear().await);
        }
        result
    }

    /// Waits for the confirms of what was sent, and acknowledges the originals.
    async fn hear(&mut self) -> Result<()> {
        let mut result = Ok(());
        while let Some(first) = self.sent.front_mut() {
            let heard = match &mut first.answer {
                Ok(answer) => answer.get().await,
                Err(error) => Err(error.duplicate()),
            };
            let Some(Sent { tag, asked, .. }) = self.sent.pop_front() else {
                break;
            };
            self.source.confirmed(asked);
            let stored = heard.is_ok();
            match heard {
                Err(error) if error.kind() == ErrorKind::NotConfirmed => {}
                // A missing permission to publish affects all of them.
                Err(error) if error.is_permanent() && error.kind() != ErrorKind::AccessRefused => {
                    if let Some(received) = self.held.must_go(tag) {
                        self.warn_of_refused(received, &error);
                    }
                    self.held.insert(tag, None);
                }
                heard => result = result.and(heard),
            }
            if may_go(Some(stored)) {
                self.source.copy_sent();
                result = result.and(self.settle(tag).await);
            }
        }
        result
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
