use lapin::{
    BasicProperties,
    types::{AMQPValue, DecimalValue, FieldArray, FieldTable, ShortString},
};
use proptest::prelude::*;

use super::*;
use crate::{
    Failure, SECOND,
    retry::header_state::{Counting, DeliveryPast},
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
    assert_eq!([at(0, 0), at(1, 0), at(2, 2)], [Admission::Run; 3]);
    assert_eq!([at(3, 3), at(4, 3), at(9, 9)], [Admission::RunAlone; 3]);
    assert_eq!(at(10, 9), Admission::Park(ParkReason::DeliveryLimit));
    for (crashes, own) in [(2, 0), (9, 6), (10, 8), (30, 10)] {
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
    for (counts, nack_is_uncounted) in [(false, false), (true, false), (false, true), (true, true)]
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
    let decide = |text, now| decide(&state, &failed(), &policy(text), &Limits::default(), now, 0);
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
fn a_broker_that_stamps_each_copy_makes_no_message_younger() {
    let state = RetryState {
        first_failed_at: Some(100),
        published_at: Some(110),
        ..RetryState::default()
    };
    let policy = policy("fixed(1s, max_age=10s, age_from=published)");
    assert_eq!(
        decide(&state, &failed(), &policy, &Limits::default(), 112, 0),
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
            continues_foreign: false,
        },
        Counting::Deaths {
            carried: false,
            looks_redelivered: true,
            continues_foreign: false,
        },
        Counting::Deaths {
            carried: false,
            looks_redelivered: false,
            continues_foreign: true,
        },
        Counting::Deliveries,
    ])
}

fn any_past() -> impl Strategy<Value = DeliveryPast> {
    prop::sample::select(vec![
        DeliveryPast::None,
        DeliveryPast::Returned,
        DeliveryPast::Uncounted,
    ])
}

#[test]
fn a_classic_queue_has_counted_nothing_whatever_a_message_says() {
    for name in ["x-delivery-count", "x-acquired-count"] {
        let headers = table(vec![(name.to_owned(), AMQPValue::LongLongInt(1))]);
        let properties = BasicProperties::default().with_headers(headers);
        let read = |past| RetryState::read("orders", Counting::Header, past, &properties);
        assert!(read(DeliveryPast::Uncounted).uncounted_crash, "{name}");
        assert_eq!(read(DeliveryPast::Uncounted).crashes, 0);
        assert!(!read(DeliveryPast::Returned).uncounted_crash, "{name}");
        assert!(!read(DeliveryPast::None).uncounted_crash, "{name}");
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
            continues_foreign: false,
        };
        let state = RetryState::read("orders", counting, past, &properties);
        assert_eq!(state.retries, 1);
        state.uncounted_crash
    };
    assert!(crashed(DeliveryPast::Uncounted, false));
    assert!(!crashed(DeliveryPast::Uncounted, true) && !crashed(DeliveryPast::None, false));
    assert!(
        !crashed(DeliveryPast::Returned, false),
        "a quorum queue counts"
    );
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
            DeliveryPast::None,
            &BasicProperties::default().with_headers(headers),
        );
        assert_eq!(state.retries, 0);
        assert_eq!(state.distrusted.len(), 1);
    }
}

#[test]
fn counts_of_older_patterns_are_honoured_once() {
    let deaths_of = |count| {
        let death = table(vec![
            ("queue".to_owned(), AMQPValue::LongString("orders".into())),
            (
                "reason".to_owned(),
                AMQPValue::LongString("rejected".into()),
            ),
            ("count".to_owned(), AMQPValue::LongLongInt(count)),
        ]);
        AMQPValue::FieldArray(FieldArray::from(vec![AMQPValue::FieldTable(death)]))
    };
    let deaths = deaths_of(3);
    let read = |entries: Vec<(&str, AMQPValue)>, counting| {
        let entries = entries
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value))
            .collect();
        RetryState::read(
            "orders",
            counting,
            DeliveryPast::None,
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
                continues_foreign: false,
            }
        ),
        4
    );
    // RabbitMQ 3.10 would go on counting from there, and the message would be tried for ever.
    for count in [-5, 2_000_000, i64::MIN] {
        for (continues_foreign, retries) in [(true, 1_000_000), (false, 0)] {
            let counting = Counting::Deaths {
                carried: false,
                looks_redelivered: false,
                continues_foreign,
            };
            let forged = vec![("x-death", deaths_of(count))];
            assert_eq!(read(forged, counting), retries, "{count}");
        }
    }
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
