//! What Redis and the way to it say when they refuse, as one sentence.

use std::{io, path::Path};

use redis::{ErrorKind, RedisError, ServerError};

use crate::store::Error;

/// The connection did not come about.
pub(super) fn connecting(address: &str, why: &RedisError) -> Error {
    match why.kind() {
        ErrorKind::AuthenticationFailed => Error::Refused(format!(
            "Redis at {address} refuses the user or the password; change `username`, `password_file` or `password_env`"
        )),
        ErrorKind::InvalidClientConfig => Error::Configuration(format!(
            "the connection to Redis at {address} cannot be set up: {}",
            quoted(why)
        )),
        _ if why.code() == Some("NOAUTH") => Error::Refused(format!(
            "Redis at {address} wants a password; set `password_file` or `password_env`"
        )),
        _ => Error::Away(format!(
            "Redis at {address} cannot be reached: {}",
            quoted(why)
        )),
    }
}

/// A file that the configuration names was not read. One that does not answer in time may do so later.
pub(super) fn unread(what: &str, file: &Path, why: &io::Error) -> Error {
    let sentence = format!("{what} cannot be read from {}: {why}", file.display());
    match why.kind() {
        io::ErrorKind::TimedOut => Error::Away(sentence),
        _ => Error::Configuration(sentence),
    }
}

/// The connection broke.
pub(super) fn lost(address: &str, why: &RedisError) -> Error {
    Error::Away(format!(
        "Redis at {address} does not answer: {}",
        quoted(why)
    ))
}

fn quoted(why: &RedisError) -> String {
    why.to_string().trim_end_matches(['.', ' ']).to_owned()
}

/// The server does not do what it was told.
pub(super) fn refused(address: &str, why: &ServerError) -> Error {
    let said = why.details().unwrap_or_default();
    match why.code() {
        "OOM" => Error::Full(format!(
            "Redis at {address} has no memory left; raise `maxmemory`, or let what waits go out"
        )),
        "NOAUTH" => Error::Refused(format!(
            "Redis at {address} wants a password; set `password_file` or `password_env`"
        )),
        "NOPERM" => Error::Refused(format!(
            "the user lacks a permission at Redis at {address}: {said}"
        )),
        "NOREPLICAS" => Error::NotDurable(format!(
            "Redis at {address} has too few good replicas to write (`min-replicas-to-write`)"
        )),
        "MISCONF" => Error::Refused(format!(
            "Redis at {address} cannot write to its disk: {said}"
        )),
        code if MOVED.contains(&code) => Error::Away(format!(
            "Redis at {address} does not serve our keys now: {code} {said}"
        )),
        code => Error::Refused(format!("Redis at {address} says {code} {said}")),
    }
}

/// The answers of a server that is not, not yet or no more the master of our slot.
const MOVED: [&str; 8] = [
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "CLUSTERDOWN",
    "READONLY",
    "LOADING",
    "MASTERDOWN",
    "UNBLOCKED",
];

/// An answer of another form than the command has.
pub(super) fn unexpected(address: &str) -> Error {
    Error::Refused(format!(
        "what answers at {address} does not answer as Redis does"
    ))
}
