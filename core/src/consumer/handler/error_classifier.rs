//! Decides from an error what happens to its message.

use std::{
    collections::HashSet,
    error::Error as StdError,
    fmt, io,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use super::{
    Cause, Signal, names, panic_text,
    signal::{Kind, Meaning},
};
use crate::retry::{Failure, Outcome, ParkReason};

type Fatal = dyn Fn(&(dyn StdError + 'static)) -> bool + Send + Sync;
type ErrorType = dyn Fn(&(dyn StdError + 'static)) -> Option<String> + Send + Sync;

/// The most causes that are followed: a chain of causes can be circular.
const LONGEST: usize = 64;

/// Decides what happens to a message whose handler returned an error: a [`Signal`] in its chain of causes comes first, then
/// [`Consumer::fatal`](crate::Consumer::fatal), and otherwise it is retried.
///
/// A consumer uses its own. Callers that run handlers themselves get it from [`Consumer::error_classifier`](crate::Consumer::error_classifier).
#[derive(Clone, Default)]
pub struct ErrorClassifier {
    fatal: Vec<Arc<Fatal>>,
    error_type: Vec<Arc<ErrorType>>,
}

impl ErrorClassifier {
    pub(in crate::consumer) fn add_fatal(
        &mut self,
        says: impl Fn(&(dyn StdError + 'static)) -> bool + Send + Sync + 'static,
    ) {
        self.fatal.push(Arc::new(says));
    }

    pub(in crate::consumer) fn add_error_type<N: Into<String>>(
        &mut self,
        names: impl Fn(&(dyn StdError + 'static)) -> Option<N> + Send + Sync + 'static,
    ) {
        self.error_type
            .push(Arc::new(move |error| names(error).map(Into::into)));
    }

    /// The outcome for this error; never [`Outcome::Ack`].
    #[must_use]
    pub fn outcome(&self, error: &(dyn StdError + 'static)) -> Outcome {
        self.typed(error, None)
    }

    /// Like [`outcome`](Self::outcome), for an error that is only text.
    pub(super) fn text(&self, error: &str) -> Outcome {
        self.outcome(&*Cause::from(error))
    }

    /// Like [`outcome`](Self::outcome), for an error whose full type name is known.
    pub(super) fn typed(
        &self,
        error: &(dyn StdError + 'static),
        type_name: Option<&'static str>,
    ) -> Outcome {
        let chain = chain(error);
        let failure = self.failure(
            &chain,
            type_name.filter(|_| !error.is::<Signal>() && !error.is::<Failure>()),
        );
        let meaning = chain.iter().find_map(|error| error.downcast_ref());
        match meaning.map(|meaning: &Meaning| &meaning.kind) {
            None if chain.iter().any(|error| self.is_fatal(*error)) => Outcome::fatal(failure),
            None => Outcome::retry(failure),
            Some(Kind::RetryAfter(delay)) => Outcome::Retry {
                failure,
                delay: Some(*delay),
            },
            Some(Kind::Defer(delay)) => Outcome::Defer { delay: *delay },
            Some(Kind::Fatal) => Outcome::fatal(failure),
            Some(Kind::Undecodable) => Outcome::undecodable(failure),
            Some(Kind::Park(why)) => Outcome::Park {
                reason: ParkReason::Requested,
                failure: Failure {
                    error: why.clone(),
                    // A reason without an error has no type.
                    error_type: Some(failure.error_type)
                        .filter(|name| name != PLAIN)
                        .unwrap_or_default(),
                    ..failure
                },
            },
        }
    }

    fn failure(&self, chain: &[&(dyn StdError + 'static)], type_name: Option<&str>) -> Failure {
        let mut kinds: Vec<String> = Vec::new();
        let mut texts: Vec<String> = Vec::new();
        let mut stack = None;
        let mut named = None;
        for (depth, error) in chain.iter().enumerate() {
            // A signal stands for its cause, and its meaning is not a cause.
            if !error.is::<Meaning>() {
                let text = error.to_string();
                if texts.last() != Some(&text) {
                    texts.push(text);
                }
            }
            if let Some(failure) = error.downcast_ref::<Failure>() {
                named = named.or(Some(&failure.error_type));
                stack = stack.or(failure.stack.as_ref());
                kinds.push(failure.error_type.clone());
                kinds.extend(failure.kinds.iter().cloned());
            }
            kinds.extend(self.own_names(*error));
            let known = names::of(*error);
            if let Some(name) = type_name.filter(|_| depth == 0 && known.is_empty()) {
                kinds.push(names::short(name));
                kinds.push(name.to_owned());
            }
            kinds.extend(known);
        }
        let error_type = named
            .or(kinds.first())
            .cloned()
            .unwrap_or_else(|| PLAIN.to_owned());
        let mut seen = HashSet::from([String::new(), error_type.clone()]);
        kinds.retain(|name| seen.insert(name.clone()));
        let mut failure = Failure::new(texts.first().cloned().unwrap_or_default())
            .of_type(error_type)
            .also(kinds);
        failure.stack = stack
            .cloned()
            .or_else(|| (texts.len() > 1).then(|| texts.join("\ncaused by: ")));
        failure
    }

    /// A function that panics decides nothing.
    fn is_fatal(&self, error: &(dyn StdError + 'static)) -> bool {
        self.fatal
            .iter()
            .any(|says| asked("fatal", || says(error)).unwrap_or(false))
    }

    fn own_names(&self, error: &(dyn StdError + 'static)) -> impl Iterator<Item = String> {
        self.error_type
            .iter()
            .filter_map(move |names| asked("error_type", || names(error)).flatten())
    }
}

impl fmt::Debug for ErrorClassifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ErrorClassifier")
            .field("fatal", &self.fatal.len())
            .field("error_type", &self.error_type.len())
            .finish()
    }
}

/// The type of an error without one of its own. JavaScript uses the same word, so equal failures have equal fingerprints in every language.
const PLAIN: &str = "Error";

/// The error and its causes, outermost first.
fn chain<'a>(error: &'a (dyn StdError + 'static)) -> Vec<&'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| {
        // An io::Error stands for the error inside it, and leaves it out of the chain.
        let within = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::get_ref);
        match within {
            Some(within) => Some(within as &'a (dyn StdError + 'static)),
            None => error.source(),
        }
    })
    .take(LONGEST)
    .collect()
}

fn asked<T>(option: &str, ask: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(ask))
        .inspect_err(|panic| {
            let panic = panic_text(&**panic);
            tracing::error!(option, panic, "a function of the consumer panicked; the error counts as one that it says nothing of");
        })
        .ok()
}
