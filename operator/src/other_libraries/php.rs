//! Just enough of PHP's serialization to find the text of a property in Symfony's envelope. Nothing is built: a property is found
//! by its name as PHP writes it, between zero bytes and with its class, and its text by the length before it.

use base64::{Engine, prelude::BASE64_STANDARD};

use super::value::cut;

/// Bytes of a body that are looked through.
const MOST: usize = 4 * 1024 * 1024;

/// A body that is one.
pub(crate) struct Envelope(Vec<u8>);

impl Envelope {
    /// The body of Symfony's `PhpSerializer`: base64, or with slashes before quotes and zero bytes.
    pub(crate) fn find(body: &[u8]) -> Option<Self> {
        const START: &[u8] = b"O:36:\"Symfony\\Component\\Messenger\\Envelope\"";
        if body.len() > MOST {
            return None;
        }
        let plain = match body.first()? {
            b'O' => unslashed(body),
            // "O:" in base64
            b'T' => BASE64_STANDARD.decode(body).ok()?,
            _ => return None,
        };
        plain.starts_with(START).then_some(Self(plain))
    }

    /// The text of a private property of the last stamp of this class.
    pub(crate) fn text(&self, class: &str, property: &str, most: usize) -> Option<String> {
        let name = format!("\0Symfony\\Component\\Messenger\\Stamp\\{class}\0{property}\";s:");
        let at = rfind(&self.0, name.as_bytes())? + name.len();
        let rest = &self.0[at..];
        let digits = rest
            .iter()
            .take(10)
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let length: usize = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        let text = rest.get(digits..)?.strip_prefix(b":\"")?.get(..length)?;
        Some(cut(std::str::from_utf8(text).ok()?, most))
    }
}

/// Undoes PHP's `addslashes`.
fn unslashed(body: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(body.len());
    let mut rest = body.iter().copied();
    while let Some(byte) = rest.next() {
        plain.push(match byte {
            b'\\' => match rest.next() {
                Some(b'0') => 0,
                Some(other) => other,
                None => byte,
            },
            byte => byte,
        });
    }
    plain
}

fn rfind(bytes: &[u8], name: &[u8]) -> Option<usize> {
    bytes.windows(name.len()).rposition(|window| window == name)
}
