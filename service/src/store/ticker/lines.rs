//! How it stands with each line that has messages in hand, or had trouble.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::plan::{self, Stance, Standing};
use crate::store::{Hold, Line};

#[derive(Default)]
pub(super) struct Lines(HashMap<Line, State>);

struct State {
    in_hand: usize,
    failures: u32,
    held_until: Instant,
    moved: Instant,
}

impl Lines {
    /// One more of its messages is in hand.
    pub(super) fn begin(&mut self, line: Line, now: Instant) {
        let state = self.0.entry(line).or_insert(State {
            in_hand: 0,
            failures: 0,
            held_until: now,
            moved: now,
        });
        if state.in_hand == 0 {
            state.moved = now;
        }
        state.in_hand += 1;
    }

    /// One of its messages is done with: published, given up, or left for a reason that is not the line's.
    pub(super) fn end(&mut self, line: &Line, succeeded: bool, now: Instant) {
        let Some(state) = self.0.get_mut(line) else {
            return;
        };
        state.in_hand = state.in_hand.saturating_sub(1);
        if succeeded {
            state.failures = 0;
            state.moved = now;
        }
        if state.in_hand == 0 && state.failures == 0 {
            self.0.remove(line);
        }
    }

    /// One of its messages has failed. Returns how long the line is held; those that were in hand together count once.
    pub(super) fn fail(&mut self, line: &Line, now: Instant) -> Duration {
        self.end(line, false, now);
        let state = self.0.entry(line.clone()).or_insert(State {
            in_hand: 0,
            failures: 0,
            held_until: now,
            moved: now,
        });
        if state.held_until <= now {
            state.failures = state.failures.saturating_add(1);
            state.held_until = now + plan::pause(state.failures);
        }
        state.held_until - now
    }

    /// What not to claim. Forgets lines that failed long ago and have nothing due since.
    pub(super) fn holds(&mut self, now: Instant) -> Vec<Hold> {
        self.0.retain(|_, state| {
            state.in_hand > 0 || now.saturating_duration_since(state.held_until) < FORGOTTEN
        });
        let holds = self.0.iter().filter_map(|(line, state)| {
            let stance = plan::stance(Standing {
                in_hand: state.in_hand,
                failures: state.failures,
                held_for: state.held_until.saturating_duration_since(now),
                quiet_for: now.saturating_duration_since(state.moved),
            });
            let pause = match stance {
                Stance::Open => return None,
                Stance::Pass => None,
                Stance::Hold(pause) => Some(pause),
            };
            Some(Hold {
                line: line.clone(),
                pause,
            })
        });
        holds.collect()
    }
}

/// A line that had trouble is one like any other again, if nothing has been due for it for so long.
const FORGOTTEN: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        Line::Queue("orders".to_owned())
    }

    #[test]
    fn failures_that_were_in_hand_together_count_once() {
        let (mut lines, now) = (Lines::default(), Instant::now());
        for _ in 0..10 {
            lines.begin(line(), now);
        }
        let pauses: Vec<_> = (0..10).map(|_| lines.fail(&line(), now)).collect();
        assert_eq!(pauses, vec![plan::pause(1); 10]);
        assert_eq!(lines.holds(now)[0].pause, Some(plan::pause(1)));
        let later = now + plan::pause(1);
        assert!(lines.holds(later).is_empty(), "it is tried again");
        lines.begin(line(), later);
        assert_eq!(lines.fail(&line(), later), plan::pause(2));
    }

    #[test]
    fn one_success_ends_the_doubt_and_another_line_has_none() {
        let (mut lines, now) = (Lines::default(), Instant::now());
        let other = Line::Queue("other".to_owned());
        lines.begin(line(), now);
        lines.fail(&line(), now);
        lines.begin(other.clone(), now);
        let holds = lines.holds(now);
        assert!(matches!(&holds[..], [hold] if hold.line == line()));
        let later = now + plan::pause(1);
        lines.begin(line(), later);
        lines.end(&line(), true, later);
        lines.end(&other, true, later);
        assert!(lines.0.is_empty());
    }

    #[test]
    fn a_line_without_any_confirm_is_held_and_one_that_moves_is_passed() {
        let (mut lines, now) = (Lines::default(), Instant::now());
        for _ in 0..600 {
            lines.begin(line(), now);
        }
        assert_eq!(lines.holds(now)[0].pause, None);
        let later = now + plan::STUCK;
        assert!(lines.holds(later)[0].pause.is_some());
        lines.end(&line(), true, later);
        assert_eq!(lines.holds(later)[0].pause, None);
    }

    #[test]
    fn trouble_is_forgotten_in_the_end() {
        let (mut lines, now) = (Lines::default(), Instant::now());
        lines.begin(line(), now);
        lines.fail(&line(), now);
        lines.holds(now + FORGOTTEN * 2);
        assert!(lines.0.is_empty());
    }
}
