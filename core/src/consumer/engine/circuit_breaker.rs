//! The retry budget at work: stop taking messages, and let one probe decide when to resume.

use tracing::{info, warn};

use super::{
    super::{
        Token,
        circuit_breaker::{Budget, Pause},
    },
    Command, Commands, Engine, Moment, Now,
};
use crate::telemetry::Event;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Off,
    Until(Moment),
    /// One message decides.
    Probing,
}

#[derive(Debug)]
pub(super) struct Pausing {
    budget: Option<Budget>,
    stage: Stage,
    /// Messages handed to handlers since the probing began: one, and one more whenever that takes long. Attempts that began before say
    /// nothing about now.
    probes: Vec<Token>,
}

impl Pausing {
    pub(super) fn new(rule: Option<Pause>) -> Self {
        Self {
            budget: rule.map(Budget::new),
            stage: Stage::Off,
            probes: Vec::new(),
        }
    }

    pub(super) fn began(&mut self, token: Token) {
        if self.is_probing() && !self.probes.contains(&token) {
            self.probes.push(token);
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.stage == Stage::Off
    }

    pub(super) fn is_pausing(&self) -> bool {
        matches!(self.stage, Stage::Until(_))
    }

    pub(super) fn is_probing(&self) -> bool {
        self.stage == Stage::Probing
    }

    pub(super) fn until(&self) -> Option<Moment> {
        match self.stage {
            Stage::Until(until) => Some(until),
            Stage::Off | Stage::Probing => None,
        }
    }
}

impl Engine {
    #[cfg(test)]
    pub(super) fn is_pausing(&self) -> bool {
        self.pausing.is_pausing()
    }

    /// Records the end of an attempt.
    pub(super) fn note_attempt(
        &mut self,
        token: Token,
        failed: bool,
        now: Now,
        out: &mut Commands,
    ) {
        let Some(budget) = &mut self.pausing.budget else {
            return;
        };
        let pause = budget.pause();
        match self.pausing.stage {
            Stage::Probing if !self.pausing.probes.contains(&token) => return,
            Stage::Probing => {
                budget.reset();
                self.pausing.probes.clear();
                if !failed {
                    (self.pausing.stage, self.cautious) = (Stage::Off, false);
                    info!(queue = %self.name, "the probe succeeded; taking messages again");
                    let queue = self.queue();
                    self.tell(Event::Resumed { queue }, out);
                    return;
                }
            }
            Stage::Until(_) => return,
            Stage::Off if !budget.note(failed) => return,
            Stage::Off => budget.reset(),
        }
        warn!(queue = %self.name, ?pause, "too many attempts fail; pausing");
        self.pausing.stage = Stage::Until(now.at + pause);
        out.add(Command::Recall);
        let queue = self.queue();
        self.tell(
            Event::Paused {
                queue,
                delay: pause,
            },
            out,
        );
    }

    pub(super) fn end_pause(&mut self, now: Now) {
        if self.pausing.until().is_some_and(|until| now.at >= until) {
            (self.pausing.stage, self.cautious) = (Stage::Probing, true);
            self.pausing.probes.clear();
        }
    }
}
