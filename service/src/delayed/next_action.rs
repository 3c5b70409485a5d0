//! What becomes of a message with a delay: a pure function of its delivery, the policy and the time.

use std::time::Duration;

use retryrmq::{BasicProperties, MAX_DELAY, delay_step, headers, terminal_escape};

use super::{
    DelayedSections,
    delay_headers::{DelayHeaders, delay, take_off},
};
use crate::queue_names::DELAYED_QUEUE;

/// What is shorter is waited for here: a hop takes some milliseconds itself.
pub(super) const SHORTEST: Duration = Duration::from_millis(20);

/// A message, as the broker has delivered it.
pub(super) struct DelayedMessage<'a> {
    /// The exchange that it came through, by the broker's word.
    pub(super) through: &'a str,
    /// Where it was first published, as its headers say.
    pub(super) exchange: &'a str,
    pub(super) routing_key: &'a str,
    pub(super) properties: &'a BasicProperties,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum NextAction {
    /// It is due.
    Publish(OutgoingMessage),
    /// It waits for so long.
    Wait(OutgoingMessage, Duration),
    /// It is parked; a sentence says why.
    Park(DelayHeaders, String),
}

/// A message and where it goes in the end.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OutgoingMessage {
    /// Where it came from, and when it is due.
    pub(super) stamp: DelayHeaders,
    /// The real exchange.
    pub(super) to: String,
    /// Those with which it is published.
    pub(super) properties: BasicProperties,
}

/// Decides. `now` is in milliseconds since 1970.
pub(super) fn order(
    arrival: &DelayedMessage<'_>,
    sections: &DelayedSections,
    now: u64,
) -> NextAction {
    let DelayedMessage { properties, .. } = arrival;
    let is_replay = properties
        .headers()
        .as_ref()
        .is_some_and(|headers| headers.contains_key(headers::REPLAYS));
    let mut stamp = DelayHeaders {
        from: arrival.through.to_owned(),
        key: arrival.routing_key.to_owned(),
        until: now,
    };
    if sections.contains_key(arrival.through) {
        match delay(properties) {
            Ok(delay) => stamp.until = now.saturating_add(milliseconds(delay.unwrap_or_default())),
            Err(why) => return NextAction::Park(stamp, why),
        }
    } else if !arrival.through.is_empty() {
        let why = format!(
            "it came through the exchange {}, of which the policy says nothing; add a section [delayed.\"{0}\"], and replay it",
            terminal_escape::line(arrival.through)
        );
        return NextAction::Park(stamp, why);
    } else if let Some(waited) = DelayHeaders::of(properties) {
        stamp = waited;
    } else {
        stamp.from = arrival.exchange.to_owned();
        if !is_replay {
            let why = format!(
                "it was published straight into {DELAYED_QUEUE}; publish it to an exchange that has a section [delayed] in the policy"
            );
            return NextAction::Park(stamp, why);
        }
    }
    // Whoever replays wants it now.
    if is_replay && arrival.through.is_empty() {
        stamp.until = stamp.until.min(now);
    }
    let Some(section) = sections.get(&stamp.from) else {
        let why = format!(
            "it was published to the exchange {}, of which the policy says nothing any more; add a section [delayed.\"{0}\"], and replay it",
            terminal_escape::line(&stamp.from)
        );
        return NextAction::Park(stamp, why);
    };
    let rest = Duration::from_millis(stamp.until.saturating_sub(now));
    let outgoing = OutgoingMessage {
        stamp,
        to: section.to.clone(),
        properties: take_off(properties),
    };
    match rest.is_zero() {
        true => NextAction::Publish(outgoing),
        false => NextAction::Wait(outgoing, rest),
    }
}

fn milliseconds(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
}

/// The delay step in which a message waits next: the longest that is not longer than what is left, so that it never comes late. `None` where that is
/// too short for a queue.
pub(super) fn next_delay_step(rest: Duration) -> Option<Duration> {
    if rest < SHORTEST {
        return None;
    }
    // A clock that went back makes a rest of any length; and no wait is longer than this.
    if rest >= MAX_DELAY {
        return Some(delay_step_below(MAX_DELAY));
    }
    if delay_step(rest) == rest {
        return Some(rest);
    }
    Some(delay_step_below(rest))
}

/// The longest delay step that is not longer.
fn delay_step_below(rest: Duration) -> Duration {
    // The step below is at least 0.79 of the one above.
    let mut below = SHORTEST;
    let mut next = SHORTEST;
    while next <= rest {
        below = next;
        next = delay_step(next + Duration::from_millis(1));
    }
    below
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use retryrmq::types::{AMQPValue, FieldTable};

    use super::{
        super::configuration::{DelayedSection, ExchangeKind},
        *,
    };

    const NOW: u64 = 1_700_000_000_000;

    fn sections() -> DelayedSections {
        let section = DelayedSection {
            to: "shop".to_owned(),
            kind: ExchangeKind::Topic,
        };
        [("orders".to_owned(), section)].into()
    }

    fn properties(entries: &[(&'static str, AMQPValue)]) -> BasicProperties {
        let mut headers = FieldTable::default();
        for (name, value) in entries {
            headers.insert((*name).into(), value.clone());
        }
        BasicProperties::default().with_headers(headers)
    }

    fn ask(through: &str, exchange: &str, properties: &BasicProperties, now: u64) -> NextAction {
        let arrival = DelayedMessage {
            through,
            exchange,
            routing_key: "eu.de",
            properties,
        };
        order(&arrival, &sections(), now)
    }

    fn delayed(ms: i64) -> BasicProperties {
        properties(&[("x-delay", AMQPValue::LongLongInt(ms))])
    }

    fn parked(order: &NextAction, words: &str) -> bool {
        matches!(order, NextAction::Park(_, why) if why.contains(words))
    }

    #[test]
    fn what_has_no_delay_goes_at_once_and_what_has_one_when_it_is_due() {
        for plain in [BasicProperties::default(), delayed(0)] {
            let NextAction::Publish(out) = ask("orders", "x", &plain, NOW) else {
                panic!("it waits");
            };
            assert_eq!((out.to.as_str(), out.stamp.key.as_str()), ("shop", "eu.de"));
        }
        let NextAction::Wait(out, rest) = ask("orders", "x", &delayed(5_000), NOW) else {
            panic!("it does not wait");
        };
        assert_eq!(rest.as_millis(), 5_000);
        let waited = out.stamp.put_on(&delayed(5_000));
        let again = ask("", "", &waited, NOW + 4_000);
        assert!(matches!(&again, NextAction::Wait(_, rest) if rest.as_millis() == 1_000));
        for late in [5_000, 900_000] {
            assert!(matches!(
                ask("", "", &waited, NOW + late),
                NextAction::Publish(_)
            ));
        }
    }

    #[test]
    fn what_nobody_can_place_is_parked_with_a_sentence() {
        let odd = ask("orders", "", &delayed(-1), NOW);
        assert!(parked(&odd, "not below zero"), "{odd:?}");
        let other = ask("gone", "", &delayed(1), NOW);
        assert!(parked(&other, "[delayed.\"gone\"]"), "{other:?}");
        let stray = ask("", "orders", &delayed(1), NOW);
        assert!(parked(&stray, "published straight"), "{stray:?}");
        let stamp = DelayHeaders {
            from: "gone".to_owned(),
            key: String::new(),
            until: NOW,
        };
        let waited = ask("", "", &stamp.put_on(&delayed(1)), NOW);
        assert!(parked(&waited, "nothing any more"), "{waited:?}");
    }

    #[test]
    fn what_is_replayed_goes_at_once() {
        let replays = ("x-retry-replays", AMQPValue::LongLongInt(1));
        let delay = ("x-delay", AMQPValue::LongLongInt(60_000));
        let replayed = properties(&[replays.clone(), delay]);
        let NextAction::Publish(out) = ask("", "orders", &replayed, NOW) else {
            panic!("it waits");
        };
        assert_eq!(out.to, "shop");
        let stamp = DelayHeaders {
            from: "orders".to_owned(),
            key: "k".to_owned(),
            until: NOW + 60_000,
        };
        let taken_out = stamp.put_on(&properties(&[replays]));
        assert!(matches!(
            ask("", "", &taken_out, NOW),
            NextAction::Publish(_)
        ));
    }

    #[test]
    fn a_clock_that_went_back_makes_no_wait_that_is_refused() {
        for years in [1, 2, 56, 1_000] {
            let step = next_delay_step(MAX_DELAY * years).unwrap();
            assert!(step <= MAX_DELAY && delay_step(step) == step, "{step:?}");
        }
    }

    proptest! {
        #[test]
        fn a_wait_is_never_too_long_and_ends_after_few_hops(ms in 0u64..=31_536_000_000) {
            let mut rest = Duration::from_millis(ms);
            prop_assert!(rest <= MAX_DELAY);
            let mut steps = 0;
            while let Some(step) = next_delay_step(rest) {
                prop_assert!(step <= rest && step >= SHORTEST);
                prop_assert_eq!(delay_step(step), step, "it is a delay step, so that it needs no expiration");
                rest -= step;
                steps += 1;
            }
            prop_assert!(rest < SHORTEST && steps <= 15, "{} hops, {:?}", steps, rest);
        }

        #[test]
        fn nothing_that_was_published_by_hand_is_sent_on(through in "[a-z.]{1,12}", ms: i64) {
            prop_assume!(through != "orders");
            prop_assert!(matches!(ask(&through, "orders", &delayed(ms), NOW), NextAction::Park(..)));
        }
    }
}
