//! The two queues of a program: `work`, and `next`, to which its dead letters go.

use fastrand::Rng;
use retryrmq_model::{Declare, Policy, QueueType, Version};

/// How long messages wait where they wait, in milliseconds: longer than a hop takes, and short because tests wait it out.
pub(crate) const WAIT: i64 = 40;

/// What the queues are declared with.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) kind: QueueType,
    pub(crate) next_kind: QueueType,
    pub(crate) dead_letters: bool,
    pub(crate) at_least_once: bool,
    /// `next` gives back to `work` after a while, instead of keeping what it gets.
    pub(crate) returns: bool,
    pub(crate) expires: bool,
    pub(crate) delivery_limit: Option<i64>,
    pub(crate) max_length: Option<i64>,
    pub(crate) reject_publish: bool,
    pub(crate) single_active: bool,
    pub(crate) delayed_retry: Option<&'static str>,
    /// What a user's and an operator's policy say of `work`.
    pub(crate) policies: [Policy; 2],
}

impl Layout {
    /// Two queues of a type without any feature but that dead letters go from one to the other.
    pub(crate) fn plain(kind: QueueType) -> Self {
        Layout {
            kind,
            next_kind: kind,
            dead_letters: true,
            at_least_once: false,
            returns: false,
            expires: false,
            delivery_limit: None,
            max_length: None,
            reject_publish: false,
            single_active: false,
            delayed_retry: None,
            policies: [Policy::default(), Policy::default()],
        }
    }

    /// Plain queues often, each feature now and then.
    pub(crate) fn random(random: &mut Rng, kind: QueueType, version: Version) -> Self {
        let mut rarely = |of: u32| random.u32(0..of) == 0;
        let quorum = kind == QueueType::Quorum;
        let mut layout = Layout {
            kind,
            next_kind: if rarely(4) { other(kind) } else { kind },
            dead_letters: !rarely(4),
            at_least_once: quorum && rarely(4),
            returns: rarely(2),
            expires: rarely(5),
            delivery_limit: None,
            max_length: None,
            reject_publish: rarely(2),
            single_active: rarely(5),
            delayed_retry: None,
            policies: [Policy::default(), Policy::default()],
        };
        if rarely(4) {
            layout.max_length = Some(random.i64(0..4));
        }
        if version == Version::V3_10 && layout.returns {
            // What was once rejected goes round for ever there, and what is seen of it depends on the moment.
            layout.expires = false;
            layout.reject_publish = true;
        }
        if quorum {
            layout.delivery_limit =
                [None, None, Some(0), Some(1), Some(2), Some(-1)][random.usize(0..6)];
            // What is delayed counts, and a queue that drops from its head then looks for a head for ever.
            let hangs =
                layout.max_length.is_some() && !(layout.reject_publish || layout.at_least_once);
            if version >= Version::V4_3 && random.u32(0..5) == 0 && !hangs {
                layout.delayed_retry = Some(["all", "failed", "returned"][random.usize(0..3)]);
            }
        }
        layout
    }

    /// The same with policies, which leave a plain queue little.
    pub(crate) fn governed(mut self, random: &mut Rng, version: Version) -> Self {
        let quorum = self.kind == QueueType::Quorum;
        (self.delayed_retry, self.returns) = (None, false);
        let mut policy = |operators: bool| Policy {
            max_length: random.bool().then(|| random.u64(0..4)),
            delivery_limit: (quorum && random.u8(0..3) == 0).then(|| random.i64(0..3)),
            reject_publish: match operators && version < Version::V4_0 {
                true => None,
                false => [None, Some(true), Some(false)][random.usize(0..3)],
            },
            ..Policy::default()
        };
        self.policies = [policy(false), policy(true)];
        self
    }

    /// The same, asking for at-least-once dead-lettering in a queue that tells what became of it: what is held counts.
    pub(crate) fn demanding(mut self, random: &mut Rng) -> Self {
        (self.dead_letters, self.at_least_once) = (true, true);
        (self.delayed_retry, self.returns) = (None, false);
        self.max_length = Some(random.i64(0..3));
        self.expires = random.bool();
        self
    }

    /// The declarations of both queues, under these names.
    pub(crate) fn declarations(&self, work: &str, next: &str) -> [Declare; 2] {
        let mut first = Declare::durable(work, self.kind);
        if self.dead_letters {
            first = first
                .with("x-dead-letter-exchange", "")
                .with("x-dead-letter-routing-key", next);
            if self.at_least_once {
                first = first.with("x-dead-letter-strategy", "at-least-once");
            }
        }
        if self.expires {
            first = first.with_number("x-message-ttl", WAIT);
        }
        if let Some(limit) = self.delivery_limit {
            first = first.with_number("x-delivery-limit", limit);
        }
        if let Some(length) = self.max_length {
            first = first.with_number("x-max-length", length);
        }
        if self.reject_publish || self.at_least_once {
            first = first.with("x-overflow", "reject-publish");
        }
        if self.single_active {
            let yes = retryrmq_model::lapin::types::AMQPValue::Boolean(true);
            first = first.with_value("x-single-active-consumer", yes);
        }
        if let Some(kind) = self.delayed_retry {
            first = first
                .with("x-delayed-retry-type", kind)
                .with_number("x-delayed-retry-min", WAIT);
        }
        let mut second = Declare::durable(next, self.next_kind);
        if self.returns {
            second = second
                .with_number("x-message-ttl", WAIT)
                .with("x-dead-letter-exchange", "")
                .with("x-dead-letter-routing-key", work);
            if self.next_kind == QueueType::Quorum && self.at_least_once {
                second = second
                    .with("x-dead-letter-strategy", "at-least-once")
                    .with("x-overflow", "reject-publish");
            }
        }
        [first, second]
    }

    /// Whether `basic.get` is allowed on `work`; quorum queues refuse it where one consumer is served at a time.
    pub(crate) fn allows_get(&self) -> bool {
        !self.single_active
    }
}

fn other(kind: QueueType) -> QueueType {
    match kind {
        QueueType::Classic => QueueType::Quorum,
        QueueType::Quorum => QueueType::Classic,
    }
}
