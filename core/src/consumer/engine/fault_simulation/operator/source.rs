//! The deliveries of a walk: consumer by consumer, each with a larger share.

use std::time::Duration;

use retryrmq_model::{Consume, Declare, Delivery, Frame, Method};

use super::{
    super::{PARKED, replica::Side},
    walk::Walk,
    walk_io::{Interrupted, WalkIo},
};
use crate::parking::DeliverySource;

/// How long to wait for a delivery before asking the broker whether the queue is empty.
const QUIET: Duration = Duration::from_millis(100);
/// How long a queue may say that it has messages, and send none.
const ANSWER: Duration = Duration::from_secs(20);

impl Walk {
    pub(super) fn take(&mut self) -> Option<Delivery> {
        let delivery = self.ahead.pop_front()?;
        self.fresh |= !delivery.redelivered;
        Some(delivery)
    }

    pub(super) fn has_come(&mut self, source: DeliverySource) {
        match source {
            DeliverySource::Elsewhere => self.left = self.left.saturating_sub(1),
            DeliverySource::Renewed => self.copies = self.copies.saturating_sub(1),
            DeliverySource::Replayed => {}
        }
    }

    pub(super) fn came(&mut self, mut delivery: Delivery) {
        delivery.tag = self.tags.of_walk(delivery.tag);
        self.came += 1;
        self.window.came(delivery.body.len());
        self.ahead.push_back(delivery);
    }

    pub(super) fn is_at_hand(&mut self) -> bool {
        if self.ahead.is_empty() {
            while let Some(delivery) = self.walk_io.delivery_at_hand() {
                self.came(delivery);
            }
        }
        !self.ahead.is_empty()
    }

    pub(super) async fn expect(&mut self) -> Result<bool, Interrupted> {
        if self.left + self.copies == 0 {
            return Ok(false);
        }
        let (end, mut looks) = (self.walk_io.now() + ANSWER, 0);
        while self.ahead.is_empty() {
            if self.consumer.is_none() || self.window.is_used_up() {
                self.widen().await?;
                continue;
            }
            if let Some(delivery) = self.walk_io.delivery(QUIET).await? {
                self.came(delivery);
                break;
            }
            looks = if ready(&self.walk_io).await? == 0 {
                looks + 1
            } else {
                0
            };
            if looks == 2 && !self.is_at_hand() {
                return Ok(false);
            }
            if self.walk_io.now() >= end {
                return Err(Interrupted);
            }
        }
        Ok(true)
    }

    pub(super) async fn widen(&mut self) -> Result<(), Interrupted> {
        self.stop().await?;
        if !self.ahead.is_empty() {
            return Ok(());
        }
        let (tag, prefetch) = self.window.open(self.left + self.copies);
        self.walk_io
            .write(Side::Consuming, Method::Qos { prefetch });
        self.walk_io
            .write(Side::Consuming, Method::Consume(Consume::new(PARKED, &tag)));
        self.consumer = Some(tag);
        self.walk_io.answer().await.map(drop)
    }

    /// Continues on another channel, once.
    pub(super) async fn part(&mut self) -> Result<(), Interrupted> {
        if self.tags.parted() > 0 {
            return Ok(());
        }
        self.take_what_is_on_its_way().await?;
        self.stop().await?;
        self.walk_io.part();
        self.tags.part(self.came);
        Ok(())
    }

    /// Waits until the current consumer's share is used up or the queue is empty: what is on its way to a cancelled consumer is counted.
    pub(super) async fn take_what_is_on_its_way(&mut self) -> Result<(), Interrupted> {
        let end = self.walk_io.now() + ANSWER;
        let mut looks = 0;
        while self.consumer.is_some() && !self.window.is_used_up() {
            match self.walk_io.delivery(QUIET).await? {
                Some(delivery) => {
                    self.came(delivery);
                    looks = 0;
                }
                None if ready(&self.walk_io).await? > 0 => looks = 0,
                None => looks += 1,
            }
            if looks == 2 {
                break;
            }
            if self.walk_io.now() >= end {
                return Err(Interrupted);
            }
        }
        Ok(())
    }

    pub(super) async fn stop(&mut self) -> Result<(), Interrupted> {
        let Some(tag) = self.consumer.take() else {
            return Ok(());
        };
        let tag = tag.as_str().into();
        self.walk_io.write(Side::Consuming, Method::Cancel { tag });
        self.walk_io.answer().await?;
        while let Some(delivery) = self.walk_io.delivery_at_hand() {
            self.came(delivery);
        }
        Ok(())
    }
}

/// How many messages are ready.
pub(super) async fn ready(walk_io: &WalkIo) -> Result<u32, Interrupted> {
    walk_io.write(
        Side::Consuming,
        Method::Declare(Box::new(Declare::passive(PARKED))),
    );
    match walk_io.answer().await? {
        Frame::Declared { messages, .. } => Ok(messages),
        _ => Err(Interrupted),
    }
}
