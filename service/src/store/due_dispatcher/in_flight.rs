//! The messages that a due dispatcher has in flight, and their outcomes.

use std::{collections::HashMap, sync::Arc, sync::atomic::Ordering, time::Duration};

use tokio::{
    task::{Id as TaskId, JoinError, JoinSet},
    time::{Instant, sleep, timeout_at},
};
use tracing::{debug, error, warn};

use super::{
    AWAY,
    destination_state::DestinationStates,
    metrics::{DispatcherMetrics, add},
    scheduling::{self, ClaimWait, Load},
};
use crate::store::{
    ClaimRequest, Destination, DueMessage, Id, Lease, PublishRefused, Result, Sink, Store,
};

/// How long a message stays that this program cannot read; another replica may be of the version that can.
const UNREADABLE: Duration = Duration::from_secs(60);

/// Leases that one call names.
const MANY: usize = 500;

pub(super) struct InFlight<S, O> {
    store: Arc<S>,
    sink: Arc<O>,
    lease: Duration,
    dispatcher_metrics: Arc<DispatcherMetrics>,
    tasks: JoinSet<PublishOutcome>,
    in_flight_messages: HashMap<TaskId, InFlightMessage>,
    bytes: usize,
    destinations: DestinationStates,
    /// Published, and to be deleted. If that takes longer than the lease, they are claimed again, and not published again.
    done: HashMap<Id, Lease>,
    back: Vec<(Lease, Duration)>,
    /// The broker takes nothing until then.
    broker_away_until: Instant,
}

/// A message in hand.
struct InFlightMessage {
    lease: Lease,
    destination: Destination,
    bytes: usize,
    /// When its lease was begun or tried to be extended last.
    since: Instant,
}

enum PublishOutcome {
    Published,
    GivenUp,
    Refused(PublishRefused),
}

impl<S: Store, O: Sink> InFlight<S, O> {
    pub(super) fn new(
        store: Arc<S>,
        sink: Arc<O>,
        dispatcher_metrics: Arc<DispatcherMetrics>,
    ) -> Self {
        Self {
            lease: store.lease(),
            store,
            sink,
            dispatcher_metrics,
            tasks: JoinSet::new(),
            in_flight_messages: HashMap::new(),
            bytes: 0,
            destinations: DestinationStates::default(),
            done: HashMap::new(),
            back: Vec::new(),
            broker_away_until: Instant::now(),
        }
    }

    /// Tells the store what has become of messages, and begins leases anew.
    pub(super) async fn settle(&mut self) -> Result<()> {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            self.note(ended);
        }
        self.delete().await?;
        self.give_back().await?;
        self.extend().await
    }

    fn note(&mut self, ended: std::result::Result<(TaskId, PublishOutcome), JoinError>) {
        let (task, outcome) = match ended {
            Ok(ended) => ended,
            Err(why) => {
                error!(%why, "publishing a message has panicked");
                (
                    why.id(),
                    PublishOutcome::Refused(PublishRefused::Line(String::new())),
                )
            }
        };
        let Some(in_flight_message) = self.in_flight_messages.remove(&task) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(in_flight_message.bytes);
        let now = Instant::now();
        let dispatcher_metrics = &self.dispatcher_metrics;
        match outcome {
            PublishOutcome::Published | PublishOutcome::GivenUp => {
                let published = matches!(outcome, PublishOutcome::Published);
                add(
                    if published {
                        &dispatcher_metrics.published
                    } else {
                        &dispatcher_metrics.given_up
                    },
                    1,
                );
                self.destinations.end(
                    &in_flight_message.destination,
                    in_flight_message.bytes,
                    true,
                    now,
                );
                self.done
                    .insert(in_flight_message.lease.id.clone(), in_flight_message.lease);
            }
            PublishOutcome::Refused(PublishRefused::Broker(why)) => {
                add(&dispatcher_metrics.refused, 1);
                if self.broker_away_until <= now {
                    warn!(why, "the broker takes nothing");
                    self.broker_away_until = now + AWAY;
                }
                self.destinations.end(
                    &in_flight_message.destination,
                    in_flight_message.bytes,
                    false,
                    now,
                );
                self.back.push((in_flight_message.lease, Duration::ZERO));
            }
            PublishOutcome::Refused(PublishRefused::Line(why) | PublishRefused::Hopeless(why)) => {
                add(&dispatcher_metrics.refused, 1);
                let pause = self.destinations.fail(
                    &in_flight_message.destination,
                    in_flight_message.bytes,
                    now,
                );
                debug!(why, destination = ?in_flight_message.destination, ?pause, "a message was not taken");
                self.back.push((in_flight_message.lease, pause));
            }
        }
        dispatcher_metrics
            .in_flight
            .store(self.in_flight_messages.len() as u64, Ordering::Relaxed);
    }

    async fn delete(&mut self) -> Result<()> {
        while !self.done.is_empty() {
            let leases: Vec<_> = self.done.values().take(MANY).cloned().collect();
            let held = self.store.delete(&leases).await?;
            for (lease, held) in leases.iter().zip(held) {
                self.done.remove(&lease.id);
                if !held {
                    add(&self.dispatcher_metrics.lost, 1);
                    debug!(id = %lease.id, "published, and the lease had run out: it may be published twice");
                }
            }
        }
        Ok(())
    }

    async fn give_back(&mut self) -> Result<()> {
        // Those of one pause go together; they are few lengths, because a line's failures share one.
        while let Some((_, pause)) = self.back.first().cloned() {
            let (same, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.back)
                .into_iter()
                .partition(|(_, other)| other.as_millis() == pause.as_millis());
            self.back = rest;
            let leases: Vec<_> = same.into_iter().map(|(lease, _)| lease).collect();
            for leases in leases.chunks(MANY) {
                // If this fails they are due again when their leases end.
                self.store.release(leases, pause).await?;
            }
        }
        Ok(())
    }

    async fn extend(&mut self) -> Result<()> {
        let now = Instant::now();
        let old: Vec<_> = self
            .in_flight_messages
            .iter()
            .filter(|(_, in_flight_message)| {
                scheduling::is_to_extend(now - in_flight_message.since, self.lease)
            })
            .map(|(task, in_flight_message)| (*task, in_flight_message.lease.clone()))
            .collect();
        for part in old.chunks(MANY) {
            let leases: Vec<_> = part.iter().map(|(_, lease)| lease.clone()).collect();
            let extended = self.store.extend(&leases).await?;
            for ((task, _), lease) in part.iter().zip(extended) {
                let Some(in_flight_message) = self.in_flight_messages.get_mut(task) else {
                    continue;
                };
                in_flight_message.since = now;
                // One that is another's now is told so when it is to be deleted.
                if let Some(lease) = lease {
                    in_flight_message.lease = lease;
                }
            }
        }
        Ok(())
    }

    /// Claims what there is room for, and says what to wait for then.
    pub(super) async fn claim(&mut self) -> Result<ClaimWait> {
        let now = Instant::now();
        if now < self.broker_away_until {
            return Ok(ClaimWait::UntilDone(self.broker_away_until - now));
        }
        let left = scheduling::left(Load {
            messages: self.in_flight_messages.len(),
            bytes: self.bytes,
        });
        let Some((limit, bytes)) = scheduling::room(left) else {
            return Ok(ClaimWait::UntilDone(AWAY));
        };
        let exclusions = self.destinations.exclusions(left, now);
        let passed = exclusions.iter().any(|exclusion| exclusion.pause.is_none());
        let claim = self
            .store
            .claim(&ClaimRequest {
                limit,
                bytes,
                exclusions,
            })
            .await?;
        let claimed = claim.due.len() + claim.unreadable.len();
        for due in claim.due {
            self.begin(due, now);
        }
        for (lease, why) in claim.unreadable {
            add(&self.dispatcher_metrics.unreadable, 1);
            error!(id = %lease.id, why, "a message in the store cannot be read; it stays there");
            self.back.push((lease, UNREADABLE));
        }
        Ok(scheduling::sleep(claimed, claim.next, passed))
    }

    fn begin(&mut self, due: DueMessage, claimed: Instant) {
        if due.again {
            add(&self.dispatcher_metrics.again, 1);
        }
        // It was published, and could not be deleted before the lease ran out.
        if let Some(lease) = self.done.get_mut(&due.lease.id) {
            *lease = due.lease;
            return;
        }
        // Its lease ran out while the store was away, and it is being published yet.
        let ours =
            |in_flight_message: &&mut InFlightMessage| in_flight_message.lease.id == due.lease.id;
        if due.again
            && let Some(in_flight_message) = self.in_flight_messages.values_mut().find(ours)
        {
            in_flight_message.lease = due.lease;
            in_flight_message.since = claimed;
            return;
        }
        let destination = due.message.destination();
        let bytes = due.message.draft().body.len();
        let in_flight_message = InFlightMessage {
            lease: due.lease.clone(),
            destination: destination.clone(),
            bytes,
            since: claimed,
        };
        let sink = Arc::clone(&self.sink);
        let task = self.tasks.spawn(async move { bring(&*sink, &due).await });
        self.in_flight_messages.insert(task.id(), in_flight_message);
        self.bytes += bytes;
        self.destinations.begin(destination, bytes, claimed);
        self.dispatcher_metrics
            .in_flight
            .store(self.in_flight_messages.len() as u64, Ordering::Relaxed);
    }

    /// Sleeps; less if something in hand is done, and not so long that a lease would run out.
    pub(super) async fn rest(&mut self, rest: ClaimWait, away: bool) {
        let (ClaimWait::For(time) | ClaimWait::UntilDone(time)) = rest else {
            return;
        };
        let store = Arc::clone(&self.store);
        let mut time = std::pin::pin!(sleep(time.min(self.lease / 6)));
        loop {
            tokio::select! {
                () = &mut time => return,
                // A store that is away is given its pause.
                () = store.hurry(), if !away => return,
                Some(ended) = self.tasks.join_next_with_id(), if !self.tasks.is_empty() => {
                    self.note(ended);
                    // More will be done in a moment, and one call serves all of them.
                    let soon = Instant::now() + scheduling::together(rest);
                    if !away && time.deadline() > soon {
                        time.as_mut().reset(soon);
                    }
                }
            }
        }
    }

    /// Waits for what is in hand, and leaves what is not done in time to its leases.
    pub(super) async fn drain(mut self, deadline: Instant) {
        while !self.in_flight_messages.is_empty() {
            match timeout_at(deadline, self.tasks.join_next_with_id()).await {
                Ok(Some(ended)) => self.note(ended),
                Ok(None) | Err(_) => break,
            }
            if let Err(why) = self.extend().await {
                debug!(%why, "leases could not be extended");
            }
        }
        // What is still being published keeps its lease: it may be confirmed yet, and given back it would surely come twice.
        if let Err(why) = self.settle().await {
            warn!(%why, in_flight = self.in_flight_messages.len(), "the store did not take what was done; it is due again when its leases end");
        }
    }
}

async fn bring<O: Sink>(sink: &O, due: &DueMessage) -> PublishOutcome {
    match sink.publish(due).await {
        Ok(()) => PublishOutcome::Published,
        Err(PublishRefused::Hopeless(why)) => match sink.give_up(due, &why).await {
            Ok(()) => PublishOutcome::GivenUp,
            Err(refusal) => PublishOutcome::Refused(refusal),
        },
        Err(refusal) => PublishOutcome::Refused(refusal),
    }
}
