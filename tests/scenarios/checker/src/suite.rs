//! All scenarios with one driver, as a test: for `cargo test`, in the package of the driver.

use std::path::Path;
use std::process::ExitCode;

use retryrmq_harness::{Broker, Matrix, Node};

use crate::driver::{DriverCommand, describe};
use crate::fixture::CheckerError;
use crate::matrix::{cells, in_matrix, run_all};
use crate::report;
use crate::run::RunOptions;
use crate::scenario::{QueueKind, Scenario, find_files};

/// How many runs go on at one time; they mostly wait.
pub const JOBS: usize = 12;

/// Runs all scenarios of this repository in the cells of this run's [`Matrix`], and prints the table.
///
/// Words among the arguments of the program choose scenarios by part of their name, as with other tests.
#[must_use]
pub fn main(driver: &str, program: &Path) -> ExitCode {
    ended(play(driver, program, retryrmq_harness::brokers(), Some))
}

/// Runs those that leave the strategy to the library with `delayed-exchange`, on brokers that have its plugin. Where
/// nobody has it, says so and runs none.
#[must_use]
pub fn with_delayed_exchange(driver: &str, program: &Path) -> ExitCode {
    ended(async {
        let mut nodes: Vec<Node> = Vec::new();
        for broker in retryrmq_harness::brokers() {
            if broker.may_have_delayed_messages() {
                let plugin = "plugins = rabbitmq_delayed_message_exchange";
                nodes.push(broker.own_node(&[plugin]).await);
            }
        }
        if nodes.is_empty() {
            return Ok(0);
        }
        let brokers: Vec<Broker> = nodes.iter().map(|node| (**node).clone()).collect();
        let how = |scenario: Scenario| scenario.with_strategy("delayed-exchange");
        play(driver, program, brokers, how).await
    })
}

fn ended(play: impl Future<Output = Result<u8, CheckerError>>) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new();
    match runtime
        .map_err(CheckerError::from)
        .and_then(|runtime| runtime.block_on(play))
    {
        Ok(code) => ExitCode::from(code),
        Err(checker_error) => {
            eprintln!("{checker_error}");
            ExitCode::FAILURE
        }
    }
}

/// Each scenario as `how` has it, or not at all.
async fn play(
    driver: &str,
    program: &Path,
    brokers: Vec<Broker>,
    how: impl Fn(Scenario) -> Option<Scenario>,
) -> Result<u8, CheckerError> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut scenarios = Vec::new();
    for file in find_files(&[folder])? {
        let Some(scenario) = how(Scenario::from_file(&file)?) else {
            continue;
        };
        if words.is_empty()
            || words
                .iter()
                .any(|word| scenario.name.contains(word.as_str()))
        {
            scenarios.push(scenario);
        }
    }
    let command = format!("'{}'", program.display());
    let driver = describe(&DriverCommand {
        name: driver.into(),
        command,
    })
    .await?;
    let kinds = [QueueKind::Classic, QueueKind::Quorum];
    let cells = in_matrix(
        Matrix::of_this_run(),
        cells(&scenarios, &brokers, &kinds, &[driver]),
    );
    let verdicts = run_all(cells, JOBS, RunOptions::default(), |_| {}).await;
    report::print(&verdicts);
    // words that fit none of these scenarios are meant for another test
    Ok(if scenarios.is_empty() {
        0
    } else {
        report::exit_code(&verdicts)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_scenario_of_the_repository_is_consistent() {
        let files = find_files(&[Path::new(env!("CARGO_MANIFEST_DIR")).join("..")]).unwrap();
        assert!(
            files.len() >= 30,
            "only {} scenarios were found",
            files.len()
        );
        for file in files {
            let scenario = Scenario::from_file(&file).unwrap_or_else(|error| panic!("{error}"));
            let sentence = scenario.shows.ends_with('.') && !scenario.on.types.is_empty();
            assert!(
                sentence,
                "{}: it says in a sentence what it shows, and applies somewhere",
                scenario.name
            );
        }
    }
}
