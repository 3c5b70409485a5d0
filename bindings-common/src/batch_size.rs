//! How many messages to take next.

use std::time::{Duration, Instant};

/// The most messages taken at once.
const MOST: usize = 64;
/// A batch that took longer was too large.
const QUICK_BATCH: Duration = Duration::from_millis(1);
/// A handler that takes longer waits for something. On a busy machine one that does not may take milliseconds beside others, and single
/// messages for it would make it slower still.
const SLOW_HANDLER: Duration = Duration::from_millis(10);
/// A handler that takes longer is worth the waking of another one to work beside it.
const QUICK_HANDLER: Duration = Duration::from_micros(10);
/// Of fewer handlers nobody can tell how quick they are.
const ENOUGH: usize = 4;

/// How many messages to take next, for one who takes one batch after the other. Few while handlers are slow, so that none waits here that
/// another consumer could handle, and few run for nothing after a lost connection. More while they are quick: then taking messages does not
/// slow them down.
///
/// Handlers that wait return at once, so the time between two batches does not tell how quick they are. One of them is therefore watched:
/// that of the first message of a batch, until it ends; then that of the first message of the next batch.
#[derive(Debug)]
pub struct BatchSize {
    size: usize,
    /// The last batch: when, how many messages, and whether there may have been more.
    last: Option<(Instant, usize)>,
    full: bool,
    /// Since when a handler is watched, and how many messages its batch had.
    watched: Option<(Instant, usize)>,
    /// Whether the last one that was watched was quick.
    quick: bool,
}

impl Default for BatchSize {
    fn default() -> Self {
        Self {
            size: 1,
            last: None,
            full: false,
            watched: None,
            quick: false,
        }
    }
}

impl BatchSize {
    /// How many messages to take. `ended` is whether no handler is watched any more; where handlers run one after the other, that is so.
    #[must_use]
    pub fn next(&mut self, ended: bool, now: Instant) -> usize {
        if let Some((since, count)) = self.watched {
            let passed = now - since;
            if ended {
                // It may have ended long ago, and the others of its batch ran since.
                let count = u32::try_from(count).unwrap_or(u32::MAX);
                self.quick = passed < SLOW_HANDLER.saturating_mul(count);
                self.watched = None;
            } else if passed >= SLOW_HANDLER {
                self.quick = false;
            }
        }
        if !self.quick {
            self.size = 1;
        }
        self.size
    }

    /// So many were taken. If no handler was watched, that of the first one is now. Returns whether the handlers of the batch before are so
    /// quick that waking another one would take longer.
    pub fn took(&mut self, count: usize, now: Instant) -> bool {
        let (passed, before) = self
            .last
            .map_or((Duration::MAX, 0), |(at, count)| (now - at, count));
        let full = count >= self.size;
        if passed >= QUICK_BATCH {
            self.size = (self.size / 2).max(1);
        } else if self.full {
            self.size = (self.size * 2).min(MOST);
        }
        (self.last, self.full) = (Some((now, count)), full);
        if count > 0 {
            self.watched = self.watched.or(Some((now, count)));
        }
        let handlers = u32::try_from(before).unwrap_or(u32::MAX);
        before >= ENOUGH && passed < QUICK_HANDLER.saturating_mul(handlers)
    }

    /// A handler takes long: the next batch is a single message.
    pub fn slow(&mut self) {
        // Whatever the one that was watched says.
        (self.quick, self.watched) = (false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes batches as large as may be, each this long after the last one. The sizes, and what is said of the handlers.
    fn taken(batches: &mut BatchSize, now: &mut Instant, each: &[Duration]) -> Vec<(usize, bool)> {
        let ended = each.iter().map(|passed| (*passed, true));
        taken_while(batches, now, &ended.collect::<Vec<_>>())
    }

    /// The same, each with whether the watched handler has ended.
    fn taken_while(
        batches: &mut BatchSize,
        now: &mut Instant,
        each: &[(Duration, bool)],
    ) -> Vec<(usize, bool)> {
        each.iter()
            .map(|(passed, ended)| {
                *now += *passed;
                let size = batches.next(*ended, *now);
                (size, batches.took(size, *now))
            })
            .collect()
    }

    const QUICKLY: Duration = Duration::from_micros(1);

    #[test]
    fn batches_double_while_they_are_quick_and_halve_when_one_is_slow() {
        let (mut batches, mut now) = (BatchSize::default(), Instant::now());
        let sizes = |taken: Vec<(usize, bool)>| taken.into_iter().map(|(size, _)| size);
        let grown = sizes(taken(&mut batches, &mut now, &[QUICKLY; 10]));
        assert!(grown.eq([1, 1, 2, 4, 8, 16, 32, 64, 64, 64]));
        let shrunk = sizes(taken(&mut batches, &mut now, &[QUICK_BATCH; 8]));
        assert!(shrunk.eq([64, 32, 16, 8, 4, 2, 1, 1]));
    }

    #[test]
    fn a_batch_with_room_left_does_not_grow() {
        let (mut batches, mut now) = (BatchSize::default(), Instant::now());
        taken(&mut batches, &mut now, &[QUICKLY; 3]);
        assert_eq!(batches.next(true, now), 4);
        for _ in 0..3 {
            now += QUICKLY;
            batches.took(3, now);
        }
        // The first of them came after a full one.
        assert_eq!(batches.next(true, now), 8);
    }

    #[test]
    fn handlers_are_quick_when_enough_of_them_took_less_than_waking_another() {
        let (mut batches, mut now) = (BatchSize::default(), Instant::now());
        let said = taken(&mut batches, &mut now, &[QUICKLY; 6]);
        assert_eq!(said[4..], [(8, true), (16, true)], "4 and 8 were handled");
        assert!(said[..4].iter().all(|(_, quick)| !quick), "too few to tell");
        let slower = QUICK_HANDLER * 16;
        assert_eq!(taken(&mut batches, &mut now, &[slower]), [(32, false)]);
    }

    #[test]
    fn a_slow_handler_is_followed_by_a_single_message() {
        let (mut batches, mut now) = (BatchSize::default(), Instant::now());
        for ended in [false, true] {
            taken(&mut batches, &mut now, &[QUICKLY; 6]);
            batches.slow();
            assert_eq!(batches.next(ended, now), 1);
        }
    }

    /// They return at once, and take long: what is taken beyond what they handle would run for nothing after a lost connection.
    #[test]
    fn handlers_that_wait_get_single_messages_until_one_of_them_was_quick() {
        let (mut batches, mut now) = (BatchSize::default(), Instant::now());
        let long = Duration::from_millis(500);
        let mut each = vec![(QUICKLY, true)];
        each.extend([(QUICKLY, false); 15]);
        // The first one ends, and with it all others.
        each.push((long, true));
        each.extend([(QUICKLY, false); 15]);
        let sizes = taken_while(&mut batches, &mut now, &each);
        assert!(sizes.iter().all(|(size, _)| *size == 1), "{sizes:?}");
        now += long;
        assert_eq!(batches.next(true, now), 1);
        batches.took(1, now);
        let quick = taken(&mut batches, &mut now, &[QUICKLY; 8]);
        assert_eq!(quick.last().map(|(size, _)| *size), Some(64), "{quick:?}");
        // One that hangs from then on.
        let hangs = taken_while(&mut batches, &mut now, &[(QUICKLY, false), (long, false)]);
        assert_eq!(
            hangs.iter().map(|(size, _)| *size).collect::<Vec<_>>(),
            [64, 1]
        );
    }
}
