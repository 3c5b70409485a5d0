//! What a seed names: the place, the consumers, the messages, and a timetable of harm. Pure: the same seed and version name the
//! same life. What then happens when is up to real processes.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use retryrmq::{Policy, Strategy};
use retryrmq_harness::{QueueType, Version};

use crate::faults::{Fault, NetworkFault, NodeFault};
use crate::handler_script::HandlerScript;

/// Where a life takes place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EnvironmentKind {
    /// One node.
    Single,
    /// A cluster of three.
    Cluster,
}

impl EnvironmentKind {
    /// The ground that a seed chooses: of three, one is played on a cluster.
    pub fn of(seed: u64) -> Self {
        if seed % 3 == 2 {
            Self::Cluster
        } else {
            Self::Single
        }
    }
}

impl fmt::Display for EnvironmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Single => "node",
            Self::Cluster => "cluster",
        })
    }
}

/// How much harm is done in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Consumers are stopped cleanly, and no handler does harm: then nothing is handled twice.
    Gentle,
    /// Consumers and their network. Brokers live, so that queues that keep nothing twice can be tried.
    Clients,
    /// Nodes as well.
    Everything,
}

/// What both sides of a life have in common.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    /// Where.
    pub environment_kind: EnvironmentKind,
    /// How much harm.
    pub severity: Severity,
    /// What is done to nodes.
    pub nodes: Vec<NodeFault>,
}

/// How a message is named by its publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Id {
    /// Not at all.
    None,
    /// By its number.
    Own,
    /// As others are.
    Shared,
}

/// A message to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedMessage {
    /// Since the one before.
    pub after: Duration,
    /// What its handler does.
    pub kind: HandlerScript,
    /// Its id.
    pub id: Id,
    /// How long its publisher wants it to wait.
    pub delay: Option<Duration>,
}

/// One side of a life: a work queue with its consumers and its publisher.
#[derive(Clone, Debug, PartialEq)]
pub struct SidePlan {
    /// The type of the work queue.
    pub work: QueueType,
    /// The type of the waiting and parking queues.
    pub waiting: QueueType,
    /// How failed messages wait.
    pub strategy: Strategy,
    /// How many consumers there are at a time.
    pub replicas: usize,
    /// How many messages each prefetches.
    pub prefetch: u16,
    /// How many handlers each runs.
    pub concurrency: usize,
    /// How many messages a handler gets at most; `None` for single ones.
    pub batch: Option<usize>,
    /// How many messages are published at least; more follow until the harm to nodes is over.
    pub least_messages: u32,
    /// How often harm is done at least, likewise.
    pub least_faults: u32,
    /// The message that takes its process along whenever it runs.
    pub poison: Option<u32>,
    gentle: bool,
    seed: u64,
}

impl Scenario {
    /// The life that a seed names.
    pub fn new(seed: u64) -> Self {
        Self::on(EnvironmentKind::of(seed), seed)
    }

    fn on(environment_kind: EnvironmentKind, seed: u64) -> Self {
        let mut random = chance(seed, 0);
        let severity = match (environment_kind, random.u8(0..10)) {
            (EnvironmentKind::Single, 0) => Severity::Gentle,
            (EnvironmentKind::Single, 1 | 2) => Severity::Clients,
            _ => Severity::Everything,
        };
        let count = if severity == Severity::Everything {
            random.usize(1..3)
        } else {
            0
        };
        let nodes = (0..count).map(|_| NodeFault {
            after: Duration::from_millis(random.u64(200..3_000)),
            holder: random.u8(0..3) > 0,
            kill: random.u8(0..3) > 0,
            away: Duration::from_millis(random.u64(0..2_500)),
        });
        let nodes = nodes.collect();
        Self {
            seed,
            environment_kind,
            severity,
            nodes,
        }
    }

    /// One side of it.
    pub fn side(&self, work: QueueType, version: Version) -> SidePlan {
        let salt = if work == QueueType::Classic { 1 } else { 2 };
        let mut random = chance(self.seed, salt);
        // A classic queue dead-letters at most once: what is on its way when its broker goes, is gone.
        let brokers_live = self.severity != Severity::Everything;
        let waiting = if brokers_live && random.bool() {
            QueueType::Classic
        } else {
            QueueType::Quorum
        };
        let native = version >= Version::V4_3;
        let strategy = match random.u8(0..8) {
            0 if work == QueueType::Quorum || brokers_live => Strategy::DeadLetter,
            1 if work == QueueType::Quorum && native => Strategy::Native,
            _ => Strategy::RetryQueues,
        };
        // Where the strategy makes the work queue, it makes all of one type.
        let waiting = if strategy == Strategy::RetryQueues {
            waiting
        } else {
            work
        };
        let gentle = self.severity == Severity::Gentle;
        // `native` counts every return as a retry, and parks nothing for its crashes.
        let poison = !gentle && strategy != Strategy::Native && random.u8(0..4) == 0;
        let replicas = random.usize(1..4);
        let prefetch = [1, 4, 16, 64][random.usize(..4)];
        // A chance of its own: the rest of a life stays what it was.
        let mut batches = chance(self.seed, 10 + salt);
        let batch = [2, 5, 20][batches.usize(..3)].min(usize::from(prefetch));
        let batch = (batches.u8(0..4) == 0).then_some(batch);
        SidePlan {
            work,
            waiting,
            strategy,
            replicas,
            prefetch,
            concurrency: random.usize(1..9),
            batch,
            least_messages: random.u32(40..120),
            least_faults: random.u32(3..7),
            poison: poison.then(|| random.u32(1..30)),
            gentle,
            seed: random.u64(..),
        }
    }
}

impl SidePlan {
    /// What is published, without an end, numbered from 1.
    pub fn planned_messages(&self) -> impl Iterator<Item = (u32, PlannedMessage)> {
        let mut random = chance(self.seed, 3);
        (1..).map(move |number| (number, self.planned_message(number, &mut random)))
    }

    /// What is done, without an end, and how long after the one before.
    pub fn faults(&self) -> impl Iterator<Item = (Duration, Fault)> {
        let mut random = chance(self.seed, 4);
        std::iter::repeat_with(move || {
            let after = Duration::from_millis(random.u64(150..2_500));
            (after, self.fault(&mut random))
        })
    }

    fn planned_message(&self, number: u32, random: &mut Rng) -> PlannedMessage {
        let kind = if self.gentle {
            HandlerScript::gentle(random)
        } else {
            HandlerScript::any(random)
        };
        let kind = match kind {
            _ if self.poison == Some(number) => HandlerScript::Poison,
            // `native` counts every return of a message, so that a count of crashes means something else there.
            HandlerScript::Forged(_) if self.strategy == Strategy::Native => HandlerScript::Fine,
            kind => kind,
        };
        PlannedMessage {
            after: Duration::from_millis(random.u64(10..130)),
            kind,
            id: [Id::None, Id::Own, Id::Shared][random.usize(..3)],
            delay: (random.u8(0..16) == 0).then(|| Duration::from_millis(random.u64(50..900))),
        }
    }

    fn fault(&self, random: &mut Rng) -> Fault {
        let process = random.usize(..self.replicas);
        match random.u8(0..10) {
            _ if self.gentle => Fault::Stop { process },
            0..4 => Fault::Kill { process },
            4..6 => Fault::Stop { process },
            _ => Fault::Network {
                process: random.usize(..=self.replicas),
                cut: NetworkFault::choose(random),
            },
        }
    }

    /// How failures are retried: with short delays, so that a message goes through all of them while harm is done.
    ///
    /// # Panics
    /// Never: the texts are policies.
    pub fn policy(&self) -> Policy {
        self.policy_text().parse().expect("the text is a policy")
    }

    /// The policy as text.
    pub fn policy_text(&self) -> &'static str {
        match self.strategy {
            Strategy::DeadLetter => "fixed(100ms, retries=3)",
            // Each lost connection spends a retry there.
            Strategy::Native => "fixed(100ms, retries=40)",
            _ => "list(50ms, 100ms, 200ms)",
        }
    }
}

impl fmt::Display for SidePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            waiting,
            strategy,
            replicas,
            prefetch,
            concurrency,
            ..
        } = self;
        write!(
            f,
            "{strategy}, waiting in {waiting} queues, {replicas} consumers, prefetch {prefetch}, concurrency {concurrency}"
        )
    }
}

/// A source of chance of its own for each use of a seed; neighbours have nothing in common.
fn chance(seed: u64, of: u64) -> Rng {
    let mut random = Rng::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    Rng::with_seed(
        random
            .u64(..)
            .wrapping_add(of.wrapping_mul(0xd1b5_4a32_d192_ed03)),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_names_the_same_life() {
        for seed in 0..50 {
            let (one, other) = (Scenario::new(seed), Scenario::new(seed));
            assert_eq!(one, other);
            for work in QueueType::ALL {
                let sides = [&one, &other].map(|scenario| scenario.side(work, Version::V4_3));
                assert_eq!(sides[0], sides[1]);
                let [planned_messages, others] =
                    [0, 1].map(|at| sides[at].planned_messages().take(99));
                assert!(planned_messages.eq(others));
                let [faults, others] = [0, 1].map(|at| sides[at].faults().take(99));
                assert!(faults.eq(others));
            }
        }
    }

    #[test]
    fn a_hundred_seeds_name_every_sort_of_life() {
        let scenarios: Vec<_> = (0..100).map(Scenario::new).collect();
        for environment_kind in [EnvironmentKind::Single, EnvironmentKind::Cluster] {
            assert!(
                scenarios
                    .iter()
                    .any(|scenario| scenario.environment_kind == environment_kind)
            );
        }
        for severity in [Severity::Gentle, Severity::Clients, Severity::Everything] {
            assert!(
                scenarios
                    .iter()
                    .any(|scenario| scenario.severity == severity),
                "{severity:?}"
            );
        }
        for strategy in [
            Strategy::RetryQueues,
            Strategy::DeadLetter,
            Strategy::Native,
        ] {
            let has = |scenario: &Scenario| {
                scenario.side(QueueType::Quorum, Version::V4_3).strategy == strategy
            };
            assert!(scenarios.iter().any(has), "{strategy}");
        }
        let sides = scenarios
            .iter()
            .map(|scenario| scenario.side(QueueType::Classic, Version::V3_10));
        let poisoned = sides.filter(|side| {
            side.planned_messages()
                .take(30)
                .any(|(_, planned_message)| planned_message.kind == HandlerScript::Poison)
        });
        let poisoned = poisoned.count();
        assert!((5..50).contains(&poisoned), "{poisoned}");
    }

    #[test]
    fn what_dead_letters_at_most_once_meets_no_harm_to_its_broker() {
        for scenario in (0..300).map(Scenario::new) {
            for work in QueueType::ALL {
                let side = scenario.side(work, Version::V4_3);
                let careless = side.waiting == QueueType::Classic;
                assert!(
                    !careless || scenario.nodes.is_empty(),
                    "seed {}",
                    scenario.seed
                );
            }
        }
    }
}
