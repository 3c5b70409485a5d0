//! Which consumers are on the channel, and so how many messages the broker may send.
//!
//! ```text
//! PrefetchMode::Nothing   draining                        no consumer
//! PrefetchMode::One       just started, suspect, pause,   one consumer with a prefetch of 1
//!                         too many bytes held
//! PrefetchMode::Full      all is well                     one consumer with the whole prefetch, or what `prefetch_bytes` allows
//! ```
//!
//! A prefetch belongs to its consumer for life (AMQP `basic.qos`), so changing it means to consume anew. The next consumer is there before
//! the last one is cancelled: otherwise an auto-delete queue would be deleted, and a single active consumer would lose its place.
//!
//! On a queue with a single active consumer, a new consumer is served only after the active one is gone, and perhaps another client's is
//! served first. So a wider consumer replaces the narrow one only after it was served itself; if it never is, the narrow one stays. There
//! is one exception: a consumer whose places are all occupied by messages that no handler has and that cannot be stored is cancelled first,
//! because nobody would get a message any more.
//!
//! A broker may allow one consumer on a channel (`consumer_max_per_channel`), and closes the connection at the second. Then the consumer of a
//! quorum queue is cancelled first. The one of another queue stays as it is, and brings one message at a time: a classic queue may be deleted
//! with its last consumer.

use crate::mutants::{self, Mutant};

/// Which messages the broker may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PrefetchMode {
    Nothing,
    One,
    Full,
}

/// What to do on the channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChannelStep {
    Consume { consumer: u64, prefetch: u16 },
    Cancel { consumer: u64 },
}

/// How a prefetch changes if only one consumer is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SingleConsumerPrefetch {
    /// It is cancelled, and then another one consumes.
    GoesFirst,
    /// It does not change.
    Stays,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConsumerStage {
    /// Asked for; the broker has not answered yet.
    Asked,
    Running,
    /// Cancelled; the broker has not answered yet.
    Leaving,
}

#[derive(Debug)]
struct BrokerConsumer {
    consumer: u64,
    prefetch: u16,
    stage: ConsumerStage,
    /// Messages since the newest consumer began.
    served: u32,
    /// Places in its prefetch that are occupied for long.
    taken: usize,
    /// Those of them whose messages no handler has and that cannot be stored.
    stuck: usize,
}

/// Deliveries in a row to the narrow consumer, while the wide one waits, that show a queue with a single active consumer. The broker serves
/// consumers in turn, so one is chance and two are not.
const IN_A_ROW: u32 = 2;

/// The consumers on the channel.
#[derive(Debug)]
pub(super) struct PrefetchControl {
    prefetch: u16,
    broker_consumers: Vec<BrokerConsumer>,
    consumers: u64,
    single_active: bool,
    /// Whether only one consumer is allowed.
    alone: Option<SingleConsumerPrefetch>,
    /// Whether a classic queue delivers nothing to its next active consumer until something else happens to it, such as a new consumer.
    queues_sleep: bool,
    /// A consumer that is cancelled before a newer one was served; the newer one may be the active one then.
    goes_first: Option<u64>,
    /// That one is gone, and the newer one was not served yet.
    may_sleep: bool,
}

impl PrefetchControl {
    pub(super) fn new(prefetch: u16, queues_sleep: bool) -> Self {
        Self {
            prefetch,
            broker_consumers: Vec::new(),
            consumers: 0,
            single_active: false,
            alone: None,
            queues_sleep,
            goes_first: None,
            may_sleep: false,
        }
    }

    /// How many messages a wide consumer may bring.
    pub(super) fn set_wide(&mut self, prefetch: u16) {
        self.prefetch = prefetch;
    }

    pub(super) fn set_queues_sleep(&mut self, queues_sleep: bool) {
        self.queues_sleep = queues_sleep;
    }

    pub(super) fn set_alone(&mut self, alone: Option<SingleConsumerPrefetch>) {
        self.alone = alone;
    }

    /// What to do next for `goal`. `crowded`: whether messages that occupy their places for long may be ignored, so that others come.
    pub(super) fn next(&mut self, goal: PrefetchMode, crowded: bool) -> Option<ChannelStep> {
        let want = match goal {
            PrefetchMode::Nothing => {
                let running = self
                    .broker_consumers
                    .iter()
                    .find(|broker_consumer| broker_consumer.stage == ConsumerStage::Running)?;
                let consumer = running.consumer;
                return Some(self.cancel(consumer));
            }
            PrefetchMode::One => 1,
            PrefetchMode::Full if self.stays_narrow() => 1,
            PrefetchMode::Full => self.prefetch,
        };
        if let Some(alone) = self.alone {
            return self.next_alone(alone, want, crowded);
        }
        if self
            .broker_consumers
            .iter()
            .any(|broker_consumer| broker_consumer.stage == ConsumerStage::Asked)
        {
            return None;
        }
        if std::mem::take(&mut self.may_sleep) {
            return Some(self.consume(want));
        }
        let fits = |broker_consumer: &&BrokerConsumer| {
            broker_consumer.stage == ConsumerStage::Running
                && broker_consumer.prefetch == want
                && !(crowded && broker_consumer.taken >= usize::from(broker_consumer.prefetch))
        };
        // A consumer that is served stays. Otherwise the older one stays, because it may be the active one.
        let newest_served = self
            .broker_consumers
            .iter()
            .rfind(|broker_consumer| fits(broker_consumer) && broker_consumer.served > 0);
        let Some(fit) = newest_served.or_else(|| self.broker_consumers.iter().find(fits)) else {
            let running = self
                .broker_consumers
                .iter()
                .find(|broker_consumer| broker_consumer.stage == ConsumerStage::Running);
            return Some(
                match running.map(|broker_consumer| broker_consumer.consumer) {
                    Some(consumer) if mutants::has(Mutant::CancelsFirst) => self.cancel(consumer),
                    _ => self.consume(want),
                },
            );
        };
        let (keep, served) = (fit.consumer, fit.served > 0);
        let other = self.broker_consumers.iter().find(|broker_consumer| {
            broker_consumer.stage == ConsumerStage::Running && broker_consumer.consumer != keep
        })?;
        let stuck = other.stuck >= usize::from(other.prefetch);
        if !served
            && !stuck
            && !mutants::has(Mutant::LosesItsPlace)
            && (other.prefetch < want || other.prefetch == want && other.taken > 0)
        {
            if other.served < IN_A_ROW || other.taken > 0 {
                return None;
            }
            self.single_active = true;
            return Some(self.cancel(keep));
        }
        let leaves = other.consumer;
        self.goes_first = (!served && leaves < keep).then_some(leaves);
        Some(self.cancel(leaves))
    }

    /// The same if only one consumer is allowed.
    fn next_alone(
        &mut self,
        alone: SingleConsumerPrefetch,
        want: u16,
        crowded: bool,
    ) -> Option<ChannelStep> {
        let Some(broker_consumer) = self.broker_consumers.first() else {
            return Some(self.consume(want));
        };
        let is_stuck = crowded && broker_consumer.taken >= usize::from(broker_consumer.prefetch);
        let goes = broker_consumer.stage == ConsumerStage::Running
            && (broker_consumer.prefetch != want || is_stuck);
        let consumer = broker_consumer.consumer;
        (goes && alone == SingleConsumerPrefetch::GoesFirst).then(|| self.cancel(consumer))
    }

    fn consume(&mut self, prefetch: u16) -> ChannelStep {
        self.consumers += 1;
        self.broker_consumers.push(BrokerConsumer {
            consumer: self.consumers,
            prefetch,
            stage: ConsumerStage::Asked,
            served: 0,
            taken: 0,
            stuck: 0,
        });
        ChannelStep::Consume {
            consumer: self.consumers,
            prefetch,
        }
    }

    fn cancel(&mut self, consumer: u64) -> ChannelStep {
        if let Some(broker_consumer) = self.broker_consumer(consumer) {
            broker_consumer.stage = ConsumerStage::Leaving;
        }
        ChannelStep::Cancel { consumer }
    }

    fn broker_consumer(&mut self, consumer: u64) -> Option<&mut BrokerConsumer> {
        self.broker_consumers
            .iter_mut()
            .find(|broker_consumer| broker_consumer.consumer == consumer)
    }

    /// The broker serves a consumer.
    pub(super) fn consuming(&mut self, consumer: u64) {
        for broker_consumer in &mut self.broker_consumers {
            broker_consumer.served = 0;
        }
        if let Some(broker_consumer) = self.broker_consumer(consumer) {
            broker_consumer.stage = ConsumerStage::Running;
        }
    }

    /// A consumer is gone.
    pub(super) fn gone(&mut self, consumer: u64) {
        self.broker_consumers
            .retain(|broker_consumer| broker_consumer.consumer != consumer);
        let went_first = self.goes_first.take_if(|first| *first == consumer);
        let unserved = self
            .broker_consumers
            .iter()
            .all(|broker_consumer| broker_consumer.served == 0);
        self.may_sleep |= self.queues_sleep && went_first.is_some() && unserved;
    }

    /// The channel is gone.
    pub(super) fn lost(&mut self) {
        self.broker_consumers.clear();
        self.single_active = false;
        (self.goes_first, self.may_sleep) = (None, false);
    }

    /// A message came to a consumer.
    pub(super) fn delivered(&mut self, consumer: u64) {
        if let Some(broker_consumer) = self.broker_consumer(consumer) {
            broker_consumer.served = broker_consumer.served.saturating_add(1);
        }
    }

    /// A message occupies its place for long, or no longer.
    pub(super) fn takes_its_place(&mut self, consumer: u64, taken: bool) {
        if let Some(broker_consumer) = self.broker_consumer(consumer) {
            broker_consumer.taken = if taken {
                broker_consumer.taken + 1
            } else {
                broker_consumer.taken.saturating_sub(1)
            };
        }
    }

    /// A message that occupies its place for long is with no handler and cannot be stored; or no longer.
    pub(super) fn is_stuck(&mut self, consumer: u64, stuck: bool) {
        if let Some(broker_consumer) = self.broker_consumer(consumer) {
            broker_consumer.stuck = if stuck {
                broker_consumer.stuck + 1
            } else {
                broker_consumer.stuck.saturating_sub(1)
            };
        }
    }

    /// Whether more than one message at a time will never come, because the queue or the broker allows no wider consumer.
    pub(super) fn stays_narrow(&self) -> bool {
        self.single_active || self.alone == Some(SingleConsumerPrefetch::Stays)
    }

    /// Whether at most one message at a time can come.
    pub(super) fn is_narrow(&self) -> bool {
        self.broker_consumers
            .iter()
            .all(|broker_consumer| broker_consumer.prefetch == 1)
    }

    /// Whether nothing can come any more.
    pub(super) fn is_closed(&self) -> bool {
        self.broker_consumers.is_empty()
    }

    /// Whether another consumer was requested and is not there yet. An acknowledgement now would bring the last one another message out of
    /// turn, perhaps while it is cancelled.
    pub(super) fn is_changing(&self) -> bool {
        let asked =
            |broker_consumer: &BrokerConsumer| broker_consumer.stage == ConsumerStage::Asked;
        self.broker_consumers.len() > 1 && self.broker_consumers.iter().any(asked)
    }

    /// How many unsettled messages a consumer may have.
    pub(super) fn prefetch_of(&self, consumer: u64) -> u16 {
        let broker_consumer = self
            .broker_consumers
            .iter()
            .find(|broker_consumer| broker_consumer.consumer == consumer);
        broker_consumer.map_or(0, |broker_consumer| broker_consumer.prefetch)
    }

    #[cfg(test)]
    pub(super) fn newest(&self) -> u64 {
        self.broker_consumers
            .last()
            .map_or(0, |broker_consumer| broker_consumer.consumer)
    }

    /// How many messages may be unacknowledged on this channel now, for the rhythm of acknowledgements.
    pub(super) fn width(&self) -> u16 {
        self.broker_consumers
            .iter()
            .map(|broker_consumer| broker_consumer.prefetch)
            .max()
            .unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(prefetch: u16) -> PrefetchControl {
        let mut prefetch_control = PrefetchControl::new(prefetch, true);
        assert_eq!(
            prefetch_control.next(PrefetchMode::One, false),
            Some(ChannelStep::Consume {
                consumer: 1,
                prefetch: 1
            })
        );
        assert_eq!(
            prefetch_control.next(PrefetchMode::One, false),
            None,
            "not answered yet"
        );
        prefetch_control.consuming(1);
        prefetch_control
    }

    fn widened() -> PrefetchControl {
        let mut prefetch_control = started(64);
        prefetch_control.delivered(1);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            Some(ChannelStep::Consume {
                consumer: 2,
                prefetch: 64
            })
        );
        assert!(prefetch_control.is_changing());
        prefetch_control.consuming(2);
        prefetch_control
    }

    #[test]
    fn the_narrow_consumer_goes_when_the_wide_one_is_served() {
        let mut prefetch_control = widened();
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            None,
            "not served yet"
        );
        prefetch_control.delivered(2);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            Some(ChannelStep::Cancel { consumer: 1 })
        );
        prefetch_control.gone(1);
        assert_eq!(prefetch_control.next(PrefetchMode::Full, false), None);
        assert!(!prefetch_control.is_narrow());
    }

    #[test]
    fn where_the_wide_one_is_never_served_the_narrow_one_stays() {
        let mut prefetch_control = widened();
        prefetch_control.delivered(1);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            None,
            "that can be chance"
        );
        prefetch_control.delivered(1);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            Some(ChannelStep::Cancel { consumer: 2 })
        );
        prefetch_control.gone(2);
        assert_eq!(prefetch_control.next(PrefetchMode::Full, false), None);
        prefetch_control.lost();
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            Some(ChannelStep::Consume {
                consumer: 3,
                prefetch: 64
            }),
            "it may be another queue"
        );
    }

    #[test]
    fn narrowing_consumes_anew_before_it_cancels() {
        let mut prefetch_control = widened();
        prefetch_control.delivered(2);
        prefetch_control.next(PrefetchMode::Full, false);
        prefetch_control.gone(1);
        assert_eq!(
            prefetch_control.next(PrefetchMode::One, false),
            Some(ChannelStep::Consume {
                consumer: 3,
                prefetch: 1
            })
        );
        assert_eq!(prefetch_control.next(PrefetchMode::One, false), None);
        prefetch_control.consuming(3);
        assert_eq!(
            prefetch_control.next(PrefetchMode::One, false),
            Some(ChannelStep::Cancel { consumer: 2 })
        );
        assert!(
            !prefetch_control.is_narrow(),
            "what was sent can still come"
        );
        prefetch_control.gone(2);
        assert!(prefetch_control.is_narrow());
    }

    #[test]
    fn a_message_that_takes_its_place_for_long_gets_company() {
        let mut prefetch_control = started(1);
        prefetch_control.delivered(1);
        prefetch_control.takes_its_place(1, true);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            None,
            "if that is allowed"
        );
        let anew = ChannelStep::Consume {
            consumer: 2,
            prefetch: 1,
        };
        assert_eq!(prefetch_control.next(PrefetchMode::Full, true), Some(anew));
        prefetch_control.consuming(2);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, true),
            None,
            "not served yet"
        );
        prefetch_control.delivered(2);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, true),
            Some(ChannelStep::Cancel { consumer: 1 })
        );
    }

    #[test]
    fn one_that_is_stuck_goes_although_no_other_is_served() {
        let mut prefetch_control = started(1);
        prefetch_control.delivered(1);
        prefetch_control.takes_its_place(1, true);
        assert!(prefetch_control.next(PrefetchMode::Full, true).is_some());
        prefetch_control.consuming(2);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, true),
            None,
            "it may be stored at the next try"
        );
        prefetch_control.is_stuck(1, true);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, true),
            Some(ChannelStep::Cancel { consumer: 1 })
        );
        assert_eq!(prefetch_control.next(PrefetchMode::Full, true), None);
        prefetch_control.gone(1);
        let wait_for_engine_work = ChannelStep::Consume {
            consumer: 3,
            prefetch: 1,
        };
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, true),
            Some(wait_for_engine_work)
        );
        prefetch_control.consuming(3);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, true),
            Some(ChannelStep::Cancel { consumer: 3 }),
            "the active one stays"
        );
        prefetch_control.gone(3);
        assert_eq!(prefetch_control.next(PrefetchMode::Full, true), None);
    }

    #[test]
    fn narrowing_waits_for_nobody_though_a_place_is_taken_for_long() {
        let mut prefetch_control = widened();
        prefetch_control.delivered(2);
        prefetch_control.next(PrefetchMode::Full, false);
        prefetch_control.gone(1);
        prefetch_control.takes_its_place(2, true);
        assert!(prefetch_control.next(PrefetchMode::One, true).is_some());
        prefetch_control.consuming(3);
        assert_eq!(
            prefetch_control.next(PrefetchMode::One, true),
            Some(ChannelStep::Cancel { consumer: 2 }),
            "nothing may come to the narrow one, and more must not come to the wide one"
        );
    }

    #[test]
    fn where_one_consumer_is_allowed_it_is_cancelled_first() {
        let mut prefetch_control = started(64);
        prefetch_control.set_alone(Some(SingleConsumerPrefetch::GoesFirst));
        prefetch_control.delivered(1);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            Some(ChannelStep::Cancel { consumer: 1 })
        );
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            None,
            "it is still there"
        );
        prefetch_control.gone(1);
        let wide = ChannelStep::Consume {
            consumer: 2,
            prefetch: 64,
        };
        assert_eq!(prefetch_control.next(PrefetchMode::Full, false), Some(wide));
        assert_eq!(
            prefetch_control.next(PrefetchMode::Full, false),
            None,
            "not answered yet"
        );
        assert!(
            !prefetch_control.is_changing(),
            "acknowledgements need not wait"
        );
        prefetch_control.consuming(2);
        assert_eq!(prefetch_control.next(PrefetchMode::Full, false), None);
        assert_eq!(
            prefetch_control.next(PrefetchMode::One, false),
            Some(ChannelStep::Cancel { consumer: 2 })
        );
    }

    #[test]
    fn where_the_only_consumer_must_stay_it_brings_one_message_at_a_time() {
        let mut prefetch_control = started(64);
        prefetch_control.set_alone(Some(SingleConsumerPrefetch::Stays));
        prefetch_control.delivered(1);
        for goal in [PrefetchMode::Full, PrefetchMode::One] {
            assert_eq!(prefetch_control.next(goal, false), None);
        }
        prefetch_control.takes_its_place(1, true);
        assert_eq!(prefetch_control.next(PrefetchMode::Full, true), None);
        assert_eq!(
            prefetch_control.next(PrefetchMode::Nothing, false),
            Some(ChannelStep::Cancel { consumer: 1 })
        );
    }

    #[test]
    fn the_end_cancels_everything() {
        let mut prefetch_control = widened();
        let cancelled: Vec<_> =
            std::iter::from_fn(|| prefetch_control.next(PrefetchMode::Nothing, false)).collect();
        assert_eq!(
            cancelled,
            [
                ChannelStep::Cancel { consumer: 1 },
                ChannelStep::Cancel { consumer: 2 }
            ]
        );
        assert!(!prefetch_control.is_closed(), "the broker has not answered");
        prefetch_control.gone(1);
        prefetch_control.gone(2);
        assert!(prefetch_control.is_closed());
    }
}
