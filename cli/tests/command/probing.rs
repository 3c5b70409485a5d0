//! `consume --listen`: what a cluster asks a consumer.

use retryrmq_harness::{eventually, free_port, on_brokers};
use rustix::process::Signal;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::fixture::{DEADLINE, Fixture, QUEUE};

/// The status and the body; nothing if nobody listens.
async fn get(port: u16, path: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some((status, body.to_owned()))
}

#[tokio::test]
async fn a_cluster_asks_whether_a_consumer_lives_is_ready_and_how_it_does() {
    on_brokers(|broker| async move {
        let fixture = Fixture::with_queue(&broker).await;
        let port = free_port();
        let taken = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let listen = format!("--listen=127.0.0.1:{port}");
        let consume = ["consume", QUEUE, "--dlx", &listen];
        let refused = fixture
            .run(&[&consume[..], &["--", "true"]].concat())
            .await
            .exits(1);
        assert!(
            refused.err.contains("name another address with --listen"),
            "{}",
            refused.err
        );

        // At the taken port there is no broker.
        let nowhere = fixture.vhost.url().rsplit_once('@').unwrap().0.to_owned();
        drop(taken);
        let url = format!("{nowhere}@127.0.0.1:{port}/nothing");
        let own = free_port();
        let waits = format!("--listen=127.0.0.1:{own}");
        let waiting = fixture.start_with(&[
            "--url", &url, "consume", QUEUE, "--wait", &waits, "--", "true",
        ]);
        eventually(DEADLINE, "it answers while it waits for the broker", || {
            get(own, "/healthz")
        })
        .await;
        let (status, why) = get(own, "/readyz").await.unwrap();
        assert_eq!(
            (status, why.as_str()),
            (503, "the broker has not been reached yet\n")
        );
        assert_eq!(
            get(own, "/metrics").await.unwrap(),
            (200, "# EOF\n".to_owned())
        );
        waiting.signal(Signal::TERM);
        assert_eq!(waiting.end().await.code(), Some(0));

        let mut running = fixture.start(&[&listen], "echo begun; read line; test $line = ok");
        eventually(DEADLINE, "it is ready", || async {
            get(port, "/readyz")
                .await
                .filter(|(status, _)| *status == 200)
        })
        .await;
        assert_eq!(
            get(port, "/healthz").await.unwrap(),
            (200, "ok\n".to_owned())
        );
        fixture.amqp.publish(QUEUE, "ok\n").await;
        assert_eq!(running.line().await, "begun");
        eventually(DEADLINE, "the message is counted", || async {
            let (_, metrics) = get(port, "/metrics").await?;
            let counted = format!("retryrmq_messages_acked_total{{queue=\"{QUEUE}\"}} 1\n");
            metrics.contains(&counted).then_some(())
        })
        .await;
        assert_eq!(get(port, "/other").await.unwrap().0, 404);

        // While it drains, it lives and is not ready.
        let mut slow = fixture.start(&[&waits], "echo begun; exec sleep 600");
        running.signal(Signal::TERM);
        assert_eq!(running.end().await.code(), Some(0));
        fixture.amqp.publish(QUEUE, "slow\n").await;
        assert_eq!(slow.line().await, "begun");
        slow.drain(Signal::TERM).await;
        eventually(DEADLINE, "it is not ready any more", || async {
            let (status, why) = get(own, "/readyz").await?;
            (status == 503 && why == "the consumer is ending\n").then_some(())
        })
        .await;
        assert_eq!(get(own, "/healthz").await.unwrap().0, 200);
        slow.signal(Signal::TERM); // at once
        slow.end().await;
    })
    .await;
}
