//! A publisher that speaks AMQP 1.0, which RabbitMQ 4.0 and later serve on the AMQP port: it can publish what no AMQP 0-9-1 client can.
//!
//! It has only what a test needs to publish: SASL PLAIN, one session, a link at a time, and the broker's answer. Frames are written by
//! hand, so that a message may contain anything.

mod message;
mod value;

pub use message::{Body10, Message10, Property10};
pub use value::Value10;

use crate::Vhost;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use url::Url;

const DEADLINE: Duration = Duration::from_secs(60);
/// Larger bodies would need several frames.
const FRAME_MAX: u32 = 131_072;

/// How many messages are sent before the broker has answered: less than the credit that it grants.
const AT_ONCE: usize = 50;

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

/// A connection with one session.
#[derive(Debug)]
pub struct Amqp10 {
    stream: TcpStream,
    published: u32,
    links: u32,
    /// How many messages may be sent on the link, and how many were.
    credit: u32,
    delivered: u32,
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
            links: 0,
            credit: 0,
            delivered: 0,
        };
        connection.header(3).await;
        connection.expect(1, MECHANISMS).await;
        let password = url.password().unwrap_or_default();
        let plain = format!("\0{}\0{password}", url.username());
        let plain = sized(0xa0, 0xb0, plain.as_bytes());
        connection
            .send(1, INIT, &[sized(0xa3, 0xb3, b"PLAIN"), plain], &[])
            .await;
        let outcome = connection.expect(1, OUTCOME).await;
        assert!(outcome.contains(&0), "the user is refused: {outcome:?}");
        connection.header(0).await;
        let hostname = string(&format!("vhost:{}", vhost.name()));
        let open = [string("harness"), hostname, uint(FRAME_MAX)];
        connection.send(0, OPEN, &open, &[]).await;
        connection.expect(0, OPEN).await;
        let window = uint(u32::from(u16::MAX));
        let begin = [NULL.to_vec(), uint(0), window.clone(), window];
        connection.send(0, BEGIN, &begin, &[]).await;
        connection.expect(0, BEGIN).await;
        connection
    }

    /// Publishes to an address, such as `/queues/orders` or `/exchanges/shop/key`, and waits until the broker has accepted the message.
    ///
    /// # Panics
    /// If it does not accept it.
    pub async fn publish(&mut self, address: &str, message: &Message10) {
        let published = self.try_publish(address, message).await;
        published.unwrap_or_else(|refused| panic!("{refused}"));
    }

    /// As [`publish`](Self::publish), with what the broker says if it does not accept the message. Publish no more if it ended the session.
    pub async fn try_publish(&mut self, address: &str, message: &Message10) -> Result<(), Refused> {
        self.try_publish_all(address, std::slice::from_ref(message))
            .await
    }

    /// As [`try_publish`](Self::try_publish), many messages, some of them at once.
    pub async fn try_publish_all(
        &mut self,
        address: &str,
        messages: &[Message10],
    ) -> Result<(), Refused> {
        self.attach(address).await?;
        for some in messages.chunks(AT_ONCE) {
            while self.credit < u32::try_from(some.len()).unwrap_or(u32::MAX) {
                let flow = self.next(0, FLOW).await?;
                self.take_credit(&flow);
            }
            for message in some {
                let number = self.published;
                self.published += 1;
                self.credit -= 1;
                self.delivered += 1;
                let tag = sized(0xa0, 0xb0, &number.to_be_bytes());
                let transfer = [uint(0), uint(number), tag, uint(0), FALSE.to_vec()];
                self.send(0, TRANSFER, &transfer, &message.encoded()).await;
            }
            self.are_accepted(some.len()).await?;
        }
        self.send(0, DETACH, &[uint(0), TRUE.to_vec()], &[]).await;
        self.next(0, DETACH).await?;
        Ok(())
    }

    async fn attach(&mut self, address: &str) -> Result<(), Refused> {
        let number = self.links;
        self.links += 1;
        (self.credit, self.delivered) = (0, 0);
        let null = || NULL.to_vec();
        let attach = [
            string(&format!("link {number}")),
            uint(0),        // handle
            FALSE.to_vec(), // we send
            vec![0x50, 0],  // unsettled
            vec![0x50, 0],
            described(0x28, list(&[])),
            described(0x29, list(&[string(address)])),
            null(),
            null(),
            uint(0), // initial delivery count
        ];
        self.send(0, ATTACH, &attach, &[]).await;
        self.next(0, ATTACH).await?;
        Ok(())
    }

    /// Waits until so many messages are accepted.
    async fn are_accepted(&mut self, count: usize) -> Result<(), Refused> {
        let mut open = u32::try_from(count).expect("they are few");
        while open > 0 {
            let answer = self.next(0, DISPOSITION).await?;
            let fields = fields(&answer);
            let first = number(fields.get(1)).expect("it says which");
            let last = number(fields.get(2)).unwrap_or(first);
            let state = fields.get(4).copied().unwrap_or_default();
            if !state.starts_with(&[0, 0x53, ACCEPTED]) {
                let says = String::from_utf8_lossy(state).into_owned();
                return Err(Refused::Message(says));
            }
            open -= last - first + 1;
        }
        Ok(())
    }

    /// What a flow of our link leaves us to send.
    fn take_credit(&mut self, flow: &[u8]) {
        let fields = fields(flow);
        if let Some(credit) = number(fields.get(6)) {
            let seen = number(fields.get(5)).unwrap_or_default();
            self.credit = seen + credit - self.delivered;
        }
    }

    async fn header(&mut self, protocol: u8) {
        let sent = [b'A', b'M', b'Q', b'P', protocol, 1, 0, 0];
        self.stream.write_all(&sent).await.expect("it reads");
        let mut answer = [0; 8];
        let read = timeout(DEADLINE, self.stream.read_exact(&mut answer)).await;
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

    async fn expect(&mut self, kind: u8, code: u8) -> Vec<u8> {
        let answer = self.next(kind, code).await;
        answer.unwrap_or_else(|refused| panic!("{refused}"))
    }

    /// The body of the next frame of this kind. Of others, only credit matters.
    async fn next(&mut self, kind: u8, code: u8) -> Result<Vec<u8>, Refused> {
        loop {
            let body = timeout(DEADLINE, self.frame(kind)).await;
            let body = body.unwrap_or_else(|_| panic!("no answer 0x{code:x}"));
            let Some(body) = body else {
                return Err(Refused::Session("the connection is gone".into()));
            };
            let says = || String::from_utf8_lossy(&body).into_owned();
            match body.get(2) {
                Some(is) if *is == code => return Ok(body),
                Some(&(END | CLOSE)) => return Err(Refused::Session(says())),
                Some(&DETACH) => return Err(Refused::Link(says())),
                Some(&FLOW) => self.take_credit(&body),
                _ => {}
            }
        }
    }

    /// The body of the next frame, `None` when there are no more.
    async fn frame(&mut self, kind: u8) -> Option<Vec<u8>> {
        let mut head = [0; 8];
        self.stream.read_exact(&mut head).await.ok()?;
        let [a, b, c, d, offset, is, ..] = head;
        assert_eq!(is, kind, "a frame of another kind");
        let size = u32::from_be_bytes([a, b, c, d]) as usize;
        let mut rest = vec![0; size - 8];
        self.stream.read_exact(&mut rest).await.ok()?;
        Some(rest.split_off(usize::from(offset) * 4 - 8))
    }
}

/// Why a message was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// This message was not, and others may be.
    Message(String),
    /// The link ended.
    Link(String),
    /// The session or the connection ended.
    Session(String),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Message(says) => write!(f, "the broker did not accept the message: {says}"),
            Self::Link(says) => write!(f, "the broker ended the link: {says}"),
            Self::Session(says) => write!(f, "the broker ended the session: {says}"),
        }
    }
}

/// The encoded fields of a performative.
fn fields(body: &[u8]) -> Vec<&[u8]> {
    // Behind the descriptor, 0x00 0x53 CODE.
    let mut rest = match body.get(3) {
        Some(0xc0) => &body[6..],
        Some(0xd0) => &body[12..],
        _ => &[],
    };
    let mut all = Vec::new();
    while !rest.is_empty() {
        let (one, more) = rest.split_at(width(rest).min(rest.len()));
        all.push(one);
        rest = more;
    }
    all
}

/// How many bytes a value has, with its constructor.
fn width(bytes: &[u8]) -> usize {
    let long = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four")) as usize;
    match bytes[0] {
        0 => {
            let descriptor = 1 + width(&bytes[1..]);
            descriptor + width(&bytes[descriptor..])
        }
        code => match code >> 4 {
            0x4 => 1,
            0x5 => 2,
            0x6 => 3,
            0x7 => 5,
            0x8 => 9,
            0x9 => 17,
            0xa | 0xc | 0xe => 2 + usize::from(bytes[1]),
            _ => 5 + long(1),
        },
    }
}

/// A `uint`.
fn number(value: Option<&&[u8]>) -> Option<u32> {
    match value? {
        [0x43] => Some(0),
        [0x52, small] => Some(u32::from(*small)),
        [0x70, bytes @ ..] => Some(u32::from_be_bytes(bytes.try_into().ok()?)),
        _ => None,
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
