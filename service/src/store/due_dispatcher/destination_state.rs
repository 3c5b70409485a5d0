//! How it stands with each line that has messages in hand, or had trouble.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::scheduling::{self, Load, LimitScope, ClaimState, ScopeState};
use crate::store::{Exclusion, Destination};

#[derive(Default)]
pub(super) struct DestinationStates {
    lines: HashMap<Destination, DestinationState>,
    /// Each with the messages of all its lanes. They may all lead to one queue, and then have no more places than that queue would have.
    exchanges: HashMap<String, InFlightTotal>,
}

struct DestinationState {
    failures: u32,
    held_until: Instant,
    sum: InFlightTotal,
}

/// What is in hand, and when one of it was done last.
struct InFlightTotal {
    in_hand: Load,
    moved: Instant,
}

impl InFlightTotal {
    fn begun(now: Instant) -> Self {
        Self {
            in_hand: Load::default(),
            moved: now,
        }
    }

    fn begin(&mut self, bytes: usize, now: Instant) {
        if self.is_done() {
            self.moved = now;
        }
        self.in_hand.messages += 1;
        self.in_hand.bytes += bytes;
    }

    fn end(&mut self, bytes: usize, succeeded: bool, now: Instant) {
        self.in_hand.messages = self.in_hand.messages.saturating_sub(1);
        self.in_hand.bytes = self.in_hand.bytes.saturating_sub(bytes);
        if succeeded {
            self.moved = now;
        }
    }

    fn is_done(&self) -> bool {
        self.in_hand.messages == 0
    }

    fn quiet_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved)
    }
}

impl DestinationState {
    fn begun(now: Instant) -> Self {
        Self {
            failures: 0,
            held_until: now,
            sum: InFlightTotal::begun(now),
        }
    }

    fn stance(&self, line: &Destination, left: Load, now: Instant) -> ClaimState {
        scheduling::stance(ScopeState {
            span: match line.exchange() {
                Some(_) => LimitScope::Lane,
                None => LimitScope::Target,
            },
            in_hand: self.sum.in_hand,
            left,
            failures: self.failures,
            held_for: self.held_until.saturating_duration_since(now),
            quiet_for: self.sum.quiet_for(now),
        })
    }
}

impl DestinationStates {
    /// One more of its messages is in hand, with a body of so many bytes.
    pub(super) fn begin(&mut self, line: Destination, bytes: usize, now: Instant) {
        if let Some(exchange) = line.exchange() {
            let sum = self.exchanges.entry(exchange.to_owned());
            sum.or_insert_with(|| InFlightTotal::begun(now)).begin(bytes, now);
        }
        let state = self.lines.entry(line);
        let state = state.or_insert_with(|| DestinationState::begun(now));
        state.sum.begin(bytes, now);
    }

    /// One of its messages is done with: published, given up, or left for a reason that is not the line's.
    pub(super) fn end(&mut self, line: &Destination, bytes: usize, succeeded: bool, now: Instant) {
        if let Some(exchange) = line.exchange()
            && let Some(sum) = self.exchanges.get_mut(exchange)
        {
            sum.end(bytes, succeeded, now);
            if sum.is_done() {
                self.exchanges.remove(exchange);
            }
        }
        let Some(state) = self.lines.get_mut(line) else {
            return;
        };
        state.sum.end(bytes, succeeded, now);
        if succeeded {
            state.failures = 0;
        }
        if state.sum.is_done() && state.failures == 0 {
            self.lines.remove(line);
        }
    }

    /// One of its messages has failed. Returns how long the line is held; those that were in hand together count once.
    pub(super) fn fail(&mut self, line: &Destination, bytes: usize, now: Instant) -> Duration {
        self.end(line, bytes, false, now);
        let state = self.lines.entry(line.clone());
        let state = state.or_insert_with(|| DestinationState::begun(now));
        if state.held_until <= now {
            state.failures = state.failures.saturating_add(1);
            state.held_until = now + scheduling::pause(state.failures);
        }
        state.held_until - now
    }

    /// What not to claim while there is room for so much. Forgets lines that failed long ago and have nothing due since.
    pub(super) fn holds(&mut self, left: Load, now: Instant) -> Vec<Exclusion> {
        self.lines.retain(|_, state| {
            !state.sum.is_done() || now.saturating_duration_since(state.held_until) < FORGOTTEN
        });
        let full = self.exchanges.iter().flat_map(|(exchange, sum)| {
            let stance = scheduling::stance(ScopeState {
                in_hand: sum.in_hand,
                left,
                quiet_for: sum.quiet_for(now),
                ..ScopeState::default()
            });
            let lanes = (stance != ClaimState::Open).then(|| Destination::lanes(exchange));
            lanes.into_iter().flatten().map(move |lane| (lane, stance))
        });
        let mut stances: HashMap<Destination, ClaimState> = full.collect();
        for (line, state) in &self.lines {
            match state.stance(line, left, now) {
                ClaimState::Open => {}
                stance => {
                    // Of a lane its own trouble is known better than that of its exchange.
                    stances.insert(line.clone(), stance);
                }
            }
        }
        let holds = stances.into_iter().filter_map(|(line, stance)| {
            let pause = match stance {
                ClaimState::Open => return None,
                ClaimState::Pass => None,
                ClaimState::Hold(pause) => Some(pause),
            };
            Some(Exclusion { line, pause })
        });
        holds.collect()
    }
}

/// A line that had trouble is one like any other again, if nothing has been due for it for so long.
const FORGOTTEN: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Load {
        scheduling::left(Load::default())
    }

    fn line() -> Destination {
        Destination::Queue("orders".to_owned())
    }

    #[test]
    fn failures_that_were_in_hand_together_count_once() {
        let (mut lines, now) = (DestinationStates::default(), Instant::now());
        for _ in 0..10 {
            lines.begin(line(), 0, now);
        }
        let pauses: Vec<_> = (0..10).map(|_| lines.fail(&line(), 0, now)).collect();
        assert_eq!(pauses, vec![scheduling::pause(1); 10]);
        assert_eq!(lines.holds(all(), now)[0].pause, Some(scheduling::pause(1)));
        let later = now + scheduling::pause(1);
        assert!(lines.holds(all(), later).is_empty(), "it is tried again");
        lines.begin(line(), 0, later);
        assert_eq!(lines.fail(&line(), 0, later), scheduling::pause(2));
    }

    #[test]
    fn one_success_ends_the_doubt_and_another_line_has_none() {
        let (mut lines, now) = (DestinationStates::default(), Instant::now());
        let other = Destination::Queue("other".to_owned());
        lines.begin(line(), 0, now);
        lines.fail(&line(), 0, now);
        lines.begin(other.clone(), 0, now);
        let holds = lines.holds(all(), now);
        assert!(matches!(&holds[..], [hold] if hold.line == line()));
        let later = now + scheduling::pause(1);
        lines.begin(line(), 0, later);
        lines.end(&line(), 0, true, later);
        lines.end(&other, 0, true, later);
        assert!(lines.lines.is_empty());
    }

    #[test]
    fn a_line_without_any_confirm_is_held_and_one_that_moves_is_passed() {
        let (mut lines, now) = (DestinationStates::default(), Instant::now());
        for _ in 0..600 {
            lines.begin(line(), 0, now);
        }
        assert_eq!(lines.holds(all(), now)[0].pause, None);
        let later = now + scheduling::STUCK;
        assert!(lines.holds(all(), later)[0].pause.is_some());
        lines.end(&line(), 0, true, later);
        assert_eq!(lines.holds(all(), later)[0].pause, None);
    }

    #[test]
    fn an_exchange_that_never_answers_takes_no_more_places_than_a_queue() {
        let (mut lines, now) = (DestinationStates::default(), Instant::now());
        let in_hand = |lines: &DestinationStates| {
            lines
                .exchanges
                .get("shop")
                .map_or(0, |sum| sum.in_hand.messages)
        };
        let of = |number: usize| Destination::of("shop", &format!("order.{number}"));
        let is_held = |lines: &mut DestinationStates, line: &Destination, now| {
            let holds = lines.holds(all(), now);
            holds.into_iter().find(|hold| hold.line == *line)
        };
        let mut begun = Vec::new();
        for number in 0..2_000 {
            if is_held(&mut lines, &of(number), now).is_none() {
                lines.begin(of(number), 0, now);
                begun.push(of(number));
            }
        }
        assert_eq!(begun.len(), 512);
        // Also a routing key that nobody has asked for yet; as long as it moves it is passed over, and then held.
        let other = of(5_000);
        assert_eq!(is_held(&mut lines, &other, now).unwrap().pause, None);
        let later = now + scheduling::STUCK;
        let held = is_held(&mut lines, &other, later).unwrap();
        assert!(held.pause.is_some());
        assert!(is_held(&mut lines, &line(), later).is_none());
        assert!(is_held(&mut lines, &Destination::of("bank", "order.1"), later).is_none());
        for line in &begun {
            lines.end(line, 0, true, later);
        }
        assert_eq!(in_hand(&lines), 0);
        assert!(lines.holds(all(), later).is_empty());
    }

    #[test]
    fn one_lane_that_never_answers_leaves_room_for_the_others_of_its_exchange() {
        let (mut lines, now) = (DestinationStates::default(), Instant::now());
        let (stuck, fine) = (Destination::of("shop", "a"), Destination::of("shop", "b"));
        assert_ne!(stuck, fine);
        for _ in 0..256 {
            lines.begin(stuck.clone(), 0, now);
        }
        let holds = lines.holds(all(), now);
        assert!(matches!(&holds[..], [hold] if hold.line == stuck));
    }

    #[test]
    fn trouble_is_forgotten_in_the_end() {
        let (mut lines, now) = (DestinationStates::default(), Instant::now());
        lines.begin(line(), 0, now);
        lines.fail(&line(), 0, now);
        lines.holds(all(), now + FORGOTTEN * 2);
        assert!(lines.lines.is_empty());
    }
}
