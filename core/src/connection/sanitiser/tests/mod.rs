//! What the guard promises, held against amq-protocol's own parser and generator, which are lapin's.

mod fuzzed;
mod generated;
mod hostile;
mod log;
mod oversize;
mod strategies;
mod stream;

use super::{Sanitiser, frame};
use amq_protocol::frame::{AMQPFrame, parsing::parse_frame};
use std::{io, task::Poll, thread};

/// A quarter of what lapin's thread has. An overflow aborts the test run, so no test can miss it.
const STACK: usize = 512 << 10;

fn frame(kind: u8, channel: u16, payload: &[u8]) -> Vec<u8> {
    let size = (payload.len() as u32).to_be_bytes();
    [
        &[kind][..],
        &channel.to_be_bytes(),
        &size,
        payload,
        &[frame::FRAME_END],
    ]
    .concat()
}

fn method(channel: u16, class: u16, method: u16, arguments: &[u8]) -> Vec<u8> {
    let payload = [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat();
    frame(frame::METHOD, channel, &payload)
}

fn deliver(channel: u16, tag: u64, routing_key: &[u8]) -> Vec<u8> {
    let arguments = [
        &short(b"ctag")[..],
        &tag.to_be_bytes(),
        &[0],
        &short(b""),
        &short(routing_key),
    ];
    method(channel, 60, 60, &arguments.concat())
}

/// A content header with these property flags and this list of properties, for a message without a body.
fn header(channel: u16, flags: u16, list: &[u8]) -> Vec<u8> {
    let payload = [
        &60u16.to_be_bytes()[..],
        &[0; 10],
        &flags.to_be_bytes(),
        list,
    ]
    .concat();
    frame(frame::HEADER, channel, &payload)
}

/// A content header with nothing but these headers.
fn headers(channel: u16, table: &[u8]) -> Vec<u8> {
    header(channel, 1 << 13, &long(table))
}

fn short(text: &[u8]) -> Vec<u8> {
    [&[text.len() as u8][..], text].concat()
}

fn long(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes()[..], bytes].concat()
}

fn entry(key: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
    [&short(key)[..], &[tag], value].concat()
}

/// `depth` tables, each in the one before, the innermost holding `content`.
fn tables(depth: usize, content: &[u8]) -> Vec<u8> {
    (0..depth).fold(content.to_vec(), |inner, _| {
        entry(b"k", b'F', &long(&inner))
    })
}

/// A header "a" with `depth` arrays, each in the one before.
fn arrays(depth: usize) -> Vec<u8> {
    let innermost = long(b"");
    entry(
        b"a",
        b'A',
        &(1..depth).fold(innermost, |inner, _| long(&[b"A", &inner[..]].concat())),
    )
}

/// What lapin reads of `input`, where each read of the socket gives as much as the next of `reads` says and finds it
/// not ready in between, and lapin asks for as much as the next of `asks` says.
fn through_in(
    guard: &mut Sanitiser,
    input: &[u8],
    reads: &[usize],
    asks: &[usize],
) -> io::Result<Vec<u8>> {
    let (mut reads, mut asks) = (reads.iter().cycle(), asks.iter().cycle());
    let (mut output, mut rest, mut ready) = (Vec::new(), input, false);
    loop {
        let mut out = vec![0; *asks.next().unwrap_or(&1)];
        let result = guard.read(&mut out, |buffer| {
            ready = !ready;
            if !ready {
                return Poll::Pending;
            }
            let n = (*reads.next().unwrap_or(&1))
                .min(buffer.len())
                .min(rest.len());
            buffer[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            Poll::Ready(Ok(n))
        });
        match result {
            Poll::Pending => {}
            Poll::Ready(Ok(0)) => return Ok(output),
            Poll::Ready(Ok(n)) => output.extend_from_slice(&out[..n]),
            Poll::Ready(Err(error)) => return Err(error),
        }
    }
}

/// What lapin reads of `input` when it comes at once.
fn through(guard: &mut Sanitiser, input: &[u8]) -> Vec<u8> {
    let all = input.len().max(1);
    through_in(guard, input, &[all], &[all]).expect("a guard fails only for frames above 16 MiB")
}

/// All frames in `bytes`, or the bytes at which lapin would give up, on a stack a quarter the size of lapin's.
fn parse(bytes: &[u8]) -> Result<Vec<AMQPFrame>, Vec<u8>> {
    let all = |mut rest: &[u8]| {
        let mut frames = Vec::new();
        while !rest.is_empty() {
            let (behind, frame) = parse_frame(rest).map_err(|_| rest.to_vec())?;
            frames.push(frame);
            rest = behind;
        }
        Ok(frames)
    };
    thread::scope(|scope| {
        let parser = thread::Builder::new()
            .stack_size(STACK)
            .spawn_scoped(scope, || all(bytes));
        parser
            .expect("a thread starts")
            .join()
            .expect("the parser does not panic")
    })
}
