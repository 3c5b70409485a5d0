//! Redirects: with the body, to the same origin, or not at all.
//!
//! Following one to another host would hand the message, the token and the signature to a host that nobody named.

use reqwest::{Response, StatusCode, Url, header::LOCATION};
use retryrmq::{Failure, terminal_escape};

/// Whether the same POST is to be sent to another place (RFC 9110, 15.4.8 and 15.4.9).
pub(super) fn keeps_the_body(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT
    )
}

/// Where `response` to a request to `from` wants it to go.
///
/// # Errors
/// When that is another origin, or nowhere.
pub(super) fn target(from: &Url, response: &Response) -> Result<Url, Failure> {
    let location = response
        .headers()
        .get(LOCATION)
        .map(|value| value.as_bytes());
    next(from, location).map_err(|why| {
        let status = response.status().as_u16();
        Failure::new(format!("HTTP {status}: {why}")).of_type(format!("HTTP {status}"))
    })
}

/// After so many.
pub(super) fn too_many(most: usize) -> Failure {
    Failure::new(format!("more than {most} redirects, one after the other")).of_type("HTTP 307")
}

fn next(from: &Url, location: Option<&[u8]>) -> Result<Url, String> {
    let location = location.ok_or("a redirect without a Location")?;
    let location = std::str::from_utf8(location)
        .ok()
        .filter(|text| text.len() <= 8 * 1024)
        .ok_or("a redirect whose Location is no URL")?;
    let mut to = from
        .join(location)
        .map_err(|why| format!("a redirect whose Location is no URL ({why})"))?;
    if to.origin() != from.origin() {
        let shown = shown(&to);
        return Err(format!(
            "a redirect to {shown} is not followed, because it is another origin; name the final URL with --http"
        ));
    }
    // The login stays ours, and a fragment is never sent.
    let _ = to.set_username("").and_then(|()| to.set_password(None));
    to.set_fragment(None);
    Ok(to)
}

/// A URL without anything that may be secret, safe for a terminal.
pub(super) fn shown(url: &Url) -> String {
    let origin = match url.host_str() {
        Some(host) => match url.port() {
            Some(port) => format!("{}://{host}:{port}", url.scheme()),
            None => format!("{}://{host}", url.scheme()),
        },
        None => format!("{}:", url.scheme()),
    };
    terminal_escape::line(&origin).chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(location: &str) -> Result<String, String> {
        let from = Url::parse("https://h.example:8443/a/b?token=x").unwrap();
        super::next(&from, Some(location.as_bytes())).map(String::from)
    }

    #[test]
    fn only_the_same_origin_is_followed() {
        for (location, to) in [
            ("/c", "https://h.example:8443/c"),
            ("c?d=e#f", "https://h.example:8443/a/c?d=e"),
            ("https://H.EXAMPLE:8443/", "https://h.example:8443/"),
            (
                "https://other:login@h.example:8443/x",
                "https://h.example:8443/x",
            ),
        ] {
            assert_eq!(next(location).as_deref(), Ok(to));
        }
        for location in [
            "https://h.example/c",
            "http://h.example:8443/c",
            "//evil.example/c",
            "https://h.example:8443@evil.example/c",
            "https://user:s3cr3t@evil.example/p?s3cr3t",
            "file:///etc/passwd",
            "data:text/plain,x",
        ] {
            let why = next(location).unwrap_err();
            assert!(
                why.contains("another origin") && !why.contains("s3cr3t"),
                "{why}"
            );
        }
        for location in ["https://[", "http://\u{7f}/", &"x".repeat(9_000)] {
            assert!(next(location).is_err(), "{location}");
        }
        let from = Url::parse("http://h/").unwrap();
        assert!(super::next(&from, None).is_err() && super::next(&from, Some(b"\xff")).is_err());
    }
}
