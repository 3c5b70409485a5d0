//! The retry budget at work: stop taking messages, and let one probe decide when to resume.

use tracing::{info, warn};

use super::{
    super::{
        Token,
        circuit_breaker::{FailureWindow, Pause},
    },
    Command, Commands, Engine, EngineTime, Now,
};
use crate::telemetry::Event;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BreakerState {
    Off,
    Until(EngineTime),
    /// One message decides.
    Probing,
}

#[derive(Debug)]
pub(super) struct CircuitBreaker {
    budget: Option<FailureWindow>,
    stage: BreakerState,
    /// Messages handed to handlers since the probing began: one, and one more whenever that takes long. Attempts that began before say
    /// nothing about now.
    probes: Vec<Token>,
}

impl CircuitBreaker {
    pub(super) fn new(rule: Option<Pause>) -> Self {
        Self {
            budget: rule.map(FailureWindow::new),
            stage: BreakerState::Off,
            probes: Vec::new(),
        }
    }

    pub(super) fn began(&mut self, token: Token) {
        if self.is_probing() && !self.probes.contains(&token) {
            self.probes.push(token);
        }
    }

    pub(super) fn is_off(&self) -> bool {
        self.stage == BreakerState::Off
    }

    pub(super) fn is_pausing(&self) -> bool {
        matches!(self.stage, BreakerState::Until(_))
    }

    pub(super) fn is_probing(&self) -> bool {
        self.stage == BreakerState::Probing
    }

    pub(super) fn until(&self) -> Option<EngineTime> {
        match self.stage {
            BreakerState::Until(until) => Some(until),
            BreakerState::Off | BreakerState::Probing => None,
        }
    }
}

impl Engine {
    #[cfg(test)]
    pub(super) fn is_pausing(&self) -> bool {
        self.circuit_breaker.is_pausing()
    }

    /// Records the end of an attempt.
    pub(super) fn note_attempt(
        &mut self,
        token: Token,
        failed: bool,
        now: Now,
        out: &mut Commands,
    ) {
        let Some(budget) = &mut self.circuit_breaker.budget else {
            return;
        };
        let pause = budget.pause();
        match self.circuit_breaker.stage {
            BreakerState::Probing if !self.circuit_breaker.probes.contains(&token) => return,
            BreakerState::Probing => {
                budget.reset();
                self.circuit_breaker.probes.clear();
                if !failed {
                    (self.circuit_breaker.stage, self.cautious) = (BreakerState::Off, false);
                    info!(queue = %self.name, "the probe succeeded; taking messages again");
                    let queue = self.queue();
                    self.emit(Event::Resumed { queue }, out);
                    return;
                }
            }
            BreakerState::Until(_) => return,
            BreakerState::Off if !budget.note(failed) => return,
            BreakerState::Off => budget.reset(),
        }
        warn!(queue = %self.name, ?pause, "too many attempts fail; pausing");
        self.circuit_breaker.stage = BreakerState::Until(now.at + pause);
        out.add(Command::Recall);
        let queue = self.queue();
        self.emit(
            Event::Paused {
                queue,
                delay: pause,
            },
            out,
        );
    }

    pub(super) fn end_pause(&mut self, now: Now) {
        if self
            .circuit_breaker
            .until()
            .is_some_and(|until| now.at >= until)
        {
            (self.circuit_breaker.stage, self.cautious) = (BreakerState::Probing, true);
            self.circuit_breaker.probes.clear();
        }
    }
}
