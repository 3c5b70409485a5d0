//! What a policy does under load, on a simulated clock. The decisions are those of [`decide`]; queues and handlers are only counters.
//!
//! ```text
//! arrivals ──► work queue ──► handlers ──► done, or parked
//!                  ▲             │ failed
//!                  └── waiting ◄─┘
//! ```
//!
//! A million messages take a moment, because a message is only its count and its times. [`Simulation`](crate::Simulation) shows what a
//! consumer does with a real message.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, VecDeque},
    time::Duration,
};

use super::{Action, Failure, Limits, Outcome, Policy, RetryState, decide};
use crate::{Error, ErrorKind, Result};

/// The most messages that may arrive in a forecast.
const MOST_MESSAGES: u64 = 1_000_000;
/// The most attempts in a forecast.
const MOST_ATTEMPTS: u64 = 20_000_000;
/// When a forecast begins, in seconds since 1970. The value does not matter.
const BEGINS: u64 = 1_000_000_000;

/// The load under which a policy is tried out: how many messages arrive, how long their handlers take, and how many fail.
///
/// ```
/// use std::time::Duration;
/// use retryrmq::Load;
///
/// let load = Load::new(100.0, Duration::from_secs(60)).fail_rate(0.3);
/// let forecast = load.forecast(&"fixed(5s, retries=3)".parse()?)?;
/// assert_eq!(forecast.messages, 6_000);
/// assert!(forecast.attempts > 8_000 && forecast.parked.values().sum::<u64>() < 100);
/// # Ok::<(), retryrmq::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    rate: f64,
    lasts: Duration,
    handler_time: Duration,
    handlers: usize,
    fail_rate: f64,
    poison: f64,
    outage: Option<(Duration, Duration)>,
    seed: u64,
    intervals: usize,
    most_attempts: u64,
}

impl Load {
    /// `rate` messages per second, evenly spaced, for the time `lasts`. By default 16 handlers take 50 ms for each message, and none fails.
    #[must_use]
    pub fn new(rate: f64, lasts: Duration) -> Self {
        Self {
            rate,
            lasts,
            handler_time: Duration::from_millis(50),
            handlers: 16,
            fail_rate: 0.0,
            poison: 0.0,
            outage: None,
            seed: 0,
            intervals: 240,
            most_attempts: MOST_ATTEMPTS,
        }
    }

    /// Sets how long an attempt takes, whether it fails or not.
    #[must_use]
    pub fn handler_time(mut self, time: Duration) -> Self {
        self.handler_time = time;
        self
    }

    /// Sets how many attempts run at a time, in all consumers together.
    #[must_use]
    pub fn handlers(mut self, handlers: usize) -> Self {
        self.handlers = handlers;
        self
    }

    /// Sets the share of attempts that fail, 0 to 1. Each attempt fails independently.
    #[must_use]
    pub fn fail_rate(mut self, share: f64) -> Self {
        self.fail_rate = share;
        self
    }

    /// Sets the share of messages that fail at every attempt, 0 to 1.
    #[must_use]
    pub fn poison(mut self, share: f64) -> Self {
        self.poison = share;
        self
    }

    /// Adds an outage: every attempt that begins within `length` after `start` fails.
    #[must_use]
    pub fn outage(mut self, start: Duration, length: Duration) -> Self {
        self.outage = Some((start, length));
        self
    }

    /// Sets the seed of the random numbers. The same seed gives the same forecast on every machine, and each policy meets the same numbers.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Sets into how many [`intervals`](Forecast::intervals) the time of the arrivals is divided; 240 by default.
    #[must_use]
    pub fn intervals(mut self, intervals: usize) -> Self {
        self.intervals = intervals.max(1);
        self
    }

    /// How many messages arrive.
    #[must_use]
    pub fn messages(&self) -> u64 {
        (self.rate * self.lasts.as_secs_f64()).round() as u64
    }

    /// Tries `policy` out until the last message is handled or parked. The result depends only on the load and the policy.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidOption`] for a load that cannot work or is too large: more than a million messages, or twenty million attempts.
    /// [`ErrorKind::InvalidPolicy`] as [`Policy::validate`].
    pub fn forecast(&self, policy: &Policy) -> Result<Forecast> {
        policy.validate()?;
        self.validate()?;
        Run::new(self, policy).finish()
    }

    fn validate(&self) -> Result<()> {
        let bad = |why: String| Err(Error::new(ErrorKind::InvalidOption, why));
        if !(self.rate.is_finite() && self.rate > 0.0) {
            return bad("the rate of arrivals must be more than 0 a second".to_owned());
        }
        for (what, share) in [("fail rate", self.fail_rate), ("poison", self.poison)] {
            if !(0.0..=1.0).contains(&share) {
                return bad(format!("the {what} must be between 0 and 1"));
            }
        }
        if self.handlers == 0 {
            return bad("there must be at least one handler".to_owned());
        }
        let messages = self.rate * self.lasts.as_secs_f64();
        if messages > MOST_MESSAGES as f64 {
            return bad(format!(
                "{messages:.0} messages are too many to try out, {MOST_MESSAGES} at most; lower the rate (what it shows scales with it, if \
                 the handlers keep up), or let them arrive for a shorter time"
            ));
        }
        if self.messages() == 0 {
            return bad(
                "no message arrives in that time; raise the rate, or let it go on for longer"
                    .to_owned(),
            );
        }
        Ok(())
    }

    /// When message number `id` arrives, in µs.
    fn arrival(&self, id: u64) -> u64 {
        (id as f64 * 1e6 / self.rate) as u64
    }

    fn fails(&self, id: u64, attempt: u32, at: u64) -> bool {
        let at = Duration::from_micros(at);
        let is_out = |(start, length)| at >= start && at < length + start;
        self.outage.is_some_and(is_out)
            || chance(self.seed, id, 0) < self.poison
            || chance(self.seed, id, attempt) < self.fail_rate
    }
}

/// A number from 0 to 1 that depends only on the message and the attempt, not on the policy or the order of events.
fn chance(seed: u64, id: u64, attempt: u32) -> f64 {
    (draw(seed, id, attempt) >> 11) as f64 / (1u64 << 53) as f64
}

/// SplitMix64: every input bit changes about half of the output bits.
fn draw(seed: u64, id: u64, attempt: u32) -> u64 {
    let mut mixed = seed;
    for word in [id, u64::from(attempt)] {
        mixed = mixed.wrapping_add(word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
    }
    mixed
}

/// What a policy did under a [`Load`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Forecast {
    /// How many messages arrived.
    pub messages: u64,
    /// How many attempts were made.
    pub attempts: u64,
    /// How many messages were handled in the end.
    pub handled: u64,
    /// How many messages were parked, by [reason](crate::ParkReason::as_str).
    pub parked: BTreeMap<&'static str, u64>,
    /// When the last message was handled or parked.
    pub ends: Duration,
    /// The most messages that were ready in the work queue at a time. More than a few means that the handlers did not keep up.
    pub most_ready: u64,
    /// The most messages that waited at a time, in all waiting queues together.
    pub most_waiting: u64,
    /// One entry for all first attempts, one for all second attempts, …
    pub rounds: Vec<AttemptRound>,
    /// The waiting queues, by delay.
    pub queues: BTreeMap<Duration, QueueDepth>,
    /// Equal parts of the time from the first arrival to the last.
    pub intervals: Vec<ForecastInterval>,
    /// The length of each moment.
    pub interval: Duration,
}

/// All first, all second, … attempts of a [`Forecast`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct AttemptRound {
    /// How many messages got to this attempt.
    pub attempts: u64,
    /// How many of these attempts failed.
    pub failed: u64,
    /// The shortest time from a message's arrival to this attempt.
    pub earliest: Duration,
    /// The average time from a message's arrival to this attempt.
    pub average: Duration,
}

/// A waiting queue of a [`Forecast`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueDepth {
    /// How many messages waited in it in all.
    pub messages: u64,
    /// The most messages that waited in it at a time.
    pub most: u64,
    /// How many wait in it now; 0 at the end.
    now: u64,
}

/// A part of the time of a [`Forecast`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ForecastInterval {
    /// How many messages arrived in it.
    pub arrivals: u64,
    /// How many attempts began in it.
    pub attempts: u64,
    /// How many messages waited for a retry at its end.
    pub waiting: u64,
    /// How many messages were ready in the work queue at its end.
    pub ready: u64,
}

/// What is known of a message.
#[derive(Clone, Copy, Default)]
struct MessageState {
    retries: u32,
    first_failed_at: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The attempt that began at this time ends.
    Ended { began: u64 },
    /// A wait of this length ends.
    Waited { ms: u64 },
}

struct Run<'a> {
    load: &'a Load,
    policy: &'a Policy,
    outcome: Outcome,
    state: RetryState,
    known: Vec<MessageState>,
    ready: VecDeque<u32>,
    /// Sorted by time in µs, then by when they were made.
    events: BinaryHeap<Reverse<(u64, u64, Event, u32)>>,
    made: u64,
    busy: usize,
    waiting: u64,
    totals: Vec<Duration>,
    width: u64,
    /// The moment that has not ended yet.
    open: usize,
    forecast: Forecast,
}

impl<'a> Run<'a> {
    fn new(load: &'a Load, policy: &'a Policy) -> Self {
        let messages = load.messages();
        let lasts = u64::try_from(load.lasts.as_micros()).unwrap_or(u64::MAX);
        let width = lasts.div_ceil(load.intervals as u64).max(1);
        Self {
            load,
            policy,
            outcome: Outcome::retry(Failure::new("no")),
            state: RetryState::default(),
            known: vec![MessageState::default(); usize::try_from(messages).unwrap_or(0)],
            ready: VecDeque::new(),
            events: BinaryHeap::new(),
            made: 0,
            busy: 0,
            waiting: 0,
            totals: Vec::new(),
            width,
            open: 0,
            forecast: Forecast {
                messages,
                intervals: vec![ForecastInterval::default(); load.intervals],
                interval: Duration::from_micros(width),
                ..Forecast::default()
            },
        }
    }

    fn finish(mut self) -> Result<Forecast> {
        let mut arrived = 0;
        loop {
            let arrival = (arrived < self.forecast.messages).then(|| self.load.arrival(arrived));
            let event = self.events.peek().map(|Reverse((at, ..))| *at);
            let Some(now) = [arrival, event].into_iter().flatten().min() else {
                break;
            };
            self.close_moments(now);
            if arrival == Some(now) {
                if let Some(interval) = self.forecast.intervals.get_mut(self.open) {
                    interval.arrivals += 1;
                }
                self.ready.push_back(arrived as u32);
                arrived += 1;
            } else if let Some(Reverse((_, _, event, id))) = self.events.pop() {
                self.happen(event, id, now);
            }
            self.begin(now)?;
        }
        self.close_moments(u64::MAX);
        for (round, total) in self.forecast.rounds.iter_mut().zip(&self.totals) {
            round.average = total.div_f64(round.attempts.max(1) as f64);
        }
        Ok(self.forecast)
    }

    /// Records the state at the end of each moment that is over.
    fn close_moments(&mut self, now: u64) {
        while let Some(interval) = self.forecast.intervals.get_mut(self.open) {
            if now < self.width.saturating_mul(self.open as u64 + 1) {
                return;
            }
            interval.waiting = self.waiting;
            interval.ready = self.ready.len() as u64;
            self.open += 1;
        }
    }

    /// Gives ready messages to free handlers.
    fn begin(&mut self, now: u64) -> Result<()> {
        while self.busy < self.load.handlers {
            let Some(id) = self.ready.pop_front() else {
                break;
            };
            self.busy += 1;
            self.forecast.attempts += 1;
            if self.forecast.attempts > self.load.most_attempts {
                return Err(Error::new(
                    ErrorKind::InvalidOption,
                    format!(
                        "{} makes more than {} attempts of {} messages; lower the rate, the fail rate or `retries`",
                        self.policy, self.load.most_attempts, self.forecast.messages
                    ),
                ));
            }
            if let Some(interval) = self.forecast.intervals.get_mut(self.open) {
                interval.attempts += 1;
            }
            let took = u64::try_from(self.load.handler_time.as_micros()).unwrap_or(u64::MAX);
            self.schedule(now.saturating_add(took), Event::Ended { began: now }, id);
        }
        let ready = self.ready.len() as u64;
        self.forecast.most_ready = self.forecast.most_ready.max(ready);
        Ok(())
    }

    fn schedule(&mut self, at: u64, event: Event, id: u32) {
        self.made += 1;
        self.events.push(Reverse((at, self.made, event, id)));
    }

    fn happen(&mut self, event: Event, id: u32, now: u64) {
        match event {
            Event::Waited { ms } => {
                self.waiting -= 1;
                if let Some(queue) = self.forecast.queues.get_mut(&Duration::from_millis(ms)) {
                    queue.now -= 1;
                }
                self.ready.push_back(id);
            }
            Event::Ended { began } => {
                self.busy -= 1;
                self.finish_attempt(id, began, now);
            }
        }
    }

    /// Decides what follows an attempt.
    fn finish_attempt(&mut self, id: u32, began: u64, now: u64) {
        let known = self.known[id as usize];
        let attempt = known.retries.saturating_add(1);
        let arrived = self.load.arrival(id.into());
        let failed = self.load.fails(id.into(), attempt, began);
        self.note(attempt, failed, Duration::from_micros(began - arrived));
        if !failed {
            self.forecast.handled += 1;
            self.forecast.ends = Duration::from_micros(now);
            return;
        }
        let unix = BEGINS + now / 1_000_000;
        self.state.retries = known.retries;
        self.state.first_failed_at = known.first_failed_at;
        self.state.published_at = Some(BEGINS + arrived / 1_000_000);
        let action = decide(
            &self.state,
            &self.outcome,
            self.policy,
            &Limits::default(),
            unix,
            draw(!self.load.seed, id.into(), attempt),
        );
        match action {
            Action::Retry { retry, delay, .. } => {
                self.known[id as usize] = MessageState {
                    retries: retry,
                    first_failed_at: known.first_failed_at.or(Some(unix)),
                };
                self.wait(id, delay, now);
            }
            Action::Park(reason) => {
                *self.forecast.parked.entry(reason.as_str()).or_default() += 1;
                self.forecast.ends = Duration::from_micros(now);
            }
            // A failure never leads to these.
            Action::Ack | Action::Defer { .. } => {}
        }
    }

    fn wait(&mut self, id: u32, delay: Duration, now: u64) {
        let ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
        let queue = self.forecast.queues.entry(delay).or_default();
        queue.messages += 1;
        queue.now += 1;
        queue.most = queue.most.max(queue.now);
        self.waiting += 1;
        self.forecast.most_waiting = self.forecast.most_waiting.max(self.waiting);
        let due = now.saturating_add(ms.saturating_mul(1_000));
        self.schedule(due, Event::Waited { ms }, id);
    }

    fn note(&mut self, attempt: u32, failed: bool, after: Duration) {
        let index = attempt as usize - 1;
        if self.forecast.rounds.len() <= index {
            self.forecast
                .rounds
                .resize(index + 1, AttemptRound::default());
            self.totals.resize(index + 1, Duration::ZERO);
            self.forecast.rounds[index].earliest = after;
        }
        let round = &mut self.forecast.rounds[index];
        round.attempts += 1;
        round.failed += u64::from(failed);
        round.earliest = round.earliest.min(after);
        self.totals[index] = self.totals[index].saturating_add(after);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::MINUTE;

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    #[test]
    fn without_failures_every_message_is_tried_once() {
        let forecast = Load::new(10.0, MINUTE)
            .forecast(&policy("fixed(5s)"))
            .unwrap();
        assert_eq!(
            (forecast.messages, forecast.attempts, forecast.handled),
            (600, 600, 600)
        );
        assert!(forecast.queues.is_empty() && forecast.parked.is_empty());
        assert_eq!((forecast.rounds.len(), forecast.most_ready), (1, 0));
        assert!(
            forecast
                .intervals
                .iter()
                .all(|interval| interval.arrivals == interval.attempts)
        );
    }

    #[test]
    fn what_always_fails_is_tried_when_the_policy_says_and_parked() {
        let load = Load::new(1.0, MINUTE)
            .poison(1.0)
            .handler_time(Duration::ZERO);
        let forecast = load.forecast(&policy("list(1s, 10s, 1m)")).unwrap();
        let earliest: Vec<_> = forecast
            .rounds
            .iter()
            .map(|round| round.earliest.as_secs())
            .collect();
        assert_eq!(earliest, [0, 1, 11, 71]);
        assert_eq!(forecast.parked, BTreeMap::from([("exhausted", 60)]));
        assert_eq!((forecast.attempts, forecast.ends.as_secs()), (240, 59 + 71));
        // One per second, each for a minute.
        let longest = forecast.queues[&MINUTE];
        assert_eq!((longest.messages, longest.most), (60, 60));
        assert_eq!(forecast.most_waiting, 60);
    }

    #[test]
    fn an_outage_shorter_than_the_policy_costs_attempts_and_parks_nothing() {
        let load = Load::new(10.0, 3 * MINUTE).outage(MINUTE, MINUTE);
        let forecast = load.forecast(&policy("fixed(10s, retries=7)")).unwrap();
        assert_eq!((forecast.handled, forecast.parked.len()), (1_800, 0));
        assert!(forecast.attempts > 1_800);
        let short = load.forecast(&policy("fixed(10s, retries=2)")).unwrap();
        let exhausted = short.parked["exhausted"];
        // All that arrived more than 20 s before the end of the outage.
        assert!((390..=410).contains(&exhausted), "{exhausted}");
    }

    #[test]
    fn a_message_is_too_old_where_the_policy_says_so() {
        let load = Load::new(1.0, MINUTE).poison(1.0);
        let forecast = load
            .forecast(&policy("fixed(10s, retries=100, max_age=35s)"))
            .unwrap();
        assert_eq!(forecast.parked, BTreeMap::from([("too-old", 60)]));
    }

    #[test]
    fn handlers_that_do_not_keep_up_let_the_queue_grow() {
        let load = Load::new(100.0, MINUTE).handlers(1);
        let forecast = load.forecast(&policy("fixed(1s)")).unwrap();
        assert!(forecast.most_ready > 4_000, "{}", forecast.most_ready);
        assert_eq!(forecast.handled, 6_000);
        assert!(forecast.ends > 4 * MINUTE);
    }

    #[test]
    fn what_is_too_large_is_refused_with_a_sentence() {
        let refused =
            |load: Load, text: &str| load.forecast(&policy(text)).unwrap_err().to_string();
        let many = refused(Load::new(1e6, MINUTE), "fixed(1s)");
        assert!(many.starts_with("60000000 messages are too many"), "{many}");
        let mut unlimited = Load::new(1e3, MINUTE).poison(1.0);
        unlimited.most_attempts = 10_000;
        let endless = refused(unlimited, "fixed(1ms, retries=1000000)");
        assert!(endless.contains("more than 10000 attempts"), "{endless}");
        for load in [
            Load::new(0.0, MINUTE),
            Load::new(f64::NAN, MINUTE),
            Load::new(1.0, Duration::ZERO),
            Load::new(1.0, MINUTE).fail_rate(1.1),
            Load::new(1.0, MINUTE).poison(-0.1),
            Load::new(1.0, MINUTE).handlers(0),
        ] {
            assert_eq!(
                load.forecast(&policy("fixed(1s)")).unwrap_err().kind(),
                ErrorKind::InvalidOption,
                "{load:?}"
            );
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn every_message_has_one_end_and_every_wait_is_over(
            rate in 0.5f64..50.0, fail in 0.0f64..=1.0, retries in 0u32..6, seed: u64, handlers in 1usize..20,
            start in 0u64..60, length in 0u64..60
        ) {
            let load = Load::new(rate, MINUTE).fail_rate(fail).seed(seed).handlers(handlers)
                .outage(Duration::from_secs(start), Duration::from_secs(length));
            let policy = policy("exponential(1s, factor=2, jitter=0.2)").retries(retries);
            let forecast = load.forecast(&policy).unwrap();
            prop_assert_eq!(forecast.handled + forecast.parked.values().sum::<u64>(), forecast.messages);
            prop_assert_eq!(forecast.rounds.iter().map(|round| round.attempts).sum::<u64>(), forecast.attempts);
            prop_assert!(forecast.queues.values().all(|queue| queue.now == 0));
            prop_assert_eq!(forecast.queues.values().map(|queue| queue.messages).sum::<u64>() + forecast.messages, forecast.attempts);
            prop_assert!(forecast.rounds.len() as u32 <= retries + 1);
            prop_assert!(forecast.intervals.iter().map(|interval| interval.arrivals).sum::<u64>() == forecast.messages);
            prop_assert_eq!(load.forecast(&policy).unwrap(), forecast);
        }
    }
}
