//! The last line of a stream that is not empty, or its first ones: their beginnings, however long they are.
//!
//! The first word of a line says what it is. Whoever kept its end instead would take what stands somewhere in the middle, such as
//! a body that the line repeats, for a word of the command.

/// How much of a line is kept.
const KEPT: usize = 8 * 1024;

#[derive(Debug, Default)]
pub(super) struct LastLine {
    /// The last one that is whole.
    whole: LineBuffer,
    /// The one that is still written.
    open: LineBuffer,
    /// Whether anything came, be it an empty line.
    is_begun: bool,
}

impl LastLine {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.is_begun |= !bytes.is_empty();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let line = piece.strip_suffix(b"\n");
            self.open.push(line.unwrap_or(piece));
            if line.is_some() {
                let line = std::mem::take(&mut self.open);
                if !line.kept.is_empty() {
                    self.whole = line;
                }
            }
        }
    }

    /// The line without its end; a line feed alone where there were only empty ones, and nothing where nothing came.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let lines = [&self.open, &self.whole];
        match lines.into_iter().find(|line| !line.kept.is_empty()) {
            Some(line) => line.bytes(),
            None if self.is_begun => b"\n".to_vec(),
            None => Vec::new(),
        }
    }
}

/// The first lines. An empty one counts: it stands for a message, whatever it means.
#[derive(Debug)]
pub(super) struct FirstLines {
    whole: Vec<Vec<u8>>,
    most: usize,
    open: LineBuffer,
}

impl FirstLines {
    /// At most `most` of them.
    pub(super) fn new(most: usize) -> Self {
        Self {
            whole: Vec::new(),
            most,
            open: LineBuffer::default(),
        }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.whole.len() >= self.most {
                return;
            }
            let line = piece.strip_suffix(b"\n");
            self.open.push(line.unwrap_or(piece));
            if line.is_some() {
                let line = std::mem::take(&mut self.open);
                self.whole.push(line.bytes());
            }
        }
    }

    /// All of them, also one without an end.
    pub(super) fn all(&self) -> Vec<Vec<u8>> {
        let open = Some(self.open.bytes()).filter(|line| !line.is_empty());
        let whole = self.whole.iter().cloned();
        whole.chain(open).collect()
    }
}

#[derive(Debug, Default)]
struct LineBuffer {
    /// From the first byte on that is no white space.
    kept: Vec<u8>,
    /// Something is missing at the end, and not only white space.
    is_cut: bool,
}

impl LineBuffer {
    fn push(&mut self, bytes: &[u8]) {
        let bytes = if self.kept.is_empty() {
            bytes.trim_ascii_start()
        } else {
            bytes
        };
        let (kept, rest) = bytes.split_at(bytes.len().min(KEPT - self.kept.len()));
        self.kept.extend_from_slice(kept);
        self.is_cut |= !rest.trim_ascii().is_empty();
    }

    /// One that was cut ends with a mark: a delay of which a part is missing is none.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.kept.clone();
        if self.is_cut {
            if let Err(torn) = std::str::from_utf8(&bytes)
                && torn.error_len().is_none()
            {
                bytes.truncate(torn.valid_up_to());
            }
            bytes.extend_from_slice("…".as_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn last(pieces: &[&[u8]]) -> Vec<u8> {
        let mut line = LastLine::default();
        pieces.iter().for_each(|piece| line.push(piece));
        line.bytes()
    }

    #[test]
    fn the_last_line_that_is_not_empty_counts() {
        assert_eq!(last(&[]), b"");
        assert_eq!(last(&[b"\n"]), b"\n");
        assert_eq!(last(&[b" \r", b"\n \n"]), b"\n");
        assert_eq!(last(&[b"one\ntwo\r\n\n  \n"]), b"two\r");
        assert_eq!(last(&[b"one\nde", b"fer", b": 5s"]), b"defer: 5s");
        assert_eq!(last(&[b"one\n  ", b"\ttwo"]), b"two");
    }

    #[test]
    fn a_long_line_loses_its_end_and_says_so() {
        let long = "ä".repeat(KEPT);
        let kept = String::from_utf8(last(&[b"x", long.as_bytes(), b"\n"])).unwrap();
        assert!(kept.starts_with("xä") && kept.ends_with("ä…"), "{kept}");
        let spaces = [b' '; 2 * KEPT];
        assert!(last(&[&spaces, b"defer: 5s", &spaces]).starts_with(b"defer: 5s  "));
        assert!(!last(&[b"defer: 5s", &spaces]).ends_with("…".as_bytes()));
        // The next line begins anew.
        assert_eq!(last(&[long.as_bytes(), b"\ndefer: 5s\n"]), b"defer: 5s");
    }

    #[test]
    fn the_first_lines_are_kept_and_the_last_needs_no_end() {
        let all = |pieces: &[&[u8]]| {
            let mut lines = FirstLines::new(3);
            pieces.iter().for_each(|piece| lines.push(piece));
            lines.all()
        };
        assert!(all(&[]).is_empty());
        assert_eq!(all(&[b"\n \n"]), [b"", b""]);
        assert_eq!(
            all(&[b"ok\npa", b"rk: no\nok"]),
            [&b"ok"[..], b"park: no", b"ok"]
        );
        assert_eq!(all(&[b"ok\n", b"\nok"]), [&b"ok"[..], b"", b"ok"]);
        assert_eq!(all(&[b"1\n2\n3\n4\n5"]), [b"1", b"2", b"3"]);
        let long = "x".repeat(2 * KEPT);
        assert!(all(&[long.as_bytes(), b"\nok\n"])[0].ends_with("…".as_bytes()));
    }

    proptest! {
        #[test]
        fn what_a_line_is_its_first_word_says(
            before in 0usize..3 * KEPT,
            after in 0usize..3 * KEPT,
            chunk in 1usize..2 * KEPT,
        ) {
            let line = format!(
                "defer: 1s\npark: bad order: {}{}{}",
                "x".repeat(before),
                "retry-after: 23h",
                " ".repeat(after)
            );
            let mut said = LastLine::default();
            line.as_bytes().chunks(chunk).for_each(|chunk| said.push(chunk));
            prop_assert!(said.bytes().starts_with(b"park: bad order: "));
        }
    }
}
