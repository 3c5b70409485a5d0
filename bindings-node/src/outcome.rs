//! The ends of attempts, from the bytes of the TypeScript half.

use std::time::Duration;

use retryrmq::{Failure, Outcome, Token};
use retryrmq_bindings::{BindingError, EndKind};

use crate::{
    byte_reader::Reader,
    errors::{Result, mixed_versions, thrown},
};

/// Reads a token and the end of its attempt. An end that makes no sense is a failed attempt, so that the ends behind it can still be read.
///
/// # Errors
/// If the bytes are not an end. Then nobody knows where the next one begins.
pub(crate) fn read(from: &mut Reader<'_>) -> Result<(Token, Outcome)> {
    let token = token(from.f64()?);
    let what = from.u8()?;
    if what == b'a' {
        return Ok((token, Outcome::Ack));
    }
    let delay = from.maybe_f64()?;
    let ended = EndKind::from_letter(what).ok_or_else(mixed_versions)?;
    let failure = match ended {
        EndKind::Defer => Failure::default(),
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
        // Only a deferral can be refused, and it has no failure.
        Ok(delay) => ended
            .outcome(failure, delay)
            .unwrap_or_else(|why| failed(Failure::default(), why)),
        Err(why) => failed(failure, why),
    };
    Ok((token, outcome))
}

/// A failed attempt: by its handler's error, or by what is wrong with its end.
fn failed(failure: Failure, why: BindingError) -> Outcome {
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
    // Any integer is safe; other numbers become a token that names nothing.
    Token::from_u64(number as u64)
}

/// Milliseconds as a duration. `option` names them in errors.
pub(crate) fn duration(option: &str, ms: f64) -> Result<Duration> {
    retryrmq_bindings::milliseconds(option, ms).map_err(thrown)
}
