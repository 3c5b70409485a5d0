//! Which scenarios run where: files × brokers × queue types × drivers, many at once.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, stream};
use retryrmq_harness::{Broker, Matrix, Version, name_hash, record_cell};
use serde::Serialize;

use crate::driver::Described;
use crate::run::{RunOptions, run};
use crate::scenario::{QueueKind, Scenario};

/// The name of the driver that is the core itself.
pub const CORE: &str = "rust";

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

/// Of these cells, those of a run with this matrix.
///
/// In an assigned matrix each scenario has two with the core's own driver: the newest broker with one type of queue, and an older
/// one with the other type. With a driver that passes on what the core does it has one. Their names decide which ones, so every
/// scenario has the same cells in each run, and others than with the next driver.
pub fn in_matrix(matrix: Matrix, cells: Vec<Cell>) -> Vec<Cell> {
    if matrix != Matrix::Assigned {
        return cells;
    }
    let mut groups: Vec<Vec<Cell>> = Vec::new();
    for cell in cells {
        let same = |group: &&mut Vec<Cell>| {
            group[0].scenario.name == cell.scenario.name
                && group[0].driver.command.name == cell.driver.command.name
        };
        match groups.iter_mut().find(same) {
            Some(group) => group.push(cell),
            None => groups.push(vec![cell]),
        }
    }
    let mut assigned = Vec::new();
    for group in groups {
        let places: Vec<(Version, QueueKind)> = group
            .iter()
            .map(|cell| (cell.broker.version(), cell.kind))
            .collect();
        let names = group[0].scenario.name.clone() + &group[0].driver.command.name;
        let chosen = match group[0].driver.command.name.as_str() {
            CORE => two_of(&names, &places),
            _ => vec![name_hash(&names) % places.len()],
        };
        let cells = group.into_iter().enumerate();
        assigned.extend(cells.filter_map(|(at, cell)| chosen.contains(&at).then_some(cell)));
    }
    assigned
}

/// Which places the names choose: one of the newest version, and one of an older version with the other type, if there is one.
fn two_of(names: &str, places: &[(Version, QueueKind)]) -> Vec<usize> {
    let mut hash = name_hash(names);
    let mut one_of = |fits: &dyn Fn(&(Version, QueueKind)) -> bool| {
        let all: Vec<usize> = (0..places.len()).filter(|at| fits(&places[*at])).collect();
        let chosen = all.get(hash % all.len().max(1)).copied();
        hash /= all.len().max(1);
        chosen
    };
    let newest = places.iter().map(|(version, _)| *version).max();
    let first = one_of(&|(version, _)| Some(*version) == newest);
    let kind = first.map(|at| places[at].1);
    let second = one_of(&|(version, other)| Some(*version) != newest && Some(*other) != kind)
        .or_else(|| one_of(&|(version, _)| Some(*version) != newest));
    first.into_iter().chain(second).collect()
}

fn applies(scenario: &Scenario, version: Version) -> bool {
    scenario.on.since.is_none_or(|since| version >= since.0)
        && scenario.on.before.is_none_or(|before| version < before.0)
}

/// Runs the cells, `jobs` at a time, and calls `report` as each one ends. Verdicts come in the order of the cells.
pub async fn run_all(
    cells: Vec<Cell>,
    jobs: usize,
    run_options: RunOptions,
    report: impl Fn(&Verdict),
) -> Vec<Verdict> {
    let report = &report;
    let runs = cells
        .into_iter()
        .enumerate()
        .map(|(index, cell)| async move {
            let verdict = judge_cell(&cell, run_options).await;
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

async fn judge_cell(cell: &Cell, run_options: RunOptions) -> Verdict {
    let started = Instant::now();
    let name = format!(
        "scenario::{}::{}",
        cell.driver.command.name, cell.scenario.name
    );
    record_cell(&name, &cell.broker, cell.kind.name());
    let missing: Vec<String> = cell
        .scenario
        .needs()
        .into_iter()
        .filter(|need| !cell.driver.can.contains(need))
        .collect();
    let (result, because) = if let Some(why) = cell.driver.refuses(&cell.scenario.name) {
        (Outcome::NotForThisDriver, vec![why.to_owned()])
    } else if missing.is_empty() {
        // beyond every deadline inside a run there is one around it: a hang of the checker is a result, too
        let limit = cell.scenario.expect.within.0 + Duration::from_secs(300);
        let run = AssertUnwindSafe(run(
            &cell.scenario,
            &cell.broker,
            cell.kind,
            &cell.driver,
            run_options,
        ))
        .catch_unwind();
        match tokio::time::timeout(limit, run).await {
            Ok(Ok(Ok(violations))) if violations.is_empty() => (Outcome::Passed, violations),
            Ok(Ok(Ok(violations))) => (Outcome::Failed, violations),
            Ok(Ok(Err(checker_error))) => (Outcome::Broken, vec![checker_error.to_string()]),
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
    fn a_spread_has_the_newest_broker_an_older_one_both_types_and_in_the_end_all() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        let versions = ["3.10.8", "4.0.5", "4.3.6"].map(version);
        let kinds = [QueueKind::Classic, QueueKind::Quorum];
        let all: Vec<_> = versions
            .iter()
            .flat_map(|version| kinds.map(|kind| (*version, kind)))
            .collect();
        let mut met = [false; 6];
        for number in 0..40 {
            let chosen = two_of(&format!("scenario-{number}go"), &all);
            let [new, old] = chosen[..] else {
                panic!("{chosen:?}")
            };
            assert!(all[new].0 == versions[2] && all[old].0 < versions[2]);
            assert_ne!(all[new].1, all[old].1);
            (met[new], met[old]) = (true, true);
        }
        assert_eq!(met, [true; 6]);
        // Where there is less, it takes what there is.
        assert_eq!(two_of("defer", &all[4..]).len(), 1);
        assert_eq!(two_of("defer", &[all[0], all[2]]), [1, 0]);
        assert!(two_of("defer", &[]).is_empty());
    }

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
