//! Scheduling decisions of a due dispatcher, without I/O.

use std::time::Duration;

use retryrmq::doubling_pause::DoublingPause;

use super::IDLE;

/// The most messages in flight.
pub(super) const IN_FLIGHT: usize = 2_048;

/// Bytes of bodies in hand at once, but one message always.
pub(super) const BYTES_IN_FLIGHT: usize = 64 << 20;

/// Messages of one claim.
const CLAIM: usize = 256;

/// Messages in hand for one queue, or for all routing keys of one exchange, while all is well. So some that never answer leave room for others.
const OF_A_TARGET: usize = 512;

/// Messages in hand for one lane of an exchange, while all is well: one that never answers leaves room for the others of its exchange.
const OF_A_LANE: usize = 256;

/// Messages in hand for a line that has failed.
const OF_A_LINE_IN_DOUBT: usize = 16;

/// A full destination in which nothing succeeds for this long is held, as if it had failed.
pub(super) const STUCK: Duration = Duration::from_secs(2);

/// The shortest sleep: what is due within it is claimed together.
const LEAST: Duration = Duration::from_millis(5);

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// How long a line is held after it has failed as often in a row.
pub(super) fn pause(failures: u32) -> Duration {
    DoublingPause::new(FIRST_PAUSE, LONGEST_PAUSE).after(failures.max(1))
}

/// Messages, and the bytes of their bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) messages: usize,
    pub(super) bytes: usize,
}

/// What there is room for beside what is in hand.
pub(super) fn left(in_flight: Load) -> Load {
    Load {
        messages: IN_FLIGHT.saturating_sub(in_flight.messages),
        bytes: BYTES_IN_FLIGHT.saturating_sub(in_flight.bytes),
    }
}

/// What messages in hand are counted for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LimitScope {
    /// A queue, or a whole exchange.
    #[default]
    Target,
    /// A lane of an exchange.
    Lane,
}

/// The state of a destination, or of all lanes of an exchange together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ScopeState {
    pub(super) span: LimitScope,
    pub(super) in_flight: Load,
    /// What there is room for, whatever its line.
    pub(super) left: Load,
    /// Failures since the last success.
    pub(super) failures: u32,
    /// How long it is held for yet.
    pub(super) held_for: Duration,
    /// How long ago one of its messages was done, or it had none in hand.
    pub(super) quiet_for: Duration,
}

/// Whether to claim messages of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimState {
    /// Claim them.
    Open,
    /// Leave them where they are; there will be room soon.
    Pass,
    /// Have them due again later, so that they are not in the way of others.
    Hold(Duration),
}

pub(super) fn claim_state(destination: ScopeState) -> ClaimState {
    let most = match destination.span {
        _ if destination.failures > 0 => OF_A_LINE_IN_DOUBT,
        LimitScope::Target => OF_A_TARGET,
        LimitScope::Lane => OF_A_LANE,
    };
    // Of all that is in hand it has no more than there is room for yet: several that never answer leave some, too. One message always may.
    let has_room = destination.in_flight.messages < most.min(destination.left.messages)
        && destination.in_flight.bytes < destination.left.bytes
        || destination.in_flight.messages == 0;
    if !destination.held_for.is_zero() {
        ClaimState::Hold(destination.held_for)
    } else if has_room {
        ClaimState::Open
    } else if destination.quiet_for >= STUCK || destination.failures > 0 {
        ClaimState::Hold(FIRST_PAUSE)
    } else {
        ClaimState::Pass
    }
}

/// How many messages and bytes to claim; nothing while there is room for neither. Half of it: all may be of one line.
pub(super) fn room(left: Load) -> Option<(usize, usize)> {
    let messages = CLAIM.min(left.messages.div_ceil(2));
    let room = left.bytes.div_ceil(2);
    (messages > 0 && room > 0).then_some((messages, room))
}

/// What to wait for before the next claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimWait {
    /// Nothing.
    Not,
    /// So long, or something that was kept in a hurry.
    For(Duration),
    /// A message in hand to be done, or at most so long.
    UntilDone(Duration),
}

/// After a claim.
pub(super) fn sleep(claimed: usize, next: Option<Duration>, passed: bool) -> ClaimWait {
    match next {
        Some(next) if next.is_zero() && claimed > 0 => ClaimWait::Not,
        // All that was looked at waits for a line that is busy.
        Some(next) if next.is_zero() && passed => ClaimWait::UntilDone(LEAST * 4),
        _ if passed => ClaimWait::UntilDone(next.unwrap_or(IDLE).clamp(LEAST, IDLE)),
        next => ClaimWait::For(next.unwrap_or(IDLE).clamp(LEAST, IDLE)),
    }
}

/// How long to go on waiting once a message is done: until there is room again somebody waits for that, otherwise nobody does.
pub(super) fn together(sleep: ClaimWait) -> Duration {
    match sleep {
        ClaimWait::UntilDone(_) => LEAST,
        ClaimWait::Not | ClaimWait::For(_) => LEAST * 4,
    }
}

/// Whether a lease of this length is to be begun anew, so long after it began. Early enough that a second try is in time.
pub(super) fn is_to_extend(held_for: Duration, lease: Duration) -> bool {
    held_for >= lease / 3
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_duration() -> impl Strategy<Value = Duration> {
        (0u64..100_000).prop_map(Duration::from_millis)
    }

    fn loads() -> impl Strategy<Value = Load> {
        let loads = (0usize..4_000, 0usize..(100 << 20));
        loads.prop_map(|(messages, bytes)| Load { messages, bytes })
    }

    proptest! {
        #[test]
        fn a_sleep_is_bounded_and_never_longer_than_the_next_message(
            claimed in 0usize..300, next in prop::option::of(any_duration()), passed: bool,
        ) {
            match sleep(claimed, next, passed) {
                ClaimWait::Not => prop_assert!(claimed > 0 && next == Some(Duration::ZERO)),
                ClaimWait::For(time) | ClaimWait::UntilDone(time) => {
                    prop_assert!(time >= LEAST && time <= IDLE);
                    if let Some(next) = next {
                        prop_assert!(time <= next.max(LEAST * 4));
                    }
                }
            }
        }

        #[test]
        fn a_line_that_is_held_or_full_is_not_claimed(
            is_lane: bool, in_flight in loads(), others in loads(), failures in 0u32..9, held_for in any_duration(), quiet_for in any_duration(),
        ) {
            let span = if is_lane { LimitScope::Lane } else { LimitScope::Target };
            let left = left(Load {
                messages: in_flight.messages + others.messages,
                bytes: in_flight.bytes + others.bytes,
            });
            match claim_state(ScopeState { span, in_flight, left, failures, held_for, quiet_for }) {
                ClaimState::Open => prop_assert!(held_for.is_zero() && in_flight.messages < OF_A_TARGET),
                // Those that are passed over are in the way of others, so only while they move.
                ClaimState::Pass => prop_assert!(failures == 0 && quiet_for < STUCK),
                ClaimState::Hold(pause) => prop_assert!(!pause.is_zero()),
            }
        }

        #[test]
        fn no_more_is_claimed_than_there_is_room_for(in_flight in loads()) {
            match room(left(in_flight)) {
                Some((messages, room)) => {
                    prop_assert!(in_flight.messages + messages <= IN_FLIGHT);
                    prop_assert!(in_flight.bytes + room <= BYTES_IN_FLIGHT);
                }
                None => prop_assert!(in_flight.messages >= IN_FLIGHT || in_flight.bytes >= BYTES_IN_FLIGHT),
            }
        }

        #[test]
        fn a_pause_grows_to_its_end(failures: u32) {
            let now = pause(failures);
            prop_assert!(now >= FIRST_PAUSE && now <= LONGEST_PAUSE);
            prop_assert!(pause(failures.saturating_add(1)) >= now);
        }
    }

    #[test]
    fn a_lease_is_extended_in_time_for_a_second_try() {
        let lease = Duration::from_secs(30);
        assert!(!is_to_extend(Duration::from_secs(9), lease));
        assert!(is_to_extend(Duration::from_secs(10), lease));
    }
}
