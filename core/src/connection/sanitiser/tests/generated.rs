//! Properties over generated streams: valid ones made by amq-protocol's generator, and hostile ones.

use super::{strategies::*, *};
use proptest::{collection::vec, prelude::*};

proptest! {
    #[test]
    fn valid_frames_pass_unchanged(frames in vec(a_frame(), 1..6), reads in splits(), asks in splits()) {
        let input = frames.iter().map(encode).collect::<Vec<_>>().concat();
        let mut guard = Sanitiser::new(0);
        prop_assert_eq!(through_in(&mut guard, &input, &reads, &asks).unwrap(), input);
        prop_assert_eq!(guard.mended(), 0);
    }

    #[test]
    fn hostile_headers_can_be_parsed(headers in vec(hostile_header(any::<u16>(), Just(vec![])), 1..3), reads in splits()) {
        let input = headers.concat();
        let mut guard = Sanitiser::new(0);
        let output = through_in(&mut guard, &input, &reads, &[4096]).unwrap();
        prop_assert_eq!(output.len(), input.len());
        prop_assert_eq!(output == input, guard.mended() == 0);
        prop_assert_eq!(parse(&output).map(|frames| frames.len()), Ok(headers.len()));
        prop_assert_eq!(through(&mut Sanitiser::new(0), &input), &output[..]);
        prop_assert_eq!(through(&mut Sanitiser::new(0), &output), &output[..], "once mended, nothing is left to mend");
    }

    #[test]
    fn any_bytes_as_properties_can_be_parsed(flags: u16, list in vec(any::<u8>(), 0..300)) {
        let output = through(&mut Sanitiser::new(0), &header(1, flags, &list));
        prop_assert!(parse(&output).is_ok());
    }

    #[test]
    fn headers_above_the_frame_size_fit_it(
        header in hostile_header(any::<u16>().prop_map(|flags| flags | 1 << 13), vec(0..3000usize, 0..12)),
        reads in splits(),
    ) {
        let input = [&header[..], &deliver(1, 1, b"")].concat();
        let output = through(&mut Sanitiser::new(4096), &input);
        let frames = parse(&output);
        prop_assert!(matches!(frames.as_deref(), Ok([AMQPFrame::Header(..), AMQPFrame::Method(..)])), "{:?}", frames);
        let sizes = [header.len(), output.len() - deliver(1, 1, b"").len()];
        prop_assert!(sizes[1] <= 4096);
        prop_assert!(sizes[1] == sizes[0] || sizes[0] > 4096);
        prop_assert_eq!(through_in(&mut Sanitiser::new(4096), &input, &reads, &[500]).unwrap(), output);
    }

    #[test]
    fn any_stream_keeps_its_length_however_it_is_split(
        parts in vec(prop_oneof![
            4 => a_frame().prop_map(|frame| encode(&frame)),
            2 => hostile_header(any::<u16>(), Just(vec![])),
            1 => vec(any::<u8>(), 0..40),
        ], 0..6),
        changes in changes(),
        reads in splits(),
        asks in splits(),
    ) {
        let mut input = parts.concat();
        change(&mut input, changes);
        let whole = through_in(&mut Sanitiser::new(0), &input, &[input.len().max(1)], &[input.len().max(1)]);
        let split = through_in(&mut Sanitiser::new(0), &input, &reads, &asks);
        match (whole, split) {
            (Ok(whole), Ok(split)) => {
                prop_assert_eq!(whole.len(), input.len());
                prop_assert_eq!(whole, split);
            }
            (Err(whole), Err(split)) => prop_assert_eq!(whole.kind(), split.kind()),
            (whole, split) => prop_assert!(false, "{:?} in one, {:?} in parts", whole, split),
        }
    }
}
