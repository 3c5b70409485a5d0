//! The two decisions in a message's life: may it run, and what follows its attempt. Pure functions.

use std::time::Duration;

use super::{AgeFrom, Counting, Outcome, ParkReason, Policy, RetryState};

/// Limits that keep a message from returning forever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Crashes after which a message is parked as `delivery-limit`; 10 by default, below the broker's own limit of 20.
    pub crashes: u32,
    /// Crashes from which a message is a suspect: it runs alone, so that its next crash counts against no other message. 3 by default.
    pub suspect: u32,
    /// Deferrals after which a message is parked as `exhausted`; 1000 by default.
    pub deferrals: u32,
}

impl Limits {
    /// Sets [`crashes`](field@Self::crashes), at least 1; 10 by default.
    #[must_use]
    pub fn crashes(mut self, crashes: u32) -> Self {
        self.crashes = crashes;
        self
    }

    /// Sets [`suspect`](field@Self::suspect), at least 1; 3 by default.
    #[must_use]
    pub fn suspect(mut self, suspect: u32) -> Self {
        self.suspect = suspect;
        self
    }

    /// Sets [`deferrals`](field@Self::deferrals); 1000 by default.
    #[must_use]
    pub fn deferrals(mut self, deferrals: u32) -> Self {
        self.deferrals = deferrals;
        self
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            crashes: 10,
            suspect: 3,
            deferrals: 1_000,
        }
    }
}

/// Crashes that the queue itself may count. RabbitMQ 4.0 and later drop a message after 20 by default, and the queue's owner may have set a
/// limit of 2: then a message comes with a count of 2, and never again.
const MOST_COUNTED_BY_QUEUE: u32 = 2;

/// What to do with a message before its handler sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Hand it to a handler.
    Run,
    /// Hand it out while nothing else is unacknowledged: it may be the message that crashes its consumers.
    RunAlone,
    /// Send a copy through the shortest wait, with this count of crashes. Either its queue does not count crashes, or it has counted so
    /// many that its delivery limit may be near.
    Detour {
        /// The number of crashes, including this one.
        crashes: u32,
    },
    /// Park it.
    Park(ParkReason),
}

fn counted_by_queue(state: &RetryState) -> u32 {
    state.crashes.saturating_sub(state.own_crashes)
}

/// Whether the queue has counted so many deliveries of a message that each further one may be the last. A classic queue counts none, and
/// passes on any count that a message came with.
#[must_use]
pub(crate) fn is_near_its_limit(state: &RetryState) -> bool {
    counted_by_queue(state) >= MOST_COUNTED_BY_QUEUE
}

/// Deliveries that a queue may count of a message that is kept without a copy of it. A delivery limit of 1 cannot be met in any way.
const MOST_COUNTED_WITHOUT_A_COPY: u32 = 1;

/// Whether a message has been counted so often by its queue that a copy must not wait any more: its consumer may be killed meanwhile, and in the
/// end the broker would drop the message.
#[must_use]
pub(crate) fn must_be_copied_now(state: &RetryState) -> bool {
    counted_by_queue(state) > MOST_COUNTED_WITHOUT_A_COPY
}

/// Whether a message may run.
#[must_use]
pub(crate) fn admit(state: &RetryState, limits: &Limits) -> Admission {
    // Crashes that the queue has counted use up a delivery limit that AMQP does not show, and past the limit the broker drops the message.
    // A copy starts at 0 in the queue, and carries the count in a header.
    if is_near_its_limit(state) && !state.uncounted_crash {
        Admission::Detour {
            crashes: state.crashes,
        }
    } else if state.own_crashes >= limits.crashes {
        Admission::Park(ParkReason::DeliveryLimit)
    } else if state.uncounted_crash {
        let crashes = if state.crashes > state.own_crashes {
            // The queue's count may not be true, so it makes a suspect at most. Only crashes that we counted ourselves park a message.
            state.crashes.min(limits.suspect).max(state.own_crashes)
        } else {
            state.own_crashes.saturating_add(1)
        };
        Admission::Detour { crashes }
    } else if state.crashes >= limits.crashes {
        Admission::Park(ParkReason::DeliveryLimit)
    } else if state.crashes >= limits.suspect {
        Admission::RunAlone
    } else {
        Admission::Run
    }
}

/// Whether an unstarted message must go to its queue as a copy with its crashes unchanged.
///
/// A requeue keeps the message's place at the head, but the next reader sees it as a crash: classic queues mark it as redelivered, quorum
/// queues before 4.3 count it. So a message is requeued only the first few times, which alone never make it a suspect. After that it goes
/// back as a copy.
/// `nack_is_uncounted`: whether quorum queues do not count a `basic.nack`.
#[must_use]
pub(crate) fn returns_as_copy(
    state: &RetryState,
    limits: &Limits,
    counting: Counting,
    nack_is_uncounted: bool,
) -> bool {
    // It is already redelivered, from a queue that counts nothing: one more requeue changes nothing, and a copy would hide a crash that may
    // have happened.
    if state.uncounted_crash || counting == Counting::Deliveries {
        return false;
    }
    let queue_counts = state.crashes > state.own_crashes;
    if queue_counts {
        // The queue's owner may have limited that count to 1.
        return !nack_is_uncounted;
    }
    state.crashes.saturating_add(1) >= limits.suspect.min(limits.crashes)
}

/// What follows an attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Acknowledge it.
    Ack,
    /// Wait for `delay`, then return to the tail as retry number `retry`.
    Retry {
        /// Which retry this will be; 1 is the first.
        retry: u32,
        /// How long to wait.
        delay: Duration,
        /// Whether the handler chose the delay. Then it waits in the queue of a delay step, not in a queue of the policy.
        chosen: bool,
    },
    /// Wait for `delay`, then return without using up a retry.
    Defer {
        /// The number of deferrals, including this one.
        deferral: u32,
        /// How long to wait.
        delay: Duration,
    },
    /// Park with this reason.
    Park(ParkReason),
}

/// Decides what follows `outcome`. `now` is in seconds since 1970. `draw` is any random number, for the jitter.
#[must_use]
pub(crate) fn decide(
    state: &RetryState,
    outcome: &Outcome,
    policy: &Policy,
    limits: &Limits,
    now: u64,
    draw: u64,
) -> Action {
    match outcome {
        Outcome::Ack => Action::Ack,
        Outcome::Park { reason, .. } => Action::Park(*reason),
        Outcome::Retry { delay, .. } => {
            let retry = state.retries.saturating_add(1);
            if retry > policy.retries {
                return Action::Park(ParkReason::Exhausted);
            }
            let (delay, chosen) = match delay {
                Some(delay) => (bounded(*delay), true),
                None => (policy.delay(retry, draw), false),
            };
            if too_old(state, policy, now, delay) {
                return Action::Park(ParkReason::TooOld);
            }
            Action::Retry {
                retry,
                delay,
                chosen,
            }
        }
        Outcome::Defer { delay } => {
            let deferral = state.deferrals.saturating_add(1);
            let delay = bounded(*delay);
            if deferral > limits.deferrals {
                Action::Park(ParkReason::Exhausted)
            } else if too_old(state, policy, now, delay) {
                Action::Park(ParkReason::TooOld)
            } else {
                Action::Defer { deferral, delay }
            }
        }
    }
}

/// Limits a delay chosen by a handler to what the broker accepts.
fn bounded(delay: Duration) -> Duration {
    delay.clamp(super::MILLISECOND, super::MAX_DELAY)
}

/// Whether the next attempt would be later than the policy allows. AMQP times are whole seconds, so the age counts from the end of the
/// second in which it began: rounding never parks a message early.
fn too_old(state: &RetryState, policy: &Policy, now: u64, delay: Duration) -> bool {
    let Some(max_age) = policy.max_age else {
        return false;
    };
    let since = match policy.age_from {
        AgeFrom::FirstFailure => state.first_failed_at,
        // A broker may stamp each copy (`message_interceptors`). Nothing fails before it is published.
        AgeFrom::Published => state
            .published_at
            .into_iter()
            .chain(state.first_failed_at)
            .min(),
    };
    let age = since.map_or(0, |since| now.saturating_sub(since.saturating_add(1)));
    Duration::from_secs(age).saturating_add(delay) > max_age
}

#[cfg(test)]
mod tests;
