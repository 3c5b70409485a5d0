//! How long a message that could not be stored is kept, and when its queue counts as one that refuses: pure decisions.
//!
//! A node that restarts takes nothing for a while, and nothing of that is the queue's doing: what is parked then has lost its retry for a
//! broker that comes back by itself. So only what refuses again and again, on a connection that has stood for a while, is a refusal. A
//! quorum queue that elects its leader refuses as well: a queue may refuse everything for half a minute before that counts.

use std::time::Duration;

use retryrmq::{ErrorKind, doubling_pause::DoublingPause};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// For what the broker will not take as it is: somebody would have to change something first.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);

/// Refusals of a message in a row, three seconds with their pauses, after which the queue itself counts as refusing.
const REFUSALS: u32 = 5;
/// The same of what somebody has to change first: it does not pass by itself.
const LASTING_REFUSALS: u32 = 3;
/// After a connection was lost, what refuses may be a node that is not all there yet. A queue without a leader takes as long to get one.
const CALM: Duration = Duration::from_secs(30);
/// A queue whose node is away for so long is in others' way for longer than a restart takes.
const LONGEST_AWAY: Duration = Duration::from_secs(300);

/// The cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureCause {
    /// The connection, the store, or everything: it comes back for all queues together.
    AllAway,
    /// The node of this queue does not answer.
    Away,
    /// The queue does not take it now.
    Refused,
    /// It does not take it until somebody changes something.
    Lasting,
}

impl FailureCause {
    /// Of an error of the broker.
    pub(crate) fn of(kind: ErrorKind, is_permanent: bool) -> Self {
        match kind {
            ErrorKind::ConnectionLost
            | ErrorKind::Closed
            | ErrorKind::Unreachable
            | ErrorKind::AuthenticationFailed
            | ErrorKind::VhostNotFound
            | ErrorKind::TlsFailed => Self::AllAway,
            ErrorKind::Timeout => Self::Away,
            _ if is_permanent => Self::Lasting,
            _ => Self::Refused,
        }
    }
}

/// The context of a failure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RetryContext {
    /// How long ago a connection was lost.
    pub(crate) calm_for: Duration,
    /// For how long nothing could be stored for this queue.
    pub(crate) troubled_for: Duration,
}

/// The faults of one message so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RetrySchedule {
    tries: u32,
    /// Refusals since the last fault of another kind.
    refusals: u32,
}

/// What to do after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RetryDecision {
    /// The next try comes after this.
    pub(crate) pause: Duration,
    /// The message is one of a queue in trouble: it takes one of the places for such.
    pub(crate) takes_place: bool,
    /// Where there is no place left, it goes elsewhere; otherwise it is kept all the same.
    pub(crate) may_leave: bool,
}

impl RetrySchedule {
    /// Takes note of a fault.
    pub(crate) fn after(&mut self, cause: FailureCause, context: RetryContext) -> RetryDecision {
        self.tries = self.tries.saturating_add(1);
        self.refusals = match cause {
            FailureCause::Refused | FailureCause::Lasting => self.refusals.saturating_add(1),
            FailureCause::AllAway | FailureCause::Away => 0,
        };
        let refuses = match cause {
            FailureCause::Refused => self.refusals >= REFUSALS,
            FailureCause::Lasting => self.refusals >= LASTING_REFUSALS,
            FailureCause::AllAway | FailureCause::Away => false,
        };
        let pause = match cause {
            FailureCause::Lasting if refuses => REFUSED_PAUSE,
            _ => DoublingPause::new(FIRST_PAUSE, LONGEST_PAUSE).after(self.tries),
        };
        RetryDecision {
            pause,
            takes_place: refuses || (cause == FailureCause::Away && self.tries >= LASTING_REFUSALS),
            may_leave: match cause {
                FailureCause::AllAway => false,
                FailureCause::Away => context.troubled_for >= LONGEST_AWAY,
                FailureCause::Refused => {
                    refuses && context.calm_for.min(context.troubled_for) >= CALM
                }
                FailureCause::Lasting => refuses && context.calm_for >= CALM,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CALM_LONG: RetryContext = RetryContext {
        calm_for: Duration::from_secs(3_600),
        troubled_for: CALM,
    };

    fn any_cause() -> impl Strategy<Value = FailureCause> {
        prop_oneof![
            Just(FailureCause::AllAway),
            Just(FailureCause::Away),
            Just(FailureCause::Refused),
            Just(FailureCause::Lasting)
        ]
    }

    #[test]
    fn a_node_that_restarts_is_no_refusal() {
        for kind in ErrorKind::ALL {
            let cause = FailureCause::of(kind, kind.is_permanent());
            let is_away = matches!(cause, FailureCause::AllAway | FailureCause::Away);
            // Transient is also a full queue's nack, which is the queue's own doing.
            let expected = (kind.is_transient() && kind != ErrorKind::NotConfirmed)
                || matches!(
                    kind,
                    ErrorKind::Closed
                        | ErrorKind::AuthenticationFailed
                        | ErrorKind::VhostNotFound
                        | ErrorKind::TlsFailed
                );
            assert_eq!(is_away, expected, "{kind:?}");
        }
    }

    #[test]
    fn what_refuses_for_seconds_refuses_and_what_refuses_after_a_loss_does_not_yet() {
        let (mut schedule, mut passed) = (RetrySchedule::default(), Duration::ZERO);
        let mut advice = schedule.after(FailureCause::Refused, CALM_LONG);
        while !advice.may_leave {
            passed += advice.pause;
            advice = schedule.after(FailureCause::Refused, CALM_LONG);
        }
        assert!(advice.takes_place);
        assert_eq!(passed, Duration::from_secs(3));
        let restarted = RetryContext {
            calm_for: Duration::from_secs(29),
            ..CALM_LONG
        };
        assert!(!schedule.after(FailureCause::Refused, restarted).may_leave);
        let elects = RetryContext {
            troubled_for: Duration::from_secs(29),
            ..CALM_LONG
        };
        assert!(!schedule.after(FailureCause::Refused, elects).may_leave);
        assert!(schedule.after(FailureCause::Refused, CALM_LONG).may_leave);
        // One answer of another kind, and it begins anew.
        schedule.after(FailureCause::Away, CALM_LONG);
        assert!(!schedule.after(FailureCause::Refused, CALM_LONG).may_leave);
    }

    #[test]
    fn what_somebody_must_change_is_tried_once_a_minute() {
        let mut schedule = RetrySchedule::default();
        let pauses: Vec<_> = (0..4)
            .map(|_| schedule.after(FailureCause::Lasting, CALM_LONG).pause)
            .collect();
        assert!(pauses[1] < Duration::from_secs(1));
        assert_eq!(pauses[2..], [REFUSED_PAUSE; 2]);
    }

    proptest! {
        #[test]
        fn a_restart_costs_no_message_its_retry(
            causes in prop::collection::vec(any_cause(), 1..60), calm in 0u64..29, troubled in 0u64..299,
        ) {
            let context = RetryContext {
                calm_for: Duration::from_secs(calm),
                troubled_for: Duration::from_secs(troubled),
            };
            let mut schedule = RetrySchedule::default();
            for cause in causes {
                let advice = schedule.after(cause, context);
                prop_assert!(!advice.may_leave, "{cause:?}");
                prop_assert!(advice.pause >= FIRST_PAUSE && advice.pause <= REFUSED_PAUSE);
            }
        }

        #[test]
        fn a_queue_in_trouble_is_not_in_the_way_for_ever(
            causes in prop::collection::vec(any_cause(), 0..60), last in any_cause(),
        ) {
            prop_assume!(last != FailureCause::AllAway);
            let context = RetryContext { troubled_for: LONGEST_AWAY, ..CALM_LONG };
            let mut schedule = RetrySchedule::default();
            for cause in causes {
                schedule.after(cause, context);
            }
            let leaves = (0..REFUSALS).any(|_| schedule.after(last, context).may_leave);
            prop_assert!(leaves);
        }
    }
}
