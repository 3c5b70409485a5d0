//! Who is in trouble, decided from one snapshot after the other. No clock, no I/O.
//!
//! Each judgement is yes, no, or unknown. Only what was seen again and again for its whole time is told; what was not looked at for a while
//! begins anew; and only what was seen to be well is told to be over.

use std::{
    collections::{BTreeMap, VecDeque},
    time::{Duration, Instant},
};

use retryrmq::{dropped_queue, parking_queue, unreadable_queue, work_queue_of};
use retryrmq_operator::plural::messages;

use super::{Configuration, QueueView, Snapshot};
use crate::{QueueProblemReport, QueueProblemState};

/// A queue with messages or bindings, and nobody consumes it.
pub const NO_CONSUMER: &str = "no_consumer";
/// A parking queue gets more and more.
pub const PARKING_GROWS: &str = "parking_grows";
/// Messages wait for a queue that does not exist any more.
pub const GONE: &str = "work_queue_gone";
/// A consumer holds messages and acknowledges none.
pub const UNACKNOWLEDGED: &str = "unacknowledged";

/// A trouble that lasts is told again, so that a leader that lost its memory knows, and one that hears nothing can give it up.
const AGAIN: Duration = Duration::from_secs(3_600);
/// How many looks may fail before what was seen before them no longer counts.
const GAPS: u32 = 3;
/// Samples of a parking queue.
const SAMPLES: u32 = 60;

/// The engine.
#[derive(Debug)]
pub struct Engine {
    configuration: Configuration,
    vhost: String,
    /// Queues of the service itself.
    own: Vec<String>,
    queues: BTreeMap<String, WatchedQueue>,
}

#[derive(Debug)]
struct WatchedQueue {
    seen: Instant,
    /// By kind.
    cases: BTreeMap<&'static str, ProblemState>,
    /// Sizes of a parking queue, the oldest first.
    samples: VecDeque<(Instant, u64)>,
    /// The size of a parking queue before it grew: what people were told of is gone when it has no more than that.
    size_before: Option<u64>,
    acknowledged: Option<u64>,
}

#[derive(Debug, Default)]
struct ProblemState {
    /// Since when it looks bad without a break.
    since: Option<Instant>,
    /// When people were told last.
    last_reported: Option<Instant>,
    /// When it was said last that it lasts.
    lasting: Option<Instant>,
    /// It was seen to be well since this engine began: somebody who was told by another one need worry no more.
    was_well: bool,
}

/// How a queue looks.
enum QueueHealth {
    Well,
    /// With what to say, and how long that must last.
    Bad(String, Duration),
    /// It may have been bad, and is not well yet.
    Lasting(String),
}

impl Engine {
    /// An engine that has seen nothing yet. `own` are names of queues of the service itself, which are no orphans.
    #[must_use]
    pub fn new(configuration: Configuration, vhost: impl Into<String>, own: Vec<String>) -> Self {
        Self {
            configuration,
            vhost: vhost.into(),
            own,
            queues: BTreeMap::new(),
        }
    }

    /// Takes a snapshot, and tells who is in trouble now and who no longer. `report` says whether it took that: if it did not, it is told
    /// again after the next snapshot.
    pub fn on(
        &mut self,
        snapshot: &Snapshot,
        now: Instant,
        mut report: impl FnMut(QueueProblemReport) -> bool,
    ) {
        let mut queues = std::mem::take(&mut self.queues);
        queues.retain(|queue, watched| {
            if snapshot.is_gone(queue) != Some(true) {
                return true;
            }
            watched.cases.retain(|kind, case| {
                let text = format!("the queue `{queue}` does not exist any more");
                let may_be_open = case.last_reported.is_some() || case.lasting.is_some();
                may_be_open && !report(self.trouble(queue, kind, text, QueueProblemState::Over))
            });
            !watched.cases.is_empty()
        });
        for (queue, view) in &snapshot.queues {
            let is_own = self.own.iter().any(|own| own == queue);
            if is_own || view.temporary || !self.configuration.watches(queue) {
                continue;
            }
            let watched = queues.entry(queue.clone()).or_insert_with(|| WatchedQueue {
                seen: now,
                cases: BTreeMap::new(),
                samples: VecDeque::new(),
                size_before: None,
                acknowledged: None,
            });
            // Nobody knows what was in a gap.
            let gap = now.saturating_duration_since(watched.seen);
            if gap > self.configuration.every.0 * GAPS {
                for case in watched.cases.values_mut() {
                    case.since = None;
                }
                watched.samples.clear();
            }
            watched.seen = now;
            for (kind, look) in self.check_queue(queue, *view, snapshot, watched, now) {
                let case = watched.cases.entry(kind).or_default();
                self.update_case(queue, kind, look, case, now, &mut report);
            }
        }
        self.queues = queues;
    }

    fn check_queue(
        &self,
        queue: &str,
        view: QueueView,
        snapshot: &Snapshot,
        watched: &mut WatchedQueue,
        now: Instant,
    ) -> Vec<(&'static str, QueueHealth)> {
        let mut looks = Vec::new();
        match work_queue_of(queue) {
            Some(work) if queue == parking_queue(work) || queue == unreadable_queue(work) => {
                looks.extend(
                    self.parking(queue, view, watched, now)
                        .map(|look| (PARKING_GROWS, look)),
                );
            }
            // The broker deletes what is there, and nobody waits for it.
            Some(work) if queue == dropped_queue(work) => {}
            Some(work) => {
                looks.extend(waiting(queue, work, view, snapshot).map(|look| (GONE, look)))
            }
            None => {
                looks.extend(self.consumers(queue, view).map(|look| (NO_CONSUMER, look)));
                looks.extend(
                    self.acks(queue, view, watched)
                        .map(|look| (UNACKNOWLEDGED, look)),
                );
            }
        }
        looks
    }

    fn consumers(&self, queue: &str, view: QueueView) -> Option<QueueHealth> {
        if view.consumers? > 0 {
            return Some(QueueHealth::Well);
        }
        let after = self.configuration.after;
        match (view.ready, view.bound) {
            (Some(ready), _) if ready > 0 => Some(QueueHealth::Bad(
                format!(
                    "nobody has consumed the queue `{queue}` for {after}, and {} in it",
                    wait(ready)
                ),
                after.0,
            )),
            (_, Some(true)) => Some(QueueHealth::Bad(
                format!(
                    "nobody has consumed the queue `{queue}` for {after}, and an exchange is bound to it"
                ),
                after.0,
            )),
            (Some(_), _) => Some(QueueHealth::Well), // nothing waits, and nothing comes that anybody knows of
            (None, _) => None,
        }
    }

    fn acks(
        &self,
        queue: &str,
        view: QueueView,
        watched: &mut WatchedQueue,
    ) -> Option<QueueHealth> {
        let acknowledged = view.acknowledged?;
        let before = watched.acknowledged.replace(acknowledged);
        let (ready, held) = (view.ready?, view.unacknowledged?);
        if before != Some(acknowledged) || ready == 0 || held == 0 {
            return Some(QueueHealth::Well);
        }
        let after = self.configuration.stuck_after;
        Some(QueueHealth::Bad(
            format!(
                "the consumers of the queue `{queue}` hold {} and have acknowledged none for {after}, while {}",
                messages(held),
                wait(ready)
            ),
            after.0,
        ))
    }

    fn parking(
        &self,
        queue: &str,
        view: QueueView,
        watched: &mut WatchedQueue,
        now: Instant,
    ) -> Option<QueueHealth> {
        let size = view.ready? + view.unacknowledged.unwrap_or(0); // a look holds some
        let within = self.configuration.parked_within;
        let samples = &mut watched.samples;
        while samples
            .front()
            .is_some_and(|(at, _)| now.saturating_duration_since(*at) > within.0)
        {
            samples.pop_front();
        }
        let least = samples.iter().map(|(_, size)| *size).min().unwrap_or(size);
        let step = within.0 / SAMPLES;
        let is_due = |at: Instant| now.saturating_duration_since(at) >= step;
        // A smaller size must not slip between two samples: what grows again from there is growth.
        if size < least || samples.back().is_none_or(|(at, _)| is_due(*at)) {
            samples.push_back((now, size));
            if samples.len() > 2 * SAMPLES as usize {
                samples.pop_front();
            }
        }
        let growth = size.saturating_sub(least);
        if growth >= self.configuration.parked_growth {
            let case = watched.cases.get(PARKING_GROWS);
            if case.is_none_or(|case| case.last_reported.is_none()) {
                watched.size_before = Some(least);
            }
            let text = format!(
                "the queue `{queue}` has {}, {growth} more than {within} ago",
                messages(size)
            );
            return Some(QueueHealth::Bad(text, Duration::ZERO));
        }
        // Another replica, or this one before it was restarted, may have told people of any that are parked.
        Some(match size <= watched.size_before.unwrap_or(0) {
            true => QueueHealth::Well,
            false => {
                QueueHealth::Lasting(format!("the queue `{queue}` still has {}", messages(size)))
            }
        })
    }

    fn update_case(
        &self,
        queue: &str,
        kind: &'static str,
        look: QueueHealth,
        case: &mut ProblemState,
        now: Instant,
        report: &mut impl FnMut(QueueProblemReport) -> bool,
    ) {
        let is_due = |last: Option<Instant>| {
            last.is_none_or(|last| now.saturating_duration_since(last) >= AGAIN)
        };
        match look {
            QueueHealth::Well => {
                case.since = None;
                let is_news = case.last_reported.is_some() || !case.was_well;
                let text = || format!("the queue `{queue}` is well again");
                if is_news && report(self.trouble(queue, kind, text(), QueueProblemState::Over)) {
                    (case.last_reported, case.lasting, case.was_well) = (None, None, true);
                }
            }
            QueueHealth::Lasting(text) => {
                case.since = None;
                let is_due = is_due(case.lasting);
                if is_due && report(self.trouble(queue, kind, text, QueueProblemState::Lasting)) {
                    (case.lasting, case.was_well) = (Some(now), false);
                }
            }
            QueueHealth::Bad(text, time_limit) => {
                let since = *case.since.get_or_insert(now);
                let lasts = now.saturating_duration_since(since) >= time_limit
                    || case.last_reported.is_some();
                let is_news = is_due(case.last_reported);
                if lasts
                    && is_news
                    && report(self.trouble(queue, kind, text, QueueProblemState::Begun))
                {
                    case.last_reported = Some(now);
                }
            }
        }
    }

    fn trouble(
        &self,
        queue: &str,
        kind: &'static str,
        text: String,
        state: QueueProblemState,
    ) -> QueueProblemReport {
        QueueProblemReport {
            vhost: self.vhost.clone(),
            queue: queue.to_owned(),
            kind,
            text,
            state,
        }
    }
}

/// `1 message waits`, `2 messages wait`.
fn wait(count: u64) -> String {
    let verb = if count == 1 { "waits" } else { "wait" };
    format!("{} {verb}", messages(count))
}

/// A work queue may be deleted and made anew in a moment.
const MOMENT: Duration = Duration::from_secs(60);

fn waiting(queue: &str, work: &str, view: QueueView, snapshot: &Snapshot) -> Option<QueueHealth> {
    let count = view.ready? + view.unacknowledged.unwrap_or(0);
    match snapshot.is_gone(work)? {
        true if count > 0 => Some(QueueHealth::Bad(
            format!(
                "{} in `{queue}` for the queue `{work}`, which does not exist any more",
                wait(count)
            ),
            MOMENT,
        )),
        // With at-least-once dead-lettering, what is due and cannot return is counted by some sources only: that none is ready
        // does not say that none is there.
        true => None,
        false => Some(QueueHealth::Well),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ConfigDuration;

    const EVERY: Duration = Duration::from_secs(30);

    fn engine() -> Engine {
        Engine::new(
            Configuration::default(),
            "/",
            vec!["retryrmq.reports".to_owned()],
        )
    }

    fn view(ready: u64, consumers: u64) -> QueueView {
        QueueView {
            ready: Some(ready),
            unacknowledged: Some(0),
            consumers: Some(consumers),
            ..QueueView::default()
        }
    }

    fn seen<const N: usize>(queues: [(&str, QueueView); N]) -> Snapshot {
        Snapshot {
            queues: queues
                .into_iter()
                .map(|(name, view)| (name.to_owned(), view))
                .collect(),
            complete: true,
            ..Snapshot::default()
        }
    }

    fn name(trouble: &QueueProblemReport) -> String {
        let mark = match trouble.state {
            QueueProblemState::Begun => '+',
            QueueProblemState::Lasting => '=',
            QueueProblemState::Over => '-',
        };
        format!("{mark}{}:{}", trouble.queue, trouble.kind)
    }

    /// The kinds that were raised (`+`) or over (`-`) in each look, without what a new engine says of what is well.
    fn story(
        engine: &mut Engine,
        at: &mut Instant,
        times: u32,
        snapshot: &Snapshot,
    ) -> Vec<String> {
        let mut said = Vec::new();
        for _ in 0..times {
            *at += EVERY;
            engine.on(snapshot, *at, |trouble| {
                said.push(name(&trouble));
                true
            });
        }
        said
    }

    #[test]
    fn an_orphan_is_told_once_after_its_time_and_is_over_when_somebody_comes() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let alone = seen([("orders", view(3, 0))]);
        assert!(story(&mut engine, &mut at, 30, &alone).is_empty());
        assert_eq!(
            story(&mut engine, &mut at, 1, &alone),
            ["+orders:no_consumer"]
        );
        assert!(story(&mut engine, &mut at, 60, &alone).is_empty());
        let served = seen([("orders", view(3, 1))]);
        assert_eq!(
            story(&mut engine, &mut at, 3, &served),
            ["-orders:no_consumer"]
        );
    }

    #[test]
    fn a_source_that_fails_neither_raises_nor_resolves() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let alone = seen([("orders", view(3, 0))]);
        story(&mut engine, &mut at, 25, &alone);
        at += Duration::from_secs(3_600); // nobody looked
        assert!(story(&mut engine, &mut at, 30, &alone).is_empty());
        assert_eq!(
            story(&mut engine, &mut at, 1, &alone),
            ["+orders:no_consumer"]
        );
        // One that sees only a part, or does not know.
        let part = Snapshot::default();
        let unknown = seen([("orders", QueueView::default())]);
        assert!(story(&mut engine, &mut at, 10, &part).is_empty());
        assert!(story(&mut engine, &mut at, 10, &unknown).is_empty());
        // It is gone where everything is seen.
        assert_eq!(
            story(&mut engine, &mut at, 2, &seen([])),
            ["-orders:no_consumer"]
        );
    }

    #[test]
    fn what_nobody_has_to_look_after_is_no_orphan() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let temporary = QueueView {
            temporary: true,
            ..view(3, 0)
        };
        let nobody = seen([
            ("temporary", temporary),
            ("amq.gen-x", view(3, 0)),
            ("retryrmq.reports", view(3, 0)),
            ("orders", view(0, 1)),
            ("orders.retry.1000", view(3, 0)),
            ("orders.parked", view(3, 0)),
            ("empty", view(0, 0)),
        ]);
        let said = story(&mut engine, &mut at, 100, &nobody);
        assert!(!said.iter().any(|said| said.starts_with('+')), "{said:?}");
        let bound = QueueView {
            bound: Some(true),
            ..view(0, 0)
        };
        assert_eq!(
            story(&mut engine, &mut at, 31, &seen([("empty", bound)])),
            ["-orders.parked:parking_grows", "+empty:no_consumer"]
        );
    }

    #[test]
    fn a_new_engine_says_of_a_parking_queue_that_it_is_well_when_it_is_empty() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let parked = |n| seen([("orders.parked", view(n, 0))]);
        let lasts = ["=orders.parked:parking_grows"];
        assert_eq!(story(&mut engine, &mut at, 100, &parked(5_000)), lasts);
        // Again within the four hours after which an incident is given up.
        assert_eq!(story(&mut engine, &mut at, 100, &parked(5_000)), lasts);
        assert_eq!(
            story(&mut engine, &mut at, 2, &parked(0)),
            ["-orders.parked:parking_grows"]
        );
    }

    #[test]
    fn messages_that_wait_for_a_queue_that_is_gone_are_told() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let orphaned = seen([("orders.retry.1000", view(2, 0))]);
        assert_eq!(
            story(&mut engine, &mut at, 3, &orphaned),
            ["+orders.retry.1000:work_queue_gone"]
        );
        let back = seen([("orders.retry.1000", view(2, 0)), ("orders", view(0, 1))]);
        assert!(
            story(&mut engine, &mut at, 1, &back)
                .contains(&"-orders.retry.1000:work_queue_gone".to_owned())
        );
        // Where not every queue is seen, one that is missing may be there.
        let (mut engine, mut part) = (super::tests::engine(), orphaned);
        part.complete = false;
        assert!(story(&mut engine, &mut at, 10, &part).is_empty());
        part.gone.insert("orders".to_owned());
        assert_eq!(
            story(&mut engine, &mut at, 3, &part),
            ["+orders.retry.1000:work_queue_gone"]
        );
    }

    #[test]
    fn a_parking_queue_that_grows_is_told_and_one_that_stands_is_not() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let parked = |n| seen([("orders.parked", view(n, 0)), ("orders", view(0, 1))]);
        story(&mut engine, &mut at, 10, &parked(1_000));
        assert!(story(&mut engine, &mut at, 10, &parked(1_099)).is_empty());
        assert_eq!(
            story(&mut engine, &mut at, 10, &parked(1_100)),
            ["+orders.parked:parking_grows"]
        );
        // An hour later the same size is no growth, and all of them are still parked.
        assert_eq!(
            story(&mut engine, &mut at, 130, &parked(1_100)),
            ["=orders.parked:parking_grows"]
        );
        assert!(story(&mut engine, &mut at, 10, &parked(1_001)).is_empty());
        // What was there before is no news.
        assert_eq!(
            story(&mut engine, &mut at, 2, &parked(1_000)),
            ["-orders.parked:parking_grows"]
        );
        // From a smaller size on, growth is growth.
        story(&mut engine, &mut at, 1, &parked(0));
        assert_eq!(
            story(&mut engine, &mut at, 1, &parked(100)),
            ["+orders.parked:parking_grows"]
        );
    }

    #[test]
    fn a_consumer_that_acknowledges_nothing_is_told_and_a_busy_one_is_not() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let holding = |acknowledged| {
            let view = QueueView {
                unacknowledged: Some(64),
                acknowledged,
                ..view(500, 1)
            };
            seen([("orders", view)])
        };
        for n in 0..100 {
            let said = story(&mut engine, &mut at, 1, &holding(Some(n)));
            assert!(said.iter().all(|said| said.starts_with('-')));
        }
        assert!(story(&mut engine, &mut at, 100, &holding(None)).is_empty());
        assert_eq!(
            story(&mut engine, &mut at, 25, &holding(Some(200))),
            ["+orders:unacknowledged"]
        );
        assert_eq!(
            story(&mut engine, &mut at, 1, &holding(Some(201))),
            ["-orders:unacknowledged"]
        );
    }

    #[test]
    fn a_new_engine_says_that_what_is_well_is_well() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let served = seen([("orders", view(0, 1))]);
        assert_eq!(
            story(&mut engine, &mut at, 5, &served),
            ["-orders:no_consumer"]
        );
    }

    #[test]
    fn what_nobody_took_is_told_again() {
        let (mut engine, mut at) = (engine(), Instant::now());
        let alone = seen([("orders", view(3, 0)), ("bills", view(3, 0))]);
        story(&mut engine, &mut at, 30, &alone);
        let served = seen([("orders", view(3, 1)), ("bills", view(3, 0))]);
        let orders_only = seen([("orders", view(3, 1))]);
        for (snapshot, expected) in [
            (&alone, "+bills:no_consumer"),
            (&alone, "+orders:no_consumer"),
            (&served, "-orders:no_consumer"),
            (&orders_only, "-bills:no_consumer"),
        ] {
            // There is room for one, and at first for none.
            for room in [0, 1] {
                at += EVERY;
                let mut took = Vec::new();
                engine.on(snapshot, at, |trouble| {
                    let has_room = took.len() < room;
                    if has_room {
                        took.push(name(&trouble));
                    }
                    has_room
                });
                assert_eq!(took, [expected; 1][..room], "{snapshot:?}");
            }
        }
        assert!(story(&mut engine, &mut at, 9, &orders_only).is_empty());
    }

    proptest! {
        /// Nothing is told that was not bad for its whole time, and each thing that is told is over before it is told anew, but for
        /// the reminder of every hour.
        #[test]
        fn told_and_over_take_turns(looks in proptest::collection::vec((0_u64..3, 0_u64..2, 1_u64..200, proptest::bool::weighted(0.9)), 1..200)) {
            let configuration = Configuration { after: ConfigDuration::minutes(5), ..Configuration::default() };
            let mut engine = Engine::new(configuration, "/", Vec::new());
            let mut at = Instant::now();
            let (mut last_reported, mut bad_since): (Option<Instant>, Option<Instant>) = (None, None);
            let mut last = at;
            for (ready, consumers, seconds, works) in looks {
                at += Duration::from_secs(seconds);
                if !works {
                    continue;
                }
                let is_bad = ready > 0 && consumers == 0;
                if !is_bad || at - last > EVERY * 3 {
                    bad_since = None;
                }
                last = at;
                let since = *bad_since.get_or_insert(at);
                if !is_bad {
                    bad_since = None;
                }
                let mut troubles = Vec::new();
                engine.on(&seen([("orders", view(ready, consumers))]), at, |trouble| {
                    troubles.push(trouble);
                    true
                });
                for trouble in troubles {
                    if trouble.state == QueueProblemState::Over {
                        prop_assert!(!is_bad);
                        last_reported = None;
                    } else {
                        prop_assert!(is_bad);
                        match last_reported {
                            None => prop_assert!(at - since >= Duration::from_secs(300)),
                            Some(before) => prop_assert!(at - before >= AGAIN),
                        }
                        last_reported = Some(at);
                    }
                }
                prop_assert!(is_bad || last_reported.is_none());
            }
        }
    }
}
