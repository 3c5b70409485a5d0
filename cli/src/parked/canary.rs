//! `--canary N`: the first N messages go alone. The rest follow only if those live.
//!
//! AMQP tells nobody that a message was handled. What can be seen: a message that was parked again, by the mark of the walk that
//! sent it; and how many messages are ready in the work queue, in its waiting queues, and where a message may be parked or handed over
//! without coming back to the queue that is walked. What is with a consumer shows nowhere. Only the management API lists waiting queues; without
//! it, and where failures wait in a store or in the work queue itself, nobody can tell.

use std::time::Duration;

use retryrmq::{
    Client, ErrorKind, HANDOVER_QUEUE, INTAKE_QUEUE, Parked, Policy, Record, parking_queue,
    waiting_queue,
};
use retryrmq_operator::plural;
use tokio::time::{Instant, sleep};

use super::{foreign, ls, sort::SortedWalk};
use crate::{error::CliError, management::ManagementClient};
use retryrmq::terminal_escape;
use retryrmq_operator::management::{Queue, settings};

/// How often the parking queue is asked.
const PAUSE: Duration = Duration::from_millis(500);

/// What became of the first ones.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CanaryResult {
    /// None was parked again, and none waits.
    Live,
    /// How many were parked again, and the first one's error.
    ParkedAgain(usize, String),
    /// Where else more are parked than before.
    ParkedElsewhere(String),
    /// Why nobody can tell yet.
    Waiting(String),
    /// Why nobody can tell at all: failures may wait where nothing is seen of them.
    Unknown(String),
    /// Somebody wants us to end.
    Stopped,
}

/// How the waiting queues of a target are known.
pub(super) enum WaitingQueues {
    /// The management API lists them.
    Listed(ManagementClient),
    /// They are those of this policy.
    Of(Policy),
}

impl WaitingQueues {
    /// The target's waiting queues that are known so.
    ///
    /// # Errors
    /// Why they are not all where failures wait.
    async fn names(&self, target: &str) -> Result<Vec<String>, String> {
        let management_client = match self {
            Self::Of(policy) => {
                let delays = policy.delays().into_iter();
                return Ok(delays.map(|delay| waiting_queue(target, delay)).collect());
            }
            Self::Listed(management_client) => management_client,
        };
        let shown = terminal_escape::line(target);
        let listed = management_client
            .api
            .queues_like(&management_client.vhost, target)
            .await;
        let listed = listed.map_err(|why| {
            format!(
                "the queues in which messages of {shown} wait are not known, because the management API does not list them ({why}); pass \
                 --management URL, or --retry POLICY with the policy of the consumers"
            )
        })?;
        let delays = |queue: &Queue| {
            let effective = settings::effective(queue, &[], &[]);
            let delays = settings::setting(queue, &effective, "delayed-retry-type");
            delays.is_some_and(|kind| kind != "disabled")
        };
        let Some(queue) = listed.get(target) else {
            return Err(format!(
                "the management API does not list {shown}: is it that of this broker? Pass --management URL, or --retry POLICY"
            ));
        };
        if delays(queue) {
            return Err(format!(
                "messages of {shown} wait in that queue itself (strategy native), where nobody can see them"
            ));
        }
        let is_waiting = |name: &String| {
            let end = name
                .strip_prefix(target)
                .and_then(|rest| rest.strip_prefix(".retry."));
            end.is_some_and(|end| end.bytes().all(|byte| byte.is_ascii_digit()))
        };
        Ok(listed.into_keys().filter(is_waiting).collect())
    }
}

/// What is seen before the first one goes.
pub(super) struct Canary<'a> {
    queues: Vec<String>,
    waiting_queues: &'a WaitingQueues,
    /// Why waiting messages may not be seen.
    unseen: Option<String>,
    /// The target's own parking queue, where that is not the one that is walked, and the queues in which what was handed over waits for a
    /// service.
    elsewhere: Vec<String>,
    before: CanaryView,
}

/// What is seen of the target, its waiting queues, and the other places.
#[derive(Clone, Debug)]
struct CanaryView {
    ready: u32,
    waiting: u32,
    consumers: u32,
    /// How many are ready there: nothing where this user may not see it, or nobody can tell.
    elsewhere: Vec<Option<OtherPlaces>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OtherPlaces {
    ready: u32,
    consumers: u32,
}

impl<'a> Canary<'a> {
    /// Looks at the queue that the messages of the queue `walked` will go to.
    pub(super) async fn before(
        client: &Client,
        target: &str,
        walked: &str,
        waiting_queues: &'a WaitingQueues,
    ) -> Result<Self, CliError> {
        let mut queues = family(client, target).await?;
        let unseen = add(&mut queues, waiting_queues.names(target).await);
        let mut elsewhere = vec![
            parking_queue(target),
            HANDOVER_QUEUE.to_owned(),
            INTAKE_QUEUE.to_owned(),
        ];
        elsewhere.retain(|name| name != walked && name.len() <= 255);
        let before = view(client, &queues, &elsewhere).await?;
        Ok(Self {
            queues,
            waiting_queues,
            unseen,
            elsewhere,
            before,
        })
    }

    /// Waits for the fate of the messages that `ordered` has sent, for as long as `patience`.
    pub(super) async fn result(
        &self,
        client: &Client,
        parked: &Parked,
        ordered: &mut SortedWalk,
        timeout: Duration,
    ) -> Result<CanaryResult, CliError> {
        let deadline = Instant::now() + timeout;
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
                return Ok(CanaryResult::ParkedAgain(count, ls::error(first)));
            }
            if ordered.is_stopped() {
                return Ok(CanaryResult::Stopped);
            }
            if last {
                break;
            }
            tokio::select! {
                () = sleep(PAUSE.min(deadline - Instant::now())) => {}
                () = ordered.stopped() => {}
            }
        }
        // A waiting queue may have been made only now.
        let mut queues = self.queues.clone();
        add(&mut queues, Ok(family(client, &self.queues[0]).await?));
        let names = self.waiting_queues.names(&self.queues[0]).await;
        let unseen = add(&mut queues, names);
        let now = view(client, &queues, &self.elsewhere).await?;
        Ok(
            match (self.compare(&now), unseen.or_else(|| self.unseen.clone())) {
                (CanaryResult::Live, Some(why)) => CanaryResult::Unknown(why),
                (result, _) => result,
            },
        )
    }

    /// What is to be thought when the time is over and none was parked again.
    fn compare(&self, now: &CanaryView) -> CanaryResult {
        let (target, before) = (terminal_escape::line(&self.queues[0]), &self.before);
        if now.consumers == 0 && now.ready > 0 {
            return CanaryResult::Waiting(format!("nobody consumes {target}"));
        }
        if now.waiting > before.waiting {
            return CanaryResult::Waiting(format!(
                "{} {} for a retry in the waiting queues of {target}, {} more than before",
                plural::messages(now.waiting.into()),
                plural::word(now.waiting.into(), "waits", "wait"),
                now.waiting - before.waiting
            ));
        }
        let depths = before.elsewhere.iter().zip(&now.elsewhere);
        for (name, depths) in self.elsewhere.iter().zip(depths) {
            let (Some(before), Some(now)) = depths else {
                continue;
            };
            if now.ready <= before.ready {
                continue;
            }
            let more = format!(
                "{} {} in {}, {} more than before",
                plural::messages(now.ready.into()),
                plural::word(now.ready.into(), "is", "are"),
                terminal_escape::line(name),
                now.ready - before.ready
            );
            if *name == parking_queue(&self.queues[0]) {
                return CanaryResult::ParkedElsewhere(more);
            }
            // A service that runs has taken them: what comes and goes there is anybody's.
            if now.consumers == 0 {
                return CanaryResult::Waiting(format!("{more}, and no service takes them"));
            }
        }
        if now.ready > before.ready {
            return CanaryResult::Waiting(format!(
                "{} {} ready in {target}, more than before: its consumers have not come to them yet",
                plural::messages(now.ready.into()),
                plural::word(now.ready.into(), "is", "are")
            ));
        }
        let services = self
            .elsewhere
            .iter()
            .zip(&now.elsewhere)
            .any(|(name, depth)| {
                let may_be_served = depth.is_none_or(|depth| depth.consumers > 0);
                may_be_served && [HANDOVER_QUEUE, INTAKE_QUEUE].contains(&name.as_str())
            });
        // Whoever names the policy of the consumers says that they retry by themselves.
        if services && matches!(self.waiting_queues, WaitingQueues::Listed(_)) {
            return CanaryResult::Unknown(
                "`retryrmq serve` runs here, as far as this user may see, and may keep failed messages in Redis, where this command does not see them; \
                 --retry POLICY says that the consumers retry by themselves"
                    .to_owned(),
            );
        }
        CanaryResult::Live
    }
}

/// Adds the names that are not there yet. Returns why there may be others.
fn add(queues: &mut Vec<String>, names: Result<Vec<String>, String>) -> Option<String> {
    match names {
        Ok(names) => {
            let new: Vec<_> = names
                .into_iter()
                .filter(|name| name.len() <= 255 && !queues.contains(name))
                .collect();
            queues.extend(new);
            None
        }
        Err(why) => Some(why),
    }
}

/// Those that stand in the parking queue again.
async fn parked_again(parked: &Parked, ordered: &SortedWalk) -> Result<Vec<Record>, CliError> {
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

/// The target, and those of its waiting queues that exist: of the default policy and of the delay steps.
pub(super) async fn family(client: &Client, target: &str) -> Result<Vec<String>, CliError> {
    let mut all = vec![target.to_owned()];
    let mut delays = Policy::default().delays();
    let mut delay = Duration::from_millis(1);
    while delay <= retryrmq::MAX_DELAY {
        delays.insert(retryrmq::delay_step(delay));
        delay = retryrmq::delay_step(delay) + Duration::from_millis(1);
    }
    all.extend(delays.into_iter().map(|delay| waiting_queue(target, delay)));
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

async fn view(
    client: &Client,
    queues: &[String],
    elsewhere: &[String],
) -> Result<CanaryView, CliError> {
    let depths = client.depths(queues).await?;
    let (ready, consumers) = depths.first().copied().flatten().unwrap_or_default();
    let waiting = depths.iter().skip(1).flatten().map(|depth| depth.0);
    let waiting = waiting.fold(0, u32::saturating_add);
    let mut seen = Vec::new();
    for name in elsewhere {
        // One at a time: on RabbitMQ 4.3 a user without a permission for a name may not even ask whether it is there.
        seen.push(match client.depths(std::slice::from_ref(name)).await {
            Ok(depths) => {
                let (ready, consumers) = depths.first().copied().flatten().unwrap_or_default();
                Some(OtherPlaces { ready, consumers })
            }
            // Whoever replays needs no right to the service's queues, and where they have no leader the messages may have another way.
            Err(error)
                if *name != parking_queue(&queues[0])
                    && matches!(error.kind(), ErrorKind::AccessRefused | ErrorKind::Timeout) =>
            {
                None
            }
            Err(error) => return Err(error.into()),
        });
    }
    Ok(CanaryView {
        ready,
        waiting,
        consumers,
        elsewhere: seen,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_neither_waits_nor_is_ready_lives() {
        let view = |ready, waiting, consumers, elsewhere: [Option<OtherPlaces>; 2]| CanaryView {
            ready,
            waiting,
            consumers,
            elsewhere: elsewhere.into(),
        };
        let there = |ready, consumers| Some(OtherPlaces { ready, consumers });
        let compare = |before: CanaryView, now: CanaryView| {
            let waiting_queues = WaitingQueues::Of(Policy::default());
            let canary = Canary {
                queues: vec!["orders".to_owned()],
                waiting_queues: &waiting_queues,
                unseen: None,
                elsewhere: vec!["orders.parked".to_owned(), HANDOVER_QUEUE.to_owned()],
                before,
            };
            canary.compare(&now)
        };
        let nowhere = [there(0, 0), there(0, 0)];
        let none = || view(0, 0, 0, nowhere);
        assert_eq!(compare(none(), view(0, 0, 1, nowhere)), CanaryResult::Live);
        let busy = || view(9, 7, 1, [there(3, 0), there(9, 0)]);
        assert_eq!(compare(busy(), busy()), CanaryResult::Live);
        let after = view(9, 7, 1, [there(2, 0), there(50, 1)]);
        assert_eq!(
            compare(busy(), after),
            CanaryResult::Live,
            "a service takes those"
        );
        let unseen = view(9, 7, 1, [there(3, 0), None]);
        assert_eq!(compare(unseen.clone(), busy()), CanaryResult::Live);
        assert_eq!(compare(busy(), unseen), CanaryResult::Live);
        // The last consumer took them along when it ended, and has acknowledged them.
        assert_eq!(compare(none(), none()), CanaryResult::Live);
        for now in [
            view(5, 0, 0, nowhere),
            view(0, 1, 1, nowhere),
            view(1, 0, 1, nowhere),
            view(0, 0, 1, [there(0, 0), there(1, 0)]),
        ] {
            let result = compare(none(), now.clone());
            assert!(matches!(result, CanaryResult::Waiting(_)), "{now:?}");
        }
        let parked = compare(none(), view(0, 0, 1, [there(1, 0), there(0, 0)]));
        assert!(
            matches!(parked, CanaryResult::ParkedElsewhere(_)),
            "{parked:?}"
        );
    }
}
