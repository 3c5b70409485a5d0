//! Who consumes a queue, and whose turn it is.

use super::{Context, Effect, Queue};
use crate::settings::QueueType;
use crate::{ConnectionId, Name, Version};

/// What a quorum queue makes of "no bound".
const UNBOUNDED: u32 = 2000;

/// A consumer within the broker, in the order in which they came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ConsumerKey(pub(crate) u64);

/// Where deliveries go.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Holder {
    pub(crate) connection: ConnectionId,
    pub(crate) channel: u16,
    /// Which life of that channel.
    pub(crate) channel_key: u64,
    pub(crate) tag: Name,
    pub(crate) no_ack: bool,
    /// Whether it is a single `basic.get`.
    pub(crate) get: bool,
}

/// Whether a consumer is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Up,
    /// It gets no more; what it holds is still its own.
    Cancelled,
}

#[derive(Clone, Debug)]
pub(crate) struct Consumer {
    pub(crate) holder: Holder,
    pub(crate) status: Status,
    /// How many more it may get, and of how many.
    pub(crate) credit: u32,
    pub(crate) most: u32,
    pub(crate) held: u32,
}

impl Queue {
    /// How many consumers a declaration counts.
    pub(crate) fn consumer_count(&self) -> usize {
        let up = |consumer: &&Consumer| consumer.status == Status::Up && !consumer.holder.get;
        self.consumers.values().filter(up).count()
    }

    /// Takes on a consumer.
    pub(crate) fn subscribe(
        &mut self,
        context: &mut Context<'_>,
        key: ConsumerKey,
        holder: Holder,
        prefetch: u16,
    ) -> ConsumerKey {
        let get = holder.get;
        let unbounded = prefetch == 0 || (holder.no_ack && !holder.get && !self.is_quorum());
        let most = match (unbounded, self.kind) {
            (false, _) => u32::from(prefetch),
            (true, QueueType::Quorum) => UNBOUNDED,
            (true, QueueType::Classic) => u32::MAX,
        };
        self.had_consumers |= !holder.get;
        self.last_used = context.now;
        let known = self.is_quorum().then(|| {
            let same = |consumer: &Consumer| {
                consumer.holder.channel_key == holder.channel_key
                    && consumer.holder.tag == holder.tag
                    && consumer.holder.get == holder.get
            };
            (self.consumers.iter())
                .find(|(_, consumer)| same(consumer))
                .map(|(key, _)| *key)
        });
        let key = known.flatten().unwrap_or(key);
        let held = self.consumers.get(&key).map_or(0, |known| known.held);
        self.consumers.insert(
            key,
            Consumer {
                holder,
                status: Status::Up,
                credit: most.saturating_sub(held),
                most,
                held,
            },
        );
        if self.settings.single_active && !get {
            if self.is_quorum() {
                self.stand_by(context, key);
            }
            self.choose_active(context);
        } else {
            self.serve(key);
        }
        self.run(context);
        self.keep_length(context);
        key
    }

    /// Takes back the wish of a `basic.get` that found nothing.
    pub(crate) fn drop_get(&mut self, key: ConsumerKey) {
        if (self.consumers.get(&key)).is_some_and(|consumer| consumer.held == 0) {
            self.retire(key);
        }
    }

    /// Lets a consumer go; what it holds stays its own. A classic queue of 3.10 then serves nobody, so that the next single
    /// active consumer gets what is ready only when something else happens.
    pub(crate) fn cancel(&mut self, context: &mut Context<'_>, key: ConsumerKey) {
        self.last_used = context.now;
        self.retire(key);
        self.choose_active(context);
        if self.is_quorum() || context.profile.version >= Version::V4_0 {
            self.run(context);
        }
        self.keep_length(context);
    }

    /// The consumer gets nothing more.
    pub(crate) fn retire(&mut self, key: ConsumerKey) {
        self.service.retain(|other| *other != key);
        self.standby.retain(|other| *other != key);
        if self.active == Some(key) {
            self.active = None;
        }
        if let Some(consumer) = self.consumers.get_mut(&key) {
            consumer.status = Status::Cancelled;
            consumer.credit = 0;
            if consumer.held == 0 {
                self.consumers.remove(&key);
            }
        }
    }

    /// The consumer has a turn, at the end of the line.
    pub(crate) fn serve(&mut self, key: ConsumerKey) {
        let Some(consumer) = self.consumers.get(&key) else {
            return;
        };
        let single = self.settings.single_active && !consumer.holder.get;
        let eligible = consumer.status == Status::Up
            && consumer.credit > 0
            && (!single || self.active == Some(key));
        if eligible && !self.service.contains(&key) {
            self.service.push_back(key);
        }
    }

    /// From 4.0 on the widest prefetch is first in line, and among equals who came first.
    fn stand_by(&mut self, context: &Context<'_>, key: ConsumerKey) {
        self.standby.push(key);
        if context.profile.version >= Version::V4_0 {
            let credit = |key: &ConsumerKey| {
                self.consumers
                    .get(key)
                    .map_or(0, |consumer| consumer.credit)
            };
            let mut standby = std::mem::take(&mut self.standby);
            standby.sort_by_key(|key| (std::cmp::Reverse(credit(key)), *key));
            self.standby = standby;
        }
    }

    /// Where only one consumer is served: sees to it that one is.
    pub(crate) fn choose_active(&mut self, _context: &Context<'_>) {
        if !self.settings.single_active || self.active.is_some() {
            return;
        }
        let next = if self.is_quorum() {
            (!self.standby.is_empty()).then(|| self.standby.remove(0))
        } else {
            let up = |(_, consumer): &(&ConsumerKey, &Consumer)| {
                consumer.status == Status::Up && !consumer.holder.get
            };
            self.consumers.iter().find(up).map(|(key, _)| *key)
        };
        if let Some(next) = next {
            self.active = Some(next);
            self.serve(next);
        }
    }

    /// The queue goes: everybody is told.
    pub(crate) fn end_consumers(&mut self, context: &mut Context<'_>) {
        for consumer in self.consumers.values() {
            if consumer.status == Status::Up && !consumer.holder.get {
                context.effects.push(Effect::End {
                    to: consumer.holder.clone(),
                });
            }
        }
        self.consumers.clear();
        self.held.clear();
    }
}
