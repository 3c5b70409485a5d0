//! Turns an answer of the broker or the client library into one sentence that names what to change.

use std::{error, fmt, time::Duration};

use lapin::{
    ErrorKind as Cause,
    protocol::{AMQPError, AMQPErrorKind, AMQPHardError, AMQPSoftError},
};

use tokio_rustls::rustls;

use super::Address;
use crate::{Error, ErrorKind, queue_names::work_queue_of};

/// What was being done, for the sentence.
#[derive(Clone, Copy)]
pub(crate) enum Operation<'a> {
    /// Connecting to this address as this user.
    Connecting(&'a Address, &'a str),
    Opening,
    Declaring(&'a str),
    Looking(&'a str),
    Exchange(&'a str),
    Binding(&'a str),
    Consuming(&'a str),
    Publishing,
    Settling,
}

impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connecting(address, _) => write!(f, "connecting to {}", address.authority()),
            Self::Opening => f.write_str("opening a channel"),
            Self::Declaring(queue) => write!(f, "declaring the queue `{queue}`"),
            Self::Looking(queue) => write!(f, "looking for the queue `{queue}`"),
            Self::Exchange(exchange) => write!(f, "declaring the exchange `{exchange}`"),
            Self::Binding(queue) => write!(f, "binding the queue `{queue}`"),
            Self::Consuming(queue) => write!(f, "consuming the queue `{queue}`"),
            Self::Publishing => f.write_str("publishing"),
            Self::Settling => f.write_str("settling a message"),
        }
    }
}

impl Operation<'_> {
    /// The queue or exchange that a refusal would name.
    fn name(&self) -> Option<&str> {
        match self {
            Self::Declaring(name)
            | Self::Looking(name)
            | Self::Exchange(name)
            | Self::Binding(name)
            | Self::Consuming(name) => Some(name),
            Self::Connecting(..) | Self::Opening | Self::Publishing | Self::Settling => None,
        }
    }
}

/// All that RabbitMQ says when it fails to say why it refuses something.
const UNSAID: &str = "INTERNAL_ERROR";

/// How long the text of a refusal may be, in bytes.
pub(super) const LONGEST_TEXT: usize = 255;

/// Whether a refusal that names this queue or exchange may be too long. A refusal of other arguments is longer than that of a missing queue,
/// by both values.
fn may_be_too_long_to_say(name: &str) -> bool {
    const WITH_VALUES: usize = 40;
    !name.is_ascii() && name.len() >= WITH_VALUES
}

fn too_long_to_say(doing: &Operation<'_>) -> (ErrorKind, String) {
    (
        ErrorKind::TooLarge,
        format!(
            "the broker closed the connection while {doing}: {UNSAID}. RabbitMQ 4 does so if a queue or exchange with a long name that is not \
             ASCII is missing or differs, because its answer would be longer than {LONGEST_TEXT} bytes; use a shorter name, or ASCII"
        ),
    )
}

/// Whether a limit of connections was reached. The text may also contain the name of a virtual host.
fn is_a_limit(text: &str) -> bool {
    text.contains("connection limit (") && text.contains(") is reached")
}

/// Whether a limit of channels was reached that is not that of one connection: a user's `max-channels`, or that of a node.
pub(super) fn is_a_limit_of_channels(text: &str) -> bool {
    text.contains("number of channels opened") && text.contains("has reached the maximum allowed")
}

/// The answer to a connection too many. It may be let in later: closed ones count until the broker has noticed. But nobody waits in vain
/// without knowing that those which fill the limit may be our own.
fn limited(doing: &Operation<'_>, text: &str) -> (ErrorKind, String) {
    (
        ErrorKind::Unreachable,
        format!(
            "refused while {doing}: {text}; close other connections, or raise the limit (`max-connections`): a client has two connections, \
             to consume and to publish, and opens a third to check queues, so that the limit must allow three"
        ),
    )
}

/// The error for `why`, which happened during `doing`.
pub(crate) fn refusal(doing: &Operation<'_>, why: lapin::Error) -> Error {
    let (kind, message) = match why.kind() {
        Cause::ProtocolError(said) => {
            let text = said.get_message().as_str();
            match said.kind() {
                AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => access_refused(doing, text),
                AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND) => not_found(doing, text),
                AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED) => {
                    precondition_failed(doing, text)
                }
                AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED) => (
                    ErrorKind::AccessRefused,
                    format!(
                        "refused while {doing}: another connection uses it exclusively; close that connection: {text}"
                    ),
                ),
                AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) if is_a_limit(text) => {
                    limited(doing, text)
                }
                AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) if is_a_limit_of_channels(text) => (
                    ErrorKind::Unreachable,
                    format!(
                        "refused while {doing}: {text}; the broker closed the connection; every consumer takes a channel, every look at queues \
                         one for a moment, and publishing at least one: raise the limit (`max-channels`), or run fewer of them"
                    ),
                ),
                AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) if text.contains("vhost") => (
                    ErrorKind::VhostNotFound,
                    format!(
                        "refused while {doing}: {text}; create the virtual host, give the user access to it, or change it in the URL (`/` is written %2f)"
                    ),
                ),
                // Mostly a virtual host that starts after its node, or is down on this node: `vhost 'v' is down`.
                AMQPErrorKind::Hard(AMQPHardError::INTERNALERROR)
                    if matches!(doing, Operation::Connecting(..)) =>
                {
                    (
                        ErrorKind::Unreachable,
                        format!("the broker cannot serve this yet while {doing}: {text}"),
                    )
                }
                AMQPErrorKind::Hard(AMQPHardError::INTERNALERROR)
                    if text == UNSAID && doing.name().is_some_and(may_be_too_long_to_say) =>
                {
                    too_long_to_say(doing)
                }
                // Frames for a channel that the broker had closed already, often another channel of ours.
                AMQPErrorKind::Hard(
                    AMQPHardError::CONNECTIONFORCED | AMQPHardError::CHANNELERROR,
                ) => (
                    ErrorKind::ConnectionLost,
                    format!("the broker closed the connection while {doing}: {text}"),
                ),
                _ => (ErrorKind::Broker, format!("refused while {doing}: {text}")),
            }
        }
        // With TLS 1.3 a server refuses a client's certificate only after the client's handshake.
        Cause::IOError(io)
            if matches!(doing, Operation::Connecting(..))
                && io
                    .get_ref()
                    .is_some_and(|inner| inner.is::<rustls::Error>()) =>
        {
            (
                ErrorKind::TlsFailed,
                format!(
                    "TLS ended while {doing}: {io}; does the server want another certificate (`certfile`, `keyfile`)?"
                ),
            )
        }
        Cause::InvalidChannelState(..)
        | Cause::InvalidConnectionState(_)
        | Cause::IOError(_)
        | Cause::MissingHeartbeatError
            if matches!(doing, Operation::Connecting(..)) =>
        {
            (
                ErrorKind::Unreachable,
                format!(
                    "the connection ended while {doing}: {why}; is the port RabbitMQ's AMQP port, with the same TLS setting?"
                ),
            )
        }
        Cause::ParsingError(_) if matches!(doing, Operation::Connecting(..)) => (
            ErrorKind::Unreachable,
            format!("what answers while {doing} does not speak AMQP 0-9-1"),
        ),
        // Channels that are about to close count, so a moment may help.
        Cause::ChannelsLimitReached => (
            ErrorKind::Unreachable,
            format!(
                "no channel is left while {doing}: every consumer takes one, and the limit (`channel_max`, 2047 by default) is reached; \
                 raise it, or use more clients"
            ),
        ),
        Cause::InvalidProtocolVersion(version) => (
            ErrorKind::Unreachable,
            format!("the broker speaks AMQP {version}, not 0-9-1"),
        ),
        _ => (
            ErrorKind::ConnectionLost,
            format!("the connection was lost while {doing}: {why}"),
        ),
    };
    let missing_exchange = kind == ErrorKind::Unroutable;
    let error = Error::new(kind, message).with_source(why);
    // Anybody may create a queue; an exchange is its owner's to create.
    if missing_exchange {
        error.lasting()
    } else {
        error
    }
}

/// The largest body that the broker accepts, if its refusal says so: `message size 20001 is larger than configured max size 20000`, or
/// without `configured`.
pub(crate) fn size_limit(why: &lapin::Error) -> Option<usize> {
    let Cause::ProtocolError(said) = why.kind() else {
        return None;
    };
    largest(said.get_message().as_str())
}

/// What the broker said. The error's own text also has names in it, which may be anything.
fn protocol_error(error: &Error) -> Option<&AMQPError> {
    let mut why = error::Error::source(error);
    while let Some(one) = why {
        if let Some(lapin) = one.downcast_ref::<lapin::Error>() {
            return match lapin.kind() {
                Cause::ProtocolError(said) => Some(said),
                _ => None,
            };
        }
        why = one.source();
    }
    None
}

/// Whether the broker's words, behind the name of its code, begin so.
pub(crate) fn broker_says(error: &Error, words: &str) -> bool {
    protocol_error(error)
        .is_some_and(|said| without_code(said.get_message().as_str()).starts_with(words))
}

/// `PRECONDITION_FAILED - inequivalent arg …` without the first of these words.
fn without_code(text: &str) -> &str {
    text.split_once(" - ").map_or(text, |(_, words)| words)
}

/// Whether the broker closed the connection because of an error of its own (541).
pub(crate) fn is_internal_error(error: &Error) -> bool {
    internal_error(error).is_some()
}

/// Whether the broker gave no reason for that, because a process of its own crashed. That happens when it should deliver a message that it cannot
/// convert to AMQP 0-9-1, and also, on some versions, when the queue has no leader. Other versions say that they failed to consume from it.
pub(crate) fn is_crash(error: &Error) -> bool {
    internal_error(error).is_some_and(|text| text == UNSAID)
}

/// What the broker says of an error of its own.
fn internal_error(error: &Error) -> Option<&str> {
    let internal = AMQPErrorKind::Hard(AMQPHardError::INTERNALERROR);
    let said = protocol_error(error).filter(|said| *said.kind() == internal)?;
    Some(said.get_message().as_str())
}

/// The error for a connection that the broker closed because of an error of its own that is about something else.
pub(crate) fn closed_by_broker(why: Error) -> Error {
    let said = internal_error(&why).unwrap_or_default();
    let message = format!("the broker closed the connection: {said}");
    Error::new(ErrorKind::ConnectionLost, message).with_source(why)
}

/// Whether another connection uses the queue exclusively, so that no permission would help.
pub(crate) fn is_locked(error: &Error) -> bool {
    let locked = AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED);
    protocol_error(error).is_some_and(|said| *said.kind() == locked)
}

/// Whether the broker closed the connection because of one consumer too many on a channel: `reached maximum (1) of consumers per channel`.
pub(crate) fn is_one_consumer_too_many(error: &Error) -> bool {
    broker_says(error, "reached maximum (")
}

/// After how long the broker takes a delivery back that is not settled, if it closed the channel because of that and says so.
pub(crate) fn consumer_timeout(error: &Error) -> Option<Duration> {
    timeout_in(without_code(protocol_error(error)?.get_message().as_str()))
}

/// `delivery acknowledgement on channel 1 timed out. Timeout value used: 3000 ms.`
fn timeout_in(words: &str) -> Option<Duration> {
    let rest = words.strip_prefix("delivery acknowledgement on channel ")?;
    let (_, rest) = rest.split_once("Timeout value used: ")?;
    let digits = rest
        .find(|sign: char| !sign.is_ascii_digit())
        .unwrap_or(rest.len());
    rest[..digits].parse().ok().map(Duration::from_millis)
}

fn largest(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("message size ")?;
    let (_, largest) = rest.split_once("max size ")?;
    let digits = largest
        .find(|sign: char| !sign.is_ascii_digit())
        .unwrap_or(largest.len());
    largest[..digits].parse().ok()
}

fn not_found(doing: &Operation<'_>, text: &str) -> (ErrorKind, String) {
    if matches!(doing, Operation::Publishing) {
        return (
            ErrorKind::Unroutable,
            format!("nothing takes the message: {text}; declare the exchange first"),
        );
    }
    if is_absent(text) {
        return (
            ErrorKind::QueueNotFound,
            format!(
                "not found while {doing}: {text}; declare it, or leave `declare` on and it is created"
            ),
        );
    }
    // Mostly a classic queue whose node is stopped (fact 81). It still has its messages.
    let is_away = [
        "process is stopped",
        "is down or inaccessible",
        "due to timeout",
    ]
    .iter()
    .any(|said| text.contains(said));
    let why = match is_away {
        true => {
            "the queue exists, but its node is down; start the node, or wait: nothing is lost. The broker said"
        }
        false => "the broker said",
    };
    (
        ErrorKind::Timeout,
        format!("no answer while {doing}: {why}: {text}"),
    )
}

/// Whether a 404 means that the queue or exchange does not exist. RabbitMQ also sends 404 for one that exists and does not answer:
/// `queue 'q' in vhost '/' process is stopped by supervisor`, `home node 'n' of durable queue 'q' … is down or inaccessible`,
/// `failed to perform operation on queue 'q' … due to timeout`. A text counts as one of these unless it is known to mean that something is
/// missing. LavinMQ's texts end with `not found` or `not declared`.
fn is_absent(text: &str) -> bool {
    let text = text.strip_prefix("NOT_FOUND - ").unwrap_or(text);
    let end = text.rsplit('\'').next().unwrap_or_default();
    ["no queue '", "no exchange '"]
        .iter()
        .any(|words| text.starts_with(words))
        || [" not found", " not declared"]
            .iter()
            .any(|words| end.starts_with(words))
}

/// RabbitMQ sends 406 for a second declaration that differs from the first, and for much else.
fn precondition_failed(doing: &Operation<'_>, text: &str) -> (ErrorKind, String) {
    if matches!(doing, Operation::Publishing) {
        let kind = if text.contains("larger than") {
            ErrorKind::TooLarge
        } else {
            ErrorKind::InvalidOption
        };
        return (kind, format!("the broker refuses this message: {text}"));
    }
    if text.contains("inequivalent arg") {
        return (
            ErrorKind::Mismatch,
            format!(
                "refused while {doing}, because it exists with other arguments: {text}; delete it when it is empty, or \
                 change the option that asks for these"
            ),
        );
    }
    let remedy = if is_a_limit_of_queues(text) {
        "; delete queues that nobody uses, or raise the limit (`max-queues`)"
    } else {
        ""
    };
    let message = format!("refused while {doing}: {text}{remedy}");
    (ErrorKind::Broker, message)
}

/// Whether the virtual host has as many queues as it may. The text may also contain the names of a queue and of the virtual host.
fn is_a_limit_of_queues(text: &str) -> bool {
    text.contains("queue limit in vhost '") && text.ends_with(") is reached")
}

fn access_refused(doing: &Operation<'_>, text: &str) -> (ErrorKind, String) {
    if let Operation::Connecting(address, user) = doing {
        let who = match (&address.cert_file, &address.password_file) {
            (Some(file), _) if address.external => format!(
                "the user named in the certificate {}; check that this user exists and that the plugin rabbitmq_auth_mechanism_ssl is enabled",
                file.display()
            ),
            (_, Some(file)) => format!(
                "the user `{user}`, or the password or token in {}",
                file.display()
            ),
            // A token itself says who the user is.
            _ if user.is_empty() => "the password or token, which came without a user".to_owned(),
            _ => format!("the user `{user}` or its password"),
        };
        return (
            ErrorKind::AuthenticationFailed,
            format!("the broker at {} refuses {who}", address.authority()),
        );
    }
    let Some((_, user)) = text.split_once("refused for user '") else {
        // A reserved name, or a queue with an exclusive consumer: no permission would help.
        return (
            ErrorKind::AccessRefused,
            format!("refused while {doing}: {text}"),
        );
    };
    let user = user.split_once('\'').map_or(user, |(user, _)| user);
    let message = if text.contains("token has expired") {
        format!(
            "no permission while {doing}: the token of the user `{user}` has expired, and no new one came in time; the broker \
             said: {text}"
        )
    } else {
        format!(
            "no permission while {doing}: the user `{user}` needs {} (rabbitmqctl set_permissions); the broker said: {text}",
            needed(doing, text)
        )
    };
    (ErrorKind::AccessRefused, message)
}

/// All permissions that `doing` needs, because RabbitMQ names one at a time, and 3.10 not even which.
fn needed(doing: &Operation<'_>, text: &str) -> String {
    match doing {
        // To create a queue that dead-letters, a user must also be able to read it and to write to its dead-letter exchange.
        Operation::Declaring(name) => format!(
            "configure and read on `{}`, and write on `^amq\\.default$`; or make the queues with another user \
             (`retryrmq topology --apply`) and set `declare` off",
            family(name)
        ),
        Operation::Looking(name) => format!("read, or any other permission, on `{}`", family(name)),
        Operation::Exchange(name) => format!("configure on `{}`", exactly(name)),
        Operation::Binding(name) => format!(
            "write on `{}`, and read on the exchange that it is bound to",
            exactly(name)
        ),
        Operation::Consuming(name) => format!("read on `{}`", exactly(name)),
        Operation::Publishing => {
            let exchange = text
                .split_once("exchange '")
                .and_then(|(_, rest)| rest.split_once("' in vhost"))
                .map_or("amq.default", |(exchange, _)| exchange);
            format!("write on `{}`", exactly(exchange))
        }
        Operation::Connecting(..) | Operation::Opening | Operation::Settling => {
            "more permissions".to_owned()
        }
    }
}

/// The pattern for RabbitMQ permissions that covers a work queue, its waiting and parking queues, and the queue for messages that RabbitMQ
/// cannot deliver over AMQP 0-9-1. It is a regular expression that
/// matches these names and no others.
///
/// ```
/// assert_eq!(retryrmq::permission_pattern("orders"), r"^orders(\.retry\.[0-9]+|\.parked|\.unreadable)?$");
/// ```
#[must_use]
pub fn permission_pattern(queue: &str) -> String {
    family(queue)
}

/// The pattern for RabbitMQ permissions that covers one queue or exchange: a regular expression that matches exactly its name.
///
/// ```
/// assert_eq!(retryrmq::permission_for("amq.default"), r"^amq\.default$");
/// ```
#[must_use]
pub fn permission_for(name: &str) -> String {
    exactly(name)
}

/// A permission pattern for a work queue and all its queues, from the name of any one of them.
fn family(name: &str) -> String {
    let work = work_queue_of(name).unwrap_or(name);
    // Consumers have nothing to do with the queue for dropped messages.
    let dropped = match name.ends_with(".dropped") && work != name {
        true => "(\\.dropped)?",
        false => "",
    };
    format!(
        "^{}(\\.retry\\.[0-9]+|\\.parked{dropped}|\\.unreadable)?$",
        escaped(work)
    )
}

fn exactly(name: &str) -> String {
    format!("^{}$", escaped(name))
}

/// A name as a regular expression that matches only that name.
fn escaped(name: &str) -> String {
    let mut pattern = String::with_capacity(name.len() + 8);
    for sign in name.chars() {
        if r"\.+*?()|[]{}^$".contains(sign) {
            pattern.push('\\');
        }
        pattern.push(sign);
    }
    pattern
}

#[cfg(test)]
mod tests {

    use super::*;

    #[test]
    fn a_virtual_host_may_be_called_as_it_likes() {
        assert!(is_a_limit(
            "NOT_ALLOWED - access to vhost 'x' refused for user 'guest': connection limit (1) is reached"
        ));
        assert!(!is_a_limit("NOT_ALLOWED - vhost rate-limits not found"));
        assert!(!is_a_limit(
            "NOT_ALLOWED - vhost connection limit (1) not found"
        ));
    }

    #[test]
    fn a_limit_that_our_own_connections_may_fill_says_how_many_we_need() {
        let text =
            "NOT_ALLOWED - connection refused for user 'bob': user connection limit (1) is reached";
        assert!(is_a_limit(text));
        let (kind, sentence) = limited(&Operation::Opening, text);
        assert_eq!(kind, ErrorKind::Unreachable); // who waits goes on waiting
        for part in [
            text,
            "raise the limit",
            "a client has two connections",
            "must allow three",
        ] {
            assert!(sentence.contains(part), "{sentence}");
        }
    }

    fn refused(kind: AMQPErrorKind, queue: &str, text: &str) -> Error {
        let said = AMQPError::new(kind, text.into());
        refusal(
            &Operation::Consuming(queue),
            Cause::ProtocolError(said).into(),
        )
    }

    #[test]
    fn a_consumer_timeout_is_told_in_milliseconds() {
        let failed = || AMQPErrorKind::Soft(AMQPSoftError::PRECONDITIONFAILED);
        let timeout_of = |text: &str| consumer_timeout(&refused(failed(), "a", text));
        let text = "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: 3000 ms. This timeout value can \
                    be configured, see consumers doc guide to learn more";
        assert_eq!(timeout_of(text), Some(Duration::from_secs(3)));
        for text in [
            "PRECONDITION_FAILED - unknown delivery tag 3",
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out",
            "PRECONDITION_FAILED - delivery acknowledgement on channel 1 timed out. Timeout value used: infinity",
        ] {
            assert_eq!(timeout_of(text), None, "{text}");
        }
    }

    #[test]
    fn the_name_of_a_queue_is_not_taken_for_the_brokers_words() {
        let words = [
            "reached maximum (1) of consumers per channel",
            "RESOURCE_LOCKED - ",
            "inequivalent arg 'durable'",
            "delivery acknowledgement on channel 1 timed out. Timeout value used: 5 ms",
        ];
        for queue in words {
            let text = format!("NOT_FOUND - no queue '{queue}' in vhost '/'");
            let missing = AMQPErrorKind::Soft(AMQPSoftError::NOTFOUND);
            let error = refused(missing, queue, &text);
            let error = Error::new(ErrorKind::Mismatch, queue).with_source(error);
            assert!(!is_one_consumer_too_many(&error) && !is_locked(&error));
            assert!(!broker_says(&error, words[2]) && consumer_timeout(&error).is_none());
        }
        let hard = AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED);
        let text = format!("NOT_ALLOWED - {}", words[0]);
        assert!(is_one_consumer_too_many(&refused(hard, "a", &text)));
        let soft = AMQPErrorKind::Soft(AMQPSoftError::RESOURCELOCKED);
        let text =
            "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue 'a' in vhost '/'";
        assert!(is_locked(&refused(soft, "a", text)));
    }

    #[test]
    fn a_connection_without_a_free_channel_is_not_lost() {
        let error = refusal(&Operation::Opening, Cause::ChannelsLimitReached.into());
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        assert!(error.to_string().contains("channel_max"), "{error}");
    }

    #[test]
    fn what_a_broker_fails_to_say_is_told_with_its_cause() {
        let said = |doing: &Operation<'_>| {
            let said = AMQPError::new(AMQPHardError::INTERNALERROR.into(), UNSAID.into());
            refusal(doing, Cause::ProtocolError(said).into())
        };
        let long = "ä".repeat(110);
        for doing in [
            Operation::Looking(&long),
            Operation::Exchange(&long),
            Operation::Declaring(&long),
        ] {
            let error = said(&doing);
            assert_eq!(error.kind(), ErrorKind::TooLarge);
            assert!(error.to_string().contains("use a shorter name"), "{error}");
            assert!(!error.is_transient());
        }
        let ascii = "a".repeat(220);
        for doing in [
            Operation::Looking("ä"),
            Operation::Looking(&ascii),
            Operation::Opening,
        ] {
            assert_eq!(said(&doing).kind(), ErrorKind::Broker);
        }
    }

    #[test]
    fn a_pattern_covers_the_queue_and_what_belongs_to_it() {
        let all = r"^orders(\.retry\.[0-9]+|\.parked|\.unreadable)?$";
        for name in [
            "orders",
            "orders.retry.1000",
            "orders.parked",
            "orders.unreadable",
        ] {
            assert_eq!(family(name), all, "{name}");
        }
        assert_eq!(
            family("a.b+c.retry.x"),
            r"^a\.b\+c\.retry\.x(\.retry\.[0-9]+|\.parked|\.unreadable)?$"
        );
    }

    #[test]
    fn a_missing_permission_is_told_in_full_whichever_version_says_it() {
        for said in [
            "ACCESS_REFUSED - access to queue 'orders.parked' in vhost 'v' refused for user 'bob'",
            "ACCESS_REFUSED - configure access to queue 'orders.parked' in vhost 'v' refused for user 'bob'",
        ] {
            let (kind, sentence) = access_refused(&Operation::Declaring("orders.parked"), said);
            assert_eq!(kind, ErrorKind::AccessRefused);
            assert!(sentence.contains(
                r"the user `bob` needs configure and read on `^orders(\.retry\.[0-9]+|\.parked|\.unreadable)?$`, and write on `^amq\.default$`"
            ), "{sentence}");
        }
        let said = "ACCESS_REFUSED - access to queue 'orders' in vhost '/' refused for user 'shop', backend \
                    rabbit_auth_backend_oauth2 returned an error: \"Provided JWT token has expired at timestamp 1\"";
        let (_, sentence) = access_refused(&Operation::Publishing, said);
        assert!(
            sentence.contains("the token of the user `shop` has expired"),
            "{sentence}"
        );
        let said =
            "ACCESS_REFUSED - write access to exchange 'a.b' in vhost 'v' refused for user 'bob'";
        let (_, sentence) = access_refused(&Operation::Publishing, said);
        assert!(sentence.contains(r"write on `^a\.b$`"), "{sentence}");
    }

    #[test]
    fn the_limit_of_a_body_is_read_from_what_is_said() {
        for (said, limit) in [
            (
                "PRECONDITION_FAILED - message size 20001 is larger than configured max size 20000",
                Some(20_000),
            ),
            (
                "PRECONDITION_FAILED - message size 134217729 is larger than max size 134217728",
                Some(134_217_728),
            ),
            ("PRECONDITION_FAILED - user_id property set to 'bob'", None),
            ("message size 3 is larger than max size many", None),
        ] {
            assert_eq!(largest(said), limit, "{said}");
        }
    }

    #[test]
    fn a_queue_that_does_not_answer_is_not_missing() {
        let kind = |said: &str| not_found(&Operation::Looking("q"), said).0;
        for said in [
            "NOT_FOUND - no queue 'q' in vhost '/'",
            "NOT_FOUND - no queue ' process is down' in vhost '/'",
            "NOT_FOUND - no exchange 'q' in vhost '/'",
            "NOT_FOUND - Queue 'q' not found",
            "NOT_FOUND - queue 'q' not declared",
        ] {
            assert_eq!(kind(said), ErrorKind::QueueNotFound, "{said}");
        }
        for said in [
            "NOT_FOUND - queue 'q' in vhost '/' process is stopped by supervisor",
            "NOT_FOUND - queue 'no queue ' not found' in vhost '/' process is stopped by supervisor",
            "NOT_FOUND - home node 'rabbit@a' of durable queue 'q' in vhost '/' is down or inaccessible",
            "NOT_FOUND - failed to perform operation on queue 'q' in vhost '/' due to timeout",
            "NOT_FOUND - something new",
        ] {
            assert_eq!(kind(said), ErrorKind::Timeout, "{said}");
        }
    }

    #[test]
    fn what_no_permission_would_help_is_not_called_one() {
        let said = "ACCESS_REFUSED - queue name 'amq.foo' contains reserved prefix 'amq.*'";
        let (kind, sentence) = access_refused(&Operation::Declaring("amq.foo"), said);
        assert_eq!(kind, ErrorKind::AccessRefused);
        assert!(!sentence.contains("permission"), "{sentence}");
    }
}
