//! Suspects run alone. A crash counts against everything that is unacknowledged, and no other message may be parked because of it.
//!
//! Anybody can forge a suspect, and any handler can hang. So waiting for other messages has a limit, and so has running alone; after that
//! the suspect is treated as any other message. Messages that run beside it then are counted for its crash as well, but only until they are
//! suspects themselves, and suspects never run beside each other.

use std::time::Duration;

use tracing::info;

use super::{
    super::Token,
    Commands, Engine, EngineTime, Now,
    delivery_state::{HoldReason, Phase},
};
use crate::mutants::{self, Mutant};

/// How long a suspect waits for others, and how long others wait for a running suspect. Messages that have run for so long already are not
/// waited for.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// How long other suspects take detours around one that now runs beside others.
const LINGERS: Duration = Duration::from_secs(60);

/// The suspect; there is one at a time.
#[derive(Debug)]
pub(super) struct Suspect {
    token: Token,
    stage: SuspectStage,
    /// How many messages it waits for.
    awaited: usize,
    /// One of them was settled after the last question to the broker, which may not have read that.
    unread: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SuspectStage {
    Waits {
        until: EngineTime,
    },
    /// The others are settled, and the broker is asked whether it has read that.
    Syncs {
        until: EngineTime,
        number: u64,
        /// When it stops waiting for others.
        waits_until: EngineTime,
    },
    RunsAlone {
        until: EngineTime,
    },
}

impl Suspect {
    pub(super) fn deadline(&self) -> Option<EngineTime> {
        match self.stage {
            SuspectStage::Waits { until }
            | SuspectStage::Syncs { until, .. }
            | SuspectStage::RunsAlone { until } => Some(until),
        }
    }
}

impl Engine {
    /// Makes this message the suspect. It waits for everything that is unsettled.
    pub(super) fn suspect(&mut self, token: Token, now: Now) {
        self.set_phase(token, Phase::Held(HoldReason::Suspect));
        let session = self.channel.as_ref().map(|channel| channel.session);
        let mut awaited = 0;
        for (other, entry) in self.entries.iter_mut() {
            // Messages of an earlier channel are back in the queue, and no crash can count against them.
            entry.awaited = other != token
                && Some(entry.session) == session
                && !entry.takes_its_place
                // What is about to be rejected is held for a moment only.
                && matches!(
                    entry.phase,
                    Phase::Out | Phase::Copying(_) | Phase::Held(HoldReason::Rejecting(_))
                )
                && entry.since + TIME_LIMIT > now.at;
            awaited += usize::from(entry.awaited);
        }
        self.suspect = Some(Suspect {
            token,
            stage: SuspectStage::Waits {
                until: now.at + TIME_LIMIT,
            },
            awaited,
            unread: false,
        });
    }

    /// Whether a message that may run must wait. Beside a suspect run only messages that a wide consumer had brought before.
    pub(super) fn must_wait_for_the_suspect(&self) -> bool {
        self.suspect.is_some()
            && self.prefetch_control.is_narrow()
            && !mutants::has(Mutant::HasCompany)
    }

    /// A message that runs before the suspect does.
    pub(super) fn await_before_suspect(&mut self, token: Token, now: Now) {
        self.settle_before_suspect(token);
        if let Some(suspect) = &mut self.suspect
            && matches!(suspect.stage, SuspectStage::Waits { .. })
        {
            suspect.stage = SuspectStage::Waits {
                until: now.at + TIME_LIMIT,
            };
        }
    }

    /// If the suspect crashes its consumer while a message's copy is on its way, that message exists twice. Among many suspects every crash
    /// would double them.
    pub(super) fn settle_before_suspect(&mut self, token: Token) {
        if let Some(suspect) = &mut self.suspect
            && !matches!(suspect.stage, SuspectStage::RunsAlone { .. })
            && let Some(entry) = self.entries.get_mut(token)
            && !std::mem::replace(&mut entry.awaited, true)
        {
            suspect.awaited += 1;
        }
    }

    /// A message that the suspect waited for is settled, or takes too long.
    pub(super) fn no_longer_awaited(&mut self) {
        if let Some(suspect) = &mut self.suspect {
            suspect.awaited = suspect.awaited.saturating_sub(1);
            suspect.unread = true;
        }
    }

    /// Hands the suspect out once nothing else is unsettled, and ends its time alone. In a pause it is kept like any other message.
    pub(super) fn release_suspect(&mut self, now: Now, out: &mut Commands) {
        let Some(suspect) = &mut self.suspect else {
            return;
        };
        let token = suspect.token;
        let runs = matches!(suspect.stage, SuspectStage::RunsAlone { .. });
        if self.circuit_breaker.is_pausing() && !runs {
            self.suspect = None;
            self.keep(token, now);
            return;
        }
        match suspect.stage {
            SuspectStage::Waits { until } => {
                let quiet = suspect.awaited == 0
                    && self.prefetch_control.is_narrow()
                    && !self.prefetch_control.is_changing();
                if !quiet && now.at < until {
                    return;
                }
                if mutants::has(Mutant::DoesNotAsk) {
                    return self.run_suspect(token, now, out);
                }
                let number = self.sync(now, out);
                if let Some(suspect) = &mut self.suspect {
                    suspect.unread = false;
                    suspect.stage = SuspectStage::Syncs {
                        until: now.at + TIME_LIMIT,
                        number,
                        waits_until: if mutants::has(Mutant::WaitsTwice) {
                            EngineTime::MAX
                        } else {
                            until
                        },
                    };
                }
            }
            SuspectStage::Syncs { until, .. } if now.at >= until => {
                self.run_suspect(token, now, out)
            }
            SuspectStage::Syncs { .. } => {}
            SuspectStage::RunsAlone { until } if now.at >= until => {
                info!(queue = %self.name, "a message that may take consumers down takes its time; others run beside it");
                self.suspect = None;
                self.cautious = false;
                self.lingering = Some((token, now.at + LINGERS));
                // With a prefetch of 1 nothing runs beside it anyway.
                if self.options.configured_prefetch() > 1 {
                    self.takes_its_place(token);
                }
            }
            SuspectStage::RunsAlone { .. } => {}
        }
    }

    /// Lets the suspect run, if the broker has read what was settled before.
    pub(super) fn suspect_synced(&mut self, now: Now, out: &mut Commands) {
        let Some(suspect) = self
            .suspect
            .as_mut()
            .filter(|_| !self.circuit_breaker.is_pausing())
        else {
            return;
        };
        match suspect.stage {
            SuspectStage::Syncs { number, .. } if !self.syncs.has_answered(number) => {}
            // Not longer than at first: with a hanging handler, or one detour after the other, it would never end.
            SuspectStage::Syncs { waits_until, .. }
                if (suspect.awaited > 0 || suspect.unread) && now.at < waits_until =>
            {
                suspect.stage = SuspectStage::Waits {
                    until: waits_until.min(now.at + TIME_LIMIT),
                };
            }
            SuspectStage::Syncs { .. } => {
                let token = suspect.token;
                self.run_suspect(token, now, out);
            }
            SuspectStage::Waits { .. } | SuspectStage::RunsAlone { .. } => {}
        }
    }

    fn run_suspect(&mut self, token: Token, now: Now, out: &mut Commands) {
        if let Some(entry) = self.entries.get_mut(token) {
            if !matches!(entry.phase, Phase::Held(HoldReason::Suspect)) {
                self.suspect = None;
                return;
            }
            let crashes = entry.received.state.crashes;
            info!(queue = %self.name, crashes, "a message that may take consumers down runs alone");
        }
        if let Some(suspect) = &mut self.suspect {
            suspect.stage = SuspectStage::RunsAlone {
                until: now.at + TIME_LIMIT,
            };
        }
        self.hand_out(token, out);
    }

    /// A cautious consumer takes one message at a time, and one that may hold few bytes takes few. If these take long, they are no longer allowed
    /// to hold up all others.
    pub(super) fn end_caution(&mut self, now: Now) {
        self.cautious_until = None;
        if !(self.cautious || self.byte_budget.lets_few_come())
            || self.one_by_one > 0
            || self.suspect.is_some()
            || self.options.configured_prefetch() == 1
        {
            return;
        }
        let session = self.channel.as_ref().map(|channel| channel.session);
        let with_handlers = self.entries.iter().filter(|(_, entry)| {
            Some(entry.session) == session
                && !entry.takes_its_place
                && matches!(entry.phase, Phase::Out)
        });
        let (late, early): (Vec<_>, Vec<_>) = with_handlers
            .map(|(token, entry)| (entry.since + TIME_LIMIT, token))
            .partition(|(late_from, _)| *late_from <= now.at);
        self.cautious_until = early.into_iter().map(|(late_from, _)| late_from).min();
        for (_, token) in late {
            self.takes_its_place(token);
        }
    }

    /// Whether a suspect still runs after its time alone: another one must not run beside it.
    pub(super) fn a_suspect_lingers(&self, now: Now) -> bool {
        self.lingering.is_some_and(|(_, until)| now.at < until)
    }

    /// The suspect, while nothing else may be handed out.
    #[cfg(test)]
    pub(super) fn runs_alone(&self) -> Option<Token> {
        let suspect = self
            .suspect
            .as_ref()
            .filter(|_| self.prefetch_control.is_narrow())?;
        let runs = matches!(suspect.stage, SuspectStage::RunsAlone { .. });
        runs.then_some(suspect.token)
    }

    /// The suspect is settled, or back in its queue.
    pub(super) fn suspect_ended(&mut self, token: Token) {
        self.lingering.take_if(|(lingering, _)| *lingering == token);
        if self
            .suspect
            .as_ref()
            .is_some_and(|suspect| suspect.token == token)
        {
            (self.suspect, self.cautious) = (None, true);
        }
    }
}
