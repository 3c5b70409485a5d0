//! The user's handlers: they take messages, and answer.

use std::time::Duration;

use super::{
    super::{
        World,
        books::{Kind, OFTEN, number},
    },
    Replica, Running,
};
use crate::{
    consumer::{Delivery, delivery_queue::Ending, engine::Input},
    retry::{Failure, Outcome, ParkReason},
};

impl World {
    /// A handler takes a message.
    pub(super) fn begin(&mut self, at: usize) -> Result<(), String> {
        let Some(Delivery { token, message }) = self.replicas[at].inbox.pop_front() else {
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
        let (kind, earlier) = (self.books.kind(number), self.books.runs(number));
        let (attempt, deferrals) = (message.attempt(), message.state().deferrals);
        self.note(|| format!("replica {at}: attempt {attempt} of {number} ({kind:?}) begins"));
        let time = match kind {
            Kind::Slow => Duration::from_secs(7),
            // Longer than `consumer_timeout`.
            Kind::Hangs if earlier == 0 => Duration::from_secs(35 * 60),
            _ => Duration::from_millis(self.random.u64(0..60)),
        };
        let ends_at = self.now + time;
        self.replicas[at].running.push(Running {
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

    pub(super) fn end(&mut self, at: usize, running: Running) -> Result<(), String> {
        let failure = || Failure::new("no");
        let put_off = Outcome::defer(Duration::from_millis(100));
        let outcome = match running.kind {
            Kind::FailsThenKills if running.attempt == 1 => Outcome::retry(failure()),
            Kind::Poison | Kind::FailsThenKills => {
                self.books.hit(running.number);
                self.note(|| format!("replica {at} dies of {}", running.number));
                self.kill(at);
                return Ok(());
            }
            Kind::CrashesOnce if running.earlier == 0 => {
                self.note(|| format!("replica {at} dies of {}", running.number));
                self.kill(at);
                return Ok(());
            }
            Kind::FailsOnce if running.attempt == 1 => Outcome::retry(failure()),
            Kind::FailsAlways => Outcome::retry(failure()),
            Kind::Parks => Outcome::Park {
                reason: ParkReason::Requested,
                failure: failure(),
            },
            Kind::Defers if running.deferrals < 2 => put_off,
            Kind::DefersOften if running.deferrals < OFTEN => put_off,
            _ => Outcome::Ack,
        };
        if outcome == Outcome::Ack {
            self.note(|| format!("replica {at}: {} is handled", running.number));
            self.books.handled(running.number);
        }
        let token = running.token;
        let ending = Ending::Settled(outcome);
        self.tell(at, Input::Ended { token, ending })?;
        if running.kind == Kind::AnswersTwice {
            let ending = Ending::Settled(Outcome::retry(failure()));
            self.tell(at, Input::Ended { token, ending })?;
        }
        Ok(())
    }
}
