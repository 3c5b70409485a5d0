//! A life from its first message to the closing of its ledger.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use retryrmq_harness::{QueueType, Vhost, words};
use tokio::time::sleep;

use crate::consumer_side::ConsumerSide;
use crate::environment::Environment;
use crate::ledger::Verdict;
use crate::operator;
use crate::plan::{Scenario, Severity};

/// How long the end of a life may take once nothing is done to anybody any more. A dead letter that could not be stored is tried again
/// after three minutes.
pub const BOUND: Duration = Duration::from_secs(480);
/// A quorum queue younger than this does not survive the death of its only node.
const SETTLING: Duration = Duration::from_secs(4);

/// How a life is played.
#[derive(Clone, Copy, Debug)]
pub struct ScenarioSetup<'a> {
    /// The program that is a consumer when its argument is `worker`.
    pub program: &'a str,
    /// Whether the consumers are of another make, one that loses messages.
    pub loses_copies: bool,
    /// How long the end may take: [`BOUND`], where nothing is known to be lost.
    pub bound: Duration,
}

/// What a life came to.
#[derive(Debug)]
pub struct ScenarioResult {
    /// One for each type of work queue.
    pub verdicts: Vec<Verdict>,
    /// Whether it was played to its end. If not, nobody knows what has become of the nodes.
    pub whole: bool,
}

/// Plays a life with these types of work queue side by side.
pub async fn play(
    environment: &Environment,
    scenario: &Scenario,
    types: &[QueueType],
    setup: ScenarioSetup<'_>,
) -> ScenarioResult {
    let vhost = environment.node().vhost().await;
    let rest = AtomicBool::new(scenario.nodes.is_empty());
    let consumer_side = |work: &QueueType| {
        let side = scenario.side(*work, environment.node().version());
        ConsumerSide::new(environment, &vhost, side, setup, &rest)
    };
    let stages: Vec<_> = types.iter().map(consumer_side).collect();
    for consumer_side in &stages {
        consumer_side.ledger.note(format!("{scenario:?}"));
    }
    let through = AssertUnwindSafe(play_through(environment, scenario, &vhost, &stages, &rest))
        .catch_unwind()
        .await;
    let ledger = stages.iter().map(|consumer_side| &consumer_side.ledger);
    let verdicts = match &through {
        Ok(()) => ledger
            .map(|ledger| ledger.judge(scenario.severity == Severity::Gentle))
            .collect(),
        Err(panic) => ledger
            .map(|ledger| ledger.break_off(words(&**panic)))
            .collect(),
    };
    let whole = through.is_ok();
    ScenarioResult { verdicts, whole }
}

async fn play_through(
    environment: &Environment,
    scenario: &Scenario,
    vhost: &Vhost,
    stages: &[ConsumerSide<'_>],
    rest: &AtomicBool,
) {
    let processes = join_all(stages.iter().map(ConsumerSide::open)).await;
    let node_faults = async {
        if scenario.nodes.is_empty() {
            return;
        }
        sleep(SETTLING).await;
        let ledger: Vec<_> = stages
            .iter()
            .map(|consumer_side| &consumer_side.ledger)
            .collect();
        for (fault, consumer_side) in scenario.nodes.iter().zip(stages.iter().cycle()) {
            sleep(fault.after).await;
            environment
                .fault(*fault, vhost, &consumer_side.queue, &ledger)
                .await;
        }
        rest.store(true, Ordering::Relaxed);
    };
    let scenarios = async {
        let sides = stages.iter().zip(&processes);
        let sides = sides.map(|(consumer_side, processes)| consumer_side.play(processes));
        tokio::join!(node_faults, join_all(sides));
        let ends = stages.iter().zip(processes);
        join_all(ends.map(|(consumer_side, processes)| consumer_side.end(processes))).await;
    };
    let operators = stages.iter().map(|consumer_side| {
        operator::delete_dead_queues(
            environment,
            vhost,
            &consumer_side.queue,
            &consumer_side.ledger,
        )
    });
    tokio::select! {
        () = scenarios => {}
        _ = join_all(operators) => {}
    }
}
