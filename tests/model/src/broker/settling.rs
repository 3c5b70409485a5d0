//! Acknowledgements and their opposites.

use super::{Broker, MethodRefused};
use crate::connection::Unsettled;
use crate::nondeterminism::Delay;
use crate::queue::{QueueId, Return};
use crate::{ConnectionId, Frame, Name};
use std::collections::BTreeMap;

/// What becomes of what is settled.
#[derive(Clone, Copy)]
enum Settlement {
    Done,
    Dead { by_nack: bool },
    Back(Return),
}

impl Broker {
    pub(super) fn ack(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        tag: u64,
        multiple: bool,
    ) -> Result<(), MethodRefused> {
        let settled = self.collect(connection, channel, tag, multiple)?;
        self.settle(&settled, Settlement::Done);
        Ok(())
    }

    pub(super) fn nack(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        tag: u64,
        multiple: bool,
        requeue: bool,
    ) -> Result<(), MethodRefused> {
        let settled = self.collect(connection, channel, tag, multiple)?;
        let settlement = if requeue {
            Settlement::Back(Return::Nack)
        } else {
            Settlement::Dead { by_nack: true }
        };
        self.settle(&settled, settlement);
        Ok(())
    }

    pub(super) fn reject(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        tag: u64,
        requeue: bool,
    ) -> Result<(), MethodRefused> {
        let settled = self.collect(connection, channel, tag, false)?;
        let settlement = if requeue {
            Settlement::Back(Return::Reject)
        } else {
            Settlement::Dead { by_nack: false }
        };
        self.settle(&settled, settlement);
        Ok(())
    }

    pub(super) fn recover(&mut self, connection: ConnectionId, channel: u16) {
        let held: Vec<Unsettled> = self
            .channel_mut(connection, channel)
            .map(|known| known.unsettled.drain(..).collect())
            .unwrap_or_default();
        self.settle(&held, Settlement::Back(Return::Nack));
        self.push(connection, channel, Frame::Recovered);
    }

    fn collect(
        &mut self,
        connection: ConnectionId,
        channel: u16,
        tag: u64,
        multiple: bool,
    ) -> Result<Vec<Unsettled>, MethodRefused> {
        let known = self.channel_mut(connection, channel);
        known
            .map_or(Some(Vec::new()), |known| known.collect(tag, multiple))
            .ok_or_else(|| {
                Self::refusal(
                    406,
                    format!("PRECONDITION_FAILED - unknown delivery tag {tag}"),
                )
            })
    }

    /// Tells each queue, consumer by consumer in the order of their tags.
    fn settle(&mut self, settled: &[Unsettled], settlement: Settlement) {
        if let [one] = settled {
            self.settle_in(one.queue, &[one.handout], settlement);
            return;
        }
        let mut groups: BTreeMap<(Name, QueueId, Name), Vec<u64>> = BTreeMap::new();
        for one in settled {
            let name = self.queue(one.queue).map(|queue| queue.name.clone());
            if let Some(name) = name {
                let group = (name, one.queue, one.consumer_tag.clone());
                groups.entry(group).or_default().push(one.handout);
            }
        }
        for ((_, queue, _), handouts) in groups {
            self.settle_in(queue, &handouts, settlement);
        }
    }

    fn settle_in(&mut self, queue: QueueId, handouts: &[u64], settlement: Settlement) {
        let safe_at = match settlement {
            Settlement::Done => self.now + self.nondeterminism.delay(Delay::Settle),
            _ => self.now,
        };
        self.with_queue(queue, |queue, context| match settlement {
            Settlement::Done => queue.settle(context, handouts, safe_at),
            Settlement::Dead { by_nack } => queue.discard(context, handouts, by_nack),
            Settlement::Back(way) => queue.give_back(context, handouts, way),
        });
    }
}
