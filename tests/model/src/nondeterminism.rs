//! What a real broker leaves open, as choices that somebody makes.
//!
//! A real broker may confirm a publish before or after it delivers the message, and a dead letter arrives some time after
//! its death. A killed broker may have forgotten what it had not confirmed. Each such question is put to a [`Nondeterminism`].

use std::fmt;
use std::time::Duration;

/// What takes a time that nobody promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Delay {
    /// From a publish to its confirm, which is when the message is safe.
    Confirm,
    /// From a settlement to the moment from which a kill no longer undoes it.
    Settle,
    /// From a death to the arrival in the next queue.
    DeadLetter,
    /// From the end of a message's time, of a lease or of the consumer timeout until the broker acts on it.
    Timer,
}

/// What may or may not be so after a broker was killed or a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnknownOutcome {
    /// A message whose confirm was still to come is gone.
    UnconfirmedLost,
    /// A settlement that was still to be written did not happen: the message comes back.
    SettlementLost,
    /// A dead letter on its way between two queues is gone. (At-least-once dead-lettering never asks.)
    DeadLetterLost,
    /// A classic queue that is young is gone itself, which 3.10 and 4.0 were seen to do.
    YoungQueueLost,
    /// What one channel of a lost connection held went through the hands of its other channels before those were gone,
    /// too, and is counted for each. The other answer is that all its channels end at once.
    Bounced,
    /// What a quorum queue has sent to a consumer that is cancelled has not passed its channel yet, and goes back.
    OnTheWay,
}

/// Decides what real brokers leave open. The answers must depend on nothing but a seed.
pub trait Nondeterminism: fmt::Debug {
    /// How long this takes. Zero is allowed, and means that it has happened when [`Broker::send`](crate::Broker::send)
    /// returns.
    fn delay(&mut self, what: Delay) -> Duration;

    /// Whether it is so.
    fn happens(&mut self, doubt: UnknownOutcome) -> bool;
}

/// Everything at once, and nothing is lost that need not be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt;

impl Nondeterminism for Prompt {
    fn delay(&mut self, _: Delay) -> Duration {
        Duration::ZERO
    }

    fn happens(&mut self, _: UnknownOutcome) -> bool {
        false
    }
}

/// Everything takes up to a given time, and what may be lost is lost half of the time, as a seed says.
#[derive(Clone, Debug)]
pub struct Seeded {
    random: fastrand::Rng,
    longest: Duration,
}

impl Seeded {
    /// With delays from zero to `longest`.
    pub fn new(seed: u64, longest: Duration) -> Self {
        Seeded {
            random: fastrand::Rng::with_seed(seed),
            longest,
        }
    }
}

impl Nondeterminism for Seeded {
    fn delay(&mut self, _: Delay) -> Duration {
        let longest = u64::try_from(self.longest.as_micros()).unwrap_or(u64::MAX - 1);
        Duration::from_micros(self.random.u64(0..=longest))
    }

    fn happens(&mut self, _: UnknownOutcome) -> bool {
        self.random.bool()
    }
}
