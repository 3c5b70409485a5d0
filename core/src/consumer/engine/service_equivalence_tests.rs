//! Tests that a service decides about a handed-over failure as its consumer would have with the service's policy.

use std::{sync::Arc, time::Duration};

use proptest::{prelude::*, strategy::Strategy as Values};

use super::{AttemptContext, Copy, NextAction, delivery_state::PendingCopy};
use crate::{
    BasicProperties, Consumer, Strategy,
    connection::USUAL_HEADER_ROOM,
    consumer::{FailedMessage, Message, Received},
    retry::{
        Counting, DeliveryPast, Failure, Handover, Origin, Outcome, ParkReason, RetryState, headers,
    },
    telemetry::Event,
    topology::{Detour, HANDOVER_QUEUE},
    types::{AMQPValue, FieldTable, ShortString},
};

const NOW: u64 = 1_800_000_000;

fn origin(host: &str) -> Origin {
    Origin {
        host: host.to_owned(),
        app_version: format!("{host} 7"),
    }
}

fn received(
    queue: &str,
    exchange: &str,
    properties: BasicProperties,
    redelivered: bool,
) -> Received {
    let past = DeliveryPast::of(redelivered, false);
    let state = RetryState::read(queue, Counting::Header, past, &properties);
    Received {
        state,
        redelivered,
        exchange: ShortString::from(exchange),
        properties,
        ..Received::for_tests(queue, "a body")
    }
}

fn next_action(
    options: &Consumer,
    host: &str,
    received: &Received,
    follows: impl FnOnce(AttemptContext<'_>) -> NextAction,
) -> NextAction {
    let origin = origin(host);
    follows(AttemptContext {
        options,
        origin: &origin,
        received,
        header_room: USUAL_HEADER_ROOM,
        now: NOW,
        copies: false,
    })
}

fn copy_of(next_action: NextAction) -> (Copy, Event) {
    match next_action {
        NextAction::Copy(pending_copy) => {
            let PendingCopy { copy, event, .. } = *pending_copy;
            (copy, event)
        }
        other => unreachable!("{other:?} is no copy"),
    }
}

/// What the consumer hands over, as the service reads it.
fn taken_over(copy: &Copy) -> (FailedMessage, Handover) {
    assert_eq!((&*copy.exchange, &*copy.routing_key), ("", HANDOVER_QUEUE));
    assert!(copy.mandatory);
    let message = received(HANDOVER_QUEUE, "", (*copy.properties).clone(), false);
    FailedMessage::handed_over(&Message(Arc::new(message))).unwrap()
}

fn consumers() -> (Consumer, Consumer) {
    let consumer = || Consumer::new("orders").dlx(true);
    let service = consumer().retry("list(1s, 1m, max_age=1h)".parse().unwrap());
    (consumer().strategy(Strategy::Service), service)
}

fn failures() -> impl Values<Value = Failure> {
    let stack = proptest::option::of("\\PC{0,40}");
    ("\\PC{0,2000}", "[A-Za-z]{0,12}", stack).prop_map(|(error, of_type, stack)| {
        let failure = Failure::new(error).of_type(of_type);
        match stack {
            Some(stack) => failure.with_stack(stack),
            None => failure,
        }
    })
}

fn outcomes() -> impl Values<Value = Outcome> {
    let delay = || (1u64..10_000_000).prop_map(Duration::from_millis);
    let reason = prop_oneof![Just(ParkReason::Fatal), Just(ParkReason::Requested)];
    prop_oneof![
        (failures(), proptest::option::of(delay()))
            .prop_map(|(failure, delay)| Outcome::Retry { failure, delay }),
        (failures(), reason).prop_map(|(failure, reason)| Outcome::Park { reason, failure }),
        delay().prop_map(Outcome::defer),
    ]
}

/// A message with any past in its headers, forged or not.
fn messages() -> impl Values<Value = BasicProperties> {
    let count = || proptest::option::of(0i64..1_200);
    let names = [
        headers::COUNT,
        headers::DEFERRALS,
        headers::CRASHES,
        headers::DELIVERY_COUNT,
        headers::FIRST_FAILED_AT,
        headers::REPLAYS,
    ];
    let counts = prop::array::uniform6(count());
    (counts, any::<bool>(), any::<bool>()).prop_map(move |(counts, is_forged, has_id)| {
        let mut table = FieldTable::default();
        for (name, count) in names.into_iter().zip(counts) {
            if let Some(count) = count {
                let count = if name == headers::FIRST_FAILED_AT {
                    NOW as i64 - 4 * count
                } else {
                    count
                };
                table.insert(name.into(), AMQPValue::LongLongInt(count));
            }
        }
        let text = |text: &str| AMQPValue::LongString(text.into());
        table.insert("tenant".into(), text("gold"));
        if is_forged {
            for name in [
                headers::HANDOVER,
                headers::QUEUE,
                headers::AFTER,
                headers::FINGERPRINT,
                headers::PARKED_REASON,
            ] {
                table.insert(name.into(), text("billing"));
            }
        }
        let properties = BasicProperties::default()
            .with_headers(table)
            .with_expiration("7000".into());
        match has_id {
            true => properties.with_message_id("4711".into()).with_priority(3),
            false => properties,
        }
    })
}

proptest! {
    #[test]
    fn the_service_decides_and_writes_what_the_consumer_would_have(
        properties in messages(), outcome in outcomes(), redelivered in any::<bool>(),
    ) {
        let (consumer, service) = consumers();
        let original = received("orders", "shop", properties, redelivered);
        let handed = next_action(&consumer, "here", &original, |case| case.after(&outcome, 0));
        let (copy, _) = copy_of(handed);
        let (failed, handover) = taken_over(&copy);
        prop_assert_eq!(failed.queue(), "orders");
        prop_assert_eq!(failed.exchange(), "shop");
        let asked = handover.outcome(failed.failure()).expect("it ran");
        let there = next_action(&service, "there", &failed.received, |case| case.after(&asked, 0));
        let (there, told) = copy_of(there);
        let here = next_action(&service, "here", &original, |case| case.after(&outcome, 0));
        let (here, expected) = copy_of(here);
        prop_assert_eq!(&there.routing_key, &here.routing_key);
        // If the service itself gives a message up, for example after too many deferrals, its own text is expected.
        if matches!((handover, &expected), (Handover::Defer { .. }, Event::Parked { .. })) {
            return Ok(());
        }
        prop_assert_eq!(there.properties, here.properties);
        // Both have the text that is on the message, and no more of it.
        prop_assert_eq!(told, expected);
    }

    #[test]
    fn crashes_come_along_and_a_detour_spends_nothing(properties in messages(), crashes in 0u32..2_000) {
        let (consumer, service) = consumers();
        let original = received("orders", "shop", properties, false);
        let detour = |options, host, message: &Received, crashes| {
            copy_of(next_action(options, host, message, |case| case.detour(crashes, Detour::Shortest))).0
        };
        let (failed, handover) = taken_over(&detour(&consumer, "here", &original, crashes));
        prop_assert_eq!(handover, Handover::Detour);
        let state = &failed.received.state;
        let there = detour(&service, "there", &failed.received, state.own_crashes);
        let here = detour(&service, "here", &original, crashes);
        prop_assert_eq!(there, here);
    }

    #[test]
    fn whatever_is_published_to_the_service_is_read_or_refused(properties in messages()) {
        let message = received(HANDOVER_QUEUE, "", properties, false);
        let _ = FailedMessage::handed_over(&Message(Arc::new(message)));
    }
}

#[test]
fn what_takes_its_consumer_down_is_parked_by_the_service() {
    let (consumer, _) = consumers();
    let original = received("orders", "shop", BasicProperties::default(), false);
    let failure = Failure::new("it came back without an answer 10 times");
    let parked = next_action(&consumer, "here", &original, |case| {
        case.park(ParkReason::DeliveryLimit, &failure)
    });
    let (copy, event) = copy_of(parked);
    assert!(matches!(event, Event::Parked { .. }));
    let (failed, handover) = taken_over(&copy);
    assert_eq!(handover, Handover::Park(ParkReason::DeliveryLimit));
    assert_eq!(failed.failure().error, failure.error);
}

#[test]
fn what_is_not_to_be_parked_is_dropped_here() {
    let consumer = consumers().0.park(false);
    let original = received("orders", "shop", BasicProperties::default(), false);
    let outcome = Outcome::fatal(Failure::new("no"));
    let dropped = next_action(&consumer, "here", &original, |case| case.after(&outcome, 0));
    assert!(matches!(dropped, NextAction::Drop(_)), "{dropped:?}");
}
