//! Forms that only this page may send: another site's would come with the person's cookies.

use axum::http::{HeaderMap, header};
use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use ring::hmac;

use super::auth::cookie;

/// A cookie that only this site's own requests carry (`SameSite=Strict`).
pub(super) const COOKIE: &str = "retryrmq_form";

/// A new value of the cookie.
pub(super) fn new_cookie() -> String {
    let mut bytes = [0; 24];
    let random = ring::rand::SystemRandom::new();
    // Without randomness of the system nothing here is safe: the value then fits no form.
    match ring::rand::SecureRandom::fill(&random, &mut bytes) {
        Ok(()) => BASE64_URL_SAFE_NO_PAD.encode(bytes),
        Err(_) => String::new(),
    }
}

/// What a form of whoever has that cookie says. Whoever reads the page does not learn the cookie.
pub(super) fn word(cookie: &str) -> String {
    let tag = hmac::sign(&key(cookie), b"form");
    BASE64_URL_SAFE_NO_PAD.encode(tag)
}

fn key(cookie: &str) -> hmac::Key {
    hmac::Key::new(hmac::HMAC_SHA256, cookie.as_bytes())
}

/// Whether a request comes from a form of this page. `host` is the name by which the browser knows it.
pub(super) fn is_ours(headers: &HeaderMap, host: Option<&str>, word: &str) -> bool {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let origin = text(header::ORIGIN.as_str()).and_then(|origin| origin.split_once("://"));
    let is_same = matches!((origin, host), (Some((_, origin)), Some(host)) if origin == host);
    let is_said_to_be = text("sec-fetch-site").is_none_or(|site| site == "same-origin");
    let Some(cookie) = cookie(headers, COOKIE).filter(|cookie| cookie.len() >= 32) else {
        return false;
    };
    let tag = BASE64_URL_SAFE_NO_PAD.decode(word).unwrap_or_default();
    is_same && is_said_to_be && hmac::verify(&key(cookie), b"form", &tag).is_ok()
}

/// Whether a page of another site has something asked for by itself, as with an image, a frame or a script: it cannot read the answer, and has
/// the work done all the same. Somebody who follows a link comes in. Of what no browser sent nothing is known.
pub(super) fn is_of_another_site(headers: &HeaderMap) -> bool {
    let is_here =
        is(headers, "sec-fetch-site", "same-origin") || is(headers, "sec-fetch-site", "none");
    headers.contains_key("sec-fetch-site") && !is_here && !is_clicked(headers)
}

/// Whether somebody has followed a link of another site. The browser keeps our cookies (`SameSite=Strict`) from this request, and has them for the
/// next one, which comes from here.
pub(super) fn is_followed(headers: &HeaderMap) -> bool {
    // Safari does not say who asks (`Sec-Fetch-User`). Whoever is led here sees the page anyway.
    is(headers, "sec-fetch-site", "cross-site")
        && is(headers, "sec-fetch-dest", "document")
        && (is_clicked(headers) || is(headers, "sec-fetch-mode", "navigate"))
}

fn is_clicked(headers: &HeaderMap) -> bool {
    is(headers, "sec-fetch-user", "?1") && is(headers, "sec-fetch-dest", "document")
}

fn is(headers: &HeaderMap, name: &str, value: &str) -> bool {
    headers.get(name).is_some_and(|said| said == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_site_has_nothing_looked_at_but_by_a_click() {
        for (headers, expected) in [
            (&[][..], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("sec-fetch-site", "same-origin")], false),
            (&[("sec-fetch-site", "same-site")], true),
            (
                &[
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-dest", "image"),
                ],
                true,
            ),
            (
                &[
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-dest", "document"),
                ],
                true,
            ),
            (
                &[
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-dest", "iframe"),
                    ("sec-fetch-user", "?1"),
                ],
                true,
            ),
            (
                &[
                    ("sec-fetch-site", "cross-site"),
                    ("sec-fetch-dest", "document"),
                    ("sec-fetch-user", "?1"),
                ],
                false,
            ),
        ] {
            let all = headers.iter().map(|(name, value)| {
                let name = header::HeaderName::from_static(name);
                (name, header::HeaderValue::from_static(value))
            });
            let all = all.collect();
            assert_eq!(is_of_another_site(&all), expected, "{headers:?}");
            let is_last = headers.len() == 3 && !expected;
            assert_eq!(is_followed(&all), is_last, "{headers:?}");
        }
    }

    #[test]
    fn a_form_needs_the_cookie_its_word_and_the_origin() {
        let value = new_cookie();
        let cookies = format!("{COOKIE}={value}");
        let good = word(&value);
        let other = word(&new_cookie());
        let ask = |origin: Option<&str>, site: Option<&str>, cookies: &str, word: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, cookies.parse().unwrap());
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            if let Some(site) = site {
                headers.insert("sec-fetch-site", site.parse().unwrap());
            }
            is_ours(&headers, Some("shop:9419"), word)
        };
        let ours = Some("https://shop:9419");
        assert!(ask(ours, None, &cookies, &good));
        assert!(ask(ours, Some("same-origin"), &cookies, &good));
        assert!(!ask(ours, Some("cross-site"), &cookies, &good));
        assert!(!ask(Some("https://evil"), None, &cookies, &good));
        assert!(!ask(Some("null"), None, &cookies, &good));
        assert!(!ask(None, None, &cookies, &good));
        assert!(!ask(ours, None, "a=b", &good));
        assert!(!ask(ours, None, &cookies, &other));
        assert!(!ask(ours, None, &cookies, ""));
        assert!(!ask(ours, None, &format!("{COOKIE}="), &word("")));
    }
}
