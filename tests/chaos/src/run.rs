//! Many seeds on many brokers.

use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use retryrmq_harness::{Broker, QueueType, Version};

use crate::environment::Environment;
use crate::ledger::Verdict;
use crate::plan::{EnvironmentKind, Scenario};
use crate::scenario::{self, ScenarioSetup};
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
    environment_kind: EnvironmentKind,
    work: QueueType,
    problems: Vec<String>,
    trace: PathBuf,
}

impl fmt::Display for FailedScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            seed,
            version,
            environment_kind,
            work,
            ..
        } = self;
        writeln!(
            f,
            "seed {seed}, RabbitMQ {version}, {environment_kind}, {work}:"
        )?;
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
pub async fn run(
    brokers: &[Broker],
    run_options: &RunOptions,
    setup: ScenarioSetup<'_>,
) -> Outcome {
    let outcome = Mutex::new(Outcome::default());
    let lanes = brokers.iter().flat_map(|broker| {
        let lane = |environment_kind| lane(broker, environment_kind, run_options, setup, &outcome);
        [EnvironmentKind::Single, EnvironmentKind::Cluster].map(lane)
    });
    join_all(lanes).await;
    outcome.into_inner().expect("no lane has panicked")
}

async fn lane(
    broker: &Broker,
    environment_kind: EnvironmentKind,
    run_options: &RunOptions,
    setup: ScenarioSetup<'_>,
    outcome: &Mutex<Outcome>,
) {
    let seeds = run_options.seeds.iter().copied();
    let mut environment = None;
    for seed in seeds.filter(|seed| EnvironmentKind::of(*seed) == environment_kind) {
        let began = Instant::now();
        let here = match environment.take() {
            Some(here) => here,
            None => Environment::start(broker, environment_kind).await,
        };
        let scenario = Scenario::new(seed);
        let played = scenario::play(&here, &scenario, &run_options.types, setup).await;
        environment = played.whole.then_some(here);
        let mut outcome = outcome.lock().expect("no lane has panicked");
        for (work, verdict) in run_options.types.iter().zip(played.verdicts) {
            if run_options.traces || !verdict.problems.is_empty() {
                write_down(broker.version(), &scenario, *work, &verdict.trace);
            }
            outcome.over(broker.version(), &scenario, *work, verdict, began.elapsed());
        }
    }
}

impl Outcome {
    fn over(
        &mut self,
        version: Version,
        scenario: &Scenario,
        work: QueueType,
        verdict: Verdict,
        time: Duration,
    ) {
        let Scenario {
            seed,
            environment_kind,
            ..
        } = *scenario;
        println!(
            "seed {seed}, RabbitMQ {version}, {environment_kind}, {work}: {}, {} published again, {} retries, {} harms, {} s",
            verdict.report,
            verdict.repeats,
            verdict.retries,
            verdict.fault_counts.total(),
            time.as_secs()
        );
        self.sums
            .add(version, environment_kind, work, &verdict, time);
        if verdict.problems.is_empty() {
            return;
        }
        let broken = FailedScenario {
            seed,
            version,
            environment_kind,
            work,
            trace: path(version, scenario, work),
            problems: verdict.problems,
        };
        println!("{broken}");
        self.broken.push(broken);
    }
}

/// Keeps what happened for who looks into it.
fn write_down(version: Version, scenario: &Scenario, work: QueueType, trace: &[String]) {
    let path = path(version, scenario, work);
    let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = folder.and_then(|()| std::fs::write(&path, trace.join("\n"))) {
        eprintln!("{} cannot be written: {error}", path.display());
    }
}

fn path(version: Version, scenario: &Scenario, work: QueueType) -> PathBuf {
    let Scenario {
        seed,
        environment_kind,
        ..
    } = scenario;
    let name = format!("{seed}-{version}-{environment_kind}-{work}.log");
    std::env::temp_dir().join("retryrmq-chaos").join(name)
}
