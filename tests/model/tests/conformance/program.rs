//! Random programs: what two clients and a publisher do, one step after the other.

use crate::layout::Layout;
use fastrand::Rng;
use retryrmq_model::{QueueType, Version};

/// How many channels clients use: three on `work`, of two connections, and one on `next`.
pub(crate) const CHANNELS: usize = 4;

/// A program, all of it from its seed.
#[derive(Clone, Debug)]
pub(crate) struct Program {
    pub(crate) seed: u64,
    pub(crate) layout: Layout,
    pub(crate) steps: Vec<Step>,
}

/// What is done. A step that makes no sense when its turn comes is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Publish {
        to_next: bool,
        expires: bool,
        forged: Forgery,
    },
    /// Over AMQP 1.0, with a type that AMQP 0-9-1 lacks.
    PublishUnreadable {
        to_next: bool,
    },
    /// Longer than the broker lets a delivery be unsettled.
    Outlast,
    Consume {
        channel: usize,
        prefetch: u16,
        no_ack: bool,
    },
    Cancel {
        channel: usize,
    },
    Get {
        channel: usize,
    },
    Settle {
        channel: usize,
        /// Which of the unsettled ones, counted around.
        which: usize,
        multiple: bool,
        how: How,
    },
    Recover {
        channel: usize,
    },
    CloseChannel {
        channel: usize,
    },
    CloseConnection {
        connection: usize,
    },
    SettleUnknown {
        channel: usize,
    },
    Purge,
    Delete {
        next: bool,
    },
    Declare {
        next: bool,
    },
}

/// How a delivery is settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Ack,
    Nack { requeue: bool },
    Reject { requeue: bool },
}

/// What a publisher writes where only brokers should.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgery {
    None,
    Deaths,
    DeathsAsText,
    Counts,
}

/// What programs are about, besides what all are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    Anything,
    /// Policies of users and operators.
    Policies,
    /// At-least-once dead-lettering.
    DeadLetters,
    /// Messages that AMQP 0-9-1 cannot carry.
    Unreadable,
}

impl Program {
    pub(crate) fn about(subject: Subject, seed: u64, kind: QueueType, version: Version) -> Self {
        let mut program = Program::random(seed, kind, version);
        let mut random = Rng::with_seed(!seed);
        match subject {
            Subject::Anything => {}
            Subject::Policies => {
                program.layout = program.layout.governed(&mut random, version);
            }
            Subject::DeadLetters => {
                program.layout = program.layout.demanding(&mut random);
                // What is dead finds no queue then.
                program.steps.insert(0, Step::Delete { next: true });
            }
            Subject::Unreadable => program.bring_unreadable(&mut random),
        }
        program
    }

    /// Puts unreadable messages between the others. What a lost connection had on several channels comes back in no certain order, so that
    /// each has one here.
    fn bring_unreadable(&mut self, random: &mut Rng) {
        let second = random.usize(2..CHANNELS);
        // A full quorum queue has told who publishes on a channel, and each of these messages comes on a session of its own.
        self.layout.max_length = None;
        if !self.layout.allows_get() {
            self.steps.retain(|step| !matches!(step, Step::Get { .. }));
        }
        for step in &mut self.steps {
            step.use_channels([0, second]);
            match step {
                Step::Publish { to_next, .. } if random.u8(0..3) == 0 => {
                    let to_next = *to_next;
                    *step = Step::PublishUnreadable { to_next };
                }
                Step::Consume { no_ack, .. } => *no_ack = false,
                _ => {}
            }
        }
    }

    pub(crate) fn random(seed: u64, kind: QueueType, version: Version) -> Self {
        let mut random = Rng::with_seed(seed);
        let layout = Layout::random(&mut random, kind, version);
        let count = random.usize(6..26);
        let mut steps: Vec<Step> = (0..random.usize(0..4))
            .map(|_| publish(&mut random))
            .collect();
        steps.extend((0..count).map(|_| step(&mut random, &layout)));
        if version == Version::V3_10 && kind == QueueType::Classic && layout.single_active {
            // A publish after it is nacked, and what is behind that is not modelled.
            steps.retain(|step| !matches!(step, Step::Cancel { .. }));
        }
        Program {
            seed,
            layout,
            steps,
        }
    }
}

impl Step {
    /// The first of these channels for one connection, the second for the other.
    fn use_channels(&mut self, channels: [usize; 2]) {
        match self {
            Step::Consume { channel, .. }
            | Step::Cancel { channel }
            | Step::Get { channel }
            | Step::Settle { channel, .. }
            | Step::Recover { channel }
            | Step::CloseChannel { channel }
            | Step::SettleUnknown { channel } => *channel = channels[*channel / 2],
            _ => {}
        }
    }
}

fn step(random: &mut Rng, layout: &Layout) -> Step {
    let channel = random.usize(0..CHANNELS);
    match random.u32(0..100) {
        0..26 => publish(random),
        26..42 => Step::Consume {
            channel,
            prefetch: random.u16(0..4),
            no_ack: random.u32(0..12) == 0,
        },
        42..45 => Step::Cancel { channel },
        45..52 if layout.allows_get() || channel == CHANNELS - 1 => Step::Get { channel },
        45..84 => Step::Settle {
            channel,
            which: random.usize(0..4),
            multiple: random.u32(0..4) == 0,
            how: [
                How::Ack,
                How::Nack { requeue: true },
                How::Nack { requeue: false },
                How::Reject { requeue: true },
                How::Reject { requeue: false },
            ][random.usize(0..5)],
        },
        84..87 => Step::Recover { channel },
        87..91 => Step::CloseChannel { channel },
        91..93 => Step::CloseConnection {
            connection: random.usize(0..2),
        },
        93..94 => Step::SettleUnknown { channel },
        94..95 => Step::Purge,
        95..97 => Step::Delete {
            next: random.bool(),
        },
        _ => Step::Declare {
            next: random.bool(),
        },
    }
}

fn publish(random: &mut Rng) -> Step {
    Step::Publish {
        to_next: random.u32(0..5) == 0,
        expires: random.u32(0..8) == 0,
        forged: match random.u32(0..14) {
            0 => Forgery::Deaths,
            1 => Forgery::DeathsAsText,
            2 => Forgery::Counts,
            _ => Forgery::None,
        },
    }
}
