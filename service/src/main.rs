//! The program `retryrmq-serve`, which `retryrmq serve` runs.

use clap::Parser;

/// Retry and park what the consumers of a whole fleet reject.
#[derive(Debug, Parser)]
#[command(name = "retryrmq-serve", version)]
struct Options {}

fn main() {
    let Options {} = Options::parse();
}
