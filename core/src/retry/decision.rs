//! The two decisions in a message's life: may it run, and what follows its attempt. Pure functions.

use std::time::Duration;

use super::{AgeFrom, Counting, Outcome, ParkReason, Policy, RetryState};

/// Limits that keep a message from returning for ever.
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
/// lower limit.
const MOST_COUNTED_BY_QUEUE: u32 = 3;

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

/// Whether a message may run.
#[must_use]
pub(crate) fn admit(state: &RetryState, limits: &Limits) -> Admission {
    // Crashes that the queue has counted use up a delivery limit that AMQP does not show, and past the limit the broker drops the message.
    // A copy starts at 0 in the queue, and carries the count in a header.
    let counted_by_queue = state.crashes.saturating_sub(state.own_crashes);
    if counted_by_queue >= MOST_COUNTED_BY_QUEUE && !state.uncounted_crash {
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
        /// Whether the handler chose the delay. Then it waits on the ladder, not in a queue of the policy.
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
        AgeFrom::Published => state.published_at.or(state.first_failed_at),
    };
    let age = since.map_or(0, |since| now.saturating_sub(since.saturating_add(1)));
    Duration::from_secs(age).saturating_add(delay) > max_age
}

#[cfg(test)]
mod tests {
    use lapin::{
        BasicProperties,
        types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString},
    };
    use proptest::prelude::*;

    use super::*;
    use crate::{
        Failure, SECOND,
        retry::state::{Counting, Past},
    };

    fn failed() -> Outcome {
        Outcome::retry(Failure::new("no"))
    }

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    #[test]
    fn a_message_walks_through_its_retries_and_is_parked() {
        let policy = policy("list(1s, 10s)");
        let mut state = RetryState::default();
        let mut seen = Vec::new();
        loop {
            match decide(&state, &failed(), &policy, &Limits::default(), 0, 0) {
                Action::Retry {
                    retry,
                    delay,
                    chosen: false,
                } => {
                    seen.push(delay.as_secs());
                    state.retries = retry;
                }
                end => {
                    assert_eq!(end, Action::Park(ParkReason::Exhausted));
                    break;
                }
            }
        }
        assert_eq!(seen, [1, 10]);
    }

    #[test]
    fn crashes_make_a_suspect_and_then_a_parked_message() {
        let limits = Limits::default();
        let at = |crashes, own_crashes| {
            let state = RetryState {
                crashes,
                own_crashes,
                ..RetryState::default()
            };
            admit(&state, &limits)
        };
        assert_eq!([at(0, 0), at(2, 0), at(2, 2)], [Admission::Run; 3]);
        assert_eq!([at(3, 3), at(4, 3), at(9, 9)], [Admission::RunAlone; 3]);
        assert_eq!(at(10, 8), Admission::Park(ParkReason::DeliveryLimit));
        for (crashes, own) in [(3, 0), (9, 6), (30, 10)] {
            assert_eq!(
                at(crashes, own),
                Admission::Detour { crashes },
                "the queue's own count begins anew"
            );
        }
        let uncounted = RetryState {
            uncounted_crash: true,
            ..RetryState::default()
        };
        assert_eq!(admit(&uncounted, &limits), Admission::Detour { crashes: 1 });
        let again = RetryState {
            crashes: 4,
            own_crashes: 4,
            ..uncounted.clone()
        };
        assert_eq!(admit(&again, &limits), Admission::Detour { crashes: 5 });
        let brought_along = |crashes| RetryState {
            crashes,
            ..uncounted.clone()
        };
        assert_eq!(
            admit(&brought_along(2), &limits),
            Admission::Detour { crashes: 2 }
        );
        assert_eq!(
            admit(&brought_along(77), &limits),
            Admission::Detour { crashes: 3 }
        );
    }

    /// For each of the three kinds of queues: however often a message is requeued unstarted, it never becomes a suspect, and real crashes
    /// are never forgotten.
    #[test]
    fn being_put_back_never_makes_a_suspect_and_forgets_no_crash() {
        let limits = Limits::default();
        for (counts, nack_is_uncounted) in
            [(false, false), (true, false), (false, true), (true, true)]
        {
            for crashes_before in 0..limits.crashes {
                let (mut own, mut counted, mut redelivered) = (0, 0, false);
                if counts {
                    (counted, redelivered) = (crashes_before, crashes_before > 0);
                } else {
                    own = crashes_before;
                }
                let state = |own, counted, redelivered| RetryState {
                    crashes: own + counted,
                    own_crashes: own,
                    uncounted_crash: redelivered && !counts,
                    ..RetryState::default()
                };
                for drain in 0..30 {
                    let now = state(own, counted, redelivered);
                    if let Admission::Detour { crashes } = admit(&now, &limits) {
                        (own, counted, redelivered) = (crashes, 0, false);
                    }
                    let now = state(own, counted, redelivered);
                    if returns_as_copy(&now, &limits, Counting::Header, nack_is_uncounted) {
                        (own, counted, redelivered) = (now.crashes, 0, false);
                    } else {
                        redelivered = true;
                        counted += u32::from(counts && !nack_is_uncounted);
                    }
                    let total = own + counted;
                    let most = crashes_before.max(limits.suspect - 1);
                    assert!(
                        (crashes_before..=most).contains(&total),
                        "{counts} {nack_is_uncounted} {crashes_before}, drain {drain}: {total}"
                    );
                }
            }
        }
        let twice = RetryState {
            crashes: 2,
            own_crashes: 2,
            ..RetryState::default()
        };
        assert!(returns_as_copy(&twice, &limits, Counting::Header, true));
        assert!(
            !returns_as_copy(&twice, &limits, Counting::Deliveries, true),
            "every return is a retry there"
        );
        let fresh = RetryState::default();
        assert!(
            !returns_as_copy(&fresh, &limits, Counting::Header, false),
            "it keeps its place"
        );
        let strict = Limits {
            crashes: 1,
            ..limits
        };
        assert!(returns_as_copy(&fresh, &strict, Counting::Header, false));
    }

    #[test]
    fn age_is_counted_from_where_the_policy_says() {
        let state = RetryState {
            first_failed_at: Some(100),
            published_at: Some(50),
            ..RetryState::default()
        };
        let decide =
            |text, now| decide(&state, &failed(), &policy(text), &Limits::default(), now, 0);
        assert!(matches!(
            decide("fixed(1s, max_age=10s)", 105),
            Action::Retry { .. }
        ));
        assert_eq!(
            decide("fixed(1s, max_age=10s)", 112),
            Action::Park(ParkReason::TooOld)
        );
        assert_eq!(
            decide("fixed(1s, max_age=10s, age_from=published)", 105),
            Action::Park(ParkReason::TooOld)
        );
        assert_eq!(
            decide("fixed(20s, max_age=10s)", 100),
            Action::Park(ParkReason::TooOld)
        );
    }

    #[test]
    fn deferrals_spend_no_retry_but_are_bounded() {
        let outcome = Outcome::Defer { delay: SECOND };
        let limits = Limits {
            deferrals: 2,
            ..Limits::default()
        };
        let at = |deferrals| {
            let state = RetryState {
                deferrals,
                ..RetryState::default()
            };
            decide(&state, &outcome, &Policy::default(), &limits, 0, 0)
        };
        assert_eq!(
            at(1),
            Action::Defer {
                deferral: 2,
                delay: SECOND
            }
        );
        assert_eq!(at(2), Action::Park(ParkReason::Exhausted));
    }

    /// Any value that AMQP can carry, a few levels deep.
    fn any_value() -> impl Strategy<Value = AMQPValue> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(AMQPValue::Boolean),
            any::<i8>().prop_map(AMQPValue::ShortShortInt),
            any::<u8>().prop_map(AMQPValue::ShortShortUInt),
            any::<i16>().prop_map(AMQPValue::ShortInt),
            any::<u16>().prop_map(AMQPValue::ShortUInt),
            any::<i32>().prop_map(AMQPValue::LongInt),
            any::<u32>().prop_map(AMQPValue::LongUInt),
            any::<i64>().prop_map(AMQPValue::LongLongInt),
            any::<f32>().prop_map(AMQPValue::Float),
            any::<f64>().prop_map(AMQPValue::Double),
            (any::<u8>(), any::<u32>())
                .prop_map(|(scale, value)| AMQPValue::DecimalValue(DecimalValue { scale, value })),
            any::<u64>().prop_map(AMQPValue::Timestamp),
            prop::collection::vec(any::<u8>(), 0..40)
                .prop_map(|bytes| AMQPValue::LongString(bytes.into())),
            prop::collection::vec(any::<u8>(), 0..40)
                .prop_map(|bytes| AMQPValue::ByteArray(bytes.into())),
            Just(AMQPValue::Void),
            prop::sample::select(vec!["orders", "rejected", "expired"])
                .prop_map(|text| AMQPValue::LongString(text.into())),
        ];
        leaf.prop_recursive(3, 24, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6)
                    .prop_map(|items| AMQPValue::FieldArray(FieldArray::from(items))),
                prop::collection::vec((any_name(), inner), 0..6)
                    .prop_map(|entries| AMQPValue::FieldTable(table(entries))),
            ]
        })
    }

    fn any_name() -> impl Strategy<Value = String> {
        prop_oneof![
            prop::sample::select(vec![
                "x-retry-count",
                "x-retry-deferrals",
                "x-retry-crashes",
                "x-retry-first-failed-at",
                "x-retry-history",
                "x-retry-exchange",
                "x-retry-routing-key",
                "x-retry-replays",
                "x-death",
                "x-delivery-count",
                "x-acquired-count",
                "x-retries",
                "count",
                "queue",
                "reason",
                "attempt",
                "at",
            ])
            .prop_map(str::to_owned),
            "[a-z]{0,12}",
        ]
    }

    fn table(entries: Vec<(String, AMQPValue)>) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in entries {
            table.insert(ShortString::try_new(name).unwrap(), value);
        }
        table
    }

    fn any_headers() -> impl Strategy<Value = FieldTable> {
        prop::collection::vec((any_name(), any_value()), 0..12).prop_map(table)
    }

    fn any_outcome() -> impl Strategy<Value = Outcome> {
        let delay = prop::option::of(any::<u64>().prop_map(Duration::from_millis));
        prop_oneof![
            Just(Outcome::Ack),
            delay.prop_map(|delay| Outcome::Retry {
                failure: Failure::default(),
                delay
            }),
            Just(Outcome::Park {
                reason: ParkReason::Requested,
                failure: Failure::default()
            }),
            any::<u64>().prop_map(|delay| Outcome::Defer {
                delay: Duration::from_millis(delay)
            }),
        ]
    }

    fn any_counting() -> impl Strategy<Value = Counting> {
        prop::sample::select(vec![
            Counting::Header,
            Counting::Deaths {
                carried: true,
                looks_redelivered: false,
            },
            Counting::Deaths {
                carried: false,
                looks_redelivered: true,
            },
            Counting::Deliveries,
        ])
    }

    fn any_past() -> impl Strategy<Value = Past> {
        prop::sample::select(vec![Past::None, Past::Returned, Past::Uncounted])
    }

    #[test]
    fn a_classic_queue_has_counted_nothing_whatever_a_message_says() {
        for name in ["x-delivery-count", "x-acquired-count"] {
            let headers = table(vec![(name.to_owned(), AMQPValue::LongLongInt(1))]);
            let properties = BasicProperties::default().with_headers(headers);
            let read = |past| RetryState::read("orders", Counting::Header, past, &properties);
            assert!(read(Past::Uncounted).uncounted_crash, "{name}");
            assert_eq!(read(Past::Uncounted).crashes, 0);
            assert!(!read(Past::Returned).uncounted_crash, "{name}");
            assert!(!read(Past::None).uncounted_crash, "{name}");
        }
    }

    #[test]
    fn a_crash_after_a_rejection_is_seen_where_a_return_does_not_look_like_one() {
        let death = table(vec![
            ("queue".to_owned(), AMQPValue::LongString("orders".into())),
            (
                "reason".to_owned(),
                AMQPValue::LongString("rejected".into()),
            ),
            ("count".to_owned(), AMQPValue::LongLongInt(1)),
        ]);
        let deaths = AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]));
        let headers = table(vec![("x-death".to_owned(), deaths)]);
        let properties = BasicProperties::default().with_headers(headers);
        let crashed = |past, looks_redelivered| {
            let counting = Counting::Deaths {
                carried: false,
                looks_redelivered,
            };
            let state = RetryState::read("orders", counting, past, &properties);
            assert_eq!(state.retries, 1);
            state.uncounted_crash
        };
        assert!(crashed(Past::Uncounted, false));
        assert!(!crashed(Past::Uncounted, true) && !crashed(Past::None, false));
        assert!(!crashed(Past::Returned, false), "a quorum queue counts");
    }

    proptest! {
        /// Whatever a publisher wrote into the headers: there is a decision, its count goes up, and its delay is one that the broker
        /// accepts and the topology has a queue for.
        #[test]
        fn every_header_leads_to_a_safe_decision(
            headers in any_headers(), counting in any_counting(), past in any_past(), outcome in any_outcome(),
            now in 0u64..4_000_000_000, draw: u64,
        ) {
            let properties = BasicProperties::default().with_headers(headers);
            let state = RetryState::read("orders", counting, past, &properties);
            let (policy, limits) = (policy("exponential(1s, jitter=0.2, max_age=1h)"), Limits::default());
            let _ = admit(&state, &limits);
            match decide(&state, &outcome, &policy, &limits, now, draw) {
                Action::Ack => prop_assert_eq!(&outcome, &Outcome::Ack),
                Action::Retry { retry, delay, chosen } => {
                    prop_assert_eq!(retry, state.retries + 1);
                    prop_assert!(retry <= policy.max_retries());
                    prop_assert!(delay >= crate::MILLISECOND && delay <= crate::MAX_DELAY);
                    prop_assert!(chosen || policy.delays().contains(&delay));
                }
                Action::Defer { deferral, delay } => {
                    prop_assert!(deferral == state.deferrals + 1 && deferral <= limits.deferrals);
                    prop_assert!(delay <= crate::MAX_DELAY);
                }
                Action::Park(_) => {}
            }
        }

        /// A loop of failures ends, whatever the headers were at its start.
        #[test]
        fn no_message_fails_for_ever(headers in any_headers(), counting in any_counting(), past in any_past()) {
            let properties = BasicProperties::default().with_headers(headers);
            let mut state = RetryState::read("orders", counting, past, &properties);
            let policy = Policy::default();
            for _ in 0..=policy.max_retries() {
                match decide(&state, &failed(), &policy, &Limits::default(), 0, 0) {
                    Action::Retry { retry, .. } => state.retries = retry,
                    end => {
                        prop_assert!(matches!(end, Action::Park(_)));
                        return Ok(());
                    }
                }
            }
            prop_assert!(false, "still retrying");
        }
    }

    #[test]
    fn forged_counts_are_not_believed() {
        for forged in [
            AMQPValue::LongLongInt(-1),
            AMQPValue::LongLongInt(i64::MAX),
            AMQPValue::LongString("3".into()),
            AMQPValue::FieldTable(FieldTable::default()),
            AMQPValue::Void,
        ] {
            let headers = table(vec![("x-retry-count".to_owned(), forged)]);
            let state = RetryState::read(
                "orders",
                Counting::Header,
                Past::None,
                &BasicProperties::default().with_headers(headers),
            );
            assert_eq!(state.retries, 0);
            assert_eq!(state.distrusted.len(), 1);
        }
    }

    #[test]
    fn counts_of_older_patterns_are_honoured_once() {
        let death = table(vec![
            ("queue".to_owned(), AMQPValue::LongString("orders".into())),
            (
                "reason".to_owned(),
                AMQPValue::LongString("rejected".into()),
            ),
            ("count".to_owned(), AMQPValue::LongLongInt(3)),
        ]);
        let deaths = AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]));
        let read = |entries: Vec<(&str, AMQPValue)>, counting| {
            let entries = entries
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            RetryState::read(
                "orders",
                counting,
                Past::None,
                &BasicProperties::default().with_headers(table(entries)),
            )
            .retries
        };
        let ours = || ("x-retry-count", AMQPValue::LongLongInt(1));
        assert_eq!(read(vec![("x-death", deaths.clone())], Counting::Header), 3);
        assert_eq!(
            read(vec![("x-death", deaths.clone()), ours()], Counting::Header),
            1
        );
        assert_eq!(
            read(
                vec![("x-death", deaths), ours()],
                Counting::Deaths {
                    carried: false,
                    looks_redelivered: true,
                }
            ),
            4
        );
        assert_eq!(
            read(
                vec![("x-retries", AMQPValue::ShortInt(2))],
                Counting::Header
            ),
            2
        );
        assert_eq!(
            read(
                vec![
                    ("x-retries", AMQPValue::ShortInt(2)),
                    ("x-retry-replays", AMQPValue::LongInt(1)),
                ],
                Counting::Header
            ),
            0,
            "what was replayed counts from the start"
        );
        assert_eq!(
            read(
                vec![("x-death", AMQPValue::LongString("all of them".into()))],
                Counting::Header
            ),
            0
        );
    }
}
