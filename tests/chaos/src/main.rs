//! `make chaos`: many seeds on the brokers that `with-brokers` started, and a table of what they came to.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use retryrmq_chaos::run::{RunOptions, run};
use retryrmq_chaos::scenario::{BOUND, ScenarioSetup};
use retryrmq_harness::{QueueType, brokers};

#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// How many seeds.
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Keep the trace of every life, not only of those that break a promise.
    #[arg(long)]
    traces: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Be a consumer to be harmed.
    #[command(hide = true)]
    Worker,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "off".into()),
        )
        .with_writer(std::io::stderr)
        .try_init();
    let arguments = Arguments::parse();
    if matches!(arguments.command, Some(Command::Worker)) {
        retryrmq_chaos::worker::work().await;
        return ExitCode::SUCCESS;
    }
    let brokers = brokers();
    if let Some(given) = brokers.iter().find(|broker| !broker.is_controllable()) {
        eprintln!("{given} was given and must not be harmed; leave RETRYRMQ_URL out");
        return ExitCode::from(2);
    }
    let program = std::env::current_exe().expect("a program knows where it is");
    let run_options = RunOptions {
        seeds: (arguments.seed..arguments.seed + arguments.seeds).collect(),
        types: QueueType::ALL.to_vec(),
        traces: arguments.traces,
    };
    let cast = ScenarioSetup {
        program: program.to_str().expect("its path is text"),
        loses_copies: false,
        bound: BOUND,
    };
    let outcome = run(&brokers, &run_options, cast).await;
    println!("\n{}", outcome.sums.table());
    for broken in &outcome.broken {
        println!("\n{broken}");
    }
    if outcome.broken.is_empty() {
        println!("\nnothing is lost");
        ExitCode::SUCCESS
    } else {
        println!("\n{} lives broke a promise", outcome.broken.len());
        ExitCode::FAILURE
    }
}
