//! The guard between the socket and lapin: nothing that a publisher sends may stop a consumer.
//!
//! RabbitMQ checks that a message's properties can be decoded. It does not check that its names are UTF-8, how deeply its tables are
//! nested, or that what it adds itself still fits the negotiated frame size. lapin's parser gives up the connection for a name that is not
//! UTF-8 and for a content header larger than the frame size. For some thousand nested tables it recurses until its thread overflows, which
//! aborts the process. The message is then redelivered and does it again. So every byte from the server first goes through
//! [`Sanitiser::read`], above TLS:
//!
//! ```text
//! socket ── TLS ──► Sanitiser::read ──► lapin
//!                     │ body and heartbeat frames: passed by length, never looked into
//!                     │ methods and content headers: mended in place once they are whole
//!                     └─► MendedLog: (channel, delivery tag) → what was wrong with this message
//! ```
//!
//! A repair keeps the length of every frame, with one exception: a content header larger than the frame size loses its largest headers
//! until it fits, because lapin cannot take it at all. A frame that is split over reads is collected first; that holds nothing up, because
//! lapin cannot use half a frame either. What is not AMQP (an HTTP answer, a TLS alert) passes unchanged, for lapin to refuse.

mod frame;
mod log;
mod method;
mod oversize;
mod properties;
mod table;
#[cfg(test)]
mod tests;
mod text;

pub(crate) use log::{RepairLog, Repaired};

use frame::{COLLECT_MAX, FRAME_END, HEAD, Head, METHOD, OVERHEAD};
use method::Event;
use std::{
    io,
    ops::Range,
    sync::Arc,
    task::{Poll, ready},
};

/// The buffer for a split frame shrinks to this after a large one.
const MOST_KEPT: usize = 64 << 10;

/// A stateful guard over the inbound bytes of one AMQP connection.
#[derive(Debug)]
pub(crate) struct Sanitiser {
    /// lapin refuses larger frames. The server can lower it when it tunes the connection.
    frame_max: usize,
    /// How much of the current body or heartbeat frame is left, including its end octet.
    passing: u64,
    /// The stream is not AMQP, or no longer; it is passed on unchanged.
    foreign: bool,
    /// A frame that was split over reads: collected here, then repaired, then passed on.
    split: Vec<u8>,
    /// How much of `split` was passed on, once it is complete.
    handed: Option<usize>,
    /// By channel, the delivery tag of the message whose content header comes next; 0 if nobody can ask for it.
    deliveries: Vec<u64>,
    log: Arc<RepairLog>,
}

impl Sanitiser {
    /// A guard for a new connection. lapin is set to `frame_max` bytes; 0 leaves the choice to the server.
    pub(crate) fn new(frame_max: u32) -> Self {
        Self {
            frame_max: frame::limit(frame_max, usize::MAX),
            passing: 0,
            foreign: false,
            split: Vec::new(),
            handed: None,
            deliveries: Vec::new(),
            log: Arc::default(),
        }
    }

    /// Where consumers of this connection look up what was repaired in a delivery.
    pub(crate) fn log(&self) -> &Arc<RepairLog> {
        &self.log
    }

    /// How many messages, and frames that belong to no message, were repaired so far.
    #[cfg_attr(
        not(test),
        expect(
            dead_code,
            reason = "no metric shows it yet; the log is what consumers use"
        )
    )]
    pub(crate) fn mended(&self) -> u64 {
        self.log.total()
    }

    /// One read by lapin: fills the front of `out` with bytes that are safe to parse, and returns how many.
    ///
    /// `source` is the socket, with the contract of a `poll_read`. It may be called several times, or not at all. It reads directly into
    /// `out`, where the bytes are repaired; only a split frame goes through a buffer. As from a socket, 0 means the end, `Pending` that
    /// `source` was pending, and an error is `source`'s own. A method or content header larger than 16 MiB is `InvalidData`: this is not a
    /// broker.
    pub(crate) fn read(
        &mut self,
        out: &mut [u8],
        mut source: impl FnMut(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if out.is_empty() {
            return Poll::Ready(Ok(0));
        }
        loop {
            if let Some(from) = self.handed {
                return Poll::Ready(Ok(self.hand_on(from, out)));
            }
            if self.split.is_empty() {
                let read = ready!(source(out))?.min(out.len());
                let safe = self.repair(&mut out[..read]);
                if safe > 0 || read == 0 {
                    return Poll::Ready(Ok(safe));
                }
                continue;
            }
            let missing = frame::missing(&self.split)?;
            if missing == 0 {
                let mut frame = std::mem::take(&mut self.split);
                let safe = self.repair(&mut frame);
                frame.truncate(safe);
                self.split = frame;
                self.handed = Some(0);
            } else if ready!(self.collect(missing, out, &mut source))? == 0 {
                // The stream ended within a frame. lapin cannot parse a part of a frame, so it is harmless.
                self.handed = Some(0);
            }
        }
    }

    fn hand_on(&mut self, from: usize, out: &mut [u8]) -> usize {
        let rest = &self.split[from..];
        let n = rest.len().min(out.len());
        out[..n].copy_from_slice(&rest[..n]);
        if n == rest.len() {
            self.handed = None;
            self.split.clear();
            self.split.shrink_to(MOST_KEPT);
        } else {
            self.handed = Some(from + n);
        }
        n
    }

    /// Reads the `missing` bytes of the split frame and not more, so that the following bytes go directly to lapin again. They come by way of
    /// `out`, so that no buffer of our own has to be filled with zeros before each read.
    fn collect(
        &mut self,
        missing: usize,
        out: &mut [u8],
        source: &mut impl FnMut(&mut [u8]) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let room = missing.min(out.len());
        let read = ready!(source(&mut out[..room]))?.min(room);
        self.split.extend_from_slice(&out[..read]);
        Poll::Ready(Ok(read))
    }

    /// Repairs every whole frame in `bytes`. Returns how many of the leading bytes are safe to pass on; the others are the beginning of a
    /// split frame, and were moved to `split`.
    fn repair(&mut self, bytes: &mut [u8]) -> usize {
        let (mut at, mut end) = (0, bytes.len());
        loop {
            if self.foreign {
                return end;
            }
            if self.passing > 0 && at < end {
                at = self.pass(bytes, at..end);
                continue;
            }
            if at == end {
                return end;
            }
            match Head::of(&bytes[at..end]) {
                Head::Foreign => self.foreign = true,
                Head::Passed { size } => {
                    self.passing = u64::from(size) + 1;
                    at += HEAD;
                }
                Head::Repaired { total } if total <= COLLECT_MAX && total <= end - at => {
                    let kept = self.repair_frame(&mut bytes[at..at + total]);
                    if kept < total {
                        bytes.copy_within(at + total..end, at + kept);
                        end -= total - kept;
                    }
                    at += kept;
                }
                Head::Partial | Head::Repaired { .. } => {
                    self.split.extend_from_slice(&bytes[at..end]);
                    return at;
                }
            }
        }
    }

    /// Passes the part of a body or heartbeat frame in `within`; returns where it ends.
    fn pass(&mut self, bytes: &[u8], within: Range<usize>) -> usize {
        let n = usize::try_from(self.passing).map_or(within.len(), |left| left.min(within.len()));
        self.passing -= n as u64;
        let end = within.start + n;
        if self.passing == 0 && bytes[end - 1] != FRAME_END {
            self.foreign = true;
        }
        end
    }

    /// Repairs one whole method or content header frame. Returns its length, which is smaller only if lapin would have refused the frame
    /// for its size.
    fn repair_frame(&mut self, frame: &mut [u8]) -> usize {
        let total = frame.len();
        if frame[total - 1] != FRAME_END {
            self.foreign = true;
            return total;
        }
        let channel = u16::from_be_bytes([frame[1], frame[2]]);
        if frame[0] == METHOD {
            self.repair_method(channel, &mut frame[HEAD..total - 1]);
            total
        } else {
            self.repair_header(channel, frame)
        }
    }

    fn repair_header(&mut self, channel: u16, frame: &mut [u8]) -> usize {
        let end = frame.len() - 1;
        let payload = &mut frame[HEAD..end];
        let mut mended = properties::repair(payload);
        let room = self.frame_max - OVERHEAD;
        let mut kept = payload.len();
        if kept > room {
            kept = oversize::shrink(payload, room);
            mended |= Repaired::OVERSIZE;
            frame[3..HEAD].copy_from_slice(&(kept as u32).to_be_bytes());
            frame[HEAD + kept] = FRAME_END;
        }
        if mended.any() {
            let tag = self.deliveries.get(usize::from(channel)).copied();
            self.log.record(channel, tag.unwrap_or(0), mended);
        }
        kept + OVERHEAD
    }

    fn repair_method(&mut self, channel: u16, payload: &mut [u8]) {
        let (event, mended) = method::repair(payload);
        let mut delivery = 0;
        match event {
            Event::Content { tag } => {
                let channel = usize::from(channel);
                if channel >= self.deliveries.len() {
                    self.deliveries.resize(channel + 1, 0);
                }
                self.deliveries[channel] = tag;
                delivery = tag;
            }
            Event::ChannelOpened => self.log.forget(channel),
            Event::Tuned { frame_max } => self.frame_max = frame::limit(frame_max, self.frame_max),
            Event::Other => {}
        }
        if mended.any() {
            self.log.record(channel, delivery, mended);
        }
    }
}
