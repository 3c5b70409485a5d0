//! What users' tests can rely on.

use super::*;
use crate::{Failure, MINUTE, Pause, Policy, SECOND, retry::ParkReason};

fn simulation(policy: &str) -> Simulation {
    let policy: Policy = policy.parse().unwrap();
    let mut simulation = Simulation::new(Consumer::new("orders").dlx(true).retry(policy)).unwrap();
    simulation
        .publish(Publish::to_exchange("shop", "eu.new", "7").message_id("a"))
        .unwrap();
    simulation
}

fn no() -> Outcome {
    Outcome::retry(Failure::new("no").of_type("Timeout"))
}

#[test]
fn a_name_that_no_broker_takes_is_refused_first() {
    for (queue, dlx) in [("q".repeat(249), true), ("q".repeat(256), false)] {
        let error = Simulation::new(Consumer::new(queue).dlx(dlx)).unwrap_err();
        assert_eq!(error.code(), "too_large");
    }
    assert!(Simulation::new(Consumer::new("q".repeat(255))).is_ok());
}

#[test]
fn a_message_waits_counts_and_is_parked_with_its_record() {
    let mut simulation = simulation("list(1s, 1m)");
    let (mut seen, mut last) = (Vec::new(), None);
    while let Some(Delivery { token, message, .. }) = simulation.next() {
        assert_eq!(
            (message.exchange(), message.routing_key()),
            ("shop", "eu.new")
        );
        seen.push((message.attempt(), simulation.elapsed()));
        last = simulation.settle(token, no());
        assert!(simulation.settle(token, no()).is_none());
    }
    assert_eq!(
        seen,
        [(1, Duration::ZERO), (2, SECOND), (3, SECOND + MINUTE)]
    );
    let Some(Step::Parked { reason, message }) = last else {
        panic!("not parked: {last:?}")
    };
    assert_eq!(reason, ParkReason::Exhausted);
    assert_eq!(message.last_error(), Some("no"));
    assert_eq!(message.history().len(), 3);
}

#[test]
fn who_comes_back_comes_back_at_the_tail() {
    let mut simulation = simulation("fixed(1s)");
    simulation
        .publish(
            Publish::to_queue("orders", "8")
                .message_id("b")
                .delay(SECOND),
        )
        .unwrap();
    let first = simulation.next().unwrap();
    simulation.settle(first.token, no());
    let order: Vec<_> = std::iter::from_fn(|| simulation.next())
        .map(|delivery| delivery.message.message_id().map(str::to_owned).unwrap())
        .collect();
    assert_eq!(order, ["b", "a"]);
}

#[test]
fn putting_off_spends_no_attempt_and_age_is_counted_on_the_virtual_clock() {
    let mut simulation = simulation("fixed(1s, max_age=1h)");
    let first = simulation.next().unwrap();
    simulation.settle(first.token, Outcome::Defer { delay: MINUTE });
    let second = simulation.next().unwrap();
    assert_eq!(second.message.attempt(), 1);
    simulation.settle(second.token, no());
    let third = simulation.next().unwrap();
    simulation.advance(61 * MINUTE);
    let step = simulation.settle(third.token, no());
    assert!(
        matches!(
            step,
            Some(Step::Parked {
                reason: ParkReason::TooOld,
                ..
            })
        ),
        "{step:?}"
    );
}

#[test]
fn without_dlx_a_failure_is_rejected_and_without_park_it_is_dropped() {
    let ends = |consumer: Consumer| {
        let mut simulation = Simulation::new(consumer).unwrap();
        simulation
            .publish(Publish::to_queue("orders", "7"))
            .unwrap();
        let delivery = simulation.next().unwrap();
        simulation.settle(delivery.token, no()).unwrap()
    };
    assert!(matches!(ends(Consumer::new("orders")), Step::Rejected));
    let once: Policy = "fixed(1s, retries=0)".parse().unwrap();
    let dropped = ends(Consumer::new("orders").dlx(true).retry(once).park(false));
    assert!(matches!(dropped, Step::Dropped { .. }), "{dropped:?}");
}

/// A pause longer than messages are kept.
fn paused() -> Simulation {
    let pause = Pause {
        failures: 0.5,
        window: 2,
        pause: 60 * MINUTE,
    };
    let policy: Policy = "fixed(1s, retries=9)".parse().unwrap();
    let consumer = Consumer::new("orders").dlx(true).retry(policy);
    let mut simulation = Simulation::new(consumer.pause(pause)).unwrap();
    for number in 0..6 {
        let message = Publish::to_queue("orders", number.to_string());
        simulation
            .publish(message.message_id(&number.to_string()))
            .unwrap();
    }
    simulation
}

#[test]
fn nothing_is_lost_in_a_pause_however_long_it_is() {
    let mut simulation = paused();
    let mut handled = Vec::new();
    while let Some(Delivery { token, message, .. }) = simulation.next() {
        let outcome = if simulation.elapsed() < MINUTE {
            no()
        } else {
            handled.push(message.message_id().map(str::to_owned).unwrap());
            Outcome::Ack
        };
        simulation.settle(token, outcome);
    }
    handled.sort_unstable();
    assert_eq!(handled, ["0", "1", "2", "3", "4", "5"]);
}

#[test]
fn one_message_decides_whether_a_pause_is_over() {
    let mut simulation = paused();
    let mut hours = Vec::new();
    while let Some(Delivery { token, .. }) = simulation.next() {
        hours.push(simulation.elapsed().as_secs() / 3600);
        simulation.settle(token, no());
        if hours.len() == 6 {
            break;
        }
    }
    assert_eq!(hours, [0, 0, 1, 2, 3, 4]);
}

#[test]
fn no_more_is_handed_out_than_the_prefetch_allows() {
    let mut simulation = Simulation::new(Consumer::new("orders").prefetch(2)).unwrap();
    for number in 0..4 {
        simulation
            .publish(Publish::to_queue("orders", number.to_string()))
            .unwrap();
    }
    // The first one goes to a consumer that takes one at a time until it has seen a message.
    let held: Vec<_> = std::iter::from_fn(|| simulation.next()).collect();
    assert_eq!(held.len(), 3);
    for delivery in held {
        simulation.settle(delivery.token, Outcome::Ack);
    }
    assert!(
        simulation
            .next()
            .is_some_and(|last| last.message.body() == b"3")
    );
    assert!(simulation.next().is_none());
}
