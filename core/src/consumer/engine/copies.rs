//! Copies on their way to a waiting, parking or work queue: confirmed before their originals are acknowledged.

use std::{sync::Arc, time::Duration};

use tracing::warn;

use super::{
    super::{Token, timers::TimerTask},
    Command, Commands, Engine, EngineTime, Now, Return,
    delivery_state::{HoldReason, PendingCopy, Phase, Purpose},
};
use crate::{
    Error, ErrorKind, Result,
    doubling_pause::DoublingPause,
    mutants::{self, Mutant},
    retry::must_be_copied_now,
    telemetry::Event,
};

const PAUSE: DoublingPause = DoublingPause::new(Duration::from_millis(200), Duration::from_secs(5));
/// The pause for a copy that the broker refuses as it is: somebody must change something first.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// A copy that is unconfirmed for longer may stay so as long as an alarm lasts.
pub(super) const LONGEST_WAY: Duration = Duration::from_secs(5);
/// After this number of tries, the message's place in the prefetch is given up, so that others come.
const TRIES_IN_PLACE: u32 = 2;
/// The fewest tries for an error that may pass, however long the message was held or ran before.
const FEWEST_TRIES: u32 = 4;
/// After this number of tries, a consumer without another place lets another one be served.
const TRIES_AS_THE_ONLY_ONE: u32 = 4;

impl Engine {
    /// Publishes a copy. Its original stays unacknowledged until the copy is confirmed.
    pub(super) fn publish(
        &mut self,
        token: Token,
        mut pending_copy: Box<PendingCopy>,
        now: Now,
        out: &mut Commands,
    ) {
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        (pending_copy.under_way, pending_copy.published) = (true, now.at);
        if pending_copy.purpose == Purpose::Detour && !entry.takes_its_place {
            self.detours += usize::from(!std::mem::replace(&mut entry.on_detour, true));
        }
        let copy = Box::new(pending_copy.copy.clone());
        // Its consumer may be killed while the copy waits, and in the end the broker would drop the message.
        let at_once = must_be_copied_now(&entry.received.state);
        if !entry.is_held_up && self.drain.is_none() {
            self.ways.push_back((now.at + LONGEST_WAY, token));
        }
        entry.phase = Phase::Copying(pending_copy);
        self.watch_copy(now);
        if mutants::has(Mutant::PublishesTwice) {
            let copy = copy.clone();
            out.add(Command::Publish {
                token,
                copy,
                at_once,
            });
        }
        out.add(Command::Publish {
            token,
            copy,
            at_once,
        });
        if mutants::has(Mutant::AcknowledgesFirst)
            && let Some(entry) = self.entries.get_mut(token)
            && let Some(channel) = &mut self.channel
        {
            channel.acks.settle(entry.tag, EngineTime::ZERO);
        }
    }

    /// A copy is stored, or it is not.
    pub(super) fn copied(
        &mut self,
        token: Token,
        stored: Result<Option<EngineTime>>,
        now: Now,
        out: &mut Commands,
    ) {
        let current = self.channel.as_ref().map(|channel| channel.session);
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let Phase::Copying(pending_copy) = &mut entry.phase else {
            return;
        };
        if !std::mem::replace(&mut pending_copy.under_way, false) {
            return;
        }
        let current = Some(entry.session) == current;
        match stored {
            Ok(safe_from) => {
                let safe_from = safe_from.filter(|_| !mutants::has(Mutant::LetsGoEarly));
                pending_copy.is_young = safe_from.is_some();
                // A deferral without waiting queues was reported before.
                if pending_copy.purpose != Purpose::Deferral {
                    let event = pending_copy.event.clone();
                    self.emit(event, out);
                }
                match safe_from {
                    Some(safe) if current => self.timers.add(safe, token, TimerTask::Release),
                    Some(_) => self.forget(token), // the loss of the connection may have emptied the young queue
                    None => self.release(token, now),
                }
            }
            Err(error)
                if error.kind() == ErrorKind::Unroutable
                    && mutants::has(Mutant::TakesReturnedForStored) =>
            {
                self.release(token, now);
            }
            Err(_) if !current => self.forget(token), // its original comes again, and so does another copy
            Err(error) => self.not_copied(token, &error, now, out),
        }
    }

    fn not_copied(&mut self, token: Token, error: &Error, now: Now, out: &mut Commands) {
        let draining = self.drain.is_some();
        let Some(entry) = self.entries.get_mut(token) else {
            return;
        };
        let received = Arc::clone(&entry.received);
        let since = entry.since;
        let Phase::Copying(pending_copy) = &mut entry.phase else {
            return;
        };
        pending_copy.tries += 1;
        let (tries, purpose) = (pending_copy.tries, pending_copy.purpose);
        self.warn_not_stored(error, received.message_id(), out);
        match purpose {
            // Its own queue is full or gone: it is requeued as it is, and is marked.
            Purpose::PutBack => self.give_back(token, Return::Unstarted, out),
            _ if draining && (error.is_permanent() || tries >= TRIES_IN_PLACE) => {
                self.requeue_soon(token);
            }
            _ => {
                let refused = error.is_permanent();
                if (refused && !mutants::has(Mutant::KeepsItsPlace)) || tries >= TRIES_IN_PLACE {
                    self.is_held_up(token);
                }
                if refused || tries >= TRIES_AS_THE_ONLY_ONE {
                    self.is_stuck(token);
                }
                let pause = if refused {
                    REFUSED_PAUSE
                } else {
                    PAUSE.after(tries)
                };
                let again = now.at + self.about(pause);
                let was_tried = refused || tries >= FEWEST_TRIES;
                if was_tried && again > since + self.consumer_timeout.longest() {
                    if !self.nack_is_uncounted && !self.is_classic {
                        warn!(
                            queue = %self.name, message_id = received.message_id(), cause = error.to_string(),
                            "a message that cannot be stored goes back to its queue, which may count that as a delivery: at its delivery \
                             limit the broker drops or dead-letters the message; mend the cause before"
                        );
                    }
                    let in_time = since + self.consumer_timeout.longest();
                    let when = if in_time > now.at { in_time } else { again };
                    self.timers.add(when, token, TimerTask::GiveBack);
                } else {
                    self.timers.add(again, token, TimerTask::Resubmit);
                }
            }
        }
    }

    /// Withdraws copies that an alarm has held up for long, when their originals come again: each further attempt would add one more copy,
    /// and the end of the alarm would publish all of them. That includes copies of earlier channels that were not held up for long when
    /// those were lost.
    pub(super) fn withdraw_what_is_held_up(&self, now: Now, out: &mut Commands) {
        for (token, entry) in self.entries.iter() {
            let is_held_up = |pending_copy: &PendingCopy| {
                pending_copy.under_way
                    && now.at > pending_copy.published + self.consumer_timeout.longest()
            };
            if matches!(&entry.phase, Phase::Copying(pending_copy) if is_held_up(pending_copy))
                && !mutants::has(Mutant::KeepsWhatIsHeldUp)
            {
                out.add(Command::Withdraw { token });
            }
        }
    }

    /// Gives up the places of messages whose copies have been unconfirmed for long, so that others come. That includes copies from before a
    /// reconnect: an alarm may hold them for hours.
    pub(super) fn expire_unconfirmed_copies(&mut self, now: Now) {
        let current = self.channel.as_ref().map(|channel| channel.session);
        while let Some((late, token)) = self.ways.front().copied() {
            let on_its_way = self.entries.get_mut(token).filter(|entry| {
                !entry.is_held_up
                    && matches!(&entry.phase, Phase::Copying(pending_copy) if pending_copy.under_way)
            });
            let Some(entry) = on_its_way else {
                self.ways.pop_front();
                continue;
            };
            if late > now.at {
                return;
            }
            self.ways.pop_front();
            if Some(entry.session) == current {
                self.is_held_up(token);
            } else {
                entry.is_held_up = true;
                self.detours -= usize::from(std::mem::take(&mut entry.on_detour));
            }
        }
    }

    fn warn_not_stored(&self, error: &Error, message_id: Option<String>, out: &mut Commands) {
        warn!(queue = %self.name, %error, "a copy could not be stored; its original is kept, and it is tried again");
        let (queue, error) = (self.queue(), error.to_string());
        let event = Event::PublishFailed {
            queue,
            message_id,
            error,
        };
        self.emit(event, out);
    }

    /// Does what was scheduled for now.
    pub(super) fn run_due_timers(&mut self, now: Now, out: &mut Commands) {
        while let Some((token, task)) = self.timers.due(now.at) {
            let current = self.channel.as_ref().map(|channel| channel.session);
            // A message that was settled in another way, or is with its handler, is left alone.
            let Some(entry) = self
                .entries
                .get_mut(token)
                .filter(|entry| is_still_due(task, &entry.phase))
            else {
                continue;
            };
            if Some(entry.session) != current {
                // The original comes again. It is not remembered as done: a copy in a young queue may have been lost with the broker.
                self.forget(token);
                continue;
            }
            match task {
                TimerTask::Release => self.release(token, now),
                TimerTask::GiveBack | TimerTask::HoldNoLonger => self.requeue_soon(token),
                TimerTask::Reject => {
                    if let Phase::Held(HoldReason::Rejecting(event)) =
                        std::mem::replace(&mut entry.phase, Phase::Out)
                    {
                        self.emit(*event, out);
                        self.give_back(token, Return::DeadLetter, out);
                    }
                }
                TimerTask::Resubmit | TimerTask::Defer => {
                    if let Phase::Copying(pending_copy)
                    | Phase::Held(HoldReason::Deferred(pending_copy)) =
                        std::mem::replace(&mut entry.phase, Phase::Out)
                    {
                        self.publish(token, pending_copy, now, out);
                    }
                }
            }
        }
    }
}

/// Whether a message still waits for this task.
fn is_still_due(task: TimerTask, phase: &Phase) -> bool {
    match (task, phase) {
        (TimerTask::Release, Phase::Copying(pending_copy)) => pending_copy.is_young,
        (TimerTask::Resubmit | TimerTask::GiveBack, Phase::Copying(pending_copy)) => {
            pending_copy.waits_for_another_try()
        }
        (TimerTask::Defer, Phase::Held(HoldReason::Deferred(_)))
        | (TimerTask::Reject, Phase::Held(HoldReason::Rejecting(_)))
        | (TimerTask::HoldNoLonger, Phase::Held(HoldReason::Spare)) => true,
        _ => false,
    }
}
