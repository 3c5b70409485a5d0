//! A walk through the parking queue, on the model instead of on lapin. All decisions are made by the code that [`Browse`](crate::Browse)
//! uses; only the transport is different.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use retryrmq_model::{Delivery, Method, Publish};

use super::{
    super::{PARKED, QUEUE, ledger::number, replica::Side},
    source::ready,
    walk_io::{Interrupted, LedgerNote, WalkIo},
};
use crate::{
    BasicProperties,
    connection::USUAL_HEADER_ROOM,
    parking::{
        ChannelTags, CopyMarkers, DeliveryHistory, DeliveryLimit, DeliverySource, NEAR,
        PrefetchWindow, Record, WalkMove, may_go,
    },
    retry::{CopyHeaders, Origin},
    types::ShortString,
};

/// How many copies may be unconfirmed.
const WAVE: usize = 256;

/// What an operator wants to do.
#[derive(Clone, Debug)]
pub(super) enum OperatorTask {
    Look,
    /// Replay every so many of the messages shown.
    Replay {
        every: usize,
    },
    /// Drop these, and no others.
    Drop(BTreeSet<u32>),
    /// Replace all of them by fresh copies.
    Rewrite,
}

/// A message that was delivered to the walk.
type Sent = Arc<Delivery>;

pub(super) struct Walk {
    pub(super) walk_io: WalkIo,
    operator_task: OperatorTask,
    /// After how many messages the operator stops.
    enough: usize,
    /// For a long walk: how many messages it keeps that must be renewed at its end.
    kept: Option<usize>,
    delivery_limit: DeliveryLimit,
    marks: CopyMarkers,
    pub(super) tags: ChannelTags,
    pub(super) came: u64,
    pub(super) window: PrefetchWindow,
    pub(super) consumer: Option<String>,
    pub(super) ahead: VecDeque<Delivery>,
    pub(super) left: u32,
    pub(super) copies: u32,
    pub(super) fresh: bool,
    held: BTreeMap<u64, Option<Sent>>,
}

fn seen(delivery: &Delivery) -> DeliveryHistory<'_> {
    DeliveryHistory {
        redelivered: delivery.redelivered,
        properties: &delivery.properties,
    }
}

impl Walk {
    /// Runs the walk from begin to end.
    pub(super) async fn go(
        walk_io: WalkIo,
        operator_task: OperatorTask,
        (enough, kept): (usize, Option<usize>),
        number: u64,
        classic: bool,
    ) -> Result<(), Interrupted> {
        let total = ready(&walk_io).await?;
        let length = if kept.is_some() { NEAR + 1 } else { total };
        let mut walk = Self {
            walk_io,
            operator_task,
            enough,
            kept,
            delivery_limit: DeliveryLimit::of(classic, length),
            marks: CopyMarkers::of(number),
            tags: ChannelTags::default(),
            came: 0,
            window: PrefetchWindow::default(),
            consumer: None,
            ahead: VecDeque::new(),
            left: total,
            copies: 0,
            fresh: false,
            held: BTreeMap::new(),
        };
        let mut shown = 0;
        if matches!(walk.operator_task, OperatorTask::Rewrite) {
            walk.rewrite().await?;
        }
        while shown < walk.enough
            && let Some(delivery) = walk.next(shown == 0).await?
        {
            shown += 1;
            walk.act(shown, &delivery).await?;
        }
        walk.rejoin().await?;
        walk.refresh().await?;
        for side in [Side::Consuming, Side::Publishing] {
            walk.walk_io.write(side, Method::CloseConnection);
        }
        Ok(())
    }

    async fn act(&mut self, shown: usize, delivery: &Sent) -> Result<(), Interrupted> {
        let number = number(&delivery.properties);
        match &self.operator_task {
            OperatorTask::Replay { every } if shown.is_multiple_of(*every) => {
                self.walk_io.record(LedgerNote::Replays(number));
                let replayed = self.marks.replayed.clone();
                let properties = stamped(delivery, |stamp| {
                    stamp.replay(&replayed, false).expect("it is small")
                });
                let publish = self.publish(QUEUE, properties, delivery);
                if may_go(None) {
                    self.settle(delivery.tag);
                }
                let stored = self.walk_io.confirm(publish).await?;
                if may_go(Some(stored)) {
                    self.settle(delivery.tag);
                }
            }
            OperatorTask::Drop(named) if named.contains(&number) => {
                self.walk_io.record(LedgerNote::Drops(number));
                self.settle(delivery.tag);
            }
            _ => {}
        }
        Ok(())
    }

    async fn next(&mut self, first: bool) -> Result<Option<Sent>, Interrupted> {
        if first {
            let total = self.left;
            if self.expect().await?
                && let Some(front) = self.ahead.front()
                && self.delivery_limit.all_at_once(seen(front))
            {
                self.rotate(total, |_, _| true).await?;
            }
        }
        loop {
            if self.delivery_limit.counts() && self.is_full() {
                self.part().await?;
            }
            if !self.expect().await? {
                break;
            }
            self.delivery_limit.holds(self.is_full());
            let Some(front) = self.ahead.front() else {
                break;
            };
            let source = self.marks.source(&front.properties);
            let next_move = self
                .delivery_limit
                .next_move(seen(front), source, self.left > 0);
            if next_move == WalkMove::Renew {
                self.rotate(u32::MAX, |delivery_limit, next| {
                    delivery_limit.at_once(seen(next))
                })
                .await?;
                continue;
            }
            let Some(delivery) = self.take() else { break };
            self.has_come(source);
            if next_move == WalkMove::PassOver {
                self.pass_over(delivery);
                continue;
            }
            let stale = self.delivery_limit.at_the_end(seen(&delivery));
            let delivery = Arc::new(delivery);
            let renewable = stale.then(|| Arc::clone(&delivery));
            self.held.insert(delivery.tag, renewable);
            return Ok(Some(delivery));
        }
        (self.left, self.copies) = (0, 0);
        Ok(None)
    }

    /// Whether no more messages may be kept that must be renewed at the end.
    fn is_full(&self) -> bool {
        let stale = || self.held.values().flatten().count();
        self.kept.is_some_and(|kept| stale() >= kept)
    }

    async fn rewrite(&mut self) -> Result<(), Interrupted> {
        let mut batch = Vec::new();
        while self.left > 0 {
            if !batch.is_empty() && !self.is_at_hand() {
                self.renew(std::mem::take(&mut batch)).await?;
            }
            if !self.expect().await? {
                break;
            }
            let Some(delivery) = self.take() else { break };
            let source = self.marks.source(&delivery.properties);
            self.has_come(source);
            match source {
                DeliverySource::Elsewhere => batch.push(self.keep(delivery)),
                DeliverySource::Renewed | DeliverySource::Replayed => self.pass_over(delivery),
            }
        }
        self.renew(batch).await?;
        (self.left, self.copies) = (0, 0);
        Ok(())
    }

    async fn rotate(
        &mut self,
        most: u32,
        wanted: fn(DeliveryLimit, &Delivery) -> bool,
    ) -> Result<(), Interrupted> {
        let mut batch = Vec::new();
        for _ in 0..most {
            if !batch.is_empty() && !self.is_at_hand() {
                self.renew(std::mem::take(&mut batch)).await?;
            }
            if !self.expect().await? {
                break;
            }
            let source = match self.ahead.front() {
                Some(next) if wanted(self.delivery_limit, next) => {
                    self.marks.source(&next.properties)
                }
                _ => break,
            };
            if source == DeliverySource::Replayed {
                break;
            }
            let Some(delivery) = self.take() else { break };
            self.has_come(source);
            batch.push(self.keep(delivery));
        }
        self.renew(batch).await
    }

    async fn rejoin(&mut self) -> Result<(), Interrupted> {
        let mut farther = 0;
        while self.delivery_limit.keeps_order()
            && self.window.has_begun()
            && !self.fresh
            && farther < NEAR
        {
            if !self.expect().await? {
                break;
            }
            if let Some(delivery) = self.take() {
                self.has_come(DeliverySource::Elsewhere);
                self.pass_over(delivery);
            }
            farther += 1;
        }
        Ok(())
    }

    async fn refresh(&mut self) -> Result<(), Interrupted> {
        if self.delivery_limit.counts() {
            self.take_what_is_on_its_way().await?;
            self.stop().await?;
            for delivery in std::mem::take(&mut self.ahead) {
                self.pass_over(delivery);
            }
        }
        let stale = self.held.values().flatten().cloned().collect();
        self.renew(stale).await
    }

    fn pass_over(&mut self, delivery: Delivery) {
        if self.delivery_limit.at_the_end(seen(&delivery)) {
            self.keep(delivery);
        }
    }

    fn keep(&mut self, delivery: Delivery) -> Sent {
        let delivery = Arc::new(delivery);
        self.held.insert(delivery.tag, Some(Arc::clone(&delivery)));
        delivery
    }

    async fn renew(&mut self, stale: Vec<Sent>) -> Result<(), Interrupted> {
        for batch in stale.chunks(WAVE) {
            let mut published = Vec::new();
            for delivery in batch {
                let renewed = self.marks.renewed.clone();
                let properties = stamped(delivery, |stamp| {
                    stamp.renewed(&renewed).expect("it is small")
                });
                published.push(self.publish(PARKED, properties, delivery));
                if may_go(None) {
                    self.settle(delivery.tag);
                }
            }
            for (publish, delivery) in published.into_iter().zip(batch) {
                let stored = self.walk_io.confirm(publish).await?;
                if may_go(Some(stored)) {
                    self.settle(delivery.tag);
                    self.copies += 1;
                }
            }
        }
        Ok(())
    }

    fn publish(&self, to: &str, properties: BasicProperties, original: &Delivery) -> u64 {
        let message = Publish::to_queue(to, Arc::clone(&original.body)).with(properties);
        self.walk_io.publish(Method::Publish(Box::new(message)))
    }

    fn settle(&mut self, tag: u64) {
        if self.held.remove(&tag).is_some() {
            let (channel, of_channel) = self.tags.of_channel(tag);
            let number = u16::try_from(channel + 1).expect("a walk parts once");
            self.walk_io.acknowledge(number, of_channel);
            self.window.settled(tag);
        }
    }
}

/// A copy of a message that was delivered to the walk.
fn stamped(
    delivery: &Delivery,
    copy: impl FnOnce(CopyHeaders<'_>) -> BasicProperties,
) -> BasicProperties {
    let record = Record::read(
        (0, delivery.tag),
        &Arc::from(QUEUE),
        delivery.body.to_vec(),
        (*delivery.properties).clone(),
        ShortString::from(&*delivery.exchange),
        ShortString::from(&*delivery.routing_key),
    );
    let received = &record.received;
    copy(CopyHeaders {
        origin: &Origin::default(),
        properties: &received.properties,
        exchange: received.exchange(),
        routing_key: received.routing_key(),
        state: &received.state,
        now: 0,
        budget: USUAL_HEADER_ROOM,
    })
}
