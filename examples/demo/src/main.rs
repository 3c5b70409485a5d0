//! The main job on a real RabbitMQ: orders fail, leave the head of their queue, wait in the broker, come back at its
//! tail, are parked with a reason, and are replayed once the bug is mended.

mod handler;
mod languages;
mod orders;
mod story;
mod tidy;

use std::{
    env,
    io::IsTerminal,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use retryrmq::{Client, Policy, Publish};
use story::{Chronicle, Step};
use tokio::time::{Instant, sleep};

/// Longer than any message of this demo can take, many times over.
const TIME_LIMIT: Duration = Duration::from_secs(180);

#[tokio::main]
async fn main() -> ExitCode {
    keep_the_planned_panic_quiet();
    let url = broker_url();
    match run(&url).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("error: not every order ended as it should have; see the table above");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// One handler panics on purpose; its story is in the table, not in a backtrace.
fn keep_the_planned_panic_quiet() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let planned = panic
            .payload()
            .downcast_ref::<&str>()
            .is_some_and(|text| *text == handler::PLANNED_PANIC);
        if !planned {
            usual(panic);
        }
    }));
}

/// The broker that `make demo` brought up or was given.
fn broker_url() -> String {
    let brought_up = env::var("RETRYRMQ_TEST_BROKERS").ok().and_then(|brokers| {
        let first = brokers
            .split([';', '\n'])
            .find(|line| !line.trim().is_empty())?
            .to_owned();
        first.split('|').nth(1).map(str::to_owned)
    });
    brought_up
        .or_else(|| env::var("RETRYRMQ_URL").ok())
        .unwrap_or_else(|| "amqp://localhost".to_owned())
}

async fn run(url: &str) -> retryrmq::Result<bool> {
    let rmq = Client::connect(url).await?;
    let queue = format!("demo-orders-{}", std::process::id());
    let policy: Policy = "exponential(500ms, factor=2, max=5s, retries=3)".parse()?;
    let server = rmq.server();
    println!(
        "{} {}, queue {queue}, dlx: true, retry: {policy}\n",
        server.product, server.version
    );

    let chronicle = Arc::new(Chronicle::new(std::io::stderr().is_terminal()));
    let mended = Arc::new(AtomicBool::new(false));
    let events = Arc::clone(&chronicle);
    let (told, bug) = (Arc::clone(&chronicle), Arc::clone(&mended));
    let consumer = rmq
        .consumer(&queue)
        .dlx(true)
        .retry(policy)
        .concurrency(4)
        .handler_timeout(Duration::from_millis(400))
        .on_event(move |event| events.event(event))
        .start(move |message| handler::handle(message, Arc::clone(&told), Arc::clone(&bug)))
        .await?;

    for order in orders::ALL {
        chronicle.expect(order);
        rmq.publish(Publish::to_queue(&queue, order.body).message_id(order.id))
            .await?;
        chronicle.note(order.id, Step::Published);
    }
    let settled = wait(|| chronicle.all_ended()).await;
    println!("\n{}\n", chronicle.table());

    let replayed = show_and_replay(&rmq, &queue, &chronicle, &mended).await?;
    let healed = wait(|| chronicle.all_ended()).await;
    println!("\n{}\n", chronicle.replay_table());
    consumer.close().await;
    let still_parked = tidy::parked_then_delete(url, &queue).await as usize;
    let lost = orders::ALL.len() as i64 - (chronicle.handled() + still_parked) as i64;
    let as_planned = settled && healed && replayed > 0 && lost == 0 && chronicle.is_as_planned();
    let stats = consumer.stats();
    println!(
        "{} deliveries: {} succeeded, {} failed, {} deferred; {} retries, {} parked, {replayed} replayed.",
        stats.delivered, stats.acked, stats.failed, stats.deferred, stats.retried, stats.parked
    );
    println!(
        "{} orders published, {} handled, {still_parked} parked, {lost} lost.",
        orders::ALL.len(),
        chronicle.handled()
    );
    let shared = languages::share(&rmq, url).await?;
    rmq.close().await;
    Ok(as_planned && shared)
}

/// What an operator does: looks at what is parked, and replays what the mended bug is to blame for.
async fn show_and_replay(
    rmq: &Client,
    queue: &str,
    chronicle: &Chronicle,
    mended: &AtomicBool,
) -> retryrmq::Result<usize> {
    let mut walk = rmq.parked(queue).browse().await?;
    let mut records = Vec::new();
    while let Some(record) = walk.next().await? {
        records.push(record);
    }
    println!(
        "parked in {queue}.parked:\n{}",
        story::parked_table(&records)
    );
    println!(
        "\nThe bug behind `{}` is mended; replaying what it parked …",
        orders::BUG
    );
    mended.store(true, Ordering::SeqCst);
    let mut replayed = 0;
    for record in records.iter().filter(|record| record.error == orders::BUG) {
        if let Some(id) = record.message().message_id() {
            chronicle.note(id, Step::Replayed);
        }
        walk.replay(record).await?;
        replayed += 1;
    }
    walk.close().await?;
    Ok(replayed)
}

async fn wait(done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + TIME_LIMIT;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        sleep(Duration::from_millis(20)).await;
    }
    true
}
