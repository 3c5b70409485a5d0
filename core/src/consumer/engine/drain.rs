//! The drain: take nothing more, let running handlers finish, requeue the rest.

use std::time::Duration;

use tracing::warn;

use super::{
    Command, Commands, Engine, EngineTime, Now, Return,
    delivery_state::{DeliveryState, HoldReason, Phase},
};
use crate::{retry::format_duration, topology::SAFE_AGE};

/// How long copies on their way are waited for, even in a shorter drain: one in a queue that was just made counts as stored only when that
/// queue is safe.
pub(crate) const COPIES: Duration = Duration::from_secs(SAFE_AGE.as_secs() + 1);

/// The shortest wait for handlers: who closes gives back right afterwards what no handler has begun.
const SHORTEST: Duration = Duration::from_millis(50);

/// The drain, once it has begun.
#[derive(Debug)]
pub(super) struct Drain {
    began: EngineTime,
    /// When the wait ends.
    pub(super) until: EngineTime,
    wait: DrainWait,
}

/// What a drain waits for.
#[derive(Debug, PartialEq, Eq)]
enum DrainWait {
    Handlers,
    /// For copies and answers on their way: otherwise originals would come again as duplicates.
    Copies {
        /// Nobody was to wait for handlers.
        abandoned: bool,
    },
}

impl Engine {
    pub(super) fn close(&mut self, now: Now, out: &mut Commands) {
        if self.drain.is_some() {
            return;
        }
        self.drain = Some(Drain {
            began: now.at,
            until: now
                .at
                .saturating_add(self.options.drain_timeout.max(SHORTEST)),
            wait: DrainWait::Handlers,
        });
        out.add(Command::EndIntake);
        out.add(Command::Recall);
        self.suspect = None;
        // Messages that wait for another try at their copies are requeued as well: a restart may come before a try succeeds.
        let mut kept: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| match &entry.phase {
                Phase::Held(held) => {
                    !matches!(held, HoldReason::Returning | HoldReason::Rejecting(_))
                }
                Phase::Copying(pending_copy) => pending_copy.waits_for_another_try(),
                Phase::Out => false,
            })
            .map(|(token, entry)| (entry.tag, token))
            .collect();
        kept.sort_unstable();
        for (_, token) in kept {
            self.requeue_soon(token);
        }
    }

    pub(super) fn abandon(&mut self, now: Now, out: &mut Commands) {
        self.close(now, out);
        self.wait_for_copies(now, true);
    }

    /// When the time of the handlers is over, only copies and answers on their way are waited for.
    pub(super) fn check_drain_deadline(&mut self, now: Now) {
        if self.ends_at().is_some_and(|until| now.at >= until) {
            self.wait_for_copies(now, false);
        }
    }

    fn wait_for_copies(&mut self, now: Now, abandoned: bool) {
        if let Some(drain) = self
            .drain
            .as_mut()
            .filter(|drain| drain.wait == DrainWait::Handlers)
        {
            drain.wait = DrainWait::Copies { abandoned };
            drain.until = match abandoned {
                true => now.at + COPIES,
                false => drain.until.max(drain.began + COPIES),
            };
        }
    }

    /// At the end of the drain, messages that still wait for their copies are requeued by `basic.nack`. Closing the channel would requeue
    /// them, too, but every broker counts that, and 4.3 does not count a `basic.nack`.
    pub(crate) fn requeue_remaining(&mut self, out: &mut Commands) {
        self.warn_of_what_still_runs();
        let mut waiting: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| !matches!(entry.phase, Phase::Out))
            .map(|(token, entry)| (entry.tag, token))
            .collect();
        waiting.sort_unstable();
        for (_, token) in waiting {
            self.give_back(token, Return::Unstarted, out);
        }
    }

    /// The broker requeues the messages of these handlers when the channel is closed.
    fn warn_of_what_still_runs(&self) {
        let abandoned = DrainWait::Copies { abandoned: true };
        let waited = self
            .drain
            .as_ref()
            .is_some_and(|drain| drain.wait != abandoned);
        let runs = |entry: &DeliveryState| matches!(entry.phase, Phase::Out);
        let running = self.entries.iter().filter(|(_, entry)| runs(entry)).count();
        if waited && running > 0 {
            let drain_timeout = format_duration(self.options.drain_timeout);
            warn!(
                queue = %self.name,
                "handlers still running after the drain timeout of {drain_timeout}: {running}; their messages are requeued"
            );
        }
    }

    /// Whether everything is settled that will be.
    pub(crate) fn is_finished(&self, now: Now) -> bool {
        let Some(drain) = &self.drain else {
            return false;
        };
        match drain.wait {
            DrainWait::Handlers => {
                self.entries.len() == 0
                    && (self.channel.is_none() || self.prefetch_control.is_closed())
            }
            DrainWait::Copies { .. } => {
                let on_its_way = |entry: &DeliveryState| {
                    matches!(entry.phase, Phase::Copying(_) | Phase::Held(_))
                };
                now.at >= drain.until || !self.entries.iter().any(|(_, entry)| on_its_way(entry))
            }
        }
    }

    /// When the wait ends: for the handlers, then for what is on its way.
    pub(crate) fn ends_at(&self) -> Option<EngineTime> {
        self.drain.as_ref().map(|drain| drain.until)
    }
}
