//! Signatures as the Standard Webhooks specification (version 1.0.0) has them, as those of `retryrmq consume --http`: HMAC-SHA256 over
//! id, time and body.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::{Engine, prelude::BASE64_STANDARD};
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use ring::hmac;

/// What precedes a symmetric secret.
const PREFIX: &str = "whsec_";
/// How many bytes a secret may have.
const SIZES: std::ops::RangeInclusive<usize> = 24..=64;

/// Reads a secret such as `whsec_…`.
///
/// # Errors
/// A sentence, without the secret.
pub(super) fn key(text: &str) -> Result<hmac::Key, String> {
    const HOW: &str = "make one with: echo whsec_$(openssl rand -base64 32)";
    let bytes = BASE64_STANDARD
        .decode(text.strip_prefix(PREFIX).unwrap_or(text))
        .map_err(|_| format!("the secret is no base64; {HOW}"))?;
    if !SIZES.contains(&bytes.len()) {
        let (least, most) = (SIZES.start(), SIZES.end());
        return Err(format!(
            "the secret has {} bytes, and must have {least} to {most}; {HOW}",
            bytes.len()
        ));
    }
    Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
}

/// Adds the three headers. `id` holds no full stop.
pub(super) fn sign(
    headers: &mut HeaderMap,
    key: &hmac::Key,
    id: &str,
    now: SystemTime,
    body: &[u8],
) {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let seconds = since.as_secs();
    let mut context = hmac::Context::with_key(key);
    context.update(format!("{id}.{seconds}.").as_bytes());
    context.update(body);
    let signature = format!("v1,{}", BASE64_STANDARD.encode(context.sign()));
    for (name, value) in [
        ("webhook-id", id.to_owned()),
        ("webhook-timestamp", seconds.to_string()),
        ("webhook-signature", signature),
    ] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_other_implementations() {
        // Computed with: printf 'order-1.1700000000.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdefghijklmn -binary | base64
        let key = key("whsec_MDEyMzQ1Njc4OWFiY2RlZmdoaWprbG1u").unwrap();
        let mut headers = HeaderMap::new();
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        sign(&mut headers, &key, "order-1", now, b"{\"a\":1}");
        assert_eq!(headers["webhook-id"], "order-1");
        assert_eq!(headers["webhook-timestamp"], "1700000000");
        assert_eq!(
            headers["webhook-signature"],
            "v1,cg0LUrOK7iU6dE9RPPZfjcTsRHfD4FTNAt0RapRfngg="
        );
    }

    #[test]
    fn what_is_no_secret_is_refused_without_being_repeated() {
        for (text, words) in [("c2hvcnQ=", "5 bytes"), ("hunter2!hunter2", "no base64")] {
            let why = key(text).unwrap_err();
            assert!(why.contains(words) && !why.contains(text), "{why}");
        }
    }
}
