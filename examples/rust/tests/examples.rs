//! Runs every example to its end on real brokers, and looks at what it prints.

use std::{process::Stdio, time::Duration};

use retryrmq_harness::{CutProxy, eventually, on_brokers};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines},
    net::TcpStream,
    process::{Child, ChildStdout, Command},
    time::timeout,
};

/// Long enough for the busiest machine; a run that passes never waits for it.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// A running example, and all that it printed.
struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    output: String,
}

impl Example {
    fn start(program: &str, arguments: &[&str], url: &str) -> Self {
        let mut child = Command::new(program)
            .args(arguments)
            .env("RETRYRMQ_URL", url)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the example starts");
        let stdout = child.stdout.take().expect("it is piped");
        Self {
            child,
            lines: BufReader::new(stdout).lines(),
            output: String::new(),
        }
    }

    /// Reads on to a line with `part`.
    async fn until(&mut self, part: &str) -> String {
        loop {
            let line = timeout(TIME_LIMIT, self.lines.next_line()).await;
            let line =
                line.unwrap_or_else(|_| panic!("`{part}` did not come after:\n{}", self.output));
            let line = line.expect("its output is text");
            let line = line.unwrap_or_else(|| panic!("no `{part}` in:\n{}", self.output));
            self.output.push_str(&line);
            self.output.push('\n');
            if line.contains(part) {
                return line;
            }
        }
    }

    /// `-INT`, as Ctrl-C does, or `-TERM`.
    async fn signal(&self, which: &str) {
        let id = self.child.id().expect("it runs").to_string();
        let sent = Command::new("kill").args([which, &id]).status().await;
        assert!(sent.expect("there is `kill`").success());
    }

    /// All that it prints until it ends well.
    async fn end(mut self) -> String {
        while let Some(line) = timeout(TIME_LIMIT, self.lines.next_line())
            .await
            .unwrap_or_else(|_| panic!("no end after:\n{}", self.output))
            .expect("its output is text")
        {
            self.output.push_str(&line);
            self.output.push('\n');
        }
        let status = timeout(TIME_LIMIT, self.child.wait())
            .await
            .expect("it ends");
        assert!(status.expect("it ends").success(), "{}", self.output);
        self.output
    }
}

fn has_all(output: &str, parts: &[&str]) {
    for part in parts {
        assert!(output.contains(part), "no `{part}` in:\n{output}");
    }
}

#[tokio::test]
async fn the_first_consumer_gets_what_is_published() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let mut consumer = Example::start(env!("CARGO_BIN_EXE_first-consumer"), &[], vhost.url());
        let amqp = vhost.connect().await;
        // The queue can be seen before it has a leader that takes anything; its consumer comes later.
        retryrmq_harness::eventually(TIME_LIMIT, "somebody consumes", || async {
            match amqp.consumers("orders").await {
                Some(1) => Ok(()),
                consumers => Err(format!("{consumers:?}")),
            }
        })
        .await;
        let publish = env!("CARGO_BIN_EXE_publish");
        Example::start(publish, &["orders", "7"], vhost.url())
            .end()
            .await;
        for attempt in 1..=3 {
            consumer
                .until(&format!("attempt {attempt} of order 7"))
                .await;
        }
        consumer.signal("-TERM").await;
        consumer.end().await;
        assert_eq!(amqp.depth("orders").await, Some(0));
    })
    .await;
}

#[tokio::test]
async fn policy_rule_and_handler_choose_the_delay() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let example = Example::start(env!("CARGO_BIN_EXE_choosing-the-delay"), &[], vhost.url());
        let output = example.end().await;
        has_all(
            &output,
            &[
                "flaky waits 250ms: the database is restarting",
                "flaky waits 500ms",
                "flaky waits 1s",
                "flaky is done at attempt 4",
                "timeout waits 1s: no answer",
                "busy waits 1500ms: the partner asks for 1.5 s",
                "early is deferred for 500ms",
                "early is done at attempt 1",
            ],
        );
    })
    .await;
}

#[tokio::test]
async fn fatal_errors_are_parked_at_once() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let example = Example::start(env!("CARGO_BIN_EXE_fatal-errors"), &[], vhost.url());
        let output = example.end().await;
        has_all(
            &output,
            &[
                "garbage is parked after attempt 1, fatal",
                "unknown is parked after attempt 1, fatal: nobody has the number 0",
                "negative is parked after attempt 1, requested: a negative total",
                "unlucky is parked after attempt 3, exhausted: the database is restarting",
                "drop unknown: UnknownCustomer, attempts: 1",
                "drop unlucky: Error, attempts: 3",
            ],
        );
    })
    .await;
}

#[tokio::test]
async fn batches_are_stored_and_each_order_has_its_end() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let example = Example::start(env!("CARGO_BIN_EXE_batches"), &[], vhost.url());
        let output = example.end().await;
        has_all(
            &output,
            &[
                "order-7 is parked: an order without a number",
                "all are stored",
            ],
        );
        let stored = output
            .lines()
            .filter_map(|line| line.strip_prefix("stored "));
        let stored: usize = stored.map(|count| count.parse::<usize>().unwrap()).sum();
        assert_eq!(stored, 249, "{output}");
    })
    .await;
}

#[tokio::test]
async fn layers_surround_a_handler_with_a_typed_body() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let example = Example::start(env!("CARGO_BIN_EXE_layers"), &[], vhost.url());
        let output = example.end().await;
        has_all(
            &output,
            &[
                "shipped order 1",
                "attempt 1 succeeded in",
                "attempt 1 failed in",
                "once more: request timed out",
                "shipped order 2",
                "attempt 2 succeeded in",
                "three is parked as undecodable: invalid type: string, expected u64 at line 1 column 10",
                "noted order 1 at attempt 1",
                "noted order 2 at attempt 1",
            ],
        );
        assert!(!output.contains("order 3"), "{output}");
    })
    .await;
}

#[tokio::test]
async fn what_was_parked_is_replayed() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let example = Example::start(env!("CARGO_BIN_EXE_parked-and-replay"), &[], vhost.url());
        let output = example.end().await;
        has_all(
            &output,
            &[
                "order-1 costs 9",
                "parked order-2: an order without a discount after attempt 2",
                "parked order-3",
                "order-2 costs 20",
            ],
        );
        assert!(!output.contains("order-3 costs"), "{output}");
    })
    .await;
}

async fn asked(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    stream
        .write_all(request.as_bytes())
        .await
        .expect("it reads");
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .expect("it answers");
    answer
}

#[tokio::test]
async fn the_web_service_publishes_consumes_and_ends_in_order() {
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let proxy = CutProxy::to(vhost.url()).await;
        let mut service = Example::start(env!("CARGO_BIN_EXE_web-service"), &[], proxy.url());
        let line = service.until("at http://").await;
        let address = line.trim_start_matches("at http://").to_owned();
        let head = "HTTP/1.1\r\nHost: localhost\r\nConnection: close";
        let post = format!("POST /orders {head}\r\nContent-Length: 1\r\n\r\n7");
        assert!(asked(&address, &post).await.starts_with("HTTP/1.1 202"));
        service.until("handled 7").await;
        let health = asked(&address, &format!("GET /health {head}\r\n\r\n")).await;
        assert!(health.starts_with("HTTP/1.1 200"), "{health}");
        let metrics = asked(&address, &format!("GET /metrics {head}\r\n\r\n")).await;
        has_all(
            &metrics,
            &["retryrmq_messages_delivered_total", "example.web"],
        );
        proxy.refuse();
        proxy.cut();
        for request in [post, format!("GET /health {head}\r\n\r\n")] {
            eventually(TIME_LIMIT, "it answers 503", || async {
                let answer = asked(&address, &request).await;
                let names_the_broker = ["127.0.0.1", "localhost", "amqp"]
                    .iter()
                    .any(|part| answer.contains(part));
                assert!(!names_the_broker, "{answer}");
                if answer.starts_with("HTTP/1.1 503") {
                    Ok(())
                } else {
                    Err(answer)
                }
            })
            .await;
        }
        proxy.resume();
        service.signal("-INT").await;
        has_all(&service.end().await, &["ended"]);
    })
    .await;
}
