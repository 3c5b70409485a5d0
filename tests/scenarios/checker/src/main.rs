//! The command `retryrmq-scenarios`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use retryrmq_harness::{Matrix, Version};
use retryrmq_scenarios::driver::{DriverCommand, describe};
use retryrmq_scenarios::matrix::{Outcome, Verdict, cells, in_matrix, run_all};
use retryrmq_scenarios::report;
use retryrmq_scenarios::run::RunOptions;
use retryrmq_scenarios::scenario::{QueueKind, Scenario, find_files};
use retryrmq_scenarios::suite::JOBS;

/// Runs scenario files against drivers on real brokers and says what differs.
///
/// Exit status: 0 when at least one scenario ran and all passed, 1 when one failed or none ran, 2 for bad arguments.
#[derive(Debug, Parser)]
#[command(
    name = "retryrmq-scenarios",
    after_help = "Example:\n  retryrmq-scenarios tests/scenarios --driver rust=target/debug/rust-driver --filter defer"
)]
struct Arguments {
    /// Scenario files, or folders of them.
    #[arg(default_value = "tests/scenarios")]
    paths: Vec<PathBuf>,
    /// A driver: a name for the report and a shell command. May be given several times.
    #[arg(long = "driver", value_name = "NAME=COMMAND")]
    drivers: Vec<DriverCommand>,
    /// Only scenarios whose names contain this. May be given several times.
    #[arg(long)]
    filter: Vec<String>,
    /// Only brokers of this series, such as 4.3. May be given several times.
    #[arg(long, value_name = "VERSION")]
    broker: Vec<Version>,
    /// Only this type of work queue.
    #[arg(long = "type", value_name = "classic|quorum", value_parser = kind)]
    kind: Option<QueueKind>,
    /// Of the brokers and types only one for each scenario and driver, and two for the driver `rust`. The default is what RETRYRMQ_TEST_MATRIX says: `assigned` is the same as this option.
    #[arg(long)]
    spread: bool,
    /// How many runs go on at one time; they mostly wait.
    #[arg(long, default_value_t = JOBS)]
    jobs: usize,
    /// Print the verdicts as JSON, one array, on standard output.
    #[arg(long)]
    json: bool,
    /// Leave the virtual hosts as they are in the end.
    #[arg(long)]
    keep: bool,
    /// Print every line of every driver on standard error.
    #[arg(long)]
    show: bool,
    /// Only read the files, say what each shows and needs, and end.
    #[arg(long)]
    list: bool,
}

fn kind(text: &str) -> Result<QueueKind, String> {
    [QueueKind::Classic, QueueKind::Quorum]
        .into_iter()
        .find(|kind| kind.name() == text)
        .ok_or_else(|| format!("'{text}' is no queue type: classic or quorum"))
}

#[tokio::main]
async fn main() -> ExitCode {
    match check(Arguments::parse()).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("retryrmq-scenarios: {error}");
            ExitCode::from(2)
        }
    }
}

async fn check(arguments: Arguments) -> Result<u8, Box<dyn std::error::Error + Send + Sync>> {
    let mut scenarios = Vec::new();
    for file in find_files(&arguments.paths)? {
        scenarios.push(Scenario::from_file(&file)?);
    }
    scenarios.retain(|scenario| {
        arguments.filter.is_empty()
            || arguments
                .filter
                .iter()
                .any(|part| scenario.name.contains(part))
    });
    if scenarios.is_empty() {
        return Err("there is no such scenario".into());
    }
    if arguments.list {
        for scenario in &scenarios {
            let needs: Vec<String> = scenario.needs().into_iter().collect();
            println!(
                "{}: {}\n    needs {}",
                scenario.name,
                scenario.shows,
                if needs.is_empty() {
                    "nothing".into()
                } else {
                    needs.join(", ")
                }
            );
        }
        return Ok(0);
    }
    let mut drivers = Vec::new();
    for driver in &arguments.drivers {
        drivers.push(describe(driver).await?);
    }
    if drivers.is_empty() {
        return Err("name a driver: --driver NAME=COMMAND".into());
    }
    let mut brokers = retryrmq_harness::brokers();
    brokers.retain(|broker| {
        arguments.broker.is_empty()
            || arguments
                .broker
                .iter()
                .any(|series| broker.version().is_series(*series))
    });
    if brokers.is_empty() {
        return Err("no broker of such a version answers".into());
    }
    let kinds = arguments.kind.map_or_else(
        || vec![QueueKind::Classic, QueueKind::Quorum],
        |kind| vec![kind],
    );
    let matrix = if arguments.spread {
        Matrix::Assigned
    } else {
        Matrix::of_this_run()
    };
    let cells = in_matrix(matrix, cells(&scenarios, &brokers, &kinds, &drivers));
    eprintln!("{} runs of {} scenarios", cells.len(), scenarios.len());
    let verdicts = run_all(
        cells,
        arguments.jobs,
        RunOptions {
            keep: arguments.keep,
            show: arguments.show,
        },
        tell,
    )
    .await;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&verdicts)?);
    } else {
        report::print(&verdicts);
    }
    Ok(report::exit_code(&verdicts))
}

fn tell(verdict: &Verdict) {
    if let Some(sentences) = report::sentences(verdict) {
        eprintln!("{sentences}");
    } else if verdict.result == Outcome::Passed {
        eprintln!(
            "ok {} ({}, {}, {})",
            verdict.scenario, verdict.driver, verdict.broker, verdict.queue_type
        );
    }
}
