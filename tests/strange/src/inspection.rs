//! What `retryrmq doctor` finds in a virtual host.

use crate::environment::Environment;
use crate::{DEADLINE, Setting};
use retryrmq::{
    DEAD_EXCHANGE, MINUTE, clock_queue, parking_queue, unreadable_queue, work_queue_of,
};
use retryrmq_harness::eventually;
use retryrmq_operator::doctor::{QueueNames, Snapshot, examine};
use retryrmq_operator::management::{Address, Management};
use std::collections::BTreeSet;

const NAMES: QueueNames = QueueNames {
    work_queue_of,
    parking_queue,
    unreadable_queue,
    clock_queue,
    dead_exchange: DEAD_EXCHANGE,
};

/// Codes, and what they are about.
type Found = BTreeSet<(String, String)>;

/// Waits until the doctor finds what the setting says: it sees counts and policies that are seconds old.
pub(crate) async fn finds(environment: &Environment, setting: &Setting) {
    let own = |(code, name): &(&str, &str)| ((*code).to_owned(), (*name).to_owned());
    let expected: Found = setting.findings.iter().map(own).collect();
    eventually(DEADLINE, "the doctor finds what is expected", || async {
        let found = findings(environment).await?;
        let missing: Vec<_> = expected.difference(&found).collect();
        missing
            .is_empty()
            .then_some(())
            .ok_or_else(|| format!("{missing:?} is missing in {found:?}"))
    })
    .await;
}

async fn findings(environment: &Environment) -> Result<Found, String> {
    let said = |error: retryrmq_operator::management::Error| error.to_string();
    let url = environment.vhost.broker().management().url();
    let address = Address::new(environment.vhost.url(), Some(url), None).map_err(said)?;
    let management = Management::new(address).map_err(said)?;
    let vhost = environment.vhost.name();
    let snapshot = Snapshot::take(&management, vhost, NAMES, MINUTE, 5 * MINUTE).await;
    let all = examine(&snapshot.map_err(said)?);
    let named = all.iter().map(|finding| {
        let name = finding.subject.name().to_owned();
        (finding.code.to_string(), name)
    });
    Ok(named.collect())
}
