//! A header's value, owned, and read carefully: whoever published a message chose its type.

use std::collections::BTreeMap;

/// Any value of an AMQP 0-9-1 field table.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Void.
    Null,
    /// A boolean.
    Flag(bool),
    /// An integer of any width.
    Number(i64),
    /// A floating-point number.
    Fraction(f64),
    /// A string that is UTF-8.
    Text(String),
    /// A string that is not, or a byte array.
    Bytes(Vec<u8>),
    /// Seconds since 1970.
    Time(u64),
    /// An array.
    List(Vec<Value>),
    /// A table.
    Table(Headers),
}

/// Headers by name.
pub type Headers = BTreeMap<String, Value>;

impl Value {
    /// The text, cut to so many bytes.
    pub(crate) fn text(&self, most: usize) -> Option<String> {
        match self {
            Self::Text(text) => Some(cut(text, most)),
            Self::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(|text| cut(text, most)),
            _ => None,
        }
    }

    /// A count, also where it was written as text, as .NET libraries do.
    pub(crate) fn count(&self) -> Option<u32> {
        let number = match self {
            Self::Number(number) => *number,
            Self::Text(text) if text.len() < 20 => text.trim().parse().ok()?,
            _ => return None,
        };
        // Beyond that it is forged or broken.
        (0..=1_000_000)
            .contains(&number)
            .then(|| u32::try_from(number).ok())
            .flatten()
    }
}

/// Text at a name, cut.
pub(crate) fn text(headers: &Headers, name: &str, most: usize) -> Option<String> {
    headers
        .get(name)?
        .text(most)
        .filter(|text| !text.is_empty())
}

/// Keeps the beginning and the end, where an error's cause and place stand.
pub(crate) fn cut(text: &str, most: usize) -> String {
    const MARK: &str = " … ";
    if text.len() <= most {
        return text.to_owned();
    }
    let half = most.saturating_sub(MARK.len()) / 2;
    let head = (0..=half).rev().find(|at| text.is_char_boundary(*at));
    let tail = (text.len() - half..=text.len()).find(|at| text.is_char_boundary(*at));
    format!(
        "{}{MARK}{}",
        &text[..head.unwrap_or(0)],
        &text[tail.unwrap_or(text.len())..]
    )
}
