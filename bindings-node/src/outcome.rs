//! The ends of attempts, from the bytes of the TypeScript half.

use std::time::Duration;

use retryrmq::{Failure, Outcome, ParkReason, Token};

use crate::{
    errors::{Result, bad_option, mixed_versions},
    wire::Reader,
};

/// Reads a token and the end of its attempt.
pub(crate) fn read(from: &mut Reader<'_>) -> Result<(Token, Outcome)> {
    let token = token(from.f64()?);
    let what = from.u8()?;
    if what == b'a' {
        return Ok((token, Outcome::Ack));
    }
    let delay = from
        .maybe_f64()?
        .map(|ms| duration("delay", ms))
        .transpose()?;
    if what == b'd' {
        let delay = delay.unwrap_or_default();
        return Ok((token, Outcome::Defer { delay }));
    }
    let error = from.text()?;
    let error_type = from.text()?;
    let kinds = (0..from.u32()?)
        .map(|_| from.text())
        .collect::<Result<Vec<_>>>()?;
    let mut failure = Failure::new(error).of_type(error_type).also(kinds);
    failure.stack = from.maybe()?;
    let parked = |reason, failure| Outcome::Park { reason, failure };
    let outcome = match what {
        b'r' => Outcome::Retry { failure, delay },
        b'p' => parked(ParkReason::Requested, failure),
        b'f' => parked(ParkReason::Fatal, failure),
        _ => return Err(mixed_versions()),
    };
    Ok((token, outcome))
}

pub(crate) fn token(number: f64) -> Token {
    // Any integer is safe; what is no integer becomes one that names nothing.
    Token::from_u64(number as u64)
}

/// Milliseconds as a duration. `option` names them in errors.
pub(crate) fn duration(option: &str, ms: f64) -> Result<Duration> {
    Duration::try_from_secs_f64(ms / 1000.0).map_err(|_| {
        bad_option(format!(
            "`{option}` cannot be {ms} ms; it must be a duration of at least 0"
        ))
    })
}
