//! What comes back from consumers: settled, given back, or dead.

use super::{Consumer, ConsumerKey, Context, Effect, Entry, Held, Queue};
use crate::Version;
use crate::death::Reason;
use crate::queue::{Dead, Status};
use std::time::Duration;

/// How messages are given back to the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// `basic.reject` with requeue
    Reject,
    /// `basic.nack` with requeue, and `basic.recover`
    Nack,
    /// The channel or the connection is gone.
    Down,
    /// The consumer had it for too long (4.3).
    TooLate,
    /// The consumer was cancelled before it came.
    OnTheWay,
}

impl Queue {
    /// The consumer is done with these.
    pub(crate) fn settle(
        &mut self,
        context: &mut Context<'_>,
        handouts: &[u64],
        safe_at: Duration,
    ) {
        while (self.forgotten.front()).is_some_and(|(until, _)| *until <= context.now) {
            self.forgotten.pop_front();
        }
        let before = self.service.len();
        for handout in handouts {
            if let Some(held) = self.release(*handout)
                && safe_at > context.now
            {
                self.forgotten.push_back((safe_at, held.entry));
            }
        }
        self.after_settlement(context, before);
    }

    /// The consumer rejects these for good. By nack it does not count on 4.3.
    pub(crate) fn discard(&mut self, context: &mut Context<'_>, handouts: &[u64], by_nack: bool) {
        let counts = !(by_nack && context.profile.version >= Version::V4_3);
        let before = self.service.len();
        for handout in handouts {
            if let Some(mut held) = self.release(*handout) {
                let tracks = self.tracks(context.profile.version);
                held.entry.count(context.profile.version, counts && tracks);
                self.bury(context, held.entry, Reason::Rejected);
            }
        }
        self.after_settlement(context, before);
    }

    /// The consumer gives these back.
    pub(crate) fn give_back(&mut self, context: &mut Context<'_>, handouts: &[u64], way: Return) {
        let version = context.profile.version;
        let to_tail = self.is_quorum()
            && version < Version::V4_3
            && self.settings.delivery_limit.is_none()
            && matches!(way, Return::Reject | Return::Nack);
        for handout in handouts {
            let Some(held) = self.release(*handout) else {
                continue;
            };
            if to_tail {
                let mut entry = held.entry;
                entry.count_return(version, way);
                self.waiting.push_back(entry);
                self.after_return(context);
            } else {
                let died = self.take_back(context, held.entry, way);
                if died && version == Version::V3_10 {
                    self.widen(held.consumer);
                }
            }
        }
        self.after_return(context);
    }

    /// On 3.10 a message that dies of its delivery limit when it is given back frees its consumer's hand twice, so that
    /// its prefetch is one wider from then on.
    fn widen(&mut self, key: ConsumerKey) {
        if let Some(consumer) = self.consumers.get_mut(&key)
            && consumer.status == Status::Up
            && !consumer.holder.get
        {
            consumer.most = consumer.most.saturating_add(1);
            consumer.credit = consumer.credit.saturating_add(1);
        }
    }

    /// The consumers of a channel get nothing more.
    pub(crate) fn retire_channel(&mut self, channel: u64) {
        let keys: Vec<ConsumerKey> = (self.consumers.iter())
            .filter(|(_, consumer)| consumer.holder.channel_key == channel)
            .map(|(key, _)| *key)
            .collect();
        for key in keys {
            self.retire(key);
        }
    }

    /// The channel is gone, and its consumers with it. What they held goes back, consumer by consumer in a quorum queue.
    pub(crate) fn close_channel(&mut self, context: &mut Context<'_>, channel: u64) {
        self.publishers.remove(&super::Publisher::Channel(channel));
        let mut keys: Vec<ConsumerKey> = (self.consumers.iter())
            .filter(|(_, consumer)| consumer.holder.channel_key == channel)
            .map(|(key, _)| *key)
            .collect();
        if keys.is_empty() && (!self.settings.single_active || self.active.is_some()) {
            return;
        }
        self.last_used = context.now;
        let by_tag = |key: &ConsumerKey| {
            self.consumers
                .get(key)
                .map(|found| found.holder.tag.clone())
        };
        if context.profile.version == Version::V3_10 {
            keys.sort_by_key(by_tag);
        } else {
            keys.sort_by_key(|key| {
                let get = (self.consumers.get(key)).is_some_and(|found| found.holder.get);
                (get, get.then(|| by_tag(key)).flatten(), *key)
            });
        }
        for key in &keys {
            let handouts: Vec<u64> = (self.held.iter())
                .filter(|(_, held)| held.consumer == *key)
                .map(|(handout, _)| *handout)
                .collect();
            self.retire(*key);
            for handout in handouts {
                if let Some(held) = self.release(handout) {
                    self.take_back(context, held.entry, Return::Down);
                }
            }
            self.consumers.remove(key);
        }
        self.choose_active(context);
        self.after_return(context);
    }

    /// 4.3: what a consumer of a quorum queue has had for too long comes back, and the consumer is at an end.
    pub(crate) fn time_out(
        &mut self,
        context: &mut Context<'_>,
        key: ConsumerKey,
        handouts: &[u64],
    ) {
        if let Some(consumer) = self.consumers.get(&key)
            && consumer.status == Status::Up
        {
            context.effects.push(Effect::End {
                to: consumer.holder.clone(),
            });
        }
        self.retire(key);
        self.give_back(context, handouts, Return::TooLate);
        self.choose_active(context);
        self.after_return(context);
    }

    /// Whether it counts anything: classic queues began with 4.3, and show it to nobody.
    fn tracks(&self, version: Version) -> bool {
        self.is_quorum() || version >= Version::V4_3
    }

    /// Takes a message out of its consumer's hands, who may get another one instead.
    fn release(&mut self, handout: u64) -> Option<Held> {
        let held = self.held.remove(&handout)?;
        let key = held.consumer;
        if let Some(consumer) = self.consumers.get_mut(&key) {
            consumer.release();
            let is_done = consumer.status == Status::Cancelled || consumer.holder.get;
            if consumer.held == 0 && is_done {
                self.consumers.remove(&key);
            } else {
                self.serve(key);
            }
        }
        Some(held)
    }

    /// Takes a message back, and says whether it died of that.
    fn take_back(&mut self, context: &mut Context<'_>, mut entry: Entry, way: Return) -> bool {
        let version = context.profile.version;
        if self.tracks(version) {
            entry.count_return(version, way);
        }
        if self.is_quorum() {
            let count = if version == Version::V4_0 {
                entry.acquired
            } else {
                entry.deliveries
            };
            let limit = self.settings.delivery_limit;
            if limit.is_some_and(|limit| count.is_some_and(|count| count > limit)) {
                self.bury(context, entry, Reason::DeliveryLimit);
                return true;
            }
            if let Some(delay) = self.delay(&entry, way) {
                // Brokers reckon in milliseconds, and what is due in the same one comes in the order of its publishing.
                let now = u64::try_from(context.now.as_millis()).unwrap_or(u64::MAX);
                let due = Duration::from_millis(now) + delay;
                self.delayed.insert((due, entry.position), entry);
                return false;
            }
        }
        self.put_back(entry);
        false
    }

    /// Back among the ready ones.
    pub(super) fn put_back(&mut self, mut entry: Entry) {
        if self.is_quorum() {
            self.returned.push_back(entry);
            return;
        }
        entry.redelivered = true;
        let place = (self.waiting).partition_point(|other| other.position < entry.position);
        self.waiting.insert(place, entry);
    }

    fn delay(&self, entry: &Entry, way: Return) -> Option<Duration> {
        let retry = self.settings.delayed_retry?;
        let failed = matches!(way, Return::Reject | Return::Down);
        if !(if failed { retry.failed } else { retry.returned }) {
            return None;
        }
        let count = entry.deliveries.unwrap_or(1).max(1);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Some(retry.least.saturating_mul(count).min(retry.most))
    }

    /// A classic queue serves only when somebody has a turn again who had lost it.
    fn after_settlement(&mut self, context: &mut Context<'_>, served_before: usize) {
        if self.is_quorum() || self.service.len() > served_before {
            self.after_return(context);
        }
    }

    fn after_return(&mut self, context: &mut Context<'_>) {
        if !self.is_quorum() {
            self.keep_length(context);
        }
        self.run(context);
        self.keep_length(context);
    }

    /// The message leaves for the dead-letter exchange, or is dropped where there is none.
    pub(super) fn bury(&mut self, context: &mut Context<'_>, entry: Entry, reason: Reason) {
        if self.settings.dead_letter_exchange.is_none() {
            return;
        }
        let count = (context.profile.version >= Version::V4_0)
            .then_some(entry.deliveries)
            .flatten();
        if self.settings.at_least_once && reason != Reason::MaxLength {
            self.worker.discard(Dead {
                message: entry.message,
                reason,
                delivery_count: count,
            });
            context.effects.push(Effect::Carry { queue: self.id });
        } else {
            context.effects.push(Effect::Bury {
                queue: self.id,
                message: entry.message,
                reason,
                delivery_count: count,
            });
        }
    }
}

impl Consumer {
    fn release(&mut self) {
        self.held = self.held.saturating_sub(1);
        if self.status == Status::Up && !self.holder.get {
            self.credit = self.credit.saturating_add(1).min(self.most);
        }
    }
}

impl Entry {
    /// What a return adds to the counts.
    fn count_return(&mut self, version: Version, way: Return) {
        let counts = match version {
            Version::V3_10 => true,
            Version::V4_0 => matches!(way, Return::Down | Return::OnTheWay),
            Version::V4_3 => matches!(way, Return::Reject | Return::Down),
        };
        self.count(version, counts);
    }

    fn count(&mut self, version: Version, counts: bool) {
        if version >= Version::V4_0 {
            self.acquired = Some(self.acquired.unwrap_or(0) + 1);
        }
        if counts {
            self.deliveries = Some(self.deliveries.unwrap_or(0) + 1);
        }
    }
}
