//! What waits for one channel, and when which notice is tried. No clock, no I/O.
//!
//! Notices of an incident go out in their order. One that is refused waits by itself, because the refusal may be about its text, and those of
//! other incidents pass it. The channel itself rests when a second one is refused before any is taken, or when the other side asks for time.

use std::{collections::HashSet, time::Duration};

use retryrmq::doubling_pause::DoublingPause;
use tokio::time::Instant;

use crate::alerts::Notice;

/// Between two tries at most.
const LONGEST: Duration = Duration::from_secs(300);

#[derive(Debug)]
pub(super) struct RetryQueue {
    pause: DoublingPause,
    /// In the order in which they came.
    waiting: Vec<QueuedNotice>,
    /// The number of the first notice that was refused since one was taken.
    refused: Option<u64>,
    rests: u32,
    rests_until: Option<Instant>,
}

#[derive(Debug)]
struct QueuedNotice {
    notice: Notice,
    tries: u32,
    due: Instant,
}

impl RetryQueue {
    /// `first_pause` is the pause before the second try.
    pub(super) fn new(first_pause: Duration) -> Self {
        Self {
            pause: DoublingPause::new(first_pause, LONGEST),
            waiting: Vec::new(),
            refused: None,
            rests: 0,
            rests_until: None,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn add(&mut self, notice: Notice, now: Instant) {
        self.waiting.push(QueuedNotice {
            notice,
            tries: 0,
            due: now,
        });
    }

    /// The place of the notice whose turn is next, and when that is.
    pub(super) fn next(&self, now: Instant) -> Option<(usize, Instant)> {
        let now = self.rests_until.map_or(now, |rest| rest.max(now));
        let mut incidents = HashSet::new();
        let firsts = self.waiting.iter().enumerate();
        let firsts = firsts.filter(|(_, waiting)| incidents.insert(&waiting.notice.incident));
        let turn = firsts.min_by_key(|(_, waiting)| {
            // What was never refused is the most likely to be taken.
            let tries = self.refused.map_or(0, |_| waiting.tries);
            (waiting.due.max(now), tries, waiting.due)
        });
        turn.map(|(place, waiting)| (place, waiting.due.max(now)))
    }

    pub(super) fn notice(&self, place: usize) -> &Notice {
        &self.waiting[place].notice
    }

    /// The channel took it.
    pub(super) fn taken(&mut self, place: usize) {
        self.given_up(place);
        (self.refused, self.rests, self.rests_until) = (None, 0, None);
    }

    pub(super) fn given_up(&mut self, place: usize) {
        self.waiting.remove(place);
    }

    /// The channel may take it later: not before `retry_after`, where the other side says so. `draw` is any number from 0 to 1.
    pub(super) fn refused(
        &mut self,
        place: usize,
        retry_after: Option<Duration>,
        now: Instant,
        draw: f64,
    ) {
        let after = |failures: u32| {
            // Replicas and channels that were refused together do not come back together.
            let pause = self.pause.after(failures).mul_f64(1.0 + draw * 0.2);
            now + pause.max(retry_after.unwrap_or_default())
        };
        let waiting = &mut self.waiting[place];
        waiting.tries += 1;
        waiting.due = after(waiting.tries);
        let number = waiting.notice.number;
        if *self.refused.get_or_insert(number) != number || retry_after.is_some() {
            self.rests += 1;
            self.rests_until = Some(after(self.rests));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests, *};

    const PAUSE: Duration = Duration::from_secs(1);

    fn notice(number: u64, incident: &str) -> Notice {
        Notice {
            number,
            incident: incident.to_owned(),
            ..tests::notice()
        }
    }

    /// A notice of each of these incidents, numbered from 0.
    fn retry_queue(incidents: &[&str], now: Instant) -> RetryQueue {
        let mut retry_queue = RetryQueue::new(PAUSE);
        for (number, incident) in (0..).zip(incidents) {
            retry_queue.add(notice(number, incident), now);
        }
        retry_queue
    }

    /// The number of the notice whose turn is next, its place, and in how long that is.
    fn turn(retry_queue: &RetryQueue, now: Instant) -> (u64, usize, Duration) {
        let (place, at) = retry_queue.next(now).expect("one waits");
        (retry_queue.notice(place).number, place, at - now)
    }

    #[test]
    fn a_refused_notice_holds_up_its_page_and_no_other() {
        let mut now = Instant::now();
        let mut retry_queue = retry_queue(&["poison", "poison"], now);
        for (fine, pause) in [(2, 1), (3, 2), (4, 4)] {
            let (number, place, wait) = turn(&retry_queue, now);
            assert_eq!((number, wait), (0, Duration::ZERO));
            retry_queue.refused(place, None, now, 0.0);
            let (number, _, wait) = turn(&retry_queue, now);
            assert_eq!((number, wait), (0, PAUSE * pause));
            retry_queue.add(notice(fine, "fine"), now);
            let (number, place, wait) = turn(&retry_queue, now);
            assert_eq!((number, wait), (fine, Duration::ZERO));
            retry_queue.taken(place);
            now += PAUSE * pause;
        }
        for expected in [0, 1] {
            let (number, place, _) = turn(&retry_queue, now);
            assert_eq!(number, expected);
            retry_queue.taken(place);
        }
        assert_eq!(retry_queue.next(now), None);
    }

    #[test]
    fn a_channel_that_refuses_two_rests_and_what_was_never_refused_goes_first() {
        let mut now = Instant::now();
        let mut retry_queue = retry_queue(&["a", "b", "c", "d"], now);
        for (expected, rest) in [(0, 0), (1, 1), (2, 2), (3, 4)] {
            let (number, place, _) = turn(&retry_queue, now);
            assert_eq!(number, expected);
            retry_queue.refused(place, None, now, 0.0);
            let (_, _, wait) = turn(&retry_queue, now);
            assert_eq!(wait, PAUSE * rest);
            now += wait;
        }
        // Never longer than five minutes, with the draw.
        for _ in 0..20 {
            let (_, place, _) = turn(&retry_queue, now);
            retry_queue.refused(place, None, now, 1.0);
            let (_, _, wait) = turn(&retry_queue, now);
            assert!(wait <= LONGEST.mul_f64(1.2), "{wait:?}");
            now += wait;
        }
        retry_queue.add(notice(9, "e"), now);
        let (number, place, _) = turn(&retry_queue, now);
        assert_eq!(number, 9);
        retry_queue.taken(place);
        let (_, _, wait) = turn(&retry_queue, now + LONGEST * 2);
        assert!(wait.is_zero(), "one was taken: the channel is well");
    }

    #[test]
    fn who_asks_for_time_is_asked_for_nothing_meanwhile() {
        let now = Instant::now();
        let mut retry_queue = retry_queue(&["a", "b"], now);
        let hour = Duration::from_secs(3_600);
        retry_queue.refused(0, Some(hour), now, 0.5);
        let (number, _, wait) = turn(&retry_queue, now);
        assert_eq!((number, wait), (1, hour));
    }
}
