//! `consume --http` beside a loop by hand (the AMQP client, the HTTP client, an acknowledgement for each answer) and beside a bare load of
//! the same HTTP client: the same endpoint, the same body, the same concurrency.
//!
//! The endpoint is in this process, the load in another one. It is the endpoint that measures the pace, from the first request to the
//! last, so that the start of none counts; processor time is that of the whole process. The bare load has the machine for itself: the
//! others share it with the broker. So an endpoint that answers at once shows what each request costs, and one that takes a moment, as
//! one with something to do would, shows the pace that a service gets.

use std::{
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode};
use retryrmq_harness::{Amqp, Broker, QueueType};
use tokio::{
    net::TcpListener,
    process::Command,
    sync::{Notify, Semaphore},
    time::Instant,
};

use crate::{
    cases::{BODY, Measured, delivery},
    process,
    report::{self, Row},
    rounds::{case, fill, rounds},
};

const REQUESTS: usize = 30_000;
const CONCURRENCY: usize = 32;
const PREFETCH: u16 = 200;
/// How long an endpoint takes that has something to do.
const MOMENT: Duration = Duration::from_millis(5);

/// Prints the figures.
pub(crate) async fn compare(broker: &Broker) {
    println!(
        "{REQUESTS} × 256 B, {CONCURRENCY} requests at a time, {} rounds",
        rounds()
    );
    for (kind, takes) in [
        (QueueType::Classic, Duration::ZERO),
        (QueueType::Quorum, Duration::ZERO),
        (QueueType::Quorum, MOMENT),
    ] {
        let mut rows = ["http-bare", "http-by-hand", "consume --http"].map(Row::new);
        for _ in 0..rounds() {
            let endpoint = Endpoint::new(takes).await;
            // What it prints of itself is its own view; the endpoint's counts for all.
            case("http-bare", &endpoint.url, "", REQUESTS).await;
            rows[0].rounds.push(endpoint.measured().await);
            for row in &mut rows[1..] {
                let vhost = broker.vhost().await;
                fill(vhost.url(), "work", kind, REQUESTS).await;
                let endpoint = Endpoint::new(takes).await;
                if row.name == "http-by-hand" {
                    let both = format!("work {}", endpoint.url);
                    case(&row.name, vhost.url(), &both, REQUESTS).await;
                } else {
                    consume(vhost.url(), &endpoint.url).await;
                }
                row.rounds.push(endpoint.measured().await);
            }
        }
        let answers = if takes.is_zero() {
            "at once".to_owned()
        } else {
            format!("after {takes:?}")
        };
        println!(
            "\n{kind:?} work queue, an endpoint that answers {answers}\n{}",
            report::pace(&rows, &["http-bare", "http-by-hand"])
        );
    }
}

fn client() -> reqwest::Client {
    // The client wants to know one, though nothing here is encrypted; it fails only where there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder().no_proxy().build();
    client.expect("a client")
}

async fn post(client: &reqwest::Client, url: &str, body: Vec<u8>) {
    let answer = client.post(url).body(body).send().await;
    let answer = answer.expect("an answer");
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    answer.bytes().await.expect("its body");
}

/// The case `http-by-hand`; where from and where to are the queue and the endpoint, with a space between them.
pub(crate) async fn by_hand(url: &str, both: &str, count: usize) -> Measured {
    let (queue, endpoint) = both.split_once(' ').expect("a queue and an endpoint");
    let (amqp, client) = (Amqp::connect(url).await, client());
    let mut consumer = amqp.consume(queue, PREFETCH).await;
    let places = Arc::new(Semaphore::new(CONCURRENCY));
    for _ in 0..count {
        let place = Arc::clone(&places).acquire_owned().await;
        let mut delivery = delivery::next(&mut consumer).await;
        let (client, endpoint) = (client.clone(), endpoint.to_owned());
        tokio::spawn(async move {
            post(&client, &endpoint, std::mem::take(&mut delivery.data)).await;
            delivery::acknowledge(&delivery).await;
            drop(place);
        });
    }
    let all = u32::try_from(CONCURRENCY).expect("it is small");
    let _ = places.acquire_many(all).await;
    Measured::default()
}

/// The case `http-bare`.
pub(crate) async fn bare(url: &str, count: usize) -> Measured {
    let client = client();
    let left = Arc::new(AtomicUsize::new(count));
    let senders = (0..CONCURRENCY).map(|_| {
        let (client, left, url) = (client.clone(), Arc::clone(&left), url.to_owned());
        tokio::spawn(async move {
            let take = |left: usize| left.checked_sub(1);
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
            {
                post(&client, &url, BODY.to_vec()).await;
            }
        })
    });
    let senders: Vec<_> = senders.collect();
    for sender in senders {
        sender.await.expect("it sends");
    }
    Measured::default()
}

async fn consume(url: &str, endpoint: &str) {
    let own = std::env::current_exe().expect("this program");
    let mut command = Command::new(own.with_file_name("retryrmq"));
    command
        .env("RETRYRMQ_URL", url)
        .args(["--quiet", "consume", "work", "--dlx", "--http", endpoint])
        .arg(format!("--concurrency={CONCURRENCY}"))
        .arg(format!("--prefetch={PREFETCH}"))
        .arg(format!("--count={REQUESTS}"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let status = command.status().await;
    let status = status.expect("`retryrmq` is built beside this: make bench-http");
    assert!(status.success(), "it ended with {status}");
}

/// Counts requests and answers 204, at once or after a moment.
struct Endpoint {
    url: String,
    /// The processor time of earlier children.
    used: Duration,
    counted: Arc<Counted>,
    serving: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Counted {
    takes: Duration,
    count: AtomicUsize,
    began: Mutex<Option<Instant>>,
    took: Mutex<Option<Duration>>,
    all: Notify,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Endpoint {
    async fn new(takes: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("its address"));
        let counted = Arc::new(Counted {
            takes,
            ..Counted::default()
        });
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&counted));
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("it serves");
        });
        Self {
            url,
            used: process::cpu_of_children(),
            counted,
            serving,
        }
    }

    async fn measured(self) -> Measured {
        let took = loop {
            let all = self.counted.all.notified();
            if let Some(took) = *self.counted.took.lock().expect("nobody panics") {
                break took;
            }
            all.await;
        };
        let pace = REQUESTS as f64 / took.as_secs_f64();
        let used = process::cpu_of_children().saturating_sub(self.used);
        let each = used.as_secs_f64() * 1e6 / REQUESTS as f64;
        Measured([("per_second".to_owned(), pace), ("cpu_us".to_owned(), each)].into())
    }
}

async fn answer(State(counted): State<Arc<Counted>>, body: Bytes) -> StatusCode {
    assert_eq!(body.len(), BODY.len());
    if !counted.takes.is_zero() {
        tokio::time::sleep(counted.takes).await;
    }
    match counted.count.fetch_add(1, Ordering::Relaxed) + 1 {
        1 => *counted.began.lock().expect("nobody panics") = Some(Instant::now()),
        REQUESTS => {
            let began = counted.began.lock().expect("nobody panics");
            let took = began.map(|began| began.elapsed());
            *counted.took.lock().expect("nobody panics") = took;
            counted.all.notify_waiters();
        }
        _ => {}
    }
    StatusCode::NO_CONTENT
}
