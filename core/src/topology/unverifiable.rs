//! What a client can neither see nor create on the broker, although messages are lost without it.

use tracing::warn;

use super::{Finding, Item, Status};

/// Logs a warning for each finding that stays unknown, with the command that shows it.
pub(crate) fn warn_of_unseen(findings: &[Finding]) {
    for finding in findings {
        if let Some(warning) = warning(finding) {
            warn!("{warning}");
        }
    }
}

fn warning(finding: &Finding) -> Option<String> {
    match &finding.item {
        Item::Binding {
            queue,
            exchange,
            routing_key,
        } if finding.status == Status::Unknown => Some(format!(
            "whether the queue `{queue}` is bound to the exchange `{exchange}` with the routing key `{routing_key}` cannot be seen, and \
             this user may not bind it: without the binding every failed message is lost. Look with `rabbitmqctl list_bindings -p VHOST \
             source_name destination_name routing_key`, and bind it with `retryrmq topology --apply` as another user, or let this one \
             bind it: write on the queue, and read on the exchange"
        )),
        Item::Exchange { name, kind, .. } if finding.status == Status::Unknown => Some(format!(
            "the exchange `{name}` exists, and whether it is of the type {kind} cannot be seen: this user may not declare it. In any \
             other one failed messages do not wait, or are lost. Look with `rabbitmqctl list_exchanges -p VHOST name type arguments`, \
             or let this user declare it: configure on it"
        )),
        _ => None,
    }
}
