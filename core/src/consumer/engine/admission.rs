//! What happens to a delivery before a handler gets it.

use std::sync::Arc;

use tracing::warn;

use super::{
    super::{Delivery, Message, Received, Token, timers::TimerTask},
    Commands, Engine, IncomingDelivery, Now, Return,
    delivery_state::{DeliveryState, HoldReason, Phase},
};
use crate::{
    mutants::{self, Mutant},
    retry::{
        Admission, DeliveryPast, Failure, ParkReason, RetryState, admit, headers, with_reply_to,
    },
    telemetry::Event,
    topology::Detour,
};

/// The most messages that are not suspects and that come one at a time after several suspects. Each takes a detour, and a connection that
/// is lost meanwhile doubles it.
const MOST_SUSPICION: u32 = 16;

impl Engine {
    pub(super) fn delivered(
        &mut self,
        session: u64,
        consumer: u64,
        arrival: IncomingDelivery,
        now: Now,
        out: &mut Commands,
    ) {
        self.prefetch_control.delivered(consumer);
        if let Some(channel) = &mut self.channel {
            channel.acks.delivered(arrival.tag);
        }
        let tag = arrival.tag;
        let received = Arc::new(self.read(arrival));
        self.counters.delivered.inc();
        self.counters.outstanding.inc();
        if received.state.is_fresh_replay() && !received.redelivered {
            let (queue, message_id) = (self.queue(), received.message_id());
            self.emit(Event::Replayed { queue, message_id }, out);
        }
        if now.at >= self.returned_until {
            self.returned_unseen = 0;
        }
        if let Some(timeout) = self.consumer_timeout.arrived(received.redelivered) {
            self.warn_of_timeout(timeout);
        }
        let returned_unseen = received.redelivered && self.returned_unseen > 0;
        self.returned_unseen -= usize::from(returned_unseen);
        let bytes = received.body.len() as u64;
        self.count_body(bytes);
        let token = self.entries.insert(DeliveryState {
            received: Arc::clone(&received),
            bytes,
            mark: None,
            session,
            consumer,
            tag,
            since: now.at,
            phase: Phase::Out,
            awaited: false,
            on_detour: false,
            takes_its_place: false,
            is_stuck: false,
            is_held_up: false,
            returned_unseen,
            is_answered: false,
        });
        if self.memory.recalls(&received, now.at) {
            let (queue, message_id) = (self.queue(), received.message_id());
            self.emit(Event::AlreadyHandled { queue, message_id }, out);
            self.release(token, now);
            return;
        }
        let is_admitted = self.drain.is_none()
            && (!self.circuit_breaker.is_pausing() && self.fits(token)
                || self.must_detour_unstarted(&received.state));
        drop(received); // its body may have to go
        if is_admitted {
            self.admit(token, now, out);
        } else {
            self.keep(token, now);
        }
    }

    fn read(&self, arrival: IncomingDelivery) -> Received {
        let state = RetryState::read(
            &self.name,
            self.counting,
            DeliveryPast::of(arrival.redelivered, self.is_classic),
            &arrival.properties,
        );
        for (header, why) in &state.distrusted {
            warn!(queue = %self.name, header, why, "a header is not believed and counts as absent");
        }
        Received {
            queue: Arc::clone(&self.name),
            body: arrival.body,
            properties: with_reply_to(arrival.properties),
            exchange: arrival.exchange,
            routing_key: arrival.routing_key,
            redelivered: arrival.redelivered,
            state,
            mended: arrival.mended,
        }
    }

    /// Whether a message takes a detour without having run. That includes a pause: connections lost again and again would use up the
    /// delivery limit of messages kept there.
    fn must_detour_unstarted(&self, state: &RetryState) -> bool {
        self.options.has_dlx()
            && matches!(admit(state, &self.options.limits), Admission::Detour { .. })
    }

    /// Keeps a message that may not run now. The message of a narrow consumer stays, so that no more come; what a wide consumer still
    /// brings is requeued.
    pub(super) fn keep(&mut self, token: Token, now: Now) {
        if self.drain.is_none() && self.prefetch_control.is_narrow() {
            self.hold_until_admitted(token, now);
        } else {
            self.requeue_soon(token);
            self.drop_body(token);
        }
    }

    /// Holds a message until it may run. A pause may begin meanwhile, and last longer than `consumer_timeout`. A message that was held
    /// before is requeued at the time scheduled then.
    fn hold_until_admitted(&mut self, token: Token, now: Now) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        if !entry.is_spare() {
            entry.phase = Phase::Held(HoldReason::Spare);
            self.timers.add(
                now.at + self.consumer_timeout.longest(),
                token,
                TimerTask::HoldNoLonger,
            );
        }
        self.spares.push(token);
    }

    pub(super) fn admit(&mut self, token: Token, now: Now, out: &mut Commands) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        let returned_unseen = entry.returned_unseen;
        if self.send_early_redelivery_to_wait(token, &received, now, out) {
            return;
        }
        let admission = if self.options.has_dlx() {
            admit(&received.state, &self.options.limits)
        } else {
            Admission::Run
        };
        let mut crashes = received.state.crashes;
        let admission = if returned_unseen && self.is_one_too_many(&received.state, admission) {
            crashes -= 1;
            Admission::RunAlone
        } else {
            admission
        };
        match admission {
            Admission::Run if self.must_wait_for_the_suspect() => self.keep(token, now),
            // A crash now would bring both back, the message on its detour and its copy; every crash would double them.
            Admission::Run
                if received.state.crashes > 0 && (self.detours > 0 || !self.syncs.are_done()) =>
            {
                self.hold_until_admitted(token, now);
            }
            Admission::Run => {
                self.one_by_one = self.one_by_one.saturating_sub(1);
                if !self.circuit_breaker.is_probing() {
                    // Among many suspects, one that is none says little about the next.
                    self.cautious = self.suspicion > 0;
                    self.suspicion = self.suspicion.saturating_sub(1);
                }
                self.await_before_suspect(token, now);
                self.hand_out(token, out);
            }
            Admission::RunAlone if self.suspect.is_none() && !self.a_suspect_lingers(now) => {
                self.suspect(token, now);
            }
            Admission::RunAlone
                if self.suspect.is_some()
                    && self.prefetch_control.is_narrow()
                    && !self.reached_suspect_limit(crashes) =>
            {
                self.keep(token, now);
            }
            // Not back to the queue: that would count as a crash, and a suspect that often waits for others would be parked because of it.
            Admission::RunAlone => {
                self.suspicion = (self.suspicion * 2 + 1).min(MOST_SUSPICION);
                // A suspect may run beside others for a minute, so the others need not come back every moment.
                let how = if self.suspect.is_some() {
                    Detour::Shortest
                } else {
                    Detour::Longer
                };
                let next_action = self.case(&received, now).detour(crashes, how);
                self.settle_before_suspect(token);
                self.follow(token, next_action, now, out);
            }
            Admission::Detour { .. }
                if !received.state.uncounted_crash && mutants::has(Mutant::SpendsTheLimit) =>
            {
                self.hand_out(token, out);
            }
            Admission::Detour { crashes } => {
                let next_action = self.case(&received, now).detour(crashes, Detour::Shortest);
                self.settle_before_suspect(token);
                self.follow(token, next_action, now, out);
            }
            Admission::Park(reason) => {
                let failure =
                    Failure::new(format!("it came back without an answer {crashes} times"));
                let case = self.case(&received, now);
                let next_action = case.park(reason, &failure);
                case.log_failure(&failure, &next_action);
                self.settle_before_suspect(token);
                self.follow(token, next_action, now, out);
            }
        }
    }

    /// Sends a message away that came back too early. Its attempt has not begun.
    fn send_early_redelivery_to_wait(
        &mut self,
        token: Token,
        received: &Received,
        now: Now,
        out: &mut Commands,
    ) -> bool {
        if !received.redelivered || !self.early.expects() {
            return false;
        }
        let (mark, retries) = (
            self.memory.redelivery_hash(received),
            received.state.retries,
        );
        let Some(left) = self.early.left(mark, retries, now.at) else {
            return false;
        };
        if self.early.saw(mark) {
            warn!(
                queue = %self.name,
                ?left,
                "a message came back too early: a policy changes the delay of the queue (`delayed-retry-type`, `-min` or `-max`; \
                 `retryrmq doctor` names it, RQ123). It waits as a copy, and so do all that fail until the consumer reconnects"
            );
        }
        let next_action = self.case(received, now).send_to_remaining_wait(left);
        self.settle_before_suspect(token);
        self.follow(token, next_action, now, out);
        true
    }

    /// Remembers when a message is to come back that its queue delays.
    pub(super) fn remember_requeued(&mut self, token: Token, how: Return, event: &Event, now: Now) {
        let (Return::Requeue, Event::Retried { .. }) = (how, event) else {
            return;
        };
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        // The broker counts from its own count, not from ours, which may be older.
        let headers = received.properties.headers().as_ref();
        let counted = headers.and_then(|table| headers::count(table, headers::DELIVERY_COUNT).ok());
        let returns = counted.flatten().filter(|_| received.redelivered);
        let next = returns.unwrap_or(0).saturating_add(1);
        let delay = self.options.rules.otherwise.delay(next, 0);
        let mark = self.memory.redelivery_hash(&received);
        let retries = received.state.retries;
        self.early.requeued(mark, retries, delay, now.at);
    }

    /// Whether a message is to be parked because of a single requeue that its queue counted.
    fn is_one_too_many(&self, state: &RetryState, admission: Admission) -> bool {
        let limit = self.options.limits.crashes;
        admission == Admission::Park(ParkReason::DeliveryLimit)
            && state.own_crashes < limit
            && state.crashes == limit
            && !mutants::has(Mutant::TrustsTheCount)
    }

    /// Whether a message has been a suspect for long. A message kept beside another one is counted for that one's crash, and in a short
    /// queue it may be the same message every time.
    fn reached_suspect_limit(&self, crashes: u32) -> bool {
        crashes > self.options.limits.suspect + 1
    }

    pub(super) fn hand_out(&mut self, token: Token, out: &mut Commands) {
        let alone = self.takes_one_by_one()
            || self.prefetch_control.stays_narrow()
            || self.byte_budget.is_narrow();
        if let Some(entry) = self.entries.get_mut(token) {
            entry.phase = Phase::Out;
        }
        let ends_batch = self.takes_the_last_place();
        if let Some(entry) = self.entries.get_mut(token) {
            let in_time = entry.since + self.consumer_timeout.longest();
            self.unstarted_check.get_or_insert(in_time);
            self.circuit_breaker.began(token);
            let message = Message(Arc::clone(&entry.received));
            out.deliveries.push(Delivery {
                token,
                message,
                alone,
                ends_batch,
            });
        }
    }

    /// Gives kept messages their turn: as the next suspect, as the probe, or as one of many.
    pub(super) fn readmit(&mut self, now: Now, out: &mut Commands) {
        if self.suspect.is_some() || self.circuit_breaker.is_pausing() || self.drain.is_some() {
            return;
        }
        for token in std::mem::take(&mut self.spares) {
            let held = self
                .entries
                .get_mut(token)
                .is_some_and(DeliveryState::is_spare);
            if held
                && (self.suspect.is_some()
                    || !self.may_run_now(token)
                    || mutants::has(Mutant::StarvesTheKept))
            {
                self.spares.push(token);
            } else if held {
                self.admit(token, now, out);
            }
        }
    }
}
