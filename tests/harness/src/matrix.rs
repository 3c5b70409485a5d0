//! On which brokers and queue types a test body runs, side by side, with the place named in the failure.
//!
//! A matrix has a cell for each broker version and queue type. `RETRYRMQ_TEST_MATRIX` chooses:
//!
//! | value | `on_brokers`, `on_queue_types` | `on_every_broker`, `on_every_queue_type` |
//! |---|---|---|
//! | `full`, or not set | all cells | all cells |
//! | `assigned` | one cell, assigned by the test's name | all cells |
//! | `list` | none: the cells are only recorded | none |
//!
//! `RETRYRMQ_TEST_RECORD` names a file. Each cell adds a line to it: test, version, queue type.

use crate::{Broker, QueueType, brokers};
use futures_util::FutureExt;
use futures_util::future::{LocalBoxFuture, join_all};
use std::any::{Any, type_name};
use std::fs::OpenOptions;
use std::future::Future;
use std::io::Write;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;
use tokio::time::timeout;

/// A test that takes longer hangs; it would otherwise hold up all others for ever.
const LIMIT: Duration = Duration::from_secs(900);

/// The limit, or for a run by hand that is to take longer, as many seconds as this variable says.
fn limit() -> Duration {
    let given = std::env::var("RETRYRMQ_TEST_LIMIT").ok();
    given.map_or(LIMIT, |seconds| {
        Duration::from_secs(seconds.parse().expect("a number of seconds"))
    })
}

/// How many cells of the matrix a run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Matrix {
    /// Every cell in which a test has a meaning.
    Full,
    /// One cell for each test, assigned by its name; all cells for tests about differences between versions.
    Assigned,
    /// No cell runs. All are recorded.
    List,
}

impl Matrix {
    /// What `RETRYRMQ_TEST_MATRIX` asks for.
    ///
    /// # Panics
    /// When it asks for something else, so that a misspelled word does not make a run smaller.
    pub fn of_this_run() -> Self {
        match std::env::var("RETRYRMQ_TEST_MATRIX").as_deref() {
            Err(_) | Ok("" | "full") => Matrix::Full,
            Ok("assigned") => Matrix::Assigned,
            Ok("list") => Matrix::List,
            Ok(other) => {
                panic!("RETRYRMQ_TEST_MATRIX is `{other}`: use `full`, `assigned` or `list`")
            }
        }
    }

    /// Of these cells, those of this run for the test of that name. The choice depends on the name and the number of cells alone.
    pub fn choose<T>(self, name: &str, mut cells: Vec<T>) -> Vec<T> {
        match self {
            Matrix::Assigned if !cells.is_empty() => {
                let at = name_hash(name) % cells.len();
                vec![cells.swap_remove(at)]
            }
            _ => cells,
        }
    }
}

/// FNV-1a without its last bits, which are poor. The bindings' tests assign their cells with the same one.
pub fn name_hash(name: &str) -> usize {
    let hash = name.bytes().fold(0x811c_9dc5_u32, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    });
    hash as usize >> 3
}

/// Runs the test on the brokers that the matrix of this run gives it: all, or one that its name chooses.
///
/// # Panics
/// When the test fails on one or more, with their versions; and when there is no broker.
pub async fn on_brokers<F, Fut>(test: F)
where
    F: Fn(Broker) -> Fut,
    Fut: Future<Output = ()>,
{
    run_on(
        Matrix::of_this_run(),
        type_name::<F>(),
        &|_| true,
        &|broker| test(broker).boxed_local(),
    )
    .await;
}

/// As [`on_brokers`], of those brokers that the condition holds for. Says so when there is none.
///
/// # Panics
/// As [`on_brokers`].
pub async fn on_brokers_where<C, F, Fut>(condition: C, test: F)
where
    C: Fn(&Broker) -> bool,
    F: Fn(Broker) -> Fut,
    Fut: Future<Output = ()>,
{
    run_on(
        Matrix::of_this_run(),
        type_name::<F>(),
        &condition,
        &|broker| test(broker).boxed_local(),
    )
    .await;
}

/// As [`on_brokers`], with both queue types.
///
/// # Panics
/// As [`on_brokers`], with the queue type.
pub async fn on_queue_types<F, Fut>(test: F)
where
    F: Fn(Broker, QueueType) -> Fut,
    Fut: Future<Output = ()>,
{
    run_on_types(
        Matrix::of_this_run(),
        &test_name::<F>(),
        &|_, _| true,
        &|broker, kind| test(broker, kind).boxed_local(),
    )
    .await;
}

/// As [`on_queue_types`], in those cells that the condition holds for, for what many tests call: the name is that of the test, as
/// [`test_name`] tells it.
///
/// # Panics
/// As [`on_queue_types`].
pub async fn on_queue_types_where<C, F, Fut>(name: &str, condition: C, test: F)
where
    C: Fn(&Broker, QueueType) -> bool,
    F: Fn(Broker, QueueType) -> Fut,
    Fut: Future<Output = ()>,
{
    run_on_types(Matrix::of_this_run(), name, &condition, &|broker, kind| {
        test(broker, kind).boxed_local()
    })
    .await;
}

/// Runs the test on every broker in every run: for what differs between versions.
///
/// # Panics
/// As [`on_brokers`].
pub async fn on_every_broker<F, Fut>(test: F)
where
    F: Fn(Broker) -> Fut,
    Fut: Future<Output = ()>,
{
    run_on(everywhere(), type_name::<F>(), &|_| true, &|broker| {
        test(broker).boxed_local()
    })
    .await;
}

/// As [`on_every_broker`], where the condition holds. Says so when it holds nowhere.
///
/// # Panics
/// As [`on_brokers`].
pub async fn on_every_broker_where<C, F, Fut>(condition: C, test: F)
where
    C: Fn(&Broker) -> bool,
    F: Fn(Broker) -> Fut,
    Fut: Future<Output = ()>,
{
    run_on(everywhere(), type_name::<F>(), &condition, &|broker| {
        test(broker).boxed_local()
    })
    .await;
}

/// As [`on_every_broker`], with both queue types.
///
/// # Panics
/// As [`on_brokers`], with the queue type.
pub async fn on_every_queue_type<F, Fut>(test: F)
where
    F: Fn(Broker, QueueType) -> Fut,
    Fut: Future<Output = ()>,
{
    run_on_types(
        everywhere(),
        &test_name::<F>(),
        &|_, _| true,
        &|broker, kind| test(broker, kind).boxed_local(),
    )
    .await;
}

/// As [`on_every_queue_type`], on those brokers that the condition holds for. Says so when it holds nowhere.
///
/// # Panics
/// As [`on_queue_types`].
pub async fn on_every_queue_type_where<C, F, Fut>(condition: C, test: F)
where
    C: Fn(&Broker) -> bool,
    F: Fn(Broker, QueueType) -> Fut,
    Fut: Future<Output = ()>,
{
    run_on_types(
        everywhere(),
        &test_name::<F>(),
        &|broker, _| condition(broker),
        &|broker, kind| test(broker, kind).boxed_local(),
    )
    .await;
}

fn everywhere() -> Matrix {
    match Matrix::of_this_run() {
        Matrix::Assigned => Matrix::Full,
        other => other,
    }
}

// Not generic, because what is generic gets compiled for every test.

async fn run_on<'a>(
    matrix: Matrix,
    type_name: &str,
    condition: &dyn Fn(&Broker) -> bool,
    test: &dyn Fn(Broker) -> LocalBoxFuture<'a, ()>,
) {
    let cells: Vec<Broker> = brokers().into_iter().filter(condition).collect();
    if cells.is_empty() {
        eprintln!("skipped: none of the brokers here is one that this test is about");
    }
    let name = without_closures(type_name);
    let runs = matrix.choose(&name, cells).into_iter().map(|broker| {
        record_cell(&name, &broker, "-");
        (broker.to_string(), test(broker))
    });
    run_all(matrix, runs.collect()).await;
}

async fn run_on_types<'a>(
    matrix: Matrix,
    name: &str,
    condition: &dyn Fn(&Broker, QueueType) -> bool,
    test: &dyn Fn(Broker, QueueType) -> LocalBoxFuture<'a, ()>,
) {
    let all = brokers();
    let cells: Vec<_> = all
        .iter()
        .flat_map(|broker| QueueType::ALL.map(|kind| (broker.clone(), kind)))
        .filter(|(broker, kind)| condition(broker, *kind))
        .collect();
    if cells.is_empty() {
        eprintln!("skipped: none of the brokers here is one that this test is about");
    }
    let runs = matrix
        .choose(name, cells)
        .into_iter()
        .map(|(broker, kind)| {
            record_cell(name, &broker, kind.as_str());
            (format!("{broker}, {kind}"), test(broker, kind))
        });
    run_all(matrix, runs.collect()).await;
}

/// The path of the function that the test's closure stands in. A thread's name would do, but with one thread tests have none.
pub fn test_name<F>() -> String {
    without_closures(type_name::<F>())
}

fn without_closures(type_name: &str) -> String {
    type_name
        .split("::")
        .filter(|part| *part != "{{closure}}")
        .collect::<Vec<_>>()
        .join("::")
}

/// Adds a cell that runs to the file of `RETRYRMQ_TEST_RECORD`, if there is one.
///
/// # Panics
/// When the file cannot be written.
pub fn record_cell(name: &str, broker: &Broker, kind: &str) {
    let Some(file) = std::env::var_os("RETRYRMQ_TEST_RECORD") else {
        return;
    };
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("-");
    let line = format!("{name} {test} {} {kind}\n", broker.version());
    let file = OpenOptions::new().create(true).append(true).open(file);
    // In one piece, because other processes write to it as well.
    let written = file.and_then(|mut file| file.write_all(line.as_bytes()));
    written.expect("the file of RETRYRMQ_TEST_RECORD can be written");
}

async fn run_all(matrix: Matrix, runs: Vec<(String, LocalBoxFuture<'_, ()>)>) {
    if matrix == Matrix::List {
        return;
    }
    let limit = limit();
    let outcomes = join_all(runs.into_iter().map(|(place, run)| async move {
        let outcome = AssertUnwindSafe(timeout(limit, run)).catch_unwind().await;
        (place, outcome)
    }));
    let mut failures = Vec::new();
    for (place, outcome) in outcomes.await {
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(_)) => failures.push(format!("{place}: not finished after {limit:?}")),
            Err(panic) => failures.push(format!("{place}: {}", words(&*panic))),
        }
    }
    if !failures.is_empty() {
        // The panic hook has printed each failure where it happened; this adds where they belong.
        let summary = failures.join("\n");
        eprintln!("{summary}");
        resume_unwind(Box::new(summary));
    }
}

/// What a panic said.
pub fn words(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panicked")
}
