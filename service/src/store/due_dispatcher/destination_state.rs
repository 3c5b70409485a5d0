//! How it stands with each line that has messages in hand, or had trouble.

use std::{collections::HashMap, time::Duration};

use tokio::time::Instant;

use super::scheduling::{self, ClaimState, LimitScope, Load, ScopeState};
use crate::store::{Destination, Exclusion};

#[derive(Default)]
pub(super) struct DestinationStates {
    destinations: HashMap<Destination, DestinationState>,
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
    in_flight: Load,
    moved: Instant,
}

impl InFlightTotal {
    fn new(now: Instant) -> Self {
        Self {
            in_flight: Load::default(),
            moved: now,
        }
    }

    fn begin(&mut self, bytes: usize, now: Instant) {
        if self.is_done() {
            self.moved = now;
        }
        self.in_flight.messages += 1;
        self.in_flight.bytes += bytes;
    }

    fn end(&mut self, bytes: usize, succeeded: bool, now: Instant) {
        self.in_flight.messages = self.in_flight.messages.saturating_sub(1);
        self.in_flight.bytes = self.in_flight.bytes.saturating_sub(bytes);
        if succeeded {
            self.moved = now;
        }
    }

    fn is_done(&self) -> bool {
        self.in_flight.messages == 0
    }

    fn quiet_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.moved)
    }
}

impl DestinationState {
    fn new(now: Instant) -> Self {
        Self {
            failures: 0,
            held_until: now,
            sum: InFlightTotal::new(now),
        }
    }

    fn claim_state(&self, destination: &Destination, left: Load, now: Instant) -> ClaimState {
        scheduling::claim_state(ScopeState {
            span: match destination.exchange() {
                Some(_) => LimitScope::Lane,
                None => LimitScope::Target,
            },
            in_flight: self.sum.in_flight,
            left,
            failures: self.failures,
            held_for: self.held_until.saturating_duration_since(now),
            quiet_for: self.sum.quiet_for(now),
        })
    }
}

impl DestinationStates {
    /// One more of its messages is in hand, with a body of so many bytes.
    pub(super) fn begin(&mut self, destination: Destination, bytes: usize, now: Instant) {
        if let Some(exchange) = destination.exchange() {
            let sum = self.exchanges.entry(exchange.to_owned());
            sum.or_insert_with(|| InFlightTotal::new(now))
                .begin(bytes, now);
        }
        let state = self.destinations.entry(destination);
        let state = state.or_insert_with(|| DestinationState::new(now));
        state.sum.begin(bytes, now);
    }

    /// One of its messages is done with: published, given up, or left for a reason that is not the line's.
    pub(super) fn end(
        &mut self,
        destination: &Destination,
        bytes: usize,
        succeeded: bool,
        now: Instant,
    ) {
        if let Some(exchange) = destination.exchange()
            && let Some(sum) = self.exchanges.get_mut(exchange)
        {
            sum.end(bytes, succeeded, now);
            if sum.is_done() {
                self.exchanges.remove(exchange);
            }
        }
        let Some(state) = self.destinations.get_mut(destination) else {
            return;
        };
        state.sum.end(bytes, succeeded, now);
        if succeeded {
            state.failures = 0;
        }
        if state.sum.is_done() && state.failures == 0 {
            self.destinations.remove(destination);
        }
    }

    /// One of its messages has failed. Returns how long the line is held; those that were in hand together count once.
    pub(super) fn fail(
        &mut self,
        destination: &Destination,
        bytes: usize,
        now: Instant,
    ) -> Duration {
        self.end(destination, bytes, false, now);
        let state = self.destinations.entry(destination.clone());
        let state = state.or_insert_with(|| DestinationState::new(now));
        if state.held_until <= now {
            state.failures = state.failures.saturating_add(1);
            state.held_until = now + scheduling::pause(state.failures);
        }
        state.held_until - now
    }

    /// What not to claim while there is room for so much. Forgets lines that failed long ago and have nothing due since.
    pub(super) fn exclusions(&mut self, left: Load, now: Instant) -> Vec<Exclusion> {
        self.destinations.retain(|_, state| {
            !state.sum.is_done() || now.saturating_duration_since(state.held_until) < FORGOTTEN
        });
        let full = self.exchanges.iter().flat_map(|(exchange, sum)| {
            let claim_state = scheduling::claim_state(ScopeState {
                in_flight: sum.in_flight,
                left,
                quiet_for: sum.quiet_for(now),
                ..ScopeState::default()
            });
            let lanes = (claim_state != ClaimState::Open).then(|| Destination::lanes(exchange));
            lanes
                .into_iter()
                .flatten()
                .map(move |lane| (lane, claim_state))
        });
        let mut claim_states: HashMap<Destination, ClaimState> = full.collect();
        for (destination, state) in &self.destinations {
            match state.claim_state(destination, left, now) {
                ClaimState::Open => {}
                claim_state => {
                    // Of a lane its own trouble is known better than that of its exchange.
                    claim_states.insert(destination.clone(), claim_state);
                }
            }
        }
        let exclusions = claim_states
            .into_iter()
            .filter_map(|(destination, claim_state)| {
                let pause = match claim_state {
                    ClaimState::Open => return None,
                    ClaimState::Pass => None,
                    ClaimState::Hold(pause) => Some(pause),
                };
                Some(Exclusion { destination, pause })
            });
        exclusions.collect()
    }
}

/// Failures of a destination are forgotten when nothing has been due for it for this long.
const FORGOTTEN: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Load {
        scheduling::left(Load::default())
    }

    fn destination() -> Destination {
        Destination::Queue("orders".to_owned())
    }

    #[test]
    fn failures_that_were_in_flight_together_count_once() {
        let (mut destinations, now) = (DestinationStates::default(), Instant::now());
        for _ in 0..10 {
            destinations.begin(destination(), 0, now);
        }
        let pauses: Vec<_> = (0..10)
            .map(|_| destinations.fail(&destination(), 0, now))
            .collect();
        assert_eq!(pauses, vec![scheduling::pause(1); 10]);
        assert_eq!(
            destinations.exclusions(all(), now)[0].pause,
            Some(scheduling::pause(1))
        );
        let later = now + scheduling::pause(1);
        assert!(
            destinations.exclusions(all(), later).is_empty(),
            "it is tried again"
        );
        destinations.begin(destination(), 0, later);
        assert_eq!(
            destinations.fail(&destination(), 0, later),
            scheduling::pause(2)
        );
    }

    #[test]
    fn one_success_ends_the_doubt_and_another_line_has_none() {
        let (mut destinations, now) = (DestinationStates::default(), Instant::now());
        let other = Destination::Queue("other".to_owned());
        destinations.begin(destination(), 0, now);
        destinations.fail(&destination(), 0, now);
        destinations.begin(other.clone(), 0, now);
        let exclusions = destinations.exclusions(all(), now);
        assert!(matches!(&exclusions[..], [exclusion] if exclusion.destination == destination()));
        let later = now + scheduling::pause(1);
        destinations.begin(destination(), 0, later);
        destinations.end(&destination(), 0, true, later);
        destinations.end(&other, 0, true, later);
        assert!(destinations.destinations.is_empty());
    }

    #[test]
    fn a_line_without_any_confirm_is_held_and_one_that_moves_is_passed() {
        let (mut destinations, now) = (DestinationStates::default(), Instant::now());
        for _ in 0..600 {
            destinations.begin(destination(), 0, now);
        }
        assert_eq!(destinations.exclusions(all(), now)[0].pause, None);
        let later = now + scheduling::STUCK;
        assert!(destinations.exclusions(all(), later)[0].pause.is_some());
        destinations.end(&destination(), 0, true, later);
        assert_eq!(destinations.exclusions(all(), later)[0].pause, None);
    }

    #[test]
    fn an_exchange_that_never_answers_takes_no_more_places_than_a_queue() {
        let (mut destinations, now) = (DestinationStates::default(), Instant::now());
        let in_flight = |destinations: &DestinationStates| {
            destinations
                .exchanges
                .get("shop")
                .map_or(0, |sum| sum.in_flight.messages)
        };
        let of = |number: usize| Destination::of("shop", &format!("order.{number}"));
        let is_held = |destinations: &mut DestinationStates, destination: &Destination, now| {
            let exclusions = destinations.exclusions(all(), now);
            exclusions
                .into_iter()
                .find(|exclusion| exclusion.destination == *destination)
        };
        let mut claimed = Vec::new();
        for number in 0..2_000 {
            if is_held(&mut destinations, &of(number), now).is_none() {
                destinations.begin(of(number), 0, now);
                claimed.push(of(number));
            }
        }
        assert_eq!(claimed.len(), 512);
        // Also a routing key that nobody has asked for yet; as long as it moves it is passed over, and then held.
        let other = of(5_000);
        assert_eq!(is_held(&mut destinations, &other, now).unwrap().pause, None);
        let later = now + scheduling::STUCK;
        let held = is_held(&mut destinations, &other, later).unwrap();
        assert!(held.pause.is_some());
        assert!(is_held(&mut destinations, &destination(), later).is_none());
        assert!(
            is_held(
                &mut destinations,
                &Destination::of("bank", "order.1"),
                later
            )
            .is_none()
        );
        for destination in &claimed {
            destinations.end(destination, 0, true, later);
        }
        assert_eq!(in_flight(&destinations), 0);
        assert!(destinations.exclusions(all(), later).is_empty());
    }

    #[test]
    fn one_lane_that_never_answers_leaves_room_for_the_others_of_its_exchange() {
        let (mut destinations, now) = (DestinationStates::default(), Instant::now());
        let (stuck, fine) = (Destination::of("shop", "a"), Destination::of("shop", "b"));
        assert_ne!(stuck, fine);
        for _ in 0..256 {
            destinations.begin(stuck.clone(), 0, now);
        }
        let exclusions = destinations.exclusions(all(), now);
        assert!(matches!(&exclusions[..], [exclusion] if exclusion.destination == stuck));
    }

    #[test]
    fn trouble_is_forgotten_in_the_end() {
        let (mut destinations, now) = (DestinationStates::default(), Instant::now());
        destinations.begin(destination(), 0, now);
        destinations.fail(&destination(), 0, now);
        destinations.exclusions(all(), now + FORGOTTEN * 2);
        assert!(destinations.destinations.is_empty());
    }
}
