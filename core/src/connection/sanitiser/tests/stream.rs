//! The byte stream: splits, ends, errors, and what is not AMQP at all.

use super::*;

const WHOLE: &[usize] = &[1 << 20];

fn stream() -> Vec<u8> {
    let bad = header(
        1,
        1 << 13 | 1 << 7,
        &[long(&tables(40, b"")), short(b"\xff\xfe")].concat(),
    );
    let body = vec![0xCE; 300];
    [
        deliver(1, 1, b"ke\xff"),
        bad,
        frame(frame::BODY, 1, &body),
        frame(frame::HEARTBEAT, 0, b""),
        deliver(1, 2, b"key"),
        header(1, 0, b""),
        frame(frame::BODY, 1, b""),
    ]
    .concat()
}

#[test]
fn splits_change_nothing() {
    let input = stream();
    let whole = through(&mut Sanitiser::new(0), &input);
    assert_eq!(whole.len(), input.len());
    assert_eq!(parse(&whole).expect("lapin can parse it").len(), 7);
    for read in (1..32).chain([64, 256, 1024]) {
        for ask in [1, 2, 3, 7, 8, 64, 1 << 16] {
            let mut guard = Sanitiser::new(0);
            assert_eq!(
                through_in(&mut guard, &input, &[read], &[ask]).unwrap(),
                whole,
                "{read} {ask}"
            );
            assert_eq!(guard.mended(), 1);
        }
    }
    for at in 0..input.len() {
        assert_eq!(
            through_in(
                &mut Sanitiser::new(0),
                &input,
                &[at.max(1), input.len()],
                WHOLE
            )
            .unwrap(),
            whole
        );
    }
}

#[test]
fn a_split_frame_may_be_large() {
    let input = [headers(1, &tables(40_000, b"")), deliver(1, 1, b"key")].concat();
    let whole = through(&mut Sanitiser::new(0), &input);
    for reads in [&[9, 1 << 20][..], &[100_000], &[1000]] {
        let mut guard = Sanitiser::new(0);
        let output = through_in(&mut guard, &input, reads, &[70_000]).unwrap();
        assert_eq!((output == whole, guard.mended()), (true, 1), "{reads:?}");
        assert!(
            guard.split.capacity() <= 64 << 10,
            "what it took is given back"
        );
    }
}

#[test]
fn a_stream_that_ends_anywhere_is_handed_on_to_its_last_byte() {
    let input = stream();
    for end in 0..input.len() {
        let output = through_in(&mut Sanitiser::new(0), &input[..end], &[5], &[9]).unwrap();
        assert_eq!(output.len(), end);
    }
}

#[test]
fn what_is_not_amqp_passes() {
    let mut not_amqp = vec![
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n".to_vec(),
        b"AMQP\0\0\x09\x01".to_vec(),
        b"\x15\x03\x03\0\x02\x02\x46".to_vec(),
        b"\0".to_vec(),
        b"\x01".to_vec(),
        b"\x02\0\0\0".to_vec(),
    ];
    // Frames that do not end where they say, which no AMQP server sends: nor is what follows to be trusted.
    for kind in [frame::METHOD, frame::HEADER, frame::BODY, frame::HEARTBEAT] {
        let mut frame = frame(kind, 1, &header(1, 1 << 7, b"\x01\xff"));
        *frame.last_mut().unwrap() = b'!';
        not_amqp.push([frame, header(1, 1 << 7, b"\x01\xff")].concat());
    }
    for input in not_amqp {
        for read in [1, 2, 7, 8, 1024] {
            let mut guard = Sanitiser::new(0);
            assert_eq!(
                through_in(&mut guard, &input, &[read], WHOLE).unwrap(),
                input
            );
            assert_eq!(guard.mended(), 0);
        }
    }
}

#[test]
fn bodies_are_never_touched() {
    let body = header(1, 1 << 7, b"\x01\xff");
    let input = frame(frame::BODY, 1, &[body.clone(), body].concat());
    for read in [1, 7, 8, 9, 1024] {
        assert_eq!(
            through_in(&mut Sanitiser::new(0), &input, &[read], WHOLE).unwrap(),
            input
        );
    }
}

#[test]
fn a_frame_without_end_is_an_error_and_no_memory() {
    for kind in [frame::METHOD, frame::HEADER] {
        let good = frame(frame::HEARTBEAT, 0, b"");
        let input = [&good[..], &[kind, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 60]].concat();
        for read in [1, 64] {
            let mut guard = Sanitiser::new(0);
            let error = through_in(&mut guard, &input, &[read], WHOLE).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData);
            assert!(guard.split.capacity() < 1024);
        }
        // Below the limit it may come, but room is made only for what does.
        let mut guard = Sanitiser::new(0);
        let mut announced = Some([kind, 0, 1, 0, 0xf0, 0, 0, 0, 60]);
        let result = guard.read(&mut [0; 64], |buffer| match announced.take() {
            Some(announced) => {
                buffer[..announced.len()].copy_from_slice(&announced);
                Poll::Ready(Ok(announced.len()))
            }
            None => {
                assert!(buffer.len() <= 64 << 10, "{} bytes", buffer.len());
                Poll::Pending
            }
        });
        assert!(result.is_pending());
        assert!(guard.split.capacity() <= 128 << 10);
    }
}

#[test]
fn a_source_that_claims_more_than_there_was_room_for() {
    let mut guard = Sanitiser::new(0);
    for _ in 0..2 {
        let result = guard.read(&mut [frame::HEARTBEAT; 4], |_| Poll::Ready(Ok(1000)));
        assert!(matches!(result, Poll::Ready(Ok(0..=4))));
    }
}

#[test]
fn an_error_of_the_socket_is_passed_and_loses_nothing() {
    let input = deliver(1, 1, b"key");
    let mut guard = Sanitiser::new(0);
    let mut out = [0; 64];
    let half = |buffer: &mut [u8]| {
        buffer[..9].copy_from_slice(&input[..9]);
        Poll::Ready(Ok(9))
    };
    let mut first = Some(half);
    let result = guard.read(&mut out, |buffer| match first.take() {
        Some(half) => half(buffer),
        None => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
    });
    assert!(matches!(result, Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::TimedOut));
    assert_eq!(through(&mut guard, &input[9..]), input);
}

#[test]
fn no_room_to_read_into_is_not_the_end() {
    let mut guard = Sanitiser::new(0);
    let result = guard.read(&mut [], |_| panic!("nothing can be read"));
    assert!(matches!(result, Poll::Ready(Ok(0))));
}
