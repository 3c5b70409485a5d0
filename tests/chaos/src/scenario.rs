//! A life from its first message to the closing of its books.

use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use retryrmq_harness::{QueueType, Vhost, words};
use tokio::time::sleep;

use crate::ledger::Verdict;
use crate::operator;
use crate::environment::Environment;
use crate::plan::{Scenario, Severity};
use crate::consumer_side::ConsumerSide;

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
    pub hasty: bool,
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
pub async fn play(place: &Environment, life: &Scenario, types: &[QueueType], cast: ScenarioSetup<'_>) -> ScenarioResult {
    let vhost = place.node().vhost().await;
    let rest = AtomicBool::new(life.nodes.is_empty());
    let stage = |work: &QueueType| {
        let side = life.side(*work, place.node().version());
        ConsumerSide::new(place, &vhost, side, cast, &rest)
    };
    let stages: Vec<_> = types.iter().map(stage).collect();
    for stage in &stages {
        stage.books.note(format!("{life:?}"));
    }
    let through = AssertUnwindSafe(play_through(place, life, &vhost, &stages, &rest))
        .catch_unwind()
        .await;
    let books = stages.iter().map(|stage| &stage.books);
    let verdicts = match &through {
        Ok(()) => books
            .map(|books| books.judge(life.temper == Severity::Gentle))
            .collect(),
        Err(panic) => books
            .map(|books| books.break_off(words(&**panic)))
            .collect(),
    };
    let whole = through.is_ok();
    ScenarioResult { verdicts, whole }
}

async fn play_through(
    place: &Environment,
    life: &Scenario,
    vhost: &Vhost,
    stages: &[ConsumerSide<'_>],
    rest: &AtomicBool,
) {
    let seats = join_all(stages.iter().map(ConsumerSide::open)).await;
    let harm_to_nodes = async {
        if life.nodes.is_empty() {
            return;
        }
        sleep(SETTLING).await;
        let books: Vec<_> = stages.iter().map(|stage| &stage.books).collect();
        for (harm, stage) in life.nodes.iter().zip(stages.iter().cycle()) {
            sleep(harm.after).await;
            place.harm(*harm, vhost, &stage.queue, &books).await;
        }
        rest.store(true, Ordering::Relaxed);
    };
    let lives = async {
        let sides = stages.iter().zip(&seats);
        let sides = sides.map(|(stage, seats)| stage.play(seats));
        tokio::join!(harm_to_nodes, join_all(sides));
        let ends = stages.iter().zip(seats);
        join_all(ends.map(|(stage, seats)| stage.end(seats))).await;
    };
    let operators = stages
        .iter()
        .map(|stage| operator::delete_dead_queues(place, vhost, &stage.queue, &stage.books));
    tokio::select! {
        () = lives => {}
        _ = join_all(operators) => {}
    }
}
