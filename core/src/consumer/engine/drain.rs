//! The drain: take nothing more, let running handlers finish, requeue the rest.

use std::time::Duration;

use tracing::warn;

use super::{
    Command, Commands, Engine, Moment, Now, Return,
    entry::{Entry, Held, Phase},
};
use crate::retry::format_duration;

/// How long an end without waiting for handlers takes.
pub(crate) const GOODBYE: Duration = Duration::from_secs(2);

/// The drain, once it has begun.
#[derive(Debug)]
pub(super) struct Drain {
    pub(super) until: Moment,
    /// Handlers are no longer waited for.
    abandoned: bool,
}

impl Engine {
    pub(super) fn close(&mut self, now: Now, out: &mut Commands) {
        if self.drain.is_some() {
            return;
        }
        self.drain = Some(Drain {
            until: now.at.saturating_add(self.options.drain_timeout),
            abandoned: false,
        });
        out.add(Command::EndIntake);
        out.add(Command::Recall);
        self.suspect = None;
        // Messages that wait for another try at their copies are requeued as well: a restart may come before a try succeeds.
        let mut kept: Vec<_> = self
            .entries
            .iter()
            .filter(|(_, entry)| match &entry.phase {
                Phase::Held(held) => !matches!(held, Held::Returning | Held::Rejecting(_)),
                Phase::Copying(copying) => copying.waits_for_another_try(),
                Phase::Out => false,
            })
            .map(|(token, entry)| (entry.tag, token))
            .collect();
        kept.sort_unstable();
        for (_, token) in kept {
            self.give_back_soon(token);
        }
    }

    pub(super) fn abandon(&mut self, now: Now, out: &mut Commands) {
        self.close(now, out);
        if let Some(drain) = &mut self.drain
            && !drain.abandoned
        {
            drain.abandoned = true;
            drain.until = drain.until.min(now.at + GOODBYE);
        }
    }

    /// At the end of the drain, messages that still wait for their copies are requeued by `basic.nack`. Closing the channel would requeue
    /// them, too, but every broker counts that, and 4.3 does not count a `basic.nack`.
    pub(crate) fn give_back_the_rest(&mut self, out: &mut Commands) {
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
        let waited = self.drain.as_ref().is_some_and(|drain| !drain.abandoned);
        let runs = |entry: &Entry| matches!(entry.phase, Phase::Out);
        let running = self.entries.iter().filter(|(_, entry)| runs(entry)).count();
        if waited && running > 0 {
            let patience = format_duration(self.options.drain_timeout);
            warn!(
                queue = %self.name,
                "handlers still running after the drain timeout of {patience}: {running}; their messages are requeued"
            );
        }
    }

    /// Whether everything is settled that will be.
    pub(crate) fn is_finished(&self, now: Now) -> bool {
        let Some(drain) = &self.drain else {
            return false;
        };
        let done = if drain.abandoned {
            // Waits for copies on their way: otherwise their originals would come again as duplicates.
            !self
                .entries
                .iter()
                .any(|(_, entry)| matches!(entry.phase, Phase::Copying(_) | Phase::Held(_)))
        } else {
            self.entries.len() == 0 && (self.channel.is_none() || self.intake.is_closed())
        };
        done || now.at >= drain.until
    }

    /// When the drain ends at the latest.
    pub(crate) fn ends_at(&self) -> Option<Moment> {
        self.drain.as_ref().map(|drain| drain.until)
    }
}
