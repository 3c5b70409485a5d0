//! `make bench`: throughput, CPU, lateness and memory, always beside a peer, in alternating rounds on the same broker.
//!
//! Every measurement runs in a process of its own, so that its CPU time and memory are its own. Times are never asserted:
//! the machine is whatever it is, and only ratios of one run mean anything.

mod cases;
mod growth;
mod http;
mod process;
mod report;
mod rounds;
mod soak;

use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["case", name, url, queue, size] => {
            let Ok(size) = size.parse() else {
                return usage();
            };
            println!("{}", cases::run(name, url, queue, size).await.to_json());
            ExitCode::SUCCESS
        }
        ["soak", minutes, command] => {
            let (Ok(minutes), Ok(url)) = (minutes.parse(), std::env::var("RETRYRMQ_URL")) else {
                return usage();
            };
            if soak::soak(&url, minutes, command).await {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        [] => {
            rounds::all().await;
            ExitCode::SUCCESS
        }
        ["case" | "soak", ..] => usage(),
        ref groups => {
            for group in groups {
                rounds::only(group).await;
            }
            ExitCode::SUCCESS
        }
    }
}

fn usage() -> ExitCode {
    eprintln!(
        "usage: retryrmq-bench [consume|retry|storm|outage|lateness|memory|http]…, through `make bench`; or soak MINUTES COMMAND"
    );
    ExitCode::from(2)
}
