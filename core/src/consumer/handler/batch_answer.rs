//! What a handler of batches may return.

use super::{ErrorClassifier, IntoOutcome};
use crate::retry::{Failure, Outcome};

/// What a handler of batches may return.
///
/// | the answer | the messages |
/// |---|---|
/// | `()`, or `Ok(())` | all succeeded |
/// | `Err`, or one [`Outcome`] | all end like this |
/// | `Vec` of what a handler of single messages may return | each ends like its own answer; they are in the order of the messages |
/// | `Ok` with such a `Vec` | the same |
///
/// If the number of answers is not the number of messages, nobody knows which answer is whose: all have failed, with the error type
/// `BatchAnswerError`.
///
/// ```no_run
/// # use retryrmq::{Consumer, Message};
/// # async fn store(_: &[Message]) -> std::io::Result<()> { Ok(()) }
/// # fn check(_: &Message) -> std::io::Result<()> { Ok(()) }
/// # async fn examples(orders: Consumer, mails: Consumer) -> retryrmq::Result<()> {
/// // All or none.
/// orders.batch(100).start_batches(|orders: Vec<Message>| async move { store(&orders).await }).await?;
/// // Each on its own.
/// mails.batch(100).start_batches(|mails: Vec<Message>| async move { mails.iter().map(check).collect::<Vec<_>>() }).await?;
/// # Ok(())
/// # }
/// ```
///
/// As for [`IntoOutcome`], the parameter `By` only tells these kinds of answers apart, and is always inferred.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not say how the attempts of a batch ended",
    label = "this handler returns neither `()`, `Result<(), E>` nor an answer for each message",
    note = "an answer for each message is a `Vec<Result<(), E>>`, a `Vec<Outcome>`, or a `Result` with one of them"
)]
pub trait IntoOutcomes<By = OfNothing> {
    /// The outcomes of the `count` messages of the batch, in their order. `classifier` says what an error means.
    fn into_outcomes(self, count: usize, classifier: &ErrorClassifier) -> Vec<Outcome>;
}

/// There is no answer.
#[derive(Debug)]
pub enum OfNothing {}

/// One answer for all.
#[derive(Debug)]
pub enum OfAll {}

/// An answer for each.
#[derive(Debug)]
pub enum OfEach {}

/// A result with an answer for each.
#[derive(Debug)]
pub enum OfEachOrAll {}

impl IntoOutcomes for () {
    fn into_outcomes(self, count: usize, _: &ErrorClassifier) -> Vec<Outcome> {
        vec![Outcome::Ack; count]
    }
}

impl<A: IntoOutcome<By>, By> IntoOutcomes<(OfAll, By)> for A {
    fn into_outcomes(self, count: usize, classifier: &ErrorClassifier) -> Vec<Outcome> {
        vec![self.into_outcome(classifier); count]
    }
}

impl<A: IntoOutcome<By>, By> IntoOutcomes<(OfEach, By)> for Vec<A> {
    fn into_outcomes(self, count: usize, classifier: &ErrorClassifier) -> Vec<Outcome> {
        let answers = self.into_iter();
        let outcomes = answers.map(|answer| answer.into_outcome(classifier));
        one_for_each(outcomes.collect(), count)
    }
}

/// The outcomes, if there is one for each of `count` messages. Otherwise nobody knows which is whose, and all have failed.
pub(super) fn one_for_each(outcomes: Vec<Outcome>, count: usize) -> Vec<Outcome> {
    if outcomes.len() == count {
        return outcomes;
    }
    let failure = Failure::new(format!(
        "the handler answered {} of {count} messages; return one answer for each, in their order",
        outcomes.len()
    ));
    vec![Outcome::retry(failure.of_type("BatchAnswerError")); count]
}

impl<A, E, By, ByAll> IntoOutcomes<(OfEachOrAll, By, ByAll)> for Result<Vec<A>, E>
where
    A: IntoOutcome<By>,
    Result<(), E>: IntoOutcome<ByAll>,
{
    fn into_outcomes(self, count: usize, classifier: &ErrorClassifier) -> Vec<Outcome> {
        match self {
            Ok(answers) => answers.into_outcomes(count, classifier),
            Err(error) => Err::<(), E>(error).into_outcomes(count, classifier),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{borrow::Cow, error::Error, io, time::Duration};

    use super::*;
    use crate::{Signal, park, retry_after};

    fn of<By>(answer: impl IntoOutcomes<By>) -> Vec<Outcome> {
        answer.into_outcomes(2, &ErrorClassifier::default())
    }

    fn failures(outcomes: Vec<Outcome>) -> Vec<Failure> {
        let failures = outcomes.into_iter().map(|outcome| match outcome {
            Outcome::Retry { failure, .. } => failure,
            other => panic!("{other:?}"),
        });
        failures.collect()
    }

    #[test]
    fn one_answer_is_for_all() {
        for outcomes in [
            of(()),
            of(Ok::<(), io::Error>(())),
            of(Ok::<(), &str>(())),
            of(Ok::<(), anyhow::Error>(())),
            of(Ok::<Vec<Outcome>, io::Error>(vec![Outcome::Ack; 2])),
            of(Outcome::Ack),
        ] {
            assert_eq!(outcomes, [Outcome::Ack, Outcome::Ack]);
        }
        let full = || io::Error::other("the disk is full");
        for outcomes in [
            of(Err::<(), _>(full())),
            of(Err::<(), _>(anyhow::Error::new(full()))),
            of(Err::<(), Box<dyn Error + Send + Sync>>(full().into())),
            of(Err::<Vec<Outcome>, _>(full())),
            of(Err::<Vec<Result<(), String>>, _>(
                anyhow::Error::new(full()),
            )),
            of(Err::<(), _>("the disk is full")),
            of(Err::<(), _>("the disk is full".to_owned())),
            of(Err::<(), Cow<'_, str>>("the disk is full".into())),
        ] {
            let failures = failures(outcomes);
            assert_eq!(failures.len(), 2);
            assert!(failures.iter().all(|one| one.error == "the disk is full"));
        }
    }

    #[test]
    fn each_answer_is_for_its_message() {
        let wait = Duration::from_secs(7);
        let outcomes = of(vec![Ok(()), Err(retry_after(wait, "busy"))]);
        let later = |delay: &Option<Duration>| *delay == Some(wait);
        assert!(
            matches!(&outcomes[..], [Outcome::Ack, Outcome::Retry { delay, .. }] if later(delay)),
            "{outcomes:?}"
        );
        let outcomes = of(Ok::<_, io::Error>(vec![
            Err::<(), Signal>(park("no such customer")),
            Ok(()),
        ]));
        assert!(
            matches!(outcomes[..], [Outcome::Park { .. }, Outcome::Ack]),
            "{outcomes:?}"
        );
    }

    #[test]
    fn answers_that_are_not_one_for_each_are_of_no_message() {
        for count in [0, 1, 3] {
            let failures = failures(of(vec![Outcome::Ack; count]));
            assert_eq!(failures.len(), 2);
            let failure = &failures[0];
            assert_eq!(failure.error_type, "BatchAnswerError");
            let said = format!("answered {count} of 2 messages");
            assert!(failure.error.contains(&said), "{failure:?}");
        }
    }
}
