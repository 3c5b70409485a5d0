//! The end of an attempt, and what follows from it.

use std::sync::Arc;

use tracing::warn;

use super::{
    super::{Received, Token, timers::TimerTask},
    Command, Commands, Engine, Now, Return,
    delivery_state::{HoldReason, NextAction, Phase},
};
use crate::{
    mutants::{self, Mutant},
    retry::{Failure, Outcome},
    telemetry::Event,
};

impl Engine {
    /// A handler has ended.
    pub(super) fn ended(&mut self, token: Token, outcome: &Outcome, now: Now, out: &mut Commands) {
        let current = self.channel.as_ref().map(|channel| channel.session);
        let Some(entry) = self
            .entries
            .get_mut(token)
            .filter(|entry| matches!(entry.phase, Phase::Out))
        else {
            self.counters.stale.inc();
            return;
        };
        if Some(entry.session) != current {
            // The message comes again. If it is then known as handled, it does not run again.
            if *outcome == Outcome::Ack {
                self.handled_late(token, now, out);
            } else {
                let received = Arc::clone(&entry.received);
                if let Some(failure) = outcome.failure() {
                    self.case(&received, now).log_lost(failure);
                }
                self.counters.stale.inc();
                self.forget(token);
            }
            return;
        }
        let received = Arc::clone(&entry.received);
        let failed = !matches!(outcome, Outcome::Ack | Outcome::Defer { .. });
        if failed {
            self.counters.failed.inc();
        } else if *outcome == Outcome::Ack {
            self.counters.acked.inc();
            self.release(token, now);
            self.note_attempt(token, false, now, out);
            return;
        }
        let draw = self.draws.u64(..);
        let case = self.case(&received, now);
        let next_action = case.after(outcome, draw);
        case.log_failure(
            outcome.failure().unwrap_or(&Failure::default()),
            &next_action,
        );
        self.follow(token, next_action, now, out);
        if failed {
            self.note_attempt(token, true, now, out);
        }
    }

    /// A message was handled after its channel was lost. It may have been delivered again already: a broker takes a message back from a slow
    /// handler (`consumer_timeout`), and would do so each time. Each success settles one delivery; of several equal ones, any will do. Without
    /// an id a message is never taken for another.
    fn handled_late(&mut self, token: Token, now: Now, out: &mut Commands) {
        let session = self.channel.as_ref().map(|channel| channel.session);
        let handled = self.entries.get_mut(token);
        let Some(entry) = handled.filter(|entry| !entry.is_answered) else {
            self.release(token, now);
            return;
        };
        let received = Arc::clone(&entry.received);
        let came_again = self.entries.iter().find(|(_, entry)| {
            Some(entry.session) == session
                && entry.received.redelivered
                && matches!(
                    entry.phase,
                    Phase::Out | Phase::Held(HoldReason::Spare | HoldReason::Suspect)
                )
                && self.memory.are_alike(&entry.received, &received)
        });
        match came_again.map(|(again, _)| again) {
            // It has an effect, so it is not stale; what the other handler says later will be.
            Some(again) => {
                self.forget(token);
                let (queue, message_id) = (self.queue(), received.message_id());
                self.emit(Event::AlreadyHandled { queue, message_id }, out);
                self.let_go(again, now);
                out.add(Command::Skip { token: again });
            }
            None => self.release(token, now),
        }
    }

    /// Carries out the next action.
    pub(super) fn follow(
        &mut self,
        token: Token,
        next_action: NextAction,
        now: Now,
        out: &mut Commands,
    ) {
        match next_action {
            NextAction::Ack => self.release(token, now),
            NextAction::Drop(event) => {
                self.emit(event, out);
                self.release(token, now);
            }
            NextAction::Copy(pending_copy) => self.publish(token, pending_copy, now, out),
            // During the drain nothing is held.
            NextAction::Later(_, pending_copy) if self.drain.is_some() => {
                self.emit(pending_copy.event.clone(), out);
                self.publish(token, pending_copy, now, out);
            }
            NextAction::Later(delay, pending_copy) => {
                self.emit(pending_copy.event.clone(), out);
                self.set_phase(token, Phase::Held(HoldReason::Deferred(pending_copy)));
                // It may be the only message for which there is a place. A prefetch of 1 is somebody's choice.
                if self.byte_budget.lets_few_come() && self.options.configured_prefetch() > 1 {
                    self.takes_its_place(token);
                }
                // Not longer than the broker lets it be held.
                let delay = delay.min(self.consumer_timeout.longest());
                self.timers.add(now.at + delay, token, TimerTask::Defer);
            }
            // The broker makes the copy, and cannot be asked to wait until the copy is safe.
            NextAction::Return(Return::DeadLetter, event)
                if now.at < self.safe_from && !mutants::has(Mutant::RejectsEarly) =>
            {
                self.set_phase(token, Phase::Held(HoldReason::Rejecting(Box::new(event))));
                self.timers.add(self.safe_from, token, TimerTask::Reject);
            }
            NextAction::Return(how, event) => {
                if let Event::Rejected { error, .. } = &event
                    && !std::mem::replace(&mut self.warned_without_dlx, true)
                {
                    warn!(
                        queue = %self.name,
                        error,
                        "a message failed and dlx is off: it is rejected, and dropped unless its queue dead-letters"
                    );
                }
                self.remember_requeued(token, how, &event, now);
                self.emit(event, out);
                self.give_back(token, how, out);
            }
        }
    }

    /// Handed-out messages come back unstarted.
    pub(super) fn recalled(&mut self, tokens: &[Token]) {
        for token in tokens {
            self.not_begun(*token);
        }
    }

    pub(super) fn not_begun(&mut self, token: Token) {
        let out = |phase: &Phase| matches!(phase, Phase::Out);
        if self
            .entries
            .get_mut(token)
            .is_some_and(|entry| out(&entry.phase))
        {
            self.requeue_soon(token);
        } else {
            self.counters.stale.inc();
        }
    }

    /// Requeues a message, as soon as it would not come again at once.
    pub(super) fn requeue_soon(&mut self, token: Token) {
        let current = self.channel.as_ref().map(|channel| channel.session);
        match self.entries.get_mut(token) {
            Some(entry) if Some(entry.session) == current => {
                entry.phase = Phase::Held(HoldReason::Returning);
                self.returning.push(token);
            }
            _ => self.forget(token),
        }
    }

    /// Requeues messages in the order in which they came, because a quorum queue delivers them in the order in which they were
    /// requeued.
    pub(super) fn requeue_in_order(&mut self, now: Now, out: &mut Commands) {
        let quiet = if self.drain.is_some() {
            self.prefetch_control.is_closed()
        } else {
            self.prefetch_control.is_narrow()
                || !self.circuit_breaker.is_pausing() && !self.byte_budget.is_exceeded()
        };
        if self.returning.is_empty() || !quiet {
            return;
        }
        let mut returning: Vec<_> = std::mem::take(&mut self.returning)
            .into_iter()
            .filter_map(|token| {
                let entry = self.entries.get_mut(token)?;
                matches!(entry.phase, Phase::Held(HoldReason::Returning))
                    .then_some((entry.tag, token))
            })
            .collect();
        returning.sort_unstable();
        returning.dedup();
        for (_, token) in returning {
            self.requeue_unstarted(token, now, out);
        }
    }

    /// Requeues an unstarted message, or a copy of it, so that it does not count as a crash.
    pub(super) fn requeue_unstarted(&mut self, token: Token, now: Now, out: &mut Commands) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        if self.returns_as_copy(&received) {
            let pending_copy = self.case(&received, now).requeue_unstarted();
            self.publish(token, Box::new(pending_copy), now, out);
        } else {
            self.give_back(token, Return::Unstarted, out);
        }
    }

    /// Whether an unstarted message goes back as a copy.
    pub(super) fn returns_as_copy(&self, received: &Received) -> bool {
        !self.options.requeue_unchanged
            && crate::retry::returns_as_copy(
                &received.state,
                &self.options.limits,
                self.counting,
                self.nack_is_uncounted,
            )
    }
}
