//! Clients of `--listen` that never finish what they send.

use std::{fs, time::Duration};

use retryrmq_harness::{QueueType, eventually, on_brokers};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::{io::AsyncWriteExt, net::TcpStream, sync::mpsc, time::timeout};

use super::page::{Visitor, people};
use crate::fixture::{DEADLINE, NativeConsumer, Replica, declare, id, policy};

/// Opens connections that send this, and nothing after it.
async fn unfinished(replica: &Replica, count: usize, head: &str, body: usize) -> Vec<TcpStream> {
    let mut all = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(replica.address()).await.unwrap();
        let bytes = [head.as_bytes(), &vec![b'x'; body]].concat();
        // Once the service does not read on, the rest stays here.
        let _ = timeout(Duration::from_millis(20), stream.write_all(&bytes)).await;
        all.push(stream);
    }
    all
}

async fn answers(replica: &Replica) {
    for (path, says) in [("/healthz", "ok"), ("/readyz", "ok"), ("/metrics", "# EOF")] {
        let (status, text) = timeout(DEADLINE, replica.page(path)).await.unwrap();
        assert_eq!(status, 200, "{path}: {text}");
        assert!(text.contains(says), "{path}: {text}");
    }
}

#[tokio::test]
async fn probes_and_retries_go_on_beside_a_thousand_slow_connections() {
    let files = Rlimit {
        current: getrlimit(Resource::Nofile).maximum,
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, files).expect("this test holds many connections");
    on_brokers(|broker| async move {
        let vhost = broker.vhost().await;
        let amqp = vhost.connect().await;
        let folder = tempfile::tempdir().unwrap();
        let rules = "[defaults]\nretry = \"fixed(1s, retries=3)\"\n";
        let file = policy(&people(folder.path(), rules));
        let replica = Replica::start(&vhost, Some(file.path())).await;
        declare(&amqp, "orders", QueueType::Quorum, true).await;
        let mut slow = unfinished(&replica, 1_100, "GET / HTTP/1.1\r\nhost: x\r\nx-a: ", 0).await;
        answers(&replica).await;
        let files = fs::read_dir(format!("/proc/{}/fd", replica.pid())).unwrap();
        let files = files.count();
        assert!(files < 400, "{files}");

        // Forms that do not end: they would be kept in memory until they do.
        let form = "POST /sign-in HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-www-form-urlencoded\r\ncontent-length: 3000000\r\n\r\n";
        slow.extend(unfinished(&replica, 400, form, 1 << 20).await);
        // Forms that anybody may send, as far as that goes.
        let small = form.replace("3000000", "4000");
        slow.extend(unfinished(&replica, 40, &small, 1).await);
        answers(&replica).await;
        let mut stranger = Visitor::new(&replica);
        assert_eq!(stranger.get("/sign-in").await.status, 200);
        let status = fs::read_to_string(format!("/proc/{}/status", replica.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        assert!(kilobytes.unwrap() < 128 << 10, "{line:?}");

        // The page is there for those who have signed in, and messages are retried.
        eventually(DEADLINE, "rea sees the page", || async {
            let mut rea = Visitor::new(&replica);
            let word = match rea.get("/sign-in").await {
                answer if answer.status == 200 => answer.word(),
                answer => return Err(answer.body),
            };
            let form = [("word", word.as_str()), ("token", "rea-0123456789abcdef")];
            match rea.post("/sign-in", &form).await.status {
                303 => Ok(()),
                other => Err(other.to_string()),
            }
        })
        .await;
        let (handled, mut handles) = mpsc::unbounded_channel();
        let orders = NativeConsumer::start(&vhost, "orders", move |seen| {
            let is_retry = seen.attempt() > 1;
            if is_retry {
                handled.send(seen.id.clone()).unwrap();
            }
            is_retry
        });
        let orders = orders.await;
        amqp.publish_with("orders", "a body", id("one")).await;
        let retried = timeout(DEADLINE, handles.recv()).await;
        assert_eq!(retried.unwrap().as_deref(), Some("one"));
        drop((orders, slow));
        assert!(replica.end().await.success());
    })
    .await;
}
