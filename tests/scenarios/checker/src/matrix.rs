//! Which scenarios run where: files × brokers × queue types × drivers, many at once.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, stream};
use retryrmq_harness::{Broker, Version};
use serde::Serialize;

use crate::driver::Described;
use crate::run::{Manner, run};
use crate::scenario::{QueueKind, Scenario};

/// One cell of the matrix.
#[derive(Clone, Debug)]
pub struct Cell {
    /// The scenario.
    pub scenario: Arc<Scenario>,
    /// The broker.
    pub broker: Broker,
    /// The work queue's type.
    pub kind: QueueKind,
    /// The driver.
    pub driver: Arc<Described>,
}

/// What came of a cell.
#[derive(Clone, Debug, Serialize)]
pub struct Verdict {
    /// The scenario's name.
    pub scenario: String,
    /// The broker's version.
    pub broker: String,
    /// The work queue's type.
    pub queue_type: QueueKind,
    /// The driver's name.
    pub driver: String,
    /// How it ended.
    pub result: Outcome,
    /// Why: differences, missing capabilities, or what went wrong in the checker.
    pub because: Vec<String>,
    /// How long it took.
    pub took_ms: u64,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As expected.
    Passed,
    /// Not as expected.
    Failed,
    /// The driver cannot do what the scenario needs.
    NotForThisDriver,
    /// The checker itself could not go on.
    Broken,
}

/// The cells in which the scenarios have a meaning.
pub fn cells(
    scenarios: &[Scenario],
    brokers: &[Broker],
    kinds: &[QueueKind],
    drivers: &[Described],
) -> Vec<Cell> {
    let scenarios: Vec<Arc<Scenario>> = scenarios.iter().cloned().map(Arc::new).collect();
    let drivers: Vec<Arc<Described>> = drivers.iter().cloned().map(Arc::new).collect();
    let mut cells = Vec::new();
    for scenario in &scenarios {
        for broker in brokers
            .iter()
            .filter(|broker| applies(scenario, broker.version()))
        {
            for kind in kinds.iter().filter(|kind| scenario.on.types.contains(kind)) {
                for driver in &drivers {
                    let (scenario, broker, driver) =
                        (Arc::clone(scenario), broker.clone(), Arc::clone(driver));
                    cells.push(Cell {
                        scenario,
                        broker,
                        kind: *kind,
                        driver,
                    });
                }
            }
        }
    }
    cells
}

fn applies(scenario: &Scenario, version: Version) -> bool {
    scenario.on.since.is_none_or(|since| version >= since.0)
        && scenario.on.before.is_none_or(|before| version < before.0)
}

/// Runs the cells, `jobs` at a time, and calls `report` as each one ends. Verdicts come in the order of the cells.
pub async fn run_all(
    cells: Vec<Cell>,
    jobs: usize,
    manner: Manner,
    report: impl Fn(&Verdict),
) -> Vec<Verdict> {
    let report = &report;
    let runs = cells
        .into_iter()
        .enumerate()
        .map(|(index, cell)| async move {
            let verdict = judge_cell(&cell, manner).await;
            report(&verdict);
            (index, verdict)
        });
    let mut verdicts: Vec<(usize, Verdict)> = stream::iter(runs)
        .buffer_unordered(jobs.max(1))
        .collect()
        .await;
    verdicts.sort_by_key(|(index, _)| *index);
    verdicts.into_iter().map(|(_, verdict)| verdict).collect()
}

async fn judge_cell(cell: &Cell, manner: Manner) -> Verdict {
    let started = Instant::now();
    let missing: Vec<String> = cell
        .scenario
        .needs()
        .into_iter()
        .filter(|need| !cell.driver.can.contains(need))
        .collect();
    let (result, because) = if missing.is_empty() {
        // beyond every deadline inside a run there is one around it: a hang of the checker is a result, too
        let limit = cell.scenario.expect.within.0 + Duration::from_secs(300);
        let run = AssertUnwindSafe(run(
            &cell.scenario,
            &cell.broker,
            cell.kind,
            &cell.driver,
            manner,
        ))
        .catch_unwind();
        match tokio::time::timeout(limit, run).await {
            Ok(Ok(Ok(complaints))) if complaints.is_empty() => (Outcome::Passed, complaints),
            Ok(Ok(Ok(complaints))) => (Outcome::Failed, complaints),
            Ok(Ok(Err(trouble))) => (Outcome::Broken, vec![trouble.to_string()]),
            Ok(Err(panic)) => (Outcome::Broken, vec![words(&*panic)]),
            Err(_) => (
                Outcome::Broken,
                vec![format!("the run did not end within {} s", limit.as_secs())],
            ),
        }
    } else {
        (
            Outcome::NotForThisDriver,
            vec![format!("it cannot {}", missing.join(", "))],
        )
    };
    Verdict {
        scenario: cell.scenario.name.clone(),
        broker: cell.broker.version().to_string(),
        queue_type: cell.kind,
        driver: cell.driver.command.name.clone(),
        result,
        because,
        took_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
    }
}

/// The harness panics with a sentence where a broker does not do as it is told.
fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("the checker panicked")
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        let scenario = |on: &str| {
            let text = format!(
                "{{shows: x, on: {on}, publish: [{{id: a}}], expect: {{messages: {{a: {{runs: 0, ends: gone}}}}}}}}"
            );
            Scenario::from_yaml("x", &text).unwrap()
        };
        let applies =
            |scenario: &Scenario, version: &str| applies(scenario, version.parse().unwrap());
        let since = scenario("{since: '4.3'}");
        assert!(
            applies(&since, "4.3.6")
                && applies(&since, "4.10.0")
                && !applies(&since, "4.0.5")
                && !applies(&since, "3.10.8")
        );
        let before = scenario("{before: '4.0'}");
        assert!(applies(&before, "3.13.1") && !applies(&before, "4.0.5"));
        assert!(applies(&scenario("{}"), "3.10.8"));
        assert!(serde_saphyr::from_str::<crate::scenario::Applies>("{since: new}").is_err());
    }
}
