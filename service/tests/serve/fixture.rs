//! A vhost, the program in it, and native consumers.

use std::{
    path::Path,
    process::{ExitStatus, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::StreamExt;
use retryrmq_harness::{
    Amqp, Message, QueueType, Vhost, eventually,
    lapin::{
        BasicProperties,
        message::Delivery,
        options::BasicAckOptions,
        options::BasicRejectOptions,
        types::{AMQPValue, FieldTable, ShortString},
    },
};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::{Child, Command},
    task::AbortHandle,
};

pub(crate) const DEADLINE: Duration = Duration::from_secs(120);
pub(crate) const DEAD: &str = "retryrmq.dead";
pub(crate) const INTAKE: &str = "retryrmq.intake";
pub(crate) const INTAKE_PARKED: &str = "retryrmq.intake.parked";

/// The program, which logs JSON.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_retryrmq-serve"));
    command
        .env_remove("RETRYRMQ_URL")
        .kill_on_drop(true)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A service that runs.
pub(crate) struct Replica {
    child: Child,
    log: Arc<Mutex<Vec<String>>>,
    address: String,
}

impl Replica {
    /// Starts one, and waits until it is ready.
    pub(crate) async fn start(vhost: &Vhost, policy: Option<&Path>) -> Self {
        Self::start_at(vhost.url(), policy, &[]).await
    }

    pub(crate) async fn start_at(url: &str, policy: Option<&Path>, more: &[&str]) -> Self {
        let mut command = program();
        command
            .env("RETRYRMQ_URL", url)
            .args(["--listen", "127.0.0.1:0", "--log", "json"])
            .args(more);
        if let Some(policy) = policy {
            command.arg("--config").arg(policy);
        }
        let mut child = command.spawn().expect("the program starts");
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::<Mutex<Vec<String>>>::default();
        let written = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                written.lock().unwrap().push(line);
            }
        });
        let mut replica = Self {
            child,
            log,
            address: String::new(),
        };
        replica.address = replica.says("serving").await["address"]
            .as_str()
            .unwrap()
            .to_owned();
        replica.says("ready: ").await;
        replica
    }

    /// Waits for a line of the log with these words, and returns it.
    pub(crate) async fn says(&self, words: &str) -> serde_json::Value {
        eventually(DEADLINE, &format!("the log says {words:?}"), || async {
            let log = self.log.lock().unwrap();
            match log.iter().find(|line| line.contains(words)) {
                Some(line) => Ok(serde_json::from_str(line).expect("each line is JSON")),
                None => Err(log.join("\n")),
            }
        })
        .await
    }

    /// How many lines of the log have these words by now.
    pub(crate) fn said(&self, words: &str) -> usize {
        let log = self.log.lock().unwrap();
        log.iter().filter(|line| line.contains(words)).count()
    }

    /// Where it serves its pages.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// A page, and its status.
    pub(crate) async fn page(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(&self.address)
            .await
            .expect("the pages are served");
        let asked = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(asked.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        assert!(!head.contains("chunked"), "{head}");
        (status.expect("a status"), body.to_owned())
    }

    /// Waits until the metrics have a line that begins so and ends with this number or a larger one.
    pub(crate) async fn counts(&self, metric: &str, least: u64) {
        eventually(DEADLINE, &format!("{metric} is {least}"), || async {
            let (_, text) = self.page("/metrics").await;
            let line = text.lines().find(|line| line.starts_with(metric));
            let number = line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
            match number {
                Some(number) if number >= least => Ok(()),
                _ => Err(format!("{line:?}")),
            }
        })
        .await;
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).expect("it takes the signal");
    }

    /// Asks for the end, and waits for it.
    pub(crate) async fn end(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.child.wait().await.expect("it ends")
    }

    pub(crate) async fn kill(mut self) {
        self.child.kill().await.expect("it is killed");
    }
}

/// Declares a queue whose dead letters go to the service.
pub(crate) async fn declare(amqp: &Amqp, queue: &str, kind: QueueType, at_least_once: bool) {
    let text = |text: &str| AMQPValue::LongString(text.into());
    let mut arguments = FieldTable::default();
    arguments.insert("x-dead-letter-exchange".into(), text(DEAD));
    if at_least_once {
        arguments.insert("x-dead-letter-strategy".into(), text("at-least-once"));
        arguments.insert("x-overflow".into(), text("reject-publish"));
    }
    amqp.declare_with(queue, kind, arguments).await;
}

/// A consumer with nothing but its native client: it acknowledges what `accepts` says, and rejects the rest.
pub(crate) struct NativeConsumer(AbortHandle);

impl NativeConsumer {
    pub(crate) async fn start(
        vhost: &Vhost,
        queue: &str,
        accepts: impl Fn(&Seen) -> bool + Send + 'static,
    ) -> Self {
        let amqp = vhost.connect().await;
        let queue = queue.to_owned();
        let mut consumer = amqp.consume(&queue, 20).await;
        let task = tokio::spawn(async move {
            let amqp = amqp;
            while let Some(Ok(delivery)) = consumer.next().await {
                if accepts(&Seen::of(&queue, &delivery)) {
                    let _ = delivery.acker.ack(BasicAckOptions::default()).await;
                } else {
                    let no = BasicRejectOptions { requeue: false };
                    let _ = delivery.acker.reject(no).await;
                }
            }
            drop(amqp);
        });
        Self(task.abort_handle())
    }
}

impl Drop for NativeConsumer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A delivery as a native consumer sees it.
pub(crate) struct Seen {
    pub(crate) queue: String,
    pub(crate) id: String,
    pub(crate) body: Vec<u8>,
    pub(crate) properties: BasicProperties,
}

impl Seen {
    pub(crate) fn of(queue: &str, delivery: &Delivery) -> Self {
        Self {
            queue: queue.to_owned(),
            id: text_of(delivery.properties.message_id().as_ref()),
            body: delivery.data.clone(),
            properties: delivery.properties.clone(),
        }
    }

    /// By the header that the service counts in.
    pub(crate) fn attempt(&self) -> usize {
        let headers = self.properties.headers().as_ref();
        let count = headers.and_then(|headers| headers.inner().get("x-retry-count").cloned());
        match count {
            Some(AMQPValue::LongLongInt(count)) => usize::try_from(count).unwrap() + 1,
            other => {
                assert_eq!(other, None);
                1
            }
        }
    }
}

fn text_of(text: Option<&ShortString>) -> String {
    text.map(|text| text.as_str().to_owned())
        .unwrap_or_default()
}

/// Waits until a queue holds so many messages, and takes them all.
pub(crate) async fn take(amqp: &Amqp, queue: &str, count: usize) -> Vec<Message> {
    eventually(DEADLINE, &format!("{queue} holds {count}"), || async {
        match amqp.depth(queue).await {
            Some(depth) if depth as usize >= count => Ok(()),
            depth => Err(format!("{depth:?}")),
        }
    })
    .await;
    let all = amqp.drain(queue).await;
    assert_eq!(all.len(), count, "{queue} holds more than {count}");
    all
}

pub(crate) fn id(id: &str) -> BasicProperties {
    BasicProperties::default().with_message_id(ShortString::from(id))
}

pub(crate) fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// A policy file with this text.
pub(crate) fn policy(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}
