//! Many seeds on many brokers.

use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use retryrmq_harness::{Broker, QueueType, Version};

use crate::ledger::Verdict;
use crate::scenario::{self, ScenarioSetup};
use crate::environment::Environment;
use crate::plan::{EnvironmentKind, Scenario};
use crate::table::Totals;

/// What to play.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// The seeds.
    pub seeds: Vec<u64>,
    /// The types of work queue, side by side in each life.
    pub types: Vec<QueueType>,
    /// Whether to keep the trace of every life, not only of those that break a promise.
    pub traces: bool,
}

/// A life that broke a promise.
#[derive(Clone, Debug)]
pub struct FailedScenario {
    seed: u64,
    version: Version,
    ground: EnvironmentKind,
    work: QueueType,
    problems: Vec<String>,
    trace: PathBuf,
}

impl fmt::Display for FailedScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            version,
            ground,
            work,
            ..
        } = self;
        writeln!(f, "seed {seed}, RabbitMQ {version}, {ground}, {work}:")?;
        for problem in &self.problems {
            writeln!(f, "  {problem}")?;
        }
        writeln!(f, "  all that happened: {}", self.trace.display())?;
        write!(
            f,
            "  again: make chaos VERSIONS={version} SEED={seed} SEEDS=1"
        )
    }
}

/// What all lives came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The sums.
    pub sums: Totals,
    /// The lives that broke a promise.
    pub broken: Vec<FailedScenario>,
}

/// Plays all seeds on all brokers: a place for each broker and ground, and on each one life after the other.
///
/// # Panics
/// When no place can be had.
pub async fn run(brokers: &[Broker], programme: &RunOptions, cast: ScenarioSetup<'_>) -> Outcome {
    let outcome = Mutex::new(Outcome::default());
    let lanes = brokers.iter().flat_map(|broker| {
        let lane = |ground| lane(broker, ground, programme, cast, &outcome);
        [EnvironmentKind::Single, EnvironmentKind::Cluster].map(lane)
    });
    join_all(lanes).await;
    outcome.into_inner().expect("no lane has panicked")
}

async fn lane(
    broker: &Broker,
    ground: EnvironmentKind,
    programme: &RunOptions,
    cast: ScenarioSetup<'_>,
    outcome: &Mutex<Outcome>,
) {
    let seeds = programme.seeds.iter().copied();
    let mut place = None;
    for seed in seeds.filter(|seed| EnvironmentKind::of(*seed) == ground) {
        let began = Instant::now();
        let here = match place.take() {
            Some(here) => here,
            None => Environment::start(broker, ground).await,
        };
        let life = Scenario::new(seed);
        let played = scenario::play(&here, &life, &programme.types, cast).await;
        place = played.whole.then_some(here);
        let mut outcome = outcome.lock().expect("no lane has panicked");
        for (work, verdict) in programme.types.iter().zip(played.verdicts) {
            if programme.traces || !verdict.problems.is_empty() {
                write_down(broker.version(), &life, *work, &verdict.trace);
            }
            outcome.over(broker.version(), &life, *work, verdict, began.elapsed());
        }
    }
}

impl Outcome {
    fn over(
        &mut self,
        version: Version,
        life: &Scenario,
        work: QueueType,
        verdict: Verdict,
        time: Duration,
    ) {
        let Scenario { seed, ground, .. } = *life;
        println!(
            "seed {seed}, RabbitMQ {version}, {ground}, {work}: {}, {} published again, {} retries, {} harms, {} s",
            verdict.report,
            verdict.repeats,
            verdict.retries,
            verdict.tally.total(),
            time.as_secs()
        );
        self.sums.add(version, ground, work, &verdict, time);
        if verdict.problems.is_empty() {
            return;
        }
        let broken = FailedScenario {
            seed,
            version,
            ground,
            work,
            trace: path(version, life, work),
            problems: verdict.problems,
        };
        println!("{broken}");
        self.broken.push(broken);
    }
}

/// Keeps what happened for who looks into it.
fn write_down(version: Version, life: &Scenario, work: QueueType, trace: &[String]) {
    let path = path(version, life, work);
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = folder.and_then(|()| std::fs::write(&path, trace.join("\n"))) {
        eprintln!("{} cannot be written: {error}", path.display());
    }
}

fn path(version: Version, life: &Scenario, work: QueueType) -> PathBuf {
    let Scenario { seed, ground, .. } = life;
    let name = format!("{seed}-{version}-{ground}-{work}.log");
    std::env::temp_dir().join("retryrmq-chaos").join(name)
}
