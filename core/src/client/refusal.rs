//! Turns what the broker or the client library says into one sentence that names the thing to change.

use std::fmt;

use lapin::{
    ErrorKind as Cause,
    protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError},
};

use super::Address;
use crate::{Error, ErrorKind};

/// What was being done, for the sentence.
#[derive(Clone, Copy)]
pub(crate) enum Doing<'a> {
    Connecting(&'a Address),
    Opening,
    Declaring(&'a str),
    Looking(&'a str),
    Exchange(&'a str),
    Binding(&'a str),
    Consuming(&'a str),
    Getting(&'a str),
    Publishing,
    Settling,
}

impl fmt::Display for Doing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting(address) => write!(f, "connecting to {}", address.authority()),
            Self::Opening => f.write_str("opening a channel"),
            Self::Declaring(queue) => write!(f, "declaring the queue `{queue}`"),
            Self::Looking(queue) => write!(f, "looking for the queue `{queue}`"),
            Self::Exchange(exchange) => write!(f, "declaring the exchange `{exchange}`"),
            Self::Binding(queue) => write!(f, "binding the queue `{queue}`"),
            Self::Consuming(queue) => write!(f, "consuming the queue `{queue}`"),
            Self::Getting(queue) => write!(f, "reading the queue `{queue}`"),
            Self::Publishing => f.write_str("publishing"),
            Self::Settling => f.write_str("settling a message"),
        }
    }
}

/// The error for `why`, which happened while `doing`.
pub(crate) fn refusal(doing: &Doing<'_>, why: lapin::Error) -> Error {
    let (kind, message) = match why.kind() {
        Cause::ProtocolError(said) => {
            let text = said.get_message().as_str();
            match said.kind() {
                AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => access_refused(doing, text),
                AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => (
                    ErrorKind::QueueNotFound,
                    format!("not found while {doing}: {text}; declare it, or leave `declare` on and let it be made"),
                ),
                AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => (
                    ErrorKind::Mismatch,
                    format!("refused while {doing}, because it exists with other arguments: {text}"),
                ),
                AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED) => {
                    (ErrorKind::AccessRefused, format!("refused while {doing}: another connection holds it alone: {text}"))
                }
                AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) if text.contains("vhost") => (
                    ErrorKind::VhostNotFound,
                    format!("refused while {doing}: {text}; create the virtual host, give the user access to it, or change it in the URL (`/` is written %2f)"),
                ),
                AMQPErrorKind::Hard(AMQPHardError::CONNECTIONFORCED) => {
                    (ErrorKind::ConnectionLost, format!("the broker closed the connection while {doing}: {text}"))
                }
                _ => (ErrorKind::Broker, format!("refused while {doing}: {text}")),
            }
        }
        Cause::InvalidChannelState(..) | Cause::InvalidConnectionState(_) | Cause::IOError(_) | Cause::MissingHeartbeatError
            if matches!(doing, Doing::Connecting(_)) =>
        {
            (ErrorKind::Unreachable, format!("the connection ended while {doing}: {why}; is the port RabbitMQ's AMQP port, with the same TLS setting?"))
        }
        Cause::ParsingError(_) if matches!(doing, Doing::Connecting(_)) => {
            (ErrorKind::Unreachable, format!("what answers while {doing} does not speak AMQP 0-9-1"))
        }
        Cause::InvalidProtocolVersion(version) => {
            (ErrorKind::Unreachable, format!("the broker speaks AMQP {version}, not 0-9-1"))
        }
        _ => (ErrorKind::ConnectionLost, format!("the connection was lost while {doing}: {why}")),
    };
    Error::new(kind, message).with_source(why)
}

fn access_refused(doing: &Doing<'_>, text: &str) -> (ErrorKind, String) {
    if let Doing::Connecting(address) = doing {
        return (
            ErrorKind::AuthenticationFailed,
            format!("the broker at {} refuses the user `{}` or its password", address.authority(), address.user()),
        );
    }
    let (permission, name) = match doing {
        Doing::Declaring(name) | Doing::Looking(name) | Doing::Exchange(name) => ("configure", *name),
        Doing::Binding(name) => ("write", *name),
        Doing::Consuming(name) | Doing::Getting(name) => ("read", *name),
        Doing::Publishing => ("write", "amq.default"),
        Doing::Connecting(_) | Doing::Opening | Doing::Settling => ("configure", ""),
    };
    (
        ErrorKind::AccessRefused,
        format!(
            "no permission while {doing}: the user's {permission} pattern must match `{name}` \
             (rabbitmqctl set_permissions); the broker said: {text}"
        ),
    )
}
