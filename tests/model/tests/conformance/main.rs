//! The model held against real brokers: random programs run on both, and what clients see must be the same.
//!
//! `RETRYRMQ_MODEL_PROGRAMS` says how many programs a version and queue type, `RETRYRMQ_MODEL_SEED` with which seed to
//! begin. A failure prints its seed and the shortest program that still shows the difference.

mod channels;
mod known;
mod layout;
mod modelled;
mod observation;
mod program;
mod real;
mod runner;

use known::{impatient_programs, known_programs};
use program::Subject;
use retryrmq_harness::{Broker, QueueType as Kind, on_brokers_where, on_every_queue_type};
use retryrmq_model::{Profile, QueueType, Version};
use runner::{Runner, differs_within, run_named, run_programs};
use std::time::Duration;

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
            run_programs(runner, Subject::Anything, begin..end).await;
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
        let programs = known_programs(queue_type(kind), version);
        run_named(runner, programs).await;
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
            differs_within(runner, Subject::Anything, 1..200).await,
            "a model of {wrong:?} is taken for the truth"
        );
    })
    .await;
}

/// A quarter as many as of the others.
fn seeds() -> std::ops::Range<u64> {
    let programs = number("RETRYRMQ_MODEL_PROGRAMS", PROGRAMS) / 4;
    let first = number("RETRYRMQ_MODEL_SEED", 1);
    first..first + programs.max(1)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policies_of_users_and_operators_do_to_a_queue_what_the_model_says() {
    on_every_queue_type(|broker, kind| async move {
        let version = version(&broker);
        let runner = Runner::new(broker, version, queue_type(kind)).await;
        run_programs(runner, Subject::Policies, seeds()).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_amqp_0_9_1_cannot_carry_costs_connections_as_the_model_says() {
    on_every_queue_type(|broker, kind| async move {
        let version = version(&broker);
        if version < Version::V4_0 {
            return; // it speaks AMQP 1.0 only with a plugin, which converts what it receives
        }
        let runner = Runner::new(broker, version, queue_type(kind)).await;
        run_programs(runner, Subject::Unreadable, seeds()).await;
    })
    .await;
}

/// What 3.8 had.
const OLD_FLAGS: &str = "feature_flags = quorum_queue implicit_default_bindings virtual_host_metadata maintenance_mode_status \
                         user_limits drop_unroutable_metric empty_basic_get_metric";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_its_feature_flag_3_10_dead_letters_as_the_model_says() {
    let is_old = |broker: &Broker| broker.is_controllable() && version(broker) < Version::V4_0;
    on_brokers_where(is_old, |broker| async move {
        let node = broker.own_node(&[OLD_FLAGS]).await;
        for stream_queue in [false, true] {
            let profile = Profile {
                stream_queue,
                ..Profile::new(version(&broker))
            };
            let runner = Runner::on(node.vhost().await, profile, QueueType::Quorum);
            match stream_queue {
                false => run_programs(runner, Subject::DeadLetters, seeds()).await,
                true => assert!(
                    differs_within(runner, Subject::DeadLetters, 1..200).await,
                    "nobody sees whether the flag is there"
                ),
            }
        }
    })
    .await;
}

/// How long a delivery may stay unsettled. All of a program's other steps take less.
const TIMEOUT: Duration = Duration::from_secs(8);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_kept_for_too_long_comes_back_and_counts_as_the_model_says() {
    on_brokers_where(Broker::is_controllable, |broker| async move {
        let node = broker.own_node(&[]).await;
        for (setting, time) in [
            ("consumer_timeout", TIMEOUT),
            ("channel_tick_interval", Duration::from_millis(200)),
        ] {
            let time = time.as_millis();
            let set = format!("application:set_env(rabbit, {setting}, {time}).");
            node.ctl(&["eval", &set]).await;
        }
        for kind in QueueType::ALL {
            let profile = Profile {
                consumer_timeout: Some(TIMEOUT),
                ..Profile::new(version(&broker))
            };
            let runner = Runner::on(node.vhost().await, profile, kind);
            run_named(runner, impatient_programs(kind)).await;
        }
    })
    .await;
}

fn version(broker: &Broker) -> Version {
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
