//! A few seeds on every version, and a consumer that loses messages, which must be found out.
#![allow(missing_docs)]

use std::time::Duration;

use retryrmq_chaos::life::{BOUND, Cast, play};
use retryrmq_chaos::place::Place;
use retryrmq_chaos::plan::{Ground, Life, Temper};
use retryrmq_chaos::run::{Programme, run};
use retryrmq_harness::{QueueType, brokers};

const PROGRAM: &str = env!("CARGO_BIN_EXE_retryrmq-chaos");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_whatever_a_seed_names() {
    let all = brokers();
    if let Some(given) = all.iter().find(|broker| !broker.is_controllable()) {
        return eprintln!("skipped: {given} was given and must not be harmed");
    }
    let killed_once = |life: &Life| life.nodes.len() == 1 && life.nodes[0].kill;
    let single = |life: &Life| life.ground == Ground::Single;
    let programme = |seeds: Vec<u64>| Programme {
        seeds,
        types: QueueType::ALL.to_vec(),
        traces: false,
    };
    let cast = Cast {
        program: PROGRAM,
        hasty: false,
        bound: BOUND,
    };
    // Nine nodes at once are too many for a small machine: `make chaos` has a cluster of each.
    let newest = all.iter().max_by_key(|broker| broker.version()).cloned();
    let newest: Vec<_> = newest.into_iter().collect();
    let nodes = programme(vec![
        first(|life| single(life) && killed_once(life)),
        first(|life| life.temper == Temper::Clients),
    ]);
    let holder = |life: &Life| killed_once(life) && life.nodes[0].holder;
    let clusters = programme(vec![first(|life| !single(life) && holder(life))]);
    let (single, cluster) = tokio::join!(run(&all, &nodes, cast), run(&newest, &clusters, cast));
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
    let place = Place::start(&broker, Ground::Single).await;
    let life = Life::new(first(|life| life.temper == Temper::Clients));
    let cast = Cast {
        program: PROGRAM,
        hasty: true,
        // All of it is spent: what is lost never comes.
        bound: Duration::from_secs(40),
    };
    let played = play(&place, &life, &[QueueType::Classic], cast).await;
    let problems = played.verdicts[0].problems.join("; ");
    assert!(!played.verdicts[0].report.lost.is_empty(), "{problems}");
}

/// The first seed that names such a life.
fn first(such: impl Fn(&Life) -> bool) -> u64 {
    let found = (0..).map(Life::new).find(such);
    found.expect("seeds have no end").seed
}
