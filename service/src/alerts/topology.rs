//! The queues of the alerts.

use retryrmq::{Argument, Client, Consumer, Status, WorkQueue};

/// Makes a queue with these arguments; one that is there is taken as it is.
///
/// # Errors
/// A sentence.
pub(super) async fn declare(
    client: &Client,
    queue: &str,
    arguments: impl IntoIterator<Item = (&'static str, Argument)>,
) -> Result<Status, String> {
    let arguments = arguments
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value));
    let bad =
        |why: retryrmq::Error| format!("the queue `{queue}` of the alerts cannot be made: {why}");
    // The plan of a work queue without the queues for its retries: nothing here is retried.
    let mut plan = Consumer::new(queue)
        .dlx(true)
        .reserved_name(true)
        .work_queue(WorkQueue::Arguments(arguments.collect()))
        .plan()
        .map_err(bad)?;
    plan.items.retain(|item| item.name() == queue);
    let findings = client.apply_plan(&plan).await.map_err(bad)?;
    let status = findings.into_iter().next().map(|finding| finding.status);
    status.ok_or_else(|| format!("the queue `{queue}` of the alerts was not made"))
}
