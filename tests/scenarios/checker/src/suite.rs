//! All scenarios with one driver, as a test: for `cargo test`, in the package of the driver.

use std::path::Path;
use std::process::ExitCode;

use crate::driver::{DriverCommand, describe};
use crate::matrix::{cells, run_all};
use crate::report;
use crate::run::Manner;
use crate::scenario::{QueueKind, Scenario, find_files};
use crate::stage::Trouble;

/// How many runs go on at one time; they mostly wait.
pub const JOBS: usize = 12;

/// Runs all scenarios of this repository on all brokers with classic and quorum queues, and prints the table.
///
/// Words among the arguments of the program choose scenarios by part of their name, as with other tests.
#[must_use]
pub fn main(driver: &str, program: &Path) -> ExitCode {
    let runtime = tokio::runtime::Runtime::new();
    match runtime
        .map_err(Trouble::from)
        .and_then(|runtime| runtime.block_on(play(driver, program)))
    {
        Ok(code) => ExitCode::from(code),
        Err(trouble) => {
            eprintln!("{trouble}");
            ExitCode::FAILURE
        }
    }
}

async fn play(driver: &str, program: &Path) -> Result<u8, Trouble> {
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut scenarios = Vec::new();
    for file in find_files(&[folder])? {
        let scenario = Scenario::from_file(&file)?;
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
    let cells = cells(&scenarios, &retryrmq_harness::brokers(), &kinds, &[driver]);
    let verdicts = run_all(cells, JOBS, Manner::default(), |_| {}).await;
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
