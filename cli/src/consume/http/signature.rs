//! The keys with which requests are signed, and the ids in what is signed.

use std::fmt;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use retryrmq_operator::webhook_signature::{PREFIX, SigningKey};

/// The id stands before a full stop in what is signed, so it may hold none.
const IN_AN_ID: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// The keys of a file: several while one takes over from another.
pub(super) struct SigningKeys {
    keys: Vec<SigningKey>,
    texts: Vec<String>,
}

impl fmt::Debug for SigningKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} keys", self.keys.len())
    }
}

impl SigningKeys {
    /// Reads a file of secrets, one a line.
    ///
    /// # Errors
    /// When a line is none. What is in it is not repeated.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let lines: Vec<&str> = text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect();
        if lines.is_empty() {
            return Err("it is empty; write a secret such as `whsec_…` into it".to_owned());
        }
        if lines.len() > 8 {
            return Err(
                "it holds more than 8 secrets; one a line, and only those in use".to_owned(),
            );
        }
        let mut keys = Vec::new();
        let mut texts = Vec::new();
        for (number, line) in lines.into_iter().enumerate() {
            keys.push(
                SigningKey::read(line).map_err(|why| format!("secret {}: {why}", number + 1))?,
            );
            texts.push(line.strip_prefix(PREFIX).unwrap_or(line).to_owned());
        }
        Ok(Self { keys, texts })
    }

    /// The keys, in the order of their lines.
    pub(super) fn keys(&self) -> &[SigningKey] {
        &self.keys
    }

    /// The secrets as they are written.
    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }
}

/// The id of a message for its receiver, who takes two with the same one for the same message. So one without an id has a
/// new one at each attempt.
pub(super) fn id(message_id: Option<&str>) -> String {
    match message_id.filter(|id| !id.is_empty()) {
        Some(id) => utf8_percent_encode(id, IN_AN_ID).to_string(),
        None => format!("attempt_{:032x}", fastrand::u128(..)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use reqwest::header::HeaderMap;
    use retryrmq_operator::webhook_signature::{SIGNATURE, sign};

    use super::*;

    #[test]
    fn an_id_holds_no_full_stop_and_is_never_shared_by_chance() {
        assert_eq!(id(Some("a.b ü")), "a%2Eb%20%C3%BC");
        assert_eq!(id(Some("order-1_x")), "order-1_x");
        assert_ne!(id(None), id(None));
        assert_ne!(id(Some("")), id(Some("")));
    }

    #[test]
    fn what_is_no_secret_is_refused_without_being_repeated() {
        for (text, words) in [
            ("", "empty"),
            ("whsec_c2hvcnQ=", "5 bytes"),
            ("hunter2-hunter2!", "no base64"),
            ("whsk_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u", "asymmetric"),
        ] {
            let why = SigningKeys::read(text).unwrap_err();
            assert!(why.contains(words), "{why}");
            assert!(text.is_empty() || !why.contains(text), "{why}");
        }
        let two = "whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u\n\nMDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1v\n";
        let keys = SigningKeys::read(two).unwrap();
        let mut headers = HeaderMap::new();
        sign(&mut headers, keys.keys(), "a", UNIX_EPOCH, b"");
        let signatures = headers[SIGNATURE].to_str().unwrap();
        let parts: Vec<&str> = signatures.split(' ').collect();
        assert!(parts.len() == 2 && parts.iter().all(|part| part.starts_with("v1,")));
        assert_ne!(parts[0], parts[1]);
    }
}
