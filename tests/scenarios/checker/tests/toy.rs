//! The whole checker, on real brokers, with a driver that is right and the same driver with one flaw at a time.

use retryrmq_harness::brokers;
use retryrmq_scenarios::driver::{DriverCommand, describe};
use retryrmq_scenarios::matrix::{Outcome, Verdict, cells, run_all};
use retryrmq_scenarios::run::RunOptions;
use retryrmq_scenarios::scenario::{QueueKind, Scenario};

const SCENARIO: &str = "
shows: One message recovers, one does not, one kills the driver once.
topology:
  exchanges: [{name: shop, type: topic}]
  bindings: [{exchange: shop, queue: orders, routing_key: 'order.*'}]
consume: {retry: 'fixed(300ms, retries=1)'}
publish:
  - {id: recovers, exchange: shop, routing_key: order.new, headers: {nested: {a: [{$int8: 1}, null]}}}
  - {id: fails, properties: {correlation_id: c}}
handler:
  recovers: [{error: {type: Timeout, message: slow}}, {sleep: 20ms}]
  fails: [error]
expect:
  within: WITHIN
  messages:
    recovers: {runs: 2, spacing: [300ms], ends: handled}
    fails: {runs: 2, spacing: [300ms], ends: {parked: exhausted, record: {headers: {x-retry-count: 1}}}}
  together: 1
  queues: {orders.retry.300: {type: classic, arguments: {x-message-ttl: 300}}, orders.parked: {durable: true}}
";

async fn judge(scenario: &str, flaw: &str) -> Vec<Verdict> {
    let scenario = Scenario::from_yaml("toy", scenario).unwrap();
    let command = format!("{} {flaw}", env!("CARGO_BIN_EXE_toy-driver"));
    let driver = describe(&DriverCommand {
        name: "toy".into(),
        command,
    })
    .await
    .unwrap();
    let cells = cells(&[scenario], &brokers(), &[QueueKind::Classic], &[driver]);
    run_all(cells, 8, RunOptions::default(), |_| {}).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_is_right_passes() {
    let verdicts = judge(&SCENARIO.replace("WITHIN", "10m"), "none").await;
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.result == Outcome::Passed),
        "{verdicts:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_flaw_is_found() {
    let flaws = [
        ("early", "expected at least 3000 ms"),
        ("loses", "lost"),
        ("doubles", "recovers"),
        ("strips", "header nested: published"),
        ("mute", "x-retry-parked-reason"),
        (
            "stubborn",
            "expected the handler to run 2 times, it ran 3 times",
        ),
        ("deaf", "did not end within"),
        ("dies", "the driver ended by itself"),
        ("chatty", "no line of the contract"),
        (
            "miscounts",
            "expected the attempts [1, 2], the handler was told [0, 1]",
        ),
    ];
    let runs = flaws.map(|(flaw, complaint)| {
        // One run too many has to come first; what is missing is missing at the end of any time.
        let within = match flaw {
            "stubborn" => "20s",
            "early" => "6s",
            _ => "3s",
        };
        let mut scenario = SCENARIO.replace("WITHIN", within);
        if flaw == "early" {
            // A busy machine may be late by more than a short delay.
            scenario = scenario.replace("300", "3000");
        }
        async move {
            for verdict in judge(&scenario, flaw).await {
                assert_eq!(
                    verdict.result,
                    Outcome::Failed,
                    "{flaw} on {}: {:?}",
                    verdict.broker,
                    verdict.because
                );
                let told = verdict.because.iter().any(|line| line.contains(complaint));
                assert!(
                    told,
                    "{flaw} on {}: no '{complaint}' in {:#?}",
                    verdict.broker, verdict.because
                );
            }
        }
    });
    futures_util::future::join_all(runs).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_driver_that_was_told_to_die_is_started_again() {
    let scenario = "
shows: The driver dies, the message comes back, the runs go on where they were.
consume: {retry: 'fixed(300ms, retries=1)'}
publish: [{id: a}]
handler: {a: [exit, exit, ok]}
expect:
  messages: {a: {runs: 3, attempts: [1, 1, 1], ends: handled}}
  restarts: 2
";
    let verdicts = judge(scenario, "none").await;
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.result == Outcome::Passed),
        "{verdicts:#?}"
    );
    let verdicts = judge(&scenario.replace("restarts: 2", "restarts: 1"), "none").await;
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.result == Outcome::Failed),
        "{verdicts:#?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scenario_that_a_driver_cannot_play_is_not_run() {
    let scenario = SCENARIO
        .replace("WITHIN", "3s")
        .replace("fails: [error]", "fails: [panic]");
    let verdicts = judge(&scenario, "none").await;
    assert!(
        verdicts
            .iter()
            .all(|verdict| verdict.result == Outcome::NotForThisDriver),
        "{verdicts:#?}"
    );
    assert!(verdicts[0].because[0].contains("panic"), "{verdicts:#?}");
}
