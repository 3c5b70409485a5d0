//! `--canary N`: the first N messages go alone. The rest follow only if those live.
//!
//! AMQP tells nobody that a message was handled. What can be seen: a message that was parked again, by the mark of the walk that
//! sent it; and how many messages are ready in the work queue and its waiting queues. What is with a consumer shows nowhere.

use std::time::Duration;

use retryrmq::{Client, Parked, Policy, Record, waiting_queue};
use tokio::time::{Instant, sleep};

use super::{foreign, ls, order::Ordered};
use crate::fault::Fault;
use retryrmq::visible;

/// How often the parking queue is asked.
const PAUSE: Duration = Duration::from_millis(500);

/// What became of the first ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// None was parked again, and none waits.
    Live,
    /// How many were parked again, and the first one's error.
    ParkedAgain(usize, String),
    /// Why nobody can tell yet.
    Waiting(String),
    /// Somebody wants us to end.
    Stopped,
}

/// What is seen before the first one goes.
#[derive(Debug)]
pub(super) struct Canary {
    queues: Vec<String>,
    /// Ready in the target, and in its waiting queues together.
    before: (u32, u32),
}

/// What is seen of the target and its waiting queues.
#[derive(Clone, Copy, Debug)]
struct Sight {
    ready: u32,
    waiting: u32,
    consumers: u32,
}

impl Canary {
    /// Looks at the queue that the messages will go to.
    pub(super) async fn before(client: &Client, target: &str) -> Result<Self, Fault> {
        let queues = family(client, target).await?;
        let sight = sight(client, &queues).await?;
        Ok(Self {
            queues,
            before: (sight.ready, sight.waiting),
        })
    }

    /// Waits for the fate of the messages that `ordered` has sent, for as long as `patience`.
    pub(super) async fn fate(
        &self,
        client: &Client,
        parked: &Parked,
        ordered: &mut Ordered,
        patience: Duration,
    ) -> Result<Fate, Fault> {
        let deadline = Instant::now() + patience;
        let mut looked_at = 0;
        loop {
            let mut again = ordered.browse.came_back()?;
            let ready = ordered.browse.ready().await?;
            let last = Instant::now() >= deadline;
            // Another walk looks only where something has come since, and at the end.
            if again.is_empty() && ready > 0 && (ready != looked_at || last) {
                looked_at = ready;
                again = parked_again(parked, ordered).await?;
            }
            let count = again.len();
            if let Some(first) = again.first_mut() {
                foreign::fill(first, ordered.parking());
                return Ok(Fate::ParkedAgain(count, ls::error(first)));
            }
            if ordered.is_stopped() {
                return Ok(Fate::Stopped);
            }
            if last {
                break;
            }
            tokio::select! {
                () = sleep(PAUSE.min(deadline - Instant::now())) => {}
                () = ordered.stopped() => {}
            }
        }
        let target = visible::line(&self.queues[0]).into_owned();
        Ok(judge(
            &target,
            self.before,
            sight(client, &self.queues).await?,
        ))
    }
}

/// What is to be thought when the time is over and none was parked again.
fn judge(target: &str, before: (u32, u32), now: Sight) -> Fate {
    let (ready, waiting) = before;
    if now.consumers == 0 && now.ready > 0 {
        return Fate::Waiting(format!("nobody consumes {target}"));
    }
    if now.waiting > waiting {
        return Fate::Waiting(format!(
            "{} messages wait for a retry in the waiting queues of {target}, {} more than before",
            now.waiting,
            now.waiting - waiting
        ));
    }
    if now.ready > ready {
        return Fate::Waiting(format!(
            "{} messages are ready in {target}, more than before: its consumers have not come to them yet",
            now.ready
        ));
    }
    Fate::Live
}

/// Those that stand in the parking queue again.
async fn parked_again(parked: &Parked, ordered: &Ordered) -> Result<Vec<Record>, Fault> {
    let mut browse = parked.browse().await?;
    let mut found = Vec::new();
    let done = loop {
        match browse.next().await {
            Ok(Some(record)) if ordered.browse.has_sent(&record) => found.push(record),
            Ok(Some(_)) => {}
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
        if ordered.is_stopped() {
            break Ok(());
        }
    };
    browse.close().await?;
    done?;
    Ok(found)
}

/// The target, and those of its waiting queues that exist: of the default policy and of the ladder.
pub(super) async fn family(client: &Client, target: &str) -> Result<Vec<String>, Fault> {
    let mut all = vec![target.to_owned()];
    let mut rungs = Policy::default().delays();
    let mut delay = Duration::from_millis(1);
    while delay <= retryrmq::MAX_DELAY {
        rungs.insert(retryrmq::rung(delay));
        delay = retryrmq::rung(delay) + Duration::from_millis(1);
    }
    all.extend(rungs.into_iter().map(|rung| waiting_queue(target, rung)));
    all.retain(|name| name.len() <= 255);
    let depths = client.depths(&all).await?;
    let exists: Vec<bool> = depths.iter().map(Option::is_some).collect();
    let mut number = 0;
    all.retain(|_| {
        number += 1;
        number == 1 || exists[number - 1]
    });
    Ok(all)
}

async fn sight(client: &Client, queues: &[String]) -> Result<Sight, Fault> {
    let depths = client.depths(queues).await?;
    let (ready, consumers) = depths.first().copied().flatten().unwrap_or_default();
    let waiting = depths.iter().skip(1).flatten().map(|depth| depth.0);
    Ok(Sight {
        ready,
        consumers,
        waiting: waiting.fold(0, u32::saturating_add),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_neither_waits_nor_is_ready_lives() {
        let sight = |ready, waiting, consumers| Sight {
            ready,
            waiting,
            consumers,
        };
        assert_eq!(judge("orders", (0, 0), sight(0, 0, 1)), Fate::Live);
        assert_eq!(judge("orders", (9, 7), sight(9, 7, 1)), Fate::Live);
        // The last consumer took them along when it ended, and has acknowledged them.
        assert_eq!(judge("orders", (0, 0), sight(0, 0, 0)), Fate::Live);
        for now in [sight(5, 0, 0), sight(0, 1, 1), sight(1, 0, 1)] {
            assert!(
                matches!(judge("orders", (0, 0), now), Fate::Waiting(_)),
                "{now:?}"
            );
        }
    }
}
