//! A body for people: JSON indented, text as it is, anything else in hexadecimal. Bounded: bodies can be very large.

use indicatif::HumanBytes;
use retryrmq::terminal_escape;
use retryrmq_operator::decoding::{Decoded, Format};

/// Bytes of text that are shown.
const MOST_TEXT: usize = 64 * 1024;
/// Bytes that are shown in hexadecimal.
const MOST_HEX: usize = 1024;

/// A body as people see it.
#[derive(Debug, Default)]
pub(super) struct ShownBody {
    /// What it is: format, type, size.
    pub(super) what: String,
    /// What to know before one believes it.
    pub(super) remarks: Vec<String>,
    /// The lines.
    pub(super) text: String,
    /// Bytes that are not among them.
    pub(super) rest: usize,
    /// Whether these are bytes of the body as it came.
    pub(super) is_raw: bool,
    /// The bytes where it breaks off.
    pub(super) dump: Option<String>,
}

/// The body made readable; `length` is what came.
pub(super) fn shown(decoded: &Decoded<'_>, length: usize) -> ShownBody {
    let bytes = &*decoded.bytes;
    let (text, rest, is_bytes) = match (decoded.format, &decoded.value) {
        (Format::Empty, _) => (String::new(), 0, true),
        // Numbers and the order of fields as they were written.
        (Format::Json, Some(_)) if decoded.truncation.is_none() && bytes.len() <= MOST_TEXT => {
            let text = String::from_utf8_lossy(bytes);
            (
                terminal_escape::block(&indented(&text)).into_owned(),
                0,
                true,
            )
        }
        (Format::Text | Format::Json, _) => {
            let text = String::from_utf8_lossy(bytes);
            let (text, rest) = front(&text);
            (text, rest, true)
        }
        (_, Some(value)) => {
            let text = serde_json::to_string_pretty(value).unwrap_or_default(); // a value of JSON is always written
            let (text, rest) = front(&text);
            (text, rest, false)
        }
        (_, None) => (hex(bytes, 0), bytes.len().saturating_sub(MOST_HEX), true),
    };
    let is_hex = decoded.value.is_none();
    let broken = decoded.truncation.as_ref();
    let dump = broken.filter(|_| !is_bytes && !is_hex).map(|broken| {
        let start = broken.byte.min(bytes.len().saturating_sub(1)) / 16 * 16;
        format!(
            "…\n{}",
            hex(&bytes[start..bytes.len().min(start + 64)], start)
        )
    });
    ShownBody {
        what: what(decoded, length),
        remarks: remarks(decoded),
        text,
        rest,
        is_raw: is_bytes && decoded.unwrapped.is_empty(),
        dump,
    }
}

/// `base64, gzip > protobuf shop.Order (best of 12, 98 %), 1.2 KiB, 4 KiB unwrapped`
fn what(decoded: &Decoded<'_>, length: usize) -> String {
    let mut words = String::new();
    for wrapping in &decoded.unwrapped {
        words.push_str(&format!("{wrapping} > "));
    }
    words.push_str(decoded.format.name());
    if let Some(name) = &decoded.schema {
        words.push_str(&format!(" {}", terminal_escape::line(name)));
    }
    match &decoded.fit {
        Some(fit) if fit.tried > 0 => words.push_str(&format!(
            " {} (best fit of {}, {} %)",
            terminal_escape::line(&fit.message),
            fit.tried,
            fit.score
        )),
        Some(fit) => words.push_str(&format!(" {}", terminal_escape::line(&fit.message))),
        None if decoded.is_guess => words.push_str(" (a guess)"),
        None => {}
    }
    if decoded.format != Format::Empty {
        words.push_str(&format!(", {}", HumanBytes(length as u64)));
    }
    if !decoded.unwrapped.is_empty() {
        words.push_str(&format!(
            ", {} unwrapped",
            HumanBytes(decoded.bytes.len() as u64)
        ));
    }
    words
}

fn remarks(decoded: &Decoded<'_>) -> Vec<String> {
    let mut remarks = Vec::new();
    if let Some(fit) = &decoded.fit {
        let others: Vec<String> = fit
            .others
            .iter()
            .map(|(name, score)| format!("{} {score} %", terminal_escape::line(name)))
            .collect();
        if !others.is_empty() {
            remarks.push(format!(
                "others fit nearly as well: {}; --type names the right one",
                others.join(", ")
            ));
        }
        if fit.tried == 0 && fit.score < 90 && decoded.truncation.is_none() {
            remarks.push(format!(
                "{} % of it is what this message says; it may be another one",
                fit.score
            ));
        }
    }
    if let Some(broken) = &decoded.truncation {
        remarks.push(format!(
            "breaks off at byte {} (0x{:x}) of the {}: {}",
            broken.byte,
            broken.byte,
            terminal_escape::line(&broken.within),
            terminal_escape::line(&broken.why)
        ));
    }
    remarks
}

/// The beginning of a long text, and how many bytes come after it.
fn front(text: &str) -> (String, usize) {
    let mut end = text.len().min(MOST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (
        terminal_escape::block(&text[..end]).into_owned(),
        text.len() - end,
    )
}

/// Sound JSON, indented. The tokens are copied as they stand: to parse and write numbers would change them.
fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    let mut chars = json.chars().peekable();
    let line = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n("  ", depth));
    };
    while let Some(c) = chars.next() {
        if in_string {
            out.push(c);
            (in_string, escaped) = (escaped || c != '"', !escaped && c == '\\');
            continue;
        }
        match c {
            c if c.is_ascii_whitespace() => {}
            '{' | '[' => {
                out.push(c);
                while chars.next_if(char::is_ascii_whitespace).is_some() {}
                match chars.next_if(|next| matches!(next, '}' | ']')) {
                    Some(end) => out.push(end),
                    None => {
                        depth += 1;
                        line(&mut out, depth);
                    }
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c => {
                in_string = c == '"';
                out.push(c);
            }
        }
    }
    out
}

/// Offset, sixteen bytes, and what of them is ASCII.
fn hex(body: &[u8], start: usize) -> String {
    let mut out = String::new();
    for (row, bytes) in body[..body.len().min(MOST_HEX)].chunks(16).enumerate() {
        let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let (left, right) = digits.split_at(digits.len().min(8));
        let text: String = bytes
            .iter()
            .map(|byte| {
                if byte.is_ascii_graphic() || *byte == b' ' {
                    char::from(*byte)
                } else {
                    '.'
                }
            })
            .collect();
        out.push_str(&format!(
            "{:06x}  {:<23}  {:<23}  {text}\n",
            start + row * 16,
            left.join(" "),
            right.join(" ")
        ));
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use retryrmq_operator::decoding::{Hints, decode};

    use super::*;

    fn readable(body: &[u8]) -> ShownBody {
        let decoded = decode(body, Hints::default(), None);
        shown(&decoded, body.len())
    }

    #[test]
    fn json_is_indented_and_not_changed() {
        let shown = readable(
            br#"{"n":12345678901234567890.10,"s":"a,\"{b}\\","e":[],"o":{ },"l":[1, {"x":null}]}"#,
        );
        assert_eq!((shown.what.as_str(), shown.rest), ("JSON, 80 B", 0));
        assert_eq!(
            shown.text,
            "{\n  \"n\": 12345678901234567890.10,\n  \"s\": \"a,\\\"{b}\\\\\",\n  \"e\": [],\n  \"o\": {},\n  \"l\": [\n    1,\n    {\n      \"x\": null\n    }\n  ]\n}"
        );
    }

    #[test]
    fn everything_else_is_shown_as_what_it_is() {
        assert_eq!(readable(b"").what, "empty");
        let broken = readable(b"{not json");
        assert_eq!(
            (broken.text.as_str(), broken.what.as_str()),
            ("{not json", "text, 9 B")
        );
        assert!(
            broken.remarks[0].starts_with("breaks off at byte 1 (0x1) of the JSON: "),
            "{broken:?}"
        );
        assert_eq!(readable(b"\x1b[31mred").text, "\\x1b[31mred");
        assert_eq!(
            readable(&[0, 1, 2, b'a']).text,
            format!("000000  {:<23}  {:<23}  ...a", "00 01 02 61", "")
        );
        let bytes = readable(&vec![0xff; 3000]);
        assert_eq!((bytes.text.lines().count(), bytes.rest), (64, 3000 - 1024));
        let text = readable("ä".repeat(60_000).as_bytes());
        assert_eq!(text.text.len() + text.rest, 120_000);
    }

    #[test]
    fn what_breaks_off_shows_what_came_before_and_the_bytes_there() {
        let hints = Hints {
            content_type: Some("application/msgpack"),
            content_encoding: None,
        };
        let body = b"\x82\xa1a\x01\xa1b\x93\x01\xc1";
        let shown = shown(&decode(body, hints, None), body.len());
        assert_eq!(shown.text, "{\n  \"a\": 1,\n  \"b\": [\n    1\n  ]\n}");
        assert!(
            shown.remarks[0].contains("byte 8 (0x8) of the MessagePack"),
            "{shown:?}"
        );
        assert!(shown.dump.unwrap().contains("000000  82 a1 61"));
    }
}
