use std::{error::Error as StdError, fmt, io, num::ParseIntError, time::Duration};

use super::*;
use crate::{
    Consumer, Publish, SECOND, Simulation, Step,
    retry::{Failure, Outcome, ParkReason},
};

fn of<By>(answer: impl IntoOutcome<By>) -> Outcome {
    answer.into_outcome(&ErrorClassifier::default())
}

fn failure(outcome: Outcome) -> Failure {
    match outcome {
        Outcome::Retry { failure, .. } | Outcome::Park { failure, .. } => failure,
        other => panic!("no failure: {other:?}"),
    }
}

fn kinds<By>(answer: impl IntoOutcome<By>) -> Vec<String> {
    let failure = failure(of(answer));
    let mut names = vec![failure.error_type];
    names.extend(failure.kinds);
    names
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer")
}

fn seven() -> ParseIntError {
    "seven".parse::<i32>().unwrap_err()
}

#[derive(Debug, thiserror::Error)]
enum ShopError {
    #[error(transparent)]
    Itself(#[from] Signal),
    #[error("the shop is closed")]
    Closed(#[source] Signal),
    #[error("the carrier does not answer")]
    Carrier(#[from] io::Error),
    #[error(transparent)]
    Number(#[from] ParseIntError),
    #[error(transparent)]
    Any(anyhow::Error),
    #[error("a report")]
    Report(#[source] anyhow::Error),
    #[error("out of stock")]
    OutOfStock,
}

/// Every common way of passing on a signal.
fn wrapped(signal: fn() -> Signal) -> Vec<(&'static str, Outcome)> {
    use anyhow::Context as _;
    use eyre::WrapErr as _;
    fn anyhow_question_mark(signal: Signal) -> anyhow::Result<()> {
        Err(signal)?
    }
    fn eyre_question_mark(signal: Signal) -> eyre::Result<()> {
        Err(signal)?
    }
    fn boxed(signal: Signal) -> Result<(), Box<dyn StdError>> {
        Err(signal)?
    }
    fn boxed_to_send(signal: Signal) -> Result<(), Box<dyn StdError + Send + Sync>> {
        Err(signal)?
    }
    fn into_enum(signal: Signal) -> Result<(), ShopError> {
        Err(signal)?
    }
    fn anyhow_into_box(signal: Signal) -> Result<(), Box<dyn StdError + Send + Sync>> {
        Ok(anyhow_question_mark(signal)?)
    }
    fn eyre_into_box(signal: Signal) -> Result<(), Box<dyn StdError + Send + Sync>> {
        Ok(eyre_question_mark(signal)?)
    }
    fn enum_into_anyhow(signal: Signal) -> anyhow::Result<()> {
        Ok(into_enum(signal)?)
    }
    vec![
        ("itself", of(Err(signal()))),
        ("anyhow", of(anyhow_question_mark(signal()))),
        (
            "anyhow with context",
            of(anyhow_question_mark(signal()).context("the order")),
        ),
        ("anyhow in a box", of(anyhow_into_box(signal()))),
        ("eyre", of(eyre_question_mark(signal()))),
        (
            "eyre with context",
            of(eyre_question_mark(signal()).wrap_err("the order")),
        ),
        ("eyre in a box", of(eyre_into_box(signal()))),
        ("a box", of(boxed(signal()))),
        ("a box that may be sent", of(boxed_to_send(signal()))),
        ("a transparent enum", of(into_enum(signal()))),
        (
            "an enum with a source",
            of(Err(ShopError::Closed(signal()))),
        ),
        ("an enum in anyhow", of(enum_into_anyhow(signal()))),
        (
            "anyhow in a transparent enum",
            of(Err(ShopError::Any(signal().into()))),
        ),
        (
            "anyhow in an enum",
            of(Err(ShopError::Report(signal().into()))),
        ),
        ("an io::Error", of(Err(io::Error::other(signal())))),
        (
            "an io::Error in anyhow",
            of(Err(anyhow::Error::new(io::Error::other(signal())))),
        ),
        (
            "an io::Error in a transparent anyhow",
            of(Err(ShopError::Any(io::Error::other(signal()).into()))),
        ),
    ]
}

#[test]
fn a_signal_is_found_behind_whatever_wraps_it() {
    for (wrapper, outcome) in wrapped(|| park("no such customer")) {
        let Outcome::Park {
            reason: ParkReason::Requested,
            failure,
        } = outcome
        else {
            panic!("{wrapper}: {outcome:?}")
        };
        assert_eq!(failure.error, "no such customer", "{wrapper}");
    }
    for (reason, wrapped) in [
        (ParkReason::Fatal, wrapped(|| fatal(seven()))),
        (ParkReason::Undecodable, wrapped(|| undecodable(seven()))),
    ] {
        for (wrapper, outcome) in wrapped {
            let Outcome::Park {
                reason: parked_as,
                failure,
            } = outcome
            else {
                panic!("{wrapper}: {outcome:?}")
            };
            assert_eq!(parked_as, reason, "{wrapper}");
            assert!(
                failure.kinds.contains(&"ParseIntError".to_owned())
                    || failure.error_type == "ParseIntError",
                "{wrapper}: {failure:?}"
            );
        }
    }
    for (wrapper, outcome) in wrapped(|| defer(SECOND)) {
        assert_eq!(outcome, Outcome::Defer { delay: SECOND }, "{wrapper}");
    }
    for (wrapper, outcome) in wrapped(|| retry_after(SECOND, "busy")) {
        assert!(
            matches!(
                outcome,
                Outcome::Retry {
                    delay: Some(SECOND),
                    ..
                }
            ),
            "{wrapper}: {outcome:?}"
        );
    }
}

#[test]
fn a_signal_says_no_line_twice() {
    let says = |signal: Signal| failure(of(Err(signal)));
    assert_eq!(
        says(retry_after(SECOND, "busy")),
        Failure::new("busy").of_type("Error")
    );
    assert_eq!(says(park("junk")), Failure::new("junk"));
    let number = says(fatal(seven()));
    assert_eq!(
        (
            number.error.as_str(),
            number.error_type.as_str(),
            number.stack
        ),
        ("invalid digit found in string", "ParseIntError", None)
    );
    let context = failure(of(Err(
        anyhow::Error::new(retry_after(SECOND, late())).context("the order")
    )));
    assert_eq!(context.error, "the order");
    assert_eq!(
        context.stack.as_deref(),
        Some("the order\ncaused by: no answer")
    );
    for (signal, text) in [
        (retry_after(SECOND, "busy"), "busy"),
        (park("junk"), "junk"),
        (fatal("bad"), "bad"),
        (defer(SECOND), "deferred for 1s"),
    ] {
        assert_eq!(signal.to_string(), text);
    }
}

#[test]
fn rules_see_all_types_that_can_be_named() {
    let has = |names: Vec<String>, wanted: &[&str]| {
        for name in wanted {
            assert!(
                names.iter().any(|known| known == name),
                "{name} in {names:?}"
            );
        }
        names
    };
    let timed_out = ["TimedOut", "TimeoutError", "io::Error"];
    has(kinds(Err(late())), &timed_out);
    has(kinds(Err(anyhow::Error::new(late()))), &timed_out);
    has(
        kinds(Err(anyhow::Error::new(late()).context("the order"))),
        &timed_out,
    );
    has(kinds(Err(eyre::Report::new(late()))), &timed_out);
    has(
        kinds(Err::<(), Box<dyn StdError>>(late().into())),
        &timed_out,
    );
    has(
        kinds(Err::<(), Box<dyn StdError + Send + Sync>>(late().into())),
        &timed_out,
    );
    has(kinds(Err(retry_after(SECOND, late()))), &timed_out);
    let shop = has(kinds(Err(ShopError::from(late()))), &timed_out);
    assert_eq!(shop[0], "ShopError");
    assert!(shop[1].ends_with("::ShopError"), "{shop:?}");
    has(kinds(Err(io::Error::other(seven()))), &["ParseIntError"]);
    assert_eq!(kinds(Err(io::Error::other("disk"))), ["io::Error"]);
    assert_eq!(kinds(Err("just text")), ["Error"]);
    assert_eq!(kinds(Err("just text".to_owned())), ["Error"]);
    assert_eq!(kinds(Err(fmt::Error))[0], "fmt::Error");
}

#[test]
fn an_error_is_named_by_its_type_and_its_crate_where_that_says_nothing() {
    for (name, short) in [
        ("shop::orders::OrderError", "OrderError"),
        ("reqwest::error::Error", "reqwest::Error"),
        ("alloc::vec::SendError<shop::Order>", "SendError"),
        ("&shop::OrderError", "OrderError"),
        ("Error", "Error"),
    ] {
        assert_eq!(names::short(name), short);
    }
}

#[tokio::test]
async fn everything_that_is_a_timeout_is_one() {
    let elapsed = tokio::time::timeout(Duration::ZERO, std::future::pending::<()>())
        .await
        .unwrap_err();
    assert_eq!(kinds(Err(elapsed))[..2], ["Elapsed", "TimeoutError"]);
    let ours = crate::Error::new(crate::ErrorKind::Timeout, "no answer");
    assert_eq!(
        kinds(Err(ours))[..3],
        ["retryrmq::Error", "timeout", "TimeoutError"]
    );
}

#[test]
fn a_failure_names_its_own_type() {
    let timeout = || Failure::new("late").of_type("ReadTimeout").also(["Net"]);
    assert_eq!(of(Err(timeout())), Outcome::retry(timeout()));
    let Outcome::Retry {
        failure,
        delay: Some(SECOND),
    } = of(Err(retry_after(SECOND, timeout())))
    else {
        panic!("not a retry")
    };
    assert_eq!(failure, timeout());
}

fn classified(consumer: &Consumer, answer: Result<(), anyhow::Error>) -> Outcome {
    answer.into_outcome(&consumer.error_classifier())
}

#[test]
fn people_name_their_own_types_and_say_what_is_fatal() {
    let consumer = Consumer::new("orders")
        .dlx(true)
        .error_type(|error| match error.downcast_ref()? {
            ShopError::OutOfStock => Some("OutOfStock"),
            _ => None,
        })
        .fatal(|error| error.is::<std::str::Utf8Error>())
        .fatal(|error| error.is::<ParseIntError>());
    let wrap = |error: ShopError| anyhow::Error::new(error).context("the order");
    let named = failure(classified(&consumer, Err(wrap(ShopError::OutOfStock))));
    assert_eq!(named.error_type, "OutOfStock");
    let parked = classified(&consumer, Err(anyhow::Error::new(seven())));
    assert!(
        matches!(
            parked,
            Outcome::Park {
                reason: ParkReason::Fatal,
                ..
            }
        ),
        "{parked:?}"
    );
    // A signal comes first, as in every language.
    let signal = classified(&consumer, Err(retry_after(SECOND, seven()).into()));
    assert!(
        matches!(
            signal,
            Outcome::Retry {
                delay: Some(SECOND),
                ..
            }
        ),
        "{signal:?}"
    );
    let other = classified(&consumer, Err(wrap(ShopError::from(late()))));
    assert!(matches!(other, Outcome::Retry { .. }), "{other:?}");
}

#[test]
fn a_function_that_panics_says_nothing() {
    let consumer = Consumer::new("orders")
        .dlx(true)
        .fatal(|_| panic!("on purpose"))
        .error_type(|_| -> Option<String> { panic!("on purpose") });
    let outcome = classified(&consumer, Err(anyhow::anyhow!("busy")));
    assert_eq!(
        outcome,
        Outcome::retry(Failure::new("busy").of_type("Error"))
    );
}

#[test]
fn what_is_fatal_needs_dlx() {
    let error = Consumer::new("orders")
        .fatal(|_| true)
        .validate()
        .unwrap_err();
    assert!(error.to_string().contains("`fatal` needs `dlx`"), "{error}");
}

#[test]
fn a_simulation_judges_as_its_consumer_does() {
    let consumer = Consumer::new("orders")
        .dlx(true)
        .rules(["error=TimedOut => fixed(7s)".parse().unwrap()])
        .fatal(|error| error.is::<ParseIntError>());
    let mut simulation = Simulation::new(consumer).unwrap();
    simulation
        .publish(Publish::to_queue("orders", "7"))
        .unwrap();
    let mut next = |answer: Result<(), anyhow::Error>| {
        let delivery = simulation.next().unwrap();
        simulation.settle(delivery.token, answer).unwrap()
    };
    let retried = next(Err(anyhow::Error::new(late()).context("the order")));
    assert!(
        matches!(retried, Step::Retried { delay } if delay == 7 * SECOND),
        "{retried:?}"
    );
    let deferred = next(Err(defer(SECOND).into()));
    assert!(matches!(deferred, Step::Deferred { .. }), "{deferred:?}");
    let parked = next(Err(seven().into()));
    assert!(
        matches!(
            parked,
            Step::Parked {
                reason: ParkReason::Fatal,
                ..
            }
        ),
        "{parked:?}"
    );
}

/// A circular chain of causes.
#[derive(Debug)]
struct Circle;

impl fmt::Display for Circle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("round")
    }
}

impl StdError for Circle {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&Circle)
    }
}

#[test]
fn a_circle_of_causes_comes_to_its_end() {
    assert_eq!(failure(of(Err(Circle))).error, "round");
}

#[tokio::test]
async fn whatever_a_handler_returns_after_its_timeout_is_ignored() {
    let limit = Duration::from_millis(10);
    for succeeds in [true, false] {
        let consumer = Consumer::new("orders")
            .dlx(true)
            .retry("fixed(1s, retries=0)".parse().unwrap())
            .handler_timeout(limit);
        let mut queue = Simulation::new(consumer).unwrap();
        queue.publish(Publish::to_queue("orders", "7")).unwrap();
        let trials = queue
            .run(|_| async {
                std::thread::sleep(2 * limit); // without a moment in which the timer could end it
                if succeeds {
                    Ok(())
                } else {
                    Err(park("broken"))
                }
            })
            .await;
        let Step::Parked { reason, message } = &trials[0].step else {
            panic!("{:?}", trials[0].step);
        };
        assert_eq!(*reason, ParkReason::Exhausted);
        let error = message.last_error().unwrap();
        assert!(error.contains("took longer than 10ms"), "{error}");
    }
}
