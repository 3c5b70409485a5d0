//! What is known of the last day, in memory and bounded: the page is drawn from it, and never from a parking queue.
//!
//! Every replica reads the same stream from the same time on, so all of them have the same index. Events may come twice: names of messages are
//! then the same, and only the counts are one too high.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, gauge::ConstGauge},
};

use super::{Event, HistoryAction};

/// How far back it goes.
pub(crate) const SPAN: Duration = Duration::from_secs(24 * 3_600);

/// Queues that are known at a time. Those beyond are not shown.
const QUEUES: usize = 1_000;
/// Groups of one queue; the one that was quiet for longest goes.
const GROUPS: usize = 500;
/// Actions of people that are remembered.
const ACTIONS: usize = 5_000;
const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60;

/// The index.
#[derive(Debug)]
pub(crate) struct Index {
    room: usize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    queues: BTreeMap<String, Queue>,
    /// Parked messages, by queue and mark.
    parked_events: BTreeMap<(String, String), Arc<Event>>,
    /// The same, in the order in which they came. Some are gone meanwhile.
    order: VecDeque<(String, String)>,
    /// Messages that wait, by the millisecond in which they are due.
    waits: BTreeMap<(i64, u64), Arc<Event>>,
    number: u64,
    /// What people did, newest last.
    actions: VecDeque<Arc<Event>>,
    /// The minute in which was last forgotten what is over, even when nobody looks.
    forgot: i64,
}

#[derive(Debug, Default)]
struct Queue {
    minutes: BTreeMap<i64, IntervalCounts>,
    groups: HashMap<String, Group>,
}

/// What happened in a minute, or in an hour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalCounts {
    pub(crate) retried: u64,
    pub(crate) parked: u64,
    pub(crate) dropped: u64,
}

impl IntervalCounts {
    /// Attempts that failed.
    pub(crate) fn failed(&self) -> u64 {
        self.retried + self.parked + self.dropped
    }

    fn add(&mut self, other: &Self) {
        self.retried += other.retried;
        self.parked += other.parked;
        self.dropped += other.dropped;
    }
}

/// Equal failures of a queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Group {
    pub(crate) fingerprint: String,
    pub(crate) error: String,
    pub(crate) error_type: String,
    pub(crate) reason: String,
    pub(crate) first: Timestamp,
    pub(crate) last: Timestamp,
    /// Failures since it was first seen here.
    pub(crate) count: u64,
    /// Parked messages that are known by name.
    pub(crate) parked: usize,
}

/// A queue in a list.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueSummary {
    pub(crate) name: String,
    pub(crate) day: IntervalCounts,
    pub(crate) parked: usize,
    /// Messages that wait in the broker.
    pub(crate) waiting: usize,
    /// Messages that wait in a store.
    pub(crate) stored: usize,
    pub(crate) groups: usize,
}

impl Index {
    /// That knows so many parked messages by name, and as many that wait.
    pub(crate) fn new(room: usize) -> Self {
        Self {
            room,
            inner: Mutex::default(),
        }
    }

    /// Takes an event in.
    pub(crate) fn add(&self, event: &Event, now: Timestamp) {
        let mut inner = self.lock();
        if minute(now) >= inner.forgot + 60 {
            inner.forget(now);
        }
        if !inner.queues.contains_key(&event.queue)
            && (inner.queues.len() >= QUEUES || event.queue.is_empty())
        {
            return;
        }
        let is_old = age(event.at, now) > DAY;
        match event.event {
            HistoryAction::Retried | HistoryAction::Parked => {
                let queue = inner.queues.entry(event.queue.clone()).or_default();
                queue.fail(event, is_old);
                if event.event == HistoryAction::Parked {
                    inner.die(event, self.room);
                } else {
                    inner.wait(event, now, self.room);
                }
            }
            HistoryAction::Dropped if event.mark.is_none() => {
                let queue = inner.queues.entry(event.queue.clone()).or_default();
                queue.fail(event, is_old);
            }
            // Its failure was counted before it was dropped.
            HistoryAction::Restored => inner.die(event, self.room),
            HistoryAction::Found => {
                let queue = inner.queues.entry(event.queue.clone()).or_default();
                queue.join(event);
                inner.die(event, self.room);
            }
            HistoryAction::Replayed | HistoryAction::Dropped | HistoryAction::Gone => {
                inner.leave(event)
            }
            HistoryAction::Cancelled | HistoryAction::Flushed => {
                inner.waits.retain(|_, wait| wait.mark != event.mark)
            }
            HistoryAction::Silenced
            | HistoryAction::Closed
            | HistoryAction::Begun
            | HistoryAction::Policy
            | HistoryAction::Other => {}
        }
        let is_of_a_person = matches!(
            event.event,
            HistoryAction::Replayed
                | HistoryAction::Restored
                | HistoryAction::Cancelled
                | HistoryAction::Flushed
                | HistoryAction::Silenced
                | HistoryAction::Closed
        ) || event.event == HistoryAction::Dropped && event.mark.is_some();
        if is_of_a_person {
            inner.actions.push_back(Arc::new(event.clone()));
            if inner.actions.len() > ACTIONS {
                inner.actions.pop_front();
            }
        }
    }

    /// All queues, those with the most parked messages first.
    pub(crate) fn queues(&self, now: Timestamp) -> Vec<QueueSummary> {
        let mut inner = self.lock();
        inner.forget(now);
        let mut summaries: BTreeMap<&String, QueueSummary> = BTreeMap::new();
        for (name, queue) in &inner.queues {
            let mut line = QueueSummary {
                name: name.clone(),
                groups: queue.groups.len(),
                ..QueueSummary::default()
            };
            let recent = queue.minutes.range(minute(now) - DAY..);
            recent.for_each(|(_, minute)| line.day.add(minute));
            summaries.insert(name, line);
        }
        for (queue, _) in inner.parked_events.keys() {
            summaries.entry(queue).or_default().parked += 1;
        }
        for wait in inner.waits.values() {
            let summary = summaries.entry(&wait.queue).or_default();
            match wait.in_store {
                true => summary.stored += 1,
                false => summary.waiting += 1,
            }
        }
        let mut summaries: Vec<_> = summaries
            .into_values()
            .filter(|l| !l.name.is_empty())
            .collect();
        summaries.sort_by(|a, b| {
            let rank =
                |line: &QueueSummary| (line.parked, line.day.failed(), line.waiting + line.stored);
            rank(b).cmp(&rank(a)).then_with(|| a.name.cmp(&b.name))
        });
        summaries
    }

    /// The 24 hours until now of one queue, or of all, oldest first.
    pub(crate) fn hours(&self, queue: Option<&str>, now: Timestamp) -> [IntervalCounts; 24] {
        let inner = self.lock();
        let mut hours = [IntervalCounts::default(); 24];
        let queues = inner
            .queues
            .iter()
            .filter(|(name, _)| queue.is_none_or(|queue| queue == *name));
        for (_, queue) in queues {
            for (at, counts) in queue.minutes.range(minute(now) - DAY + 1..) {
                let ago = (minute(now) - at).clamp(0, DAY - 1) / 60;
                let hour = 23 - usize::try_from(ago).unwrap_or(23);
                hours[hour].add(counts);
            }
        }
        hours
    }

    /// The groups of a queue, the latest first.
    pub(crate) fn groups(&self, queue: &str, now: Timestamp) -> Vec<Group> {
        let mut inner = self.lock();
        inner.forget(now);
        let mut groups: Vec<Group> = match inner.queues.get(queue) {
            Some(known) => known.groups.values().cloned().collect(),
            None => Vec::new(),
        };
        let mut parked: HashMap<&str, usize> = HashMap::new();
        for (_, death) in inner.of_queue(queue) {
            *parked.entry(Event::text(&death.fingerprint)).or_default() += 1;
        }
        for group in &mut groups {
            group.parked = parked.get(group.fingerprint.as_str()).copied().unwrap_or(0);
        }
        groups.sort_by(|a, b| {
            b.last
                .cmp(&a.last)
                .then_with(|| a.fingerprint.cmp(&b.fingerprint))
        });
        groups
    }

    /// The parked messages of a queue, or of one of its groups, that are known by name: the latest first.
    pub(crate) fn parked_events(&self, queue: &str, fingerprint: Option<&str>) -> Vec<Arc<Event>> {
        let inner = self.lock();
        let of_group = |death: &&Arc<Event>| {
            fingerprint.is_none_or(|print| Event::text(&death.fingerprint) == print)
        };
        let all = inner.of_queue(queue).map(|(_, death)| death);
        let mut parked_events: Vec<_> = all.filter(of_group).map(Arc::clone).collect();
        parked_events.sort_by(|a, b| b.at.cmp(&a.at).then_with(|| a.mark.cmp(&b.mark)));
        parked_events
    }

    /// One parked message.
    pub(crate) fn death(&self, queue: &str, mark: &str) -> Option<Arc<Event>> {
        let key = (queue.to_owned(), mark.to_owned());
        self.lock().parked_events.get(&key).map(Arc::clone)
    }

    /// What waits, by the time when it is due.
    pub(crate) fn waits(&self, now: Timestamp) -> Vec<(Timestamp, Arc<Event>)> {
        let mut inner = self.lock();
        inner.forget(now);
        let waits = inner.waits.iter();
        waits
            .filter_map(|((due, _), wait)| {
                let due = Timestamp::from_millisecond(*due).ok()?;
                Some((due, Arc::clone(wait)))
            })
            .collect()
    }

    /// Parked messages whose queue, id, error or routing key has this text, without regard to case; at most so many.
    pub(crate) fn search(&self, text: &str, most: usize) -> Vec<Arc<Event>> {
        let text = text.to_lowercase();
        let has = |field: &str| field.to_lowercase().contains(&text);
        let inner = self.lock();
        let found = inner.parked_events.values().filter(|death| {
            has(&death.queue)
                || [
                    &death.message_id,
                    &death.error,
                    &death.error_type,
                    &death.routing_key,
                    &death.fingerprint,
                    &death.traceparent,
                ]
                .into_iter()
                .any(|field| field.as_deref().is_some_and(has))
        });
        found.take(most).map(Arc::clone).collect()
    }

    /// What people did in a queue, or in a job: the latest first.
    pub(crate) fn actions(
        &self,
        is_meant: impl Fn(&Event) -> bool,
        most: usize,
    ) -> Vec<Arc<Event>> {
        let inner = self.lock();
        let actions = inner.actions.iter().rev().filter(|action| is_meant(action));
        actions.take(most).map(Arc::clone).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn fail(&mut self, event: &Event, is_old: bool) {
        if !is_old {
            let counts = self.minutes.entry(minute(event.at)).or_default();
            match event.event {
                HistoryAction::Retried => counts.retried += 1,
                HistoryAction::Parked => counts.parked += 1,
                _ => counts.dropped += 1,
            }
        }
        self.join(event);
    }

    fn join(&mut self, event: &Event) {
        let Some(fingerprint) = &event.fingerprint else {
            return;
        };
        if !self.groups.contains_key(fingerprint) && self.groups.len() >= GROUPS {
            let oldest = self.groups.values().min_by_key(|group| group.last);
            if let Some(oldest) = oldest.map(|group| group.fingerprint.clone()) {
                self.groups.remove(&oldest);
            }
        }
        let group = self.groups.entry(fingerprint.clone()).or_insert(Group {
            fingerprint: fingerprint.clone(),
            first: event.at,
            last: event.at,
            ..Group::default()
        });
        group.count += 1;
        group.first = group.first.min(event.at);
        if event.at >= group.last {
            group.last = event.at;
            group.error = Event::text(&event.error).to_owned();
            group.error_type = Event::text(&event.error_type).to_owned();
            group.reason = Event::text(&event.reason).to_owned();
        }
    }
}

impl Inner {
    fn of_queue(&self, queue: &str) -> impl Iterator<Item = (&(String, String), &Arc<Event>)> {
        let from = (queue.to_owned(), String::new());
        let parked_events = self.parked_events.range(from..);
        parked_events.take_while(move |((of, _), _)| of.len() == queue.len() && of == queue)
    }

    fn die(&mut self, event: &Event, room: usize) {
        let Some(mark) = &event.mark else {
            return;
        };
        let key = (event.queue.clone(), mark.clone());
        if self
            .parked_events
            .insert(key.clone(), Arc::new(event.clone()))
            .is_some()
        {
            return;
        }
        self.order.push_back(key);
        while self.parked_events.len() > room
            && let Some(oldest) = self.order.pop_front()
        {
            self.parked_events.remove(&oldest);
        }
        if self.order.len() > room.saturating_mul(2) {
            let parked_events = &self.parked_events;
            self.order.retain(|key| parked_events.contains_key(key));
        }
    }

    fn wait(&mut self, event: &Event, now: Timestamp, room: usize) {
        let delay = i64::try_from(event.delay_ms.unwrap_or(0)).unwrap_or(i64::MAX);
        let due = event.at.as_millisecond().saturating_add(delay);
        if due <= now.as_millisecond() {
            return;
        }
        self.number += 1;
        self.waits
            .insert((due, self.number), Arc::new(event.clone()));
        if self.waits.len() > room {
            self.waits.pop_last(); // what comes back soonest is known
        }
    }

    fn leave(&mut self, event: &Event) {
        if let Some(mark) = &event.mark {
            self.parked_events
                .remove(&(event.queue.clone(), mark.clone()));
        }
    }

    /// What is over.
    fn forget(&mut self, now: Timestamp) {
        self.forgot = minute(now);
        let waits = self.waits.split_off(&(now.as_millisecond(), 0));
        self.waits = waits;
        let (first, parked_events) = (minute(now) - DAY, &self.parked_events);
        let mut alive: HashMap<&str, HashSet<&str>> = HashMap::new();
        for ((queue, _), death) in parked_events {
            let prints = alive.entry(queue).or_default();
            prints.insert(Event::text(&death.fingerprint));
        }
        self.queues.retain(|name, queue| {
            queue.minutes = queue.minutes.split_off(&first);
            let alive = alive.get(name.as_str());
            queue.groups.retain(|print, group| {
                minute(group.last) >= first
                    || alive.is_some_and(|prints| prints.contains(print.as_str()))
            });
            !queue.minutes.is_empty() || !queue.groups.is_empty()
        });
    }
}

fn minute(at: Timestamp) -> i64 {
    at.as_millisecond().div_euclid(MINUTE)
}

/// In minutes.
fn age(at: Timestamp, now: Timestamp) -> i64 {
    minute(now) - minute(at)
}

/// The index, for Prometheus.
#[derive(Debug)]
pub(super) struct IndexMetrics(pub(super) Arc<Index>);

impl Collector for IndexMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Timestamp::now();
        let mut waiting: BTreeMap<(String, String), i64> = BTreeMap::new();
        for (_, wait) in self.0.waits(now) {
            let key = (wait.queue.clone(), Event::text(&wait.reason).to_owned());
            *waiting.entry(key).or_default() += 1;
        }
        let mut family = encoder.encode_descriptor(
            "waiting",
            "Messages that wait for their next attempt, as the history says, by the reason of their death",
            None,
            MetricType::Gauge,
        )?;
        for ((queue, reason), count) in waiting {
            let labels = [("queue", queue), ("reason", reason)];
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
        let summaries = self.0.queues(now);
        let mut family = encoder.encode_descriptor(
            "parked_indexed",
            "Parked messages that the history has indexed",
            None,
            MetricType::Gauge,
        )?;
        for line in summaries {
            let count = i64::try_from(line.parked).unwrap_or(i64::MAX);
            let labels = [("queue", line.name)];
            ConstGauge::new(count).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn event(action: HistoryAction, mark: &str, seconds: i64) -> Event {
        Event {
            at: at(seconds),
            event: action,
            queue: "orders".to_owned(),
            mark: Some(mark.to_owned()),
            fingerprint: Some("f".to_owned()),
            error: Some("No Stock".to_owned()),
            delay_ms: Some(5_000),
            ..Event::default()
        }
    }

    #[test]
    fn what_was_parked_is_known_until_somebody_replays_it_and_twice_is_once() {
        let index = Index::new(10);
        for mark in ["a", "b", "a"] {
            index.add(&event(HistoryAction::Parked, mark, 0), at(1));
        }
        let mut other = event(HistoryAction::Parked, "z", 0);
        other.queue = "orders.eu".to_owned();
        index.add(&other, at(1));
        assert_eq!(index.parked_events("orders", Some("f")).len(), 2);
        assert_eq!(index.search("no stock", 10).len(), 3);
        assert_eq!(index.search("no stock", 1).len(), 1);
        index.add(
            &event(HistoryAction::Replayed, "a", 2).by("ann", "j"),
            at(2),
        );
        assert!(index.death("orders", "a").is_none());
        let groups = index.groups("orders", at(3));
        assert_eq!((groups.len(), groups[0].parked, groups[0].count), (1, 1, 3));
        let actions = index.actions(|action| action.job.as_deref() == Some("j"), 10);
        assert_eq!((actions.len(), actions[0].who.as_str()), (1, "ann"));
    }

    #[test]
    fn what_waits_is_known_until_it_is_due_and_cancelled() {
        let index = Index::new(2);
        for (mark, seconds) in [("late", 9), ("a", 0), ("b", 1)] {
            index.add(&event(HistoryAction::Retried, mark, seconds), at(seconds));
        }
        let marks = |now| -> Vec<String> {
            let waits = index.waits(at(now)).into_iter();
            waits.filter_map(|(_, wait)| wait.mark.clone()).collect()
        };
        assert_eq!(marks(1), ["a", "b"], "the last is beyond the room");
        index.add(&event(HistoryAction::Cancelled, "a", 2), at(2));
        assert_eq!(marks(2), ["b"]);
        assert!(marks(20).is_empty());
        let all = index.queues(at(20));
        assert_eq!((all[0].day.retried, all[0].waiting), (3, 0));
    }

    #[test]
    fn what_waits_in_a_store_is_told_from_what_waits_in_the_broker() {
        let index = Index::new(10);
        for (mark, in_store) in [("a", true), ("b", true), ("c", false)] {
            let waits = Event {
                in_store,
                ..event(HistoryAction::Retried, mark, 0)
            };
            index.add(&waits, at(0));
        }
        let all = index.queues(at(1));
        assert_eq!((all[0].stored, all[0].waiting), (2, 1));
    }

    #[test]
    fn hours_end_now_and_a_day_is_forgotten() {
        let index = Index::new(10);
        for (mark, seconds) in [("a", -25 * 3_600), ("b", -90 * 60), ("c", 0)] {
            index.add(&event(HistoryAction::Parked, mark, seconds), at(0));
        }
        let hours = index.hours(Some("orders"), at(0));
        let parked: Vec<_> = hours.iter().map(|hour| hour.parked).collect();
        assert_eq!(parked.iter().sum::<u64>(), 2);
        assert_eq!((parked[23], parked[22]), (1, 1));
        assert_eq!(index.hours(None, at(0)), hours);
        for mark in ["a", "b", "c"] {
            index.add(&event(HistoryAction::Dropped, mark, 0), at(0));
        }
        assert!(index.queues(at(2 * 86_400)).is_empty());
    }

    #[test]
    fn it_is_quick_however_different_failures_are() {
        const MANY: i64 = 60_000;
        let index = Index::new(usize::try_from(MANY).unwrap());
        for number in 0..MANY {
            let mut parked = event(HistoryAction::Parked, &format!("m{number}"), 0);
            parked.fingerprint = Some(format!("{number:016x}"));
            index.add(&parked, at(0));
        }
        // Its lock stops the reader of the stream, and every page.
        let start = std::time::Instant::now();
        assert_eq!(
            index.queues(at(1))[0].parked,
            usize::try_from(MANY).unwrap()
        );
        assert!(
            start.elapsed() < Duration::from_secs(60), // one look at each pair takes many minutes
            "{:?}",
            start.elapsed()
        );
    }

    #[test]
    fn it_stays_bounded() {
        let index = Index::new(5);
        for number in 0..2_000 {
            let mut parked = event(HistoryAction::Parked, &format!("m{number}"), number);
            parked.fingerprint = Some(format!("f{number}"));
            index.add(&parked, at(number));
            if number % 2 == 0 {
                index.add(
                    &event(HistoryAction::Replayed, &format!("m{number}"), number),
                    at(number),
                );
            }
        }
        assert_eq!(index.parked_events("orders", None).len(), 5);
        assert!(index.lock().order.len() <= 10);
        assert_eq!(index.groups("orders", at(2_000)).len(), GROUPS);
        assert!(index.lock().actions.len() <= ACTIONS);
    }
}
