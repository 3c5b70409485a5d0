//! What a client can see of an existing parking queue, which is used as it is: only that our declaration would differ, and in what. AMQP
//! does not show policies.

use tracing::warn;

use super::{
    Finding, Item, Plan, QueueType, Status,
    apply::{Mode, apply, can_say_what_differs},
    plan::{exact_parking, name, parking_itself},
};
use crate::{
    ErrorKind, Result,
    connection::{Connection, ProbedQueueType, kind_of},
    queue_names::parking_queue,
};

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inspection {
    /// It is a classic queue, which counts no deliveries.
    pub(crate) classic: bool,
    /// A sentence that quotes the broker, if its arguments differ from ours.
    pub(crate) warning: Option<String>,
}

/// Checks that a look at this parking queue changes nothing. If this user may not ask, it counts as fine.
///
/// # Errors
/// [`ErrorKind::Mismatch`] for an auto-delete queue, which a look would delete, and for a stream; those of a lost connection.
pub(crate) async fn check_parking(connection: &Connection, parking: &str) -> Result<()> {
    let plan = Plan {
        items: vec![parking_itself(parking, QueueType::Quorum)],
    };
    match apply(connection, &plan, Mode::Require).await {
        Err(error) if error.kind() == ErrorKind::Mismatch || error.is_transient() => Err(error),
        _ => Ok(()),
    }
}

/// Looks at `parking`, the parking queue of `queue`. Both are the same for a foreign dead-letter queue. What this user may not ask, or the
/// broker could not say, counts as unknown.
pub(crate) async fn inspect_parking(
    connection: &Connection,
    queue: &str,
    parking: &str,
) -> Inspection {
    if !can_say_what_differs(connection, parking) {
        return Inspection::default();
    }
    let quorum = difference(connection, parking, QueueType::Quorum).await;
    let Ok(Some(as_quorum)) = quorum else {
        return Inspection::default();
    };
    let Ok(as_classic) = difference(connection, parking, QueueType::Classic).await else {
        return Inspection::default();
    };
    let of_type = |text: &str| text.contains("arg 'x-queue-type'");
    let is_accepted = as_classic.is_none();
    let passes_for_classic =
        is_accepted || (of_type(&as_quorum) && !as_classic.as_deref().is_some_and(of_type));
    let classic = passes_for_classic && is_no_quorum_queue(connection, parking).await;
    // The refusal that is not about the type names the real difference.
    let differs = as_classic.map(|as_classic| match of_type(&as_quorum) {
        true => as_classic,
        false => as_quorum,
    });
    Inspection {
        classic,
        warning: differs.and_then(|why| {
            // A foreign queue need not be like ours. Only arguments that remove messages deserve a warning.
            let takes_away = ["x-message-ttl", "x-expires", "x-max-length", "x-dead-letter-exchange"];
            if queue == parking && !takes_away.iter().any(|argument| why.contains(argument)) {
                return None;
            }
            Some(format!(
                "`{parking}` was made by somebody else, with other arguments than ours: what is parked there may be dropped by a limit, a time to live or a dead-letter route. The first difference: {}",
                broker_reason(&why)
            ))
        }),
    }
}

/// Asks for the type of a queue that the broker accepts as a classic one. A broker whose checks are relaxed
/// (`quorum_queue.property_equivalence.relaxed_checks_on_redeclaration`) accepts a quorum queue as well. If the question fails, the queue may be
/// one.
async fn is_no_quorum_queue(connection: &Connection, queue: &str) -> bool {
    let (Ok(channel), Ok(queue)) = (connection.channel().await, name(queue)) else {
        return false;
    };
    let kind = kind_of(connection, channel.lapin(), queue).await;
    channel.close().await;
    matches!(kind, Ok(None | Some(ProbedQueueType::Classic)))
}

/// The broker's words about a difference, without our sentence around them, which speaks of a declaration.
fn broker_reason(why: &str) -> &str {
    let said = why
        .split_once("PRECONDITION_FAILED - ")
        .map_or(why, |(_, said)| said);
    said.split_once("; ").map_or(said, |(said, _)| said)
}

/// Logs a warning if an existing parking queue differs from ours.
pub(crate) async fn warn_of_parking(connection: &Connection, findings: &[Finding]) {
    let taken_as_it_is = findings.iter().find_map(|finding| match &finding.item {
        Item::Queue { name, .. }
            if finding.item.is_parking_queue() && finding.status == Status::Present =>
        {
            name.strip_suffix(".parked")
        }
        _ => None,
    });
    if let Some(queue) = taken_as_it_is
        && let Some(warning) = inspect_parking(connection, queue, &parking_queue(queue))
            .await
            .warning
    {
        warn!(queue, "{warning}");
    }
}

/// How the queue differs from ours of that type.
async fn difference(
    connection: &Connection,
    parking: &str,
    queue_type: QueueType,
) -> Result<Option<String>> {
    let ours = Plan {
        items: vec![exact_parking(parking, queue_type)],
    };
    let findings = apply(connection, &ours, Mode::Compare).await?;
    Ok(findings
        .into_iter()
        .find_map(|finding| match finding.status {
            Status::Differs(why) => Some(why),
            _ => None,
        }))
}
