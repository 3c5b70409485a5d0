//! The guard against any stream of bytes: `cargo +nightly fuzz run sanitiser`.
//!
//! The first byte of the input chooses the size of the reads. What must hold: no panic, the same result however the
//! stream is split, the same length where no content header exceeds the frame size, and, of a single content header
//! whose properties are the input, that amq-protocol's parser takes it.

#![no_main]

#[allow(dead_code, unused_imports)]
#[path = "../../src/connection/sanitiser/mod.rs"]
mod sanitiser;

use amq_protocol::frame::parsing::parse_frame;
use libfuzzer_sys::fuzz_target;
use sanitiser::Sanitiser;
use std::{io, task::Poll};

fuzz_target!(|input: &[u8]| {
    let Some((&size, bytes)) = input.split_first() else {
        return;
    };
    any_stream(usize::from(size) + 1, bytes);
    any_properties(bytes, 0);
    any_properties(bytes, 4096);
});

fn any_stream(size: usize, bytes: &[u8]) {
    let whole = through(&mut Sanitiser::new(0), bytes, usize::MAX);
    let split = through(&mut Sanitiser::new(0), bytes, size);
    match (whole, split) {
        (Ok(whole), Ok(split)) => {
            assert_eq!(whole.len(), bytes.len());
            assert_eq!(whole, split);
        }
        (whole, split) => assert_eq!(whole.is_err(), split.is_err()),
    }
}

fn any_properties(bytes: &[u8], frame_max: u32) {
    if bytes.len() < 2 {
        return;
    }
    let size = (bytes.len() as u32 + 12).to_be_bytes();
    let frame = [&[2, 0, 1], &size[..], &[0, 60], &[0; 10], bytes, &[0xCE]].concat();
    let output = through(&mut Sanitiser::new(frame_max), &frame, usize::MAX).unwrap();
    assert!(frame_max > 0 && frame.len() > 4096 || output.len() == frame.len());
    assert!(frame_max == 0 || output.len() <= 4096);
    let (rest, _) = parse_frame(&output[..]).unwrap();
    assert!(rest.is_empty());
}

fn through(guard: &mut Sanitiser, mut input: &[u8], size: usize) -> io::Result<Vec<u8>> {
    let mut output = Vec::new();
    let mut out = vec![0; input.len().max(1)];
    loop {
        let result = guard.read(&mut out, |buffer| {
            let n = size.min(buffer.len()).min(input.len());
            buffer[..n].copy_from_slice(&input[..n]);
            input = &input[n..];
            Poll::Ready(Ok(n))
        });
        match result {
            Poll::Ready(Ok(0)) => return Ok(output),
            Poll::Ready(Ok(n)) => output.extend_from_slice(&out[..n]),
            Poll::Ready(Err(error)) => return Err(error),
            Poll::Pending => unreachable!("the source is always ready"),
        }
    }
}
