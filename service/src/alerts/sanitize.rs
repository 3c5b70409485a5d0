//! Texts of strangers, made safe: an error or a header can hold escape sequences, line ends, mentions and megabytes.

use retryrmq::terminal_escape;

pub(super) use crate::redaction::HIDDEN;
/// Characters of one field at most.
pub(super) const FIELD: usize = 200;
/// Characters of an error.
pub(super) const ERROR: usize = 500;
/// Characters of the name of a queue, a reason, a class.
pub(super) const NAME: usize = 255;

/// One line of at most `most` characters: control characters are visible, and what is cut ends in `…`.
pub(super) fn line(text: &str, most: usize) -> String {
    // A megabyte is not made visible only to be cut.
    let start: String = text.chars().take(most + 1).collect();
    cut(&terminal_escape::line(&start), most)
}

/// At most so many characters.
pub(super) fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => {
            let kept: String = text.chars().take(most.saturating_sub(1)).collect();
            format!("{kept}…")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_one_line_of_that_length() {
        assert_eq!(line("a\r\nBcc: x", 100), "a\\r\\nBcc: x");
        assert_eq!(line("abcdef", 6), "abcdef");
        assert_eq!(line("abcdefg", 6), "abcde…");
        assert_eq!(line(&"\n".repeat(1_000_000), 6).chars().count(), 6);
        assert_eq!(line("ä漢🎉", 2), "ä…");
    }
}
