//! The end of an attempt, as a language's half reports it.

use std::time::Duration;

use retryrmq::{Failure, Outcome};

use crate::BindingError;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndKind {
    /// Handled.
    Ack,
    /// Failed, to be retried.
    Retry,
    /// Given up by the handler.
    Park,
    /// Failed in a way that no retry can fix.
    Fatal,
    /// Deferred.
    Defer,
    /// Its body is not what the handler reads.
    Undecodable,
}

impl EndKind {
    /// By the first letter of its name, in lower case.
    #[must_use]
    pub fn from_letter(letter: u8) -> Option<Self> {
        Some(match letter {
            b'a' => Self::Ack,
            b'r' => Self::Retry,
            b'p' => Self::Park,
            b'f' => Self::Fatal,
            b'd' => Self::Defer,
            b'u' => Self::Undecodable,
            _ => return None,
        })
    }

    /// The outcome for the core.
    ///
    /// # Errors
    /// `invalid_option` for a deferral without a delay: it would come back at once, again and again. Then nothing is settled.
    pub fn outcome(
        self,
        failure: Failure,
        delay: Option<Duration>,
    ) -> Result<Outcome, BindingError> {
        Ok(match self {
            Self::Ack => Outcome::Ack,
            Self::Retry => Outcome::Retry { failure, delay },
            Self::Park => Outcome::park(failure),
            Self::Fatal => Outcome::fatal(failure),
            Self::Undecodable => Outcome::undecodable(failure),
            Self::Defer => Outcome::Defer {
                delay: delay.ok_or_else(|| BindingError::option("`delay` of a Defer is None"))?,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deferral_without_a_delay_is_refused_and_all_else_has_an_outcome() {
        for letter in b"arpfu" {
            let ended = EndKind::from_letter(*letter).unwrap();
            ended.outcome(Failure::new("no"), None).unwrap();
        }
        let refused = EndKind::Defer
            .outcome(Failure::default(), None)
            .unwrap_err();
        assert_eq!(refused.code, "invalid_option");
        assert_eq!(EndKind::from_letter(b'x'), None);
    }
}
