//! The model held against real brokers: random programs run on both, and what clients see must be the same.
//!
//! `RETRYRMQ_MODEL_PROGRAMS` says how many programs a version and queue type, `RETRYRMQ_MODEL_SEED` with which seed to
//! begin. A failure prints its seed and the shortest program that still shows the difference.

mod known;
mod layout;
mod modelled;
mod program;
mod real;
mod runner;
mod sight;

use retryrmq_harness::{QueueType as Kind, on_every_queue_type};
use retryrmq_model::{QueueType, Version};
use runner::{Runner, differs_within, run_known, run_programs};

/// A minute's worth on a machine that does nothing else.
const PROGRAMS: u64 = 40;
const BATCH: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_the_model_see_what_clients_of_real_brokers_see() {
    let (programs, first) = (
        number("RETRYRMQ_MODEL_PROGRAMS", PROGRAMS),
        number("RETRYRMQ_MODEL_SEED", 1),
    );
    // A test on all brokers has a time limit, so many programs are several tests.
    for begin in (first..first + programs).step_by(BATCH) {
        let end = (first + programs).min(begin + BATCH as u64);
        on_every_queue_type(|broker, kind| async move {
            let version = version(&broker);
            let runner = Runner::new(broker, version, queue_type(kind)).await;
            run_programs(runner, begin..end).await;
        })
        .await;
    }
}

/// Each of these was a difference once, and is a fact now.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_that_showed_a_difference_once_show_none() {
    on_every_queue_type(|broker, kind| async move {
        let version = version(&broker);
        let runner = Runner::new(broker, version, queue_type(kind)).await;
        run_known(runner).await;
    })
    .await;
}

/// A check that cannot fail proves nothing: a model of another version is found out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_with_the_rules_of_another_version_is_found_out() {
    on_every_queue_type(|broker, kind| async move {
        let wrong = match version(&broker) {
            Version::V3_10 => Version::V4_0,
            Version::V4_0 => Version::V4_3,
            Version::V4_3 => Version::V4_0,
        };
        let runner = Runner::new(broker, wrong, queue_type(kind)).await;
        assert!(
            differs_within(runner, 1..200).await,
            "a model of {wrong:?} is taken for the truth"
        );
    })
    .await;
}

fn version(broker: &retryrmq_harness::Broker) -> Version {
    use retryrmq_harness::Version as Real;
    match broker.version() {
        version if version >= Real::V4_3 => Version::V4_3,
        version if version >= Real::V4_0 => Version::V4_0,
        _ => Version::V3_10,
    }
}

fn queue_type(kind: Kind) -> QueueType {
    match kind {
        Kind::Classic => QueueType::Classic,
        Kind::Quorum => QueueType::Quorum,
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .map_or(otherwise, |text| text.parse().expect("a number"))
}
