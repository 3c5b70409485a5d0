//! Load for minutes on a consumer in any language: failing handlers, cut connections, and SIGINT now and then. Its memory must
//! stay flat and the ledger must balance.
//!
//! Two consumers of the same command share the queue. The first lives through everything, so that its memory means something;
//! the second is interrupted every half minute, has to drain, and is started again.

use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use retryrmq::{Client, Publish, parking_queue};
use retryrmq_harness::{Amqp, CutProxy, Ledger};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    sync::Semaphore,
    time::{interval, sleep},
};

use crate::{
    growth::{Growth, Verdict},
    process,
};

const QUEUE: &str = "soak";
/// Messages a second; a small machine does this with its left hand in every language.
const PACE: u32 = 500;
const CUT: Duration = Duration::from_secs(7);
const INTERRUPT: Duration = Duration::from_secs(30);
const SAMPLE: Duration = Duration::from_secs(15);
/// How long the rest may take once nothing is published any more.
const DEADLINE: Duration = Duration::from_secs(120);

/// Runs `command QUEUE` for as long; whether nothing was lost, every drain was clean and memory stayed flat. The command consumes with `dlx` and
/// `fixed(200ms, retries=5)`, fails every third message (its body is a number) at its first attempt and every 997th always,
/// and prints the number of each message that it handled. SIGINT has it drain and end with 0.
pub(crate) async fn soak(url: &str, minutes: u64, command: &str) -> bool {
    let proxy = CutProxy::to(url).await;
    let ledger = Ledger::new();
    let steady = start(command, proxy.url(), &ledger);
    let mut other = start(command, proxy.url(), &ledger);
    let amqp = Amqp::connect(url).await;
    while amqp.consumers(QUEUE).await.unwrap_or(0) < 2 {
        sleep(Duration::from_millis(50)).await;
    }
    let publishing = tokio::spawn(publish(url.to_owned(), minutes, ledger.clone()));
    let (mut cuts, mut interrupts) = (interval(CUT), interval(INTERRUPT));
    let mut samples = interval(SAMPLE);
    let (began, mut clean, mut count) = (Instant::now(), true, (0, 0));
    let mut growth = Growth::default();
    cuts.reset();
    interrupts.reset();
    println!("minute  steady consumer, MiB resident");
    while !publishing.is_finished() {
        tokio::select! {
            _ = cuts.tick() => {
                proxy.cut();
                count.0 += 1;
            }
            _ = interrupts.tick() => {
                clean &= interrupt(&mut other).await;
                count.1 += 1;
                other = start(command, proxy.url(), &ledger);
                // One that is cut while it subscribes for the first time says so and ends, as it should.
                cuts.reset();
            }
            _ = samples.tick() => {
                let minutes = began.elapsed().as_secs_f64() / 60.0;
                let mebibytes = resident(&steady);
                println!("{minutes:6.1}  {mebibytes:.1}");
                growth.sample(mebibytes);
            }
        }
    }
    let deadline = Instant::now() + DEADLINE;
    while !ledger.is_settled() && Instant::now() < deadline {
        sleep(Duration::from_millis(200)).await;
        book_parked(&amqp, &ledger).await;
    }
    println!(
        "{:6.1}  {:.1}",
        began.elapsed().as_secs_f64() / 60.0,
        resident(&steady)
    );
    let mut steady = steady;
    clean &= interrupt(&mut steady).await;
    clean &= interrupt(&mut other).await;
    for message in amqp.drain(QUEUE).await {
        ledger.queued(String::from_utf8_lossy(&message.body));
    }
    book_parked(&amqp, &ledger).await;
    amqp.close().await;
    proxy.close();
    ledger.assert_nothing_lost("soak");
    println!(
        "{} cuts, {} interrupts; every drain ended with 0: {clean}",
        count.0, count.1
    );
    let verdict = growth.verdict();
    println!("{verdict}");
    clean && !matches!(verdict, Verdict::Grows(..))
}

async fn book_parked(amqp: &Amqp, ledger: &Ledger) {
    for message in amqp.drain(&parking_queue(QUEUE)).await {
        ledger.parked(String::from_utf8_lossy(&message.body));
    }
}

/// A consumer, and somebody who books what it says that it handled.
fn start(command: &str, url: &str, ledger: &Ledger) -> Child {
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(format!("exec {command} \"$0\""))
        .arg(QUEUE)
        .env("RETRYRMQ_URL", url)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("sh is there");
    let ledger = ledger.clone();
    if let Some(said) = child.stdout.take() {
        let mut lines = BufReader::new(said).lines();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                ledger.handled(line.trim());
            }
        });
    }
    child
}

/// SIGINT; whether it drained and ended with 0.
async fn interrupt(child: &mut Child) -> bool {
    let Some(id) = child.id() else { return false };
    let told = Command::new("kill")
        .args(["-INT", &id.to_string()])
        .status();
    let told = told.await.is_ok_and(|status| status.success());
    told && child.wait().await.is_ok_and(|status| status.success())
}

/// In MiB.
fn resident(child: &Child) -> f64 {
    let id = child.id();
    id.map_or(0.0, |id| {
        process::resident_of(&id.to_string()) as f64 / 1024.0
    })
}

/// Publishes without a break, with some hundreds of confirms outstanding; the confirmed ones are booked.
async fn publish(url: String, minutes: u64, ledger: Ledger) {
    let rmq = Client::connect(&url).await.expect("the broker is there");
    let end = Instant::now() + Duration::from_secs(60 * minutes);
    let outstanding = Arc::new(Semaphore::new(256));
    let mut pace = interval(Duration::from_secs(1) / PACE);
    let mut number = 0u64;
    while Instant::now() < end {
        pace.tick().await;
        number += 1;
        let permit = Arc::clone(&outstanding).acquire_owned().await;
        let (rmq, ledger, id) = (rmq.clone(), ledger.clone(), number.to_string());
        tokio::spawn(async move {
            let message = Publish::to_queue(QUEUE, id.clone()).message_id(&id);
            if rmq.publish(message).await.is_ok() {
                ledger.published(id);
            }
            drop(permit);
        });
    }
    let _ = outstanding.acquire_many(256).await;
    rmq.close().await;
}
