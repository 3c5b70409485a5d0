//! A connection with one session, which lives for seconds: it reads a queue and publishes to another.
//!
//! It is our own because messages must pass unchanged, whatever is in them: the clients there are decode each section into types of their
//! own, and refuse some that RabbitMQ accepts.

use std::{collections::VecDeque, fmt, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::timeout,
};

use super::value::{
    FALSE, Reader, TRUE, Value, binary, boolean, described, list, null, string, symbol, ubyte, uint,
};

const MECHANISMS: u64 = 0x40;
const INIT: u8 = 0x41;
const OUTCOME: u64 = 0x44;
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
const RELEASED: u8 = 0x26;
const ERROR: u64 = 0x1d;
const SOURCE: u8 = 0x28;
const TARGET: u8 = 0x29;

/// The kinds of frames.
const AMQP: u8 = 0;
const SASL: u8 = 1;

/// The largest frame that we take, and write if the broker takes it.
const FRAME_MAX: u32 = 131_072;
/// What a frame needs besides a part of the message.
const OVERHEAD: usize = 512;
/// How often somebody who waits for an unreadable message checks whether to go on.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How many frames the broker may send before we have to tell it to go on.
const WINDOW: u32 = i32::MAX.unsigned_abs();

/// How to log in.
pub(crate) enum Sasl {
    Plain { user: String, secret: String },
    External,
}

/// Why it ended.
#[derive(Debug)]
pub(crate) enum Failure {
    Io(std::io::Error),
    /// The broker's own words.
    Refused(String),
    /// What cannot be understood.
    Garbled(&'static str),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(why) => write!(f, "{why}"),
            Self::Refused(said) => f.write_str(said),
            Self::Garbled(what) => write!(f, "the broker's answer cannot be read: {what}"),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(why: std::io::Error) -> Self {
        Self::Io(why)
    }
}

type Result<T> = std::result::Result<T, Failure>;

const CUT_OFF: Failure = Failure::Garbled("the session was given up in the middle of a frame");

/// A message that the broker holds for us until it is settled.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) number: u32,
    pub(crate) payload: Vec<u8>,
}

/// A frame of the session: its performative, and what follows.
struct Frame {
    code: u64,
    fields: Vec<Value>,
    payload: Vec<u8>,
}

impl Frame {
    fn field(&self, number: usize) -> &Value {
        self.fields.get(number).unwrap_or(&Value::Null)
    }

    fn number(&self, number: usize) -> Option<u32> {
        self.field(number)
            .number()
            .and_then(|value| u32::try_from(value).ok())
    }
}

/// A link of ours: its handle is its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link(u32);

pub(crate) struct Session<S> {
    stream: S,
    frame_max: usize,
    /// The transfers that came and were not asked for yet.
    came: VecDeque<Delivery>,
    /// One whose parts have not all come.
    partial: Option<Delivery>,
    /// The number of the broker's next frame with a part of a message. RabbitMQ 4.0 begins with the highest.
    next_incoming: u32,
    /// How many frames with parts of messages we may still send.
    room: u32,
    /// How many frames with parts of messages we have sent, and how many messages.
    sent: u32,
    published: u32,
    /// The delivery count of each link: how many messages its sender has sent, from a number of its choice on.
    counts: Vec<u32>,
    /// The largest message that the broker takes on a link for publishing, if it told.
    largest: Option<u64>,
    /// Whether a frame or a message is on its way. Whoever gave up waiting for it has left a part of it behind, and the broker would take what follows
    /// for the rest.
    is_mid_frame: bool,
    is_mid_message: bool,
    /// The first byte of the next frame, if it has come.
    first: Option<u8>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Session<S> {
    /// Logs in, opens the virtual host, and begins.
    pub(crate) async fn begin(
        mut stream: S,
        login: &Sasl,
        host: &str,
        vhost: &str,
    ) -> Result<Self> {
        greet(&mut stream, 3).await?;
        let mut session = Self {
            stream,
            frame_max: 512,
            came: VecDeque::new(),
            partial: None,
            next_incoming: 0,
            room: 0,
            sent: 0,
            published: 0,
            counts: Vec::new(),
            largest: None,
            is_mid_frame: false,
            is_mid_message: false,
            first: None,
        };
        session.log_in(login, host).await?;
        greet(&mut session.stream, 0).await?;
        let name = string(&format!("retryrmq-{:016x}", fastrand::u64(..)));
        let vhost = string(&format!("vhost:{vhost}"));
        session
            .send(OPEN, &[name, vhost, uint(FRAME_MAX)], &[])
            .await?;
        let opened = session.answer(OPEN).await?;
        let largest = opened.number(2).unwrap_or(FRAME_MAX).min(FRAME_MAX);
        session.frame_max = usize::try_from(largest).unwrap_or(512).max(512);
        let begin = [null(), uint(0), uint(WINDOW), uint(WINDOW), uint(7)];
        session.send(BEGIN, &begin, &[]).await?;
        let begin_reply = session.answer(BEGIN).await?;
        session.next_incoming = begin_reply.number(1).unwrap_or(0);
        session.room = begin_reply.number(2).unwrap_or(0);
        Ok(session)
    }

    async fn log_in(&mut self, login: &Sasl, host: &str) -> Result<()> {
        let offered = self.frame(SASL).await?;
        if offered.code != MECHANISMS {
            return Err(Failure::Garbled("no list of SASL mechanisms"));
        }
        let (mechanism, response) = match login {
            Sasl::Plain { user, secret } => {
                ("PLAIN", binary(format!("\0{user}\0{secret}").as_bytes()))
            }
            Sasl::External => ("EXTERNAL", binary(b"")),
        };
        let init = described(INIT, &list(&[symbol(mechanism), response, string(host)]));
        self.write(SASL, &init).await?;
        let outcome = self.frame(SASL).await?;
        match (outcome.code, outcome.number(0)) {
            (OUTCOME, Some(0)) => Ok(()),
            _ => Err(Failure::Refused(format!(
                "the login by {mechanism} is refused"
            ))),
        }
    }

    /// Reads from a queue. Nothing comes before [`drain`](Self::drain) or [`wait`](Self::wait).
    pub(crate) async fn read_from(&mut self, queue: &str) -> Result<Link> {
        let source = described(SOURCE, &list(&[string(&address(queue))]));
        self.attach(true, source, described(TARGET, &list(&[])))
            .await
    }

    /// Publishes to a queue.
    pub(crate) async fn publish_to(&mut self, queue: &str) -> Result<Link> {
        let target = described(TARGET, &list(&[string(&address(queue))]));
        let link = self
            .attach(false, described(SOURCE, &list(&[])), target)
            .await?;
        // The broker grants credit, and only then takes a message.
        self.answer(FLOW).await?;
        Ok(link)
    }

    async fn attach(&mut self, receives: bool, source: Vec<u8>, target: Vec<u8>) -> Result<Link> {
        let link = Link(u32::try_from(self.counts.len()).unwrap_or(u32::MAX));
        let mut attach = vec![
            string(&format!("link-{}", link.0)),
            uint(link.0),
            boolean(receives),
            ubyte(0), // each message is settled by its receiver
            ubyte(0),
            source,
            target,
        ];
        if !receives {
            attach.extend([null(), null(), uint(0)]);
        }
        self.send(ATTACH, &attach, &[]).await?;
        let answer = self.answer(ATTACH).await?;
        // A refused link is attached without an address, and then detached with the reason.
        let place = if receives { 5 } else { 6 };
        if *answer.field(place) == Value::Null {
            self.answer(DETACH).await?;
            return Err(Failure::Refused("the broker refused the link".to_owned()));
        }
        self.counts.push(answer.number(9).unwrap_or(0));
        if !receives {
            // 0 means no limit.
            self.largest = answer.field(10).number().filter(|largest| *largest > 0);
        }
        Ok(link)
    }

    /// The largest message that can be published, in bytes, if there is a limit.
    pub(crate) fn largest(&self) -> Option<u64> {
        self.largest
    }

    /// Grants credit on a link for messages that we receive.
    async fn grant(&mut self, link: Link, credit: u32, drain: bool, echo: bool) -> Result<()> {
        let flow = [
            uint(self.next_incoming),
            uint(WINDOW),
            uint(self.sent),
            uint(WINDOW),
            uint(link.0),
            uint(self.count(link)),
            uint(credit),
            null(),
            boolean(drain),
            boolean(echo),
        ];
        self.send(FLOW, &flow, &[]).await
    }

    fn count(&self, link: Link) -> u32 {
        self.counts.get(link.0 as usize).copied().unwrap_or(0)
    }

    /// Asks for at most this many messages that are ready now, and passes each on when it has come. Returns how many came.
    pub(crate) async fn drain(
        &mut self,
        link: Link,
        most: u32,
        mut each: impl FnMut(Delivery),
    ) -> Result<u32> {
        // When the credit is used up, whether by messages or because there are no more of them.
        let at_the_end = self.count(link).wrapping_add(most);
        self.grant(link, most, true, false).await?;
        let mut came = 0;
        while came < most {
            let frame = self.frame(AMQP).await?;
            let is_drained = frame.code == u64::from(FLOW)
                && frame.number(4) == Some(link.0)
                && frame.number(5) == Some(at_the_end);
            self.note(frame)?;
            for delivery in self.came.drain(..) {
                came += 1;
                each(delivery);
            }
            if is_drained {
                break;
            }
        }
        if let Some(count) = self.counts.get_mut(link.0 as usize) {
            *count = at_the_end;
        }
        Ok(came)
    }

    /// Waits until a message is ready, as long as it goes on, and passes that on. Returns how many came.
    pub(crate) async fn wait(
        &mut self,
        link: Link,
        goes_on: impl Fn() -> bool,
        mut each: impl FnMut(Delivery),
    ) -> Result<u32> {
        self.grant(link, 1, false, false).await?;
        while self.came.is_empty() && goes_on() {
            if let Ok(begin_reply) = timeout(CHECK_INTERVAL, self.begin_frame()).await {
                begin_reply?;
                let frame = self.frame(AMQP).await?;
                self.note(frame)?;
            }
        }
        let Some(delivery) = self.came.pop_front() else {
            // It may come in this moment, and the credit for it ends with that.
            return self.drain(link, 1, each).await;
        };
        if let Some(count) = self.counts.get_mut(link.0 as usize) {
            *count = count.wrapping_add(1);
        }
        each(delivery);
        Ok(1)
    }

    /// Publishes a message, and waits until the broker has stored it; whether it has.
    pub(crate) async fn publish(&mut self, link: Link, payload: &[u8]) -> Result<bool> {
        if std::mem::replace(&mut self.is_mid_message, true) {
            return Err(CUT_OFF);
        }
        let stored = self.publish_whole(link, payload).await;
        self.is_mid_message = false;
        stored
    }

    async fn publish_whole(&mut self, link: Link, payload: &[u8]) -> Result<bool> {
        let number = self.published;
        self.published = self.published.wrapping_add(1);
        let size = self.frame_max - OVERHEAD.min(self.frame_max / 2);
        let parts: Vec<_> = payload.chunks(size).collect();
        let last = parts.len().saturating_sub(1);
        for (place, part) in parts.into_iter().enumerate() {
            while self.room == 0 {
                let frame = self.frame(AMQP).await?;
                self.note(frame)?;
            }
            let transfer = [
                uint(link.0),
                uint(number),
                binary(&number.to_be_bytes()),
                uint(0),
                FALSE.to_vec(),
                boolean(place < last),
            ];
            self.send(TRANSFER, &transfer, part).await?;
            self.room -= 1;
            self.sent = self.sent.wrapping_add(1);
        }
        loop {
            let frame = self.frame(AMQP).await?;
            if frame.code != u64::from(DISPOSITION) {
                self.note(frame)?;
                continue;
            }
            let first = frame.number(1).unwrap_or(number);
            let is_it = (first..=frame.number(2).unwrap_or(first)).contains(&number);
            if is_it {
                return Ok(frame.field(4).code() == Some(u64::from(ACCEPTED)));
            }
        }
    }

    /// Tells the broker that it may forget a message.
    pub(crate) async fn accept(&mut self, number: u32) -> Result<()> {
        self.settle(number, number, ACCEPTED).await
    }

    /// Gives back all messages from one to another that were not accepted. Where the broker tells what was given back from what was lost, that
    /// counts as no delivery.
    pub(crate) async fn release(&mut self, first: u32, last: u32) -> Result<()> {
        self.settle(first, last, RELEASED).await
    }

    async fn settle(&mut self, first: u32, last: u32, outcome: u8) -> Result<()> {
        let disposition = [
            TRUE.to_vec(), // as the receiver
            uint(first),
            uint(last),
            TRUE.to_vec(),
            described(outcome, &list(&[])),
        ];
        self.send(DISPOSITION, &disposition, &[]).await
    }

    /// Waits until the queue has heard what was settled before. RabbitMQ holds settlements back while many others are on their way to a
    /// quorum queue, and forgets them when the session ends.
    pub(crate) async fn sync(&mut self, link: Link) -> Result<()> {
        // The first answer comes behind those on their way. What was held back goes with them, and the second one comes behind that.
        for _ in 0..2 {
            self.grant(link, 0, false, true).await?;
            while self.answer(FLOW).await?.number(4) != Some(link.0) {}
        }
        Ok(())
    }

    /// Ends. What was not settled is back in its queue, in its place.
    pub(crate) async fn close(mut self) -> Result<()> {
        self.send(END, &[], &[]).await?;
        self.answer(END).await?;
        self.send(CLOSE, &[], &[]).await?;
        self.answer(CLOSE).await?;
        Ok(())
    }

    async fn send(&mut self, code: u8, fields: &[Vec<u8>], payload: &[u8]) -> Result<()> {
        let mut body = described(code, &list(fields));
        body.extend_from_slice(payload);
        self.write(AMQP, &body).await
    }

    async fn write(&mut self, kind: u8, body: &[u8]) -> Result<()> {
        let size = u32::try_from(body.len() + 8).map_err(|_| Failure::Garbled("too large"))?;
        let mut frame = size.to_be_bytes().to_vec();
        frame.extend([2, kind, 0, 0]);
        frame.extend_from_slice(body);
        if std::mem::replace(&mut self.is_mid_frame, true) {
            return Err(CUT_OFF);
        }
        self.stream.write_all(&frame).await?;
        self.stream.flush().await?;
        self.is_mid_frame = false;
        Ok(())
    }

    /// The next frame with this performative. What comes before is noted.
    async fn answer(&mut self, code: u8) -> Result<Frame> {
        loop {
            let frame = self.frame(AMQP).await?;
            if frame.code == u64::from(code) && !has_failed(&frame) {
                if code == FLOW {
                    self.note_window(&frame);
                }
                return Ok(frame);
            }
            self.note(frame)?;
        }
    }

    /// Takes note of a frame that nobody waits for.
    fn note(&mut self, frame: Frame) -> Result<()> {
        if has_failed(&frame) {
            return Err(Failure::Refused(reason(&frame)));
        }
        match u8::try_from(frame.code) {
            Ok(TRANSFER) => self.note_transfer(frame)?,
            Ok(FLOW) => self.note_window(&frame),
            Ok(DETACH | END | CLOSE) => {
                return Err(Failure::Refused("the broker ended the session".to_owned()));
            }
            _ => {}
        }
        Ok(())
    }

    fn note_window(&mut self, frame: &Frame) {
        let (next, window) = (frame.number(0).unwrap_or(0), frame.number(1).unwrap_or(0));
        // What is on its way is not counted by the broker yet.
        let until = u64::from(next) + u64::from(window);
        let room = until.saturating_sub(u64::from(self.sent));
        self.room = u32::try_from(room).unwrap_or(u32::MAX);
    }

    fn note_transfer(&mut self, frame: Frame) -> Result<()> {
        self.next_incoming = self.next_incoming.wrapping_add(1);
        let mut delivery = match self.partial.take() {
            Some(partial) => partial,
            None => Delivery {
                number: frame.number(1).ok_or(Failure::Garbled("no delivery-id"))?,
                payload: Vec::new(),
            },
        };
        if frame.field(9).is_true() {
            return Ok(()); // aborted
        }
        let has_more = frame.field(5).is_true();
        delivery.payload.extend(frame.payload);
        if has_more {
            self.partial = Some(delivery);
        } else {
            self.came.push_back(delivery);
        }
        Ok(())
    }

    /// Waits for the first byte of a frame. Whoever gives up before it leaves nothing behind.
    async fn begin_frame(&mut self) -> Result<u8> {
        if let Some(first) = self.first {
            return Ok(first);
        }
        let mut first = [0];
        if self.stream.read(&mut first).await? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        self.first = Some(first[0]);
        Ok(first[0])
    }

    async fn frame(&mut self, kind: u8) -> Result<Frame> {
        loop {
            if self.is_mid_frame {
                return Err(CUT_OFF);
            }
            let mut head = [self.begin_frame().await?; 8];
            self.is_mid_frame = true;
            self.first = None;
            self.stream.read_exact(&mut head[1..]).await?;
            let [a, b, c, d, offset, is, ..] = head;
            let size = u32::from_be_bytes([a, b, c, d]);
            let skipped = u32::from(offset) * 4;
            if is != kind || size > FRAME_MAX || skipped < 8 || size < skipped {
                return Err(Failure::Garbled("a frame that was not asked for"));
            }
            let mut body = vec![0; size as usize - 8];
            self.stream.read_exact(&mut body).await?;
            self.is_mid_frame = false;
            body.drain(..skipped as usize - 8);
            if body.is_empty() {
                continue; // a heartbeat
            }
            return parse(&body).ok_or(Failure::Garbled("a frame without a performative"));
        }
    }
}

fn parse(body: &[u8]) -> Option<Frame> {
    let mut reader = Reader::new(body);
    let (performative, range) = reader.next()?;
    let code = performative.code()?;
    Some(Frame {
        code,
        fields: performative.fields(code)?,
        payload: body[range.end..].to_vec(),
    })
}

/// Where its error is, if it can have one.
fn error_of(frame: &Frame) -> Option<&Value> {
    let place = match u8::try_from(frame.code) {
        Ok(DETACH) => 2,
        Ok(END | CLOSE) => 0,
        _ => return None,
    };
    Some(frame.field(place)).filter(|error| **error != Value::Null)
}

fn has_failed(frame: &Frame) -> bool {
    error_of(frame).is_some()
}

/// The broker's words.
fn reason(frame: &Frame) -> String {
    let fields = error_of(frame)
        .cloned()
        .and_then(|error| error.fields(ERROR));
    let text = |place: usize| {
        let field = fields.as_ref().and_then(|fields| fields.get(place));
        let bytes = field.and_then(Value::bytes).unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    format!("{}: {}", text(0), text(1))
}

/// RabbitMQ's address of a queue.
fn address(queue: &str) -> String {
    let name = percent_encoding::utf8_percent_encode(queue, percent_encoding::NON_ALPHANUMERIC);
    format!("/queues/{name}")
}

async fn greet<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut S, protocol: u8) -> Result<()> {
    let sent = [b'A', b'M', b'Q', b'P', protocol, 1, 0, 0];
    stream.write_all(&sent).await?;
    stream.flush().await?;
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).await?;
    if answer == sent {
        Ok(())
    } else {
        Err(Failure::Garbled("it does not speak AMQP 1.0"))
    }
}
