//! A body for people: JSON indented, text as it is, anything else in hexadecimal. Bounded: bodies can be very large.

use retryrmq::visible;

/// Bytes of text that are shown.
const MOST_TEXT: usize = 64 * 1024;
/// Bytes that are shown in hexadecimal.
const MOST_HEX: usize = 1024;

/// How the body was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Empty,
    Json,
    Text,
    Hex,
}

impl Form {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Empty => "empty",
            Self::Json => "JSON",
            Self::Text => "text",
            Self::Hex => "binary",
        }
    }
}

/// The body made readable, and how many bytes of it are not shown.
pub(super) fn readable(body: &[u8]) -> (Form, String, usize) {
    if body.is_empty() {
        return (Form::Empty, String::new(), 0);
    }
    let Ok(text) = std::str::from_utf8(body) else {
        return (Form::Hex, hex(body), body.len().saturating_sub(MOST_HEX));
    };
    if body.len() <= MOST_TEXT
        && text.trim_start().starts_with(['{', '['])
        && serde_json::from_str::<serde_json::Value>(text).is_ok()
    {
        return (Form::Json, visible::block(&indented(text)).into_owned(), 0);
    }
    // Text that is mostly control characters reads better as bytes.
    let odd = text
        .chars()
        .take(4096)
        .filter(|c| c.is_control() && !c.is_whitespace())
        .count();
    if odd * 5 > text.chars().take(4096).count() {
        return (Form::Hex, hex(body), body.len().saturating_sub(MOST_HEX));
    }
    let mut end = text.len().min(MOST_TEXT);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (
        Form::Text,
        visible::block(&text[..end]).into_owned(),
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
fn hex(body: &[u8]) -> String {
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
            row * 16,
            left.join(" "),
            right.join(" ")
        ));
    }
    out.truncate(out.trim_end().len());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_indented_and_not_changed() {
        let (form, text, rest) = readable(
            br#"{"n":12345678901234567890.10,"s":"a,\"{b}\\","e":[],"o":{ },"l":[1, {"x":null}]}"#,
        );
        assert_eq!((form, rest), (Form::Json, 0));
        assert_eq!(
            text,
            "{\n  \"n\": 12345678901234567890.10,\n  \"s\": \"a,\\\"{b}\\\\\",\n  \"e\": [],\n  \"o\": {},\n  \"l\": [\n    1,\n    {\n      \"x\": null\n    }\n  ]\n}"
        );
    }

    #[test]
    fn everything_else_is_shown_as_what_it_is() {
        assert_eq!(readable(b"").0, Form::Empty);
        assert_eq!(
            readable(b"{not json"),
            (Form::Text, "{not json".to_owned(), 0)
        );
        assert_eq!(
            readable(b"\x1b[31mred"),
            (Form::Text, "\\x1b[31mred".to_owned(), 0)
        );
        assert_eq!(
            readable(&[0, 1, 2, b'a']).1,
            format!("000000  {:<23}  {:<23}  ...a", "00 01 02 61", "")
        );
        let (form, text, rest) = readable(&vec![0xff; 3000]);
        assert_eq!(
            (form, text.lines().count(), rest),
            (Form::Hex, 64, 3000 - 1024)
        );
        let (form, text, rest) = readable("ä".repeat(60_000).as_bytes());
        assert_eq!((form, text.len() + rest), (Form::Text, 120_000));
    }
}
