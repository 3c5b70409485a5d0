//! What is done to consumers, to the network and to nodes.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use fastrand::Rng;
use retryrmq_harness::Direction;

/// Harm to one side of a life: its consumers, its publisher and their network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A consumer is killed (SIGKILL), and another takes its place.
    Kill {
        /// Which.
        process: usize,
    },
    /// A consumer is told to end (SIGTERM), and another takes its place.
    Stop {
        /// Which.
        process: usize,
    },
    /// The network of a consumer, or of the publisher.
    Network {
        /// Which; the publisher has the number after the last consumer.
        process: usize,
        /// What.
        cut: NetworkFault,
    },
}

/// Harm to the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkFault {
    /// All connections are reset.
    Reset,
    /// All connections end without a word.
    Close,
    /// All connections end after as many bytes, most probably within a frame.
    InAFrame {
        /// Which way.
        direction: Way,
        /// How many bytes.
        bytes: usize,
    },
    /// All connections are reset, and new ones refused for a while.
    Refuse(Duration),
    /// Nothing passes for a while.
    Stall(Way, Duration),
}

/// Which way the bytes go, as a plan can hold it.
pub type Way = Direction;

impl NetworkFault {
    /// One of them.
    pub fn choose(random: &mut Rng) -> Self {
        let ways = [Direction::ToBroker, Direction::ToClient, Direction::Both];
        let way = ways[random.usize(..3)];
        match random.u8(0..8) {
            0 | 1 => Self::Reset,
            2 => Self::Close,
            3..6 => Self::InAFrame {
                direction: ways[random.usize(..2)],
                bytes: random.usize(1..3_000),
            },
            6 => Self::Refuse(Duration::from_millis(random.u64(100..1_500))),
            _ => Self::Stall(way, Duration::from_millis(random.u64(200..3_500))),
        }
    }
}

/// Harm to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeFault {
    /// Since the last one was over.
    pub after: Duration,
    /// Whether it is the node that holds the work queue, or leads it, or else another one.
    pub holder: bool,
    /// Whether it is killed (SIGKILL); otherwise it is stopped cleanly.
    pub kill: bool,
    /// How long it stays away.
    pub away: Duration,
}

impl fmt::Display for NodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kill, away, .. } = self;
        let done = if *kill { "killed" } else { "stopped" };
        write!(f, "{done} for {away:?}")
    }
}

/// How often what was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounts {
    /// Consumers killed.
    pub consumers_killed: u64,
    /// Consumers told to end.
    pub consumers_stopped: u64,
    /// Processes that a handler took along.
    pub crashes: u64,
    /// Networks cut, stalled or refused.
    pub cuts: u64,
    /// Nodes killed that held or led the work queue.
    pub holders_killed: u64,
    /// Other nodes killed.
    pub others_killed: u64,
    /// Nodes stopped cleanly.
    pub nodes_stopped: u64,
    /// What an operator had to do in the end.
    pub mended: u64,
}

impl AddAssign for FaultCounts {
    fn add_assign(&mut self, more: Self) {
        self.consumers_killed += more.consumers_killed;
        self.consumers_stopped += more.consumers_stopped;
        self.crashes += more.crashes;
        self.cuts += more.cuts;
        self.holders_killed += more.holders_killed;
        self.others_killed += more.others_killed;
        self.nodes_stopped += more.nodes_stopped;
        self.mended += more.mended;
    }
}

impl FaultCounts {
    /// How often anything was done at all.
    pub fn total(&self) -> u64 {
        self.consumers_killed
            + self.consumers_stopped
            + self.crashes
            + self.cuts
            + self.holders_killed
            + self.others_killed
            + self.nodes_stopped
    }
}
