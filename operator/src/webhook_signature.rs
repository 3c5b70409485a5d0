//! Signatures as the Standard Webhooks specification (version 1.0.0) has them: `v1`, HMAC-SHA256 over id, time and body.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use ring::hmac;

/// What precedes a symmetric secret.
pub const PREFIX: &str = "whsec_";
/// How many bytes a secret may have.
const SIZES: std::ops::RangeInclusive<usize> = 24..=64;

/// The header with the id of the message.
pub const ID: &str = "webhook-id";
/// The header with the time of the attempt.
pub const TIMESTAMP: &str = "webhook-timestamp";
/// The header with a signature for each key.
pub const SIGNATURE: &str = "webhook-signature";

/// A secret with which requests are signed.
pub struct SigningKey(hmac::Key);

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl SigningKey {
    /// Reads a secret such as `whsec_…`.
    ///
    /// # Errors
    /// Why it is none, without repeating it.
    pub fn read(text: &str) -> Result<Self, String> {
        const HOW: &str = "make one with: echo whsec_$(openssl rand -base64 32)";
        if text.starts_with("whsk_") || text.starts_with("whpk_") {
            return Err(format!(
                "it is for asymmetric signatures, which are not supported; use one that begins with `whsec_`: {HOW}"
            ));
        }
        let bytes = BASE64_STANDARD
            .decode(text.strip_prefix(PREFIX).unwrap_or(text))
            .map_err(|_| format!("it is no base64; {HOW}"))?;
        if !SIZES.contains(&bytes.len()) {
            let (least, most) = (SIZES.start(), SIZES.end());
            return Err(format!(
                "it has {} bytes, and must have {least} to {most}; {HOW}",
                bytes.len()
            ));
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes)))
    }
}

/// Adds the three headers. `id` contains no full stop, because one follows it in what is signed.
pub fn sign(headers: &mut HeaderMap, keys: &[SigningKey], id: &str, now: SystemTime, body: &[u8]) {
    let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let signatures: Vec<String> = keys
        .iter()
        .map(|SigningKey(key)| {
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
        // Computed with: printf 'order-1.1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdefghijklmn -binary | base64
        let key = SigningKey::read("whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u").unwrap();
        let mut headers = HeaderMap::new();
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        sign(&mut headers, &[key], "order-1", now, b"{\"a\":1}");
        assert_eq!(headers["webhook-id"], "order-1");
        assert_eq!(headers["webhook-timestamp"], "1700000000");
        assert_eq!(
            headers["webhook-signature"],
            "v1,cg0LUrOK7iU6dE9RPPZfjcTsRHfD4FTNAt0RapRfngg="
        );
    }

    #[test]
    fn what_is_no_secret_is_refused_without_being_repeated() {
        for (text, words) in [
            ("c2hvcnQ=", "5 bytes"),
            ("whsec_c2hvcnQ=", "5 bytes"),
            ("hunter2!hunter2", "no base64"),
            ("hunter2-hunter2!", "no base64"),
            ("whsk_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u", "asymmetric"),
        ] {
            let why = SigningKey::read(text).unwrap_err();
            assert!(why.contains(words) && !why.contains(text), "{why}");
        }
    }
}
