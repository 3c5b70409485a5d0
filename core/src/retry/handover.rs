//! What a consumer asks of a service when it hands a message over, and how that is written and read (section 12 of PROTOCOL).

use std::time::Duration;

use lapin::types::FieldTable;

use super::{Failure, Limits, MAX_DELAY, MILLISECOND, Outcome, ParkReason, RetryState, headers};

/// What a service is asked to do with a message that a consumer handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handover {
    /// The attempt failed. The service's policy decides what follows.
    Retry {
        /// A delay chosen by the handler; `None` for the delay of the policy.
        delay: Option<Duration>,
    },
    /// Park it with this reason.
    Park(ParkReason),
    /// Bring it back after `delay`; no attempt is used up.
    Defer {
        /// How long to wait.
        delay: Duration,
    },
    /// It never ran. Bring it back soon, with its crashes unchanged.
    Detour,
}

impl Handover {
    /// The outcome of this attempt, with its `failure`; `None` if it never ran.
    #[must_use]
    pub fn outcome(self, failure: Failure) -> Option<Outcome> {
        match self {
            Self::Retry { delay } => Some(Outcome::Retry { failure, delay }),
            Self::Park(reason) => Some(Outcome::Park { reason, failure }),
            Self::Defer { delay } => Some(Outcome::Defer { delay }),
            Self::Detour => None,
        }
    }

    /// The word used in the header.
    pub(crate) const fn as_str(&self) -> &'static str {
        match self {
            Self::Retry { .. } => "retry",
            Self::Park(_) => "park",
            Self::Defer { .. } => "defer",
            Self::Detour => "detour",
        }
    }

    /// Whether it comes with a failure.
    pub(crate) const fn is_failure(&self) -> bool {
        matches!(self, Self::Retry { .. } | Self::Park(_))
    }

    /// The delay in whole milliseconds, rounded up.
    pub(crate) fn after_ms(&self) -> Option<i64> {
        let (Self::Retry { delay: Some(delay) } | Self::Defer { delay }) = self else {
            return None;
        };
        let delay = (*delay).clamp(MILLISECOND, MAX_DELAY);
        i64::try_from(delay.as_nanos().div_ceil(1_000_000)).ok()
    }

    /// Reads what a message in the service's queue asks for. `Err` says why it cannot be done.
    pub(crate) fn read(table: &FieldTable) -> Result<Self, String> {
        let after = match table.inner().get(headers::AFTER).map(headers::integer) {
            None => None,
            Some(Some(ms)) if ms > 0 => {
                let ms = u64::try_from(ms).unwrap_or(u64::MAX);
                Some(Duration::from_millis(ms).min(MAX_DELAY))
            }
            Some(_) => return Err(format!("{} is no time in milliseconds", headers::AFTER)),
        };
        let word = headers::string(table, headers::HANDOVER);
        match word.as_deref() {
            Some("retry") => Ok(Self::Retry { delay: after }),
            Some("park") => headers::string(table, headers::PARKED_REASON)
                .and_then(|reason| ParkReason::parse(&reason))
                .map(Self::Park)
                .ok_or_else(|| format!("{} is no reason", headers::PARKED_REASON)),
            Some("defer") => after
                .map(|delay| Self::Defer { delay })
                .ok_or_else(|| format!("{} is missing", headers::AFTER)),
            Some("detour") => Ok(Self::Detour),
            Some(_) => Err(format!("{} is a word that is not known", headers::HANDOVER)),
            None => Err(format!("{} is missing", headers::HANDOVER)),
        }
    }

    /// The failure that the consumer wrote on a message when it handed it over.
    pub(crate) fn failure(table: &FieldTable) -> Failure {
        let text = |name| headers::string(table, name).unwrap_or_default();
        let mut failure = Failure::new(text(headers::ERROR)).of_type(text(headers::ERROR_TYPE));
        failure.stack = headers::string(table, headers::ERROR_STACK);
        failure.is_recorded = true;
        failure
    }
}

/// What the service is asked to do after this outcome, and with which failure; `None` after a success. It decides only what needs no
/// policy: the service has that.
pub(crate) fn hand_over(
    state: &RetryState,
    outcome: &Outcome,
    limits: &Limits,
    is_mended: bool,
) -> Option<(Handover, Failure)> {
    let asked = match outcome {
        Outcome::Ack => return None,
        // The copy is repaired for good, and its next reader could not see that it once was broken.
        Outcome::Retry { failure, .. } if is_mended => {
            (Handover::Park(ParkReason::Undecodable), failure.clone())
        }
        Outcome::Retry { failure, delay } => (Handover::Retry { delay: *delay }, failure.clone()),
        Outcome::Park { reason, failure } => (Handover::Park(*reason), failure.clone()),
        Outcome::Defer { .. } if state.deferrals >= limits.deferrals => {
            let why = format!("it was deferred {} times", state.deferrals);
            (Handover::Park(ParkReason::Exhausted), Failure::new(why))
        }
        Outcome::Defer { delay } => (Handover::Defer { delay: *delay }, Failure::default()),
    };
    Some(asked)
}

#[cfg(test)]
mod tests {
    use lapin::types::AMQPValue;
    use proptest::prelude::*;

    use super::*;

    fn table(entries: &[(&str, AMQPValue)]) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in entries {
            table.insert((*name).into(), value.clone());
        }
        table
    }

    fn text(text: &str) -> AMQPValue {
        AMQPValue::LongString(text.into())
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let retry = (headers::HANDOVER, text("retry"));
        for (entries, says) in [
            (&[][..], "x-retry-handover is missing"),
            (&[(headers::HANDOVER, text("eat"))], "not known"),
            (&[(headers::HANDOVER, AMQPValue::LongInt(1))], "is missing"),
            (&[(headers::HANDOVER, text("park"))], "no reason"),
            (&[(headers::HANDOVER, text("defer"))], "x-retry-after"),
            (
                &[retry.clone(), (headers::AFTER, AMQPValue::LongInt(0))],
                "no time",
            ),
            (&[retry.clone(), (headers::AFTER, text("1s"))], "no time"),
        ] {
            let why = Handover::read(&table(entries)).unwrap_err();
            assert!(why.contains(says), "{entries:?}: {why}");
        }
        let long = [retry, (headers::AFTER, AMQPValue::LongLongInt(i64::MAX))];
        let delay = Some(MAX_DELAY);
        assert_eq!(Handover::read(&table(&long)), Ok(Handover::Retry { delay }));
    }

    proptest! {
        #[test]
        fn any_headers_are_read_or_refused(word in "\\PC{0,20}", after in any::<i64>()) {
            let entries = [(headers::HANDOVER, text(&word)), (headers::AFTER, AMQPValue::LongLongInt(after))];
            let _ = Handover::read(&table(&entries));
        }
    }
}
