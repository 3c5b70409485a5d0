//! Messages for JavaScript: one record each, one after the other.

use std::time::SystemTime;

use napi::{Env, bindgen_prelude::BufferSlice};
use napi_derive::napi;
use retryrmq::{BasicProperties, Message, Token};

use crate::{errors::Result, values::write_table, wire::Writer};

/// About how many bytes of a record are not its body.
const AROUND_BODY: usize = 128;

/// A longer body has its own buffer, so that keeping one message does not keep the batch.
const LARGE: usize = 4096;

const REDELIVERED: u32 = 1;
const MAY_PARK: u32 = 2;
const OWN_BUFFER: u32 = 4;

/// Messages: records, and the bodies that are outside the records.
#[napi(object, object_from_js = false)]
pub struct Batch<'env> {
    /// The records.
    pub records: BufferSlice<'env>,
    /// Large bodies, in the order of their messages.
    pub bodies: Vec<BufferSlice<'env>>,
}

/// Writes messages.
pub(crate) struct Batches<'env> {
    env: &'env Env,
    out: Writer,
    bodies: Vec<BufferSlice<'env>>,
}

impl<'env> Batches<'env> {
    /// For these messages, with room for all of them from the start.
    pub(crate) fn new<'a>(env: &'env Env, messages: impl Iterator<Item = &'a Message>) -> Self {
        let room = messages.map(|message| AROUND_BODY + message.body().len().min(LARGE));
        Self {
            env,
            out: Writer(Vec::with_capacity(room.sum())),
            bodies: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, token: Token, message: &Message, may_park: bool) -> Result<()> {
        let begin = self.out.0.len();
        let body = message.body();
        let own = body.len() > LARGE;
        self.out.u32(0); // the size, written when it is known
        self.out.f64(token.to_u64() as f64);
        let flag = |is: bool, flag: u32| if is { flag } else { 0 };
        self.out.u32(
            flag(message.redelivered(), REDELIVERED)
                | flag(may_park, MAY_PARK)
                | flag(own, OWN_BUFFER),
        );
        self.out.u32(message.attempt());
        self.out.u32(message.replays());
        self.out.f64(seconds(message.first_failed_at()));
        self.out.len(body.len());
        if own {
            self.bodies
                .push(BufferSlice::copy_from(self.env, body).map_err(failed)?);
        } else {
            self.out.0.extend_from_slice(body);
        }
        self.out.maybe(Some(message.exchange()));
        self.out.maybe(Some(message.routing_key()));
        self.out.maybe(message.message_id());
        self.out.maybe(message.last_error());
        self.out.maybe(message.mended());
        properties(&mut self.out, message.properties());
        match message.headers() {
            Some(table) => write_table(&mut self.out, table),
            None => self.out.u32(0),
        }
        let history = if message.headers().is_some() {
            message.history()
        } else {
            Vec::new()
        };
        self.out.len(history.len());
        for entry in history {
            self.out.u32(entry.attempt);
            self.out.f64(entry.at as f64);
            self.out.bytes(entry.error.as_bytes());
            self.out.bytes(entry.host.as_bytes());
            self.out.bytes(entry.app_version.as_bytes());
        }
        let size = self.out.0.len() - begin;
        self.out
            .fill(begin, u32::try_from(size).unwrap_or(u32::MAX));
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Batch<'env>> {
        Ok(Batch {
            records: BufferSlice::copy_from(self.env, self.out.0).map_err(failed)?,
            bodies: self.bodies,
        })
    }
}

/// A batch with one message that cannot be settled.
pub(crate) fn alone<'env>(env: &'env Env, message: &Message) -> Result<Batch<'env>> {
    let mut batch = Batches::new(env, std::iter::once(message));
    batch.add(Token::from_u64(0), message, true)?;
    batch.finish()
}

/// Seconds since 1970; NaN for never.
pub(crate) fn seconds(at: Option<SystemTime>) -> f64 {
    at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map_or(f64::NAN, |since| since.as_secs_f64())
}

fn properties(out: &mut Writer, properties: &BasicProperties) {
    let texts = retryrmq_bindings::texts(properties).map(|(_, text)| text);
    let (mode, priority) = (properties.delivery_mode(), properties.priority());
    let timestamp = properties.timestamp();
    let mut present = 0;
    for (bit, text) in texts.iter().enumerate() {
        present |= u32::from(text.is_some()) << bit;
    }
    present |= u32::from(mode.is_some()) << 10;
    present |= u32::from(priority.is_some()) << 11;
    present |= u32::from(timestamp.is_some()) << 12;
    out.u32(present);
    for text in texts.into_iter().flatten() {
        out.bytes(text.as_str().as_bytes());
    }
    if let Some(mode) = mode {
        out.u8(*mode);
    }
    if let Some(priority) = priority {
        out.u8(*priority);
    }
    if let Some(seconds) = timestamp {
        out.f64(*seconds as f64);
    }
}

fn failed(error: napi::Error) -> napi::Error<crate::errors::Code> {
    napi::Error::new(crate::errors::Code("error"), error.reason.clone())
}
