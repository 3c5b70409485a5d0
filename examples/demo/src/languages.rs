//! Several languages at one queue: a message that failed in one of them succeeds in another, its count intact.
//!
//! Every worker has the same rule, in its own language: an order fails at its first attempt, and wherever it failed last. So
//! each of them ends in another language than it began, and the table shows who did what.

use std::{
    collections::BTreeMap,
    process::Stdio,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use comfy_table::Table;
use retryrmq::{Client, Failure, Message, Policy, Publish};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
};

use crate::{story, tidy, wait};

const ORDERS: usize = 6;
/// What each waits between its attempts.
const DELAY: Duration = Duration::from_millis(500);

/// A worker in another language: `NAME|COMMAND`, one a line in `RETRYRMQ_DEMO_WORKERS`. It consumes the queue that is its
/// last argument, and prints `ready`, then `ORDER ATTEMPT failed|handled` at the end of every attempt.
struct Worker {
    name: String,
    command: String,
}

fn workers() -> Vec<Worker> {
    std::env::var("RETRYRMQ_DEMO_WORKERS")
        .unwrap_or_default()
        .lines()
        .filter_map(|line| line.split_once('|'))
        .map(|(name, command)| Worker {
            name: name.to_owned(),
            command: command.to_owned(),
        })
        .collect()
}

#[derive(Debug)]
struct Attempt {
    number: u32,
    language: String,
    handled: bool,
}

/// Who did what, by order.
#[derive(Default)]
struct Seen {
    ready: usize,
    orders: BTreeMap<String, Vec<Attempt>>,
}

type Shared = Arc<Mutex<Seen>>;

fn lock(seen: &Shared) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the orders through every language that is there; whether each ended as it should. Nothing to do with one language.
pub(crate) async fn share(rmq: &Client, url: &str) -> retryrmq::Result<bool> {
    let workers = workers();
    if workers.is_empty() {
        return Ok(true);
    }
    let names: Vec<&str> = workers.iter().map(|worker| worker.name.as_str()).collect();
    let queue = format!("demo-languages-{}", std::process::id());
    println!(
        "\nThe same in several languages: rust, {} share the queue {queue}. An order fails at its first attempt, and \
         wherever it failed last …",
        names.join(", ")
    );
    let seen = Shared::default();
    let own = Arc::clone(&seen);
    let policy: Policy = "fixed(500ms, retries=20)".parse()?;
    let consumer = rmq
        .consumer(&queue)
        .dlx(true)
        .retry(policy)
        .prefetch(1)
        .concurrency(1)
        .start(move |message: Message| {
            let seen = Arc::clone(&own);
            async move { handle(&message, &seen) }
        })
        .await?;
    let mut children = Vec::new();
    for worker in &workers {
        children.extend(start(worker, url, &queue, &seen));
    }
    let all_ready = wait(|| lock(&seen).ready == workers.len()).await;
    for number in 1..=ORDERS {
        let message = Publish::to_queue(&queue, format!("order {number}"));
        rmq.publish(message.message_id(&format!("shared-{number}")))
            .await?;
    }
    let done = all_ready && wait(|| handled(&lock(&seen)) == ORDERS).await;
    consumer.close().await;
    for mut child in children {
        stop(&mut child).await;
    }
    println!("\n{}\n", table(&lock(&seen)));
    let parked = tidy::delete(url, &queue, &[DELAY]).await;
    if !all_ready {
        eprintln!("error: not every worker was ready in time");
    }
    Ok(done && parked == 0 && lock(&seen).orders.values().all(|tries| is_shared(tries)))
}

fn handle(message: &Message, seen: &Shared) -> Result<(), Failure> {
    let handled = !(message.attempt() == 1
        || message
            .last_error()
            .is_some_and(|error| error.starts_with("rust:")));
    note(
        seen,
        message.message_id().unwrap_or_default(),
        Attempt {
            number: message.attempt(),
            language: "rust".to_owned(),
            handled,
        },
    );
    if handled {
        Ok(())
    } else {
        Err(Failure::new("rust: not here").of_type("NotHere"))
    }
}

fn note(seen: &Shared, order: &str, attempt: Attempt) {
    lock(seen)
        .orders
        .entry(order.to_owned())
        .or_default()
        .push(attempt);
}

fn start(worker: &Worker, url: &str, queue: &str, seen: &Shared) -> Option<Child> {
    let started = Command::new("sh")
        .arg("-c")
        .arg(format!("exec {} \"$0\"", worker.command))
        .arg(queue)
        .env("RETRYRMQ_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = match started {
        Ok(child) => child,
        Err(error) => {
            eprintln!(
                "error: the worker `{}` does not start: {error}",
                worker.name
            );
            return None;
        }
    };
    let (seen, language) = (Arc::clone(seen), worker.name.clone());
    let mut lines = BufReader::new(child.stdout.take()?).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            match line.split_whitespace().collect::<Vec<_>>()[..] {
                ["ready"] => lock(&seen).ready += 1,
                [order, number, end] => {
                    let attempt = Attempt {
                        number: number.parse().unwrap_or(0),
                        language: language.clone(),
                        handled: end == "handled",
                    };
                    note(&seen, order, attempt);
                }
                _ => eprintln!("{language}: {line}"),
            }
        }
    });
    Some(child)
}

/// Workers end by themselves after SIGTERM: they drain.
async fn stop(child: &mut Child) {
    if let Some(id) = child.id() {
        let _ = Command::new("kill").arg(id.to_string()).status().await;
    }
    let _ = child.wait().await;
}

fn handled(seen: &Seen) -> usize {
    seen.orders
        .values()
        .filter(|tries| tries.iter().any(|attempt| attempt.handled))
        .count()
}

/// Counted without a gap, and handled elsewhere than it failed last.
fn is_shared(tries: &[Attempt]) -> bool {
    let mut in_order: Vec<&Attempt> = tries.iter().collect();
    in_order.sort_by_key(|attempt| attempt.number);
    let counted = in_order
        .iter()
        .zip(1..)
        .all(|(attempt, expected)| attempt.number == expected);
    let elsewhere = match in_order[..] {
        [.., before, last] => last.handled && last.language != before.language,
        _ => false,
    };
    counted && elsewhere
}

fn table(seen: &Seen) -> Table {
    let mut table = story::new_table(["order", "attempts, by the language of the handler"]);
    for (order, tries) in &seen.orders {
        let mut in_order: Vec<&Attempt> = tries.iter().collect();
        in_order.sort_by_key(|attempt| attempt.number);
        let told: Vec<String> = in_order
            .iter()
            .map(|attempt| {
                let end = if attempt.handled { "handled" } else { "failed" };
                format!("{} {} {end}", attempt.number, attempt.language)
            })
            .collect();
        table.add_row([order.clone(), told.join(" → ")]);
    }
    table
}
