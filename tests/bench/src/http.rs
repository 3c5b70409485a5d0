//! `consume --http` beside a bare load of the same client library: the same endpoint, the same body, the same concurrency.
//!
//! The endpoint is in this process, the load in another one. It is the endpoint that measures, from the first request to the
//! last, so that the start of neither counts.

use std::{
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use axum::{Router, body::Bytes, extract::State, http::StatusCode};
use retryrmq_harness::{Broker, QueueType};
use tokio::{net::TcpListener, process::Command, sync::Notify, time::Instant};

use crate::{
    cases::{BODY, Measured},
    report::{self, Row},
    rounds::{case, fill, rounds},
};

const REQUESTS: usize = 30_000;
const CONCURRENCY: usize = 32;

/// Prints the figures.
pub(crate) async fn compare(broker: &Broker) {
    println!(
        "{REQUESTS} × 256 B, {CONCURRENCY} requests at a time, {} rounds",
        rounds()
    );
    for kind in [QueueType::Classic, QueueType::Quorum] {
        let mut rows = [Row::new("http-bare"), Row::new("consume --http")];
        for _ in 0..rounds() {
            let endpoint = Endpoint::new().await;
            // What it prints of itself is its own view; the endpoint's counts for both.
            case("http-bare", &endpoint.url, "", REQUESTS).await;
            rows[0].rounds.push(endpoint.measured().await);
            let vhost = broker.vhost().await;
            fill(vhost.url(), "work", kind, REQUESTS).await;
            let endpoint = Endpoint::new().await;
            consume(vhost.url(), &endpoint.url).await;
            rows[1].rounds.push(endpoint.measured().await);
        }
        println!(
            "\n{kind:?} work queue\n{}",
            report::pace(&rows, &["http-bare"])
        );
    }
}

/// The case `http-bare`.
pub(crate) async fn bare(url: &str, count: usize) -> Measured {
    // The client wants to know one, though nothing here is encrypted; it fails only where there is one already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = reqwest::Client::builder()
        .no_proxy()
        .build()
        .expect("a client");
    let left = Arc::new(AtomicUsize::new(count));
    let senders = (0..CONCURRENCY).map(|_| {
        let (client, left, url) = (client.clone(), Arc::clone(&left), url.to_owned());
        tokio::spawn(async move {
            let take = |left: usize| left.checked_sub(1);
            while left
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
                .is_ok()
            {
                let request = client.post(&url).body(BODY.to_vec());
                let answer = request.send().await.expect("an answer");
                answer.bytes().await.expect("its body");
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
        .arg("--prefetch=200")
        .arg(format!("--count={REQUESTS}"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let status = command.status().await;
    let status = status.expect("`retryrmq` is built beside this: make bench-http");
    assert!(status.success(), "it ended with {status}");
}

/// Counts requests and answers 204.
struct Endpoint {
    url: String,
    counted: Arc<Counted>,
    serving: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
struct Counted {
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
    async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/", listener.local_addr().expect("its address"));
        let counted = Arc::new(Counted::default());
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(&counted));
        let serving = tokio::spawn(async move {
            axum::serve(listener, router).await.expect("it serves");
        });
        Self {
            url,
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
        Measured([("per_second".to_owned(), pace)].into())
    }
}

async fn answer(State(counted): State<Arc<Counted>>, body: Bytes) -> StatusCode {
    assert_eq!(body.len(), BODY.len());
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
