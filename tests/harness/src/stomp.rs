//! A publisher that speaks STOMP 1.2, on a node with the plugin `rabbitmq_stomp`. Frames are written by hand, so that a message may contain
//! anything.

use crate::Vhost;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

const DEADLINE: Duration = Duration::from_secs(60);
/// How many messages are sent before the broker has answered.
const AT_ONCE: usize = 20;

/// A message of STOMP.
#[derive(Clone, Debug, Default)]
pub struct StompMessage {
    body: Vec<u8>,
    headers: Vec<(String, String)>,
}

impl StompMessage {
    /// A message with this body.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            headers: Vec::new(),
        }
    }

    /// Adds a header. Of those with the same name, the first counts.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.into(), value.into()));
        self
    }
}

/// A connection.
#[derive(Debug)]
pub struct Stomp {
    stream: BufReader<TcpStream>,
    published: u64,
}

impl Stomp {
    /// Connects to a vhost of a node with the plugin, as the user of its URL.
    ///
    /// # Panics
    /// If the broker does not let us in.
    pub async fn connect(vhost: &Vhost) -> Self {
        let url = Url::parse(vhost.url()).expect("a vhost has a URL");
        let stream = TcpStream::connect(vhost.broker().stomp()).await;
        let mut connection = Self {
            stream: BufReader::new(stream.expect("the port is open")),
            published: 0,
        };
        let password = url.password().unwrap_or_default();
        let headers = [
            ("accept-version", "1.2"),
            ("host", vhost.name()),
            ("login", url.username()),
            ("passcode", password),
        ];
        connection.send("CONNECT", &headers, b"").await;
        let answer = connection.next().await.expect("the broker answers");
        assert!(answer.starts_with("CONNECTED"), "refused: {answer}");
        connection
    }

    /// Publishes to a destination, such as `/amq/queue/orders` or `/exchange/shop/key`, and waits until the broker has taken all messages.
    ///
    /// # Panics
    /// If it does not take one.
    pub async fn publish_all(&mut self, destination: &str, messages: &[StompMessage]) {
        let published = self.try_publish_all(destination, messages).await;
        published.unwrap_or_else(|says| panic!("{says}"));
    }

    /// As [`publish_all`](Self::publish_all), with what the broker says if it does not take one. Publish no more after that.
    pub async fn try_publish_all(
        &mut self,
        destination: &str,
        messages: &[StompMessage],
    ) -> Result<(), String> {
        for some in messages.chunks(AT_ONCE) {
            for message in some {
                let receipt = self.published.to_string();
                self.published += 1;
                let length = message.body.len().to_string();
                let mut headers = vec![
                    ("destination", destination),
                    ("receipt", &receipt),
                    ("content-length", &length),
                ];
                let own = message.headers.iter();
                headers.extend(own.map(|(name, value)| (name.as_str(), value.as_str())));
                self.send("SEND", &headers, &message.body).await;
            }
            for _ in some {
                let answer = self.next().await?;
                if !answer.starts_with("RECEIPT") {
                    return Err(answer);
                }
            }
        }
        Ok(())
    }

    async fn send(&mut self, command: &str, headers: &[(&str, &str)], body: &[u8]) {
        let mut frame = format!("{command}\n");
        for (name, value) in headers {
            // The headers of CONNECT are not escaped, and need not be.
            frame += &format!("{}:{}\n", escaped(name), escaped(value));
        }
        frame.push('\n');
        let bytes = [frame.as_bytes(), body, &[0]].concat();
        // Who has closed the connection says why in what is read next.
        let _ = self.stream.write_all(&bytes).await;
    }

    /// The next frame. Those that we read have no zero in their body.
    async fn next(&mut self) -> Result<String, String> {
        let mut frame = Vec::new();
        let read = timeout(DEADLINE, self.stream.read_until(0, &mut frame)).await;
        match read.expect("the broker answers") {
            Ok(1..) => Ok(String::from_utf8_lossy(&frame).trim().to_owned()),
            Ok(0) => Err("the broker ended the connection".into()),
            Err(error) => Err(format!("the broker ended the connection: {error}")),
        }
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('\\', "\\\\").replace('\r', "\\r");
    text.replace('\n', "\\n").replace(':', "\\c")
}
