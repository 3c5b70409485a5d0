//! The user's handlers: they take messages, and answer.

use std::time::Duration;

use super::{
    super::{
        Simulation,
        ledger::{HandlerScript, OFTEN, number},
        publisher::body,
    },
    Replica, Running,
};
use crate::{
    consumer::{Delivery, delivery_queue::HandlerEnd, engine::Input},
    retry::{Failure, Outcome, ParkReason},
};

impl Running {
    /// Whether its handler crashes its process.
    fn kills(&self) -> bool {
        match self.kind {
            HandlerScript::Poison => true,
            HandlerScript::FailsThenKills => self.attempt != 1,
            HandlerScript::CrashesOnce => self.earlier == 0,
            _ => false,
        }
    }
}

impl Simulation {
    /// A handler takes a message, or several.
    pub(super) fn begin(&mut self, at: usize) -> Result<(), String> {
        self.replicas[at].batches += 1;
        let batch = self.replicas[at].batches;
        for taken in 0..self.setting.batch {
            let next = self.replicas[at].delivery_queue.front();
            let Some(number) = next.map(|next| number(next.message.properties())) else {
                break;
            };
            // It would keep the others for so long as well.
            let hangs = self.ledger.kind(number) == HandlerScript::Hangs;
            if hangs && taken > 0 {
                break;
            }
            self.take(at, batch)?;
            if hangs {
                break;
            }
        }
        // A handler ends with the last of its messages.
        let running = &mut self.replicas[at].running;
        let of_it = running.iter_mut().filter(|running| running.batch == batch);
        let of_it: Vec<_> = of_it.collect();
        let ends_at = of_it.iter().map(|running| running.ends_at).max();
        for running in of_it {
            running.ends_at = ends_at.unwrap_or_default();
        }
        Ok(())
    }

    fn take(&mut self, at: usize, batch: u64) -> Result<(), String> {
        let Some(Delivery { token, message, .. }) = self.replicas[at].delivery_queue.pop_front()
        else {
            return Ok(());
        };
        let elsewhere =
            |(other, replica): (usize, &Replica)| other != at && !replica.running.is_empty();
        if self.setting.single_active
            && self.setting.faults.are_none()
            && !self.setting.refused
            && self.replicas.iter().enumerate().any(elsewhere)
        {
            return Err(format!("replica {at} runs beside the active one"));
        }
        let number = number(message.properties());
        if message.body() != body(number) {
            return Err(format!("replica {at} runs {number} with another body"));
        }
        let (kind, earlier) = (self.ledger.kind(number), self.ledger.runs(number));
        let (attempt, deferrals) = (message.attempt(), message.state().deferrals);
        self.note(|| format!("replica {at}: attempt {attempt} of {number} ({kind:?}) begins"));
        let time = match kind {
            HandlerScript::Slow => Duration::from_secs(7),
            // Longer than `consumer_timeout`.
            HandlerScript::Hangs if earlier == 0 => Duration::from_secs(35 * 60),
            _ => Duration::from_millis(self.random.u64(0..60)),
        };
        let ends_at = self.now + time;
        self.replicas[at].running.push(Running {
            batch,
            token,
            number,
            kind,
            earlier,
            attempt,
            deferrals,
            ends_at,
        });
        Ok(())
    }

    /// A handler ends: all its messages are settled at the same instant, or none if it crashes.
    pub(super) fn end_batch(&mut self, at: usize, batch: u64) -> Result<(), String> {
        let running = &mut self.replicas[at].running;
        let mut of_it: Vec<_> = running
            .extract_if(.., |running| running.batch == batch)
            .collect();
        if let Some(killer) = of_it.iter().position(Running::kills) {
            let killer = of_it.swap_remove(killer);
            self.replicas[at].running.append(&mut of_it);
            return self.end(at, killer);
        }
        let may_fail =
            |running: &Running| running.attempt == 1 && running.kind.may_fail_with_others();
        let all_fail = of_it.len() > 1
            && !self.setting.plain
            && of_it.iter().all(may_fail)
            && self.random.u8(0..3) == 0;
        for running in of_it {
            if !all_fail {
                self.end(at, running)?;
                continue;
            }
            if running.kind == HandlerScript::Fine {
                self.ledger.failed_with_others(running.number);
            }
            let ending = HandlerEnd::Settled(Outcome::retry(Failure::new("with others")));
            let token = running.token;
            self.feed(at, Input::Ended { token, ending })?;
        }
        Ok(())
    }

    fn end(&mut self, at: usize, running: Running) -> Result<(), String> {
        let failure = || Failure::new("no");
        let put_off = Outcome::defer(Duration::from_millis(100));
        let outcome = match running.kind {
            HandlerScript::FailsThenKills if running.attempt == 1 => Outcome::retry(failure()),
            HandlerScript::Poison | HandlerScript::FailsThenKills => {
                self.ledger.hit(running.number);
                self.note(|| format!("replica {at} dies of {}", running.number));
                self.kill(at);
                return Ok(());
            }
            HandlerScript::CrashesOnce if running.earlier == 0 => {
                self.note(|| format!("replica {at} dies of {}", running.number));
                self.kill(at);
                return Ok(());
            }
            HandlerScript::FailsOnce if running.attempt == 1 => Outcome::retry(failure()),
            HandlerScript::FailsAlways => Outcome::retry(failure()),
            HandlerScript::Parks => Outcome::Park {
                reason: ParkReason::Requested,
                failure: failure(),
            },
            HandlerScript::Defers if running.deferrals < 2 => put_off,
            HandlerScript::DefersOften if running.deferrals < OFTEN => put_off,
            _ => Outcome::Ack,
        };
        if outcome == Outcome::Ack {
            self.note(|| format!("replica {at}: {} is handled", running.number));
            self.ledger.handled(running.number);
        }
        let token = running.token;
        let ending = HandlerEnd::Settled(outcome);
        self.feed(at, Input::Ended { token, ending })?;
        if running.kind == HandlerScript::AnswersTwice {
            let ending = HandlerEnd::Settled(Outcome::retry(failure()));
            self.feed(at, Input::Ended { token, ending })?;
        }
        Ok(())
    }
}
