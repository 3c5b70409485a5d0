//! Makes text from strangers safe for a terminal.
//!
//! A header or a body can contain escape sequences that move the cursor, change the title or answer into the shell's input. Direction marks
//! can make a line read differently from what it says.

use std::{borrow::Cow, fmt::Write};

/// One line: every control character is shown as an escape, also line ends and tabs.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    escape(text, |_| false)
}

/// Several lines: line feeds and tabs stay.
#[must_use]
pub fn block(text: &str) -> Cow<'_, str> {
    escape(text, |c| c == '\n' || c == '\t')
}

fn escape(text: &str, keep: impl Fn(char) -> bool) -> Cow<'_, str> {
    let unsafe_char = |c: char| (c.is_control() && !keep(c)) || is_format(c);
    // Most text is plain, and bytes are compared many at a time.
    let is_plain = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    if is_plain || !text.chars().any(unsafe_char) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            c if !unsafe_char(c) => shown.push(c),
            '\n' => shown.push_str("\\n"),
            '\r' => shown.push_str("\\r"),
            '\t' => shown.push_str("\\t"),
            c if u32::from(c) < 0x100 => {
                let _ = write!(shown, "\\x{:02x}", u32::from(c)); // writing to a String cannot fail
            }
            c => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
        }
    }
    Cow::Owned(shown)
}

/// Invisible characters that change how others are read: direction marks, separators, and the like.
fn is_format(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        assert_eq!(line("a\x1b[2Jb\u{9b}1m\x07"), "a\\x1b[2Jb\\x9b1m\\x07");
        assert_eq!(line("a\r\nb\tc"), "a\\r\\nb\\tc");
        assert_eq!(block("a\r\nb\tc"), "a\\r\nb\tc");
        assert_eq!(line("x\u{202e}y\u{200b}"), "x\\u{202e}y\\u{200b}");
        assert_eq!(line("Grüße 漢字 🎉"), "Grüße 漢字 🎉");
    }
}
