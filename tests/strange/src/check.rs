//! One setting in the cells of this run.

use crate::environment::Environment;
use crate::setting::Expectation;
use crate::{MatrixCell, Setting, refused, scenarios};
use retryrmq_harness::{Broker, QueueType, on_queue_types_where, test_name};

/// Runs the scenarios with a setting, in the cells that this run's matrix gives to the test in which it is called.
///
/// # Panics
/// When something else happens than is expected with the setting.
pub async fn check<S>(setting: S)
where
    S: Fn(MatrixCell) -> Setting,
{
    let of = |broker: &Broker, kind| {
        let version = broker.version();
        setting(MatrixCell { version, kind })
    };
    let exists = |broker: &Broker, kind| {
        let setting = of(broker, kind);
        setting.is_for(broker.version()) && (broker.is_controllable() || !setting.needs_a_node())
    };
    on_queue_types_where(&test_name::<S>(), exists, |broker, kind| {
        let setting = of(&broker, kind);
        async move { check_in(&broker, kind, &setting).await }
    })
    .await;
}

async fn check_in(broker: &Broker, kind: QueueType, setting: &Setting) {
    let environment = Environment::with(setting, broker, kind).await;
    match setting.expectation {
        Expectation::Refused(words) => refused::run(&environment, setting, words).await,
        Expectation::Works | Expectation::Loses(_) => scenarios::run(&environment, setting).await,
    }
    environment.leave().await;
}
