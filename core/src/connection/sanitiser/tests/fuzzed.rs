//! The guard, and what reads headers behind it, fed with mutations of what brokers and our own consumers send.

use amq_protocol::protocol::AMQPClass;
use amq_protocol::protocol::basic::AMQPProperties;
use retryrmq_harness::fuzz::fuzz;

use super::*;
use crate::{
    Failure, Outcome, Policy,
    retry::{
        Action, Admission, CopyHeaders, Counting, DeliveryPast, HistoryEntry, Limits, Origin,
        RetryState, admit, decide,
    },
};

const WORDS: [&str; 18] = [
    "x-retry-count",
    "x-retry-deferrals",
    "x-retry-crashes",
    "x-retry-first-failed-at",
    "x-retry-history",
    "x-retry-error",
    "x-retry-exchange",
    "x-retry-protocol",
    "x-retry-replays",
    "x-retry-walk",
    "x-delivery-count",
    "x-acquired-count",
    "x-death",
    "x-retries",
    "orders",
    "rejected",
    "count",
    "attempt",
];

/// Headers as they come: ours after a failure, and the broker's after a dead-letter round.
fn seeds() -> Vec<Vec<u8>> {
    let number = |key: &[u8], n: i64| entry(key, b'l', &n.to_be_bytes());
    let text = |key: &[u8], value: &[u8]| entry(key, b'S', &long(value));
    let attempt = [
        number(b"attempt", 1),
        entry(b"at", b'T', &1_700_000_000_u64.to_be_bytes()),
        text(b"error", b"boom"),
    ]
    .concat();
    let death = [
        number(b"count", 3),
        text(b"queue", b"orders"),
        text(b"reason", b"rejected"),
    ]
    .concat();
    let array_of = |table: &[u8]| long(&[b"F", &long(table)[..]].concat());
    vec![
        [
            number(b"x-retry-count", 2),
            number(b"x-retry-deferrals", 1),
            number(b"x-retry-crashes", 1),
            number(b"x-retry-replays", 1),
            entry(
                b"x-retry-first-failed-at",
                b'T',
                &1_700_000_000_u64.to_be_bytes(),
            ),
            text(b"x-retry-error", b"boom"),
            text(b"x-retry-exchange", b"shop"),
            entry(b"x-retry-history", b'A', &array_of(&attempt)),
        ]
        .concat(),
        [
            entry(b"x-death", b'A', &array_of(&death)),
            number(b"x-delivery-count", 7),
            number(b"x-acquired-count", 8),
            number(b"x-retries", 4),
        ]
        .concat(),
        tables(5, &number(b"x-retry-count", -1)),
        arrays(5),
    ]
}

/// The properties of a message with these headers, as a consumer gets them: through the guard and the client's own parser.
fn received(table: &[u8]) -> AMQPProperties {
    let output = through(&mut Sanitiser::new(0), &headers(1, table));
    match parse(&output).as_deref() {
        Ok([AMQPFrame::Header(_, header)]) => header.properties.clone(),
        other => panic!("one header became {other:?}"),
    }
}

#[test]
fn no_headers_make_a_consumer_go_wrong() {
    let seeds = seeds();
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    let policy: Policy = "fixed(1s, retries=3)".parse().unwrap();
    let limits = Limits::default();
    let failed = Outcome::retry(Failure::new("no"));
    fuzz(&seeds, &WORDS, |table| {
        let properties = received(table);
        let history = properties.headers().as_ref().map(HistoryEntry::read);
        let mut seen = vec![history.map_or(0, |entries| entries.len())];
        for counting in [
            Counting::Header,
            Counting::Deaths {
                carried: true,
                looks_redelivered: true,
                continues_foreign: false,
            },
            Counting::Deaths {
                carried: false,
                looks_redelivered: false,
                continues_foreign: true,
            },
            Counting::Deliveries,
        ] {
            for past in [
                DeliveryPast::None,
                DeliveryPast::Returned,
                DeliveryPast::Uncounted,
            ] {
                let state = RetryState::read("orders", counting, past, &properties);
                assert!(state.attempt() > state.retries);
                let admission = admit(&state, &limits);
                let action = decide(&state, &failed, &policy, &limits, 1_800_000_000, 0);
                let stamp = CopyHeaders {
                    origin: &Origin::default(),
                    properties: &properties,
                    exchange: state.exchange.as_deref().unwrap_or_default(),
                    routing_key: state.routing_key.as_deref().unwrap_or("orders"),
                    state: &state,
                    now: 1_800_000_000,
                    budget: 100_000,
                };
                match action {
                    // Whatever was forged, the next attempt is nearer to the end than this one.
                    Action::Retry { retry, .. } => {
                        assert!(retry > state.retries && retry <= policy.max_retries());
                        let copy = stamp.retry(retry, &Failure::new("no"), None);
                        let next =
                            RetryState::read("orders", Counting::Header, DeliveryPast::None, &copy);
                        assert_eq!(next.retries, retry);
                        let ours = |(name, _): &(&str, &str)| *name == "x-retry-count";
                        assert!(!next.distrusted.iter().any(ours), "{:?}", next.distrusted);
                    }
                    Action::Park(reason) => {
                        let copy = stamp.parked(reason, &Failure::new("no"));
                        assert!(copy.headers().is_some());
                    }
                    other => panic!("a failure led to {other:?}"),
                }
                seen.push(state.distrusted.len());
                seen.push(usize::from(matches!(admission, Admission::Run)));
                seen.push(state.retries.min(4) as usize);
            }
        }
        seen
    });
}

#[test]
fn no_stream_gets_past_the_guard_changed_in_length_or_unreadable() {
    let mut seeds: Vec<Vec<u8>> = seeds().iter().map(|table| headers(1, table)).collect();
    seeds.push(deliver(1, 7, b"orders"));
    seeds.push(
        [
            deliver(1, 7, b"orders"),
            headers(1, b""),
            frame(3, 1, b"body"),
        ]
        .concat(),
    );
    let seeds: Vec<&[u8]> = seeds.iter().map(Vec::as_slice).collect();
    fuzz(&seeds, &WORDS, |bytes| {
        let mut guard = Sanitiser::new(0);
        let whole = through_in(
            &mut guard,
            bytes,
            &[bytes.len().max(1)],
            &[bytes.len().max(1)],
        );
        let split = through_in(&mut Sanitiser::new(0), bytes, &[7, 1, 300], &[5, 64]);
        let mended = guard.mended();
        match (whole, split) {
            (Ok(whole), Ok(split)) => {
                assert_eq!(whole.len(), bytes.len());
                assert_eq!(whole, split);
                let frames = parse(&whole).unwrap_or_default();
                let kinds = frames.iter().map(|frame| match frame {
                    AMQPFrame::Method(_, AMQPClass::Basic(_)) => 1,
                    AMQPFrame::Method(..) => 2,
                    AMQPFrame::Header(..) => 3,
                    AMQPFrame::Body(..) => 4,
                    _ => 5,
                });
                (mended.min(5), kinds.take(6).collect::<Vec<u8>>())
            }
            (Err(whole), Err(split)) => {
                assert_eq!(whole.kind(), split.kind());
                (99, Vec::new())
            }
            (whole, split) => panic!("{whole:?} in one, {split:?} in parts"),
        }
    });
}
