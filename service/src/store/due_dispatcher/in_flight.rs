//! What a ticker has in hand, and what becomes of it.

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
    scheduling::{self, Load, ClaimWait},
};
use crate::store::{DueMessage, Id, Lease, Destination, Sink, PublishRefused, Result, Store, ClaimRequest};

/// How long a message stays that this program cannot read; another replica may be of the version that can.
const UNREADABLE: Duration = Duration::from_secs(60);

/// Leases that one call names.
const MANY: usize = 500;

pub(super) struct InFlight<S, O> {
    store: Arc<S>,
    outlet: Arc<O>,
    lease: Duration,
    figures: Arc<DispatcherMetrics>,
    tasks: JoinSet<PublishOutcome>,
    flights: HashMap<TaskId, InFlightMessage>,
    bytes: usize,
    lines: DestinationStates,
    /// Published, and to be deleted. If that takes longer than the lease, they are claimed again, and not published again.
    done: HashMap<Id, Lease>,
    back: Vec<(Lease, Duration)>,
    /// The broker takes nothing until then.
    broker_away_until: Instant,
}

/// A message in hand.
struct InFlightMessage {
    lease: Lease,
    line: Destination,
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
    pub(super) fn new(store: Arc<S>, outlet: Arc<O>, figures: Arc<DispatcherMetrics>) -> Self {
        Self {
            lease: store.lease(),
            store,
            outlet,
            figures,
            tasks: JoinSet::new(),
            flights: HashMap::new(),
            bytes: 0,
            lines: DestinationStates::default(),
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
                (why.id(), PublishOutcome::Refused(PublishRefused::Line(String::new())))
            }
        };
        let Some(flight) = self.flights.remove(&task) else {
            return;
        };
        self.bytes = self.bytes.saturating_sub(flight.bytes);
        let now = Instant::now();
        let figures = &self.figures;
        match outcome {
            PublishOutcome::Published | PublishOutcome::GivenUp => {
                let published = matches!(outcome, PublishOutcome::Published);
                add(
                    if published {
                        &figures.published
                    } else {
                        &figures.given_up
                    },
                    1,
                );
                self.lines.end(&flight.line, flight.bytes, true, now);
                self.done.insert(flight.lease.id.clone(), flight.lease);
            }
            PublishOutcome::Refused(PublishRefused::Broker(why)) => {
                add(&figures.refused, 1);
                if self.broker_away_until <= now {
                    warn!(why, "the broker takes nothing");
                    self.broker_away_until = now + AWAY;
                }
                self.lines.end(&flight.line, flight.bytes, false, now);
                self.back.push((flight.lease, Duration::ZERO));
            }
            PublishOutcome::Refused(PublishRefused::Line(why) | PublishRefused::Hopeless(why)) => {
                add(&figures.refused, 1);
                let pause = self.lines.fail(&flight.line, flight.bytes, now);
                debug!(why, line = ?flight.line, ?pause, "a message was not taken");
                self.back.push((flight.lease, pause));
            }
        }
        figures
            .in_hand
            .store(self.flights.len() as u64, Ordering::Relaxed);
    }

    async fn delete(&mut self) -> Result<()> {
        while !self.done.is_empty() {
            let leases: Vec<_> = self.done.values().take(MANY).cloned().collect();
            let held = self.store.delete(&leases).await?;
            for (lease, held) in leases.iter().zip(held) {
                self.done.remove(&lease.id);
                if !held {
                    add(&self.figures.lost, 1);
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
            .flights
            .iter()
            .filter(|(_, flight)| scheduling::is_to_extend(now - flight.since, self.lease))
            .map(|(task, flight)| (*task, flight.lease.clone()))
            .collect();
        for part in old.chunks(MANY) {
            let leases: Vec<_> = part.iter().map(|(_, lease)| lease.clone()).collect();
            let extended = self.store.extend(&leases).await?;
            for ((task, _), lease) in part.iter().zip(extended) {
                let Some(flight) = self.flights.get_mut(task) else {
                    continue;
                };
                flight.since = now;
                // One that is another's now is told so when it is to be deleted.
                if let Some(lease) = lease {
                    flight.lease = lease;
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
            messages: self.flights.len(),
            bytes: self.bytes,
        });
        let Some((limit, bytes)) = scheduling::room(left) else {
            return Ok(ClaimWait::UntilDone(AWAY));
        };
        let holds = self.lines.holds(left, now);
        let passed = holds.iter().any(|hold| hold.pause.is_none());
        let claim = self
            .store
            .claim(&ClaimRequest {
                limit,
                bytes,
                holds,
            })
            .await?;
        let claimed = claim.due.len() + claim.unreadable.len();
        for due in claim.due {
            self.begin(due, now);
        }
        for (lease, why) in claim.unreadable {
            add(&self.figures.unreadable, 1);
            error!(id = %lease.id, why, "a message in the store cannot be read; it stays there");
            self.back.push((lease, UNREADABLE));
        }
        Ok(scheduling::sleep(claimed, claim.next, passed))
    }

    fn begin(&mut self, due: DueMessage, claimed: Instant) {
        if due.again {
            add(&self.figures.again, 1);
        }
        // It was published, and could not be deleted before the lease ran out.
        if let Some(lease) = self.done.get_mut(&due.lease.id) {
            *lease = due.lease;
            return;
        }
        // Its lease ran out while the store was away, and it is being published yet.
        let ours = |flight: &&mut InFlightMessage| flight.lease.id == due.lease.id;
        if due.again
            && let Some(flight) = self.flights.values_mut().find(ours)
        {
            flight.lease = due.lease;
            flight.since = claimed;
            return;
        }
        let line = due.message.line();
        let bytes = due.message.draft().body.len();
        let flight = InFlightMessage {
            lease: due.lease.clone(),
            line: line.clone(),
            bytes,
            since: claimed,
        };
        let outlet = Arc::clone(&self.outlet);
        let task = self.tasks.spawn(async move { bring(&*outlet, &due).await });
        self.flights.insert(task.id(), flight);
        self.bytes += bytes;
        self.lines.begin(line, bytes, claimed);
        self.figures
            .in_hand
            .store(self.flights.len() as u64, Ordering::Relaxed);
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
        while !self.flights.is_empty() {
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
            warn!(%why, in_hand = self.flights.len(), "the store did not take what was done; it is due again when its leases end");
        }
    }
}

async fn bring<O: Sink>(outlet: &O, due: &DueMessage) -> PublishOutcome {
    match outlet.publish(due).await {
        Ok(()) => PublishOutcome::Published,
        Err(PublishRefused::Hopeless(why)) => match outlet.give_up(due, &why).await {
            Ok(()) => PublishOutcome::GivenUp,
            Err(refusal) => PublishOutcome::Refused(refusal),
        },
        Err(refusal) => PublishOutcome::Refused(refusal),
    }
}
