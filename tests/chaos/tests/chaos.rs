//! A few seeds on every version, and a consumer that loses messages, which must be found out.
#![allow(missing_docs)]

use std::time::Duration;

use retryrmq_chaos::environment::Environment;
use retryrmq_chaos::plan::{EnvironmentKind, Scenario, Severity};
use retryrmq_chaos::run::{RunOptions, run};
use retryrmq_chaos::scenario::{BOUND, ScenarioSetup, play};
use retryrmq_harness::{QueueType, Version, brokers};

const PROGRAM: &str = env!("CARGO_BIN_EXE_retryrmq-chaos");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_whatever_a_seed_names() {
    let all = brokers();
    if let Some(given) = all.iter().find(|broker| !broker.is_controllable()) {
        return eprintln!("skipped: {given} was given and must not be harmed");
    }
    let killed_once = |scenario: &Scenario| scenario.nodes.len() == 1 && scenario.nodes[0].kill;
    let single = |scenario: &Scenario| scenario.environment_kind == EnvironmentKind::Single;
    let run_options = |seeds: Vec<u64>| RunOptions {
        seeds,
        types: QueueType::ALL.to_vec(),
        traces: false,
    };
    let setup = ScenarioSetup {
        program: PROGRAM,
        loses_copies: false,
        bound: BOUND,
    };
    // Nine nodes at once are too many for a small machine: `make chaos` has a cluster of each.
    let newest = all.iter().max_by_key(|broker| broker.version()).cloned();
    let newest: Vec<_> = newest.into_iter().collect();
    let nodes = run_options(vec![
        first(|scenario| single(scenario) && killed_once(scenario)),
        first(|scenario| scenario.severity == Severity::Clients && has_batches(scenario)),
    ]);
    let holder = |scenario: &Scenario| killed_once(scenario) && scenario.nodes[0].holder;
    let clusters = run_options(vec![first(|scenario| {
        !single(scenario) && holder(scenario)
    })]);
    let (single, cluster) = tokio::join!(run(&all, &nodes, setup), run(&newest, &clusters, setup));
    for outcome in [single, cluster] {
        println!("{}", outcome.sums.table());
        let broken = outcome.broken.iter().map(ToString::to_string);
        let broken = broken.collect::<Vec<_>>().join("\n");
        assert!(broken.is_empty(), "{broken}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consumer_that_acknowledges_before_its_copy_is_confirmed_is_found_out() {
    let newest = brokers().into_iter().max_by_key(|broker| broker.version());
    let broker = newest.expect("there is a broker");
    if !broker.is_controllable() {
        return eprintln!("skipped: {broker} was given and must not be harmed");
    }
    let setup = ScenarioSetup {
        program: PROGRAM,
        loses_copies: true,
        // All of it is spent: what is lost never comes.
        bound: Duration::from_secs(40),
    };
    // Whether a life loses something depends on what was on its way when it was harmed: one may be lucky.
    let mut problems = Vec::new();
    for scenario in scenarios(|scenario| scenario.severity == Severity::Clients).take(5) {
        let environment = Environment::start(&broker, EnvironmentKind::Single).await;
        let played = play(&environment, &scenario, &[QueueType::Classic], setup).await;
        let verdict = &played.verdicts[0];
        if !verdict.report.lost.is_empty() {
            return;
        }
        problems.push(format!(
            "seed {}: {}",
            scenario.seed,
            verdict.problems.join("; ")
        ));
    }
    panic!(
        "none of these lives has lost anything: {}",
        problems.join("\n")
    );
}

/// Whether consumers of both types of queue handle batches.
fn has_batches(scenario: &Scenario) -> bool {
    let batch = |work| scenario.side(work, Version::V4_3).batch;
    QueueType::ALL
        .into_iter()
        .all(|work| batch(work).is_some_and(|most| most > 1))
}

/// The first seed that names such a life.
fn first(such: impl Fn(&Scenario) -> bool) -> u64 {
    scenarios(such).next().expect("seeds have no end").seed
}

/// The lives like this, from the first seed on.
fn scenarios(such: impl Fn(&Scenario) -> bool) -> impl Iterator<Item = Scenario> {
    (0..).map(Scenario::new).filter(such)
}
