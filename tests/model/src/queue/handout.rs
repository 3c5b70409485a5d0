//! Handing out: expired messages leave, and whoever has a turn gets what is at the head.

use super::{Context, Effect, Entry, Held, Queue};
use crate::death::Reason;
use crate::queue::{Consumer, ConsumerKey, Status};
use crate::settings::QueueType;
use crate::{Profile, Version};

impl Queue {
    /// Does all that can be done now: delays end, messages expire at the head, consumers are served. A quorum queue then
    /// sends consumer by consumer what it has handed out.
    pub(crate) fn run(&mut self, context: &mut Context<'_>) {
        let before = context.effects.len();
        self.hand_out_all(context);
        while self.settle_by_itself() {
            self.hand_out_all(context);
        }
        let new = &mut context.effects[before..];
        if !self.is_quorum() || new.len() < 2 {
            return;
        }
        let by_tag = context.profile.version == Version::V3_10;
        new.sort_by_cached_key(|effect| match effect {
            Effect::Deliver { consumer, to, .. } => {
                let tag = by_tag.then(|| to.tag.clone());
                Some((tag, *consumer))
            }
            _ => None,
        });
    }

    /// The end of a time or of a delay. A classic queue does not serve anybody because of it.
    pub(crate) fn look(&mut self, context: &mut Context<'_>) {
        if self.is_quorum() {
            self.run(context);
            self.keep_length(context);
        } else {
            self.expire(context);
        }
    }

    /// What needs no settlement settles itself a moment later, and then its consumer's hand is free again.
    fn settle_by_itself(&mut self) -> bool {
        let settled = std::mem::take(&mut self.self_settled);
        for key in &settled {
            if let Some(consumer) = self.consumers.get_mut(key) {
                consumer.credit = consumer.most;
                self.serve(*key);
            }
        }
        !settled.is_empty()
    }

    fn hand_out_all(&mut self, context: &mut Context<'_>) {
        self.end_delays(context);
        loop {
            self.expire(context);
            if self.is_empty() {
                return;
            }
            let Some(key) = self.next_turn() else {
                return;
            };
            if let Some(entry) = self.take() {
                self.hand_out(context, key, entry);
            }
        }
    }

    /// Whose turn it is. Those who have enough lose their turn.
    fn next_turn(&mut self) -> Option<ConsumerKey> {
        loop {
            let key = self.service.pop_front()?;
            let can = |consumer: &Consumer| consumer.status == Status::Up && consumer.credit > 0;
            if self.consumers.get(&key).is_some_and(can) {
                return Some(key);
            }
        }
    }

    /// A classic queue gives a new message to whose turn it is, unless others wait. (They do so although somebody has a
    /// turn only in the case that [`Queue::cancel`] tells of, in which 3.10 is seen to nack the publish.)
    pub(super) fn hand_over(&mut self, context: &mut Context<'_>, entry: Entry) -> Option<Entry> {
        let turn = self.is_empty().then(|| self.next_turn()).flatten();
        match turn {
            Some(key) => {
                self.hand_out(context, key, entry);
                None
            }
            None => Some(entry),
        }
    }

    /// Gives a message to a consumer.
    fn hand_out(&mut self, context: &mut Context<'_>, key: ConsumerKey, entry: Entry) {
        let quorum = self.is_quorum();
        let Some(consumer) = self.consumers.get_mut(&key) else {
            return;
        };
        consumer.credit -= 1;
        if consumer.credit > 0 || !quorum {
            // A classic queue finds out at its next turn that a consumer has enough.
            self.service.push_back(key);
        }
        let handout = self.next_handout;
        self.next_handout += 1;
        let (redelivered, delivery_count, acquired) =
            shown(context.profile, self.kind, &entry, consumer.holder.get);
        context.effects.push(Effect::Deliver {
            queue: self.id,
            to: consumer.holder.clone(),
            consumer: key,
            handout,
            message: entry.message.clone(),
            redelivered,
            delivery_count,
            acquired,
        });
        if consumer.holder.no_ack {
            if consumer.holder.get {
                self.consumers.remove(&key);
            } else if quorum {
                self.self_settled.push(key);
            } else {
                consumer.credit = consumer.most;
            }
            return;
        }
        consumer.held += 1;
        self.held.insert(
            handout,
            Held {
                entry,
                consumer: key,
            },
        );
    }

    /// The message at the head: what was given back comes first.
    pub(super) fn take(&mut self) -> Option<Entry> {
        self.returned
            .pop_front()
            .or_else(|| self.waiting.pop_front())
    }

    /// What is at the head and has run out of time dies; what is behind it waits. In a quorum queue of 4.3 what was
    /// given back is a line of its own, and both lines have a head.
    fn expire(&mut self, context: &mut Context<'_>) {
        let now = context.now;
        let is_over = |entry: Option<&Entry>| {
            entry.is_some_and(|entry| entry.expiry.is_some_and(|end| end <= now))
        };
        while is_over(self.returned.front()) {
            if let Some(entry) = self.returned.pop_front() {
                self.bury(context, entry, Reason::Expired);
            }
        }
        let two_heads = self.is_quorum() && context.profile.version >= Version::V4_3;
        while (self.returned.is_empty() || two_heads) && is_over(self.waiting.front()) {
            if let Some(entry) = self.waiting.pop_front() {
                self.bury(context, entry, Reason::Expired);
            }
        }
    }

    /// What is due after a delayed retry is in front again.
    fn end_delays(&mut self, context: &Context<'_>) {
        while let Some(first) = self.delayed.first_entry() {
            if first.key().0 > context.now {
                return;
            }
            let entry = first.remove();
            self.returned.push_back(entry);
        }
    }
}

/// Whether a message is redelivered, and which counts its consumer reads. On 3.10 `basic.get` shows a count of 0, and a
/// consumer of what was never delivered sees none.
fn shown(
    profile: &Profile,
    kind: QueueType,
    entry: &Entry,
    get: bool,
) -> (bool, Option<i64>, Option<i64>) {
    if kind == QueueType::Classic {
        return (entry.redelivered, None, None);
    }
    let acquired = entry.acquired.or(entry.deliveries);
    match profile.version {
        Version::V3_10 => (
            entry.deliveries.is_some(),
            entry.deliveries.or(get.then_some(0)),
            None,
        ),
        Version::V4_0 => (acquired.is_some_and(|count| count > 0), acquired, None),
        Version::V4_3 => (
            acquired.is_some_and(|count| count > 0),
            entry.deliveries,
            acquired,
        ),
    }
}
