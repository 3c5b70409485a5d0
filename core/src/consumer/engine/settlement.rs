//! The end of a delivery: acknowledged, requeued, or back in its queue after a loss.

use std::sync::Arc;

use super::{
    super::{Received, Token},
    Command, Commands, Engine, Now, Return,
    delivery_state::{DeliveryState, Phase, Purpose},
};
use crate::mutants::{self, Mutant};

impl Engine {
    /// Done: acknowledged with the next flush, and remembered in case the acknowledgement is lost.
    pub(super) fn release(&mut self, token: Token, now: Now) {
        if let Some(done) = self.let_go(token, now) {
            self.answer_earlier(&done);
        }
    }

    /// A message that came again is done by its own delivery. A handler that has it from before owes nothing any more, and what it says must
    /// not settle another message.
    fn answer_earlier(&mut self, done: &Received) {
        let session = self.channel.as_ref().map(|channel| channel.session);
        let earlier = self.entries.iter_mut().find(|(_, entry)| {
            Some(entry.session) != session
                && matches!(entry.phase, Phase::Out)
                && !entry.is_answered
                && self.memory.are_alike(&entry.received, done)
        });
        if let Some((_, entry)) = earlier {
            entry.is_answered = true;
        }
    }

    /// Like [`release`](Self::release), for who knows that no earlier handler has it. The message, if it was a redelivery that is done.
    pub(super) fn let_go(&mut self, token: Token, now: Now) -> Option<Arc<Received>> {
        let entry = self.remove(token)?;
        let ended = match &entry.phase {
            Phase::Copying(pending_copy) => pending_copy.purpose.is_an_end(),
            Phase::Out | Phase::Held(_) => true,
        };
        match &mut self.channel {
            Some(channel) if channel.session == entry.session => {
                // A broker that has died without a word may have taken a young queue with it. Then the message comes again and must run.
                let was_young =
                    matches!(&entry.phase, Phase::Copying(pending_copy) if pending_copy.is_young);
                if ended && (!was_young || mutants::has(Mutant::BelievesSilence)) {
                    self.memory.acknowledged(&entry.received);
                }
                if matches!(&entry.phase, Phase::Copying(pending_copy) if pending_copy.purpose == Purpose::Detour)
                {
                    self.syncs.settled_a_detour();
                }
                channel.acks.settle(entry.tag, now.at);
                (ended && entry.received.redelivered).then_some(entry.received)
            }
            _ => {
                self.counters.stale.inc();
                if ended && !entry.is_answered {
                    self.memory.expect(&entry.received, now.at);
                }
                None
            }
        }
    }

    /// Requeues it, or rejects it to its dead-letter route.
    pub(super) fn give_back(&mut self, token: Token, how: Return, out: &mut Commands) {
        let Some(entry) = self.remove(token) else {
            return;
        };
        if matches!(how, Return::Requeue | Return::Unstarted) {
            self.counters.requeued.inc();
        }
        if let Some(channel) = &mut self.channel
            && channel.session == entry.session
            && channel.acks.reject(entry.tag)
        {
            out.add(Command::Return {
                session: entry.session,
                tag: entry.tag,
                how,
            });
        }
    }

    /// It belongs to a lost channel: the broker delivers it again.
    pub(super) fn forget(&mut self, token: Token) {
        self.remove(token);
    }

    fn remove(&mut self, token: Token) -> Option<DeliveryState> {
        let entry = self.entries.remove(token)?;
        self.counters.outstanding.dec();
        self.byte_budget.released(entry.bytes);
        if entry.awaited {
            self.no_longer_awaited();
        }
        self.detours -= usize::from(entry.on_detour);
        if entry.takes_its_place && self.is_current(entry.session) {
            self.slots_taken -= 1;
            self.prefetch_control.takes_its_place(entry.consumer, false);
            if entry.is_stuck {
                self.prefetch_control.is_stuck(entry.consumer, false);
            }
        }
        self.suspect_ended(token);
        Some(entry)
    }

    /// Its copy is held up, perhaps for as long as an alarm lasts.
    pub(super) fn is_held_up(&mut self, token: Token) {
        if let Some(entry) = self.entries.get_mut(token) {
            entry.is_held_up = true;
        }
        self.takes_its_place(token);
    }

    /// The message will be held for long: those behind it must be able to run.
    pub(super) fn takes_its_place(&mut self, token: Token) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        if std::mem::replace(&mut entry.takes_its_place, true) {
            return;
        }
        let (session, consumer) = (entry.session, entry.consumer);
        let awaited = std::mem::take(&mut entry.awaited);
        self.detours -= usize::from(std::mem::take(&mut entry.on_detour));
        if self.is_current(session) {
            self.slots_taken += 1;
            self.prefetch_control.takes_its_place(consumer, true);
        }
        if awaited {
            self.no_longer_awaited();
        }
    }

    /// Its copy cannot be stored, however often that is tried. If nothing comes behind it, another consumer must get the messages.
    pub(super) fn is_stuck(&mut self, token: Token) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let (session, consumer) = (entry.session, entry.consumer);
        if !std::mem::replace(&mut entry.is_stuck, true) && self.is_current(session) {
            self.prefetch_control.is_stuck(consumer, true);
        }
    }
}
