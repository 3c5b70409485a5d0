//! The ends of attempts, from the bytes of the TypeScript half.

use std::time::Duration;

use retryrmq::{Failure, Outcome, Token};
use retryrmq_bindings::{Ended, Refusal};

use crate::{
    errors::{Result, mixed_versions, thrown},
    wire::Reader,
};

/// Reads a token and the end of its attempt. What makes no sense there is a failed attempt: those behind it end as they should.
///
/// # Errors
/// When the bytes are none of an end. Where the next one begins, nobody knows then.
pub(crate) fn read(from: &mut Reader<'_>) -> Result<(Token, Outcome)> {
    let token = token(from.f64()?);
    let what = from.u8()?;
    if what == b'a' {
        return Ok((token, Outcome::Ack));
    }
    let delay = from.maybe_f64()?;
    let ended = Ended::from_letter(what).ok_or_else(mixed_versions)?;
    let failure = match ended {
        Ended::Defer => Failure::default(),
        _ => {
            let (error, error_type) = (from.text()?, from.text()?);
            let kinds = (0..from.u32()?)
                .map(|_| from.text())
                .collect::<Result<Vec<_>>>()?;
            let mut failure = Failure::new(error).of_type(error_type).also(kinds);
            failure.stack = from.maybe()?;
            failure
        }
    };
    let delay = delay
        .map(|ms| retryrmq_bindings::milliseconds("delay", ms))
        .transpose();
    let outcome = match delay {
        // Refused is only a deferral, which has no failure.
        Ok(delay) => ended
            .outcome(failure, delay)
            .unwrap_or_else(|why| failed(Failure::default(), why)),
        Err(why) => failed(failure, why),
    };
    Ok((token, outcome))
}

/// An attempt that failed by what its handler threw, or by what cannot be done about that.
fn failed(failure: Failure, why: Refusal) -> Outcome {
    let failure = match failure.error.as_str() {
        "" => Failure::new(why.message),
        _ => failure,
    };
    Outcome::Retry {
        failure,
        delay: None,
    }
}

pub(crate) fn token(number: f64) -> Token {
    // Any integer is safe; what is no integer becomes one that names nothing.
    Token::from_u64(number as u64)
}

/// Milliseconds as a duration. `option` names them in errors.
pub(crate) fn duration(option: &str, ms: f64) -> Result<Duration> {
    retryrmq_bindings::milliseconds(option, ms).map_err(thrown)
}
