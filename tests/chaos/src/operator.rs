//! What an operator has to do after some harm, because brokers do not do it themselves. It is counted, and the table shows it.

use std::collections::BTreeMap;
use std::time::Duration;

use retryrmq_harness::Vhost;
use tokio::time::{Instant, sleep};

use crate::environment::Environment;
use crate::ledger::SideLedger;

/// How long something has to be wrong before an operator believes it.
const BELIEF: Duration = Duration::from_secs(60);
/// Between two looks.
const LOOK: Duration = Duration::from_secs(5);

/// Deletes waiting queues that are not alive, for as long as it is let. A quorum queue that was made just before its node was killed can
/// come back without a leader before 4.3: it is there, takes nothing and never answers. What was in it was never safe.
pub async fn delete_dead_queues(
    environment: &Environment,
    vhost: &Vhost,
    queue: &str,
    ledger: &SideLedger,
) {
    let waiting = format!("{queue}.retry.");
    let mut silent = BTreeMap::new();
    loop {
        sleep(LOOK).await;
        let management = vhost.broker().management();
        // A node that is away says nothing of any queue.
        let Ok(queues) = management.queues(vhost.name()).await else {
            silent.clear();
            continue;
        };
        let dead = queues.iter().filter(|queue| queue.messages().is_none());
        let dead = dead.map(|queue| queue.name().to_owned());
        let dead: Vec<_> = dead.filter(|name| name.starts_with(&waiting)).collect();
        silent.retain(|name, _| dead.contains(name));
        for name in dead {
            let since = *silent.entry(name.clone()).or_insert_with(Instant::now);
            if since.elapsed() < BELIEF {
                continue;
            }
            silent.remove(&name);
            if environment.has_leader(vhost, &name).await {
                continue;
            }
            ledger.note(format!("{name} is not alive, and an operator deletes it"));
            ledger.harmed(|fault_counts| fault_counts.mended += 1);
            let path = format!("queues/{}/{name}", vhost.name());
            if let Err(error) = management.delete(path).await {
                ledger.note(format!("{name} is not deleted: {error}"));
            }
        }
    }
}

/// Notices messages that a broker keeps to itself, and has other nodes lead its queues. A consumer that was cancelled, and whose node is
/// killed while it holds a message, holds it until then (fact 56); and a member that came late dead-letters nothing (fact 82).
#[derive(Debug)]
pub struct LeadershipRepair {
    since: Instant,
    unsettled: usize,
}

impl LeadershipRepair {
    /// Begins to watch.
    pub fn new() -> Self {
        LeadershipRepair {
            since: Instant::now(),
            unsettled: usize::MAX,
        }
    }

    /// As many messages are unsettled, and none of them is ready in any queue.
    pub async fn look(
        &mut self,
        unsettled: usize,
        environment: &Environment,
        vhost: &Vhost,
        queue: &str,
        ledger: &SideLedger,
    ) {
        if unsettled != self.unsettled {
            *self = LeadershipRepair {
                since: Instant::now(),
                unsettled,
            };
        }
        if self.since.elapsed() < BELIEF || !environment.is_cluster() {
            return;
        }
        let waiting = format!("{queue}.retry.");
        for restart_task in vhost.queues().await {
            let name = restart_task.name();
            let keeps = restart_task.messages() > restart_task.ready();
            if restart_task.kind() == "quorum"
                && keeps
                && (name == queue || name.starts_with(&waiting))
            {
                ledger.note(format!("an operator has another node lead {name}"));
                ledger.harmed(|fault_counts| fault_counts.mended += 1);
                environment.move_leader(vhost, name).await;
            }
        }
        self.since = Instant::now();
    }
}

impl Default for LeadershipRepair {
    fn default() -> Self {
        Self::new()
    }
}
