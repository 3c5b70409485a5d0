//! The channel, its loss, and the next one.

use std::time::Duration;

use tracing::{debug, error, warn};

use super::{
    super::{acks::AckWindow, timers::TimerTask},
    Command, Commands, Engine, Now,
    delivery_state::{HoldReason, Phase},
};
use crate::{
    Error, ErrorKind, doubling_pause::DoublingPause, telemetry::Event, topology::SAFE_AGE,
};

const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A session that ends sooner has not shown that consuming works.
const SHORT_SESSION: Duration = Duration::from_secs(5);
/// How often it is reported again that nothing can be consumed.
const TOLD_AGAIN: Duration = Duration::from_secs(60);

/// An open channel.
#[derive(Debug)]
pub(super) struct Channel {
    pub(super) session: u64,
    pub(super) acks: AckWindow,
}

impl Engine {
    pub(super) fn opened(&mut self, session: u64, now: Now) {
        if session != self.sessions || self.drain.is_some() {
            return;
        }
        self.safe_from = now.at + SAFE_AGE;
        self.channel = Some(Channel {
            session,
            acks: AckWindow::new(1),
        });
        self.cautious = true;
        self.opened_at = now.at;
        self.early.opened();
    }

    /// What was to be rejected when the waiting queues are old may be rejected now.
    pub(super) fn queues_are_old(&mut self, now: Now) {
        self.safe_from = self.safe_from.min(now.at);
        let rejecting: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry.phase, Phase::Held(HoldReason::Rejecting(_))))
            .map(|(token, _)| token)
            .collect();
        for token in rejecting {
            self.timers.add(now.at, token, TimerTask::Reject);
        }
    }

    pub(super) fn open_failed(
        &mut self,
        session: u64,
        error: &Error,
        now: Now,
        out: &mut Commands,
    ) {
        if session != self.sessions || self.drain.is_some() {
            return;
        }
        if error.kind() == ErrorKind::Closed {
            self.abandon(now, out);
            return;
        }
        // A queue may be away for days.
        let is_news = self.warned.is_none_or(|(kind, when)| {
            kind != error.kind() || now.at.saturating_sub(when) >= TOLD_AGAIN
        });
        if is_news {
            self.warned = Some((error.kind(), now.at));
            error!(queue = %self.name, %error, "cannot consume; trying again");
        } else {
            debug!(queue = %self.name, %error, "cannot consume; trying again");
        }
        let pause = if error.is_transient() {
            FIRST_PAUSE
        } else {
            LONGEST_PAUSE
        };
        self.open(pause, out);
    }

    /// The first channel is open before there is an engine.
    fn open(&mut self, pause: Duration, out: &mut Commands) {
        self.sessions += 1;
        let pause = self.about(pause);
        out.add(Command::Open {
            session: self.sessions,
            pause,
        });
    }

    pub(super) fn consuming(&mut self, session: u64, consumer: u64, out: &mut Commands) {
        self.prefetch_control.consuming(consumer);
        self.warned = None;
        let returned = session > 1 && std::mem::take(&mut self.failures) > 0;
        if returned {
            self.counters.reconnects.inc();
            let queue = self.queue();
            self.emit(Event::Reconnected { queue }, out);
        }
    }

    pub(super) fn cancelled_by_broker(&mut self, consumer: u64, now: Now, out: &mut Commands) {
        self.prefetch_control.gone(consumer);
        let held = self
            .entries
            .iter()
            .filter(|(_, entry)| self.is_current(entry.session) && entry.consumer == consumer)
            .map(|(_, entry)| now.at.saturating_sub(entry.since));
        if let Some(age) = held.max() {
            self.consumer_timeout.suspect(age);
        }
        warn!(queue = %self.name, "the broker cancelled the consumer: its queue was deleted or moved, or a message was held for longer than its `consumer_timeout`");
        self.lost(now, out);
    }

    /// The broker took messages back because they were held for longer than this.
    pub(super) fn learn_timeout(&mut self, timeout: Duration) {
        if self.consumer_timeout.learn(timeout) {
            self.warn_of_timeout(timeout);
        }
    }

    pub(super) fn warn_of_timeout(&self, timeout: Duration) {
        warn!(
            queue = %self.name, ?timeout,
            "the broker takes messages back that are held for longer than this (`consumer_timeout`), and may count that as a crash: from now \
             on those that no handler has begun are returned before; handlers must be faster"
        );
    }

    /// The channel is gone. Unstarted messages will come again, running handlers may finish, and a new channel is opened.
    pub(super) fn lost(&mut self, now: Now, out: &mut Commands) {
        let Some(Channel { session, .. }) = self.channel.take() else {
            return;
        };
        out.add(Command::Drop { session });
        // They are forgotten when they are back, because their channel is not the current one.
        out.add(Command::Recall);
        self.prefetch_control.lost();
        // Not again for a channel on which nothing was consumed: each event has one `Reconnected`.
        if self.failures == 0 {
            let queue = self.queue();
            self.emit(Event::Disconnected { queue }, out);
        }
        let unsettled = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.session == session)
            .map(|(_, entry)| (entry.mark, &*entry.received));
        self.memory.lose(unsettled, now.at);
        self.withdraw_what_is_held_up(now, out);
        // Copies on their way still count: once stored, their originals need not run again. So do messages that handlers have: a success
        // counts when the message comes again, and the drain waits for all of them.
        let kept: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| matches!(entry.phase, Phase::Held(_)))
            .map(|(token, _)| token)
            .collect();
        for token in kept {
            self.forget(token);
        }
        self.returning.clear();
        self.spares.clear();
        (self.suspect, self.cautious) = (None, true);
        // Messages that are kept until their copies are stored occupied places on the lost channel.
        self.slots_taken = 0;
        self.lingering = None;
        self.unstarted_check = None;
        self.syncs.lost();
        self.returned_unseen = 0;
        if self.drain.is_none() {
            self.failures += 1;
            let lived = now.at.saturating_sub(self.opened_at);
            self.short_sessions = if lived < SHORT_SESSION {
                self.short_sessions + 1
            } else {
                0
            };
            let pause = DoublingPause::new(FIRST_PAUSE, LONGEST_PAUSE);
            let after_failures = match self.failures {
                0 | 1 => Duration::ZERO,
                failures => pause.after(failures.saturating_add(1)),
            };
            let after_short = pause.after(self.short_sessions.saturating_sub(1));
            self.open(after_failures.max(after_short), out);
        }
    }
}
