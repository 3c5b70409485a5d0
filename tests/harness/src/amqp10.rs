//! A publisher that speaks AMQP 1.0, which RabbitMQ 4.0 and later serve on the AMQP port: it can publish what no AMQP 0-9-1 client can.
//!
//! It has only what a test needs to publish: SASL PLAIN, one session, a link for each message, and the broker's answer. Frames are written by
//! hand, so that a message may contain anything.

use crate::Vhost;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

const PATIENCE: Duration = Duration::from_secs(60);
/// Larger bodies would need several frames.
const FRAME_MAX: u32 = 131_072;

const MECHANISMS: u8 = 0x40;
const INIT: u8 = 0x41;
const OUTCOME: u8 = 0x44;
const OPEN: u8 = 0x10;
const BEGIN: u8 = 0x11;
const ATTACH: u8 = 0x12;
const FLOW: u8 = 0x13;
const TRANSFER: u8 = 0x14;
const DISPOSITION: u8 = 0x15;
const DETACH: u8 = 0x16;
const END: u8 = 0x17;
const CLOSE: u8 = 0x18;
const ACCEPTED: u8 = 0x24;

/// A message in the format of AMQP 1.0: durable, with one data section.
#[derive(Clone, Debug, Default)]
pub struct Message10 {
    body: Vec<u8>,
    id: Option<Vec<u8>>,
    reply_to: Option<Vec<u8>>,
    content_type: Option<Vec<u8>>,
    application: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Message10 {
    /// A message with this body.
    pub fn new(body: impl Into<Vec<u8>>) -> Self {
        Self {
            body: body.into(),
            ..Self::default()
        }
    }

    /// Sets the property `message-id`.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(string(id));
        self
    }

    /// Sets the property `reply-to`.
    #[must_use]
    pub fn reply_to(mut self, address: &str) -> Self {
        self.reply_to = Some(string(address));
        self
    }

    /// Sets the property `content-type`.
    #[must_use]
    pub fn content_type(mut self, kind: &str) -> Self {
        self.content_type = Some(sized(0xa3, 0xb3, kind.as_bytes()));
        self
    }

    /// Adds an application property; the value is encoded, as [`string`], [`uuid`] and [`char()`] do it.
    #[must_use]
    pub fn property(mut self, name: &str, value: Vec<u8>) -> Self {
        self.application.push((string(name), value));
        self
    }

    /// The sections: header, properties, application properties, data.
    fn encoded(&self) -> Vec<u8> {
        let mut all = described(0x70, list(&[TRUE.to_vec()]));
        let or_null = |value: &Option<Vec<u8>>| value.clone().unwrap_or_else(|| NULL.to_vec());
        let null = || NULL.to_vec();
        all.extend(described(
            0x73,
            list(&[
                or_null(&self.id),
                null(), // user-id
                null(), // to
                null(), // subject
                or_null(&self.reply_to),
                null(), // correlation-id
                or_null(&self.content_type),
            ]),
        ));
        if !self.application.is_empty() {
            let pairs = self.application.iter().cloned();
            let flat: Vec<_> = pairs.flat_map(|(name, value)| [name, value]).collect();
            all.extend(described(0x74, compound(0xd1, &flat)));
        }
        all.extend(described(0x75, sized(0xa0, 0xb0, &self.body)));
        all
    }
}

/// A connection with one session.
#[derive(Debug)]
pub struct Amqp10 {
    stream: TcpStream,
    published: u32,
}

impl Amqp10 {
    /// Connects to a vhost, as the user of its URL.
    ///
    /// # Panics
    /// If the broker does not let us in.
    pub async fn connect(vhost: &Vhost) -> Self {
        let url = Url::parse(vhost.url()).expect("a vhost has a URL");
        let address = (
            url.host_str().expect("it has a host"),
            url.port().unwrap_or(5672),
        );
        let stream = TcpStream::connect(address).await.expect("the port is open");
        let mut connection = Self {
            stream,
            published: 0,
        };
        connection.header(3).await;
        connection.next(1, MECHANISMS).await;
        let password = url.password().unwrap_or_default();
        let plain = format!("\0{}\0{password}", url.username());
        let plain = sized(0xa0, 0xb0, plain.as_bytes());
        connection
            .send(1, INIT, &[sized(0xa3, 0xb3, b"PLAIN"), plain], &[])
            .await;
        let outcome = connection.next(1, OUTCOME).await;
        assert!(outcome.contains(&0), "the user is refused: {outcome:?}");
        connection.header(0).await;
        let hostname = string(&format!("vhost:{}", vhost.name()));
        let open = [string("harness"), hostname, uint(FRAME_MAX)];
        connection.send(0, OPEN, &open, &[]).await;
        connection.next(0, OPEN).await;
        let window = uint(u32::from(u16::MAX));
        let begin = [NULL.to_vec(), uint(0), window.clone(), window];
        connection.send(0, BEGIN, &begin, &[]).await;
        connection.next(0, BEGIN).await;
        connection
    }

    /// Publishes to an address, such as `/queues/orders` or `/exchanges/shop/key`, and waits until the broker has accepted the message.
    ///
    /// # Panics
    /// If it does not accept it.
    pub async fn publish(&mut self, address: &str, message: &Message10) {
        let number = self.published;
        self.published += 1;
        let source = described(0x28, list(&[]));
        let target = described(0x29, list(&[string(address)]));
        let null = || NULL.to_vec();
        let attach = [
            string(&format!("link {number}")),
            uint(0),        // handle
            FALSE.to_vec(), // we send
            vec![0x50, 0],  // unsettled
            vec![0x50, 0],
            source,
            target,
            null(),
            null(),
            uint(0), // initial delivery count
        ];
        self.send(0, ATTACH, &attach, &[]).await;
        self.next(0, FLOW).await;
        let tag = sized(0xa0, 0xb0, &number.to_be_bytes());
        let transfer = [uint(0), uint(number), tag, uint(0), FALSE.to_vec()];
        self.send(0, TRANSFER, &transfer, &message.encoded()).await;
        let answer = self.next(0, DISPOSITION).await;
        let accepted = [0, 0x53, ACCEPTED];
        assert!(
            answer.windows(3).any(|part| part == accepted),
            "the broker did not accept the message: {answer:x?}"
        );
        self.send(0, DETACH, &[uint(0), TRUE.to_vec()], &[]).await;
        self.next(0, DETACH).await;
    }

    async fn header(&mut self, protocol: u8) {
        let sent = [b'A', b'M', b'Q', b'P', protocol, 1, 0, 0];
        self.stream.write_all(&sent).await.expect("it reads");
        let mut answer = [0; 8];
        let read = timeout(PATIENCE, self.stream.read_exact(&mut answer)).await;
        read.expect("it answers").expect("it answers");
        assert_eq!(answer, sent, "the broker does not speak AMQP 1.0");
    }

    async fn send(&mut self, kind: u8, code: u8, fields: &[Vec<u8>], payload: &[u8]) {
        let mut body = described(code, list(fields));
        body.extend_from_slice(payload);
        let size = u32::try_from(body.len() + 8).expect("it fits a frame");
        assert!(size <= FRAME_MAX, "the message is too large for one frame");
        let mut frame = size.to_be_bytes().to_vec();
        frame.extend([2, kind, 0, 0]);
        frame.extend(body);
        self.stream.write_all(&frame).await.expect("it reads");
    }

    /// The body of the next frame of this kind; others are skipped.
    async fn next(&mut self, kind: u8, code: u8) -> Vec<u8> {
        loop {
            let body = timeout(PATIENCE, self.frame(kind)).await;
            let body = body.unwrap_or_else(|_| panic!("no answer 0x{code:x}"));
            match body.get(2) {
                Some(is) if *is == code => return body,
                Some(&(END | CLOSE)) => panic!(
                    "the broker ended the session: {}",
                    String::from_utf8_lossy(&body)
                ),
                Some(&DETACH) => panic!("the link ended: {}", String::from_utf8_lossy(&body)),
                _ => {}
            }
        }
    }

    async fn frame(&mut self, kind: u8) -> Vec<u8> {
        let mut head = [0; 8];
        let read = self.stream.read_exact(&mut head).await;
        read.expect("the broker keeps the connection");
        let [a, b, c, d, offset, is, ..] = head;
        assert_eq!(is, kind, "a frame of another kind");
        let size = u32::from_be_bytes([a, b, c, d]) as usize;
        let mut rest = vec![0; size - 8];
        let read = self.stream.read_exact(&mut rest).await;
        read.expect("the broker keeps the connection");
        rest.split_off(usize::from(offset) * 4 - 8)
    }
}

const NULL: &[u8] = &[0x40];
const TRUE: &[u8] = &[0x41];
const FALSE: &[u8] = &[0x42];

/// A string.
#[must_use]
pub fn string(text: &str) -> Vec<u8> {
    sized(0xa1, 0xb1, text.as_bytes())
}

/// A UUID, which AMQP 0-9-1 does not have.
#[must_use]
pub fn uuid(bytes: [u8; 16]) -> Vec<u8> {
    [&[0x98], &bytes[..]].concat()
}

/// A character, which AMQP 0-9-1 does not have.
#[must_use]
pub fn char(character: char) -> Vec<u8> {
    [&[0x73], &u32::from(character).to_be_bytes()[..]].concat()
}

/// A signed 64-bit integer.
#[must_use]
pub fn long(number: i64) -> Vec<u8> {
    [&[0x81], &number.to_be_bytes()[..]].concat()
}

fn uint(number: u32) -> Vec<u8> {
    [&[0x70], &number.to_be_bytes()[..]].concat()
}

fn described(code: u8, value: Vec<u8>) -> Vec<u8> {
    [vec![0, 0x53, code], value].concat()
}

fn list(items: &[Vec<u8>]) -> Vec<u8> {
    compound(0xd0, items)
}

fn compound(code: u8, items: &[Vec<u8>]) -> Vec<u8> {
    let all = items.concat();
    let length = |length: usize| u32::try_from(length).expect("it is small").to_be_bytes();
    let (size, count) = (length(all.len() + 4), length(items.len()));
    [&[code], &size[..], &count[..], &all[..]].concat()
}

fn sized(short: u8, long: u8, bytes: &[u8]) -> Vec<u8> {
    match u8::try_from(bytes.len()) {
        Ok(length) => [&[short, length], bytes].concat(),
        Err(_) => {
            let length = u32::try_from(bytes.len()).expect("it is small");
            [&[long], &length.to_be_bytes()[..], bytes].concat()
        }
    }
}
