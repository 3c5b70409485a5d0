//! Short programs that showed a difference between the model and a broker when they were found. Their numbers are those
//! of `docs/broker-facts.md`.

use crate::layout::{Layout, WAIT};
use crate::program::{Forgery, How, Program, Step};
use retryrmq_model::{Policy, QueueType, Version};
use std::time::Duration;

const PUBLISH: Step = publish(false, Forgery::None);
const PUBLISH_BRIEF: Step = publish(true, Forgery::None);

const fn publish(expires: bool, forged: Forgery) -> Step {
    Step::Publish {
        to_next: false,
        expires,
        forged,
    }
}

const fn consume(channel: usize, prefetch: u16) -> Step {
    Step::Consume {
        channel,
        prefetch,
        no_ack: false,
    }
}

const fn settle(channel: usize, which: usize, how: How) -> Step {
    Step::Settle {
        channel,
        which,
        multiple: false,
        how,
    }
}

const REQUEUE: How = How::Reject { requeue: true };

/// All that can be run with this type on this version, with their names.
pub(crate) fn known_programs(kind: QueueType, version: Version) -> Vec<(&'static str, Program)> {
    let quorum = kind == QueueType::Quorum;
    let plain = || Layout::plain(kind);
    let limited = |limit| Layout {
        delivery_limit: quorum.then_some(limit),
        ..plain()
    };
    let full = |length| Layout {
        max_length: Some(length),
        ..plain()
    };
    let all = vec![
        (
            "44: a forged count, consumed",
            plain(),
            vec![publish(false, Forgery::Counts), consume(0, 1)],
        ),
        (
            "44: a forged count, got",
            plain(),
            vec![publish(false, Forgery::Counts), Step::Get { channel: 0 }],
        ),
        (
            "45: several consumers of one channel",
            plain(),
            vec![
                PUBLISH,
                PUBLISH,
                PUBLISH,
                consume(2, 0),
                consume(0, 2),
                consume(0, 2),
                Step::CloseChannel { channel: 2 },
            ],
        ),
        (
            "46: a brief message behind one that was given back",
            plain(),
            vec![
                PUBLISH,
                consume(0, 1),
                Step::CloseChannel { channel: 0 },
                PUBLISH_BRIEF,
            ],
        ),
        (
            "47: a death of the delivery limit and the prefetch",
            limited(0),
            vec![
                PUBLISH,
                consume(0, 1),
                settle(0, 0, REQUEUE),
                PUBLISH,
                PUBLISH,
                PUBLISH,
            ],
        ),
        (
            "48: a single active consumer is cancelled",
            Layout {
                single_active: true,
                ..plain()
            },
            vec![
                PUBLISH,
                consume(2, 1),
                consume(1, 3),
                PUBLISH,
                Step::Cancel { channel: 2 },
            ],
        ),
        (
            "49: a queue that refuses takes one too many and goes on when a fifth is free",
            Layout {
                reject_publish: true,
                ..full(2)
            },
            vec![
                PUBLISH,
                PUBLISH,
                PUBLISH,
                PUBLISH,
                consume(0, 1),
                PUBLISH,
                settle(0, 0, How::Ack),
                PUBLISH,
                settle(0, 0, How::Ack),
                PUBLISH,
            ],
        ),
        (
            "50: a dead letter that was delivered in vain, to whom waits and to who comes",
            plain(),
            vec![
                PUBLISH,
                PUBLISH,
                consume(0, 2),
                settle(0, 0, How::Reject { requeue: false }),
                consume(3, 2),
                settle(0, 0, How::Reject { requeue: false }),
            ],
        ),
        (
            "51: what is delayed comes back as it was published",
            Layout {
                delayed_retry: (quorum && version >= Version::V4_3).then_some("failed"),
                ..plain()
            },
            vec![
                PUBLISH,
                PUBLISH,
                PUBLISH,
                consume(2, 3),
                settle(2, 1, How::Nack { requeue: true }),
                Step::CloseConnection { connection: 1 },
                consume(1, 1),
                settle(1, 0, How::Ack),
            ],
        ),
    ];
    let policy = Policy {
        delivery_limit: Some(0),
        ..Policy::default()
    };
    let overruled = (
        "5: no limit in the arguments, and one in a policy",
        Layout {
            policies: [policy, Policy::default()],
            ..limited(-1)
        },
        vec![PUBLISH, consume(0, 1), Step::CloseChannel { channel: 0 }],
    );
    let mut all: Vec<_> = all.into_iter().chain([overruled]).collect();
    all.extend(under_policies(kind, version));
    let program = |layout, steps| Program {
        seed: 0,
        layout,
        steps,
    };
    let all = all.into_iter();
    all.map(|(name, layout, steps)| (name, program(layout, steps)))
        .collect()
}

/// What policies take away from arguments, and add to them.
fn under_policies(kind: QueueType, version: Version) -> Vec<(&'static str, Layout, Vec<Step>)> {
    let none = Policy::default;
    let quorum = kind == QueueType::Quorum;
    let drops = || Policy {
        reject_publish: Some(false),
        ..Policy::default()
    };
    let brief = Policy {
        message_ttl: Some(Duration::from_millis(WAIT.unsigned_abs())),
        ..Policy::default()
    };
    let mut all = vec![(
        "12: a policy gives messages a time to live",
        Layout {
            policies: [brief, none()],
            ..Layout::plain(kind)
        },
        vec![PUBLISH, PUBLISH],
    )];
    let held = |policies| {
        let layout = Layout {
            at_least_once: true,
            expires: true,
            max_length: Some(0),
            policies,
            ..Layout::plain(kind)
        };
        // The second message tells whether the first one is held.
        (layout, vec![Step::Delete { next: true }, PUBLISH, PUBLISH])
    };
    if quorum {
        let (layout, steps) = held([none(), none()]);
        all.push(("90: what is dead is held", layout, steps));
        let (layout, steps) = held([drops(), none()]);
        all.push(("90: and not under a policy with overflow", layout, steps));
    }
    if quorum && version >= Version::V4_0 {
        let (layout, steps) = held([none(), drops()]);
        all.push(("90: nor under one of an operator", layout, steps));
    }
    if quorum && version >= Version::V4_3 {
        let disabled = Policy {
            delayed_retry_type: Some("disabled".to_owned()),
            ..Policy::default()
        };
        let layout = Layout {
            delayed_retry: Some("failed"),
            policies: [disabled, none()],
            ..Layout::plain(kind)
        };
        let steps = vec![
            PUBLISH,
            consume(0, 1),
            settle(0, 0, How::Nack { requeue: true }),
        ];
        all.push(("93: a policy takes the delay away", layout, steps));
    }
    all
}

/// Programs that keep messages for longer than the broker allows.
pub(crate) fn impatient_programs(kind: QueueType) -> Vec<(&'static str, Program)> {
    let limited = |limit| Layout {
        delivery_limit: (kind == QueueType::Quorum).then_some(limit),
        ..Layout::plain(kind)
    };
    let keeps = |channel| [consume(channel, 2), Step::Outlast];
    let all = [
        (
            "22: what is kept too long comes back, and counts or not",
            5,
            1,
        ),
        ("22: each time may use up the delivery limit", 1, 3),
    ];
    let all = all.into_iter();
    all.map(|(name, limit, times)| {
        let mut steps = vec![PUBLISH, PUBLISH];
        (0..times).for_each(|_| steps.extend(keeps(0)));
        steps.push(consume(2, 0));
        let program = Program {
            seed: 0,
            layout: limited(limit),
            steps,
        };
        (name, program)
    })
    .collect()
}
