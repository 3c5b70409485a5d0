//! Signatures as the Standard Webhooks specification (version 1.0.0) has them: `v1`, HMAC-SHA256.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use ring::hmac;

/// What precedes a symmetric secret.
const PREFIX: &str = "whsec_";
/// How many bytes a secret may have.
const SIZES: std::ops::RangeInclusive<usize> = 24..=64;
/// The id stands before a full stop in what is signed, so it may hold none.
const IN_AN_ID: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'~');

/// The names of the headers.
pub(super) const ID: &str = "webhook-id";
pub(super) const TIMESTAMP: &str = "webhook-timestamp";
pub(super) const SIGNATURE: &str = "webhook-signature";

/// The keys of a file: several while one takes over from another.
pub(super) struct SigningKeys {
    keys: Vec<hmac::Key>,
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
            keys.push(key(line).map_err(|why| format!("secret {}: {why}", number + 1))?);
            texts.push(line.strip_prefix(PREFIX).unwrap_or(line).to_owned());
        }
        Ok(Self { keys, texts })
    }

    /// The secrets as they are written.
    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }
}

fn key(line: &str) -> Result<hmac::Key, String> {
    if line.starts_with("whsk_") || line.starts_with("whpk_") {
        return Err(
            "it is for asymmetric signatures, which are not made; use one that begins with `whsec_`"
                .to_owned(),
        );
    }
    let bytes = BASE64_STANDARD
        .decode(line.strip_prefix(PREFIX).unwrap_or(line))
        .map_err(|_| {
            "it is no base64; make one with: echo whsec_$(openssl rand -base64 32)".to_owned()
        })?;
    if !SIZES.contains(&bytes.len()) {
        let (least, most) = (SIZES.start(), SIZES.end());
        return Err(format!(
            "it has {} bytes, and must have {least} to {most}; make one with: echo whsec_$(openssl rand -base64 32)",
            bytes.len()
        ));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

/// The id of a message for its receiver, who takes two with the same one for the same message. So one without an id has a
/// new one at each attempt.
pub(super) fn id(message_id: Option<&str>) -> String {
    match message_id.filter(|id| !id.is_empty()) {
        Some(id) => utf8_percent_encode(id, IN_AN_ID).to_string(),
        None => format!("attempt_{:032x}", fastrand::u128(..)),
    }
}

/// Adds the three headers.
pub(super) fn sign(
    headers: &mut HeaderMap,
    keys: &SigningKeys,
    id: &str,
    now: SystemTime,
    body: &[u8],
) {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let signatures: Vec<String> = keys
        .keys
        .iter()
        .map(|key| {
            let mut context = hmac::Context::with_key(key);
            context.update(format!("{id}.{seconds}.").as_bytes());
            context.update(body);
            format!("v1,{}", BASE64_STANDARD.encode(context.sign()))
        })
        .collect();
    for (name, value) in [
        (ID, id.to_owned()),
        (TIMESTAMP, seconds.to_string()),
        (SIGNATURE, signatures.join(" ")),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_signature_is_that_of_other_implementations() {
        // Computed with: openssl dgst -sha256 -hmac 0123456789abcdefghijklmn -binary | base64
        let keys = SigningKeys::read("whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u\n").unwrap();
        let mut headers = HeaderMap::new();
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        sign(&mut headers, &keys, "order-1", now, b"{\"a\":1}");
        assert_eq!(headers[ID], "order-1");
        assert_eq!(headers[TIMESTAMP], "1700000000");
        assert_eq!(
            headers[SIGNATURE],
            "v1,cg0LUrOK7iU6dE9RPPZfjcTsRHfD4FTNAt0RapRfngg="
        );
    }

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
        sign(&mut headers, &keys, "a", UNIX_EPOCH, b"");
        let signatures = headers[SIGNATURE].to_str().unwrap();
        let parts: Vec<&str> = signatures.split(' ').collect();
        assert!(parts.len() == 2 && parts.iter().all(|part| part.starts_with("v1,")));
        assert_ne!(parts[0], parts[1]);
    }
}
